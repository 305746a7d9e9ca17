"""The functions of the chapter on keeping the label step, against closed forms."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from lib.book.pages import keeping_the_label_step as page
from lib.tpkd import project_onto_safe_cone


def test_plane_keeps_lengths_and_angles_of_sums_zero():
    steps = torch.tensor([[2.0, -1, -1], [0, 1, -1], [-0.3, 0.1, 0.2]], dtype=torch.float64)
    plane = page.to_plane(steps)
    torch.testing.assert_close(plane @ plane.T, steps @ steps.T)
    assert page.to_plane(torch.ones(3)).abs().max() < 1e-12


@pytest.mark.parametrize("classes", [3, 10, 100])
def test_conditional_directions_lie_in_their_space_and_keep_to_the_bounds(classes):
    x = page.conditional_directions(classes, 120, torch.Generator().manual_seed(0))
    assert x.shape == (120, classes)
    assert x[:, 0].abs().max() == 0
    assert x.sum(-1).abs().max() < 1e-14 * classes
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(120, dtype=torch.float64))
    worst, n = -x.amin(-1), classes - 1
    assert (worst >= 1 / math.sqrt(n * (n - 1)) - 1e-12).all()
    assert (worst <= math.sqrt((n - 1) / n) + 1e-12).all()


@pytest.mark.parametrize("classes", [3, 4, 30])
@pytest.mark.parametrize("seed", [0, 1])
def test_three_ways_to_project_agree(classes, seed):
    x, labels = page.any_vectors(classes, 16, torch.Generator().manual_seed(seed))
    ours = project_onto_safe_cone(x, labels)
    torch.testing.assert_close(page.consistent_prefix(x, labels), ours, rtol=0, atol=1e-13)
    base = np.linspace(-1, 1, classes)
    for row, label, wanted in zip(x, labels.tolist(), ours, strict=True):
        found = page.nearest_by_solver(row.numpy() + base, base, label) - base
        np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)


def test_any_vectors_hold_ties_and_have_length_one():
    x, _ = page.any_vectors(50, 40, torch.Generator().manual_seed(0))
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(40, dtype=torch.float64))
    assert len(x[3].unique()) < 30


def test_half_space_projection_is_nearest():
    generator = torch.Generator().manual_seed(0)
    u, h = torch.randn(2, 200, 5, generator=generator, dtype=torch.float64)
    found = page.keep_the_loss(u, h)
    inner = (found * h).sum(-1)
    assert (inner >= -1e-12).all()
    assert ((found == u).all(-1) | (inner.abs() < 1e-12)).all()
    torch.testing.assert_close(((u - found) * found).sum(-1), torch.zeros(200).double())


def test_times_are_ratios_to_one_softmax():
    (row,) = page.relative_times([(8, 5)], torch.Generator().manual_seed(0), repeats=2)
    assert row["N"] == 8
    assert row["softmax"] == 1.0
    assert all(row[name] > 0 for name in ("projection", "plain KD step", "QP solver"))


def test_cone_walls_stand_at_thirty_degrees():
    figure, ax = plt.subplots()
    page.draw_cone(ax, torch.zeros(3), 1.0)
    for line in ax.lines:
        (x0, x1), (y0, y1) = line.get_data()
        assert math.degrees(math.atan2(y1 - y0, abs(x1 - x0))) == pytest.approx(30)
    page.arrow(ax, torch.zeros(3), torch.tensor([2.0, -1, -1]), "up", "black")
    page.set_plane(ax, "title", 1, -1, 1)
    page.draw_flow(ax)
    figure.canvas.draw()
    plt.close(figure)
