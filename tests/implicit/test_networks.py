from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.implicit import (
    ConvolutionalNetwork,
    DenseNetwork,
    DiagonalNetwork,
    HomogeneousNetwork,
    spectrum,
)

W1 = torch.tensor([1.0, 2.0, 0.0, -1.0], dtype=torch.float64)
W2 = torch.tensor([3.0, 0.0, 1.0, 2.0], dtype=torch.float64)
W3 = torch.tensor([1.0, -1.0, 2.0, 0.0], dtype=torch.float64)

NETWORKS = [
    DenseNetwork(1),
    DenseNetwork(2),
    DenseNetwork(4, width=3),
    DiagonalNetwork(1),
    DiagonalNetwork(3),
    ConvolutionalNetwork(1),
    ConvolutionalNetwork(2),
    ConvolutionalNetwork(4),
    HomogeneousNetwork(lambda w: w[: len(w) // 2] ** 3 - w[len(w) // 2 :] ** 3, 3),
    HomogeneousNetwork(lambda w: w * w.roll(-1), 2),
]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def layers_of(weights):
    return [weights] if isinstance(weights, torch.Tensor) else list(weights)


def like(weights, layers):
    return layers[0] if isinstance(weights, torch.Tensor) else layers


def forward_by_layers(kernels, x, textbook=False):
    """A network of circular cross-correlations, as the definition says, one sum at a time."""
    d = len(x)
    sign = -1 if textbook else 1
    for kernel in kernels[:-1]:
        x = torch.stack(
            [
                sum(kernel[k] * x[(i + sign * k) % d] for k in range(d)) / math.sqrt(d)
                for i in range(d)
            ]
        )
    return kernels[-1] @ x


# --- what the networks compute -----------------------------------------------------------------


def test_convolutional_test_vectors():
    two = ConvolutionalNetwork(2).predictor([W1, W2])
    three = ConvolutionalNetwork(3).predictor([W1, W2, W3])
    assert torch.allclose(2 * two, torch.tensor([7.0, 5.0, -1.0, 1.0], dtype=torch.float64))
    assert torch.allclose(three, torch.tensor([1.0, 0.0, 2.0, 3.0], dtype=torch.float64))
    assert torch.allclose(spectrum(two), torch.tensor([3, 2 - 1j, 0], dtype=torch.complex128))


def test_textbook_convolution_is_another_predictor():
    identity = torch.eye(4, dtype=torch.float64)
    two = torch.stack([forward_by_layers([W1, W2], e, textbook=True) for e in identity])
    three = torch.stack([forward_by_layers([W1, W2, W3], e, textbook=True) for e in identity])
    assert torch.allclose(2 * two, torch.tensor([1.0, -1.0, 5.0, 7.0], dtype=torch.float64))
    assert torch.allclose(three, torch.tensor([0.0, 1.0, 3.0, 2.0], dtype=torch.float64))


@pytest.mark.parametrize("d", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_convolutional_predictor_is_the_layers_composition(d, depth):
    kernels, x = gaussian(d, depth, d), gaussian(depth, d)
    predictor = ConvolutionalNetwork(depth).predictor(kernels)
    assert float(predictor @ x) == pytest.approx(float(forward_by_layers(kernels, x)), abs=1e-12)
    assert torch.allclose(ConvolutionalNetwork(depth).predictor(kernels.flip(0)), predictor)


@pytest.mark.parametrize("network", [DenseNetwork(3), DenseNetwork(4, width=2)])
def test_dense_predictor_is_the_layers_composition(network):
    weights = network.initialise(5, generator(0), 1.0)
    x = gaussian(1, 7, 5)
    hidden = x
    for layer in weights:
        hidden = hidden @ layer
    assert torch.allclose(x @ network.predictor(weights), hidden)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_homogeneity_and_batches(network):
    weights = network.initialise(5, generator(0), 0.7, batch=(2, 3))
    predictor = network.predictor(weights)
    assert predictor.shape == (2, 3, 5)
    assert predictor.dtype == torch.float64
    scaled = like(weights, [1.3 * layer for layer in layers_of(weights)])
    assert torch.allclose(network.predictor(scaled), 1.3**network.degree * predictor)
    single = like(weights, [layer[1, 2] for layer in layers_of(weights)])
    assert torch.allclose(network.predictor(single), predictor[1, 2])


# --- derivatives -------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_adjoint_pushforward_and_gram_against_autograd(network):
    weights = network.initialise(5, generator(0), 1.0, batch=(3,))
    change = network.initialise(5, generator(1), 1.0, batch=(3,))
    z, rows = gaussian(2, 3, 5), gaussian(3, 4, 5)
    leaves = [layer.clone().requires_grad_() for layer in layers_of(weights)]
    gradients = []
    for vector in (z, *(row.expand(3, 5) for row in rows)):
        value = (network.predictor(like(weights, leaves)) * vector).sum()
        gradients.append(torch.autograd.grad(value, leaves))
    adjoint = layers_of(network.adjoint(weights, z))
    for ours, theirs in zip(adjoint, gradients[0], strict=True):
        assert torch.allclose(ours, theirs)
    flat = torch.stack([torch.cat([g.flatten(1) for g in one], 1) for one in gradients[1:]], 1)
    assert torch.allclose(network.gram(weights, rows), flat @ flat.mT)
    pushed = (network.pushforward(weights, change) * z).sum()
    paired = sum((a * c).sum() for a, c in zip(adjoint, layers_of(change), strict=True))
    assert float(pushed) == pytest.approx(float(paired))


@settings(max_examples=25)
@given(st.sampled_from([n for n in NETWORKS if n.degree > 1]), st.integers(0, 10**6))
def test_curvature_bounds_the_hessian_of_a_margin(network, seed):
    weights = network.initialise(3, generator(seed), 1.0)
    x = gaussian(seed + 1, 3)
    sizes = [layer.numel() for layer in layers_of(weights)]
    shapes = [layer.shape for layer in layers_of(weights)]

    def margin(flat):
        parts = [p.reshape(s) for p, s in zip(flat.split(sizes), shapes, strict=True)]
        return network.predictor(like(weights, parts)) @ x

    flat = torch.cat([layer.flatten() for layer in layers_of(weights)])
    hessian = torch.autograd.functional.hessian(margin, flat)
    largest = float(torch.linalg.eigvalsh(hessian).abs().max())
    assert largest <= float(network.curvature(weights) * x.norm()) * (1 + 1e-9)


# --- the induced penalty -----------------------------------------------------------------------


@given(
    st.sampled_from([DenseNetwork, DiagonalNetwork, ConvolutionalNetwork]),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 10**6),
)
def test_no_weights_are_cheaper_than_the_penalty(kind, depth, d, seed):
    network = kind(depth)
    weights = network.initialise(d, generator(seed), 1.0)
    square = sum(float((layer**2).sum()) for layer in weights)
    assert square >= float(network.penalty(network.predictor(weights))) * (1 - 1e-9)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("d", [4, 5])
def test_balanced_weights_cost_the_penalty(depth, d):
    beta = gaussian(d, d)
    root = beta.abs() ** (1 / depth)
    diagonal = [root.clone() for _ in range(depth - 1)] + [root * beta.sign()]
    hat = spectrum(beta)
    root_hat = torch.fft.irfft(hat.abs() ** (1 / depth) + 0j, n=d, norm="ortho")
    last = torch.fft.irfft(hat.abs() ** (1 / depth) * hat / hat.abs(), n=d, norm="ortho")
    convolutional = [root_hat.clone() for _ in range(depth - 1)] + [last]
    unit = torch.eye(d, dtype=torch.float64)[0]
    size = beta.norm() ** (1 / depth)
    first = size * torch.outer(beta / beta.norm(), unit)
    middle = [size * torch.outer(unit, unit) for _ in range(depth - 2)]
    dense = [beta] if depth == 1 else [first, *middle, size * unit]
    for network, weights in (
        (DiagonalNetwork(depth), diagonal),
        (ConvolutionalNetwork(depth), convolutional),
        (DenseNetwork(depth), dense),
    ):
        assert torch.allclose(network.predictor(weights), beta)
        square = sum(float((layer**2).sum()) for layer in weights)
        assert square == pytest.approx(float(network.penalty(beta)))


# --- refusals ----------------------------------------------------------------------------------


def test_errors():
    with pytest.raises(ValueError, match="depth must be an integer >= 1, got 0"):
        DiagonalNetwork(0)
    with pytest.raises(ValueError, match="width must be"):
        DenseNetwork(2, width=0)
    with pytest.raises(ValueError, match="scale must be a finite number > 0"):
        DiagonalNetwork(2).initialise(3, generator(0), 0.0)
    with pytest.raises(ValueError, match="weights must hold 2 layers for depth 2, got 3"):
        DiagonalNetwork(2).predictor([W1, W2, W3])
    with pytest.raises(ValueError, match=r"weights\[1\] must have shape \(4,\).*got \(3,\)"):
        DiagonalNetwork(2).validate([W1, W2[:3]], 4)
    with pytest.raises(ValueError, match=r"weights\[0\] must be finite"):
        DiagonalNetwork(1).validate([W1 / 0], 4)


def test_homogeneous_maps_are_tested():
    with pytest.raises(ValueError, match=r"map must satisfy map\(c w\) = c\^2 map\(w\)"):
        HomogeneousNetwork(lambda w: w**3, 2).initialise(3, generator(0), 1.0)
    with pytest.raises(ValueError, match=r"map must return shape \(3,\)"):
        HomogeneousNetwork(lambda w: w, 1).validate(torch.ones(2), 3)
    with pytest.raises(ValueError, match="say how many it needs"):
        HomogeneousNetwork(lambda w: w.sum(), 1).initialise(3, generator(0), 1.0)
    with pytest.raises(ValueError, match="no closed form"):
        HomogeneousNetwork(lambda w: w, 1).penalty(W1)


def test_the_number_of_weights_of_a_homogeneous_map():
    halves = HomogeneousNetwork(lambda w: w[:3] ** 2 - w[3:] ** 2, 2)
    assert halves.initialise(3, generator(0), 1.0, batch=(2,)).shape == (2, 6)
    pairs = HomogeneousNetwork(lambda w: torch.stack([w[0] * w[1], w[1] ** 2]), 2, parameters=2)
    assert pairs.initialise(2, generator(0), 1.0).shape == (2,)
