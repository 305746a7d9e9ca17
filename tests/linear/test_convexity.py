"""The constants of Theorem 9 and Corollary 10 against root finders, grids and brute force."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar

from lib.linear.convexity import (
    gradient_dominance,
    smallest_eigenvalue,
    strong_convexity,
    sublevel_interval,
)
from lib.linear.loss import cross_entropy, cross_entropy_gradient, cross_entropy_hessian


def _loss(z, u):
    p = 1 / (1 + math.exp(-z))
    return np.logaddexp(0, u) - p * u - np.logaddexp(0, z) + p * z


def _problem(seed, n, d, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    return x, scale * torch.randn(d, generator=g, dtype=torch.float64)


def _inside(x, teacher, level, count, seed):
    """Random points of the sublevel set, half of them on its boundary."""
    g = torch.Generator().manual_seed(seed)
    e = torch.randn(count, x.shape[-1], generator=g, dtype=torch.float64)
    low, high = torch.zeros(count, dtype=torch.float64), torch.full((count,), 1e6).double()
    for _ in range(120):
        middle = (low + high) / 2
        fits = cross_entropy(teacher + middle[:, None] * e, x, teacher) <= level
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    share = torch.rand(count, generator=g, dtype=torch.float64)
    share[: count // 2] = 1
    return teacher + (share * low)[:, None] * e


@given(st.floats(-8, 8), st.floats(1e-3, 20))
def test_interval_ends_solve_the_equation(z, level):
    low, high = (v.item() for v in sublevel_interval(torch.tensor(z, dtype=torch.float64), level))
    assert low < z < high
    assert high == pytest.approx(brentq(lambda u: _loss(z, u) - level, z, 1e6), rel=1e-7)
    assert low == pytest.approx(brentq(lambda u: _loss(z, u) - level, -1e6, z), rel=1e-7)


@given(st.floats(-30, 30), st.floats(1e-6, 50))
def test_interval_obeys_the_stated_bounds_and_mirrors(z, level):
    one = torch.tensor(z, dtype=torch.float64)
    low, high = sublevel_interval(one, level)
    p = 1 / (1 + math.exp(-z))
    entropy = math.log1p(math.exp(-abs(z))) + abs(z) / (1 + math.exp(abs(z)))
    assert high.item() <= (level + entropy) / (1 / (1 + math.exp(z))) * (1 + 1e-12)
    assert low.item() >= -(level + entropy) / p * (1 + 1e-12)
    mirrored = sublevel_interval(-one, level)
    assert mirrored[1].item() == -low.item()


def test_interval_shrinks_to_the_parabola_for_small_levels():
    z = torch.tensor([-2.0, 0.0, 5.0], dtype=torch.float64)
    slope = torch.sigmoid(z) * torch.sigmoid(-z)
    low, high = sublevel_interval(z, 1e-12)
    expected = torch.sqrt(2e-12 / slope)
    torch.testing.assert_close(high - z, expected, rtol=1e-4, atol=0)
    torch.testing.assert_close(z - low, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("n", "d"), [(1, 3), (3, 6), (6, 3), (4, 4)])
def test_constants_hold_on_the_sublevel_set(n, d):
    for seed in range(5):
        x, teacher = _problem(seed, n, d, scale=0.4)
        level = cross_entropy(torch.zeros_like(teacher), x, teacher).item()
        mu, c = strong_convexity(x, teacher, level), gradient_dominance(x, teacher, level)
        w = _inside(x, teacher, level, 400, seed)
        basis = torch.linalg.svd(x).Vh[: min(n, d)]
        restricted = basis @ cross_entropy_hessian(w, x) @ basis.T
        assert torch.linalg.eigvalsh(restricted).min() >= mu * (1 - 1e-9)
        gradient = cross_entropy_gradient(w, x, teacher).square().sum(-1) / 2
        assert (gradient >= c * cross_entropy(w, x, teacher)).all()
        assert c > mu / 2


def test_strong_convexity_is_attained_for_orthonormal_inputs():
    x, teacher = torch.eye(3, dtype=torch.float64), torch.tensor([1.0, -0.5, 0.2]).double()
    level = 0.1
    low, high = sublevel_interval(teacher, 3 * level)
    worst = min(
        torch.linalg.eigvalsh(cross_entropy_hessian(torch.where(at, end, teacher), x)).min().item()
        for end in (low, high)
        for at in torch.eye(3, dtype=torch.bool)
    )
    assert worst == pytest.approx(strong_convexity(x, teacher, level).item(), rel=1e-12)


@pytest.mark.parametrize("z", [-3.0, -0.5, 0.0, 2.0])
def test_chord_is_least_steep_at_an_end_or_at_the_teacher(z):
    level, x = 0.7, torch.ones(1, 1, dtype=torch.float64)
    teacher = torch.tensor([z], dtype=torch.float64)
    low, high = (v.item() for v in sublevel_interval(teacher, level))
    sigma = 1 / (1 + math.exp(-z))
    chord = lambda u: (1 / (1 + math.exp(-u)) - sigma) / (u - z)  # noqa: E731
    grid = [chord(u) for u in np.linspace(low, high, 20_001) if abs(u - z) > 1e-6]
    refined = minimize_scalar(chord, bounds=(low, z - 1e-3), method="bounded").fun
    found = 2 * gradient_dominance(x, teacher, level).item()
    assert found <= min(*grid, refined) * (1 + 1e-9)
    assert found == pytest.approx(min(grid), rel=1e-5)


def test_logarithm_survives_underflow():
    x = torch.tensor([[1.0]], dtype=torch.float64)
    teacher = torch.tensor([9.0], dtype=torch.float64)
    level = cross_entropy(torch.zeros(1).double(), x, teacher).item()
    assert strong_convexity(x, teacher, level).item() == 0
    high = sublevel_interval(teacher, level)[1].item()
    assert strong_convexity(x, teacher, level, log=True).item() == pytest.approx(-high, rel=1e-12)
    assert gradient_dominance(x, teacher, level) > 0


@pytest.mark.parametrize(("n", "d"), [(2, 5), (5, 2), (3, 3)])
def test_smallest_eigenvalue_agrees_with_numpy(n, d):
    x, _ = _problem(n + d, n, d)
    gram = x @ x.T if n < d else x.T @ x
    expected = np.linalg.eigvalsh(gram.numpy()).min()
    assert smallest_eigenvalue(x).item() == pytest.approx(expected, rel=1e-10)


def test_duplicates_leave_the_smallest_nonzero_eigenvalue():
    x = torch.tensor([[3.0, 4.0], [3.0, 4.0]], dtype=torch.float64)
    assert smallest_eigenvalue(x).item() == pytest.approx(50)


def test_batches_agree_with_single_calls():
    x, teacher = _problem(3, 4, 6)
    batch = torch.stack([x, 2 * x])
    for function in (strong_convexity, gradient_dominance):
        together = function(batch, teacher, 0.3)
        apart = torch.stack([function(one, teacher, 0.3) for one in batch])
        torch.testing.assert_close(together, apart, rtol=1e-12, atol=0)


@pytest.mark.parametrize("level", [0.0, -1.0, math.nan])
def test_refuses_levels_that_are_not_positive(level):
    x, teacher = _problem(0, 2, 3)
    for function in (strong_convexity, gradient_dominance):
        with pytest.raises(ValueError, match="level"):
            function(x, teacher, level)


def test_refuses_saturated_logits_and_empty_spans():
    with pytest.raises(ValueError, match="700"):
        sublevel_interval(torch.tensor([701.0]), 1.0)
    with pytest.raises(ValueError, match="all zero"):
        smallest_eigenvalue(torch.zeros(2, 3))
