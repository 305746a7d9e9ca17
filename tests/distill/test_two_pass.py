"""Methods that combine two gradients, against both of them on the whole batch by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from lib.distill.order import batch_at
from lib.distill.trainer import Trainer
from tests.distill.small_runs import TWO_PASSES, network, settings, task, trained, weights


def flat_gradients(losses, parameters):
    """Gradients of whole losses as vectors, zeros where a loss does not reach."""
    return [
        torch.cat(
            [
                (torch.zeros_like(p) if g is None else g).flatten()
                for g, p in zip(
                    torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True),
                    parameters,
                    strict=True,
                )
            ]
        )
        for loss in losses
    ]


@pytest.mark.parametrize("against", [False, True])
@pytest.mark.parametrize("size", [20, 6])
def test_dhkd_step_by_hand(size, against):
    """Both gradients of the whole batch in all parameters of body and both heads."""
    examples, teacher = task(8)
    model = network(2)
    values = settings("dhkd", 1, momentum=0.0, weight_decay=0.0, micro_batch=size)
    trainer = Trainer(model, examples, values, teacher=teacher)
    head = trainer.parts.auxiliary
    if against:  # a second head that wants the opposite of the first
        head.weight.data = -20 * model[3].weight.data
    parameters = [*model.parameters(), *head.parameters()]
    before = torch.cat([p.detach().flatten().clone() for p in parameters])
    index = batch_at(60, 1, 20, 0, 42).index
    body = model[:3](examples.values[0, index])
    gap = (head(body) - teacher[0, index]) / 4
    losses = (
        functional.cross_entropy(model[3](body), examples.labels[index]),
        4 * gap.cosh().log().sum(1).mean(),
    )
    task_gradient, distil = flat_gradients(losses, parameters)
    share = float(distil @ task_gradient / task_gradient.square().sum())
    assert (share < 0) == against
    wanted = task_gradient + distil - min(0.0, share) * task_gradient
    found = trainer.step(0)
    after = torch.cat([p.detach().flatten() for p in parameters])
    torch.testing.assert_close(before - after, 0.1 * wanted, rtol=1e-9, atol=1e-12)
    assert found["loss"] == pytest.approx(sum(losses).item(), rel=1e-12)
    assert found["gradient_norm"] == pytest.approx(float(wanted.norm()), rel=1e-9)


@pytest.mark.parametrize("size", [20, 6])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dto_kd_step_by_hand(size, seed):
    examples, teacher = task(seed)
    model = network(seed)
    values = settings("dto-kd", 1, momentum=0.0, weight_decay=0.0, micro_batch=size)
    index = batch_at(60, 1, 20, 0, 42).index
    logits, labels = model(examples.values[0, index]), examples.labels[index]
    first = functional.kl_div(
        logits.log_softmax(-1), teacher[0, index].softmax(-1), reduction="batchmean"
    )
    second = functional.cross_entropy(logits, labels)
    g1, g2 = flat_gradients((first.log(), second.log()), list(model.parameters()))
    gram = torch.stack([g1, g2]) @ torch.stack([g1, g2]).T
    share = (gram[1, 1] - gram[0, 1]) / (gram[0, 0] + gram[1, 1] - 2 * gram[0, 1])
    share = float(share.clamp(0, 1))
    before = weights(model)
    Trainer(model, examples, values, teacher=teacher).step(0)
    wanted = 0.1 * (share * g1 + (1 - share) * g2)
    torch.testing.assert_close(before - weights(model), wanted, rtol=1e-8, atol=1e-12)


def test_parameters_without_a_gradient_are_left_alone():
    """Frozen ones, and ones that no loss reaches: no weight decay, whatever the method."""
    for method in ("ce", *TWO_PASSES):
        examples, teacher = task(22)
        model = network()
        model[1] = nn.Sequential(nn.Tanh())
        model[1].unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
        model[0].weight.requires_grad_(False)
        before = model[0].weight.clone()
        trained(method, model, examples, teacher, iterations=3, weight_decay=0.5)
        assert torch.equal(model[1].unused, torch.ones(3, dtype=torch.float64)), method
        assert torch.equal(model[0].weight, before)
