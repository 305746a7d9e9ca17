"""Gradient flows against scipy, plain descent, closed forms, and Theorems 1 and 2."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad, solve_ivp

from lib.linear.deep_limit import deep_student_limit
from lib.linear.factors import balanced_factors, end_to_end, initial_norm_limit
from lib.linear.flows import (
    deep_gradient_flow,
    end_to_end_flow,
    gradient_flow,
    hard_target_flow,
)
from lib.linear.geometry import project_onto_span
from lib.linear.limits import hard_target_limit, student_limit
from lib.linear.loss import cross_entropy, cross_entropy_gradient, cross_entropy_hessian


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def facing(vector, inputs, teacher):
    """The vector or its negative, whichever has the smaller loss."""
    losses = cross_entropy(torch.stack([vector, -vector]), inputs, teacher)
    return vector if losses[0] < losses[1] else -vector


def radau(right, start, times):
    solution = solve_ivp(
        right, (0.0, float(times[-1])), start, "Radau", t_eval=times.numpy(), rtol=1e-10, atol=1e-12
    )
    assert solution.success
    return torch.from_numpy(solution.y.T)


def sigmoid(u):
    return 1.0 / (1.0 + np.exp(-u))


TIMES = tensor(0.0, 0.5, 4.0, 60.0)


# --- one layer -------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), [(3, 6), (7, 4), (4, 4)])
@pytest.mark.parametrize("flow", [gradient_flow, hard_target_flow])
def test_one_layer_agrees_with_radau_in_all_coordinates(flow, n, d):
    inputs, teacher, start = normal(1, n, d), normal(2, d), normal(3, d)
    x, u = inputs.numpy(), (inputs @ teacher).numpy()
    labels = sigmoid(u) if flow is gradient_flow else (u >= 0).astype(float)
    reference = radau(lambda _, w: x.T @ (labels - sigmoid(x @ w)) / n, start.numpy(), TIMES)
    path = flow(inputs, teacher, TIMES, start)
    assert torch.allclose(path, reference, rtol=0, atol=1e-7)


def test_small_descent_steps_approach_the_flow_at_first_order():
    inputs, teacher = normal(1, 3, 5), normal(2, 5)
    limit = gradient_flow(inputs, teacher, tensor(2.0))[0]
    errors = []
    for steps in (500, 1000):
        w = torch.zeros(5, dtype=torch.float64)
        for _ in range(steps):
            w = w - 2.0 / steps * cross_entropy_gradient(w, inputs, teacher)
        errors.append(float((w - limit).norm()))
    assert errors[1] < 1e-3
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=1e-2)


@pytest.mark.parametrize(("x", "teacher", "start"), [(1.0, 2.0, 0.0), (0.5, -3.0, 1.0), (2, 1, 4)])
def test_one_dimension_has_an_implicit_solution(x, teacher, start):
    # u = x w, p = sigma(x w*), q = 1 - p:  int du / (p - sigma(u)) = x^2 t, and the integral is
    # (u - log|p - q e^u| / q) / p.
    p = sigmoid(x * teacher)
    q = 1.0 - p

    def primitive(u):
        return (u - np.log(np.abs(p - q * np.exp(u))) / q) / p

    times = tensor(0.1, 1.0, 5.0)
    path = gradient_flow(tensor([x]), tensor(teacher), times, tensor(start))[:, 0].numpy()
    elapsed = (primitive(x * path) - primitive(x * start)) / x**2
    assert elapsed == pytest.approx(times.numpy(), rel=1e-8)


def test_hard_labels_in_one_dimension_have_an_implicit_solution():
    # w' = x sigma(-x w): x w + e^(x w) = x^2 t + 1 from zero
    x, times = 3.0, tensor(1.0, 100.0, 1e5)
    u = x * hard_target_flow(tensor([x]), tensor(1.0), times)[:, 0]
    assert torch.allclose(u + u.exp(), x * x * times + 1.0, rtol=1e-9)


def test_the_part_outside_the_data_span_is_constant():
    inputs, teacher, start = normal(1, 3, 8), normal(2, 8), normal(3, 8)
    outside = torch.linalg.svd(inputs)[2][3:]
    for flow in (gradient_flow, hard_target_flow):
        path = flow(inputs, teacher, tensor(0.0, 1.0, 1e5), start)
        assert torch.allclose(path[0], start, rtol=0, atol=1e-15)
        assert ((path - start) @ outside.mT).abs().max() < 1e-14


@pytest.mark.parametrize(("n", "d"), [(5, 12), (40, 6), (6, 6)])
def test_theorem_1(n, d):
    inputs, teacher = normal(1, n, d) / d**0.5, normal(2, d)
    curvature = torch.linalg.eigvalsh(cross_entropy_hessian(teacher, inputs))
    slowest = curvature[curvature > 1e-12][0]
    path = gradient_flow(inputs, teacher, 40.0 / slowest[None])
    assert torch.allclose(path[0], student_limit(inputs, teacher), rtol=0, atol=1e-9)


def test_duplicated_examples_reach_the_projection_on_what_they_span():
    inputs = normal(1, 2, 4)[[0, 1, 0, 1, 1]]
    path = gradient_flow(inputs, normal(2, 4), tensor(1e5))
    limit = project_onto_span(inputs, normal(2, 4))
    assert torch.allclose(path[0], limit, rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", ["logits", "inputs", "condition"])
def test_extreme_problems_stay_finite_and_descend(case):
    inputs, teacher = normal(1, 8, 12), normal(2, 12)
    if case == "condition":
        left, _, right = torch.linalg.svd(inputs, full_matrices=False)
        inputs = left @ torch.diag(torch.logspace(0, -7, 8, dtype=torch.float64)) @ right
    else:
        factor = 1e4 / float((inputs @ teacher).abs().max())
        inputs, teacher = (
            (inputs, factor * teacher) if case == "logits" else (factor * inputs, teacher)
        )
    times = tensor(0.0, 1.0, 1e3, 1e5)
    start = facing(0.1 * normal(3, 12), inputs, teacher)
    for path in (
        gradient_flow(inputs, teacher, times),
        end_to_end_flow(start, 3, inputs, teacher, times),
    ):
        assert torch.isfinite(path).all()
        losses = cross_entropy(path, inputs, teacher)
        assert (losses.diff() <= 1e-12 * losses[:1]).all()
    assert torch.isfinite(hard_target_flow(inputs, teacher, times)).all()


def test_hard_labels_grow_along_the_maximum_margin_direction():
    # w(t) = w_margin log t + bounded, hence w(t) - w(t / 10) tends to w_margin log 10
    inputs, teacher = normal(4, 5, 20, 8), normal(5, 5, 8)
    limit = hard_target_limit(inputs, teacher)
    path = hard_target_flow(inputs, teacher, tensor(1e12, 1e13))
    growth = (path[:, 1] - path[:, 0]) / math.log(10.0)
    assert torch.allclose(growth, limit, rtol=0, atol=2e-2 * float(limit.norm(dim=-1).max()))
    assert (path[:, 1].norm(dim=-1) > path[:, 0].norm(dim=-1)).all()


# --- batches, types, symmetry ----------------------------------------------------------------


def test_members_of_a_batch_agree_with_being_solved_alone():
    inputs, teacher, start = normal(1, 2, 3, 4, 6), normal(2, 3, 6), 0.3 * normal(3, 2, 1, 6)
    flows = {
        "soft": lambda x, w, v: gradient_flow(x, w, TIMES, v),
        "hard": lambda x, w, v: hard_target_flow(x, w, TIMES, v),
        "deep": lambda x, w, v: end_to_end_flow(v, 3, x, w, TIMES),
        "factors": lambda x, w, v: deep_gradient_flow(
            (torch.stack([v, -v, 2 * v], -2), tensor([1.0, 0.5, -0.3])), x, w, TIMES
        ),
    }
    for flow in flows.values():
        together = flow(inputs, teacher, start)
        assert together.shape == (2, 3, 4, 6)
        for i in range(2):
            for j in range(3):
                alone = flow(inputs[i, j], teacher[j], start[i, 0])
                assert torch.allclose(together[i, j], alone, rtol=0, atol=1e-11)


def test_dtype_follows_the_widest_input():
    inputs, teacher = normal(1, 3, 5), normal(2, 5)
    exact = gradient_flow(inputs.float().double(), teacher.float().double(), TIMES)
    single = gradient_flow(inputs.float(), teacher.float(), TIMES.float())
    assert single.dtype == torch.float32
    assert torch.allclose(single, exact.float(), rtol=0, atol=1e-6)
    factors = [w.float() for w in balanced_factors(normal(3, 5), 2, seeded())]
    assert (
        deep_gradient_flow(factors, inputs.float(), teacher.float(), TIMES).dtype == torch.float32
    )
    assert deep_gradient_flow(factors, inputs, teacher, TIMES).dtype == torch.float64


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**31), n=st.integers(1, 8), d=st.integers(1, 8), depth=st.integers(1, 4)
)
def test_the_loss_never_rises_and_rotations_commute(seed, n, d, depth):
    inputs, teacher, start = normal(seed, n, d), normal(seed + 1, d), normal(seed + 2, d)
    times = torch.cat([tensor(0.0), torch.logspace(-1, 4, 12, dtype=torch.float64)])
    path = end_to_end_flow(start, depth, inputs, teacher, times)
    losses = cross_entropy(path, inputs, teacher)
    assert (losses.diff() <= 1e-9 * losses[:-1] + 1e-18).all()
    rotation = torch.linalg.qr(normal(seed + 3, d, d))[0]
    turned = end_to_end_flow(start @ rotation, depth, inputs @ rotation, teacher @ rotation, times)
    assert torch.allclose(turned, path @ rotation, rtol=0, atol=1e-7 * (1 + float(path.norm())))


# --- several layers --------------------------------------------------------------------------


def raw_factor_flow(factors, inputs, teacher, times):
    """The whole factor system, every entry of every matrix, by scipy."""
    shapes = [tuple(w.shape) for w in factors]
    sizes = [a * b for a, b in shapes]
    x, labels = inputs.numpy(), sigmoid((inputs @ teacher).numpy())

    def split(y):
        parts = np.split(y, np.cumsum(sizes)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def product(matrices, size):
        result = np.eye(size)
        for matrix in matrices:
            result = matrix @ result
        return result

    def right(_, y):
        w = split(y)
        vector = product(w, x.shape[1])[0]
        gradient = x.T @ (sigmoid(x @ vector) - labels) / len(x)
        slopes = [
            -product(w[j + 1 :], len(w[j])).T @ gradient[None] @ product(w[:j], x.shape[1]).T
            for j in range(len(w))
        ]
        return np.concatenate([slope.ravel() for slope in slopes])

    start = np.concatenate([w.numpy().ravel() for w in factors])
    states = radau(right, start, times)
    return torch.stack([torch.from_numpy(product(split(y), x.shape[1])[0]) for y in states.numpy()])


@pytest.mark.parametrize(
    ("widths", "n"), [((3,), 2), ((1,), 3), ((5,), 6), ((3, 2), 2), ((2, 2, 2), 3)]
)
def test_reduced_dynamics_agree_with_the_whole_factor_system(widths, n):
    sizes = (4, *widths, 1)
    factors = [0.7 * normal(j, sizes[j + 1], sizes[j]) for j in range(len(sizes) - 1)]
    inputs, teacher = normal(11, n, 4), normal(12, 4)
    path = deep_gradient_flow(factors, inputs, teacher, TIMES)
    assert torch.allclose(path[0], end_to_end(factors), rtol=0, atol=1e-14)
    reference = raw_factor_flow(factors, inputs, teacher, TIMES)
    assert torch.allclose(path, reference, rtol=0, atol=1e-7)


@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("n", [3, 9])
def test_balanced_factors_follow_lemma_12(depth, n):
    inputs, teacher, start = normal(1, 4, n, 7), normal(2, 4, 7), 0.2 * normal(3, 4, 7)
    times = tensor(0.0, 1.0, 10.0, 100.0, 1e5)
    factors = balanced_factors(start, depth, seeded(), width=6)
    deep = deep_gradient_flow(factors, inputs, teacher, times)
    closed = end_to_end_flow(start, depth, inputs, teacher, times)
    assert torch.allclose(deep, closed, rtol=0, atol=1e-7)


def test_depth_one_is_the_plain_flow():
    inputs, teacher, start = normal(1, 3, 5), normal(2, 5), normal(3, 5)
    plain = gradient_flow(inputs, teacher, TIMES, start)
    assert torch.equal(end_to_end_flow(start, 1, inputs, teacher, TIMES), plain)


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_several_layers_in_one_dimension_are_an_integral(depth):
    # w' = N w^(2 - 2/N) (p - sigma(w)): the time from 0.1 to w is the integral of dw / w'
    start, teacher, times = 0.1, 2.0, tensor(1.0, 8.0)
    p = sigmoid(teacher)
    path = end_to_end_flow(tensor(start), depth, tensor([1.0]), tensor(teacher), times)[:, 0]
    for time, end in zip(times, path, strict=True):
        elapsed = quad(
            lambda w: 1.0 / (depth * w ** (2 - 2 / depth) * (p - sigmoid(w))), start, float(end)
        )[0]
        assert elapsed == pytest.approx(float(time), rel=1e-8)


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_theorem_2_with_enough_data(depth):
    inputs, teacher = normal(1, 12, 6), normal(2, 6)
    start = facing(0.05 * normal(3, 6), inputs, teacher)
    path = end_to_end_flow(start, depth, inputs, teacher, tensor(1e5))
    assert torch.allclose(path[0], teacher, rtol=0, atol=1e-9)


@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_theorem_2_with_little_data(depth, epsilon):
    inputs, teacher = normal(1, 4, 12) / 2, normal(2, 12)
    limit = student_limit(inputs, teacher)
    start = facing(normal(3, 12), inputs, teacher)
    start = 0.999 * initial_norm_limit(epsilon, limit.norm(), depth) * start / start.norm()
    factors = balanced_factors(start, depth, seeded(), width=3)
    end = deep_gradient_flow(factors, inputs, teacher, tensor(1e5))[0]
    assert torch.allclose(end, deep_student_limit(start, depth, inputs, teacher), atol=1e-8)
    assert 0.1 * epsilon < float((end - limit).norm()) < epsilon


# --- what breaks -----------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [2, 3, 5])
@pytest.mark.parametrize("size", [3.0, 30.0])
def test_without_11a_the_rest_outside_the_span_is_large_and_known(depth, size):
    inputs, teacher = normal(1, 4, 12) / 2, normal(2, 12)
    start = size * normal(3, 12) / normal(3, 12).norm()
    end = end_to_end_flow(start, depth, inputs, teacher, tensor(1e5))[0]
    assert torch.allclose(end, deep_student_limit(start, depth, inputs, teacher), atol=1e-6)
    assert (end - student_limit(inputs, teacher)).norm() > 1.0


@pytest.mark.parametrize("imbalance", [-0.5, 0.0, 4.0])
def test_without_11c_one_hidden_unit_ends_at_a_root(imbalance):
    # a^2 - |W_1|^2 is constant; at the end a W_1 P_X = w_hat. So a^2 solves a quadratic equation.
    inputs, teacher, row = normal(1, 3, 8), normal(2, 8), 0.5 * normal(3, 1, 8)
    limit = student_limit(inputs, teacher)
    outside = (row[0] - project_onto_span(inputs, row[0])).norm()
    above = (row.square().sum() + imbalance).sqrt()
    shift = outside**2 + imbalance
    root = ((shift + (shift**2 + 4 * limit.norm() ** 2).sqrt()) / 2).sqrt()
    for sign in (1.0, -1.0):
        factors = (row, sign * above.reshape(1, 1))
        end = deep_gradient_flow(factors, inputs, teacher, tensor(1e5))[0]
        if cross_entropy(end, inputs, teacher) > 1e-3:  # the sign that goes into the saddle
            assert imbalance <= 0.0
            continue
        rest = end - project_onto_span(inputs, end)
        assert torch.allclose(end - rest, limit, rtol=0, atol=1e-8)
        assert float(rest.norm()) == pytest.approx(float(outside * root), rel=1e-7)


def test_without_11c_a_dominant_first_layer_projects_in_its_own_metric():
    # W_1 large, W_2 = 0: only W_2 moves, to the smallest solution of X W_1^T a = X w*
    inputs, teacher, first = normal(1, 3, 6), normal(2, 6), normal(3, 6, 6)
    metric = first.mT @ first
    gram = inputs @ metric @ inputs.mT
    expected = metric @ inputs.mT @ torch.linalg.solve(gram, inputs @ teacher)
    gaps = []
    for scale in (10.0, 100.0):
        factors = (scale * first, torch.zeros(1, 6, dtype=torch.float64))
        end = deep_gradient_flow(factors, inputs, teacher, tensor(1e4))[0]
        gaps.append(float((end - expected).norm()))
    assert (expected - student_limit(inputs, teacher)).norm() > 0.3
    assert gaps[1] < 1e-5
    assert gaps[1] < 0.01 * gaps[0]


def test_without_11c_an_end_to_end_zero_is_no_saddle():
    inputs, teacher, above = normal(1, 3, 6), normal(2, 6), normal(3, 1, 4)
    factors = (torch.zeros(4, 6, dtype=torch.float64), above)
    end = deep_gradient_flow(factors, inputs, teacher, tensor(1e5))[0]
    assert torch.allclose(end, student_limit(inputs, teacher), rtol=0, atol=1e-8)


# --- refusals --------------------------------------------------------------------------------

X, W = normal(1, 3, 5), normal(2, 5)
TWO = (normal(3, 4, 5), normal(4, 1, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gradient_flow(X[0], W, TIMES), "inputs must have shape"),
        (lambda: gradient_flow(X, W[:4], TIMES), r"teacher must have shape \(..., 5\)"),
        (lambda: gradient_flow(X, W, TIMES, W[:4]), r"initial must have shape \(..., 5\)"),
        (lambda: gradient_flow(X * math.nan, W, TIMES), "inputs must be finite"),
        (lambda: gradient_flow(X, W, tensor(1.0, 1.0)), "times must increase"),
        (lambda: hard_target_flow(X, W, tensor(-1.0)), "times must be >= 0"),
        (lambda: end_to_end_flow(W, 0, X, W, TIMES), "depth must be an integer >= 1"),
        (lambda: end_to_end_flow(W[:4], 2, X, W, TIMES), "initial must have shape"),
        (lambda: deep_gradient_flow(TWO[1:], X[:, :4], W[:4], TIMES), "at least two matrices"),
        (lambda: deep_gradient_flow(TWO, X[:, :4], W[:4], TIMES), "product of factors must have"),
        (lambda: deep_gradient_flow(TWO[::-1], X, W, TIMES), "factors"),
        (
            lambda: deep_gradient_flow((normal(3, 2, 4, 5), normal(4, 3, 1, 4)), X, W, TIMES),
            "do not broadcast",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_too_many_coupled_unknowns_are_refused():
    factors = (normal(3, 60, 5), normal(4, 60, 60), normal(5, 1, 60))
    with pytest.raises(ValueError, match=r"leave 3840 coupled unknowns.*use a smaller width"):
        deep_gradient_flow(factors, X, W, TIMES)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_same_on_the_accelerator():
    inputs, teacher, start = normal(1, 4, 3, 7), normal(2, 7), 0.3 * normal(3, 4, 7)
    factors = balanced_factors(start, 3, seeded())
    for flow in (
        lambda x, w, v, f: gradient_flow(x, w, TIMES.to(x.device), v),
        lambda x, w, v, f: hard_target_flow(x, w, TIMES.to(x.device), v),
        lambda x, w, v, f: end_to_end_flow(v, 3, x, w, TIMES.to(x.device)),
        lambda x, w, v, f: deep_gradient_flow(f, x, w, TIMES.to(x.device)),
    ):
        here = flow(inputs, teacher, start, factors)
        there = flow(inputs.cuda(), teacher.cuda(), start.cuda(), [f.cuda() for f in factors])
        assert there.is_cuda
        assert torch.allclose(there.cpu(), here, rtol=0, atol=1e-8)


@pytest.mark.parametrize("depth", [2, 3])
def test_factors_that_are_all_zero_never_move(depth):
    inputs, teacher = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    shapes = [(2, 4)] + [(2, 2)] * (depth - 2) + [(1, 2)]
    zeros = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    path = deep_gradient_flow(zeros, inputs, teacher, torch.tensor([0.0, 1.0, 1e3]))
    assert torch.equal(path, torch.zeros(3, 4, dtype=torch.float64))
