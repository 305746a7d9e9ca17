from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from lib.linear import (
    cross_entropy,
    cross_entropy_gradient,
    cross_entropy_hessian,
    logits,
    soft_labels,
)
from lib.linear.loss import bernoulli_divergence, sigmoid_difference, sigmoid_slope


def problem(seed, *batch, n=7, d=4, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    inputs = torch.randn(*batch, n, d, **options)
    return scale * torch.randn(*batch, d, **options), inputs, torch.randn(*batch, d, **options)


def plain_loss(weights, inputs, teacher):
    """The definition: binary cross-entropy on soft labels, less the entropy of the labels."""
    labels = torch.sigmoid(inputs @ teacher)
    student = binary_cross_entropy_with_logits(inputs @ weights, labels)
    return student - binary_cross_entropy_with_logits(inputs @ teacher, labels)


def exact_divergence(z, delta):
    """KL(sigma(z) || sigma(z + delta)) with 80 digits."""
    with mpmath.workdps(80):
        z, u = mpmath.mpf(z), mpmath.mpf(z) + mpmath.mpf(delta)
        p, s = 1 / (1 + mpmath.exp(-z)), 1 / (1 + mpmath.exp(-u))
        q, r = 1 / (1 + mpmath.exp(z)), 1 / (1 + mpmath.exp(u))
        return p * mpmath.log(p / s) + q * mpmath.log(q / r), s - p


@pytest.mark.parametrize("seed", range(5))
def test_loss_is_cross_entropy_less_entropy(seed):
    weights, inputs, teacher = problem(seed, scale=3.0)
    assert torch.allclose(
        cross_entropy(weights, inputs, teacher), plain_loss(weights, inputs, teacher), rtol=1e-12
    )


def test_loss_vanishes_exactly_on_every_minimiser_along_the_axes():
    inputs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    teacher = torch.tensor([3.0, -1.0, 5.0])
    assert cross_entropy(torch.tensor([3.0, -1.0, -9.0]), inputs, teacher) == 0


@given(
    z=st.floats(-40, 40),
    exponent=st.floats(-9, 2),
    sign=st.sampled_from([-1.0, 1.0]),
)
def test_divergence_and_slope_keep_their_relative_accuracy(z, exponent, sign):
    delta = sign * 10**exponent
    exact, difference = exact_divergence(z, delta)
    z, delta = torch.tensor([z, delta], dtype=torch.float64)
    assert abs(float(bernoulli_divergence(z, delta)) / exact - 1) < 2e-13
    assert abs(float(sigmoid_difference(z, delta)) / difference - 1) < 2e-14


@pytest.mark.parametrize("size", [0.01, 30.0])
@pytest.mark.parametrize("z", [-20.0, -1.0, 0.0, 0.3, 20.0])
def test_divergence_is_accurate_on_both_sides_of_each_switch(size, z):
    for delta in (size * (1 - 1e-9), size * (1 + 1e-9), -size * (1 - 1e-9), -size * (1 + 1e-9)):
        exact, _ = exact_divergence(z, delta)
        ours = bernoulli_divergence(*torch.tensor([z, delta], dtype=torch.float64))
        assert abs(float(ours) / exact - 1) < 1e-13


@given(z=st.floats(-1e4, 1e4), u=st.floats(-1e4, 1e4))
def test_loss_is_finite_and_never_negative(z, u):
    one = torch.ones(1, 1, dtype=torch.float64)
    z, u = torch.tensor([[z], [u]], dtype=torch.float64)
    loss, gradient = cross_entropy(u, one, z), cross_entropy_gradient(u, one, z)
    assert torch.isfinite(loss)
    assert loss >= 0
    assert abs(float(gradient)) <= 1
    assert float(gradient) * float(u - z) >= 0


def test_opposite_certain_logits_cost_their_difference():
    one, z = torch.ones(1, 1, dtype=torch.float64), torch.tensor([1e4], dtype=torch.float64)
    assert cross_entropy(-z, one, z) == 1e4


@pytest.mark.parametrize("seed", range(3))
def test_gradient_and_hessian_agree_with_autograd_of_the_definition(seed):
    weights, inputs, teacher = problem(seed)
    weights.requires_grad_()
    gradient = torch.autograd.grad(plain_loss(weights, inputs, teacher), weights)[0]
    ours = cross_entropy_gradient(weights, inputs, teacher)
    assert torch.allclose(ours, gradient, rtol=1e-12, atol=1e-15)
    hessian = torch.autograd.functional.hessian(
        lambda w: plain_loss(w, inputs, teacher), weights.detach()
    )
    assert torch.allclose(cross_entropy_hessian(weights, inputs), hessian, rtol=1e-12, atol=1e-15)


def test_loss_itself_can_be_differentiated():
    weights, inputs, teacher = problem(8, scale=5.0)
    weights.requires_grad_()
    assert torch.autograd.gradcheck(lambda w: cross_entropy(w, inputs, teacher), (weights,))
    near = (teacher + 1e-6 * weights.detach()).requires_grad_()
    cross_entropy(near, inputs, teacher).backward()
    assert torch.allclose(near.grad, cross_entropy_gradient(near.detach(), inputs, teacher), 1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_gradient_lies_in_the_span(seed):
    weights, inputs, teacher = problem(seed, n=3, d=9)
    gradient = cross_entropy_gradient(weights, inputs, teacher)
    rest = gradient - torch.linalg.lstsq(inputs.mT, gradient[:, None]).solution[:, 0] @ inputs
    assert rest.norm() < 1e-14 * gradient.norm().clamp(min=1)


def test_gradient_of_a_nearly_perfect_student_is_hessian_times_error():
    weights, inputs, teacher = problem(1)
    error = 1e-13 * weights
    ours = cross_entropy_gradient(teacher + error, inputs, teacher)
    actual = teacher + error - teacher
    assert torch.allclose(ours, cross_entropy_hessian(teacher, inputs) @ actual, rtol=1e-9)


@given(seed=st.integers(0, 2**32))
def test_rotations_leave_the_loss_alone_and_turn_the_gradient(seed):
    weights, inputs, teacher = problem(seed)
    q = torch.linalg.qr(problem(seed + 1, n=4)[1]).Q
    turned = (weights @ q, inputs @ q, teacher @ q)
    assert torch.allclose(cross_entropy(*turned), cross_entropy(weights, inputs, teacher))
    gradient = cross_entropy_gradient(weights, inputs, teacher) @ q
    assert torch.allclose(cross_entropy_gradient(*turned), gradient, atol=1e-14)


@given(seed=st.integers(0, 2**32), t=st.floats(0, 1))
def test_loss_is_convex(seed, t):
    first, inputs, teacher = problem(seed, scale=4.0)
    second = -first.flip(0)
    between = cross_entropy((1 - t) * first + t * second, inputs, teacher)
    chord = (1 - t) * cross_entropy(first, inputs, teacher)
    chord = chord + t * cross_entropy(second, inputs, teacher)
    assert between <= chord + 1e-14


def test_batches_equal_loops():
    weights, inputs, teacher = problem(3, 2, 3)
    for function in (cross_entropy, cross_entropy_gradient):
        together = function(weights, inputs, teacher)
        for i in range(2):
            for j in range(3):
                single = function(weights[i, j], inputs[i, j], teacher[i, j])
                assert torch.allclose(together[i, j], single, rtol=1e-13, atol=1e-16)


def test_everything_broadcasts():
    weights, inputs, teacher = problem(4, 5)
    assert cross_entropy(weights[:, None], inputs, teacher[0]).shape == (5, 5)
    assert cross_entropy_gradient(weights, inputs[0], teacher[0]).shape == (5, 4)
    assert cross_entropy_hessian(weights[0], inputs).shape == (5, 4, 4)
    assert torch.allclose(logits(inputs[0], weights)[2], inputs[0] @ weights[2])
    assert soft_labels(inputs, teacher[0]).shape == (5, 7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_results_come_in_the_dtype_of_the_arguments(dtype):
    weights, inputs, teacher = (t.to(dtype) for t in problem(5))
    loss = cross_entropy(weights, inputs, teacher)
    assert loss.dtype == dtype
    exact = cross_entropy(weights.double(), inputs.double(), teacher.double())
    assert loss == exact.to(dtype)
    assert soft_labels(inputs, teacher).dtype == dtype
    assert cross_entropy_gradient(weights, inputs, teacher).dtype == dtype
    assert cross_entropy_hessian(weights, inputs).dtype == dtype


def test_soft_labels_of_known_logits():
    labels = soft_labels(torch.tensor([[0], [1], [-1]]), torch.tensor([3.0]).log())
    assert torch.allclose(labels, torch.tensor([0.5, 0.75, 0.25], dtype=labels.dtype))


def test_slope_of_a_saturated_unit():
    assert math.isclose(float(sigmoid_slope(torch.tensor(-700.0).double())), math.exp(-700))
    assert math.isclose(float(sigmoid_slope(torch.tensor(700.0).double())), math.exp(-700))


@pytest.mark.parametrize("function", [cross_entropy, cross_entropy_gradient])
@pytest.mark.parametrize(
    ("weights", "inputs", "teacher", "message"),
    [
        (torch.ones(3), torch.ones(2, 2), torch.ones(2), "weights must have shape"),
        (torch.ones(2), torch.ones(2, 2), torch.ones(3), "teacher must have shape"),
        (torch.ones(2), torch.ones(0, 2), torch.ones(2), "n >= 1"),
        (torch.ones(2), torch.ones(2), torch.ones(2), r"shape \(\.\.\., n, d\)"),
        (torch.tensor([1.0, math.nan]), torch.ones(2, 2), torch.ones(2), "weights must be finite"),
        (torch.ones(2), torch.full((2, 2), math.inf), torch.ones(2), "inputs must be finite"),
        (torch.ones(3, 2), torch.ones(4, 2, 2), torch.ones(2), "broadcast"),
    ],
)
def test_bad_arguments_are_named(function, weights, inputs, teacher, message):
    with pytest.raises(ValueError, match=message):
        function(weights, inputs, teacher)
