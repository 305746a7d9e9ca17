"""The pieces in log space, where the plain formulas lose their digits."""

import math

import pytest
import torch

from lib.tpkd.divergence import (
    assemble,
    divergence,
    largest_log_ratio,
    log_mixture,
    odds,
)
from tests.tpkd import reference
from tests.tpkd.states import per_example, random_states


def test_divergence_is_the_usual_sum():
    a, b, _ = random_states(0, 200, 7)
    a, b = a.log_softmax(-1), b.log_softmax(-1)
    expected = (a.exp() * (a - b)).sum(-1)
    torch.testing.assert_close(divergence(a, b), expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-9, 1e-12])
def test_small_divergences_keep_their_digits(size):
    """The plain sum has an absolute error of 1e-16: nothing is left of it below."""
    student, direction, labels = random_states(1, 20, 5, scale=1.0)
    teacher = student + size * direction
    ours = divergence(teacher.log_softmax(-1), student.log_softmax(-1))
    exact = per_example(lambda a, b, _: reference.full_kl(a, b), student, teacher, labels)
    torch.testing.assert_close(ours, exact, rtol=3e-15 / size + 1e-13, atol=0.0)
    assert bool((ours > 0).all())


def test_series_and_direct_form_meet():
    for gap in (0.5 - 1e-12, 0.5 + 1e-12, -0.5 - 1e-12, -0.5 + 1e-12):
        weights = torch.tensor([1.0], dtype=torch.float64).log()
        value = float(divergence(weights, weights + gap))
        assert value == pytest.approx(math.expm1(gap) - gap, rel=1e-14)


def test_zero_weights_count_with_the_mass_of_the_model():
    a = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64).log()
    b = torch.tensor([0.0, 0.25, 0.75], dtype=torch.float64).log()
    assert float(divergence(a, b)) == pytest.approx(math.log(4), rel=1e-15)


def test_odds_survive_a_confidence_that_rounds_to_one():
    logits = torch.tensor([1e4, 0.0, 0.0], dtype=torch.float64)
    assert float(odds(logits, torch.tensor(0))) == 1e4 - math.log(2)
    assert float(odds(logits, torch.tensor(1))) == -1e4


def test_log_ratio_is_exact_at_a_shift_and_accurate_near_it():
    student, direction, labels = random_states(2, 50, 6)
    quarters = (student * 4).round() / 4
    shifted = largest_log_ratio(quarters + 1024.0, quarters, labels)
    assert torch.equal(shifted, torch.zeros(50, dtype=torch.float64))
    near = student + 1e-9 * direction
    exact = per_example(reference.transfer_cost, student, near, labels)
    torch.testing.assert_close(largest_log_ratio(near, student, labels), exact, rtol=1e-12, atol=0)


def test_log_ratio_of_a_zero_below_is_infinite():
    above = torch.zeros(3, dtype=torch.float64)
    below = torch.tensor([0.0, 0.0, -math.inf], dtype=torch.float64)
    assert float(largest_log_ratio(above, below, torch.tensor(0))) == math.inf
    assert float(largest_log_ratio(below, above, torch.tensor(0))) == pytest.approx(math.log(2))


@pytest.mark.parametrize("gap", [-800.0, -50.0, -1.0, -1e-10, 0.0, 1e-10, 1.0, 50.0, 800.0])
def test_mixture_at_its_ends_and_between(gap):
    first = torch.tensor(-3.0, dtype=torch.float64)
    share = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    mixed = log_mixture(first, first + gap, share)
    assert float(mixed[0]) == -3.0
    assert float(mixed[2]) == pytest.approx(-3.0 + gap, rel=1e-15)
    between = max(gap, 0) + math.log(0.7 * math.exp(min(-gap, 0)) + 0.3 * math.exp(min(gap, 0)))
    assert float(mixed[1]) == pytest.approx(-3.0 + between, rel=1e-14)


def test_mixture_of_nothing_is_nothing():
    nothing = torch.tensor(-math.inf, dtype=torch.float64)
    share = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    assert log_mixture(nothing, nothing, share).tolist() == [-math.inf] * 3
    assert log_mixture(torch.zeros_like(nothing), nothing, share).exp().tolist() == [1.0, 0.5, 0.0]


def test_assembled_probabilities_sum_to_one():
    student, teacher, labels = random_states(3, 50, 6)
    conditional = teacher.scatter(-1, labels.unsqueeze(-1), -math.inf).log_softmax(-1)
    log_p = assemble(odds(student, labels), conditional, labels)
    ones = torch.ones(50, dtype=torch.float64)
    torch.testing.assert_close(log_p.exp().sum(-1), ones, rtol=1e-14, atol=0)
    torch.testing.assert_close(odds(log_p, labels), odds(student, labels), rtol=1e-13, atol=1e-13)
