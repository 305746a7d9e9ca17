from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lib.linear.checks import (
    check_count,
    check_inputs,
    check_nonzero,
    check_number,
    prepare,
    to_float64,
)


@pytest.mark.parametrize(
    ("dtypes", "widest"),
    [
        ((torch.float16, torch.float16), torch.float16),
        ((torch.float16, torch.bfloat16), torch.float32),
        ((torch.float32, torch.float16), torch.float32),
        ((torch.float32, torch.int64), torch.float64),
        ((torch.int64, torch.bool), torch.float64),
    ],
)
def test_result_dtype_is_the_widest(dtypes, widest):
    tensors = {f"t{i}": torch.ones(2, dtype=dtype) for i, dtype in enumerate(dtypes)}
    converted, dtype = to_float64(**tensors)
    assert dtype == widest
    assert all(tensor.dtype == torch.float64 for tensor in converted)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_named(bad):
    with pytest.raises(ValueError, match="weights must be finite"):
        to_float64(inputs=torch.ones(2), weights=torch.tensor([1.0, bad]))


def test_no_tensor_and_complex_are_refused():
    with pytest.raises(TypeError, match=r"inputs must be a torch.Tensor, got list"):
        to_float64(inputs=[1.0])
    with pytest.raises(ValueError, match="inputs must be real"):
        to_float64(inputs=torch.ones(2, dtype=torch.complex64))


def test_devices_must_agree():
    with pytest.raises(ValueError, match="one device"):
        to_float64(
            a=torch.ones(1, dtype=torch.int64), b=torch.ones(1, dtype=torch.int64, device="meta")
        )


@pytest.mark.parametrize("shape", [(3,), (0, 3), (3, 0)])
def test_inputs_need_examples_and_features(shape):
    with pytest.raises(ValueError, match="inputs must"):
        check_inputs(torch.ones(shape))


@pytest.mark.parametrize(
    ("shape", "message"),
    [((4,), r"\(\.\.\., 3\)"), ((), r"\(\.\.\., 3\)"), ((5, 3), "do not broadcast")],
)
def test_vectors_must_fit_the_inputs(shape, message):
    with pytest.raises(ValueError, match=message):
        prepare(torch.ones(4, 2, 3), teacher=torch.ones(shape))


def test_vectors_must_broadcast_with_each_other():
    with pytest.raises(ValueError, match="student"):
        prepare(torch.ones(2, 3), teacher=torch.ones(4, 3), student=torch.ones(5, 3))


def test_zero_vector_in_a_batch_is_refused():
    check_nonzero("w", torch.eye(3))
    with pytest.raises(ValueError, match="w must not be the zero vector"):
        check_nonzero("w", torch.tensor([[1.0, 0.0], [0.0, 0.0]]))


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", None])
def test_counts_are_positive_integers(value):
    with pytest.raises(ValueError, match="n must be an integer >= 1"):
        check_count("n", value)


def test_counts_accept_numpy_integers():
    assert check_count("n", np.int64(3)) == 3


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, 1.0, "x", None, torch.ones(2)])
def test_numbers_stay_inside_their_interval(value):
    with pytest.raises(ValueError, match="kappa must be a finite number > 0 and < 1"):
        check_number("kappa", value, 0.0, 1.0, open_low=True, open_high=True)


def test_closed_ends_are_allowed():
    assert check_number("a", 0, 0.0, 1.0) == 0.0
    assert check_number("a", torch.tensor(1.0), 0.0, 1.0) == 1.0
