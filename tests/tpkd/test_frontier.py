"""The frontier against a conic solver, bisection in decimals, and what A.7 says about its shape."""

import math

import clarabel
import numpy as np
import pytest
import scipy.sparse as sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.tpkd import (
    conditional_kl,
    conditional_log_probs,
    frontier_optimum,
    log_odds,
    margins,
    transfer_cost,
    transfer_frontier,
)
from lib.tpkd.divergence import assemble
from tests.tpkd import reference
from tests.tpkd.states import DEVICES, LABEL, STUDENT, TEACHER, per_example, random_states

SIZES = [3, 4, 10, 100]
SHARES = torch.tensor([0.0, 1e-6, 0.1, 0.5, 0.9, 0.999, 1.0, 1.2], dtype=torch.float64)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", [3, 4, 10])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_frontier_matches_decimals(classes, zeros, device):
    for seed, scale in enumerate((0.1, 3.0, 300.0)):
        student, teacher, labels = random_states(seed, 8, classes, scale, zeros)
        budgets = SHARES * transfer_cost(student, teacher, labels)
        there = [x.to(device) for x in (student, teacher, labels, budgets)]
        exact = per_example(reference.transfer_frontier, student, teacher, labels, budgets)
        found = transfer_frontier(*there).cpu()
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-15)


def conic_frontier(q, r, budget):
    """max q.s with (s_j, 1, x_j) in the exponential cone, sum x = 1, x <= e^B r."""
    n = len(q)
    rows = [sparse.hstack([sparse.csc_matrix((1, n)), np.ones((1, n))])]
    rows.append(sparse.hstack([sparse.csc_matrix((n, n)), sparse.eye(n)]))
    right = [1.0, *(math.exp(budget) * r)]
    for j in range(n):
        unit = sparse.csc_matrix(([-1.0], ([0], [j])), shape=(1, n))
        none = sparse.csc_matrix((1, n))
        rows += [sparse.hstack(pair) for pair in ((unit, none), (none, none), (none, unit))]
        right += [0.0, 1.0, 0.0]
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n)]
    cones += [clarabel.ExponentialConeT()] * n
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    zero = sparse.csc_matrix((2 * n, 2 * n))
    objective = np.concatenate([-q, np.zeros(n)])
    matrix = sparse.vstack(rows).tocsc()
    solution = clarabel.DefaultSolver(
        zero, objective, matrix, np.array(right), cones, settings
    ).solve()
    return float(q @ np.log(q)) + solution.obj_val, np.array(solution.x[n:])


@pytest.mark.parametrize("classes", [3, 6, 20])
def test_frontier_matches_a_conic_solver(classes):
    student, teacher, labels = random_states(classes, 4, classes, 1.5)
    budgets = torch.tensor([0.01, 0.3, 0.6, 0.95]) * transfer_cost(student, teacher, labels)
    values = transfer_frontier(student, teacher, labels, budgets)
    optima = frontier_optimum(student, teacher, labels, budgets).exp()
    for i in range(4):
        other = torch.arange(classes) != labels[i]
        q, r = (
            conditional_log_probs(z[i], labels[i])[other].exp().numpy() for z in (teacher, student)
        )
        value, optimum = conic_frontier(q, r, float(budgets[i]))
        assert float(values[i]) == pytest.approx(value, abs=1e-7)
        np.testing.assert_allclose(optima[i][other].numpy(), optimum, atol=2e-4)


@pytest.mark.parametrize("classes", [*SIZES, 1000])
def test_optimum_has_the_form_of_a9(classes):
    student, teacher, labels = random_states(classes, 40, classes)
    cost = transfer_cost(student, teacher, labels)
    log_r, log_q = (conditional_log_probs(z, labels) for z in (student, teacher))
    other = torch.arange(classes) != labels.unsqueeze(-1)
    for share in SHARES:
        budget = share * cost
        log_x = frontier_optimum(student, teacher, labels, budget)
        ones = torch.ones(40, dtype=torch.float64)
        torch.testing.assert_close(log_x.exp().sum(-1), ones, rtol=1e-11, atol=0)
        room = torch.where(other, budget.unsqueeze(-1) + log_r - log_x, math.inf)
        assert float(room.min()) >= -1e-12
        # where a cap binds less than that, q / x is the same number lambda for all classes
        level = torch.where(room > 1e-9, log_q - log_x, torch.nan)
        spread = level.nan_to_num(nan=-math.inf).amax(-1) - level.nan_to_num(nan=math.inf).amin(-1)
        assert float(spread.max()) <= 1e-11


def test_optimum_is_attained_safely():
    student, teacher, labels = random_states(2, 60, 7)
    budget = 0.5 * transfer_cost(student, teacher, labels)
    log_x = frontier_optimum(student, teacher, labels, budget)
    state = assemble(log_odds(student, labels) + budget, log_x, labels)
    assert float((margins(state, labels) - margins(student, labels)).min()) >= -1e-12
    value = transfer_frontier(student, teacher, labels, budget)
    torch.testing.assert_close(conditional_kl(state, teacher, labels), value, rtol=1e-11, atol=0)


@given(seed=st.integers(0, 10**6), classes=st.integers(3, 30), scale=st.sampled_from([0.1, 1, 5]))
def test_frontier_falls_convexly_to_zero_at_the_price(seed, classes, scale):
    student, teacher, labels = random_states(seed, 4, classes, scale)
    cost = transfer_cost(student, teacher, labels)
    budgets = torch.linspace(0, 1.25, 26, dtype=torch.float64).unsqueeze(-1) * cost
    values = transfer_frontier(student, teacher, labels, budgets)
    start = conditional_kl(student, teacher, labels)
    torch.testing.assert_close(values[0], start, rtol=1e-12, atol=1e-15)
    assert float(values.diff(dim=0).max()) <= 0
    assert float(values.diff(n=2, dim=0).min()) >= -1e-13
    assert torch.equal(values == 0, budgets >= cost)


@pytest.mark.parametrize("classes", SIZES)
def test_nothing_safe_within_the_budget_is_better(classes):
    """Random members of Q_B: mixtures of r and of vertices that respect the caps."""
    student, teacher, labels = random_states(classes, 30, classes)
    budget = 0.4 * transfer_cost(student, teacher, labels)
    best = transfer_frontier(student, teacher, labels, budget)
    optimum = frontier_optimum(student, teacher, labels, budget)
    r = conditional_log_probs(student, labels).exp()
    generator = torch.Generator().manual_seed(1)
    other = torch.arange(classes) != labels.unsqueeze(-1)
    for _ in range(50):
        move = torch.randn(30, classes, generator=generator, dtype=torch.float64) * r
        move = torch.where(other, move, 0.0)
        move = move - r * move.sum(-1, keepdim=True)
        room = torch.where(other, torch.expm1(budget).unsqueeze(-1) * r, 1.0)
        largest = torch.where(move > 0, move / room, -move / r.clamp(min=1e-300)).amax(-1)
        x = r + 0.999 * move / largest.unsqueeze(-1)
        for point in (x, 0.9 * optimum.exp() + 0.1 * x):
            worse = conditional_kl(point.clamp(min=1e-300).log(), teacher, labels)
            assert float((worse - best).min()) >= -1e-12


def test_a_budget_beyond_the_price_buys_everything():
    student, teacher, labels = random_states(3, 20, 6, zeros=0.3)
    for budget in (transfer_cost(student, teacher, labels), 1e6, math.inf):
        assert not bool(transfer_frontier(student, teacher, labels, budget).any())
        optimum = frontier_optimum(student, teacher, labels, budget)
        assert torch.equal(optimum, conditional_log_probs(teacher, labels))


def test_no_budget_leaves_the_student():
    student, teacher, labels = random_states(4, 50, 6, zeros=0.3)
    optimum = frontier_optimum(student, teacher, labels, 0)
    expected = conditional_log_probs(student, labels)
    torch.testing.assert_close(optimum, expected, rtol=1e-12, atol=1e-13)


def test_closed_form_for_two_competitors():
    """With q_2 / r_2 < 1 < q_3 / r_3 the third class takes its cap, the second the rest."""
    r, q = (0.7, 0.3), (5 / 12, 7 / 12)
    budgets = torch.linspace(0, math.log(35 / 18), 20, dtype=torch.float64)
    third = budgets.exp() * r[1]
    expected = q[0] * torch.log(q[0] / (1 - third)) + q[1] * torch.log(q[1] / third)
    found = transfer_frontier(STUDENT, TEACHER, LABEL, budgets)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15)


def test_small_errors_near_the_price_keep_their_digits():
    """For two competitors V is (D - B)^2 q_3 (1 + q_3/q_2) / 2 to leading order."""
    cost = transfer_cost(STUDENT, TEACHER, LABEL)
    for gap in (1e-4, 1e-6, 1e-8):
        value = float(transfer_frontier(STUDENT, TEACHER, LABEL, cost - gap))
        assert value == pytest.approx(gap**2 * 7 / 12 * (1 + 7 / 5) / 2, rel=max(3 * gap, 1e-7))


def test_zero_probabilities_leave_the_excess_to_the_unwanted():
    student = torch.tensor([0.0, 0.5, 0.2, 0.3], dtype=torch.float64).clamp(min=1e-9).log()
    teacher = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64).log()
    optimum = frontier_optimum(student, teacher, LABEL, math.log(1.5)).exp()
    torch.testing.assert_close(optimum, torch.tensor([0, 0.75, 0.1, 0.15]).double())
    value = float(transfer_frontier(student, teacher, LABEL, math.log(1.5)))
    assert value == pytest.approx(-math.log(0.75), rel=1e-14)


def test_budgets_broadcast_and_are_not_negative():
    student, teacher, labels = random_states(5, 3, 5)
    budgets = torch.tensor([0.1, 0.5], dtype=torch.float64).unsqueeze(-1)
    grid = transfer_frontier(student, teacher, labels, budgets)
    for i, budget in enumerate((0.1, 0.5)):
        for n in range(3):
            alone = transfer_frontier(student[n], teacher[n], labels[n], budget)
            torch.testing.assert_close(grid[i, n], alone, rtol=1e-13, atol=1e-15)
    for budget in (-1e-9, math.nan):
        with pytest.raises(ValueError, match=r"budget must lie in \[0, inf\]"):
            transfer_frontier(student, teacher, labels, budget)
