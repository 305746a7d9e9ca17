"""Gradient flow against closed forms, the order of its rules, and descent with tiny steps."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from torch import nn

from lib.models import fully_connected
from lib.stability import descend, descend_beside_flow, flow

CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
)


def least_squares(curvatures, device="cpu"):
    """A linear map whose loss has given curvatures, and a start with one unit along each."""
    a = torch.tensor(curvatures, dtype=torch.float64, device=device)
    model = nn.Linear(len(a), 1, bias=False, dtype=torch.float64).to(device)
    nn.init.ones_(model.weight)
    return model, ((len(a) * a).sqrt().diag(), torch.zeros(len(a), 1).to(a))


def small(dtype=torch.float64, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(30, 4, generator=generator, dtype=dtype)
    labels = torch.randint(3, (30,), generator=generator)
    model = fully_connected(4, (6,), 3, generator=generator, dtype=dtype, **options)
    return model, (inputs, labels)


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_quadratic_follows_its_closed_form(device):
    curvatures = [3.0, 1.0, 0.2]
    model, data = least_squares(curvatures, device)
    run = flow(model, "square", data, 2.5, max_step=0.02)
    assert run.times.tolist() == [0, 1, 2, 2.5]
    a = torch.tensor(curvatures, dtype=torch.float64)
    expected = (0.5 * a * torch.exp(-2 * run.times[:, None] * a)).sum(1)
    torch.testing.assert_close(run.losses, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(run.sharpness[:, 0], torch.full((4,), 3.0).double())
    torch.testing.assert_close(weights(model).cpu(), torch.exp(-2.5 * a), rtol=1e-6, atol=0)
    assert run.integrator_steps.tolist() == [0, 50, 100, 125]
    assert run.accuracies is None
    assert not run.diverged


@given(
    curvature=st.floats(0.1, 20),
    every=st.floats(0.2, 3),
    time=st.floats(0.5, 4),
    rule=st.sampled_from(["rk4", "midpoint", "euler"]),
)
@hypothesis_settings(max_examples=25)
def test_steps_are_the_stability_polynomial(curvature, every, time, rule):
    """On a quadratic a step multiplies by a truncated exponential series.

    Where the factor is 0 in exact arithmetic, rounding leaves 1e-16, and its square in the loss.
    """
    model, data = least_squares([curvature])
    run = flow(model, "square", data, time, every=every, rule=rule, max_step=0.3)
    order = {"rk4": 4, "midpoint": 2, "euler": 1}[rule]
    bound, factor, before = min(1 / curvature, 0.3), 1.0, 0.0
    for index, now in enumerate(run.times.tolist()):
        steps = math.ceil((now - before) / bound - 1e-9)
        z = -curvature * (now - before) / max(steps, 1)
        factor *= sum(z**j / math.factorial(j) for j in range(order + 1)) ** steps
        expected = 0.5 * curvature * factor**2
        assert float(run.losses[index]) == pytest.approx(expected, rel=1e-9, abs=1e-28)
        before = now
    assert run.times[-1] == time


@pytest.mark.parametrize("loss", ["square", "cross-entropy"])
def test_flow_agrees_with_scipy(loss):
    model, (inputs, labels) = small()
    start, names = weights(model), [name for name, _ in model.named_parameters()]
    shapes = [parameter.shape for parameter in model.parameters()]

    def value(flat):
        pieces = flat.split([shape.numel() for shape in shapes])
        pieces = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        outputs = torch.func.functional_call(model, dict(zip(names, pieces, strict=True)), inputs)
        if loss == "square":
            return 0.5 * (outputs - torch.eye(3).double()[labels]).square().sum(1).mean()
        return -outputs.log_softmax(1)[range(30), labels].mean()

    slope = torch.func.grad(value)
    exact = solve_ivp(
        lambda _, flat: -slope(torch.from_numpy(flat)).numpy(),
        (0, 6),
        start.numpy(),
        method="DOP853",
        rtol=1e-11,
        atol=1e-13,
    )
    run = flow(model, loss, (inputs, labels), 6.0, every=3, max_step=0.05)
    end = torch.from_numpy(exact.y[:, -1])
    torch.testing.assert_close(weights(model), end, rtol=1e-6, atol=1e-7)
    assert float(run.losses[-1]) == pytest.approx(float(value(end)), rel=1e-7)


@pytest.mark.parametrize(("rule", "order"), [("euler", 1), ("midpoint", 2), ("rk4", 4)])
def test_halving_the_step_shows_the_order(rule, order):
    ends = []
    for max_step in (0.4, 0.2, 0.1, 0.0125):
        model, data = small()
        flow(model, "square", data, 2.0, every=2, rule=rule, max_step=max_step)
        ends.append(weights(model))
    errors = [float((end - ends[-1]).norm()) for end in ends[:-1]]
    measured = math.log2(errors[1] / errors[2])
    assert measured == pytest.approx(order, abs=0.35)


def test_euler_is_descent():
    """Euler's rule with steps of eta is gradient descent with step size eta."""
    model, data = small()
    other = copy.deepcopy(model)
    run = flow(model, "square", data, 2.0, every=0.5, rule="euler", max_step=0.1)
    same = descend(other, "square", data, 0.1, 20, every=5)
    torch.testing.assert_close(weights(model), weights(other), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(run.losses, same.losses[::5], rtol=1e-12, atol=0)
    torch.testing.assert_close(run.sharpness, same.sharpness, rtol=1e-6, atol=0)
    torch.testing.assert_close(run.accuracies, same.accuracies)


def test_sharpness_bounds_the_step():
    model, data = least_squares([50.0])
    run = flow(model, "square", data, 1.0, max_step=10.0)
    assert run.integrator_steps.tolist() == [0, 50]
    model, data = least_squares([50.0])
    wild = flow(model, "square", data, 3.0, alpha=5.0, max_step=10.0)
    assert wild.diverged
    assert wild.times.tolist() == [0.0]


def test_micro_batches_change_nothing():
    ends = []
    for micro_batch in (None, 7):
        model, data = small()
        flow(model, "cross-entropy", data, 2.0, micro_batch=micro_batch)
        ends.append(weights(model))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-11)


def test_distance_from_descent_has_its_closed_form():
    curvatures = [2.0, 0.5]
    model, data = least_squares(curvatures)
    run = descend_beside_flow(model, "square", data, 0.3, 12, every=4, max_step=0.01)
    a, t = torch.tensor(curvatures, dtype=torch.float64), run.descent.steps[:, None]
    descent, exact = (1 - 0.3 * a) ** t, torch.exp(-0.3 * a * t)
    torch.testing.assert_close(run.distances, (descent - exact).norm(dim=1), rtol=1e-6, atol=0)
    torch.testing.assert_close(run.travelled, (descent - 1).norm(dim=1), rtol=1e-12, atol=0)
    torch.testing.assert_close(run.flow_losses, (0.5 * a * exact**2).sum(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(run.flow_sharpness, torch.full((4,), 2.0).double())
    torch.testing.assert_close(weights(model), descent[-1], rtol=1e-12, atol=0)


def test_both_runs_are_those_that_run_alone():
    model, data = small(batch_norm=True)
    alone, follower = copy.deepcopy(model), copy.deepcopy(model)
    run = descend_beside_flow(model, "square", data, 0.1, 20, every=10)
    same = descend(alone, "square", data, 0.1, 20, every=10)
    assert torch.equal(run.descent.losses, same.losses)
    assert torch.equal(run.descent.sharpness, same.sharpness)
    assert torch.equal(weights(model), weights(alone))
    record = flow(follower, "square", data, 2.0, every=1.0)
    torch.testing.assert_close(run.flow_losses, record.losses, rtol=1e-9, atol=0)
    gap = (weights(alone) - weights(follower)).norm()
    assert float(run.distances[-1]) == pytest.approx(float(gap), rel=1e-6)


def test_a_descent_that_diverges_ends_the_comparison():
    model, data = least_squares([4.0])
    run = descend_beside_flow(model, "square", data, 1.0, 100, every=2)
    assert run.descent.diverged
    assert len(run.distances) == len(run.descent.steps) == len(run.flow_losses) < 10


REFUSED = [
    ({"time": 0.0}, "time must be a finite number > 0, got 0.0"),
    ({"every": -1.0}, "every must be"),
    ({"alpha": 0.0}, "alpha must be"),
    ({"max_step": float("inf")}, "max_step must be"),
    ({"rule": "heun"}, "rule must be one of 'euler', 'midpoint', 'rk4', got 'heun'"),
    ({"loss": "mse"}, "loss must be one of"),
    ({"k": 0}, "k must be"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_bad_input_is_refused(change, message):
    model, data = small()
    arguments = {"model": model, "loss": "square", "data": data, "time": 1.0}
    with pytest.raises(ValueError, match=message):
        flow(**(arguments | change))
