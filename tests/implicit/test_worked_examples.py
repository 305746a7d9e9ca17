"""Exact optima, test vectors and negative controls on four small integer data sets.

The rationals are exact solutions of the optimality conditions; the decimals come from Newton's
method with 40 digits. None of them was computed with this code.
"""

import math

import pytest
import torch

from lib.implicit import (
    ConvolutionalNetwork,
    DenseNetwork,
    DiagonalNetwork,
    bridge_minimum,
    bridge_penalty,
    descend,
    direction_angle,
    duality_gap,
    max_margin,
    spectrum,
    stationarity,
)
from lib.implicit.data import worked_example
from lib.implicit.training import cosine_weights


def vector(*values, over=1.0):
    return torch.tensor(values, dtype=torch.float64) / over


OPTIMA = {
    ("E1", "l2"): vector(8, 11, 23, over=17),
    ("E1", "l1"): vector(0, 1, 5, over=3),
    ("E1", "fourier-l1"): vector(1, 1, 1),
    ("E2", "l2"): vector(-1, 9, 13, 20, over=31),
    ("E2", "l1"): vector(0, 0, 2, 5, over=6),
    ("E2", "fourier-l1"): vector(65, 79, 113, 99, over=195),
    ("E3", "l2"): vector(169, -384, 372, 518, -1010, over=1491),
    ("E3", "l1"): vector(0, 0, 3, 3, -8, over=10),
    ("E3", "fourier-l1"): vector(
        0.2631578566685, -0.2763157133371, 0.1184210716657, 0.5065789283343, -0.6118421433315
    ),
    ("E4", "l2"): vector(31958, -39473, 28688, 19779, 3087, 6388, 1608, -34097, over=94129),
    ("E4", "l1"): vector(12, -70, 15, 0, 0, 0, 0, -34, over=89),
    ("E4", "fourier-l1"): vector(
        0.3624406373443,
        -0.4225356175934,
        0.3476153323258,
        0.0915739484079,
        -0.0838636358330,
        0.1439586160821,
        -0.0690383308145,
        -0.3701509499192,
    ),
}
# limits of depth-3 networks, penalty sum |.|^(2/3), margin one
DEPTH_THREE = [
    ("E2", "fourier", vector(1 / 3, 0.4200281400, 0.5844538244, 0.4977590178), 1.461435),
    ("E2", "fourier", vector(1, 1, 1, 1), 1.587401),
    ("E2", "signal", vector(0, 0, 2, 5, over=6), 1.366299),
    ("E2", "signal", vector(-1, 0, 0, 1), 2.0),
    ("E1", "fourier", vector(-2, -1, 3), 3.8259),
]


@pytest.mark.parametrize(("name", "norm"), OPTIMA)
def test_maximum_margin_predictors_are_the_exact_ones(name, norm):
    inputs, labels = worked_example(name)
    found = max_margin(inputs, labels, norm)
    assert torch.allclose(found, OPTIMA[name, norm], atol=1e-9)
    assert float((labels * (inputs @ found)).min()) == pytest.approx(1, abs=1e-9)
    assert float(duality_gap(found, inputs, labels, norm)) <= 1e-8
    other = OPTIMA[name, "l2" if norm != "l2" else "l1"]
    assert float(duality_gap(other, inputs, labels, norm)) > 1e-3


@pytest.mark.parametrize(("name", "domain", "predictor", "penalty"), DEPTH_THREE)
def test_limits_of_depth_three_are_stationary_and_have_their_penalty(
    name, domain, predictor, penalty
):
    inputs, labels = worked_example(name)
    assert float(stationarity(predictor, inputs, labels, 2 / 3, domain)) < 1e-6
    assert float(bridge_penalty(predictor, 2 / 3, domain)) == pytest.approx(penalty, rel=1e-4)
    assert float(stationarity(7 * predictor, inputs, labels, 2 / 3, domain)) < 1e-6


def test_the_optimum_of_depth_two_is_not_stationary_at_depth_three():
    inputs, labels = worked_example("E2")
    best = OPTIMA["E2", "fourier-l1"]
    assert float(stationarity(best, inputs, labels, 1.0, "fourier")) < 1e-6
    assert float(stationarity(best, inputs, labels, 2 / 3, "fourier")) == pytest.approx(
        3.4e-2, rel=0.05
    )


@pytest.mark.parametrize(
    ("name", "penalty"), [("E1", 1.8865), ("E2", 1.366299), ("E3", 1.758055), ("E4", 1.790358)]
)
def test_the_global_bridge_minimum_is_found_by_enumeration(name, penalty):
    inputs, labels = worked_example(name)
    found = bridge_minimum(inputs, labels, 2 / 3)
    assert float(bridge_penalty(found, 2 / 3, "signal")) == pytest.approx(penalty, rel=1e-4)


def test_convolution_follows_the_convention_and_not_the_textbook():
    w1, w2, w3 = vector(1, 2, 0, -1), vector(3, 0, 1, 2), vector(1, -1, 2, 0)
    assert torch.allclose(ConvolutionalNetwork(2).predictor((w1, w2)), vector(7, 5, -1, 1, over=2))
    assert torch.allclose(ConvolutionalNetwork(3).predictor((w1, w2, w3)), vector(1, 0, 2, 3))


def test_the_spectrum_of_a_convolution_is_the_product_of_the_spectra():
    generator = torch.Generator().manual_seed(3)
    weights = ConvolutionalNetwork(3).initialise(7, generator, 1.0)
    product = math.prod(spectrum(w) for w in weights)
    assert torch.allclose(spectrum(ConvolutionalNetwork(3).predictor(weights)), product)


def layer_by_layer(weights, x):
    """The network as it is defined: circular cross-correlations, then a dense output."""
    for kernel in weights[:-1]:
        size = len(x)
        x = vector(
            *[
                sum(float(kernel[k] * x[(d + k) % size]) for k in range(size)) / math.sqrt(size)
                for d in range(size)
            ]
        )
    return float(weights[-1] @ x)


@pytest.mark.parametrize("depth", [2, 3, 4])
@pytest.mark.parametrize("dimension", [3, 4, 5])
def test_the_predictor_is_the_layered_network(depth, dimension):
    generator = torch.Generator().manual_seed(10 * depth + dimension)
    weights = ConvolutionalNetwork(depth).initialise(dimension, generator, 1.0)
    x = torch.randn(dimension, generator=generator, dtype=torch.float64)
    beta = ConvolutionalNetwork(depth).predictor(weights)
    assert float(beta @ x) == pytest.approx(layer_by_layer(weights, x), rel=1e-10)


@pytest.mark.parametrize("network", [DenseNetwork(3), ConvolutionalNetwork(3), DiagonalNetwork(4)])
def test_the_adjoint_is_the_gradient_of_the_predictor(network):
    generator = torch.Generator().manual_seed(1)
    weights = network.initialise(5, generator, 1.0)
    z = torch.randn(5, generator=generator, dtype=torch.float64)
    leaves = [w.detach().requires_grad_() for w in weights]
    slopes = torch.autograd.grad(network.predictor(tuple(leaves)) @ z, leaves)
    for slope, found in zip(slopes, network.adjoint(weights, z), strict=True):
        assert torch.allclose(slope, found, atol=1e-10)


@pytest.mark.parametrize("network", [DenseNetwork(2), ConvolutionalNetwork(3), DiagonalNetwork(3)])
def test_the_parameter_norm_is_never_below_the_induced_penalty(network):
    generator = torch.Generator().manual_seed(8)
    for _ in range(50):
        weights = network.initialise(6, generator, 1.0)
        norm = sum(float((w**2).sum()) for w in weights)
        assert norm >= float(network.penalty(network.predictor(weights))) - 1e-9


@pytest.mark.parametrize(
    ("network", "norm", "angle"),
    [
        (DenseNetwork(2), "l2", 9.6e-4),
        (ConvolutionalNetwork(2), "fourier-l1", 7.1e-5),
        (DiagonalNetwork(2), "l1", 5.8e-5),
    ],
)
def test_training_ends_where_an_independent_implementation_ended(network, norm, angle):
    """E2 from the start w_j = 0.1 cos(j^2 + j/2), ten thousand normalised steps."""
    inputs, labels = worked_example("E2")
    weights = cosine_weights(network, 4)
    run = descend(network, inputs, labels, 10_000, weights=weights)
    found = float(direction_angle(run.direction[-1], OPTIMA["E2", norm]))
    assert found == pytest.approx(angle, rel=0.05)
    assert bool((run.log_loss.diff() < 0).all())


@pytest.mark.parametrize("norm", ["l2", "l1", "fourier-l1"])
def test_bad_data_is_refused(norm):
    inputs, labels = worked_example("E2")
    with pytest.raises(ValueError, match="separ"):
        max_margin(torch.cat([inputs, inputs[:1]]), torch.cat([labels, -labels[:1]]), norm)
    with pytest.raises(ValueError, match="labels"):
        max_margin(inputs, torch.tensor([0.0, 1.0]), norm)
    with pytest.raises(ValueError, match="inputs"):
        max_margin(inputs * torch.nan, labels, norm)
    with pytest.raises(ValueError, match="norm"):
        max_margin(inputs, labels, norm + "x")
