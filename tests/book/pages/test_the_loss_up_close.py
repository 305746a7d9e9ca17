"""Helpers of the page "The loss up close", against dense formulas and the definitions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.book.pages import the_loss_up_close as page
from lib.linear import (
    cross_entropy,
    cross_entropy_gradient,
    cross_entropy_hessian,
    project_onto_span,
    student_limit,
    sublevel_interval,
)


def _problem(seed, n=3, d=5, scale=0.5):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    return x, scale * torch.randn(d, generator=g, dtype=torch.float64), g


@given(st.integers(0, 10_000))
def test_plain_loss_differs_from_the_loss_by_the_label_entropy(seed):
    x, teacher, g = _problem(seed)
    first, second = torch.randn(2, 5, generator=g, dtype=torch.float64)
    difference = page.plain_loss(first, x, teacher) - page.plain_loss(second, x, teacher)
    expected = cross_entropy(first, x, teacher) - cross_entropy(second, x, teacher)
    torch.testing.assert_close(difference, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("method", ["BFGS", "L-BFGS-B", "trust-ncg"])
def test_other_solvers_from_the_span_find_the_projection(method):
    x, teacher, _ = _problem(4)
    found = page.minimise_elsewhere(x, teacher, torch.zeros(5).double(), method)
    torch.testing.assert_close(found, student_limit(x, teacher), rtol=0, atol=1e-8)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.floats(1e-3, 3))
def test_students_keep_to_the_sublevel_set_and_the_span(seed, level):
    x, teacher, g = _problem(seed)
    students = page.sublevel_students(x, teacher, level, 8, g)
    loss = cross_entropy(students, x, teacher)
    assert (loss <= level * (1 + 1e-9)).all()
    torch.testing.assert_close(loss[::2], torch.full_like(loss[::2], level), rtol=1e-6, atol=0)
    torch.testing.assert_close(project_onto_span(x, students), students, rtol=1e-9, atol=1e-9)


def test_corners_move_one_logit_to_the_end_of_its_interval():
    x, teacher, _ = _problem(2)
    low, high = sublevel_interval(x @ teacher, 3 * 0.2)
    corners = page.corner_students(x, teacher, 0.2) @ x.T
    expected = (x @ teacher).repeat(6, 1)
    for i in range(3):
        expected[i, i], expected[3 + i, i] = low[i], high[i]
    torch.testing.assert_close(corners, expected)


@given(st.integers(0, 10_000))
def test_pair_curvature_agrees_with_its_definition(seed):
    x, teacher, g = _problem(seed)
    v, w = torch.randn(2, 5, generator=g, dtype=torch.float64)
    gap = cross_entropy(v, x, teacher) - cross_entropy(w, x, teacher)
    gap = gap - cross_entropy_gradient(w, x, teacher) @ (v - w)
    expected = 2 * gap / (v - w).square().sum()
    torch.testing.assert_close(page.pair_curvature(v, w, x), expected, rtol=1e-8, atol=1e-13)


@given(st.integers(0, 10_000))
def test_least_curvature_agrees_with_the_dense_hessian(seed):
    x, _, g = _problem(seed)
    w = torch.randn(5, generator=g, dtype=torch.float64)
    basis = torch.linalg.svd(x).Vh[:3]
    dense = torch.linalg.eigvalsh(basis @ cross_entropy_hessian(w, x) @ basis.T)[0]
    torch.testing.assert_close(page.log_least_curvature(w, x).exp(), dense, rtol=1e-6, atol=1e-15)


def test_least_curvature_survives_underflow():
    x = torch.eye(2, dtype=torch.float64)
    value = page.log_least_curvature(torch.tensor([2000.0, 0.0]).double(), x).item()
    assert value == pytest.approx(-2000 - math.log(2), rel=1e-12)


def test_what_is_found_never_beats_what_is_proven():
    generator = torch.Generator().manual_seed(11)
    for n, norm in [(1, 1.0), (4, 0.3), (4, 2.0), (6, 1.0)]:
        lost = page.decades_lost(n, 6, norm, 5, generator)
        assert (lost["mu"] >= lost["curvature"] - 1e-9).all()
        assert (lost["c"] >= lost["dominance"]).all()
    single = page.decades_lost(1, 6, 1.0, 5, generator)
    torch.testing.assert_close(single["mu"], single["curvature"])


@given(st.floats(-6, 6), st.floats(1e-3, 20))
def test_closed_bound_holds_the_interval(z, level):
    z = torch.tensor(z, dtype=torch.float64)
    low, high = sublevel_interval(z, level)
    bound = page.farthest_logit_bound(z, level)
    assert max(-low.item(), high.item()) <= bound.item() * (1 + 1e-12)
    assert bound.item() - max(-low.item(), high.item()) <= math.log(2) / torch.sigmoid(-z.abs())
