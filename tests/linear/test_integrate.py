"""The integrator: order, stiff reference problems, batches, exact landing, refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from lib.linear.integrate import check_times, extrapolated_step, integrate

RATES = (0.04, 1e4, 3e7)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def pendulum(states):
    angle, speed = states.unbind(-1)
    return torch.stack([speed, -torch.sin(angle)], dim=-1)


def pendulum_jacobian(state):
    zero, one = torch.zeros_like(state[:, 0]), torch.ones_like(state[:, 0])
    rows = [torch.stack([zero, one], -1), torch.stack([-torch.cos(state[:, 0]), zero], -1)]
    return torch.stack(rows, dim=-2)


def robertson(states):
    a, b, c = states.unbind(-1)
    first, second, third = RATES[0] * a, RATES[1] * b * c, RATES[2] * b * b
    return torch.stack([second - first, first - second - third, third], dim=-1)


def robertson_jacobian(state):
    _, b, c = state.unbind(-1)
    zero = torch.zeros_like(b)
    first, second, third = zero + RATES[0], RATES[1] * c, RATES[1] * b
    last = 2 * RATES[2] * b
    rows = [[-first, second, third], [first, -second - last, -third], [zero, last, zero]]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def linear(states, matrix):
    return states @ matrix.mT


def linear_jacobian(state, matrix):
    return matrix


def scipy_reference(field, initial, times, **options):
    def right(_, y):
        return field(torch.from_numpy(y)).numpy()

    solution = solve_ivp(right, (0, times[-1]), initial, t_eval=times, **options)
    assert solution.success
    return torch.from_numpy(solution.y.T)


@pytest.mark.parametrize("columns", [2, 3, 4, 5])
def test_local_order_of_the_step_and_of_its_estimate(columns):
    start, steps = tensor([1.0, 0.5]), [0.4, 0.2]
    errors, estimates = [], []
    for h in steps:
        exact = scipy_reference(
            pendulum, start[0].numpy(), np.array([h]), method="DOP853", rtol=1e-13, atol=1e-15
        )
        increment, estimate = extrapolated_step(
            pendulum, pendulum_jacobian, start, tensor(h), columns=columns
        )
        errors.append(float((start + increment - exact).norm()))
        estimates.append(float(estimate.norm()))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(columns + 1, abs=0.5)
    assert np.log2(estimates[0] / estimates[1]) == pytest.approx(columns, abs=0.5)
    assert estimates[1] > errors[1]


def test_robertson_agrees_with_radau_and_keeps_the_total_mass():
    times = torch.logspace(-5, 5, 6, dtype=torch.float64)
    solution = integrate(robertson, robertson_jacobian, tensor([1.0, 0.0, 0.0]), times, atol=1e-15)
    reference = scipy_reference(
        robertson, np.array([1.0, 0.0, 0.0]), times.numpy(), method="Radau", rtol=1e-10, atol=1e-16
    )
    assert torch.allclose(solution.states[0], reference, rtol=1e-7, atol=0)
    assert (solution.states.sum(-1) - 1).abs().max() < 1e-12
    assert int(solution.steps) < 150


def test_van_der_pol_relaxation_agrees_with_radau():
    stiffness = 1e3

    def field(states):
        x, v = states.unbind(-1)
        return torch.stack([v, stiffness * (1 - x * x) * v - x], dim=-1)

    def jacobian(state):
        x, v = state.unbind(-1)
        lower = torch.stack([-2 * stiffness * x * v - 1, stiffness * (1 - x * x)], -1)
        return torch.stack([torch.stack([torch.zeros_like(x), torch.ones_like(x)], -1), lower], -2)

    times = tensor(1.0, 500.0, 900.0)
    solution = integrate(field, jacobian, tensor([2.0, 0.0]), times)
    reference = scipy_reference(
        field, np.array([2.0, 0.0]), times.numpy(), method="Radau", rtol=1e-9, atol=1e-12
    )
    assert torch.allclose(solution.states[0], reference, rtol=1e-5, atol=1e-9)


@settings(max_examples=5)
@given(seed=st.integers(0, 2**31), spread=st.floats(0.0, 3.0))
def test_stiff_linear_system_has_its_closed_form(seed, spread):
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(3, 5, 5, generator=generator, dtype=torch.float64)
    vectors = torch.linalg.qr(draw)[0]
    rates = -(10 ** (spread * torch.linspace(-1, 1, 5, dtype=torch.float64)))  # up to 1e6 apart
    matrix = vectors @ torch.diag_embed(rates.expand(3, 5)) @ vectors.mT
    start = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    times = tensor(0.0, 1e-3, 1.0, 1e3)
    solution = integrate(linear, linear_jacobian, start, times, (matrix,), normwise=True)
    modes = torch.einsum("bij,bi->bj", vectors, start)[:, None] * (times[:, None] * rates).exp()
    exact = torch.einsum("bij,btj->bti", vectors, modes)
    assert torch.allclose(solution.states, exact, rtol=0, atol=1e-8)


def test_tighter_tolerance_gives_smaller_error_and_more_steps():
    times, start = tensor(20.0), tensor([1.0, 0.5])
    reference = scipy_reference(
        pendulum, start[0].numpy(), times.numpy(), method="DOP853", rtol=1e-13, atol=1e-14
    )
    loose, tight = (
        integrate(pendulum, pendulum_jacobian, start, times, rtol=rtol) for rtol in (1e-4, 1e-10)
    )
    loose_error, tight_error = ((s.states[0] - reference).norm() for s in (loose, tight))
    assert tight_error < 1e-8 < loose_error < 1e-2
    assert loose.steps < tight.steps


def test_normwise_control_does_not_see_a_rotation():
    draw = torch.randn(2, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    rotation = torch.linalg.qr(draw)[0]
    start, times = tensor([1.0, 0.5]), tensor(3.0, 10.0)
    plain = integrate(pendulum, pendulum_jacobian, start, times, normwise=True)
    turned = integrate(
        lambda y: pendulum(y @ rotation) @ rotation.mT,
        lambda y: rotation @ pendulum_jacobian(y @ rotation) @ rotation.mT,
        start @ rotation.mT,
        times,
        normwise=True,
    )
    assert turned.steps == plain.steps
    assert torch.allclose(turned.states @ rotation, plain.states, rtol=0, atol=1e-10)


def test_members_agree_with_being_solved_alone():
    start = torch.randn(7, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    times = tensor(0.5, 4.0)
    together = integrate(pendulum, pendulum_jacobian, start, times)
    for i in range(len(start)):
        alone = integrate(pendulum, pendulum_jacobian, start[i : i + 1], times)
        assert torch.allclose(together.states[i], alone.states[0], rtol=0, atol=1e-13)
        assert together.steps[i] == alone.steps[0]


def test_finished_members_cost_nothing():
    rows = []

    def field(states, rate):
        rows.append(len(states))
        return -rate[:, None] * (states - torch.cos(states))

    def jacobian(state, rate):
        return -(rate * (1 + torch.sin(state)))[..., None]

    rate = torch.cat([tensor([1e4]), torch.full((50, 1), 1e-6, dtype=torch.float64)])
    solution = integrate(field, jacobian, torch.zeros_like(rate), tensor(1.0), (rate,))
    assert solution.steps[0] > 3 * solution.steps[1:].max()
    tries = int((solution.steps + solution.rejections).max())
    assert rows.count(1) > tries  # most steps were made by the stiff member alone
    assert sum(rows) < 0.5 * len(rows) * len(rate)


def test_requested_times_are_hit_exactly():
    times = tensor(0.0, 0.1, 0.1 + 1e-9, 7.3, 1e5)
    solution = integrate(
        lambda y: torch.ones_like(y), lambda y: y[..., None] * 0.0, tensor([0.0]), times
    )
    assert torch.allclose(solution.states[0, :, 0], times, rtol=1e-11, atol=0)


def test_step_into_the_undefined_is_refused_and_repeated():
    # y' = (1 - y^2)^(1/2) from 0 is the sine; a first step of full length leaves [-1, 1].
    solution = integrate(
        lambda y: (1 - y * y).sqrt(),
        lambda y: (-y / (1 - y * y).sqrt())[..., None],
        tensor([0.0]),
        tensor(1.5),
    )
    assert int(solution.rejections) > 0
    assert float(solution.states) == pytest.approx(np.sin(1.5), abs=1e-9)


def test_times_may_hold_only_the_start():
    solution = integrate(pendulum, pendulum_jacobian, tensor([1.0, 0.5]), tensor(0.0))
    assert solution.states.tolist() == [[[1.0, 0.5]]]
    assert solution.steps.tolist() == [0]


def test_too_few_steps_say_where_the_run_stands():
    with pytest.raises(RuntimeError, match=r"max_steps=3: 1 members unfinished, member 0 at time"):
        integrate(pendulum, pendulum_jacobian, tensor([1.0, 0.5]), tensor(50.0), max_steps=3)


def test_a_solution_that_ends_before_the_last_time_is_reported():
    def square(y):
        return y * y

    with pytest.raises(RuntimeError, match="resolution of time"):
        integrate(square, lambda y: 2 * y[..., None], tensor([1.0]), tensor(2.0))  # 1 / (1 - t)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rtol": 1e-14}, "rtol must be a finite number >= 1e-13"),
        ({"rtol": float("nan")}, "rtol"),
        ({"atol": 0.0}, "atol must be a finite number > 0"),
        ({"max_steps": 0}, "max_steps must be an integer >= 1"),
        ({"initial": torch.ones(2, dtype=torch.float64)}, "initial must be a float64 tensor"),
        ({"initial": torch.ones(1, 2)}, "initial must be a float64 tensor"),
        ({"initial": tensor([float("nan"), 0.0])}, "initial must be finite"),
        ({"arguments": (torch.ones(3),)}, r"arguments\[0\] must have first dimension B = 1"),
        ({"times": tensor(-1.0)}, "times must be >= 0"),
    ],
)
def test_bad_arguments_are_named(change, message):
    problem = {"initial": tensor([1.0, 0.5]), "times": tensor(1.0), **change}
    with pytest.raises(ValueError, match=message):
        integrate(pendulum, pendulum_jacobian, **problem)


def test_a_field_that_is_undefined_at_the_start_is_refused():
    with pytest.raises(ValueError, match="field must be finite at initial"):
        integrate(lambda y: y.log(), lambda y: 1 / y[..., None], tensor([-1.0]), tensor(1.0))


def test_fewer_than_two_columns_are_refused():
    with pytest.raises(ValueError, match="columns must be an integer >= 2"):
        extrapolated_step(pendulum, pendulum_jacobian, tensor([1.0, 0.5]), tensor(0.1), columns=1)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (tensor([1.0, 2.0]), r"times must have shape \(T,\)"),
        (torch.empty(0), r"times must have shape \(T,\)"),
        (tensor(0.0, float("inf")), "times must be finite"),
        (tensor(2.0, 1.0), "got 2.0 followed by 1.0"),
    ],
)
def test_bad_times_are_named(times, message):
    with pytest.raises(ValueError, match=message):
        check_times(times)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_on_the_accelerator():
    start, times = tensor([1.0, 0.0, 0.0]), tensor(1.0, 1e4)
    here = integrate(robertson, robertson_jacobian, start, times, atol=1e-15)
    there = integrate(robertson, robertson_jacobian, start.cuda(), times, atol=1e-15)
    assert there.states.is_cuda
    assert torch.allclose(there.states.cpu(), here.states, rtol=1e-7, atol=0)
