"""Stacked students agree with single ones, with lib.tpkd and with the book's own trainer."""

import pytest
import torch
from torch import nn

from lib.book.pages import student_stacks as stacks
from lib.book.pages.task_preserving_states import random_states
from lib.distill import OBJECTIVES, objective_loss
from lib.distill.examples import TensorExamples
from lib.distill.settings import TrainingSettings
from lib.distill.training import train_student
from lib.models.perceptron import perceptron
from lib.tpkd import is_blocked, margins, update_direction


def task(n=96, inputs=5, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, inputs, generator=generator)
    labels = torch.randint(classes, (n,), generator=generator)
    teacher = torch.randn(n, classes, generator=generator)
    teacher[torch.arange(n), labels] += 2.0
    return x, teacher, labels


def students(seeds, inputs=5, classes=4):
    return [
        perceptron(inputs, (7,), classes, generator=torch.Generator().manual_seed(s)) for s in seeds
    ]


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("kind", ["mild", "sharp", "blocked", "near"])
def test_rules_are_the_directions_of_the_library(classes, kind):
    z, teacher, labels = random_states(classes, 50, torch.Generator().manual_seed(1), kind)
    parts = stacks.split(z, teacher, labels)
    for name, rule in stacks.TABLE_5.items():
        expected = update_direction(name, z, teacher, labels)
        torch.testing.assert_close(rule(parts), expected, atol=1e-12, rtol=1e-9)
        leaf = z.clone().requires_grad_()
        loss = len(z) * objective_loss(name, leaf, teacher, labels)
        (gradient,) = torch.autograd.grad(loss, leaf)
        torch.testing.assert_close(rule(parts), gradient, atol=1e-12, rtol=1e-9)
    assert set(stacks.TABLE_5) < set(OBJECTIVES)


def test_weakened_rules_are_h_where_they_should_be_and_scaled_elsewhere():
    z, teacher, labels = random_states(6, 400, torch.Generator().manual_seed(2))
    parts, blocked = stacks.split(z, teacher, labels), is_blocked(z, teacher, labels)
    assert 0 < int(blocked.sum()) < 400
    added = {name: rule(parts) - parts.label for name, rule in stacks.WEAKENED.items()}
    whole = stacks.TABLE_5["tpkd"](parts) - parts.label
    doubt = 1 - teacher.softmax(-1)[torch.arange(400), labels]
    torch.testing.assert_close(added["doubt"], doubt[:, None] * whole, atol=1e-14, rtol=1e-7)
    for name, full in (("blocked off", whole), ("both", added["doubt"])):
        assert float(added[name][blocked].abs().max()) == 0.0
        torch.testing.assert_close(added[name][~blocked], full[~blocked], atol=1e-14, rtol=1e-7)


def test_outputs_are_those_of_the_networks():
    nets = students([0, 1])
    x = task()[0]
    found = stacks.outputs(stacks.stack_students(nets, 3), x)
    for rule in range(3):
        for s, net in enumerate(nets):
            torch.testing.assert_close(found[rule, s], net(x), atol=1e-5, rtol=1e-5)


def test_a_stack_ends_where_the_trainer_ends():
    seeds, steps = [3, 4], 12
    x, teacher, labels = task()
    held = task(40, seed=9)
    nets = students(seeds)
    before = [w.clone() for w in nets[0].parameters()]
    found = stacks.train_stack(
        stacks.TABLE_5, nets, seeds, (x, teacher, labels), (held[0], held[2]), steps, record=[0, 5]
    )
    assert found.steps.tolist() == [0, 5, steps]
    assert len(found.weights) == 3
    assert all(map(torch.equal, before, nets[0].parameters()))
    for row in stacks.TABLE_5:
        for s, (seed, net) in enumerate(zip(seeds, students(seeds), strict=True)):
            settings = TrainingSettings(row, steps, seed, 0.02, weight_decay=1e-4)
            result = train_student(
                net,
                TensorExamples(x, labels),
                settings,
                teacher=teacher[None],
                test=TensorExamples(x, labels),
                test_teacher=teacher,
            )
            place = found.at(row), s
            torch.testing.assert_close(
                found.logits[-1][place], result.test_logits, atol=2e-5, rtol=1e-4
            )
            kl = result.measures["conditional_kl"]
            assert float(found.conditional_kl[-1][place]) == pytest.approx(kl, rel=1e-4)
            loss = result.measures["loss"]
            assert float(found.label_loss[-1][place]) == pytest.approx(loss, rel=1e-4)
            assert float(found.blocked[-1][place]) == result.measures["blocked"]
            net.eval()
            accuracy = 100 * (net(held[0]).argmax(-1) == held[2]).double().mean()
            assert float(found.accuracy[-1][place]) == pytest.approx(float(accuracy))


def test_lowered_margins_are_those_of_single_networks():
    x, teacher, labels = task(16)
    nets = students([0, 1])
    to_label, outright = stacks.lowered_margins(
        stacks.stack_students(nets, 2), (x, teacher, labels), 0.1
    )
    assert to_label.shape == (3, 2, 2)
    assert float(to_label[0].abs().max()) == 0.0
    for s, net in enumerate(nets):
        start = margins(net(x), labels).detach()
        ends = []
        for name in stacks.STEPPED:
            weights = dict(net.named_parameters())
            z = net(x)
            loss = objective_loss(name, z, teacher, labels)
            gradients = torch.autograd.grad(loss, list(weights.values()))
            moved = {n: w - 0.1 * g for (n, w), g in zip(weights.items(), gradients, strict=True)}
            ends.append(margins(torch.func.functional_call(net, moved, (x,)), labels))
        for i, end in enumerate(ends):
            for ours, mark in ((to_label, ends[0]), (outright, start)):
                share = (end < mark - 1e-6).sum() / (16 * 3)
                assert abs(float(ours[i, 0, s]) - float(share)) <= 1 / 48 + 1e-6
                assert float(ours[i, 1, s]) == float(ours[i, 0, s])
    assert float(to_label[1:].max()) > 0
    assert float(outright.max()) > 0


def test_students_whose_outputs_move_alone_keep_the_promise():
    teacher, labels = task(4, classes=5)[1:]
    net = nn.Linear(4, 5).double()
    inputs = 1e4 * torch.eye(4, dtype=torch.float64)  # the shared bias hardly counts
    to_label, _ = stacks.lowered_margins(
        stacks.stack_students([net], 1), (inputs, teacher.double(), labels), 2e-8
    )
    assert float(to_label[2].max()) == 0.0
    assert float(to_label[1].min()) > 0.0
