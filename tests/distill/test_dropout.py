"""What methods share: examples, views and dropout of a seed, and nothing of the world around."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from lib.distill.examples import TensorExamples
from lib.distill.methods import OBJECTIVES
from lib.distill.streams import stream_seed
from lib.distill.trainer import Trainer
from lib.distill.training import train_student
from tests.distill.small_runs import network, settings, task, trained


def fitted_head(examples, model):
    """The network after some training, far from uniform."""
    trained("ce", model, examples, None, iterations=40)
    return model


@pytest.mark.parametrize("seed", [42, 43])
def test_dp_u_is_kl_dist_for_a_new_head_and_not_for_a_fitted_one(seed):
    examples, teacher = task(9, dtype=torch.float32)
    changes = {"precision": "float32", "seed": seed, "iterations": 10, "micro_batch": 8}

    def pair(start):
        found = []
        for method in ("dp-u", "kl-dist"):
            model = network(dropout=0.3, dtype=torch.float32)
            model.load_state_dict(start.state_dict())
            found.append(trained(method, model, examples, teacher, **changes)[0])
        return found

    fresh = network(dtype=torch.float32)
    with torch.no_grad():
        fresh[3].weight.mul_(1e-3)
        fresh[3].bias.zero_()
    assert torch.equal(*pair(fresh))
    assert not torch.equal(*pair(fitted_head(*task(9)[:1], network()).float()))


class Recorded(TensorExamples):
    """Examples that remember which of them were asked for."""

    def inputs(self, index, view):
        self.__dict__.setdefault("seen", []).append((index.tolist(), view.tolist()))
        return super().inputs(index, view)


class Noise(nn.Dropout):
    """Dropout that remembers its masks."""

    def __init__(self):
        super().__init__(0.5)
        self.masks = []

    def forward(self, x):
        mask = super().forward(torch.ones_like(x))
        self.masks += [mask] if self.training else []
        return x * mask


def test_every_method_sees_the_same_examples_views_and_dropout():
    reference = None
    for method in OBJECTIVES:
        examples, teacher = task(10, views=3)
        recorded = Recorded(examples.values, examples.labels, 3)
        model = network()
        model[2] = noise = Noise()
        recorded.__dict__["seen"] = []
        kind = {"auxiliary_head": "nonlinear"} if method == "dhkd" else {}
        values = settings(method, 4, micro_batch=8, **kind)
        trainer = Trainer(model, recorded, values, teacher=teacher)
        recorded.__dict__["seen"] = []
        torch.manual_seed(len(method))  # what the world draws does not matter
        for iteration in range(4):
            trainer.step(iteration)
        seen = recorded.__dict__["seen"], torch.cat(noise.masks)
        assert len(seen[0]) == 12
        assert len(noise.masks) == 12
        if reference is not None:
            assert seen[0] == reference[0], method
            assert torch.equal(seen[1], reference[1]), method
        reference = seen
    other = Trainer(model, recorded, settings("ce", 4, micro_batch=8, seed=43))
    recorded.__dict__["seen"] = []
    other.step(0)
    assert recorded.__dict__["seen"][0] != reference[0][0]


def test_dropout_is_that_of_its_stream():
    examples, _ = task(10)
    model = network()
    model[2] = noise = Noise()
    trainer = Trainer(model, examples, settings("ce", 4, micro_batch=8))
    trainer.step(3)
    torch.manual_seed(stream_seed(42, "dropout", 3, 1))
    wanted = functional.dropout(torch.ones(8, 8, dtype=torch.float64), 0.5)
    assert torch.equal(noise.masks[1], wanted)


@pytest.mark.parametrize("method", ["dp-s", "dhkd", "tpkd"])
def test_the_global_generator_is_left_alone(method):
    examples, teacher = task(11)
    torch.manual_seed(123)
    before = torch.get_rng_state()
    values = settings(method, 3, auxiliary_head="nonlinear")
    train_student(network(dropout=0.4), examples, values, teacher=teacher, test=examples)
    assert torch.equal(torch.get_rng_state(), before)
