import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from lib.stability import (
    product_descent,
    product_flow_sharpness,
    product_hessian,
    product_loss,
    product_sharpness,
    self_stabilisation,
)

START = torch.tensor([3.0, 0.2], dtype=torch.float64)
weight = st.floats(-5, 5)


@given(a=weight, b=weight)
def test_hessian_and_sharpness_against_autograd(a, b):
    point = torch.tensor([a, b], dtype=torch.float64)
    matrix = torch.autograd.functional.hessian(product_loss, point)
    assert torch.allclose(product_hessian(point), matrix, atol=1e-12)
    top = float(torch.linalg.eigvalsh(matrix)[-1])
    assert float(product_sharpness(point)) == pytest.approx(top, abs=1e-11)


@given(a=st.floats(0.1, 9), sign=st.sampled_from([-1.0, 1.0]))
def test_minima_have_the_sum_of_squares(a, sign):
    point = sign * torch.tensor([a, 1 / a], dtype=torch.float64)
    assert float(product_loss(point)) == pytest.approx(0, abs=1e-28)
    assert float(product_sharpness(point)) == pytest.approx(a * a + 1 / a**2, rel=1e-12)
    assert float(product_flow_sharpness(point)) == pytest.approx(a * a + 1 / a**2, rel=1e-12)


@pytest.mark.parametrize("start", [(3.0, 0.2), (0.5, 0.4), (-2.0, -0.1), (1.0, -0.7), (0.1, 2.0)])
def test_flow_ends_where_the_closed_form_says(start):
    def field(_, point):
        residual = point[0] * point[1] - 1
        return [-residual * point[1], -residual * point[0]]

    end = solve_ivp(field, (0, 200), start, "Radau", rtol=1e-11, atol=1e-12).y[:, -1]
    expected = float(product_flow_sharpness(torch.tensor(start, dtype=torch.float64)))
    assert float((end**2).sum()) == pytest.approx(expected, rel=1e-8)


def test_flow_sharpness_of_the_usual_start():
    assert float(product_flow_sharpness(START)) == pytest.approx(9.180501075649, abs=1e-12)


@pytest.mark.parametrize(
    ("step_size", "final"),
    [(0.15, 9.144246), (0.2, 9.012149), (0.22, 8.510853), (0.25, 6.431983), (0.3, 2.972721)],
)
def test_descent_ends_at_the_measured_sharpness_below_its_threshold(step_size, final):
    path = product_descent(START, step_size, 5000)
    assert float(product_loss(path[-1])) < 1e-20
    assert float(product_sharpness(path[-1])) == pytest.approx(final, abs=1e-6)
    assert float(product_sharpness(path[-1])) < 2 / step_size


def test_descent_against_autograd_for_many_starts():
    starts = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    path = product_descent(starts, 0.1, 20)
    place = starts
    for step in range(21):
        assert torch.allclose(path[step], place, rtol=1e-12)
        place = place.detach().requires_grad_()
        (slope,) = torch.autograd.grad(product_loss(place).sum(), place)
        place = (place - 0.1 * slope).detach()
    assert path.shape == (21, 4, 3, 2)
    assert product_hessian(starts).shape == (4, 3, 2, 2)
    assert product_sharpness(starts).shape == product_flow_sharpness(starts).shape == (4, 3)


def test_descent_may_diverge_and_keeps_the_dtype():
    path = product_descent(torch.tensor([3.0, 0.2]), 1.0, 30)
    assert path.dtype == torch.float32
    assert not bool(torch.isfinite(path[-1]).all())
    assert product_loss(torch.tensor([2, 1])).dtype == torch.float64


@given(alpha=st.floats(0.1, 3), beta=st.floats(0.1, 3), eta=st.floats(0.01, 0.5))
def test_balance_has_period_two(alpha, beta, eta):
    size = math.sqrt(2 * alpha / beta)
    x, y = self_stabilisation(alpha, beta, eta, size, 0.0, 10)
    assert x.tolist() == pytest.approx([size * (-1) ** t for t in range(11)], rel=1e-9)
    assert y.tolist() == pytest.approx([0.0] * 11, abs=1e-9)


@pytest.mark.parametrize("step_size", [1e-2, 1e-3])
def test_small_steps_conserve_the_energy_of_the_oscillation(step_size):
    """In the limit y^2 / 2 - alpha log|x| + beta x^2 / 4 is constant; the error is first order."""
    alpha, beta = 0.7, 1.3
    x, y = self_stabilisation(alpha, beta, step_size, 0.2, -1.0, round(10 / step_size))
    energy = y.square() / 2 - alpha * x.abs().log() + beta * x.square() / 4
    assert float((energy - energy[0]).abs().max()) < 15 * step_size
    assert float(y.max()) > 0.5
    assert bool((x[1:] * x[:-1] < 0).all())


def test_without_oscillation_the_sharpness_rises_at_the_rate_alpha():
    x, y = self_stabilisation(0.5, 1.0, 0.1, torch.zeros(3), torch.tensor([-1.0, 0.0, 1.0]), 20)
    assert x.shape == y.shape == (21, 3)
    assert torch.allclose(y[-1] - y[0], torch.full((3,), 1.0, dtype=torch.float64))


def test_bad_arguments():
    calls = [(call, "point") for call in (product_loss, product_hessian, product_sharpness)]
    for call, name in [*calls, (product_flow_sharpness, "start")]:
        with pytest.raises(ValueError, match=rf"{name} must have shape \(..., 2\), got \(3,\)"):
            call(torch.ones(3))
        with pytest.raises(ValueError, match=f"{name} must be finite"):
            call(torch.tensor([1.0, math.nan]))
    with pytest.raises(ValueError, match="must not have a = -b"):
        product_flow_sharpness(torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match="step_size must be a finite number > 0"):
        product_descent(START, 0.0, 1)
    with pytest.raises(ValueError, match="steps must be an integer >= 0"):
        product_descent(START, 0.1, 1.5)
    for index, name in enumerate(["alpha", "beta", "step_size"]):
        arguments = [1.0, 1.0, 0.1]
        arguments[index] = -1.0
        with pytest.raises(ValueError, match=f"{name} must be a finite number > 0"):
            self_stabilisation(*arguments, 1.0, 0.0, 1)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="start must have shape"):
        product_descent(torch.ones(3), 0.1, 1)
    with pytest.raises(ValueError, match=r"x \(2,\), y \(3,\) must broadcast"):
        self_stabilisation(1.0, 1.0, 0.1, torch.ones(2), torch.ones(3), 1)
