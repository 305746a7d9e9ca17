"""Networks: sizes, PyTorch's own initialisation, explicit randomness, refusals."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from lib.models import convolutional, fully_connected

ACTIVATIONS = {
    "tanh": torch.tanh,
    "relu": functional.relu,
    "elu": functional.elu,
    "softplus": functional.softplus,
    "hardtanh": functional.hardtanh,
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def size(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("widths", "inputs", "outputs", "count"),
    [
        ((200, 200), 3072, 10, 656_810),
        ((200, 200), 64, 10, 55_210),
        ((100, 100), 64, 10, 17_610),
        ((), 7, 2, 16),
    ],
)
def test_sizes(widths, inputs, outputs, count):
    model = fully_connected(inputs, widths, outputs, generator=generator())
    assert size(model) == count
    assert model(torch.zeros(3, inputs)).shape == (3, outputs)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_default_initialisation_is_that_of_pytorch(seed):
    """The same seed gives the numbers that nn.Linear and nn.Conv2d draw from the global one."""
    torch.manual_seed(seed)
    theirs = [nn.Linear(64, 20), nn.Linear(20, 10)]
    ours = fully_connected(64, (20,), 10, generator=generator(seed))
    flat = [parameter for layer in theirs for parameter in layer.parameters()]
    for mine, other in zip(ours.parameters(), flat, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-8)
    torch.manual_seed(seed)
    theirs = [nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3), nn.Linear(20, 10)]
    ours = convolutional((3, 8, 8), (4, 5), 10, generator=generator(seed))
    flat = [parameter for layer in theirs for parameter in layer.parameters()]
    for mine, other in zip(ours.parameters(), flat, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fully_connected_is_its_formula(activation):
    model = fully_connected(5, (7, 6), 3, activation, generator=generator(), dtype=torch.float64)
    inputs = torch.randn(4, 5, generator=generator(1), dtype=torch.float64)
    w1, b1, w2, b2, w3, b3 = model.parameters()
    phi = ACTIVATIONS[activation]
    expected = phi(phi(inputs @ w1.T + b1) @ w2.T + b2) @ w3.T + b3
    torch.testing.assert_close(model(inputs), expected)
    torch.testing.assert_close(model(inputs.reshape(4, 1, 5, 1)), expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("pooling", ["max", "average"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_convolutional_is_its_formula(activation, pooling, batch_norm):
    options = {"pooling": pooling, "batch_norm": batch_norm, "dtype": torch.float64}
    model = convolutional((2, 9, 8), (3, 4), 5, activation, generator=generator(), **options)
    inputs = torch.randn(6, 2, 9, 8, generator=generator(1), dtype=torch.float64)
    layers = [m for m in model if isinstance(m, nn.Conv2d | nn.Linear)]
    image = inputs
    for layer in layers[:2]:
        image = ACTIVATIONS[activation](functional.conv2d(image, layer.weight, layer.bias, 1, 1))
        if batch_norm:
            mean, var = image.mean((0, 2, 3), True), image.var((0, 2, 3), False, keepdim=True)
            image = (image - mean) / (var + 1e-5).sqrt()
        pool = functional.max_pool2d if pooling == "max" else functional.avg_pool2d
        image = pool(image, 2)
    expected = image.flatten(1) @ layers[2].weight.T + layers[2].bias
    torch.testing.assert_close(model(inputs), expected)
    torch.testing.assert_close(model(inputs.flatten(1)), expected)


def test_batch_norm_normalises_after_the_activation():
    model = fully_connected(5, (7,), 3, generator=generator(), batch_norm=True)
    inputs = torch.randn(50, 5, generator=generator(1))
    hidden = model[:4](inputs)
    torch.testing.assert_close(hidden.mean(0), torch.zeros(7), atol=1e-6, rtol=0)
    torch.testing.assert_close(hidden.var(0, False), torch.ones(7), atol=1e-3, rtol=0)
    assert size(model) == 5 * 7 + 7 + 7 * 3 + 3 + 2 * 7


def test_xavier_has_its_standard_deviation():
    options = {"initialisation": "xavier", "gains": (1.9, 1.0), "output_bias": False}
    model = fully_connected(300, (500,), 200, generator=generator(), **options)
    first, bias, last = (parameter.detach() for parameter in model.parameters())
    assert float(first.std()) == pytest.approx(1.9 * math.sqrt(2 / 800), rel=0.01)
    assert float(last.std()) == pytest.approx(math.sqrt(2 / 700), rel=0.01)
    assert abs(float(first.mean())) < 4 * float(first.std()) / math.sqrt(first.numel())
    assert not bool(bias.any())
    chebyshev = fully_connected(1, (100,), 1, generator=generator(), **options)
    assert size(chebyshev) == 300
    plain = fully_connected(3, (4,), 2, generator=generator(), initialisation="xavier", bias=False)
    assert size(plain) == 20


def test_randomness_is_explicit():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    models = [
        build(generator=generator(seed))
        for seed in (0, 0, 1)
        for build in (
            lambda **options: fully_connected(4, (5,), 3, batch_norm=True, **options),
            lambda **options: convolutional((1, 4, 4), (2,), 3, batch_norm=True, **options),
        )
    ]
    assert torch.equal(torch.get_rng_state(), state)
    flat = [torch.cat([p.flatten() for p in model.parameters()]) for model in models]
    for kind in (0, 1):
        assert torch.equal(flat[kind], flat[kind + 2])
        assert not torch.equal(flat[kind], flat[kind + 4])


def test_dtype_is_that_asked_for():
    for dtype in (torch.float32, torch.float64):
        for model in (
            fully_connected(4, (5,), 3, generator=generator(), batch_norm=True, dtype=dtype),
            convolutional((1, 4, 4), (2,), 3, generator=generator(), batch_norm=True, dtype=dtype),
        ):
            assert {parameter.dtype for parameter in model.parameters()} == {dtype}


REFUSED = [
    ({"inputs": 0}, "inputs must be an integer >= 1, got 0"),
    ({"outputs": 2.0}, "outputs must be an integer >= 1, got 2.0"),
    ({"widths": (5, 0)}, r"widths\[1\] must be an integer >= 1, got 0"),
    ({"widths": 5}, "widths must be a sequence"),
    ({"activation": "gelu"}, "activation must be one of 'tanh', .*, got 'gelu'"),
    ({"generator": 3}, "generator must be a torch.Generator, got int"),
    ({"initialisation": "he"}, "initialisation must be one of"),
    ({"gains": (1.0, 1.0)}, "gains must be None for initialisation 'default'"),
    ({"initialisation": "xavier", "gains": (1.0,)}, "gains must be 2 finite numbers"),
    ({"initialisation": "xavier", "gains": (1.0, -1.0)}, "gains must be 2 finite numbers"),
    ({"dtype": torch.float16}, "dtype must be torch.float32 or torch.float64"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_fully_connected_refuses(change, message):
    arguments = {"inputs": 4, "widths": (5,), "outputs": 3, "generator": generator()}
    with pytest.raises(ValueError, match=message):
        fully_connected(**(arguments | change))


REFUSED = [
    ({"shape": (3, 8)}, "shape must"),
    ({"shape": (3, 8, 0)}, r"shape\[2\] must be an integer >= 1, got 0"),
    ({"shape": (3, 2, 2)}, r"shape \(3, 2, 2\) is too small for 2 poolings"),
    ({"channels": ()}, "channels must hold at least 1"),
    ({"outputs": True}, "outputs must be an integer"),
    ({"pooling": "mean"}, "pooling must be one of 'max', 'average', got 'mean'"),
    ({"activation": "sine"}, "activation must be one of"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_convolutional_refuses(change, message):
    arguments = {"shape": (3, 8, 8), "channels": (4, 4), "outputs": 3, "generator": generator()}
    with pytest.raises(ValueError, match=message):
        convolutional(**(arguments | change))


@pytest.mark.parametrize("gains", [3.0, ("a", 1.0), (None, 1.0), (1.0,), (0.0, 1.0)])
def test_gains_that_do_not_fit(gains):
    with pytest.raises(ValueError, match="gains must be 2 finite numbers"):
        fully_connected(
            4, (3,), 2, generator=torch.Generator(), initialisation="xavier", gains=gains
        )
