"""The routes that the chapter on the price of transfer compares are right in known cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lib.book.pages import the_price_of_transfer as page
from lib.book.pages.task_preserving_states import random_states
from lib.tpkd import margins, minimum_log_odds

STUDENT = torch.tensor([[0.90, 0.07, 0.03]], dtype=torch.float64).log()
TEACHER = torch.tensor([[0.40, 0.25, 0.35]], dtype=torch.float64).log()
LABEL = torch.tensor([0])


def test_bisection_finds_the_worked_example_without_the_formula():
    found = page.threshold_by_bisection(STUDENT, TEACHER, LABEL)
    assert float(found) == pytest.approx(math.log(35 / 2), abs=1e-10)


def test_bisection_errs_when_one_margin_is_left_out():
    z, teacher, labels = random_states(5, 200, torch.Generator().manual_seed(1), "mild")
    found = page.threshold_by_bisection(z, teacher, labels)
    torch.testing.assert_close(found, minimum_log_odds(z, teacher, labels), atol=1e-9, rtol=0)
    raised = z.clone()
    worst = (margins(z, labels) - margins(teacher, labels)).argmax(-1)
    raised[torch.arange(200), worst] += 1.0
    assert not torch.allclose(page.threshold_by_bisection(raised, teacher, labels), found)


def test_transferred_has_the_confidence_and_the_conditional_distribution_asked_for():
    logits = page.transferred(torch.tensor([2.0]), TEACHER, LABEL)
    p = logits.softmax(-1)[0]
    assert float(p[0]) == pytest.approx(1 / (1 + math.exp(-2.0)))
    assert float(p[2] / p[1]) == pytest.approx(7 / 5)


def test_formulas_of_the_path_agree_with_autograd_and_a_wrong_one_does_not():
    states = random_states(6, 50, torch.Generator().manual_seed(2), "mild")
    s = torch.full((50,), 0.4, dtype=torch.float64)
    (margin_rate, kl_rate), (margin_found, kl_found) = page.path_derivatives(*states, s)
    torch.testing.assert_close(margin_rate, margin_found, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(kl_rate, kl_found, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(kl_rate / (1 - s), kl_found)


@pytest.mark.parametrize("budget", [0.1, 0.4, 2.0])
def test_the_solver_agrees_with_a_grid_for_two_wrong_classes(budget):
    r, q = np.array([0.7, 0.3]), np.array([5 / 12, 7 / 12])
    x = np.linspace(1e-6, 1 - 1e-6, 400_001)
    x = x[(x <= math.exp(budget) * r[1]) & (1 - x <= math.exp(budget) * r[0])]
    grid = q[1] * np.log(q[1] / x) + q[0] * np.log(q[0] / (1 - x))
    assert page.solve_frontier(r, q, budget) == pytest.approx(grid.min(), abs=1e-5)


def test_walk_reports_a_margin_that_falls(monkeypatch):
    worst, errors = page.walk(STUDENT, TEACHER, LABEL, 11)
    assert float(worst) >= -1e-12
    assert errors.shape == (11, 1)
    assert bool((errors.diff(dim=0) < 0).all())
    straight = lambda z, t, labels, s: ((1 - s) * z.exp() + s * t.exp()).log()  # noqa: E731
    monkeypatch.setattr(page, "safe_path", straight)
    assert float(page.walk(STUDENT, TEACHER, LABEL, 11)[0]) < -1e-3
