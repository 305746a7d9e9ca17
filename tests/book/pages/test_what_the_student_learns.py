"""The helpers of the chapter against flows, autograd and brute force."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.book.pages import what_the_student_learns as page
from lib.linear import (
    cross_entropy,
    cross_entropy_hessian,
    deep_gradient_flow,
    end_to_end,
    gradient_flow,
    landing_distance,
    project_onto_span,
    student_limit,
)


def tasks(seed, sets=4, n=3, d=6):
    generator = torch.Generator().manual_seed(seed)
    return (*page.draw_tasks(sets, n, d, 2.0, generator), generator)


@pytest.mark.parametrize("n", [2, 6, 9])
def test_slowest_rate_is_an_eigenvalue_of_the_hessian(n):
    x, teachers, _ = tasks(n, n=n)
    for inputs, teacher in zip(x, teachers, strict=True):
        values = torch.linalg.eigvalsh(
            cross_entropy_hessian(student_limit(inputs, teacher), inputs)
        )
        expected = values[max(0, 6 - n)]
        assert torch.allclose(page.slowest_rate(inputs, teacher), expected, atol=1e-12)


def test_the_flow_has_settled_at_the_settling_time():
    x, teachers, _ = tasks(1)
    wait = page.settling_time(x, teachers, torch.ones(()), 1)
    for inputs, teacher, time in zip(x, teachers, wait, strict=True):
        end = gradient_flow(inputs, teacher, time[None])[0]
        assert torch.allclose(end, student_limit(inputs, teacher), atol=1e-8)


@given(st.integers(0, 10_000), st.floats(1e-6, 0.3))
def test_starts_satisfy_11b_and_have_their_norm(seed, norm):
    x, teachers, generator = tasks(seed)
    starts = page.starts_below(x, teachers, torch.full((4,), norm).double(), generator)
    assert torch.allclose(starts.norm(dim=-1), torch.tensor(norm).double(), rtol=1e-6)
    zero = cross_entropy(torch.zeros_like(starts), x, teachers)
    assert bool((cross_entropy(starts, x, teachers) < zero).all())


def test_starts_too_far_away_are_an_error():
    x, teachers, generator = tasks(0)
    with pytest.raises(RuntimeError, match="no start below"):
        page.starts_below(x, teachers, torch.full((4,), 1e3).double(), generator)


def test_the_share_of_failing_directions_is_proportional_to_the_length():
    x, teachers, generator = tasks(3, sets=10)
    directions = page.random_directions((20_000, 10, 6), generator)
    lengths = torch.tensor([0.1, 0.01]).double()
    fails = 1 - page.share_below(x, teachers, lengths, directions)
    assert float(fails[0] / fails[1]) == pytest.approx(10, rel=0.15)


def test_mean_sine_against_sampling():
    generator = torch.Generator().manual_seed(0)
    vectors = page.random_directions((200_000, 7), generator)
    sines = vectors[:, 3:].norm(dim=-1)
    assert page.mean_sine(3, 7) == pytest.approx(float(sines.mean()), abs=2e-3)


@given(st.floats(1e-4, 1e4))
def test_lopsided_factors_have_the_product_and_the_ratio(ratio):
    start = torch.tensor([0.3, -0.1, 0.2], dtype=torch.float64)
    first, second = page.lopsided_factors(start, torch.tensor(ratio).double())
    assert torch.allclose(end_to_end((first, second)), start)
    assert float(first.norm() / second.norm()) == pytest.approx(ratio, rel=1e-6)


@pytest.mark.parametrize("ratio", [1e-2, 1.0, 50.0])
def test_lopsided_distance_is_where_the_factors_end(ratio):
    x, teachers, generator = tasks(5, sets=1)
    start = page.starts_below(x[0], teachers[0], torch.tensor(0.05), generator)
    ratio = torch.tensor(ratio).double()
    factors = page.lopsided_factors(start, ratio)
    end = deep_gradient_flow(factors, x[0], teachers[0], torch.tensor([1e8]))[0]
    distance = (end - student_limit(x[0], teachers[0])).norm()
    assert torch.allclose(distance, page.lopsided_distance(start, ratio, x[0], teachers[0]))


def test_lopsided_distance_agrees_with_the_balanced_limit():
    x, teachers, generator = tasks(6, sets=1)
    start = 0.05 * page.random_directions((6,), generator)
    sine = (start - project_onto_span(x[0], start)).norm() / start.norm()
    expected = landing_distance(start.norm(), student_limit(x[0], teachers[0]).norm(), 2, sine)
    one = torch.ones((), dtype=torch.float64)
    assert torch.allclose(page.lopsided_distance(start, one, x[0], teachers[0]), expected)


def test_largest_norms_are_below_condition_11a_by_the_share():
    norms = page.largest_norms(torch.tensor([[1.0], [0.1]]), torch.tensor([1.0, 3.0]), 4, 1.0)
    expected = [[1 / 4, 3 / 10**2], [1 / 101**2, 3 / 901**2]]
    assert torch.allclose(norms, torch.tensor(expected).double(), rtol=1e-6)


def test_loss_rates_end_at_the_slowest_rate_and_exceed_both_constants():
    x, teachers, _ = tasks(8)
    seen, end, proof, chords = page.loss_rates(x, teachers).T
    assert bool((seen <= end * 1.01).all())
    assert bool((seen >= 2 * torch.maximum(proof, chords)).all())


def test_escape_delay_is_seen_in_the_linearised_flow():
    # near zero (N = 2): r(t) ~ cosh^2(|g| t - k), least at t = k / |g|, half the delay
    tilt = torch.tensor(0.2, dtype=torch.float64)
    k = torch.atanh(torch.cos(tilt))
    assert torch.allclose(page.escape_delay(tilt, 0.5), 2 * k / 0.5)
