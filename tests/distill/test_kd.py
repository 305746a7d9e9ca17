"""KD, KL-Dist and XE-KL against the library's divergence and each other."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, kl_div

from lib.distill import objective_loss
from lib.distill.kd import imitation_loss
from tests.distill.cases import arguments, evaluate, split

seeds = st.integers(0, 2**32)


@settings(max_examples=10)
@given(seeds, st.sampled_from([3, 10]), st.floats(0.5, 20))
def test_imitation_is_the_librarys_divergence(seed, classes, temperature):
    values = arguments(seed, 4, classes)
    student, teacher = values["student_logits"], values["teacher_logits"]
    logs = [(x / temperature).log_softmax(-1) for x in (student, teacher)]
    theirs = temperature**2 * kl_div(*logs, log_target=True, reduction="none").sum(-1)
    torch.testing.assert_close(imitation_loss(student, teacher, temperature), theirs)


def test_equal_outputs_have_no_imitation_loss():
    values = arguments(0, 5, 7)
    same = values | {"teacher_logits": values["student_logits"] + 3.0}
    loss, gradient, _ = evaluate("kl-dist", same)
    assert 0 <= loss < 1e-30
    assert float(gradient.abs().max()) < 1e-16


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_mixture_of_losses_is_the_loss_of_the_mixture_up_to_entropy(share):
    """XE-KL is cross-entropy to the mixed target; only a constant of the teacher differs."""
    values = arguments(1, 6, 8)
    at = split(values)
    target = share * at["t"] + (1 - share) * at["e"]
    leaf = values["student_logits"].clone().requires_grad_()
    mixed = cross_entropy(leaf, target)
    (auto,) = torch.autograd.grad(mixed, leaf)
    loss, gradient, _ = evaluate("xe-kl", values, kl_weight=share)
    torch.testing.assert_close(gradient, auto, rtol=1e-10, atol=1e-15)
    entropy = -(at["t"] * at["t"].log()).sum(-1).mean()
    torch.testing.assert_close(loss + share * entropy, mixed.detach())


def test_double_softmax_is_what_the_released_code_does():
    values = arguments(2, 6, 100)
    leaf = values["student_logits"].clone().requires_grad_()
    theirs = cross_entropy(leaf.softmax(-1), values["labels"])
    (auto,) = torch.autograd.grad(theirs, leaf)
    loss, gradient, _ = evaluate("xe-kl", values, kl_weight=0.0, double_softmax=True)
    torch.testing.assert_close(loss, theirs.detach())
    torch.testing.assert_close(gradient, auto, rtol=1e-9, atol=1e-15)
    at = split(values)
    s = at["p"].softmax(-1)
    c = s - at["e"]
    expected = at["p"] * (c - (at["p"] * c).sum(-1, keepdim=True)) / 6
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-15)


def test_double_softmax_has_a_floor():
    values = arguments(0, 1, 100) | {"labels": torch.tensor([0])}
    values["student_logits"] = torch.zeros(1, 100, dtype=torch.float64)
    values["student_logits"][0, 0] = 1e3
    loss = objective_loss("xe-kl", **values, kl_weight=0.0, double_softmax=True)
    assert math.isclose(float(loss), math.log(math.e + 99) - 1, rel_tol=1e-12)


def test_weights_scale_their_terms():
    values = arguments(3, 4, 5)
    imitation = objective_loss("kl-dist", **values)
    label = objective_loss("ce", **values)
    both = objective_loss("kl-dist", **values, ce_weight=0.7)
    torch.testing.assert_close(both, imitation + 0.7 * label)
    kd = objective_loss("kd", **values, temperature=1.0, ce_weight=0.2, kd_weight=3.0)
    torch.testing.assert_close(kd, 0.2 * label + 3 * imitation)
