"""The teacher against a second solver, autograd and closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.autograd.functional import hessian, jacobian

from lib.linear.teacher import fit_logistic_teacher


def two_clouds(m: int, d: int, seed: int, distance: float):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(m) % 2
    inputs = torch.randn(m, d, generator=generator, dtype=torch.float64)
    inputs[:, 0] += distance * (2 * labels - 1)
    return inputs, labels


def objective(weights, inputs, labels, penalty):
    """Written with softplus, where the module has the gradient only."""
    losses = torch.nn.functional.softplus((1.0 - 2.0 * labels) * (inputs @ weights))
    return losses.mean() + penalty / 2 * weights @ weights


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("m", "d", "distance", "penalty"),
    [(200, 5, 0.5, 1e-3), (20, 50, 1.0, 1e-2), (100, 10, 6.0, 1e-6), (64, 1, 0.0, 10.0)],
)
def test_against_a_trust_region_solver_with_autograd(m, d, distance, penalty, seed):
    inputs, labels = two_clouds(m, d, seed, distance)

    def value(vector):
        return objective(torch.as_tensor(vector), inputs, labels, penalty)

    second = minimize(
        lambda v: value(v).item(),
        np.zeros(d),
        jac=lambda v: jacobian(value, torch.tensor(v)).numpy(),
        hess=lambda v: hessian(value, torch.tensor(v)).numpy(),
        method="trust-exact",
        options={"gtol": 1e-7 * penalty},
    ).x
    weights = fit_logistic_teacher(inputs, labels, penalty)
    assert (weights - torch.from_numpy(second)).norm() < 2e-6 * weights.norm()


@pytest.mark.parametrize(
    ("scale", "weight"), [(0.1, 0.3), (0.1, 4.0), (1.0, 0.3), (1.0, 4.0), (30.0, 0.3), (30.0, 0.6)]
)
def test_one_input_on_either_side_has_a_closed_form(scale, weight):
    penalty = scale / (1 + math.exp(weight * scale)) / weight
    inputs, labels = torch.tensor([[scale], [-scale]]).double(), torch.tensor([1, 0])
    assert fit_logistic_teacher(inputs, labels, penalty).item() == pytest.approx(weight, rel=1e-6)


def test_strong_penalty_gives_the_scaled_difference_of_means():
    inputs, labels = two_clouds(50, 8, 0, 1.0)
    penalty = 1e6
    expected = ((labels - 0.5)[:, None] * inputs).mean(0) / penalty
    weights = fit_logistic_teacher(inputs, labels, penalty)
    assert torch.allclose(weights, expected, rtol=1e-5)


def test_weights_lie_in_the_span_of_the_inputs():
    inputs, labels = two_clouds(10, 40, 1, 1.0)
    weights = fit_logistic_teacher(inputs, labels, 1e-3)
    _, _, rows = torch.linalg.svd(inputs, full_matrices=False)
    assert torch.allclose(rows.T @ (rows @ weights), weights, atol=1e-8)


def test_shape_and_dtype_from_single_precision_and_bools():
    inputs, labels = two_clouds(30, 4, 2, 1.0)
    weights = fit_logistic_teacher(inputs.float(), labels.bool(), 0.1)
    assert weights.shape == (4,)
    assert weights.dtype == torch.float64
    assert torch.allclose(weights, fit_logistic_teacher(inputs, labels, 0.1), atol=1e-5)


def test_unfinished_solution_is_refused():
    inputs, labels = torch.tensor([[30.0], [-30.0]]), torch.tensor([1, 0])
    with pytest.raises(RuntimeError, match="stopped too early"):
        fit_logistic_teacher(inputs, labels, penalty=7.5 / (1 + math.exp(120)))  # minimum at 4


X, Y = two_clouds(6, 3, 0, 1.0)


@pytest.mark.parametrize(
    ("inputs", "labels", "penalty", "match"),
    [
        (X[0], Y, 0.1, "inputs has shape"),
        (X, Y[:5], 0.1, r"labels \(5,\)"),
        (X[:1], Y[:1], 0.1, "m >= 2"),
        (X * math.nan, Y, 0.1, "NaN or infinity"),
        (X * math.inf, Y, 0.1, "NaN or infinity"),
        (X, torch.ones_like(Y), 0.1, r"values \[1\]"),
        (X, 2 * Y - 1, 0.1, r"values \[-1, 1\]"),
        (X, Y.double(), 0.1, "float64"),
        (X, Y, 0.0, "penalty is 0.0"),
        (X, Y, -1.0, "penalty is -1.0"),
        (X, Y, math.nan, "penalty is nan"),
        (X, Y, math.inf, "penalty is inf"),
    ],
)
def test_bad_argument_is_named(inputs, labels, penalty, match):
    with pytest.raises(ValueError, match=match):
        fit_logistic_teacher(inputs, labels, penalty)
