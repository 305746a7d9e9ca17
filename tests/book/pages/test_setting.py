"""Helpers of the page "The setting", against geometry by hand and counting."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.book.pages import setting
from lib.linear.loss import cross_entropy


def _draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 4))
def test_literal_loss_agrees_with_the_library(seed, n, d):
    x, teacher, student = _draw(seed, n, d), _draw(seed + 1, d), _draw(seed + 2, d)
    literal, stable = setting.literal_loss(student, x, teacher), cross_entropy(student, x, teacher)
    torch.testing.assert_close(literal, stable, rtol=1e-9, atol=1e-13)


def test_literal_loss_breaks_where_a_prediction_rounds_to_one():
    one = torch.ones(1, 1, dtype=torch.float64)
    assert not setting.literal_loss(40 * one[0], one, one[0]).isfinite()
    assert cross_entropy(40 * one[0], one, one[0]).isfinite()


def test_plane_puts_the_first_weight_on_the_horizontal_axis():
    first, second, value = setting.on_plane(lambda w: w[..., 0] + 10 * w[..., 1], 0, 1, points=3)
    torch.testing.assert_close(value, first + 10 * second)
    assert (first.diff(dim=1) > 0).all()


@given(st.integers(0, 10_000))
def test_curve_gap_is_symmetric_and_blind_to_extra_vertices(seed):
    a, b = _draw(seed, 5, 3), _draw(seed + 1, 4, 3)
    gap = setting.curve_gap(a, b)
    torch.testing.assert_close(gap, setting.curve_gap(b, a))
    assert setting.curve_gap(a, a) == 0
    middle = (a[:-1] + a[1:]) / 2
    finer = torch.cat([torch.stack([a[:-1], middle], 1).flatten(0, 1), a[-1:]])
    assert setting.curve_gap(a, finer) < 1e-12


def test_curve_gap_of_parallel_segments_is_their_distance():
    a = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert setting.curve_gap(a, a + torch.tensor([0.0, 0.3])).item() == pytest.approx(0.3)


@pytest.mark.parametrize("degrees", [0.0, 30.0, 90.0, 150.0])
def test_heading_of_a_step_at_a_known_angle(degrees):
    turn = math.radians(degrees)
    start = torch.tensor([0.0, 2.0], dtype=torch.float64)
    step = 1e-3 * torch.tensor([math.sin(turn), math.cos(turn)], dtype=torch.float64)
    path = torch.stack([start, start + step])
    assert torch.rad2deg(setting.heading(path)).item() == pytest.approx(degrees, abs=1e-6)


@pytest.mark.parametrize("form", list(setting.SATURATION))
def test_labels_saturate_exactly_at_the_stated_logits(form):
    one = torch.ones(1, 1, dtype=torch.float64)
    to_zero, to_one = setting.SATURATION[form]
    read = lambda z: setting.stored_logits(one, z * one[0], form).item()  # noqa: E731
    near = 1e-3  # torch rounds double to half by way of single, which moves the edge by 1e-4
    assert read(to_one + near) == math.inf
    assert math.isfinite(read(to_one - near))
    assert read(-to_zero - near) == -math.inf
    assert math.isfinite(read(-to_zero + near))


@pytest.mark.parametrize("form", list(setting.SATURATION))
def test_saturation_probability_agrees_with_counting(form):
    norm, n = setting.SATURATION[form][1] / 2, 6
    x, teacher = _draw(5, 20_000, n, 3), norm * torch.tensor([2.0, -1.0, 2.0]).double() / 3
    counted = (~setting.stored_logits(x, teacher, form).isfinite()).any(-1).double().mean().item()
    expected = setting.saturation_probability(torch.tensor(norm), form, n).item()
    assert abs(counted - expected) < 5 * math.sqrt(expected * (1 - expected) / 20_000)


def test_recovery_error_is_infinite_exactly_when_a_label_saturates():
    x, teacher = _draw(1, 500, 4, 4), 4 * _draw(2, 4)
    error = setting.recovery_error(x, teacher, "8 bit")
    lost = ~setting.stored_logits(x, teacher, "8 bit").isfinite().all(-1)
    assert (error.isinf() == lost).all()
    assert lost.any()
    assert not lost.all()


def test_student_of_rounded_labels_is_a_stationary_point_of_the_rounded_loss():
    x, teacher = _draw(8, 3, 3), _draw(9, 3)
    read = setting.stored_logits(x, teacher, "8 bit")
    student = torch.linalg.solve(x, read)
    residual = x.T @ (torch.sigmoid(x @ student) - (255 * torch.sigmoid(x @ teacher)).round() / 255)
    assert residual.abs().max() < 1e-12
    expected = (student - teacher).norm() / teacher.norm()
    torch.testing.assert_close(setting.recovery_error(x, teacher, "8 bit"), expected)


def test_stored_logits_refuse_an_unknown_format():
    with pytest.raises(ValueError, match="float8"):
        setting.stored_logits(torch.eye(2).double(), torch.ones(2).double(), "float8")
    assert setting.saturation_probability(torch.ones(2), "float16 logits", 3).tolist() == [0, 0]
