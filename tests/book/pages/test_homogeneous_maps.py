"""The functions of the chapter "One theorem for all of them", against closed forms."""

import matplotlib.pyplot as plt
import pytest
import torch

from lib.book.pages import homogeneous_maps as page
from lib.implicit import (
    ConvolutionalNetwork,
    DenseNetwork,
    DiagonalNetwork,
    HomogeneousNetwork,
    direction_angle,
    max_margin,
    worked_example,
)
from lib.implicit.networks import squared_norm


@pytest.mark.parametrize("name", list(page.eleven_maps()))
def test_every_map_has_the_degree_it_claims(name):
    network, data = page.eleven_maps()[name]
    dimension = worked_example(data)[0].shape[1]
    weights = network.initialise(dimension, torch.Generator().manual_seed(0), 1.0)
    doubled = 2 * weights if isinstance(weights, torch.Tensor) else [2 * w for w in weights]
    torch.testing.assert_close(
        network.predictor(doubled), 2**network.degree * network.predictor(weights)
    )


def test_running_sums_are_a_matrix_behind_a_diagonal_network():
    weights = torch.randn(10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    matrix = torch.tril(torch.ones(5, 5, dtype=torch.float64))
    torch.testing.assert_close(page.running_sums(weights), matrix @ (weights[:5] * weights[5:]))


@pytest.mark.parametrize("seed", range(4))
def test_the_curvature_of_shared_weights_is_bounded(seed):
    weights = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    example = torch.nn.functional.normalize(weights[:3].sin(), dim=0)
    second = torch.autograd.functional.hessian(lambda w: page.shared_weight(w) @ example, weights)
    largest = torch.linalg.matrix_norm(second, 2)
    assert 0 < largest <= page.shared_weight_bound(weights)


@pytest.mark.parametrize("kind", [DenseNetwork, ConvolutionalNetwork, DiagonalNetwork])
@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("dimension", [5, 6])
def test_balanced_weights_give_the_predictor_at_the_least_price(kind, depth, dimension):
    generator = torch.Generator().manual_seed(depth)
    beta = torch.randn(7, dimension, dtype=torch.float64, generator=generator)
    network = kind(depth)
    weights = network.validate(page.balanced_weights(network, beta), dimension)
    torch.testing.assert_close(network.predictor(weights), beta)
    torch.testing.assert_close(squared_norm(weights), network.penalty(beta))


def test_the_solver_agrees_with_the_convex_problems():
    inputs, labels = worked_example("E2")
    for network, norm in ((DiagonalNetwork(2), "l1"), (ConvolutionalNetwork(2), "fourier-l1")):
        exact = max_margin(inputs, labels, norm)
        near = page.balanced_weights(network, exact + 0.02 * torch.arange(1, 5))
        found = page.nearest_least_norm(network, inputs, labels, near)
        assert direction_angle(found, exact) < 1e-4


def test_gated_pairs_follow_the_group_lasso():
    inputs = torch.tensor(
        [[3.0, 4.0, 1.0, 4.0]], dtype=torch.float64
    )  # dual norm: 5 against 17 ** 0.5
    network = HomogeneousNetwork(page.gated_pairs, 2, 6)
    generator = torch.Generator().manual_seed(0)
    found = page.least_norm_predictor(network, inputs, torch.ones(1), 5, generator)
    expected = torch.tensor([3.0, 4.0, 0.0, 0.0], dtype=torch.float64) / 25
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_the_cycle_has_two_stationary_values_on_e1():
    network = HomogeneousNetwork(page.cycle, 2, 3)
    generator = torch.Generator().manual_seed(5)
    values = page.least_norm_values(network, *worked_example("E1"), 24, generator)
    assert values == pytest.approx([2.881942, 7.487267], abs=1e-5)


def test_a_problem_without_feasible_point_is_reported():
    network = HomogeneousNetwork(lambda w: w**2, 2, 2)
    data = torch.tensor([[-1.0, -1.0]]), torch.ones(1)
    with pytest.raises(RuntimeError, match="converged from none of 2 starts"):
        page.least_norm_values(network, *data, 2, torch.Generator().manual_seed(0))


def test_drawn_paths_are_hyperbolas():
    fig, ax = plt.subplots()
    starts = torch.tensor([[0.3, 0.4], [-0.4, 0.1]])
    page.draw_shared_weight(ax, starts, torch.tensor([True, False]))
    for line, (u, v) in zip((ax.lines[0], ax.lines[2]), starts.tolist(), strict=True):
        x, y = line.get_xydata().T
        assert abs(y**2 - 2 * x**2 - (v**2 - 2 * u**2)).max() < 1e-9
    plt.close(fig)
