"""The closest safe imitation against KKT conditions, an optimiser, brute force and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from lib.book.pages.task_preserving_states import random_states
from lib.tpkd.imitation import safe_imitation

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]
KINDS = ("mild", "sharp", "near", "one-up", "one-down", "blocked")


def margin_gains(result, student, labels):
    gains = result - student.log_softmax(-1)
    return gains.gather(-1, labels[..., None]) - gains


def wrong(labels, classes):
    return torch.arange(classes, device=labels.device) != labels[..., None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [3, 4, 10, 100, 1000])
@pytest.mark.parametrize("seed", [0, 1])
def test_result_meets_the_conditions_for_an_optimum(kind, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    student, teacher, labels = random_states(classes, 60, generator, kind)
    result = safe_imitation(student, teacher, labels)
    p, t = result.exp(), teacher.softmax(-1)
    torch.testing.assert_close(p.sum(-1), torch.ones(60, dtype=torch.float64))
    gains = margin_gains(result, student, labels)
    multipliers = torch.where(wrong(labels, classes), t - p, 0.0)
    assert gains.min() > -1e-12
    assert multipliers.min() > -1e-12
    assert (gains * multipliers).abs().max() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_optimiser_in_margin_coordinates_does_better(kind, seed):
    student, teacher, labels = random_states(4, 3, torch.Generator().manual_seed(seed), kind)
    result = safe_imitation(student, teacher, labels)
    for z, target, label, found in zip(student, teacher, labels, result, strict=True):
        t, margins = target.softmax(-1).numpy(), (z[label] - z).numpy()

        def loss(gains, t=t, margins=margins):
            raised = margins + gains
            ready = np.exp(-raised - np.logaddexp.reduce(-raised))
            return t @ raised + np.logaddexp.reduce(-raised), t - ready

        bounds = [(0, 0) if j == label else (0, None) for j in range(4)]
        best = minimize(loss, np.zeros(4), jac=True, method="L-BFGS-B", bounds=bounds, tol=1e-15)
        ours = loss((found[label] - found).numpy() - margins)[0]
        assert ours <= best.fun + 1e-10
        assert ours == pytest.approx(best.fun, abs=1e-7)


@given(st.lists(st.floats(-6, 6), min_size=15, max_size=15), st.integers(0, 4))
def test_scale_is_the_largest_ratio_over_all_sets_with_the_label(values, label):
    student, teacher, _ = torch.tensor(values, dtype=torch.float64).reshape(3, 5)
    p, t = student.softmax(-1), teacher.softmax(-1)
    sets = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 5).to(torch.float64)
    sets = sets[sets[:, label] == 1]
    best = ((sets @ t) / (sets @ p)).max()
    result = safe_imitation(student, teacher, torch.tensor(label)).exp()
    assert float(result[label] / p[label]) == pytest.approx(float(best), rel=1e-10)


@pytest.mark.parametrize("classes", [3, 10, 1000])
def test_blocked_student_stays_and_safe_teacher_is_reached(classes):
    student, teacher, labels = random_states(classes, 50, torch.Generator(), "blocked")
    stays = safe_imitation(student, teacher, labels)
    torch.testing.assert_close(stays, student.log_softmax(-1), rtol=1e-12, atol=1e-12)
    raised = torch.where(wrong(labels, classes), teacher, teacher + 1)
    reached = safe_imitation(teacher, raised, labels)
    torch.testing.assert_close(reached, raised.log_softmax(-1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_closed_form_for_three_classes(device):
    options = {"dtype": torch.float64, "device": device}
    student = torch.tensor([0.5, 0.35, 0.15], **options).log()
    teacher = torch.tensor([0.4, 0.25, 0.35], **options).log()
    expected = torch.tensor([15 / 26, 1 / 4, 9 / 52], **options)
    found = safe_imitation(student, teacher, torch.tensor(0, device=device)).exp()
    torch.testing.assert_close(found, expected)


def test_zeros_of_the_teacher_are_copied():
    teacher = torch.tensor([0.0, -math.inf, 0.0], dtype=torch.float64)
    found = safe_imitation(torch.zeros(3), teacher, torch.tensor(0)).exp()
    torch.testing.assert_close(found, torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64))
    unsure = safe_imitation(torch.zeros(3), teacher, torch.tensor(1)).exp()
    torch.testing.assert_close(unsure, torch.full((3,), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_broadcasting_and_permutations(dtype):
    student = torch.tensor([0.0, 1.0, 2.0, 0.5], dtype=dtype)
    teacher = torch.tensor([[0.5, 0.5, 0.0, 1.0], [2.0, 0.0, 1.0, 0.0]], dtype=dtype)
    found = safe_imitation(student, teacher, torch.tensor(0))
    assert found.dtype == dtype
    assert found.shape == (2, 4)
    order = torch.tensor([2, 0, 3, 1])
    moved = safe_imitation(student[order], teacher[:, order], torch.tensor(1))
    torch.testing.assert_close(moved, found[:, order])
    assert safe_imitation(student[:0].reshape(0, 4), teacher[1], torch.tensor(0)).shape == (0, 4)


def test_large_logits_give_no_nan():
    student = torch.tensor([1e4, 0.0, -1e4], dtype=torch.float64)
    teacher = torch.tensor([-1e4, 1e4, 0.0], dtype=torch.float64)
    found = safe_imitation(student, teacher, torch.tensor([0, 1, 2]))
    assert not found.isnan().any()
    torch.testing.assert_close(found[0], student.log_softmax(-1))
    torch.testing.assert_close(found[1], teacher.log_softmax(-1))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="teacher_logits"):
        safe_imitation(torch.zeros(3), torch.zeros(4), torch.tensor(0))
    with pytest.raises(ValueError, match="student_logits"):
        safe_imitation(torch.tensor([0.0, 0.0, -math.inf]), torch.zeros(3), torch.tensor(0))
