"""The functions of the chapter "What do deeper networks choose?", against closed forms."""

import matplotlib.pyplot as plt
import pytest
import torch

from lib.book.pages import the_bridge_penalty as bridge
from lib.implicit import DiagonalNetwork, bridge_penalty, log_time_flow, stationarity


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gaussian_sets_are_separable(seed):
    generator = torch.Generator().manual_seed(seed)
    inputs, labels = bridge.gaussian_sets(9, 4, 5, generator)
    solved = torch.linalg.pinv(inputs) @ labels.unsqueeze(-1)
    margins = labels * (inputs @ solved).squeeze(-1)
    torch.testing.assert_close(margins, torch.ones(5, 4, dtype=torch.float64))


def test_more_examples_than_dimensions_are_refused():
    with pytest.raises(ValueError, match="n_examples must be at most dimension = 3, got 4"):
        bridge.gaussian_sets(3, 4, 1, torch.Generator())


@pytest.mark.parametrize("depth", [3, 4])
@pytest.mark.parametrize("seed", [3, 4])
def test_one_example_has_two_to_the_d_minus_one_stationary_points(depth, seed):
    power = 2 / depth
    a = torch.randn(1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    supports = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4)[1:].to(torch.float64)
    points = supports * a.sign() * a.abs() ** (-1 / (1 - power))
    points = points / (points @ a.mT)
    assert stationarity(points, a, torch.ones(1), power, "signal").max() < 1e-6
    limits = bridge.distinct_limits(points, a, torch.ones(1), power, "signal", apart=1e-6)
    assert limits.counts.tolist() == [1] * 15
    mass = supports @ (a[0].abs() ** (-power / (1 - power)))
    torch.testing.assert_close(limits.penalties, (mass ** (1 - power)).sort().values)


@pytest.mark.parametrize("ratio", [1.8, 2.2])
def test_training_ends_on_the_predicted_side_of_the_watershed(ratio):
    start = 0.1 * torch.tensor([1.0, ratio], dtype=torch.float64)
    plane = torch.tensor([[2.0, 1.0]], dtype=torch.float64), torch.ones(1)
    run = log_time_flow(DiagonalNetwork(3), *plane, 20, weights=[start] * 3, tolerance=1e-4)
    assert int(run.direction[-1].argmax()) == (0 if ratio < 2 else 1)
    assert float(run.direction[-1].max()) > 0.999


def test_limits_are_grouped_scaled_and_sorted():
    x, y = torch.tensor([[3.0, 4.0]]), torch.tensor([-1.0])
    ends = -torch.tensor([[1.0, 0.0], [0.0, 7.0], [2.0, 0.001]])
    limits = bridge.distinct_limits(ends, x, y, 2 / 3, "signal")
    expected = -torch.tensor([[0.0, 0.25], [1 / 3, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(limits.predictors, expected, atol=1e-3, rtol=0)
    assert limits.counts.tolist() == [1, 2]
    torch.testing.assert_close(limits.penalties, bridge_penalty(limits.predictors, 2 / 3, "signal"))
    assert limits.residuals[0] < 1e-12 < limits.residuals[1]


def test_residuals_are_missing_until_a_record_separates():
    x, y = torch.tensor([[[3.0, 4.0]]]), torch.ones(1, 1)
    wrong = [torch.full((1, 2), size) for size in (-1.0, 2.0, 3.0)]
    run = log_time_flow(DiagonalNetwork(3), x, y, 18, weights=wrong, records=6)
    rho = bridge.residuals_over_time(run, x, y, 3, "signal")
    assert (rho.isnan() == (run.margin <= 0)).all()
    assert bool(rho.isnan().any())
    torch.testing.assert_close(rho[:, -1], bridge.residuals(run, x, y, 3, "signal"))


def test_the_plane_is_drawn_with_its_three_stationary_points():
    fig, ax = plt.subplots()
    bridge.draw_plane(ax, (1.0, 2.5))
    x, y = torch.tensor([[2.0, 1.0]]), torch.ones(1)
    drawn = next(line for line in ax.lines if line.get_marker() == "o")
    points = torch.as_tensor(drawn.get_xydata())
    assert stationarity(points, x, y, 2 / 3, "signal").max() < 1e-7
    plt.close(fig)
