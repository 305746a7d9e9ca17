"""Standardising against NumPy, and its edge cases."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.datasets import standardise

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    ),
]


def by_numpy(images: torch.Tensor, reference: torch.Tensor) -> np.ndarray:
    """A second route: one pixel after the other, in float64."""
    rows, seen = (x.double().flatten(1).numpy() for x in (images, reference))
    answer = np.zeros_like(rows)
    for j in range(rows.shape[1]):
        if np.ptp(seen[:, j]):
            answer[:, j] = (rows[:, j] - np.mean(seen[:, j])) / np.std(seen[:, j])
    return answer.reshape(images.shape)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_against_numpy(dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randint(0, 256, (30, 3, 4, 5), generator=generator)
    draw[:, 1, 2] = 17
    images = draw.to(dtype)
    result = standardise(images)
    assert result.dtype == torch.float32
    assert np.allclose(result.numpy(), by_numpy(images, images), atol=1e-5)
    part = standardise(images[:7], reference=images[5:])
    assert np.allclose(part.numpy(), by_numpy(images[:7], images[5:]), atol=1e-5)


@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 2**31))
def test_mean_is_zero_and_deviation_one(n, pixels, seed):
    images = torch.rand(n, pixels, generator=torch.Generator().manual_seed(seed)).double()
    result = standardise(images).double()
    assert result.mean(0).abs().max() < 1e-6
    assert (result.square().mean(0) - 1).abs().max() < 1e-5
    assert torch.allclose(standardise(3 * images - 2).double(), result, atol=1e-5)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 255.0, 1e-30])
def test_constant_pixel_is_exactly_zero(value):
    images = torch.full((4999, 2), value)
    images[:, 1] = torch.linspace(0, 1, 4999)
    result = standardise(images)
    assert torch.equal(result[:, 0], torch.zeros(4999))
    assert result.isfinite().all()
    other = torch.tensor([[5.0, 0.5]])
    assert standardise(other, reference=images)[0, 0] == 0


def test_two_values_become_plus_and_minus_one():
    images = torch.tensor([[0.0], [0.25]], dtype=torch.float64)
    assert standardise(images).tolist() == [[-1.0], [1.0]]
    three = standardise(torch.tensor([[0.0], [0.0], [3.0]]))
    assert math.isclose(three[2].item(), math.sqrt(2), rel_tol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_result_stays_on_the_device_and_the_input_as_it_is(device):
    images = torch.rand(6, 3, device=device)
    before = images.clone()
    assert standardise(images).device == images.device
    assert torch.equal(images, before)


@pytest.mark.parametrize(
    ("error", "call", "match"),
    [
        (TypeError, lambda: standardise(np.zeros((3, 2))), "images is a ndarray"),
        (TypeError, lambda: standardise(torch.zeros(3, 2), [1]), "reference is a list"),
        (ValueError, lambda: standardise(torch.zeros(0, 2)), "reference has shape"),
        (ValueError, lambda: standardise(torch.zeros(3, 2), torch.zeros(3, 4)), "reference has"),
        (ValueError, lambda: standardise(torch.tensor(1.0)), "images has shape"),
        (ValueError, lambda: standardise(torch.zeros(2, 2, dtype=torch.cfloat)), "dtype"),
        (ValueError, lambda: standardise(torch.tensor([[math.nan], [1.0]])), "images holds NaN"),
        (
            ValueError,
            lambda: standardise(torch.zeros(2, 1), torch.tensor([[math.inf]])),
            "reference holds NaN",
        ),
    ],
)
def test_bad_argument_is_named(error, call, match):
    with pytest.raises(error, match=match):
        call()
