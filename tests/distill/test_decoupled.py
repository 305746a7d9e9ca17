"""DKD: its terms add up to KD, and its warm-up counts epochs from one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.distill import OBJECTIVES, objective_loss
from lib.distill.decoupled import nontarget_loss, target_loss, warmup_factor
from lib.distill.kd import imitation_loss
from lib.tpkd import conditional_kl
from tests.distill.cases import arguments

seeds = st.integers(0, 2**32)


@settings(max_examples=12)
@given(seeds, st.sampled_from([3, 4, 20]), st.floats(0.5, 10), st.sampled_from([0.0, 0.4]))
def test_kd_is_the_sum_of_both_terms(seed, classes, temperature, zeros):
    """Eq. 1 at a temperature: KD = TCKD + (1 - tau) NCKD, in value and gradient."""
    values = arguments(seed, 5, classes, zeros=zeros)
    teacher, labels = values["teacher_logits"], values["labels"]
    leaf = values["student_logits"].clone().requires_grad_()
    tau = (teacher / temperature).softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    parts = target_loss(leaf, teacher, labels, temperature)
    parts = parts + (1 - tau) * nontarget_loss(leaf, teacher, labels, temperature)
    whole = imitation_loss(leaf, teacher, temperature)
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-12)
    first, second = (torch.autograd.grad(x.sum(), leaf)[0] for x in (parts, whole))
    torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-12)


def test_nontarget_term_is_the_papers_conditional_divergence():
    values = arguments(1, 8, 6)
    triple = [values[key] for key in ("student_logits", "teacher_logits", "labels")]
    torch.testing.assert_close(nontarget_loss(*triple, 1.0), conditional_kl(*triple))
    loss = objective_loss("dkd", **values, temperature=1.0, alpha=0.0, beta=0.5, warmup_epochs=0.0)
    expected = objective_loss("ce", **values) + conditional_kl(*triple).mean() / 2
    torch.testing.assert_close(loss, expected)


def test_text_warmup_follows_the_one_based_epoch():
    """1,125 steps of 64 from 18,000 examples: w = 1/2 in the first epoch, then 1."""
    text = OBJECTIVES["dkd"].text_options
    for step in range(1125):
        epoch = 1 + (64 * step) // 18000
        expected = 0.5 if epoch == 1 else 1.0
        assert warmup_factor(step, text["warmup_epochs"], text["steps_per_epoch"]) == expected
    assert [64 * k // 18000 for k in (281, 282)] == [0, 1]


@pytest.mark.parametrize("per_epoch", [1, 782, 1000 / 30, 50000 / 64, 1 / 3])
def test_warmup_starts_an_epoch_at_its_first_step(per_epoch):
    for epoch in range(1, 30):
        step = math.ceil((epoch - 1) * per_epoch - 1e-9)
        if per_epoch >= 1:
            assert warmup_factor(step, 20, per_epoch) == min(epoch / 20, 1)
    assert warmup_factor(None, 20, per_epoch) == 1
    assert warmup_factor(0, 0.0, per_epoch) == 1
    assert warmup_factor(0, 20, per_epoch) > 0


def test_warmup_weighs_the_distillation_terms_only():
    values = arguments(2, 5, 4)
    label = objective_loss("ce", **values)
    full = objective_loss("dkd", **values) - label
    for epoch in (1, 7, 20, 50):
        found = objective_loss("dkd", **values, step=epoch - 1)
        torch.testing.assert_close(found, label + min(epoch / 20, 1) * full)
        by_steps = objective_loss("dkd", **values, step=10 * epoch - 1, steps_per_epoch=10)
        assert torch.equal(found, by_steps)


def test_far_outputs_keep_the_targets_term_finite():
    """The logarithm of a summed softmax is -inf from a gap of about 104 on in float32."""
    student = torch.tensor([-400.0, 400.0, 0.0], requires_grad=True)
    loss = target_loss(student, torch.tensor([400.0, -400.0, 0.0]), torch.tensor(0), 1.0)
    loss.backward()
    torch.testing.assert_close(loss.item(), 800.0)
    torch.testing.assert_close(student.grad, torch.tensor([-1.0, 1.0, 0.0]))
