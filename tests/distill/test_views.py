"""Fixed views: crops of padded images against a loop, and the draws against their distribution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import functional

from lib.distill import fixed_views
from lib.distill.views import crop_and_flip


def one_by_one(images, offsets, flips, padding):
    """Each image by itself, with torchvision."""
    height, width = images.shape[-2:]
    found = []
    for image, (row, column), flip in zip(images, offsets.tolist(), flips.tolist(), strict=True):
        padded = functional.pad(image, [padding])
        view = functional.crop(padded, row, column, height, width)
        found.append(functional.hflip(view) if flip else view)
    return torch.stack(found)


@settings(max_examples=30)
@given(
    st.integers(1, 5), st.integers(1, 7), st.integers(1, 7), st.integers(0, 4), st.integers(0, 99)
)
def test_crops_are_torchvisions(count, height, width, padding, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 3, height, width, generator=generator, dtype=torch.float64)
    offsets, flips = fixed_views(count, 2, padding, generator)
    for view in range(2):
        found = crop_and_flip(images, offsets[view], flips[view], padding)
        assert torch.equal(found, one_by_one(images, offsets[view], flips[view], padding))


def test_bytes_are_scaled_and_halves_are_widened():
    image = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 1, 1, 3)
    nothing = (torch.zeros(1, 2, dtype=torch.int64), torch.tensor([False]), 0)
    assert torch.equal(crop_and_flip(image, *nothing).flatten(), torch.tensor([0.0, 0.2, 1.0]))
    assert crop_and_flip(image.half() / 255, *nothing).dtype == torch.float32
    assert crop_and_flip(image.double() / 255, *nothing).dtype == torch.float64


def test_offsets_and_directions_are_equally_likely():
    offsets, flips = fixed_views(5_000, 8, 4, torch.Generator().manual_seed(0))
    assert offsets.shape == (8, 5_000, 2)
    assert offsets.dtype == torch.int64
    assert flips.shape == (8, 5_000)
    assert flips.dtype == torch.bool
    pairs = (offsets[..., 0] * 9 + offsets[..., 1]).flatten().bincount(minlength=81).double()
    expected = 40_000 / 81
    assert float(((pairs - expected) ** 2 / expected).sum()) < 124.8  # 99.9 %, 80 degrees
    assert abs(float(flips.double().mean()) - 0.5) < 4 * 0.5 / 40_000**0.5


def test_views_are_the_generators():
    first, again, other = (
        fixed_views(20, 2, 4, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize(
    ("name", "value", "least"), [("n", 0, 1), ("views", True, 1), ("padding", -1, 0)]
)
def test_numbers_out_of_range_are_named(name, value, least):
    arguments = {"n": 3, "views": 2, "padding": 4} | {name: value}
    with pytest.raises(ValueError, match=f"^{name} must be an integer >= {least}, got {value}"):
        fixed_views(**arguments, generator=torch.Generator())
