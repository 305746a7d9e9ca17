"""The window around the crossing and the quadratic model, on quadratics and on a network."""

import copy

import pytest
import torch
from torch import nn

from lib.models import fully_connected
from lib.stability import (
    SharpnessError,
    dense_hessian,
    descend,
    growth_factor,
    onset,
    quadratic_descent,
    quadratic_model_descent,
)
from lib.stability.training import training_problem


def least_squares(curvatures):
    a = torch.tensor(curvatures, dtype=torch.float64)
    model = nn.Linear(len(a), 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    return model, ((len(a) * a).sqrt().diag(), torch.zeros(len(a), 1).double())


def small(seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (30,), generator=generator)
    model = fully_connected(4, (6,), 3, generator=generator, dtype=torch.float64, **options)
    return model, (inputs, labels)


@pytest.mark.parametrize("step_size", [0.3, 0.49, 0.6])
def test_projections_follow_the_top_eigenvector(step_size):
    model, data = least_squares([4.0, 1.0])
    window = onset(model, "square", data, step_size, 8, tol=1e-10)
    expected = (1 - step_size * 4) ** torch.arange(9).double() - 1
    expected = expected * expected[1].sign()
    torch.testing.assert_close(window.projections, expected, rtol=1e-6, atol=1e-9)
    assert window.components.shape == (8,)
    assert window.descent.steps.tolist() == list(range(9))


@pytest.mark.parametrize(("optimiser", "momentum"), [("polyak", 0.5), ("nesterov", 0.9)])
def test_projections_with_momentum_follow_the_recursion(optimiser, momentum):
    model, data = least_squares([4.0, 1.0])
    options = {"optimiser": optimiser, "momentum": momentum}
    window = onset(model, "square", data, 0.4, 8, tol=1e-10, **options)
    path = quadratic_descent([4.0], [1.0], 0.4, 8, optimiser, momentum)[:, 0] - 1
    expected = path * path[1].sign()
    torch.testing.assert_close(window.projections, expected, rtol=1e-6, atol=1e-8)


def test_growth_in_the_window_is_the_growth_factor():
    model, data = least_squares([4.0])
    window = onset(model, "square", data, 0.6, 5)
    growth = (window.components[1:] / window.components[:-1]).abs()
    expected = growth_factor(4.0, 0.6)
    torch.testing.assert_close(growth, torch.full((4,), float(expected)).double())


def test_a_window_is_a_run_measured_at_every_step():
    model, data = small()
    other = copy.deepcopy(model)
    window = onset(model, "square", data, 0.3, 8)
    run = descend(other, "square", data, 0.3, 8, every=1)
    assert torch.equal(window.descent.losses, run.losses)
    assert torch.equal(window.descent.sharpness, run.sharpness)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("step_size", [0.3, 0.6])
def test_the_model_of_a_quadratic_is_the_quadratic(step_size):
    model, data = least_squares([4.0, 1.0])
    run = quadratic_model_descent(model, "square", data, step_size, 9)
    torch.testing.assert_close(run.model_losses, run.true_losses, rtol=1e-10, atol=0)
    a, t = torch.tensor([4.0, 1.0]).double(), torch.arange(10)[:, None]
    expected = (0.5 * a * (1 - step_size * a) ** (2 * t)).sum(1)
    torch.testing.assert_close(run.true_losses, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss", ["square", "cross-entropy"])
@pytest.mark.parametrize("micro_batch", [None, 7])
def test_the_model_has_the_dense_hessian(loss, micro_batch):
    model, data = small()
    problem = training_problem(model, loss, data)
    hessian = dense_hessian(problem.closures(), problem.parameters)
    value, gradient, _ = problem.value_and_gradient()
    gradient = torch.cat([piece.flatten() for piece in gradient])
    expected, change = [], torch.zeros_like(gradient)
    for _ in range(6):
        expected.append(value + gradient @ change + change @ hessian @ change / 2)
        change = change - 1.5 * (gradient + hessian @ change)
    run = quadratic_model_descent(model, loss, data, 1.5, 5, micro_batch=micro_batch)
    torch.testing.assert_close(run.model_losses, torch.stack(expected), rtol=1e-9, atol=0)


def test_the_model_agrees_to_third_order_and_leaves_the_network_alone():
    model, data = small(batch_norm=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gaps = []
    for step_size in (0.02, 0.01):
        run = quadratic_model_descent(model, "square", data, step_size, 1)
        gaps.append(float((run.true_losses[1] - run.model_losses[1]).abs()))
    assert gaps[0] / gaps[1] == pytest.approx(8, rel=0.2)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_true_run_that_diverges_is_filled_with_nan():
    model, data = least_squares([4.0])
    run = quadratic_model_descent(model, "square", data, 2.0, 10)
    assert run.true_losses.shape == run.model_losses.shape == (11,)
    assert bool(run.true_losses[-1].isnan())
    assert bool(run.model_losses.isfinite().all())


def test_no_window_from_weights_that_are_nan():
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, float("nan"))
    with pytest.raises(SharpnessError, match="nan at the window's first iterate"):
        onset(model, "square", (torch.ones(3, 2), torch.ones(3, 1)), 0.1, 2)
