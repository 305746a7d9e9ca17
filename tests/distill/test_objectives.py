"""All methods alike: closed-form gradients, means, precision, what they need and refuse."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.distill import OBJECTIVES, combine_gradients, objective_loss, objective_losses
from tests.distill.cases import NAMES, SUMS, SURROGATES, arguments, closed_form, evaluate, rows
from tests.tpkd.hostile import draw_states
from tests.tpkd.states import DEVICES

CONTRACT = [
    "ce",
    "kd",
    "kl-dist",
    "dkd",
    "dp-u",
    "dp-s",
    "xe-kl",
    "dhkd",
    "dto-kd",
    "tpkd",
    "tpkd-no-label",
    "tpkd-full-kl",
    "tpkd-no-projection",
    "compensation-only",
]
TWO_LOSSES = ["dhkd", "dto-kd"]
DRAWS = 20  # hostile calls of each method
seeds = st.integers(0, 2**32)


def test_contract_and_specifications():
    assert isinstance(OBJECTIVES, dict)
    assert CONTRACT == NAMES
    for name, spec in OBJECTIVES.items():
        assert spec.needs_teacher == (name != "ce")
        assert spec.needs_frozen == (name in ("dp-u", "dp-s"))
        assert spec.needs_auxiliary == (name == "dhkd")
        assert spec.backward_passes == (2 if name in TWO_LOSSES else 1)
        assert spec.vision_weight_decay == (1e-4 if name in ("kl-dist", "xe-kl") else 1e-3)
        assert set(spec.text_options) <= set(spec.options)
        assert spec.source
        assert spec.losses.__doc__
        with pytest.raises(dataclasses.FrozenInstanceError):
            spec.title = "other"


def test_defaults_are_those_of_the_protocol():
    defaults = {name: spec.options for name, spec in OBJECTIVES.items()}
    assert defaults["kd"] == {"temperature": 4.0, "ce_weight": 1.0, "kd_weight": 1.0}
    assert defaults["kl-dist"] == {"ce_weight": 0.0}
    assert defaults["xe-kl"] == {"kl_weight": 0.5, "double_softmax": False}
    dkd = defaults["dkd"]
    assert [dkd[key] for key in ("temperature", "alpha", "beta", "ce_weight")] == [4, 1, 8, 1]
    assert dkd["warmup_epochs"] == 20
    assert OBJECTIVES["dkd"].text_options["warmup_epochs"] == 2
    dhkd = {"temperature": 2.0, "gamma": 1.0, "alpha": 1.0, "variant": "norm", "align": True}
    assert defaults["dhkd"] == dhkd
    dto = {"clip": True, "scale": "inverse-loss", "balance": "exact", "floor": 1e-8}
    assert defaults["dto-kd"] == dto
    assert all(defaults[name] == {"weight": 0.5} for name in SURROGATES)
    defaults["kd"]["temperature"] = 9.0
    assert OBJECTIVES["kd"].options["temperature"] == 4.0


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("classes", [3, 4, 40])
def test_gradient_is_the_closed_form(name, classes):
    for seed, scale in enumerate((0.3, 3.0, 8.0)):
        values = arguments(seed, 7, classes, scale)
        _, gradient, _ = evaluate(name, values)
        expected = closed_form(name, values) / 7
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", SUMS)
def test_teacher_with_zero_probabilities(name):
    values = arguments(3, 9, 6, 2.0, zeros=0.4)
    if name == "dhkd":
        with pytest.raises(ValueError, match="teacher_logits must be finite"):
            evaluate(name, values)
        options = {"variant": "plain"}
    else:
        options = {}
    loss, gradient, _ = evaluate(name, values, **options)
    assert math.isfinite(loss)
    torch.testing.assert_close(gradient, closed_form(name, values) / 9, rtol=1e-9, atol=1e-14)


def test_a_teacher_certain_of_the_label():
    """What divides by its probability of the other classes is an error, all else has a value."""
    teacher = torch.tensor([0.0, -torch.inf, -torch.inf])
    values = arguments(0, 1, 3) | {"teacher_logits": teacher, "labels": torch.tensor([0])}
    for name in NAMES:
        if name == "dhkd" or OBJECTIVES[name].needs_conditional:
            with pytest.raises(ValueError, match="teacher_logits"):
                objective_loss(name, **values)
        else:
            assert math.isfinite(objective_loss(name, **values))
    label = objective_loss("ce", **values)
    torch.testing.assert_close(objective_loss("kl-dist", **values), label)


@pytest.mark.parametrize("name", SUMS)
def test_two_microbatches_make_the_batch(name):
    values = arguments(1, 8, 5)
    whole = evaluate(name, values)
    parts = [evaluate(name, rows(values, start, start + 4)) for start in (0, 4)]
    torch.testing.assert_close(sum(part[0] for part in parts) / 2, whole[0])
    halves = torch.cat([part[1] for part in parts]) / 2
    torch.testing.assert_close(halves, whole[1], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", TWO_LOSSES)
def test_accumulated_gradients_combine_as_those_of_the_batch(name):
    """In the weights of a linear student, with losses and gradients of two halves."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    weights = torch.randn(10, 4, generator=generator, dtype=torch.float64)  # both heads
    values = arguments(2, 8, 5)

    def gradients(start, stop):
        leaf = weights.clone().requires_grad_()
        logits = inputs[start:stop] @ leaf.T
        part = rows(values, start, stop)
        part |= {"student_logits": logits[:, :5], "auxiliary_logits": logits[:, 5:]}
        losses = objective_losses(name, **part)
        found = [torch.autograd.grad(x, leaf, retain_graph=True)[0].flatten() for x in losses]
        return torch.stack(found), torch.stack(losses).detach()

    whole = combine_gradients(name, *map(list, gradients(0, 8)))
    first, second = gradients(0, 4), gradients(4, 8)
    halves = [list((a + b) / 2) for a, b in zip(first, second, strict=True)]
    torch.testing.assert_close(combine_gradients(name, *halves), whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in TWO_LOSSES])
def test_one_loss_needs_no_combination(name):
    values = arguments(4, 3, 4)
    (loss,) = objective_losses(name, **values)
    assert torch.equal(loss, objective_loss(name, **values))
    gradient = torch.tensor([1.0, 2.0])
    assert combine_gradients(name, (gradient,), (loss,)) is gradient


@pytest.mark.parametrize("name", NAMES)
def test_gradients_sum_to_zero_and_reach_the_student_only(name):
    values = arguments(6, 5, 7)
    for key in ("teacher_logits", "frozen_logits"):
        values[key].requires_grad_()
    _, gradient, auxiliary = evaluate(name, values)
    torch.testing.assert_close(gradient.sum(-1), torch.zeros(5).double(), rtol=0, atol=1e-14)
    assert (auxiliary is not None) == (name == "dhkd")
    loss = objective_loss(name, **values)
    assert not loss.requires_grad


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("size", "dtype"), [(100.0, torch.float32), (1e4, torch.float16), (1e4, torch.bfloat16)]
)
def test_extreme_logits(name, size, dtype):
    signs = arguments(8, 16, 5)
    values = {k: (v.sign() * size).to(dtype) for k, v in signs.items() if k != "labels"}
    values["labels"] = signs["labels"]
    loss, gradient, auxiliary = evaluate(name, values)
    assert loss.dtype == torch.float32
    assert math.isfinite(loss)
    assert gradient.dtype == dtype
    assert bool(gradient.isfinite().all())
    assert auxiliary is None or bool(auxiliary.isfinite().all())
    exact = {k: v if k == "labels" else v.double() for k, v in values.items()}
    torch.testing.assert_close(loss.double(), evaluate(name, exact)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_is_near_double(name):
    values = arguments(9, 6, 30)
    narrow = {k: v if k == "labels" else v.float() for k, v in values.items()}
    exact = {k: v if k == "labels" else v.double() for k, v in narrow.items()}
    for ours, theirs in zip(evaluate(name, narrow), evaluate(name, exact), strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_changes_nothing(name):
    values = arguments(10, 4, 6)
    values = {k: v if k == "labels" else v.float() for k, v in values.items()}
    plain = evaluate(name, values)
    with torch.autocast("cpu", torch.bfloat16):
        cast = evaluate(name, values)
    for ours, theirs in zip(cast, plain, strict=True):
        assert ours is theirs is None or torch.equal(ours, theirs)


@pytest.mark.parametrize("name", NAMES)
def test_leading_dimensions_and_integers(name):
    values = arguments(11, 6, 4)
    shaped = {k: v.reshape(2, 3, *v.shape[1:]) for k, v in values.items()}
    for ours, theirs in zip(evaluate(name, shaped), evaluate(name, values), strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours.reshape(theirs.shape), theirs)
    whole = {k: v.round().to(torch.int64) for k, v in values.items()}
    rounded = {k: v if k == "labels" else v.float() for k, v in whole.items()}
    assert torch.equal(objective_loss(name, **whole), objective_loss(name, **rounded))


@pytest.mark.parametrize("name", SUMS)
def test_one_output_for_many_labels(name):
    """Broadcasting: the gradient is that of the sum over examples."""
    values = arguments(12, 5, 4)
    single = values | {"student_logits": values["student_logits"][0]}
    spread = values | {"student_logits": values["student_logits"][:1].expand(5, 4)}
    loss, gradient, _ = evaluate(name, single)
    expected = evaluate(name, spread)
    torch.testing.assert_close(loss, expected[0])
    torch.testing.assert_close(gradient, expected[1].sum(0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_devices_agree(name, device):
    values = arguments(13, 5, 12)
    moved = {k: v.to(device) for k, v in values.items()}
    for ours, theirs in zip(evaluate(name, moved), evaluate(name, values), strict=True):
        if theirs is not None:
            assert ours.device.type == device
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_missing_logits_and_unknown_options(name):
    spec = OBJECTIVES[name]
    values = arguments(14, 3, 4)
    needs = {
        "teacher_logits": spec.needs_teacher,
        "frozen_logits": spec.needs_frozen,
        "auxiliary_logits": spec.needs_auxiliary,
    }
    for argument, needed in needs.items():
        less = values | {argument: None}
        if needed:
            with pytest.raises(ValueError, match=f"{argument} must be given for '{name}'"):
                objective_loss(name, **less)
        else:
            assert objective_loss(name, **less).isfinite()
    allowed = ", ".join(spec.options) or "it has none"
    for call in (objective_loss, objective_losses):
        with pytest.raises(ValueError, match=rf"{name}.*{allowed}.*'tau'"):
            call(name, **values, tau=1.0)
    gradients = [torch.ones(3)] * spec.backward_passes
    with pytest.raises(ValueError, match="'tau'"):
        combine_gradients(name, gradients, gradients, tau=1.0)
    for wrong in (gradients * 2, gradients[0], None):
        with pytest.raises(ValueError, match="gradients must hold"):
            combine_gradients(name, wrong, gradients)


@pytest.mark.parametrize("name", ["KD", "", None, 3, ["kd"]])
def test_unknown_method(name):
    with pytest.raises(ValueError, match="name must be one of ce, kd, kl-dist"):
        objective_loss(name, **arguments(0, 2, 3))


@pytest.mark.parametrize("step", [-1, 0.5, True, "1", torch.tensor(1)])
def test_wrong_step(step):
    with pytest.raises(ValueError, match="step must be None or an integer >= 0"):
        objective_loss("dkd", **arguments(0, 2, 3), step=step)


@pytest.mark.parametrize(
    ("name", "option"), [(n, o) for n, spec in OBJECTIVES.items() for o in spec.options]
)
def test_wrong_values_of_options(name, option):
    for wrong in (math.nan, math.inf, -1.0, "half", None, [1.0], torch.zeros(2)):
        with pytest.raises(ValueError, match=option):
            objective_loss(name, **arguments(0, 2, 3), **{option: wrong})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("argument", ["frozen_logits", "auxiliary_logits"])
def test_further_logits_are_checked(name, argument):
    values = arguments(15, 3, 4)
    good = values[argument]
    bad = [good[:, :3], good[:2], good.masked_fill(good > 0, math.nan), good.bool(), "logits"]
    for wrong in [*bad, good.masked_fill(good > 0, -math.inf)]:
        with pytest.raises(ValueError, match=argument):
            objective_loss(name, **values | {argument: wrong})


@pytest.mark.parametrize("name", NAMES)
def test_hostile_arguments(name):
    """The right value, or an error that names the culprit; the draw knows which."""
    for seed in range(DRAWS):
        draw = draw_states(seed, ("student", "teacher", "labels"), ("teacher",))
        student, teacher, labels = draw.values.values()
        classes = [x.shape[-1] for x in (student, teacher) if torch.is_tensor(x) and x.ndim]
        further = torch.zeros(max([3, *classes]))
        call = {"frozen_logits": further, "auxiliary_logits": further}
        if name == "ce" and teacher is None:
            continue  # it needs none
        if draw.fault:
            with pytest.raises(ValueError) as caught:  # noqa: PT011
                objective_loss(name, student, teacher, labels, **call)
            assert any(part in str(caught.value) for part in draw.fault), str(caught.value)
            continue
        empty = 0 in torch.broadcast_shapes(student.shape[:-1], teacher.shape[:-1], labels.shape)
        infinite = name == "dhkd" and bool((teacher == -math.inf).any())
        if empty or infinite:
            with pytest.raises(ValueError, match="teacher_logits" if infinite else "student_logit"):
                objective_loss(name, student, teacher, labels, **call)
            continue
        leaf = student.clone().requires_grad_(student.is_floating_point())
        loss = objective_loss(name, leaf, teacher, labels, **call)
        wide = torch.float64 in (student.dtype, teacher.dtype)
        assert loss.dtype == (torch.float64 if wide else torch.float32)
        assert loss.isfinite()
        if leaf.requires_grad:
            loss.backward()
            assert bool(leaf.grad.isfinite().all())


@settings(max_examples=14)
@given(seeds, st.sampled_from(NAMES), st.floats(0.01, 30))
def test_common_shifts_of_logits_change_no_gradient(seed, name, scale):
    """The gradient depends on probabilities alone, but for DHKD's distance of raw logits."""
    values = arguments(seed, 4, 5, scale)
    shifted = values | {
        key: values[key] + 1.5 for key in ("student_logits", "teacher_logits", "frozen_logits")
    }
    ours, theirs = evaluate(name, values), evaluate(name, shifted)
    bound = 1e-9 * max(1.0, float(ours[1].abs().max()))
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-6, atol=bound)
