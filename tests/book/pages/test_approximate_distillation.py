import math

import pytest
import torch

from lib.book.pages.approximate_distillation import (
    uniform_delta,
    uniform_risk_bound,
    worst_risk,
    worst_student,
)
from lib.book.pages.how_fast import nested_angles
from lib.linear import PolynomialAngleTask, angle, expected_risk, risk_bound, student_limit


def _seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.3, 0.5, 0.99])
def test_no_student_in_the_ball_is_worse_than_the_worst(ratio, seed):
    generator = _seeded(seed)
    inputs = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    teacher = torch.randn(7, generator=generator, dtype=torch.float64)
    limit = student_limit(inputs, teacher)
    worst = worst_student(limit, teacher, ratio)
    assert float((worst - limit).norm() / limit.norm()) == pytest.approx(ratio, abs=1e-12)
    found = float(angle(worst, teacher, signed=True))
    assert found == pytest.approx(float(angle(limit, teacher)) + math.asin(ratio), abs=1e-7)
    noise = torch.randn(5000, 7, generator=generator, dtype=torch.float64)
    ball = limit + ratio * limit.norm() * noise / noise.norm(dim=-1, keepdim=True)
    assert float(angle(ball, teacher, signed=True).max()) <= found + 1e-9


@pytest.mark.parametrize(("limit", "ratio"), [([1.0, 0.0], 1.0), ([1.0, 0.0], -0.1)])
def test_worst_student_refuses_balls_that_hold_the_origin(limit, ratio):
    limit = torch.tensor(limit, dtype=torch.float64)
    with pytest.raises(ValueError, match="ratio"):
        worst_student(limit, torch.ones(2, dtype=torch.float64), ratio)


def test_worst_student_refuses_the_teacher_itself():
    teacher = torch.ones(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="parallel"):
        worst_student(2 * teacher, teacher, 0.1)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.01, 0.3, 0.9, 1.0])
def test_delta_solves_its_equation_and_leaves_room(epsilon):
    beta = torch.linspace(0, math.acos(epsilon), 101, dtype=torch.float64)
    delta = uniform_delta(beta, epsilon)
    product = torch.sin(delta) * torch.sin(beta + delta)
    torch.testing.assert_close(product, torch.full_like(beta, epsilon), atol=1e-9, rtol=0)
    assert bool((delta >= 0).all())
    assert float((beta + delta).max()) <= math.pi / 2 + 1e-9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("epsilon", [0.001, 0.02, 0.2])
def test_a_good_point_keeps_the_worst_student_within_the_promised_angle(epsilon, seed):
    inputs = torch.randn(400, 2, 4, generator=_seeded(seed), dtype=torch.float64)
    teacher = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    limit = student_limit(inputs, teacher)
    norm = limit.norm(dim=-1)
    nearest = angle(inputs, teacher).amin(-1)
    for beta in torch.linspace(0.05, math.acos(epsilon) - 0.01, 7, dtype=torch.float64):
        delta = uniform_delta(beta, epsilon)
        good = nearest < math.pi / 2 - delta - beta
        assert bool((norm[good] > epsilon).all())
        worst = worst_student(limit[good], teacher, epsilon / norm[good])
        assert bool((angle(worst, teacher, signed=True) < math.pi / 2 - beta).all())


@pytest.mark.parametrize("kappa", [0.5, 1.0, 2.0])
def test_the_uniform_bound_is_theorem_3_without_error_and_holds_with_it(kappa):
    task, n = PolynomialAngleTask(8, kappa), torch.arange(1, 8)
    exact = risk_bound(task.angle_tail, n)
    without = uniform_risk_bound(task.angle_tail, n, 0.0)
    torch.testing.assert_close(without, exact, atol=1e-6, rtol=1e-4)
    angles = nested_angles(task.sample((500, 7), _seeded(5)), task.teacher)
    last = exact
    for epsilon in (1e-4, 0.01, 0.1):
        bound = uniform_risk_bound(task.angle_tail, n, epsilon)
        assert bool((bound >= last - 1e-6).all())
        assert bool((worst_risk(angles, torch.cos(angles), epsilon, task).mean(0) <= bound).all())
        last = bound


def test_worst_risk_without_error_is_the_risk():
    task = PolynomialAngleTask(5, 1.0)
    angles = torch.linspace(0.1, 1.5, 9, dtype=torch.float64)
    torch.testing.assert_close(
        worst_risk(angles, torch.cos(angles), 0.0, task), expected_risk(angles, task)
    )


@pytest.mark.parametrize("epsilon", [-0.1, 1.5])
def test_an_error_outside_the_unit_interval_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon"):
        uniform_risk_bound(PolynomialAngleTask(3, 1.0).angle_tail, 2, epsilon)
    with pytest.raises(ValueError, match="epsilon"):
        uniform_delta(0.1, epsilon)


def test_beta_beyond_the_last_is_refused():
    with pytest.raises(ValueError, match="beta"):
        uniform_delta(1.5, 0.5)


def test_worst_risk_refuses_a_student_of_norm_zero():
    zero = torch.zeros(1, dtype=torch.float64)
    with pytest.raises(ValueError, match="norms > 0"):
        worst_risk(zero, zero, 0.1, PolynomialAngleTask(3, 1.0))


def test_uniform_risk_bound_refuses_empty_sets():
    with pytest.raises(ValueError, match="n must be"):
        uniform_risk_bound(PolynomialAngleTask(3, 1.0).angle_tail, 0, 0.1)
