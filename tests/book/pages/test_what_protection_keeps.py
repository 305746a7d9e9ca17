"""The functions of the chapter on what protection keeps, against closed forms."""

import itertools
import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from lib.book.pages import what_protection_keeps as page
from lib.book.pages import what_protection_keeps_pictures as pictures
from lib.book.pages.task_preserving_states import random_states
from lib.tpkd import directions, project_onto_safe_cone, retention_bound

FIRST = torch.tensor(0)
R = torch.tensor([0.20, 0.30, 0.50], dtype=torch.float64)
Q = torch.tensor([0.30, 0.32, 0.38], dtype=torch.float64)
STUDENT = torch.cat([torch.tensor([0.5]).double(), R / 2]).log()
TEACHER = torch.cat([torch.tensor([0.5]).double(), Q / 2]).log()


@pytest.mark.parametrize("classes", [3, 4, 50])
def test_signals_lie_in_their_space(classes):
    u, labels = page.signals(classes, 120, torch.Generator().manual_seed(0))
    assert u.gather(-1, labels[:, None]).abs().max() == 0
    assert u.sum(-1).abs().max() < 1e-14
    torch.testing.assert_close(u.norm(dim=-1), torch.ones(120, dtype=torch.float64))


@pytest.mark.parametrize("classes", [3, 4, 7, 100])
def test_one_up_attains_the_floor_and_one_down_the_ceiling(classes):
    floor, ceiling = float(retention_bound(classes)), 1 - (classes - 1) ** -2
    up, down = (page.retained(sign * page.one_up(classes), FIRST) for sign in (1, -1))
    assert [float(x) for x in up] == pytest.approx([floor, floor, floor, 1.0])
    assert float(down[0]) == pytest.approx(ceiling)
    student, teacher = page.pair_for(page.one_up(classes))
    u = directions(student, teacher, FIRST).conditional
    assert float(u.sum()) == pytest.approx(0, abs=1e-15)
    torch.testing.assert_close(u / u.norm(), page.one_up(classes) / page.one_up(classes).norm())


@pytest.mark.parametrize("classes", [4, 10, 100])
def test_nothing_is_kept_above_the_ceiling(classes):
    kept = page.retained(*page.signals(classes, 600, torch.Generator().manual_seed(3)))[0]
    assert (kept <= 1 - (classes - 1) ** -2 + 1e-12).all()


def test_frozen_loss_has_the_corrected_direction_as_gradient_at_its_output_only():
    found = directions(STUDENT, TEACHER, FIRST)
    for shift, same in ((0.0, True), (0.3, False)):
        leaf = STUDENT.clone()
        leaf[1] += shift
        leaf.requires_grad_()
        page.frozen_loss(leaf, found.clipped_teacher, found.compensation, FIRST).backward()
        gap = (leaf.grad - directions(leaf.detach(), TEACHER, FIRST).corrected).abs().max()
        assert (float(gap) < 1e-14) == same


@pytest.mark.parametrize("classes", [3, 5, 10])
def test_solver_finds_the_length_of_the_projection(classes):
    u, labels = page.signals(classes, 6, torch.Generator().manual_seed(1))
    norms = project_onto_safe_cone(u, labels).norm(dim=-1).tolist()
    for row, label, norm in zip(u.numpy(), labels.tolist(), norms, strict=True):
        assert page.best_safe_value(row, label, smoothness=2.0) == pytest.approx(norm**2 / 4)
        assert page.best_safe_value(row, label, length=0.5) == pytest.approx(norm / 2)


def test_frozen_clipping_ends_at_its_own_target_and_renewed_clipping_at_the_teacher():
    target = torch.tensor([0.25, 0.32, 0.38], dtype=torch.float64) + 0.05 / 3
    frozen = page.follow(STUDENT, TEACHER, FIRST, 700, freeze=True)
    torch.testing.assert_close(frozen[-1, 1:], target, atol=1e-4, rtol=0)
    renewed = page.follow(STUDENT, TEACHER, FIRST, 300, freeze=False)
    torch.testing.assert_close(renewed[0, 1:], R)
    torch.testing.assert_close(renewed[-1, 1:], Q, atol=2e-3, rtol=0)


@pytest.mark.parametrize("classes", [3, 10])
def test_terms_of_appendix_b7_are_ordered(classes):
    states = random_states(classes, 120, torch.Generator().manual_seed(0))
    gap, squares = page.removed_signal(*states)
    extra, chain = page.task_effects(*states, torch.linspace(0.01, 5, 120).double())
    assert gap.max() < 1e-14
    assert len(chain) == 5
    for terms in (squares, extra, chain):
        for low, high in itertools.pairwise(terms):
            assert (high - low).min() > -1e-13


def test_confidence_in_the_signal_ends_it_where_predicted():
    alphas = torch.tensor([0.0, 0.12, 0.2399, 0.2401, 0.9], dtype=torch.float64)
    kept, end = page.kept_of_mixture(STUDENT, TEACHER, FIRST, alphas)
    assert end == pytest.approx(0.24)
    assert float(kept[0]) == pytest.approx(0.0198 / 0.0248)
    assert (kept[:3] > 0).all()
    assert (kept[3:] < 1e-30).all()


def test_pictures_show_the_example():
    found = directions(STUDENT, TEACHER, FIRST)
    figure, axes = plt.subplots(1, 2)
    taken = float(found.compensation)
    pictures.draw_clipping(axes, R, Q, found.clipped_teacher[1:], taken)
    heights = [bar.get_height() for bar in axes[1].patches[:4]]
    np.testing.assert_allclose(heights, found.corrected.numpy(), atol=1e-7)
    across = torch.tensor([0.126, 0.026], dtype=torch.float64)
    pictures.draw_oblique(axes[0], 0.058, across, 0.157)
    pictures.draw_angle(axes[1], across, 0.157, math.cos(0.2))
    u, labels = page.signals(4, 30, torch.Generator().manual_seed(0))
    pictures.draw_disc(axes[0], u, labels, 2 / 3)
    figure.canvas.draw()
    plt.close(figure)
