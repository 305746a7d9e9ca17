"""Data sets of several dimensions in one batch, and the drawings of the dense chapter."""

import matplotlib.pyplot as plt
import pytest
import torch

from lib.book.pages import dense_networks as page
from lib.implicit.flow import log_time_flow
from lib.implicit.max_margin import max_margin
from lib.implicit.networks import DenseNetwork
from lib.implicit.spectrum import direction_angle


@pytest.mark.parametrize("seed", range(3))
def test_sets_are_separable_and_padded(seed):
    generator = torch.Generator().manual_seed(seed)
    inputs, labels, present = page.padded_sets([2, 5, 9], 3, 7, generator)
    assert inputs.shape == (9, 7, 9)
    assert present.sum(-1).tolist() == [2, 2, 2, 5, 5, 5, 9, 9, 9]
    assert not bool((inputs * (1 - present)[:, None]).any())
    for each in inputs:
        best = max_margin(each, labels, "l2")
        assert (labels * (each @ best)).min() == pytest.approx(1, rel=1e-6)


def test_inputs_have_the_length_asked_for():
    inputs, *_ = page.padded_sets([3, 50], 1, 4000, torch.Generator().manual_seed(0), length=5.0)
    typical = (inputs**2).sum(-1).mean(-1).sqrt()
    assert torch.allclose(typical, torch.full((2,), 5.0, dtype=torch.float64), rtol=0.03)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_padded_network_is_the_smaller_network(depth):
    generator = torch.Generator().manual_seed(depth)
    inputs, labels, present = page.padded_sets([2, 4], 1, 3, generator)
    weights = page.padded_start(DenseNetwork(depth, 3), present, generator, 0.1)
    padded = log_time_flow(DenseNetwork(depth, 3), inputs, labels, 6, weights=weights, records=1)
    first, *others = (layer[0] for layer in weights)
    small = log_time_flow(
        DenseNetwork(depth, 3), inputs[0, :, :2], labels, 6, weights=(first[:2], *others), records=1
    )
    assert not bool(padded.direction[0, -1, 2:].any())
    # both stop at the first step past the level, so compare where the steps are the same
    assert direction_angle(padded.direction[0, -1, :2], small.direction[-1]) < 1e-5


def test_separators_are_those_with_positive_margins():
    signed = torch.tensor([[3.0, -1.0], [-1.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    fig, ax = plt.subplots()
    page.draw_separators(ax, signed, torch.tensor([1.0, 2.0], dtype=torch.float64))
    corners = torch.from_numpy(ax.patches[0].get_xy()[:3])
    inside, outside = corners.mean(0), -corners.mean(0)
    assert bool((signed @ inside > 0).all())
    assert bool((signed @ corners.T > -1e-9).all())
    assert not bool((signed @ outside > 0).any())
    plt.close(fig)


def test_drawings_show_every_data_set_and_depth():
    fig, axes = plt.subplots(1, 3)
    angles = {depth: torch.rand(6, dtype=torch.float64) / 10 for depth in (1, 2)}
    kind = torch.tensor([2, 0, 1, 0, 2, 1])
    page.draw_by_kind(axes[0], angles, kind, ["a", "b", "c"], bound=1e-3)
    gaps = {depth: angle**2 for depth, angle in angles.items()}
    page.draw_gaps(axes[1:], gaps, {d: 2 * g for d, g in gaps.items()}, angles)
    fig.canvas.draw()
    points = sorted(y for line in axes[0].lines[:3] for y in line.get_ydata())
    assert points == sorted(torch.cat(list(angles.values())).tolist())
    assert [len(line.get_xdata()) for line in axes[2].lines[:2]] == [6, 6]
    plt.close(fig)
