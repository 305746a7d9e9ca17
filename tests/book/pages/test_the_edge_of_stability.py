"""Windows, kicks and subsets that the chapter on the edge of stability measures."""

import math

import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

from lib.book.pages import the_edge_of_stability as page
from lib.book.pages.stability_runs import digits_data, digits_network
from lib.models.networks import fully_connected
from lib.stability import Descent, dense_hessian, descend, onset
from lib.stability.training import training_problem


def quadratic(curvatures):
    """A linear map whose square loss has these curvatures, and its data."""
    curvatures = torch.tensor(curvatures, dtype=torch.float64)
    model = nn.Linear(len(curvatures), 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(1.0)
    inputs = (len(curvatures) * curvatures).sqrt().diag()
    return model, (inputs, torch.zeros(len(curvatures), 1, dtype=torch.float64))


def test_a_window_on_a_quadratic_is_the_closed_form():
    model, data = quadratic([1.0, 5.0])
    before = model.weight.clone()
    seen = page.window(model, data, 0.5, 6)
    assert torch.equal(model.weight, before)
    assert seen.sharpness.tolist() == pytest.approx([5.0] * 6)
    steps = torch.arange(6, dtype=torch.float64)
    assert seen.moves.abs().tolist() == pytest.approx((2.5 * 1.5**steps).tolist())
    assert seen.flips.all()
    losses = 0.5 * 0.5 ** (2 * steps) + 2.5 * 1.5 ** (2 * steps)
    assert seen.losses.tolist() == pytest.approx(losses.tolist())
    assert not page.window(model, data, 0.1, 6).flips.any()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_window_sees_what_descent_and_onset_see(seed):
    inputs, labels = digits_data(30, torch.float64)
    data = inputs[:, 20:26], labels
    generator = torch.Generator().manual_seed(seed)
    model = fully_connected(6, (3,), 10, generator=generator, dtype=torch.float64)
    seen, told = page.window(model, data, 0.2, 2, progress=lambda walk: walk), []
    for step, network in page.snapshots(model, data, 0.2, range(3)).items():
        problem = training_problem(network, "square", data)
        values, vectors = torch.linalg.eigh(dense_hessian(problem.closures(), problem.parameters))
        told.append((problem.flat(), vectors[:, -1]))
        if step < 2:
            assert float(seen.sharpness[step]) == pytest.approx(float(values[-1]), rel=1e-6)
            assert float(seen.losses[step]) == pytest.approx(problem.value_and_gradient()[0])
    for step in range(2):
        move = abs(float((told[step + 1][0] - told[step][0]) @ told[step][1]))
        assert float(seen.moves[step].abs()) == pytest.approx(move, rel=1e-3, abs=1e-6)
    other = onset(model, "square", data, 0.2, 2)
    assert other.descent.losses[:2].tolist() == pytest.approx(seen.losses.tolist())


def test_the_lowest_curvature_is_the_smallest_eigenvalue():
    inputs, labels = digits_data(30, torch.float64)
    data, generator = (inputs[:, 20:26], labels), torch.Generator().manual_seed(0)
    model = fully_connected(6, (3,), 10, generator=generator, dtype=torch.float64)
    problem = training_problem(model, "square", data)
    expected = torch.linalg.eigvalsh(dense_hessian(problem.closures(), problem.parameters))[0]
    assert expected < 0
    assert page.lowest_curvature(model, data) == pytest.approx(float(expected), rel=1e-6)


def test_snapshots_lie_on_one_descent():
    data, model = digits_data(30), digits_network((6,))
    found = page.snapshots(model, data, 0.3, (7, 2, 7, 0))
    assert list(found) == [0, 2, 7]
    assert torch.equal(found[0][1].weight, model[1].weight)
    descend(model, "square", data, 0.3, 7, every=())
    assert torch.equal(found[7][1].weight, model[1].weight)


def test_a_kick_moves_a_copy_along_a_direction():
    model = digits_network((4,))
    before = nn.utils.parameters_to_vector(model.parameters()).detach()
    direction = torch.linspace(-1, 1, len(before), dtype=torch.float64)
    moved = nn.utils.parameters_to_vector(page.kicked(model, direction, 0.25).parameters())
    assert torch.allclose(moved.detach() - before, 0.25 * direction.float(), atol=1e-6)
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()).detach(), before)


def test_the_mean_over_all_subsets_is_not_below_the_sharpness():
    data, model = digits_data(40), digits_network((5,), seed=1)
    found = page.subset_ratios(model, data, 10, 30, torch.Generator().manual_seed(0))
    again = page.subset_ratios(model, data, 10, 30, torch.Generator().manual_seed(0))
    assert torch.equal(found, again)
    assert found.mean() > 1
    whole = page.subset_ratios(model, data, 40, 2, torch.Generator().manual_seed(0))
    assert whole.tolist() == pytest.approx([1.0, 1.0], rel=1e-5)


def test_a_subset_of_one_of_two_crossed_examples_sees_twice_the_sharpness():
    model, data = quadratic([3.0, 3.0])
    found = page.subset_ratios(model, data, 1, 4, torch.Generator().manual_seed(0))
    assert found.tolist() == pytest.approx([2.0] * 4)


def records(sharpness, step_size=0.5, every=10):
    """The records of a run that measured these values."""
    count = len(sharpness)
    return Descent(
        losses=torch.ones((count - 1) * every + 1, dtype=torch.float64),
        steps=every * torch.arange(count),
        sharpness=torch.tensor(sharpness, dtype=torch.float64)[:, None],
        residuals=torch.zeros(count, 1),
        products=torch.ones(count),
        accuracies=None,
        step_size=step_size,
        threshold=2 / step_size,
        ended="steps",
    )


def test_the_slope_at_the_crossing_is_the_difference_quotient():
    assert page.slope_at_crossing(records([1.0, 3.0, 4.5, 9.0, 3.0])) == pytest.approx(1.5 / 5)


@pytest.mark.parametrize("sharpness", [[5.0, 3.0], [1.0, 3.0]])
def test_a_run_without_a_crossing_has_no_slope(sharpness):
    with pytest.raises(ValueError, match=r"got crossing (0|None)"):
        page.slope_at_crossing(records(sharpness))


@pytest.mark.parametrize(
    ("ratios", "peak"),
    [([0.2, 0.4], 0.4), ([0.9, 0.8, 1.5, 1.2, 2.0, 1.0], 1.5), ([2.0, 1.0], 2.0)],
)
def test_first_peak(ratios, peak):
    assert page.first_peak(torch.tensor(ratios, dtype=torch.float64)) == peak


def test_falling_share_is_the_share_of_windows():
    losses = torch.rand(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for width, share in zip((1, 4, 49), page.falling_share(losses, (1, 4, 49)), strict=True):
        falls = [losses[t + width] < losses[t] for t in range(50 - width)]
        assert share == pytest.approx(sum(map(float, falls)) / len(falls))


def test_thinned_keeps_both_ends():
    kept = page.thinned(torch.arange(1001.0), 200)
    assert (len(kept), kept[0], kept[-1]) == (200, 0.0, 1000.0)
    assert page.thinned(torch.arange(5.0)) == [0, 1, 2, 3, 4]


def test_the_staircase_ends_at_one():
    fig, ax = plt.subplots()
    page.draw_shares(ax, torch.tensor([3.0, 1.0, 2.0]), "three", color="red")
    points = ax.lines[0].get_xydata()
    assert points[:, 0].tolist() == [1, 1, 2, 3]
    assert points[:, 1].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    plt.close(fig)


def test_unknown_data_are_refused():
    with pytest.raises(ValueError, match="'digits' or 'cifar10', got 'mnist'"):
        page.training_set("mnist", 10)


def test_the_network_is_the_shared_one_on_the_digits():
    data = page.training_set("digits", 20)
    ours, theirs = page.tanh_network(data, [9, 4], 3), digits_network((9, 4), seed=3)
    for name, weights in ours.state_dict().items():
        assert torch.equal(weights, theirs.state_dict()[name])


def test_the_overshoot_of_the_sketch_solves_its_equation():
    """The page's closed form against a walk of the sketch in small steps."""
    alpha, start, stop, dt = 0.08, 1e-7, 0.2, 1e-3
    y, size = 0.0, math.log(start)
    while size < math.log(stop):
        size, y = size + dt * y, y + dt * alpha
    assert y == pytest.approx((2 * alpha * math.log(stop / start)) ** 0.5, rel=1e-3)
