"""Theorem 1 by brute force and in decimals, its ties exactly, and the optima of A.2 and A.6."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from lib.tpkd import (
    blocked_confidence_limit,
    blocked_log_odds_limit,
    conditional_kl,
    conditional_log_probs,
    full_kl,
    is_blocked,
    label_only_kl,
    label_only_optimum,
    log_odds,
    margins,
)
from lib.tpkd.divergence import assemble
from tests.tpkd import reference
from tests.tpkd.states import DEVICES, LABEL, STUDENT, TEACHER, per_example, random_states

SIZES = [3, 4, 10, 100]


def confident(seed, count, classes, zeros=0.0):
    """States of which about half are blocked: the label's logit is raised by a random amount."""
    student, teacher, labels = random_states(seed, count, classes, 1.0, zeros)
    generator = torch.Generator().manual_seed(seed + 1)
    rise = 8 * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    return student.scatter_add(-1, labels.unsqueeze(-1), rise), teacher, labels


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", SIZES)
def test_criterion_matches_decimals(classes, device):
    state = confident(classes, 60, classes)
    blocked = is_blocked(*[x.to(device) for x in state]).cpu()
    assert torch.equal(blocked.double(), per_example(reference.is_blocked, *state))
    assert 0 < int(blocked.sum()) < 60


@pytest.mark.parametrize("classes", [3, 4, 6])
def test_blocked_states_are_those_that_a_search_cannot_improve(classes):
    """Safe moves z' = z - x with x in the cone; a descent over x >= 0 off the label finds any."""
    student, teacher, labels = confident(40 + classes, 16, classes)
    blocked = is_blocked(student, teacher, labels)
    for z, w, y, verdict in zip(student, teacher, labels, blocked, strict=True):
        other = torch.arange(classes) != y
        start = float(full_kl(z, w))

        def value(x, z=z, w=w, other=other):
            move = torch.tensor(x, requires_grad=True)
            loss = full_kl(z.masked_scatter(other, z[other] - move), w)
            (gradient,) = torch.autograd.grad(loss, move)
            return float(loss.detach()), gradient.numpy()

        best = minimize(value, [0.0] * (classes - 1), jac=True, bounds=[(0, 30)] * (classes - 1))
        assert (start - best.fun <= 1e-12) == bool(verdict)


@given(seed=st.integers(0, 10**6), classes=st.integers(3, 30))
def test_blocked_imitation_costs_at_least_the_move(seed, classes):
    """Eq. 3: the identity for every state, the inequality for blocked ones and safe moves."""
    student, teacher, labels = confident(seed, 8, classes)
    generator = torch.Generator().manual_seed(seed + 2)
    fall = torch.rand(8, classes, generator=generator, dtype=torch.float64)
    moved = student - fall.scatter(-1, labels.unsqueeze(-1), 0.0)
    gains = margins(moved, labels) - margins(student, labels)
    work = ((teacher.softmax(-1) - student.softmax(-1)) * gains).sum(-1)
    change = full_kl(moved, teacher) - full_kl(student, teacher)
    distance = full_kl(moved, student)
    torch.testing.assert_close(change, distance + work, rtol=1e-11, atol=1e-13)
    slack = torch.where(is_blocked(student, teacher, labels), change - distance, 0.0)
    assert float(slack.min()) >= -1e-13


def test_equal_predictions_are_blocked():
    """Also after a shift of the logits that does not round, broadcast, and for any K."""
    for classes in (3, 7, 64, 1000):
        student, _, labels = random_states(classes, 50, classes)
        quarters = (student * 4).round() / 4
        assert bool(is_blocked(student, student, labels).all())
        assert bool(is_blocked(quarters + 1e4, quarters, labels).all())
        assert bool(is_blocked(quarters.float() - 37.25, quarters, labels).all())
        assert bool(is_blocked(student, student[:1], labels)[0])


@given(seed=st.integers(0, 10**6), classes=st.integers(3, 12))
def test_ties_of_one_class_are_blocked(seed, classes):
    """The teacher permutes the first logits, upwards off the label: the last class just ties."""
    student, _, _ = random_states(seed, 1, classes, 2.0)
    student = student[0].sort(descending=True).values
    teacher = torch.cat((student[-2:-1], student[:-2], student[-1:]))
    assert bool(is_blocked(student, teacher, LABEL))


@pytest.mark.parametrize("step", [1e-3, 2.0**-30, 2.0**-50])
def test_a_small_step_beside_a_tie_decides(step):
    """Down with one class frees mass for the others; down with all but the label blocks."""
    logits = torch.tensor([0.5, 0.25, -1.0], dtype=torch.float64)
    moves = torch.eye(3, dtype=torch.float64)[1:] * step
    for move in moves:
        assert not bool(is_blocked(logits + move, logits, LABEL))
        assert not bool(is_blocked(logits - move, logits, LABEL))
    assert bool(is_blocked(logits - moves.sum(0), logits, LABEL))
    assert not bool(is_blocked(logits + moves.sum(0), logits, LABEL))


def test_worked_example():
    assert bool(is_blocked(STUDENT, TEACHER, LABEL))
    expected = torch.tensor([0.9, 1 / 24, 7 / 120], dtype=torch.float64)
    optimum = label_only_optimum(STUDENT, TEACHER, LABEL)
    torch.testing.assert_close(optimum.exp(), expected, rtol=1e-15, atol=0)
    lost = margins(STUDENT, LABEL) - margins(optimum, LABEL)
    assert float(lost[2]) == pytest.approx(math.log(7 / 120 / 0.03), rel=1e-14)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", SIZES)
def test_confidence_limit_parts_blocked_from_free(classes, device):
    student, teacher, labels = random_states(classes, 200, classes, 2.0)
    limit = blocked_log_odds_limit(student.to(device), teacher.to(device), labels.to(device)).cpu()
    conditional = conditional_log_probs(student, labels)
    for shift, verdict in ((1e-9, True), (-1e-9, False)):
        state = assemble(limit + shift, conditional, labels)
        assert bool((is_blocked(state, teacher, labels) == verdict).all())
        assert float(conditional_kl(state, teacher, labels).min()) > 0


@pytest.mark.parametrize("classes", SIZES)
def test_confidence_limit_matches_decimals(classes):
    state = random_states(classes, 20, classes)
    log_mass = per_example(reference.blocked_mass, *state)
    limit = blocked_confidence_limit(*state)
    torch.testing.assert_close(limit, -torch.expm1(log_mass), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(
        blocked_log_odds_limit(*state), torch.logit(limit), rtol=1e-6, atol=1e-6
    )


def test_confidence_limit_at_its_ends():
    teacher = torch.tensor([-math.inf, 1.0, 2.0], dtype=torch.float64)
    assert float(blocked_log_odds_limit(teacher.clamp(min=-5), teacher, LABEL)) == -math.inf
    assert float(blocked_confidence_limit(teacher.clamp(min=-5), teacher, LABEL)) == 0.0
    teacher = torch.tensor([0.0, 1.0, -math.inf], dtype=torch.float64)
    assert float(blocked_log_odds_limit(STUDENT, teacher, LABEL)) == math.inf
    assert float(blocked_confidence_limit(STUDENT, teacher, LABEL)) == 1.0
    assert not bool(is_blocked(STUDENT, teacher, LABEL))


@pytest.mark.parametrize("classes", SIZES)
def test_label_only_optimum_matches_decimals(classes):
    state = random_states(classes, 20, classes, zeros=0.3)
    exact = per_example(reference.label_only_optimum, *state)
    torch.testing.assert_close(label_only_optimum(*state), exact, rtol=1e-13, atol=1e-14)
    exact = per_example(reference.label_only_kl, *state)
    torch.testing.assert_close(label_only_kl(*state), exact, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("seed", range(4))
def test_label_only_optimum_matches_an_optimiser(seed):
    """SLSQP over logits with the label's log-odds bounded from below."""
    student, teacher, labels = random_states(seed, 1, 4, 1.5)
    student, teacher, label = student[0], teacher[0], labels[0]
    floor = float(log_odds(student, label))

    def differentiate(function):
        def at(x):
            x = torch.tensor(x, requires_grad=True)
            value = function(x)
            return float(value.detach()), torch.autograd.grad(value, x)[0].numpy()

        return at

    loss, odds = (
        differentiate(lambda x: full_kl(x, teacher)),
        differentiate(lambda x: log_odds(x, label) - floor),
    )
    found = minimize(
        loss,
        student.numpy(),
        jac=True,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda x: odds(x)[0], "jac": lambda x: odds(x)[1]},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found.fun == pytest.approx(float(label_only_kl(student, teacher, label)), abs=1e-7)
    optimum = label_only_optimum(student, teacher, label)
    assert float(full_kl(optimum, teacher)) == pytest.approx(
        float(label_only_kl(student, teacher, label)), rel=1e-12, abs=1e-15
    )
