"""The hash of tensors notices everything but the device and the layout in memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.distill.digests import tensor_digest


def one(tensor, name="w"):
    return tensor_digest([(name, tensor)])


def test_everything_that_counts_changes_the_hash():
    base = torch.arange(6.0).reshape(2, 3)
    nearly = base.clone()
    nearly[0, 0] = -0.0
    hashes = [
        one(base),
        one(base, "v"),
        one(base.double()),
        one(base.reshape(3, 2)),
        one(base.flatten()),
        one(base.view(torch.int32)),
        one(nearly),
        tensor_digest([("w", base)], "fact"),
        tensor_digest([("w", base), ("w", base)]),
        tensor_digest([]),
    ]
    assert len(set(hashes)) == len(hashes)


def test_layout_in_memory_does_not_count():
    base = torch.arange(6.0).reshape(2, 3)
    assert one(base.t().contiguous().t()) == one(base)
    assert one(torch.arange(12.0)[::2]) == one(torch.arange(0.0, 12, 2))


@given(st.integers(0, 15), st.integers(0, 7))
def test_any_bit_counts(position, bit):
    content = torch.arange(16, dtype=torch.uint8)
    changed = content.clone()
    changed[position] ^= 1 << bit
    assert one(changed.view(torch.float32)) != one(content.view(torch.float32))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.bool, torch.int64, torch.uint8]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0), (4,)])
def test_every_dtype_and_shape_has_a_hash(dtype, shape):
    zeros, ones = torch.zeros(shape, dtype=dtype), torch.ones(shape, dtype=dtype)
    assert len(one(zeros)) == 64
    assert (one(zeros) == one(ones)) == (zeros.numel() == 0)


def test_gradients_do_not_count():
    weight = torch.ones(3)
    assert one(weight.clone().requires_grad_()) == one(weight)


@pytest.mark.parametrize("fact", [float("nan"), {1, 2}, torch.ones(1)])
def test_facts_must_be_plain(fact):
    with pytest.raises(ValueError, match="facts must be plain JSON, got"):
        tensor_digest([], fact)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_does_not_count():
    base = torch.rand(100)
    assert one(base.cuda()) == one(base)
