from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from lib.linear import (
    BandAngleTask,
    MarginAngleTask,
    PlanarAngleTask,
    PolynomialAngleTask,
    expected_risk,
    figure1_task,
    transfer_risk,
)

TASKS = [
    PolynomialAngleTask(2, 0.5),
    PolynomialAngleTask(3, 1.0),
    PolynomialAngleTask(4, 0.25),
    PolynomialAngleTask(100, 1.0),
    PolynomialAngleTask(1000, 2.0),
    MarginAngleTask(7, 0.3),
    BandAngleTask(5, 0.6, 1.1),
    figure1_task("B"),
]


class IsotropicTask:
    """Inputs of uniform direction: the sine of the boundary angle is |first coordinate|."""

    def __init__(self, dimension):
        self.dimension = dimension
        self.coordinate = stats.beta((dimension - 1) / 2, (dimension - 1) / 2)

    def boundary_mass(self, y):
        return torch.from_numpy(2 * self.coordinate.cdf((1 + torch.sin(y).numpy()) / 2) - 1)


def student_at(phi, dimension):
    student = torch.zeros(dimension, dtype=torch.float64)
    student[0], student[-1] = math.cos(phi), math.sin(phi)
    return student


def risk_by_quadrature(phi, task):
    """The risk with the integral over the input's angle outside: P[T > tan y / tan phi]."""
    half = (task.dimension - 2) / 2
    upper_tail = stats.beta(half, half).sf

    def wrong(root):
        y = float(task.boundary_angle(min(root**8, 1.0)))
        return 8 * root**7 * upper_tail((1 + math.tan(y) / math.tan(phi)) / 2)

    last = float(task.boundary_mass(phi)) ** (1 / 8)
    return integrate.quad(wrong, 0, last, epsabs=1e-11, epsrel=1e-11, limit=1000)[0]


@pytest.mark.parametrize("dimension", [2, 3, 4, 5, 50, 1000])
@pytest.mark.parametrize("phi", [1e-9, 1e-3, 0.5, 1.5, 1.5707, 2.5, math.pi])
def test_isotropic_inputs_give_the_angle_over_pi(dimension, phi):
    task = PolynomialAngleTask(2, 1.0) if dimension == 2 else IsotropicTask(dimension)
    assert float(expected_risk(phi, task)) == pytest.approx(phi / math.pi, abs=1e-12, rel=1e-9)


@pytest.mark.parametrize("task", TASKS[1:7], ids=repr)
@pytest.mark.parametrize("phi", [0.05, 0.5, 1.2, 1.56])
def test_risk_agrees_with_the_other_order_of_integration(task, phi):
    ours = float(expected_risk(torch.tensor(phi, dtype=torch.float64), task))
    assert ours == pytest.approx(risk_by_quadrature(phi, task), abs=1e-8)


@pytest.mark.parametrize("task", TASKS, ids=repr)
@pytest.mark.parametrize("seed", [0, 1])
def test_risk_agrees_with_monte_carlo(task, seed):
    m = 20_000 if task.dimension < 500 else 4_000
    inputs = task.sample(m, torch.Generator().manual_seed(seed))
    for phi in (0.4, 1.3, 2.6):
        exact = float(expected_risk(phi, task))
        measured = float(transfer_risk(student_at(phi, task.dimension), task.teacher, inputs))
        assert abs(measured - exact) <= 6 * math.sqrt(exact * (1 - exact) / m) + 6 / m


@pytest.mark.parametrize("task", TASKS, ids=repr)
def test_risk_is_monotone_symmetric_and_bounded_by_half_the_close_mass(task):
    phi = torch.linspace(0, math.pi, 101, dtype=torch.float64)
    risk = expected_risk(phi, task)
    assert risk[0] == 0
    assert float(risk[-1]) == 1
    assert float(risk[50]) == pytest.approx(0.5, abs=1e-12)
    assert bool((risk.diff() >= -1e-13).all())
    assert torch.allclose(risk.flip(0), 1 - risk, atol=1e-12)
    acute = phi[:50]
    assert bool((risk[:50] <= task.boundary_mass(acute) / 2 + 1e-13).all())


@given(kappa=st.floats(0.1, 5), phi=st.floats(0, math.pi / 2))
def test_planar_polynomial_risk_in_closed_form(kappa, phi):
    expected = 0.5 * (2 * phi / math.pi) ** kappa
    ours = expected_risk(torch.tensor(phi, dtype=torch.float64), PlanarAngleTask(kappa))
    assert float(ours) == pytest.approx(expected, rel=1e-12, abs=1e-300)


@given(kappa=st.floats(0.1, 5), dimension=st.integers(3, 2000))
def test_tiny_angles_scale_like_a_power(kappa, dimension):
    """arctan(|T| tan phi) is |T| phi for small phi, so R is proportional to phi^kappa."""
    task = PolynomialAngleTask(dimension, kappa)
    small, smaller = expected_risk(torch.tensor([1e-6, 1e-9], dtype=torch.float64), task)
    assert float(small / smaller) == pytest.approx(1e3**kappa, rel=1e-6)
    half = (dimension - 2) / 2
    log_moment = (math.lgamma((kappa + 1) / 2) + math.lgamma(half + 0.5)) - (
        math.lgamma(0.5) + math.lgamma(half + 0.5 + kappa / 2)
    )
    expected = 0.5 * (2e-6 / math.pi) ** kappa * math.exp(log_moment)
    assert float(small) == pytest.approx(expected, rel=1e-6)


def test_many_angles_at_once_equal_one_by_one():
    task = PolynomialAngleTask(10, 1.0)
    phi = torch.linspace(0, math.pi, 9000, dtype=torch.float64).reshape(3, 3000)
    risk = expected_risk(phi, task)
    assert risk.shape == (3, 3000)
    for index in ((0, 0), (1, 1234), (2, 2999)):
        assert torch.allclose(risk[index], expected_risk(phi[index], task), atol=1e-15)


def test_expected_risk_keeps_the_dtype():
    assert expected_risk(torch.tensor([0.5]), TASKS[1]).dtype == torch.float32
    assert expected_risk(0.5, TASKS[1]).shape == ()


@pytest.mark.parametrize("phi", [-0.1, 3.2, math.nan, math.inf])
def test_expected_risk_refuses_no_angle(phi):
    with pytest.raises(ValueError, match="angle must"):
        expected_risk(phi, TASKS[1])


def test_expected_risk_refuses_a_task_without_symmetry():
    with pytest.raises(ValueError, match="boundary_mass"):
        expected_risk(0.5, object())


def test_transfer_risk_counts_disagreements_of_weak_inequalities():
    inputs = torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0], [-1.0, 0.0]])
    teacher, student = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    # teacher: 1, 1, 1, 0 (0 >= 0 counts); student: 1, 0, 1, 1
    assert transfer_risk(student, teacher, inputs) == 0.5
    assert transfer_risk(teacher, teacher, inputs) == 0
    assert transfer_risk(-teacher, teacher, inputs) == 0.5


def test_transfer_risk_broadcasts_like_a_loop():
    generator = torch.Generator().manual_seed(0)
    students = torch.randn(4, 3, 5, generator=generator)
    inputs, teacher = (
        torch.randn(3, 50, 5, generator=generator),
        torch.randn(5, generator=generator),
    )
    risk = transfer_risk(students, teacher, inputs)
    assert risk.shape == (4, 3)
    for i in range(4):
        for j in range(3):
            wrong = sum(bool((students[i, j] @ x >= 0) != (teacher @ x >= 0)) for x in inputs[j])
            assert float(risk[i, j]) == pytest.approx(wrong / 50)
    assert transfer_risk(students, teacher, inputs[0]).shape == (4, 3)


@pytest.mark.parametrize(
    ("student", "inputs", "message"),
    [
        (torch.ones(3), torch.ones(4, 2), "student must have shape"),
        (torch.ones(2), torch.ones(0, 2), "n >= 1"),
        (torch.tensor([math.nan, 1.0]), torch.ones(4, 2), "student must be finite"),
    ],
)
def test_transfer_risk_refuses(student, inputs, message):
    with pytest.raises(ValueError, match=message):
        transfer_risk(student, torch.ones(2), inputs)
