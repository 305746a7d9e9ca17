"""Models that `descend` takes and refuses: idle weights, gradients switched off, dropout."""

import copy

import pytest
import torch
from torch import nn

from lib.models import fully_connected
from lib.stability import descend


def task():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (40,), generator=generator)


def network():
    generator = torch.Generator().manual_seed(0)
    return fully_connected(6, (8,), 3, generator=generator, dtype=torch.float64)


class Half(nn.Module):
    """A network that leaves one of its layers out."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(6, 3).double(), nn.Linear(6, 3).double()

    def forward(self, inputs):
        return self.used(inputs)


class Odd(nn.Module):
    """A layer whose outputs go through a function that spoils them."""

    def __init__(self, spoil):
        super().__init__()
        self.layer, self.spoil = nn.Linear(6, 3).double(), spoil

    def forward(self, inputs):
        return self.spoil(self.layer(inputs))


@pytest.mark.parametrize(("optimiser", "momentum"), [("gd", 0.0), ("nesterov", 0.5)])
def test_weights_that_the_model_leaves_out_stay(optimiser, momentum):
    whole = Half()
    part, idle = copy.deepcopy(whole.used), copy.deepcopy(whole.idle)
    options = {"optimiser": optimiser, "momentum": momentum, "every": 2}
    seen = descend(whole, "square", task(), 0.1, 4, **options)
    expected = descend(part, "square", task(), 0.1, 4, **options)
    assert torch.equal(seen.losses, expected.losses)
    torch.testing.assert_close(seen.sharpness, expected.sharpness, rtol=1e-7, atol=0)
    assert torch.equal(whole.idle.weight, idle.weight)


def test_descent_where_gradients_are_off():
    with torch.no_grad():
        off = descend(network(), "square", task(), 0.1, 3)
    assert torch.equal(off.losses, descend(network(), "square", task(), 0.1, 3).losses)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda outputs: nn.functional.dropout(outputs), "model must be deterministic"),
        (lambda outputs: outputs.detach(), "model must have outputs that depend"),
        (lambda outputs: outputs.mean(0, keepdim=True), r"model must return outputs .* n = 2"),
        (lambda outputs: outputs @ torch.ones(2, 2).double(), r"model must accept data\[0\]"),
    ],
)
def test_models_that_cannot_be_trained(spoil, message):
    with pytest.raises(ValueError, match=message):
        descend(Odd(spoil), "square", task(), 0.1, 3)
