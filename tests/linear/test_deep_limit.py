import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from lib.linear.deep_limit import (
    deep_student_limit,
    landing_distance,
    landing_distance_bound,
    landing_norm,
    landing_norm_bound,
)
from lib.linear.factors import balanced_factors, initial_norm_limit
from lib.linear.flows import deep_gradient_flow, gradient_flow
from lib.linear.geometry import project_onto_span

sizes = st.floats(1e-12, 1e6)
depths = st.integers(1, 60)


def number(value):
    return torch.tensor(value, dtype=torch.float64)


@given(sizes, sizes, depths, st.floats(0, 1))
def test_the_norm_solves_its_equation(start, limit, depth, sine):
    nu = float(landing_norm(number(start), number(limit), depth, sine))
    right = (limit / nu) ** 2 + sine**2 * (start / nu) ** (2 / depth)
    assert nu >= limit * (1 - 1e-14)
    assert right == pytest.approx(1, abs=1e-11)


@given(st.floats(1e-6, 1e3), st.floats(1e-3, 1e3), st.integers(2, 12), st.floats(0.01, 1))
def test_the_norm_agrees_with_bisection(start, limit, depth, sine):
    def excess(nu):
        return nu**2 - limit**2 - sine**2 * start ** (2 / depth) * nu ** (2 - 2 / depth)

    high = limit + 1
    while excess(high) < 0:
        high *= 2
    expected = brentq(excess, limit * 0.999, high, xtol=1e-13, rtol=1e-14)
    assert float(landing_norm(number(start), number(limit), depth, sine)) == pytest.approx(
        expected, rel=1e-10
    )


@given(sizes, sizes, st.floats(0, 1))
def test_depth_two_is_a_quadratic_equation(start, limit, sine):
    b = sine**2 * start
    expected = (b + math.sqrt(b**2 + 4 * limit**2)) / 2
    assert float(landing_norm(number(start), number(limit), 2, sine)) == pytest.approx(expected)


@given(st.floats(1e-9, 1.0, exclude_max=True), sizes, st.integers(2, 30), st.floats(0, 1))
def test_the_bounds_hold_and_are_ordered(share, limit, depth, sine):
    start, limit = number(share * limit), number(limit)
    slack = 1 + 1e-12
    assert (
        landing_norm(start, limit, depth, sine) <= landing_norm_bound(start, limit, depth) * slack
    )
    assert (
        landing_distance(start, limit, depth, sine)
        <= landing_distance_bound(start, limit, depth) * slack
    )


@given(st.floats(1e-3, 10), st.floats(1e-2, 1e2), st.integers(2, 6))
def test_the_distance_bound_inverts_condition_11a(epsilon, limit, depth):
    start = initial_norm_limit(epsilon, limit, depth)
    bound = landing_distance_bound(number(start), number(limit), depth)
    assert float(bound) == pytest.approx(epsilon, rel=1e-8)


def test_the_bound_is_attained_in_the_limit_of_a_small_orthogonal_start():
    ratio = [
        float(
            landing_distance(number(r), number(2.0), 3)
            / landing_distance_bound(number(r), number(2.0), 3)
        )
        for r in (1e-3, 1e-6, 1e-9)
    ]
    assert ratio == sorted(ratio)
    assert ratio[-1] == pytest.approx(1, abs=1e-5)


def test_bounds_are_infinite_from_the_limits_norm_on():
    one = number(1.0)
    assert torch.isinf(landing_norm_bound(one, one, 2))
    assert torch.isinf(landing_distance_bound(2 * one, one, 3))


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 3, 5])
def test_the_limit_is_where_the_factors_end(depth, n):
    generator = torch.Generator().manual_seed(10 * depth + n)
    x = torch.randn(4, n, 5, generator=generator, dtype=torch.float64)
    teacher = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    start = 0.05 * torch.randn(4, 5, generator=generator, dtype=torch.float64)
    times = number([1e8])
    if depth == 1:
        end = gradient_flow(x, teacher, times, start)[:, 0]
    else:
        factors = balanced_factors(start, depth, generator, width=3)
        end = deep_gradient_flow(factors, x, teacher, times)[:, 0]
    assert torch.allclose(end, deep_student_limit(start, depth, x, teacher), rtol=0, atol=1e-7)


def problem(seed, n, d=5, sets=4, scale=0.05):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sets, n, d, generator=generator, dtype=torch.float64)
    teacher = torch.randn(sets, d, generator=generator, dtype=torch.float64)
    start = scale * torch.randn(sets, d, generator=generator, dtype=torch.float64)
    return x, teacher, start, generator


@given(st.integers(0, 999), st.integers(1, 9), st.floats(1e-8, 1e2))
def test_the_limit_fits_the_labels_and_obeys_the_growth_law(seed, depth, scale):
    x, teacher, start, _ = problem(seed, 3, scale=scale)
    limit = deep_student_limit(start, depth, x, teacher)
    logits = (x @ limit[..., None]).squeeze(-1)
    assert torch.allclose(logits, (x @ teacher[..., None]).squeeze(-1), rtol=1e-9, atol=1e-6)
    before, after = (v - project_onto_span(x, v) for v in (start, limit))
    power = 1 - 1 / depth
    growth = (after.norm(dim=-1) / before.norm(dim=-1)).log()
    expected = power * (limit.norm(dim=-1) / start.norm(dim=-1)).log()
    assert torch.allclose(growth, expected, atol=1e-6)


@given(st.integers(0, 999), st.integers(2, 6), st.floats(0.01, 2))
def test_theorem_2_holds_for_the_largest_start_it_admits(seed, depth, epsilon):
    x, teacher, start, _ = problem(seed, 2, sets=1)
    projection = project_onto_span(x, teacher)
    norm = initial_norm_limit(epsilon, float(projection.norm()), depth)
    limit = deep_student_limit(start / start.norm() * norm, depth, x, teacher)
    assert (limit - projection).norm() <= epsilon * (1 + 1e-9)


def test_a_full_set_recovers_the_teacher_exactly():
    x, teacher, start, _ = problem(0, 7)
    assert torch.equal(deep_student_limit(start, 3, x, teacher), teacher)


def test_a_start_in_the_span_lands_on_the_projection():
    x, teacher = torch.eye(2, 3).double(), torch.tensor([1.0, 2.0, 3.0]).double()
    limit = deep_student_limit(0.1 * x[0], 3, x, teacher)
    assert torch.allclose(limit, project_onto_span(x, teacher))


def test_shapes_and_dtype():
    x, teacher = torch.randn(3, 1, 2, 4), torch.randn(4)
    limit = deep_student_limit(torch.randn(5, 4), 2, x, teacher)
    assert limit.shape == (3, 5, 4)
    assert limit.dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((number(-1.0), number(1.0), 2), "initial_norm must be >= 0, got -1"),
        ((number(1.0), number(0.0), 2), "limit_norm must be > 0, got 0"),
        ((number(1.0), number(1.0), 0), "depth must be an integer >= 1, got 0"),
        ((number(1.0), number(1.0), 2, 1.5), r"sine must be in \[0, 1\], got 1.5"),
        ((number(1.0), number([1.0, -2.0]), 2), "limit_norm must be > 0, got -2"),
    ],
)
def test_bad_numbers_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        landing_norm(*arguments)


def test_bad_vectors_are_refused():
    x, teacher = torch.eye(1, 2), torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match="projection on the inputs must not be the zero vector"):
        deep_student_limit(torch.ones(2), 2, x, teacher)
    with pytest.raises(ValueError, match="initial must not be the zero vector"):
        deep_student_limit(torch.zeros(2), 2, x, torch.ones(2))
    with pytest.raises(ValueError, match="depth must be an integer >= 2"):
        landing_norm_bound(number(1.0), number(1.0), 1)
