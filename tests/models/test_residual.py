"""Residual networks: the paper's sizes, a second route for the block, initialisation, refusals."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from lib.models.residual import BasicBlock, residual

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    ),
]


def generator(seed=0, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


@pytest.mark.parametrize(
    ("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)]
)
def test_sizes_of_the_paper(depth, millions):
    """He et al. (2016), Table 6; and the count by hand for every depth."""
    network = residual(depth, 10, generator=generator())
    found = sum(parameter.numel() for parameter in network.parameters())
    assert round(found / 1e6, 2 if millions < 1 else 1) == millions
    n = depth // 6
    convolutions = 9 * (3 * 16 + 2 * n * (16**2 + 32**2 + 64**2) - 16 * 32 - 32 * 64)
    norms = 2 * 16 + 2 * 2 * n * (16 + 32 + 64)
    assert found == convolutions + norms + 650
    layers = sum(isinstance(module, nn.Conv2d | nn.Linear) for module in network.modules())
    assert layers == depth


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_block_by_other_means(stride, seed):
    """The shortcut as a 1 x 1 convolution with a unit matrix, normalisation by hand."""
    torch.manual_seed(seed)
    block = BasicBlock(4, 6, stride).double().eval()
    for norm in (block.first_norm, block.second_norm):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 4, 7, 7, dtype=torch.float64)

    def normalised(norm, values):
        shape = (1, -1, 1, 1)
        centred = values - norm.running_mean.view(shape)
        return centred / (norm.running_var.view(shape) + norm.eps).sqrt()

    inner = functional.conv2d(x, block.first.weight, stride=stride, padding=1)
    inner = normalised(block.first_norm, inner).clamp(min=0)
    inner = normalised(block.second_norm, functional.conv2d(inner, block.second.weight, padding=1))
    unit = torch.eye(6, 4, dtype=torch.float64)[:, :, None, None]
    expected = (inner + functional.conv2d(x, unit, stride=stride)).clamp(min=0)
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_shapes_and_parts(device):
    network = residual(8, 7, 4, generator=generator(device=device), channels=1).eval()
    x = torch.randn(3, 1, 12, 12, generator=generator(1)).to(device)
    assert network(x).shape == (3, 7)
    assert network.features(x).shape == (3, 16)
    assert torch.equal(network.head(network.features(x)), network(x))
    assert network.body[:6](x).shape == (3, 16, 3, 3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_initialisation(seed):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    network = residual(8, 10, 32, generator=generator(seed))
    assert torch.equal(torch.get_rng_state(), state)
    for module in network.body.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels > 3:
            expected = math.sqrt(2 / (9 * module.in_channels))
            assert module.weight.std().item() == pytest.approx(expected, rel=0.05)
        if isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.running_var, torch.ones_like(module.running_var))
            assert not module.running_mean.any()
            assert module.num_batches_tracked == 0
    bound = 1 / math.sqrt(128)
    assert 0.9 * bound < network.head.weight.abs().max() <= bound
    again = residual(8, 10, 32, generator=generator(seed))
    for mine, same in zip(network.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, same)


def test_it_learns():
    network = residual(8, 3, 8, generator=generator())
    x = torch.randn(12, 3, 8, 8, generator=generator(1))
    labels = torch.arange(12) % 3
    optimiser = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    losses = []
    for _ in range(30):
        loss = functional.cross_entropy(network(x), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"depth": 18}, "6n"),
        ({"depth": 2}, "6n"),
        ({"depth": 20.0}, "depth"),
        ({"classes": 0}, "classes"),
        ({"width": 0}, "width"),
        ({"channels": 0}, "channels"),
        ({"generator": None}, "generator"),
    ],
)
def test_refusals(change, word):
    with pytest.raises(ValueError, match=word):
        residual(**({"depth": 20, "classes": 10, "generator": generator()} | change))
