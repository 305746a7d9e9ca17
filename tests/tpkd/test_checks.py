"""Every wrong argument is named; everything else comes out in one shape and dtype."""

import math

import numpy as np
import pytest
import torch

from lib.tpkd.checks import (
    at_label,
    check_beside,
    check_number,
    check_range,
    others,
    prepare,
    prepare_pair,
)

ZEROS = torch.zeros(3)
LABEL = torch.tensor(0)


@pytest.mark.parametrize(
    ("dtypes", "result"),
    [
        ((torch.float16, torch.float16), torch.float16),
        ((torch.bfloat16, torch.bfloat16), torch.bfloat16),
        ((torch.float16, torch.bfloat16), torch.float32),
        ((torch.float16, torch.int64), torch.float32),
        ((torch.uint8, torch.int32), torch.float32),
        ((torch.float64, torch.float16), torch.float64),
    ],
)
def test_result_has_the_promoted_dtype(dtypes, result):
    student, teacher = (torch.ones(4, 3, dtype=dtype) for dtype in dtypes)
    logits, labels, dtype = prepare_pair(student, teacher, LABEL)
    assert dtype == result
    assert all(tensor.dtype == torch.float64 for tensor in logits)
    assert labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("dtype", "computed"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.int64, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_narrow_computation_is_in_float32_at_least(dtype, computed):
    prepared = prepare(LABEL, compute=None, logits=torch.ones(3, dtype=dtype))
    assert prepared.logits[0].dtype == computed


@pytest.mark.parametrize(
    ("student", "teacher", "labels", "shape"),
    [
        ((3,), (3,), (), ()),
        ((5, 3), (3,), (), (5,)),
        ((3,), (3,), (4,), (4,)),
        ((2, 1, 3), (5, 3), (2, 5), (2, 5)),
        ((0, 3), (1, 3), (1,), (0,)),
    ],
)
def test_leading_dimensions_broadcast(student, teacher, labels, shape):
    logits, labels, _ = prepare_pair(
        torch.zeros(student), torch.zeros(teacher), torch.zeros(labels, dtype=torch.int32)
    )
    assert labels.shape == shape
    assert all(tensor.shape == (*shape, 3) for tensor in logits)


@pytest.mark.parametrize(
    "value",
    [None, 1.0, [0.0, 0.0, 0.0], np.zeros(3), "logits"],
)
def test_what_is_no_tensor_is_refused(value):
    with pytest.raises(ValueError, match=r"student_logits must be a torch.Tensor, got"):
        prepare_pair(value, ZEROS, LABEL)
    with pytest.raises(ValueError, match=r"labels must be a torch.Tensor, got"):
        prepare_pair(ZEROS, ZEROS, value if value is not None else "none")


@pytest.mark.parametrize("shape", [(), (0,), (2,), (4, 1), (3, 0)])
def test_three_classes_are_the_least(shape):
    with pytest.raises(ValueError, match=r"teacher_logits must have shape .* K >= 3"):
        prepare_pair(ZEROS, torch.zeros(shape), LABEL)


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match="student_logits must be of a real dtype"):
        prepare_pair(torch.zeros(3).to(dtype), ZEROS, LABEL)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.complex64])
def test_labels_are_integers(dtype):
    with pytest.raises(ValueError, match="labels must be of an integer dtype"):
        prepare_pair(ZEROS, ZEROS, torch.zeros((), dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint64])
def test_any_integer_dtype_makes_a_label(dtype):
    assert int(prepare_pair(ZEROS, ZEROS, torch.tensor(2, dtype=dtype)).labels) == 2


@pytest.mark.parametrize("label", [-1, 3, -100, 2**40])
def test_labels_lie_among_the_classes(label):
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\).*" + str(label)):
        prepare_pair(ZEROS, ZEROS, torch.tensor([0, label]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308])
def test_student_logits_are_finite(value):
    logits = torch.tensor([0.0, value, 0.0], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"student_logits must be finite"):
        prepare_pair(logits, ZEROS, LABEL)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_teacher_logits_may_only_be_minus_infinity(value):
    prepare_pair(ZEROS, torch.tensor([-math.inf, 0.0, -math.inf]), LABEL)
    with pytest.raises(ValueError, match=r"teacher_logits must be finite .*\(or -inf\)"):
        prepare_pair(ZEROS, torch.tensor([0.0, value, 0.0]), LABEL)


def test_teacher_needs_one_other_class():
    logits = torch.tensor([[0.0, 0.0, 0.0], [0.0, -math.inf, -math.inf]])
    prepare_pair(ZEROS, logits, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="teacher_logits must have a finite logit other than"):
        prepare_pair(ZEROS, logits, LABEL)


def test_the_largest_float32_logits_are_fine():
    big = torch.finfo(torch.float32).max
    assert float(prepare_pair(torch.tensor([big, -big, 0.0]), ZEROS, LABEL).logits[0][0]) == big


def test_classes_and_batches_must_match():
    with pytest.raises(ValueError, match="teacher_logits must have as many classes"):
        prepare_pair(ZEROS, torch.zeros(4), LABEL)
    with pytest.raises(ValueError, match=r"student_logits \(2, 3\).* do not broadcast"):
        prepare_pair(torch.zeros(2, 3), torch.zeros(5, 3), LABEL)
    with pytest.raises(ValueError, match=r"labels \(4,\).* do not broadcast"):
        prepare_pair(torch.zeros(2, 3), ZEROS, torch.zeros(4, dtype=torch.int64))


def test_tensors_are_dense_and_hold_data():
    with pytest.raises(ValueError, match="student_logits must be a dense tensor"):
        prepare_pair(torch.zeros(2, 3).to_sparse(), ZEROS, LABEL)
    with pytest.raises(ValueError, match="student_logits must be a dense tensor"):
        prepare_pair(torch.zeros(3, device="meta"), ZEROS, LABEL)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_tensors_lie_on_one_device():
    with pytest.raises(ValueError, match=r"labels and student_logits .* one device"):
        prepare_pair(ZEROS.cuda(), ZEROS, LABEL)


@pytest.mark.parametrize("value", [True, "1", None, [0.5], 1j, torch.tensor(True)])
def test_numbers_are_real(value):
    with pytest.raises(ValueError, match="s must be"):
        check_number("s", value, 0.0, 1.0)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, torch.tensor([0.5, 2.0])])
def test_numbers_stay_in_range(value):
    with pytest.raises(ValueError, match=r"s must lie in \[0, 1\], got"):
        check_number("s", value, 0.0, 1.0)


def test_numbers_beside_a_batch():
    check_beside("s", torch.zeros(7, 1), torch.Size([5]))
    with pytest.raises(ValueError, match=r"s of shape \(7,\) must broadcast .* \(5,\)"):
        check_beside("s", torch.zeros(7), torch.Size([5]))


def test_entries_at_and_off_the_label():
    labels = torch.tensor([2, 0])
    values = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(at_label(values, labels), torch.tensor([2.0, 3.0]))
    assert torch.equal(others(labels, 3).long(), torch.tensor([[1, 1, 0], [0, 1, 1]]))


def test_what_fits_is_not_copied():
    logits, labels = torch.zeros(2, 3), torch.tensor([0, 1])
    prepared = prepare(labels, compute=None, logits=logits)
    assert prepared.logits[0] is logits
    assert prepared.labels is labels
    wide = prepare(labels, compute=None, logits=logits[0])
    assert wide.logits[0].data_ptr() == logits.data_ptr()


def test_range_tells_of_zeros():
    assert check_range("logits", torch.tensor([0.0, -math.inf]), zeros=True)
    assert not check_range("logits", ZEROS, zeros=True)
    with pytest.raises(ValueError, match=r"logits must be finite .*, got -1e\+308"):
        check_range("logits", torch.tensor([-math.inf, -1e308], dtype=torch.float64), zeros=True)
