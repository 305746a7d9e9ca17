"""Data partitioning: whom each example follows, and that DP-U can be KL-Dist to the last bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.distill import objective_loss
from lib.distill.partition import partition_loss, teacher_chosen
from tests.distill.cases import arguments, evaluate, rows

seeds = st.integers(0, 2**32)


@settings(max_examples=10)
@given(seeds, st.sampled_from([3, 8]), st.booleans())
def test_choice_is_that_of_the_probabilities(seed, classes, supervised):
    values = arguments(seed, 8, classes)
    teacher, frozen, labels = (values[key] for key in ("teacher_logits", "frozen_logits", "labels"))
    t, p0 = teacher.softmax(-1), frozen.softmax(-1)
    index = labels.unsqueeze(-1)
    if supervised:
        expected = (t.gather(-1, index) > p0.gather(-1, index)).squeeze(-1)
    else:
        expected = t.amax(-1) > p0.amax(-1)
    assert torch.equal(teacher_chosen(teacher, frozen, labels if supervised else None), expected)


@pytest.mark.parametrize("labels", [None, torch.tensor([0, 1])])
def test_ties_go_to_the_frozen_student(labels):
    logits = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0]])
    assert not teacher_chosen(logits, logits.clone(), labels).any()
    surer = logits.scatter(-1, torch.tensor([[1], [1]]), 5.0)
    chosen = teacher_chosen(surer, logits, torch.tensor([1, 1]))
    assert chosen.all()


@pytest.mark.parametrize("name", ["dp-s", "dp-u"])
def test_untrained_student_without_a_surer_teacher_stays(name):
    """Student equal to the frozen one and a teacher never chosen: no loss, no gradient."""
    values = arguments(0, 6, 5, 4.0)
    values["teacher_logits"] = torch.zeros(6, 5, dtype=torch.float64)
    values["labels"] = values["student_logits"].argmax(-1)
    values["frozen_logits"] = values["student_logits"].clone()
    loss, gradient, _ = evaluate(name, values)
    assert loss == 0
    assert not gradient.any()


@pytest.mark.parametrize("name", ["dp-s", "dp-u"])
def test_each_row_has_the_loss_of_its_own_target(name):
    values = arguments(4, 10, 6)
    labels = values["labels"] if name == "dp-s" else None
    chosen = teacher_chosen(values["teacher_logits"], values["frozen_logits"], labels)
    assert chosen.any()
    assert not chosen.all()
    for i, teacher in enumerate(chosen.tolist()):
        one = rows(values, i, i + 1)
        target = one if teacher else one | {"teacher_logits": one["frozen_logits"]}
        assert torch.equal(objective_loss(name, **one), objective_loss("kl-dist", **target))


def test_choice_does_not_mix_rows():
    values = arguments(5, 4, 3)
    arrays = [values[key] for key in ("student_logits", "teacher_logits", "frozen_logits")]
    chosen = torch.tensor([True, False, True, False])
    found = partition_loss(*arrays, chosen)
    student, teacher, frozen = arrays
    for i, one in enumerate(chosen):
        target = (teacher if one else frozen)[i].softmax(-1)
        direct = (target * (target.log() - student[i].log_softmax(-1))).sum()
        torch.testing.assert_close(found[i], direct)


def test_training_with_a_surer_teacher_is_training_with_kl_dist():
    """With a flat start every example follows the teacher, and both runs agree bit for bit."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(32, 6, generator=generator)
    teacher = 3 * torch.randn(32, 5, generator=generator)
    labels = torch.randint(5, (32,), generator=generator)
    start = 0.01 * torch.randn(5, 6, generator=generator)
    frozen = inputs @ start.T
    ends = []
    for name in ("dp-u", "kl-dist"):
        weights = start.clone().requires_grad_()
        for step in range(10):
            student = inputs @ weights.T
            loss = objective_loss(name, student, teacher, labels, frozen_logits=frozen, step=step)
            (gradient,) = torch.autograd.grad(loss, weights)
            weights = (weights - 0.5 * gradient).detach().requires_grad_()
        ends.append(weights.detach())
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], start)
