"""Perceptrons and small convolutional networks in two parts."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from lib.models import convolutional, fully_connected
from lib.models.perceptron import convnet, perceptron
from lib.models.student import Student

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    ),
]


def generator(seed=0, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("widths", [(), (7,), (7, 5)])
def test_it_is_the_fully_connected_network(seed, widths, device):
    """The same generator gives the same logits; the features are what the last layer reads."""
    options = {"dtype": torch.float64}
    student = perceptron(6, widths, 4, "tanh", generator=generator(seed, device), **options)
    whole = fully_connected(6, widths, 4, "tanh", generator=generator(seed, device), **options)
    x = torch.randn(3, 2, 3, dtype=torch.float64, generator=generator(5)).to(device)
    torch.testing.assert_close(student(x), whole(x), rtol=0, atol=0)
    torch.testing.assert_close(student.features(x), whole[:-1](x), rtol=0, atol=0)
    assert student.head.in_features == (widths[-1] if widths else 6)
    assert isinstance(student, Student)
    assert student.head.weight.device.type == device


def test_closed_form_without_hidden_layers():
    student = perceptron(3, (), 2, generator=generator(), dtype=torch.float64)
    weights = {"head.weight": torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]])}
    weights["head.bias"] = torch.tensor([0.5, 0.0])
    found = functional_call(student, weights, (torch.tensor([[1.0, 1.0, 2.0]]),))
    assert found.tolist() == [[9.5, 0.0]]


def test_dropout_acts_on_inputs_and_on_hidden_units_in_training_only():
    options = {"input_dropout": 0.25, "dropout": 0.5}
    student = perceptron(400, (300,), 3, generator=generator(), **options)
    plain = perceptron(400, (300,), 3, generator=generator())
    x = torch.ones(50, 400)
    assert torch.equal(student.eval()(x), plain.eval()(x))
    layers = [type(layer) for layer in student.body]
    assert layers == [nn.Flatten, nn.Dropout, nn.Linear, nn.ReLU, nn.Dropout]
    student.train()
    torch.manual_seed(0)
    dropped = student.body[1](x)
    assert abs((dropped == 0).double().mean() - 0.25) < 0.015
    assert dropped.max().item() == pytest.approx(1 / 0.75)
    assert abs((student.body[4](x) == 0).double().mean() - 0.5) < 0.015


@pytest.mark.parametrize("name", ["input_dropout", "dropout"])
@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan"), True, "0.1"])
def test_shares_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        perceptron(3, (4,), 2, generator=generator(), **{name: value})


def test_sizes_are_refused():
    with pytest.raises(ValueError, match="widths"):
        perceptron(3, (0,), 2, generator=generator())
    with pytest.raises(ValueError, match="generator"):
        perceptron(3, (4,), 2, generator=None)


@pytest.mark.parametrize("options", [{}, {"batch_norm": True, "pooling": "average"}])
def test_it_is_the_convolutional_network(options):
    student = convnet((2, 8, 8), (4, 6), 5, generator=generator(3), **options)
    whole = convolutional((2, 8, 8), (4, 6), 5, generator=generator(3), **options)
    x = torch.randn(3, 2, 8, 8, generator=generator(5))
    assert torch.equal(student(x), whole(x))
    assert student.features(x).shape == (3, 24)
    assert torch.equal(student.head(student.features(x)), student(x))


@pytest.mark.parametrize("seed", [0, 1])
def test_both_learn(seed):
    """A few steps of descent lower the loss of ten examples."""
    x = torch.randn(10, 1, 8, 8, generator=generator(seed))
    labels = torch.arange(10) % 3
    for student in (
        perceptron(64, (32,), 3, generator=generator(seed)),
        convnet((1, 8, 8), (8,), 3, generator=generator(seed)),
    ):
        optimiser = torch.optim.SGD(student.parameters(), 0.5)
        losses = []
        for _ in range(100):
            loss = nn.functional.cross_entropy(student(x), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert losses[-1] < 0.1 * losses[0]
