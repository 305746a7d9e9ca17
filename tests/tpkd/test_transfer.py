"""Theorem 2 by bisection, and the safe path in decimals, by autograd and at its ends."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.tpkd import (
    conditional_kl,
    conditional_log_probs,
    log_odds,
    margins,
    minimum_confidence,
    minimum_log_odds,
    safe_path,
    transfer_cost,
)
from lib.tpkd.divergence import assemble
from tests.tpkd import reference
from tests.tpkd.states import DEVICES, LABEL, STUDENT, TEACHER, per_example, random_states

SIZES = [3, 4, 10, 100]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", SIZES)
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_price_matches_decimals(classes, zeros, device):
    for seed, scale in enumerate((1e-3, 3.0, 1e4)):
        state = random_states(seed, 10, classes, scale, zeros)
        there = [x.to(device) for x in state]
        for ours, exact in (
            (transfer_cost, reference.transfer_cost),
            (minimum_log_odds, reference.minimum_log_odds),
        ):
            exact = per_example(exact, *state)
            torch.testing.assert_close(ours(*there).cpu(), exact, rtol=1e-11, atol=1e-14)
        odds = per_example(reference.minimum_log_odds, *state)
        found = minimum_confidence(*there).cpu()
        torch.testing.assert_close(found, odds.sigmoid(), rtol=1e-10, atol=0)


def test_price_by_bisection_on_margins():
    """The least rise of log-odds at which (a, (1 - a) q) keeps every margin."""
    student, teacher, labels = random_states(3, 300, 6)
    q, start = conditional_log_probs(teacher, labels), log_odds(student, labels)
    low, high = torch.zeros(300, dtype=torch.float64), torch.full((300,), 60.0).double()
    for _ in range(60):
        middle = (low + high) / 2
        gain = margins(assemble(start + middle, q, labels), labels) - margins(student, labels)
        safe = (gain >= -1e-13).all(-1)
        low, high = torch.where(safe, low, middle), torch.where(safe, middle, high)
    torch.testing.assert_close(transfer_cost(student, teacher, labels), high, rtol=0, atol=1e-11)


def test_price_is_the_largest_margin_shortfall():
    """logit(a_min) = max_j (M_j + log q_j), without R."""
    student, teacher, labels = random_states(4, 300, 8)
    needed = margins(student, labels) + conditional_log_probs(teacher, labels)
    found = minimum_log_odds(student, teacher, labels)
    torch.testing.assert_close(found, needed.amax(-1), rtol=1e-13, atol=1e-13)


def test_worked_example_to_every_printed_digit():
    """Appendix A.4."""
    cost = transfer_cost(STUDENT, TEACHER, LABEL)
    assert f"{float(cost):.6f}" == "0.664976"
    assert float(cost) == pytest.approx(math.log(35 / 18), rel=1e-15)
    assert float(minimum_confidence(STUDENT, TEACHER, LABEL)) == pytest.approx(35 / 37, rel=1e-15)
    s = torch.linspace(0, 1, 11, dtype=torch.float64)
    path = safe_path(STUDENT, TEACHER, LABEL, s).exp()
    rise = 0.9 * (1 + 17 * s / 18)
    a = rise / (0.1 + rise)
    r2, r3 = 0.7 - 17 * s / 60, 0.3 + 17 * s / 60
    expected = torch.stack((a, (1 - a) * r2, (1 - a) * r3), -1)
    torch.testing.assert_close(path, expected, rtol=1e-14, atol=0)
    end = torch.tensor([35 / 37, 5 / 222, 7 / 222], dtype=torch.float64)
    torch.testing.assert_close(path[-1], end, rtol=1e-14, atol=0)
    odds = path[:, :1] / path[:, 1:]
    expected = torch.tensor([[90 / 7, 30.0], [42.0, 30.0]], dtype=torch.float64)
    torch.testing.assert_close(odds[[0, -1]], expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", SIZES)
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_path_matches_decimals(classes, zeros, device):
    shares = torch.tensor([0.0, 1e-9, 0.3, 0.999, 1.0], dtype=torch.float64)
    for seed, scale in enumerate((1e-3, 3.0, 1e3)):
        student, teacher, labels = random_states(seed, 5, classes, scale, zeros)
        path = safe_path(
            student.to(device), teacher.to(device), labels.to(device), shares.to(device)
        )
        exact = per_example(reference.safe_path, student, teacher, labels, shares)
        torch.testing.assert_close(path.cpu(), exact, rtol=1e-12, atol=1e-13)


@given(seed=st.integers(0, 10**6), classes=st.integers(3, 20), scale=st.sampled_from([0.1, 3, 30]))
def test_margins_never_fall_and_error_never_rises(seed, classes, scale):
    student, teacher, labels = random_states(seed, 4, classes, scale)
    s = torch.linspace(0, 1, 21, dtype=torch.float64).unsqueeze(-1)
    path = safe_path(student, teacher, labels, s)
    assert path.shape == (21, 4, classes)
    steps = margins(path, labels).diff(dim=0)
    assert float((steps / (1 + margins(path, labels)[1:].abs())).min()) >= -1e-13
    assert float(conditional_kl(path, teacher, labels).diff(dim=0).max()) < 0
    torch.testing.assert_close(path.exp().sum(-1), torch.ones(21, 4).double(), rtol=1e-12, atol=0)


def test_path_joins_the_student_to_the_cheapest_transfer():
    student, teacher, labels = random_states(5, 50, 7)
    start, end = (safe_path(student, teacher, labels, s) for s in (0, 1))
    torch.testing.assert_close(start, student.log_softmax(-1), rtol=1e-13, atol=1e-13)
    cheapest = assemble(
        minimum_log_odds(student, teacher, labels), conditional_log_probs(teacher, labels), labels
    )
    torch.testing.assert_close(end, cheapest, rtol=1e-13, atol=1e-13)
    tight = (margins(end, labels) - margins(student, labels)).scatter(
        -1, labels.unsqueeze(-1), math.inf
    )
    torch.testing.assert_close(tight.amin(-1), torch.zeros(50).double(), rtol=0, atol=1e-12)


def test_derivatives_along_the_path_are_the_papers():
    """Eq. A.5 for margins and A.6 for conditional KL, by autograd in s."""
    student, teacher, labels = random_states(6, 6, 5, 1.5)
    r, q = (conditional_log_probs(z, labels).exp() for z in (student, teacher))
    top = transfer_cost(student, teacher, labels).exp()
    other = torch.arange(5) != labels.unsqueeze(-1)
    ratio = torch.where(other, q / r, 0.0)
    for value in (1e-9, 0.2, 0.9):
        s = torch.full((6,), value, dtype=torch.float64)
        mix = r + s.unsqueeze(-1) * (q - r)
        slope = (top.unsqueeze(-1) - ratio) / (1 + s * (top - 1)).unsqueeze(-1)
        slope = torch.where(other, slope / (1 + s.unsqueeze(-1) * (ratio - 1)), 0.0)
        fall = torch.where(other, (q - r) ** 2 / mix, 0.0).sum(-1) * -(1 - s)

        s.requires_grad_()
        path = safe_path(student, teacher, labels, s)
        heights = margins(path, labels)
        slopes = [
            torch.autograd.grad(heights[:, j].sum(), s, retain_graph=True)[0] for j in range(5)
        ]
        torch.testing.assert_close(torch.stack(slopes, -1), slope, rtol=1e-10, atol=1e-12)
        (found,) = torch.autograd.grad(conditional_kl(path, teacher, labels).sum(), s)
        torch.testing.assert_close(found, fall, rtol=1e-10, atol=1e-12)


def test_equal_conditionals_are_free():
    student, _, labels = random_states(7, 20, 6)
    student = (student * 8).round() / 8
    teacher = (student + 12.5).scatter_add(-1, labels.unsqueeze(-1), torch.ones(20, 1).double())
    assert not bool(transfer_cost(student, teacher, labels).any())
    start = log_odds(student, labels)
    assert torch.equal(minimum_log_odds(student, teacher, labels), start)
    path = safe_path(student, teacher, labels, 0.5)
    torch.testing.assert_close(path, student.log_softmax(-1), rtol=1e-13, atol=1e-13)


def test_confidence_may_round_to_one_but_log_odds_do_not():
    student = torch.tensor([60.0, 0.0, 1.0], dtype=torch.float64)
    assert float(minimum_confidence(student, TEACHER, LABEL)) == 1.0
    exact = reference.minimum_log_odds(student.tolist(), TEACHER.tolist(), 0)
    found = float(minimum_log_odds(student, TEACHER, LABEL))
    assert found == pytest.approx(float(exact), rel=1e-15)


def test_the_path_to_a_zero_probability_ends_at_minus_infinity():
    teacher = torch.tensor([0.0, 1.0, -math.inf], dtype=torch.float64)
    assert safe_path(STUDENT, teacher, LABEL, 1.0)[2] == -math.inf
    assert bool(torch.isfinite(safe_path(STUDENT, teacher, LABEL, 0.999)).all())


def test_shares_broadcast_and_stay_in_the_unit_interval():
    student, teacher, labels = random_states(8, 4, 5)
    shares = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    together = safe_path(student, teacher, labels, shares)
    for i in range(4):
        alone = safe_path(student[i], teacher[i], labels[i], float(shares[i]))
        torch.testing.assert_close(together[i], alone, rtol=1e-14, atol=1e-15)
    for s in (-1e-9, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"s must lie in \[0, 1\]"):
            safe_path(student, teacher, labels, s)
    with pytest.raises(ValueError, match=r"s of shape \(3,\) must broadcast"):
        safe_path(student, teacher, labels, torch.zeros(3))
