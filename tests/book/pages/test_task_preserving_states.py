"""The random states of Part III have the properties that their names promise."""

import pytest
import torch

from lib.book.pages.task_preserving_states import random_states, state_logits

KINDS = ("mild", "sharp", "near", "one-up", "one-down", "blocked")


def split(logits, labels):
    """Log-odds of the label, and the conditional distribution of the wrong classes in order."""
    off = torch.ones_like(logits, dtype=torch.bool).scatter(-1, labels[:, None], False)
    rest = logits[off].reshape(len(logits), -1)
    at = logits.gather(-1, labels[:, None])[:, 0]
    return at - rest.logsumexp(-1), rest.softmax(-1)


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
@pytest.mark.parametrize("classes", [3, 10, 100])
def test_states_are_finite_float64_and_repeatable(kind, classes):
    states = random_states(classes, 50, torch.Generator().manual_seed(4), kind)
    again = random_states(classes, 50, torch.Generator().manual_seed(4), kind)
    for one, other in zip(states, again, strict=True):
        assert torch.equal(one, other)
    student, teacher, labels = states
    assert student.shape == teacher.shape == (50, classes)
    assert labels.shape == (50,)
    assert student.dtype == teacher.dtype == torch.float64
    assert labels.dtype == torch.int64
    assert student.isfinite().all()
    assert teacher.isfinite().all()
    assert labels.min() >= 0
    assert labels.max() < classes
    assert len(labels.unique()) > 1


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("classes", [3, 4, 1000])
def test_blocked_states_are_strictly_blocked_with_conditional_error(seed, classes):
    generator = torch.Generator().manual_seed(seed)
    student, teacher, labels = random_states(classes, 300, generator, "blocked")
    gaps = teacher.log_softmax(-1) - student.log_softmax(-1)
    closest = gaps.scatter(-1, labels[:, None], torch.inf).amin(-1)
    torch.testing.assert_close(closest.clamp(-torch.tensor(0.99).log(), 4.61), closest)
    assert closest.min() < 0.1
    assert closest.max() > 2
    _, r = split(student, labels)
    _, q = split(teacher, labels)
    assert (r - q).abs().amax(-1).min() > 0


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("classes", [4, 10, 100])
@pytest.mark.parametrize(("kind", "sign"), [("one-up", 1), ("one-down", -1)])
def test_one_competitor_moves_against_all_others_alike(seed, classes, kind, sign):
    generator = torch.Generator().manual_seed(seed)
    student, teacher, labels = random_states(classes, 200, generator, kind)
    _, r = split(student, labels)
    _, q = split(teacher, labels)
    torch.testing.assert_close(r, torch.full_like(r, 1 / (classes - 1)))
    moves = sign * (q - r).sort(-1, descending=sign > 0).values
    torch.testing.assert_close(moves[:, 1:], -moves[:, :1].expand(-1, classes - 2) / (classes - 2))
    assert moves[:, 0].min() > 0
    assert q.min() > 0


def test_sharp_students_are_sure_and_near_teachers_are_near():
    generator = torch.Generator().manual_seed(7)
    student, _, labels = random_states(5, 400, generator, "sharp")
    assert split(student, labels)[0].max() > 15
    student, teacher, _ = random_states(5, 400, generator, "near")
    widest = (teacher.log_softmax(-1) - student.log_softmax(-1)).abs().amax(-1)
    assert 0 < widest.min() < 5e-3
    assert 0.1 < widest.max() < 1


def test_mixed_holds_every_kind_in_equal_shares():
    mixed = random_states(4, 60, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    parts = [random_states(4, 10, generator, kind) for kind in KINDS]
    for tensor, pieces in zip(mixed, zip(*parts, strict=True), strict=True):
        assert torch.equal(tensor, torch.cat(pieces))
    assert len(random_states(4, 11, generator)[2]) == 11
    assert random_states(4, 0, generator)[0].shape == (0, 4)


@pytest.mark.parametrize("label", [0, 1, 2])
def test_logits_from_confidence_and_conditional(label):
    r = torch.tensor([0.7, 0.3], dtype=torch.float64)
    odds = torch.tensor([9.0, 1.0], dtype=torch.float64)
    p = state_logits(odds.log(), r, torch.tensor(label)).softmax(-1)
    rho = torch.tensor([0.9, 0.5], dtype=torch.float64)
    torch.testing.assert_close(p[:, label], rho)
    wrong = [j for j in range(3) if j != label]
    torch.testing.assert_close(p[:, wrong], (1 - rho)[:, None] * r)


@pytest.mark.parametrize(
    ("classes", "count", "kind", "message"),
    [
        (2, 5, "mild", "classes must be a whole number, 3 or more, got 2"),
        (3, -1, "mild", "count must be a whole number, 0 or more, got -1"),
        (3, 5, "wild", "kind must be 'mixed' or one of"),
    ],
)
def test_bad_input_is_refused(classes, count, kind, message):
    with pytest.raises(ValueError, match=message):
        random_states(classes, count, torch.Generator(), kind)


def test_one_wrong_class_is_refused():
    with pytest.raises(ValueError, match="K >= 3 classes"):
        state_logits(torch.zeros(2), torch.ones(2, 1), torch.tensor(0))
