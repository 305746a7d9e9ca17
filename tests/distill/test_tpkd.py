"""The surrogates of TPKD and its controls: their gradients are the directions of the paper."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.distill import objective_loss
from lib.distill.tpkd import safe_full_kl_direction, surrogate
from lib.tpkd import conditional_kl, directions, is_blocked, surrogate_loss, update_direction
from tests.distill.cases import SURROGATES, arguments, evaluate
from tests.tpkd.states import random_states

seeds = st.integers(0, 2**32)


def triple(values):
    return [values[key] for key in ("student_logits", "teacher_logits", "labels")]


@settings(max_examples=15)
@given(
    seeds,
    st.sampled_from([3, 10]),
    st.sampled_from(SURROGATES),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.sampled_from([0.0, 0.4]),
)
def test_gradient_is_the_direction_over_n(seed, classes, name, weight, zeros):
    values = arguments(seed, 5, classes, zeros=zeros)
    loss, gradient, _ = evaluate(name, values, weight=weight)
    direction = update_direction(name, *triple(values), weight)
    torch.testing.assert_close(gradient, direction / 5, rtol=1e-11, atol=1e-16)
    value = (direction * values["student_logits"]).sum() / 5
    torch.testing.assert_close(loss, value, rtol=1e-9, atol=1e-12)


def test_tpkd_is_the_papers_surrogate():
    values = arguments(1, 6, 8)
    ours, papers = objective_loss("tpkd", **values), surrogate_loss(*triple(values))
    torch.testing.assert_close(ours, papers)
    other = objective_loss("tpkd", **values, weight=0.3)
    torch.testing.assert_close(other, surrogate_loss(*triple(values), 0.3))


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_without_projection_is_an_ordinary_loss(weight):
    values = arguments(2, 7, 9)
    student, teacher, labels = triple(values)
    leaf = student.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(leaf, labels)
    loss = loss + weight * conditional_kl(leaf, teacher, labels).mean()
    (auto,) = torch.autograd.grad(loss, leaf)
    _, gradient, _ = evaluate("tpkd-no-projection", values, weight=weight)
    torch.testing.assert_close(gradient, auto, rtol=1e-9, atol=1e-15)


@settings(max_examples=10)
@given(seeds, st.sampled_from([3, 10]), st.floats(0.1, 10))
def test_blocked_states_leave_ce_to_safe_full_imitation(seed, classes, sure):
    """Blocked: the student gives every other class at most what the teacher does."""
    student, teacher, labels = random_states(seed, 6, classes)
    log_t = teacher.log_softmax(-1)
    generator = torch.Generator().manual_seed(seed)
    less = sure * torch.rand(log_t.shape, generator=generator, dtype=torch.float64)
    p = (log_t - less).exp()  # smaller at the other classes, the rest goes to the label
    rest = p.scatter(-1, labels.unsqueeze(-1), 0.0)
    p = rest.scatter(-1, labels.unsqueeze(-1), 1 - rest.sum(-1, keepdim=True))
    student = p.log()
    assert is_blocked(student, teacher, labels).all()
    values = {
        "student_logits": student,
        "teacher_logits": teacher,
        "labels": labels,
        "auxiliary_logits": student,
    }
    ce, full = evaluate("ce", values)[1], evaluate("tpkd-full-kl", values, weight=1.0)[1]
    torch.testing.assert_close(full, ce, rtol=1e-9, atol=1e-14)
    tpkd = evaluate("tpkd", values)[1]
    assert float((tpkd - ce).abs().max()) > 1e-6


def test_states_that_are_not_blocked_do_move():
    values = arguments(3, 20, 5)
    free = ~is_blocked(*triple(values))
    assert free.any()
    moved = (evaluate("tpkd-full-kl", values)[1] - evaluate("ce", values)[1]).abs().amax(-1)
    assert bool((moved[free] > 1e-8).all())


def test_a_student_with_the_teachers_conditionals_feels_ce_alone():
    values = arguments(4, 5, 6)
    index = values["labels"].unsqueeze(-1)
    own = values["student_logits"].gather(-1, index)
    values["teacher_logits"] = values["student_logits"].scatter(-1, index, own - 2.0)
    ce = evaluate("ce", values)[1]
    for name in ("tpkd", "tpkd-no-projection", "compensation-only"):
        torch.testing.assert_close(evaluate(name, values)[1], ce, rtol=1e-12, atol=1e-16)
    gradient = evaluate("tpkd-no-label", values)[1]
    assert float(gradient.abs().max()) < 1e-15


@pytest.mark.parametrize("name", ["tpkd", "tpkd-full-kl", "compensation-only"])
def test_no_margin_grows_less_than_under_ce(name):
    values = arguments(5, 40, 7)
    index = values["labels"].unsqueeze(-1)
    extra = evaluate(name, values)[1] - evaluate("ce", values)[1]
    assert bool((extra >= extra.gather(-1, index) - 1e-15).all())


def test_safe_full_direction_in_single_precision():
    student, teacher, labels = random_states(6, 8, 5)
    narrow = safe_full_kl_direction(student.float(), teacher.float(), labels, 0.5)
    assert narrow.dtype == torch.float32
    wide = safe_full_kl_direction(student.float().double(), teacher.float().double(), labels, 0.5)
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-5, atol=1e-7)


def test_the_paper_direction_contains_the_label_gradient():
    values = arguments(7, 3, 4)
    found = directions(*triple(values))
    with_label = evaluate("tpkd", values)[1] - evaluate("tpkd-no-label", values)[1]
    torch.testing.assert_close(with_label, found.label / 3, rtol=1e-10, atol=1e-15)


def test_a_surrogate_has_no_gradient_in_its_direction():
    student, direction = torch.ones(2, 2, 3, requires_grad=True).unbind()
    loss = surrogate(student, 2 * direction).sum()
    in_student, in_direction = torch.autograd.grad(loss, (student, direction), allow_unused=True)
    assert torch.equal(in_student, torch.full((2, 3), 2.0))
    assert in_direction is None
