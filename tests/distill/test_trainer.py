"""Steps against plain loops, against themselves in other parts, and their states."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from lib.distill.methods import OBJECTIVES
from lib.distill.order import batch_at
from lib.distill.trainer import Trainer
from lib.distill.training import train_student
from tests.distill.cases import closed_form
from tests.distill.small_runs import (
    TWO_PASSES,
    PlainLoop,
    network,
    settings,
    task,
    trained,
    weights,
)

LINEAR = [name for name in OBJECTIVES if name not in TWO_PASSES]  # in the examples


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("method", ["ce", "kd", "kl-dist"])
def test_library_losses_in_a_plain_loop(method, momentum, seed):
    examples, teacher = task(seed)
    values = settings(method, 30, momentum=momentum)

    def backward(logits, target, labels, iteration):
        heat = {"ce": 1.0, "kd": 4.0, "kl-dist": 1.0}[method]
        logs, aims = (logits / heat).log_softmax(-1), (target / heat).softmax(-1)
        loss = heat**2 * functional.kl_div(logs, aims, reduction="batchmean")
        label = functional.cross_entropy(logits, labels)
        {"ce": label, "kd": label + loss, "kl-dist": loss}[method].backward()

    there = PlainLoop(network(), examples, teacher, values).run(backward)
    here, _ = trained(method, network(), examples, teacher, iterations=30, momentum=momentum)
    torch.testing.assert_close(here, there, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", LINEAR)
def test_closed_forms_in_a_plain_loop(method):
    """Backward from the prescribed gradient in the logits, with no loss at all."""
    examples, teacher = task(3)
    options = {"warmup_epochs": 0.0} if method == "dkd" else {}
    model, start = network(), network()
    values = settings(method, 15, options=options)

    def backward(logits, target, labels, iteration):
        index = batch_at(60, 1, 20, iteration, 42).index
        frozen = start(examples.values[0, index]).detach()
        outputs = {"student_logits": logits.detach(), "teacher_logits": target, "labels": labels}
        gradient = closed_form(method, outputs | {"frozen_logits": frozen})
        logits.backward(gradient / len(labels))

    there = PlainLoop(model, examples, teacher, values).run(backward)
    here, _ = trained(method, network(), examples, teacher, iterations=15, options=options)
    torch.testing.assert_close(here, there, rtol=1e-11, atol=1e-11)


def test_without_projection_is_an_ordinary_loss():
    """CE + KL(q || r) / 2, with the label's column cut out, by automatic differentiation."""
    examples, teacher = task(4)

    def backward(logits, target, labels, iteration):
        others = torch.ones_like(logits, dtype=torch.bool).scatter_(1, labels.unsqueeze(1), False)
        r, q = (x[others].view(len(labels), -1).log_softmax(-1) for x in (logits, target))
        kl = functional.kl_div(r, q, log_target=True, reduction="batchmean")
        (functional.cross_entropy(logits, labels) + kl / 2).backward()

    values = settings("tpkd-no-projection", 30)
    there = PlainLoop(network(), examples, teacher, values).run(backward)
    here, _ = trained("tpkd-no-projection", network(), examples, teacher, iterations=30)
    torch.testing.assert_close(here, there, rtol=1e-11, atol=1e-11)
    safe, _ = trained("tpkd", network(), examples, teacher, iterations=30)
    assert (safe - there).norm() > 1e-2


def test_google_adam_with_clipping_and_schedule_by_hand():
    """Whole batches, plain tensors, the formulas of the paper's protocol."""
    examples, teacher = task(5)
    changes = {
        "optimiser": "adam-weight-decay",
        "weight_decay": 0.01,
        "schedule": "warmup-linear",
        "warmup": 4,
        "clip": 0.05,
        "learning_rate": 0.01,
    }
    model = network()
    means = [torch.zeros_like(p) for p in model.parameters()]
    squares = [torch.zeros_like(p) for p in model.parameters()]
    clipped = 0
    for k in range(15):
        index = batch_at(60, 1, 20, k, 42).index
        loss = functional.cross_entropy(model(examples.values[0, index]), examples.labels[index])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        clipped += norm > 0.05
        rate = 0.01 * (k / 4 if k < 4 else 1 - k / 15)
        for p, g, m, s in zip(model.parameters(), gradients, means, squares, strict=True):
            g = g * min(1.0, 0.05 / norm)
            m.mul_(0.9).add_(0.1 * g)
            s.mul_(0.999).add_(0.001 * g * g)
            decay = 0.01 if p.ndim > 1 else 0.0
            p.data -= rate * (m / (s.sqrt() + 1e-6) + decay * p.data)
    here, trainer = trained("ce", network(), examples, teacher, iterations=15, **changes)
    assert clipped > 5
    torch.testing.assert_close(here, weights(model), rtol=1e-10, atol=1e-12)
    assert trainer.optimiser.param_groups[0]["lr"] == pytest.approx(0.01 / 15)


@pytest.mark.parametrize("method", OBJECTIVES)
def test_parts_of_any_size_give_the_whole_batch(method):
    examples, teacher = task(6)
    whole, _ = trained(method, network(), examples, teacher, iterations=3)
    for size in (1, 7, 19):
        found, _ = trained(method, network(), examples, teacher, iterations=3, micro_batch=size)
        torch.testing.assert_close(found, whole, rtol=1e-11, atol=1e-11)


def test_the_teacher_is_that_of_the_view():
    """With teachers that differ between views, only the right row explains the step."""
    examples, teacher = task(12, views=3)
    values = settings("kl-dist", 10)

    def backward(logits, target, labels, iteration):
        logits.backward((logits.softmax(-1) - target.softmax(-1)).detach() / len(labels))

    there = PlainLoop(network(), examples, teacher, values).run(backward)
    here, _ = trained("kl-dist", network(), examples, teacher, iterations=10)
    torch.testing.assert_close(here, there, rtol=1e-11, atol=1e-11)


def test_dkd_warms_up_by_the_epochs_of_the_examples():
    """60 examples in batches of 20: three steps an epoch; the factor of two epochs is 1/2, 1."""
    examples, teacher = task(13)
    options = {"warmup_epochs": 2.0, "ce_weight": 0.0}
    values = settings("dkd", 9, options=options, learning_rate=1e-12, momentum=0.0)
    cold = settings("dkd", 9, options=options | {"warmup_epochs": 0.0}, learning_rate=1e-12)
    trainers = [Trainer(network(), examples, one, teacher=teacher) for one in (values, cold)]
    ratios = [trainers[0].step(k)["loss"] / trainers[1].step(k)["loss"] for k in range(9)]
    assert ratios == pytest.approx([0.5] * 3 + [1.0] * 6, rel=1e-6)


def test_step_on_is_the_step_of_the_batch():
    examples, teacher = task(14)
    first, second = (
        Trainer(network(dropout=0.3), examples, settings("tpkd", 3), teacher=teacher)
        for _ in range(2)
    )
    batch = batch_at(60, 1, 20, 2, 42)
    one = first.step(2, measured=True)
    two = second.step_on(batch.index, batch.view, 2, measured=True)
    assert one == {"epoch": batch.epoch} | two
    assert torch.equal(weights(first.student), weights(second.student))


def test_measures_of_a_step_are_those_of_the_batch_before_it():
    examples, teacher = task(15)
    model = network()
    trainer = Trainer(model, examples, settings("kd", 3, micro_batch=7), teacher=teacher)
    trainer.step(0)
    index = batch_at(60, 1, 20, 1, 42).index
    logits = model(examples.values[0, index]).detach()
    labels, target = examples.labels[index], teacher[0, index]
    others = torch.ones_like(logits, dtype=torch.bool).scatter_(1, labels.unsqueeze(1), False)
    r, q = (x[others].view(20, -1).softmax(-1) for x in (logits, target))
    p, t = (x.softmax(-1)[others].view(20, -1) for x in (logits, target))
    found = trainer.step(1, measured=True)
    assert found["conditional_kl"] == pytest.approx(float((q * (q / r).log()).sum(1).mean()))
    assert found["blocked"] == pytest.approx(float((p <= t).all(1).double().mean()))
    assert found["cross_entropy"] == pytest.approx(float(functional.cross_entropy(logits, labels)))


@pytest.mark.parametrize("method", OBJECTIVES)
def test_a_state_brings_a_trainer_back(method):
    """Two steps, back, the same two steps: the same bits, history and buffers included."""
    examples, teacher = task(16)
    kind = {"auxiliary_head": "nonlinear"} if method == "dhkd" else {}
    values = settings(method, 9, micro_batch=8, **kind)
    trainer = Trainer(network(dropout=0.2), examples, values, teacher=teacher)
    for k in range(3):
        trainer.step(k)
    saved = trainer.state()
    copies = {name: tensor.clone() for name, tensor in saved.items()}
    ends = []
    for _ in range(2):
        trainer.load_state(saved)
        for k in (3, 4):
            trainer.step(k)
        ends.append(trainer.state())
    assert all(torch.equal(saved[name], copies[name]) for name in saved)
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert not torch.equal(ends[0]["student.0.weight"], saved["student.0.weight"])
    frozen = trainer.parts.frozen  # of the student before training: no step changes it
    other = Trainer(network(5, dropout=0.2), examples, values, teacher=teacher, frozen=frozen)
    other.load_state(saved)
    for k in (3, 4):
        other.step(k)
    assert all(torch.equal(other.state()[name], ends[0][name]) for name in ends[0])


def test_states_of_other_networks_are_refused():
    examples, teacher = task(16)
    trainer = Trainer(network(), examples, settings("kd"), teacher=teacher)
    state = trainer.state()
    for change, named in (
        ({"student.9.weight": torch.ones(1)}, "student.9.weight"),
        ({"student.0.weight": torch.ones(1)}, "student"),
        ({"optimiser.0.momentum_buffer": torch.ones(3)}, "momentum_buffer of parameter 0"),
        ({"optimiser.77.momentum_buffer": torch.ones(3)}, "77"),
        ({"optimiser.x.momentum_buffer": torch.ones(3)}, r"optimiser\.NUMBER\.NAME"),
        ({"optimiser.1.mean": torch.ones(8)}, "must hold momentum_buffer of parameter 1, for SGD"),
    ):
        with pytest.raises(ValueError, match=named):
            trainer.load_state(state | change)
    del state["student.0.bias"]
    with pytest.raises(ValueError, match=r"must hold student\.0\.bias"):
        trainer.load_state(state)


def test_wrong_arguments_are_named():
    examples, teacher = task(21)
    cases = [
        ("kd", {"teacher": None}, "teacher must be given for 'kd'"),
        ("kd", {"teacher": teacher[:, :-1]}, r"teacher must have shape \(1, 60, K\)"),
        ("kd", {"teacher": teacher[..., :3]}, "labels must lie in"),
        ("kd", {"teacher": teacher * math.nan}, "teacher must be finite"),
        ("dhkd", {"teacher": teacher.masked_fill(teacher > 2, -math.inf)}, "teacher must be"),
        ("dp-u", {"teacher": teacher, "frozen": teacher[:, 1:]}, "frozen must have shape"),
        ("kd", {"teacher": teacher, "auxiliary": nn.Linear(8, 4)}, "auxiliary must be None"),
    ]
    for method, resources, message in cases:
        with pytest.raises(ValueError, match=message):
            Trainer(network(), examples, settings(method), **resources)
    wide = torch.cat([teacher, teacher], -1)
    with pytest.raises(ValueError, match="teacher must have the student's 4 classes, got 8"):
        Trainer(network(), examples, settings("kd"), teacher=wide).step(0)
    with pytest.raises(ValueError, match=r"examples must be what the student reads.*dtype"):
        Trainer(network(dtype=torch.float32), examples, settings("ce", precision="float32")).step(0)
    with pytest.raises(ValueError, match=r"teacher must be a torch\.Tensor, got list"):
        Trainer(network(), examples, settings("kd"), teacher=teacher.tolist())
    with pytest.raises(ValueError, match="precision"):
        Trainer(network(), examples, settings("ce", precision="amp-float16"))
    with pytest.raises(ValueError, match="snapshots"):
        train_student(network(), examples, settings("ce"), snapshots=[13])


def test_a_batch_that_is_given_must_fit():
    examples, _ = task(21)
    trainer = Trainer(network(), examples, settings("ce"))
    one, zero = torch.tensor([1]), torch.tensor([0])
    cases = [
        (torch.tensor([60]), zero, r"index must lie in \[0, 60\), got values from 60 to 60"),
        (-one, zero, "index must lie in"),
        (one, one, r"view must lie in \[0, 1\)"),
        (one.double(), zero, "index must be int64"),
        (one[:0], zero[:0], "b >= 1"),
        ([1], zero, "index must be a torch.Tensor, got list"),
    ]
    for index, view, message in cases:
        with pytest.raises(ValueError, match=message):
            trainer.step_on(index, view, 0)


def test_a_student_left_in_evaluation_mode_is_trained_with_dropout():
    examples, _ = task(25)
    ends = []
    for mode in (True, False):
        model = network(dropout=0.5)
        trainer = Trainer(model, examples, settings("ce", 2))
        trainer.step(0)
        model.train(mode)
        trainer.step(1)
        ends.append(weights(model))
    assert torch.equal(*ends)
