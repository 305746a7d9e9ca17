"""The update directions against autograd, 60-digit decimals and the identities of Section 5."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from lib.tpkd import (
    conditional_component,
    conditional_kl,
    confidence_direction,
    directions,
    log_odds,
    margins,
    project_onto_safe_cone,
    surrogate_loss,
    weighted_label_loss,
)
from tests.tpkd import reference
from tests.tpkd.states import DEVICES, per_example, random_states

SIZES = [3, 4, 10, 100, 1000]
cases = st.tuples(
    st.integers(0, 2**32), st.just(6), st.sampled_from(SIZES[:4]), st.floats(0.01, 30)
)
FIELDS = ("label", "conditional", "corrected", "update", "compensation", "clipped_teacher")


def spread(x, labels):
    """Entries other than the label's, as a difference to the label's."""
    return x - x.gather(-1, labels.unsqueeze(-1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", [3, 4, 10, 40])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_every_field_matches_decimals(classes, zeros, device):
    for seed, scale in enumerate((0.1, 3.0, 100.0)):
        state = random_states(seed, 6, classes, scale, zeros)
        found = directions(*(x.to(device) for x in state), weight=0.7)
        for name in FIELDS:
            exact = per_example(lambda *row, n=name: reference.directions(*row, 0.7)[n], *state)
            ours = getattr(found, name).cpu()
            torch.testing.assert_close(ours, exact, rtol=1e-13, atol=2e-15)


@pytest.mark.parametrize("classes", SIZES)
@pytest.mark.parametrize("seed", [0, 1])
def test_label_and_conditional_directions_are_gradients(seed, classes):
    student, teacher, labels = random_states(seed, 5, classes)
    found = directions(student, teacher, labels)
    z = student.clone().requires_grad_()
    (h,) = torch.autograd.grad(cross_entropy(z, labels, reduction="sum"), z)
    torch.testing.assert_close(found.label, h, rtol=1e-10, atol=1e-15)
    (u,) = torch.autograd.grad(conditional_kl(z, teacher, labels).sum(), z)
    torch.testing.assert_close(found.conditional, u, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("classes", SIZES)
def test_local_loss_of_the_clipped_teacher(classes):
    """Eq. B.6: (1 - l) KL(q~ / (1 - l) || r) - l logit rho, with q~ and l frozen."""
    student, teacher, labels = random_states(3, 5, classes)
    found = directions(student, teacher, labels)
    mass = found.clipped_teacher.sum(-1)
    torch.testing.assert_close(mass, 1 - found.compensation)
    target = found.clipped_teacher.log()
    z = student.clone().requires_grad_()
    local = mass * conditional_kl(z, target, labels) - found.compensation * log_odds(z, labels)
    (slope,) = torch.autograd.grad(local.sum(), z)
    torch.testing.assert_close(found.corrected, slope, rtol=1e-9, atol=1e-15)


@given(case=cases)
def test_fields_fit_together(case):
    student, teacher, labels = random_states(*case)
    found = directions(student, teacher, labels)
    d, u, taken = found.corrected, found.conditional, found.compensation
    assert bool((u.gather(-1, labels.unsqueeze(-1)) == 0).all())
    torch.testing.assert_close(found.update, found.label + d / 2)
    assert bool(((taken >= 0) & (taken <= 0.5)).all())  # below 1/2 before rounding
    for zero_sum in (found.label, u, d):
        assert float(zero_sum.sum(-1).abs().max()) < 1e-14 * case[2]
    excess = (-u - taken.unsqueeze(-1)).clamp(min=0).scatter(-1, labels.unsqueeze(-1), 0.0)
    torch.testing.assert_close(excess.sum(-1), taken, rtol=0, atol=1e-14)
    torch.testing.assert_close(u - d, -excess.scatter(-1, labels[:, None], -taken[:, None]))
    extra = (u + taken.unsqueeze(-1)).clamp(min=0).scatter(-1, labels.unsqueeze(-1), 0.0)
    torch.testing.assert_close(spread(d, labels), extra, rtol=0, atol=1e-14)


@given(case=cases, step=st.floats(0, 100), weight=st.floats(0, 5))
def test_the_label_step_is_never_undercut(case, step, weight):
    """Eq. 7 and its form for every weighted label loss."""
    student, teacher, labels = random_states(*case)
    found = directions(student, teacher, labels, weight)
    ours, label = student - step * found.update, student - step * found.label
    allowed = 1e-14 * (1 + step) * (1 + weight) * (1 + student.abs().max())
    assert bool((margins(ours, labels) >= margins(label, labels) - allowed).all())
    assert bool((margins(label, labels) >= margins(student, labels) - allowed).all())
    competitors = torch.rand(student.shape, generator=torch.Generator().manual_seed(case[0]))
    for chosen in (None, competitors.double()):
        losses = [weighted_label_loss(z, labels, chosen) for z in (ours, label, student)]
        assert bool((losses[0] <= losses[1] + allowed).all())
        assert bool((losses[1] <= losses[2] + allowed).all())
    gained = margins(ours, labels) - margins(label, labels)
    expected = step * weight * spread(found.corrected, labels)
    torch.testing.assert_close(gained, expected, rtol=1e-9, atol=float(10 * allowed))


@given(case=cases, weight=st.floats(0, 5))
def test_update_is_the_nearest_that_keeps_the_label_step(case, weight):
    """v - h is the projection of (h + w u) - h: no other way of correcting is nearer."""
    student, teacher, labels = random_states(*case)
    found = directions(student, teacher, labels, weight)
    wanted = found.label + weight * found.conditional
    nearest = found.label + project_onto_safe_cone(wanted - found.label, labels)
    torch.testing.assert_close(found.update, nearest, rtol=1e-12, atol=1e-14 * (1 + weight))


@given(case=cases)
def test_conditional_component_and_confidence_direction(case):
    student, teacher, labels = random_states(*case)
    found = directions(student, teacher, labels)
    push = confidence_direction(labels, case[2])
    component = conditional_component(found.corrected, labels)
    rebuilt = component + found.compensation.unsqueeze(-1) * push
    torch.testing.assert_close(rebuilt, found.corrected, rtol=0, atol=1e-15)
    assert bool((component.gather(-1, labels.unsqueeze(-1)) == 0).all())
    assert float(component.sum(-1).abs().max()) < 1e-13
    assert float((component * push).sum(-1).abs().max()) < 1e-13
    torch.testing.assert_close(
        push.square().sum(-1), torch.full((6,), case[2] / (case[2] - 1)).double()
    )
    pushed = student - 0.3 * push
    torch.testing.assert_close(
        conditional_kl(pushed, teacher, labels), conditional_kl(student, teacher, labels)
    )


def test_four_classes_of_figure_3():
    """Appendix B.5, to all printed digits."""
    r = torch.tensor([1.0, 0.20, 0.30, 0.50], dtype=torch.float64)
    q = torch.tensor([1.0, 0.30, 0.32, 0.38], dtype=torch.float64)
    label = torch.tensor(0)
    found = directions(r.log(), q.log(), label)
    assert found.conditional.tolist() == pytest.approx([0, -0.1, -0.02, 0.12], abs=1e-15)
    assert found.corrected.tolist() == pytest.approx([-0.05, -0.05, -0.02, 0.12], abs=1e-15)
    assert float(found.compensation) == pytest.approx(0.05, abs=1e-15)
    component = conditional_component(found.corrected, label)
    assert component.tolist() == pytest.approx([0, -1 / 15, -11 / 300, 31 / 300], abs=1e-15)
    cosine = torch.cosine_similarity(component, found.conditional, dim=0)
    assert math.degrees(math.acos(float(cosine))) == pytest.approx(11.54, abs=0.005)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", [3, 10, 1000])
@pytest.mark.parametrize("weight", [0.5, 0.0, 2.0])
def test_surrogate_gradient_is_the_mean_update(classes, weight, device):
    student, teacher, labels = (x.to(device) for x in random_states(1, 8, classes))
    z = student.reshape(2, 4, classes).clone().requires_grad_()
    teacher = teacher.reshape(2, 4, classes).clone().requires_grad_()
    labels = labels.reshape(2, 4)
    loss = surrogate_loss(z, teacher, labels, weight)
    loss.backward()
    update = directions(student.reshape(z.shape), teacher.detach(), labels, weight).update
    assert loss.shape == ()
    assert teacher.grad is None
    torch.testing.assert_close(z.grad, update / 8, rtol=1e-13, atol=0.0)
    torch.testing.assert_close(loss.detach(), (update * student.reshape(z.shape)).sum() / 8)


def test_surrogate_with_more_weights_than_examples():
    """Three weights for each of four examples make twelve."""
    student, teacher, labels = random_states(2, 4, 5)
    weight = torch.tensor([[0.0], [0.5], [2.0]])
    z = student.clone().requires_grad_()
    surrogate_loss(z, teacher, labels, weight).backward()
    update = directions(student, teacher, labels, weight).update
    assert update.shape == (3, 4, 5)
    torch.testing.assert_close(z.grad, update.sum(0) / 12)


def test_surrogate_counts_broadcast_examples():
    """One student against eight teachers: the gradients add up."""
    student, teacher, labels = random_states(2, 8, 5)
    z = student[0].clone().requires_grad_()
    surrogate_loss(z, teacher, labels).backward()
    update = directions(student[0], teacher, labels).update
    torch.testing.assert_close(z.grad, update.mean(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_dtypes(dtype):
    student, teacher, labels = (x for x in random_states(4, 20, 50))
    student, teacher = student.to(dtype), teacher.to(dtype)
    found = directions(student, teacher, labels)
    exact = directions(student.double(), teacher.double(), labels)
    for name in FIELDS:
        ours = getattr(found, name)
        assert ours.dtype == dtype
        error = (ours.double() - getattr(exact, name)).abs()
        assert bool((error <= 2 * torch.finfo(dtype).eps).all())
    z = student.clone().requires_grad_()
    surrogate_loss(z, teacher, labels).backward()
    assert z.grad.dtype == dtype
    torch.testing.assert_close(
        z.grad, found.update / 20, rtol=2 * torch.finfo(dtype).eps, atol=1e-7
    )
    mixed = directions(student, teacher.double(), labels)
    assert mixed.update.dtype == torch.float64
    assert directions(student.long(), teacher.long(), labels).update.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_confidences_that_round_to_one(dtype):
    """The label's logit 60 or 1e4 above: u does not notice, h stays accurate as long as it can."""
    base = torch.tensor([0.0, 1.0, 2.0, 0.5], dtype=dtype)
    teacher, label = torch.tensor([0.0, 2.0, 1.0, 0.5], dtype=dtype), torch.tensor(0)
    near = directions(base, teacher, label)
    for lead in (60.0, 1e4, -1e4):
        z = base.clone()
        z[0] = lead
        found = directions(z, teacher, label)
        assert torch.equal(found.conditional, near.conditional)
        assert torch.equal(found.corrected, near.corrected)
    z = base.clone()
    z[0] = 60.0
    doubt = float(base[1:].double().exp().sum()) * math.exp(-60)
    assert float(-directions(z, teacher, label).label[0]) == pytest.approx(doubt, rel=1e-5, abs=0.0)
    same = directions(1e4 * base, 1e4 * base + 1e3, label)
    assert bool((same.corrected == 0).all())


def test_teacher_may_have_zeros():
    student, teacher = torch.zeros(4), torch.tensor([0.0, -math.inf, -math.inf, 5.0])
    found = directions(student, teacher, torch.tensor(0))
    assert found.conditional.tolist() == pytest.approx([0, 1 / 3, 1 / 3, -2 / 3])
    assert found.corrected.tolist() == pytest.approx([-1 / 3, 1 / 3, 1 / 3, -1 / 3])
    certain = directions(student, torch.tensor([-math.inf, 1.0, 2.0, 3.0]), torch.tensor(0))
    assert bool(torch.isfinite(certain.update).all())


def test_directions_pass_derivatives():
    student, teacher, labels = random_states(0, 3, 5, 1.0)
    student.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: directions(z, teacher, labels).update, student)


def test_batches_shapes_and_weights():
    student, teacher, labels = random_states(0, 6, 5)
    found = directions(
        student.reshape(2, 3, 5), teacher[0], labels[0], torch.tensor([0.1, 0.2, 0.3])
    )
    assert found.update.shape == (2, 3, 5)
    assert found.compensation.shape == (2, 3)
    single = directions(student[1], teacher[0], labels[0], 0.2)
    torch.testing.assert_close(found.update[0, 1], single.update)
    empty = directions(student[:0], teacher[:0], labels[:0])
    assert empty.update.shape == (0, 5)
    assert empty.compensation.shape == (0,)
    with pytest.raises(ValueError, match="student_logits must hold at least one example"):
        surrogate_loss(student[:0], teacher[:0], labels[:0])


three, zero = torch.zeros(3), torch.tensor(0)
NAN, INFINITE = torch.tensor([0, math.nan, 1]), torch.tensor([0, math.inf, 1])
BAD = [
    ((torch.zeros(2), torch.zeros(2), zero), "student_logits"),
    ((three, torch.zeros(4), zero), "teacher_logits"),
    ((NAN, three, zero), "student_logits"),
    ((three, NAN, zero), "teacher_logits"),
    ((INFINITE, three, zero), "student_logits"),
    ((-INFINITE, three, zero), "student_logits"),
    ((three, INFINITE, zero), "teacher_logits"),
    ((three, torch.tensor([1.0, -math.inf, -math.inf]), zero), "teacher_logits"),
    ((three, three, torch.tensor(3)), "labels"),
    ((three, three, torch.tensor(0.5)), "labels"),
    ((torch.zeros(2, 3), torch.zeros(4, 3), zero), "broadcast"),
    ((three, three, zero, -0.1), "weight"),
    ((three, three, zero, math.nan), "weight"),
    ((three, three, zero, "half"), "weight"),
    ((torch.zeros(2, 3), three, zero, torch.ones(3)), "weight"),
]


@pytest.mark.parametrize("function", [directions, surrogate_loss])
@pytest.mark.parametrize(("arguments", "named"), BAD)
def test_bad_input_is_named(function, arguments, named):
    with pytest.raises(ValueError, match=named):
        function(*arguments)


@pytest.mark.parametrize("classes", [2, 3.0, True, "many"])
def test_confidence_direction_needs_three_classes(classes):
    with pytest.raises(ValueError, match="classes"):
        confidence_direction(torch.tensor(0), classes)
