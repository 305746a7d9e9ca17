"""Margins, odds and divergences against 60-digit decimals, autograd and closed forms."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.tpkd import (
    bernoulli_kl,
    conditional_kl,
    conditional_log_probs,
    full_kl,
    log_odds,
    margins,
    weighted_label_loss,
)
from tests.tpkd import reference
from tests.tpkd.states import DEVICES, LABEL, STUDENT, TEACHER, per_example, random_states

PAIRS = {
    conditional_kl: reference.conditional_kl,
    bernoulli_kl: reference.bernoulli_kl,
}
SIZES = [3, 4, 10, 100]


def close(ours, exact, rtol=1e-13, atol=0.0):
    torch.testing.assert_close(ours.cpu(), exact, rtol=rtol, atol=atol)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", SIZES)
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_divergences_match_decimals(classes, zeros, device):
    """The literal sum loses 1e-60 in 60 digits; ours keeps confidence gaps of 1e-100."""
    for seed, scale in enumerate((0.1, 3.0, 100.0)):
        state = random_states(seed, 8, classes, scale, zeros)
        there = [x.to(device) for x in state]
        for ours, exact in PAIRS.items():
            close(ours(*there), per_example(exact, *state), rtol=1e-12, atol=1e-50)
        exact = per_example(lambda a, b, _: reference.full_kl(a, b), *state)
        close(full_kl(*there[:2]), exact, rtol=1e-12, atol=1e-50)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", SIZES)
def test_single_outputs_match_decimals(classes, device):
    for seed, scale in enumerate((0.1, 3.0, 1e4)):
        student, teacher, labels = random_states(seed, 8, classes, scale, 0.4)
        z, w, y = student.to(device), teacher.to(device), labels.to(device)
        close(margins(z, y), per_example(reference.margins, student, labels), rtol=1e-15)
        exact = per_example(reference.log_odds, teacher, labels)
        close(log_odds(w, y), exact, rtol=1e-13, atol=1e-14)
        exact = per_example(reference.conditional_log_probs, teacher, labels)
        close(conditional_log_probs(w, y), exact, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("classes", SIZES)
def test_weighted_loss_matches_decimals(classes):
    student, weights, labels = random_states(5, 10, classes, 20.0)
    weights = weights.relu()
    exact = per_example(reference.weighted_label_loss, student, labels, weights)
    close(weighted_label_loss(student, labels, weights), exact, rtol=1e-12)


def test_worked_example_to_every_printed_digit():
    """Appendix A.4 prints six decimals."""
    assert float(weighted_label_loss(STUDENT, LABEL)) == pytest.approx(-math.log(0.9), rel=1e-15)
    assert f"{float(weighted_label_loss(STUDENT, LABEL)):.6f}" == "0.105361"
    assert f"{float(conditional_kl(STUDENT, TEACHER, LABEL)):.6f}" == "0.171739"
    assert f"{float(full_kl(STUDENT, TEACHER)):.6f}" == "0.853727"
    height = log_odds(TEACHER, LABEL) - log_odds(STUDENT, LABEL)
    assert f"{float(height):.5f}" == "-2.60269"


@pytest.mark.parametrize("classes", [*SIZES, 1000])
def test_full_kl_decomposes(classes):
    student, teacher, labels = random_states(7, 300, classes)
    off_label = (-log_odds(teacher, labels)).sigmoid()
    parts = bernoulli_kl(student, teacher, labels) + off_label * conditional_kl(
        student, teacher, labels
    )
    close(full_kl(student, teacher), parts, rtol=1e-12)


@pytest.mark.parametrize("classes", SIZES)
def test_margins_are_odds_less_conditional(classes):
    student, _, labels = random_states(8, 300, classes)
    other = torch.arange(classes) != labels.unsqueeze(-1)
    parts = log_odds(student, labels).unsqueeze(-1) - conditional_log_probs(student, labels)
    close(margins(student, labels)[other], parts[other], atol=1e-13)


def test_gradients_are_the_papers():
    student, teacher, labels = random_states(9, 20, 6, zeros=0.3)
    student.requires_grad_()
    p, t = student.softmax(-1), teacher.softmax(-1)
    q, r = (conditional_log_probs(z, labels).exp() for z in (teacher, student))
    h = p - torch.nn.functional.one_hot(labels, 6)
    for loss, gradient in (
        (conditional_kl(student, teacher, labels), r - q),
        (full_kl(student, teacher), p - t),
        (weighted_label_loss(student, labels), h),
    ):
        (found,) = torch.autograd.grad(loss.sum(), student)
        close(found, gradient.detach(), rtol=1e-12, atol=1e-15)


def test_cross_entropy_and_single_competitors():
    student, _, labels = random_states(10, 40, 5)
    expected = torch.nn.functional.cross_entropy(student, labels, reduction="none")
    close(weighted_label_loss(student, labels), expected, rtol=1e-13)
    for j in range(5):
        alone = torch.nn.functional.one_hot(torch.tensor(j), 5).double()
        expected = torch.log1p((-margins(student, labels)[:, j]).exp())
        expected = torch.where(labels == j, 0.0, expected)
        close(weighted_label_loss(student, labels, alone), expected, rtol=1e-13)


@pytest.mark.parametrize("behind", [-21.0, 0.0, 19.0, 21.0, 30.0, 1e4])
def test_loss_of_one_competitor_is_a_softplus(behind):
    logits = torch.tensor([0.0, behind, -1e5], dtype=torch.float64)
    exact = max(behind, 0) + math.log1p(math.exp(-abs(behind)))
    assert float(weighted_label_loss(logits, LABEL)) == pytest.approx(exact, rel=1e-15)


def test_weights_of_zero_cost_nothing_and_negative_ones_are_refused():
    nothing = weighted_label_loss(STUDENT, LABEL, torch.zeros(3))
    assert float(nothing) == 0.0
    with pytest.raises(ValueError, match="weights must be >= 0, got -1"):
        weighted_label_loss(STUDENT, LABEL, torch.tensor([0.0, -1.0, 0.0]))


@given(seed=st.integers(0, 10**6), shift=st.integers(-4096, 4096), classes=st.integers(3, 12))
def test_shifts_change_nothing(seed, shift, classes):
    """Multiples of 1/64 shift without rounding, so that not even the last bit may differ."""
    student, teacher, labels = random_states(seed, 4, classes)
    student, teacher = ((z * 64).round() / 64 for z in (student, teacher))
    for function in (margins, log_odds, conditional_log_probs):
        assert torch.equal(function(student + shift, labels), function(student, labels))
    assert torch.equal(
        conditional_kl(student + shift, teacher, labels), conditional_kl(student, teacher, labels)
    )
    assert not bool(conditional_kl(teacher + shift, teacher, labels).any())


@given(seed=st.integers(0, 10**6), classes=st.integers(3, 12))
def test_classes_may_be_permuted(seed, classes):
    student, teacher, labels = random_states(seed, 4, classes)
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))
    moved = order.argsort()[labels]
    for function in (conditional_kl, bernoulli_kl):
        close(
            function(student[:, order], teacher[:, order], moved),
            function(student, teacher, labels),
            rtol=1e-12,
        )


def test_confidences_that_round_to_one():
    logits = torch.tensor([1e4, 1.0, 0.0], dtype=torch.float64)
    r = torch.tensor([1.0, 0.0], dtype=torch.float64).softmax(-1)
    close(conditional_log_probs(logits, LABEL)[1:].exp(), r, rtol=1e-15)
    assert float(weighted_label_loss(torch.tensor([40.0, 0.0, 0.0]).double(), LABEL)) == (
        pytest.approx(2 * math.exp(-40), rel=1e-14)
    )
    far = conditional_kl(logits, logits.flip(-1).roll(1), LABEL)
    assert bool(torch.isfinite(far))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_dtypes_are_computed_wide_and_rounded_once(dtype):
    student, teacher, labels = random_states(11, 30, 8)
    student, teacher = student.to(dtype), teacher.to(dtype)
    for function in (conditional_kl, bernoulli_kl):
        wide = function(student.double(), teacher.double(), labels)
        assert torch.equal(function(student, teacher, labels), wide.to(dtype))


def test_integers_count_as_float32():
    logits = torch.tensor([2, 0, 1])
    assert margins(logits, LABEL).tolist() == [0.0, 2.0, 1.0]
    assert margins(logits, LABEL).dtype == torch.float32


def test_empty_batches_and_leading_dimensions():
    none = torch.zeros(0, 5)
    assert conditional_kl(none, none, torch.zeros(0, dtype=torch.int64)).shape == (0,)
    student, teacher, labels = random_states(12, 6, 4)
    grid = conditional_kl(student.reshape(2, 3, 4), teacher.reshape(2, 3, 4), labels.reshape(2, 3))
    close(grid.flatten(), conditional_kl(student, teacher, labels))
    every = conditional_kl(student.unsqueeze(1), teacher, labels)
    assert every.shape == (6, 6)
    close(every.diagonal(), conditional_kl(student, teacher, labels))


def test_margins_of_a_zero_probability_are_refused():
    with pytest.raises(ValueError, match="logits must be finite"):
        margins(torch.tensor([0.0, 0.0, -math.inf]), LABEL)
