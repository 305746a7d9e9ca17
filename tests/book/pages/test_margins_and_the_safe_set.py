"""The functions of the chapter on margins and the safe set, against closed forms."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from lib.book.pages import margins_and_the_safe_set as page
from lib.book.pages.task_preserving_states import random_states
from lib.tpkd import full_kl, margins

STUDENT = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
TEACHER = torch.tensor([0.4, 0.25, 0.35], dtype=torch.float64)


def test_literal_kl_of_the_chapters_example():
    value, scale = page.literal_kl(STUDENT.log(), TEACHER.log())
    terms = [t * math.log(t / p) for t, p in zip(TEACHER.tolist(), STUDENT.tolist(), strict=True)]
    assert float(value) == pytest.approx(sum(terms))
    assert float(scale) == pytest.approx(max(abs(term) for term in terms))


@pytest.mark.parametrize("seed", [41, 47, 51])
def test_literal_kl_of_nearly_certain_predictions(seed):
    if np.finfo(np.longdouble).eps >= np.finfo(np.float64).eps:
        pytest.skip("no extended precision on this machine")
    z, t, _ = random_states(4, 4000, torch.Generator().manual_seed(seed), "sharp")
    value, scale = page.literal_kl(z, t)
    assert float(((value - full_kl(z, t)).abs() / scale).max()) < 1e-11


@pytest.mark.parametrize("classes", [3, 10, 100])
def test_literal_margins_are_differences_of_logits(classes):
    z, _, labels = random_states(classes, 60, torch.Generator().manual_seed(1))
    torch.testing.assert_close(page.literal_margins(z, labels), margins(z, labels))


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_second_half_of_the_pairs_is_safe_and_some_of_the_first_is_not(classes, seed):
    generator = torch.Generator().manual_seed(seed)
    before, after, labels = page.prediction_pairs(classes, 200, generator)
    keeps = (margins(after, labels) >= margins(before, labels)).all(-1)
    assert keeps[100:].all()
    assert not keeps[:100].all()
    objects = page.some_weighting_objects(before, after, labels, 2, generator)
    assert torch.equal(objects, ~keeps)


@pytest.mark.parametrize("classes", [3, 4, 10])
def test_small_steps_hide_a_loss_with_probability_half_minus_one_over_k(classes):
    generator = torch.Generator().manual_seed(5)
    better, hidden = page.step_shares(classes, 20_000, 1e-4, generator)
    assert better == pytest.approx(0.5, abs=0.015)
    assert hidden == pytest.approx(0.5 - 1 / classes, abs=0.015)


def test_more_weightings_miss_less_and_one_misses_much_for_many_classes():
    generator = torch.Generator().manual_seed(2)
    few, many = (page.missed_shares(k, 800, [1, 10, 50], generator) for k in (3, 50))
    assert few == sorted(few, reverse=True)
    assert many == sorted(many, reverse=True)
    assert few[-1] < 0.2 < many[-1]


def test_every_drawn_level_line_runs_through_the_student():
    figure, ax = plt.subplots()
    page.draw_fan(ax, STUDENT, [(1, 0), (2, 1), (0, 1)])
    lines = [line for line in ax.lines if line.get_label().startswith(r"$\omega")]
    assert len(lines) == 3
    place = page.simplex.to_plane(STUDENT)
    for line in lines:
        start, end = torch.tensor(line.get_xydata())
        along, to = end - start, place - start
        assert float(along[0] * to[1] - along[1] * to[0]) == pytest.approx(0, abs=1e-12)
    plt.close(figure)


def test_pictures_are_drawn():
    figure, axes = plt.subplots(1, 3)
    page.draw_targets(axes, STUDENT, TEACHER)
    assert [ax.get_title(loc="center") for ax in axes][1] == "full imitation"
    page.draw_safe_set(axes[0], STUDENT, torch.tensor([2 / 3, 1 / 6, 1 / 6], dtype=torch.float64))
    plt.close(figure)
