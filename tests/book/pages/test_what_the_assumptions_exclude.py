"""The networks and problems just outside the theorems, against second routes."""

import math

import pytest
import torch

from lib.book.pages.what_the_assumptions_exclude import (
    circulant,
    fixed_multiples,
    layered_predictor,
    least_l1_of_parts,
    relu_slopes,
    unknowns_and_supports,
)
from lib.implicit import ConvolutionalNetwork, DenseNetwork, DiagonalNetwork, descend


def normal(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("dimension", [1, 4, 5])
def test_circulant_is_the_sum_of_its_definition(dimension, flipped):
    kernel, x = normal(0, dimension), normal(1, dimension)
    sign = -1 if flipped else 1
    expected = [
        sum(float(kernel[k] * x[(d + sign * k) % dimension]) for k in range(dimension))
        for d in range(dimension)
    ]
    found = math.sqrt(dimension) * circulant(kernel, flipped) @ x
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("dimension", [4, 7])
def test_layered_predictor_is_the_network_of_the_library(depth, dimension):
    layers = normal(depth, depth, dimension)
    torch.testing.assert_close(
        layered_predictor(layers), ConvolutionalNetwork(depth).predictor(layers)
    )


def test_textbook_layers_are_correlations_with_reversed_kernels():
    layers = normal(5, 3, 6)
    reversed_kernels = layers.clone()
    reversed_kernels[:-1] = layers[:-1, (-torch.arange(6)) % 6]
    torch.testing.assert_close(
        layered_predictor(layers, flipped=True), layered_predictor(reversed_kernels)
    )


@pytest.mark.parametrize("network", [DenseNetwork(1), ConvolutionalNetwork(2), DiagonalNetwork(3)])
def test_one_times_the_safe_step_is_normalised_descent(network):
    rows = torch.tensor([[1.0, 2, -2, 2], [-1, -1, 3, 0]], dtype=torch.float64)
    weights = network.initialise(4, torch.Generator().manual_seed(2), 0.2)
    run = descend(network, rows, torch.ones(2), 20, weights=weights, records=500)
    losses = fixed_multiples(network, weights, rows, 20, 1.0)
    torch.testing.assert_close(losses[1:], run.log_loss)
    assert bool((losses.diff() < 0).all())


def test_a_step_far_too_long_raises_the_loss():
    rows = torch.tensor([[1.0, 2, -2, 2], [-1, -1, 3, 0]], dtype=torch.float64)
    losses = fixed_multiples(DenseNetwork(1), (0 * rows[0],), rows, 30, 100.0)
    assert bool((losses.diff() > 0).any())


@pytest.mark.parametrize(("steps", "factor"), [(0, 1.0), (3, 0.0), (3, math.nan)])
def test_multiples_refuse_nonsense(steps, factor):
    rows = torch.ones(1, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="must be positive"):
        fixed_multiples(DenseNetwork(1), (rows[0],), rows, steps, factor)


def parts(vector):
    coefficients = torch.fft.fft(vector, norm="ortho")
    return coefficients.real.abs().sum(-1) + coefficients.imag.abs().sum(-1)


@pytest.mark.parametrize("seed", range(4))
def test_least_l1_of_parts_is_feasible_and_no_neighbour_is_better(seed):
    rows = normal(seed, 3, 7)
    found = least_l1_of_parts(rows)
    assert float((rows @ found).min()) >= 1 - 1e-9
    others = found + 0.1 * normal(seed + 100, 2000, 7)
    others = others / (others @ rows.mT).amin(-1, keepdim=True).clamp(min=1e-3)
    assert float(parts(others).min()) >= float(parts(found)) - 1e-9


def test_least_l1_of_parts_refuses_inseparable_examples():
    row = normal(0, 1, 4)
    with pytest.raises(ValueError, match="separable"):
        least_l1_of_parts(torch.cat([row, -row]))


@pytest.mark.parametrize("seed", range(3))
def test_relu_network_learns_and_its_slopes_give_its_outputs(seed):
    inputs, labels = normal(seed, 2, 4), torch.tensor([1.0, -1.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    slopes, margins = relu_slopes(inputs, labels, 16, 300, generator)
    assert float(margins.min()) > 1
    torch.testing.assert_close(labels * (slopes * inputs).sum(-1), margins)
    assert float((slopes[0] - slopes[1]).norm()) > 0.1 * float(slopes.norm())


@pytest.mark.parametrize(
    ("vector", "unknowns", "supports"),
    [
        ([65.0, 79, 113, 99], 3, 2),  # the optimum: d = 0 and a complex pair
        ([1.0, 1, 1, 1], 1, 1),
        ([1.0, 1.2, 1.4, 1.3], 4, 1),
    ],
)
def test_unknowns_and_supports_of_predictors_known_by_hand(vector, unknowns, supports):
    rows = torch.tensor([[1.0, 2, -2, 2], [-1, -1, 3, 0]], dtype=torch.float64)
    found = unknowns_and_supports(torch.tensor([vector], dtype=torch.float64), rows)
    assert [int(count) for count in found] == [unknowns, supports]
