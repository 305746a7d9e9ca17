from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.svm import SVC

from lib.linear import (
    PolynomialAngleTask,
    angle,
    cross_entropy,
    hard_margin_residual,
    hard_target_limit,
    perturbed_student,
    project_onto_span,
    student_limit,
)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def rotation(seed, d):
    return torch.linalg.qr(gaussian(seed, d, d)).Q


def signed_rows(inputs, teacher):
    return torch.where(inputs @ teacher >= 0, 1.0, -1.0).unsqueeze(-1) * inputs


def brute_force_margin(inputs, teacher):
    """Shortest feasible w among the shortest solutions of z_i.w = 1 on every subset."""
    rows = signed_rows(inputs, teacher)
    best = None
    for size in range(1, min(rows.shape) + 1):
        for subset in itertools.combinations(range(len(rows)), size):
            active = rows[list(subset)]
            w = torch.linalg.pinv(active) @ torch.ones(size, dtype=rows.dtype)
            if bool((rows @ w >= 1 - 1e-9).all()) and (best is None or w.norm() < best.norm()):
                best = w
    return best


# --- soft labels -----------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), [(1, 4), (3, 4), (4, 4), (9, 4)])
def test_student_limit_is_theorem_1(n, d):
    inputs, teacher = gaussian(n, n, d), gaussian(0, d)
    limit = student_limit(inputs, teacher)
    if n >= d:
        assert torch.equal(limit, teacher)
    else:
        expected = inputs.mT @ torch.linalg.solve(inputs @ inputs.mT, inputs @ teacher)
        assert torch.allclose(limit, expected, atol=1e-12)
    assert cross_entropy(limit, inputs, teacher) < 1e-28


@given(seed=st.integers(0, 2**32), d=st.integers(2, 12))
def test_lemma_6_nested_sets_never_move_away_from_the_teacher(seed, d):
    inputs, teacher = gaussian(seed, d, d), gaussian(seed + 1, d)
    angles = torch.stack(
        [angle(student_limit(inputs[:n], teacher), teacher) for n in range(1, d + 1)]
    )
    assert bool((angles.diff() <= 1e-13).all())
    assert angles[-1] == 0
    assert bool((angles[0] <= angle(inputs[0], teacher) + 1e-13).all())


@given(seed=st.integers(0, 2**32), scale=st.floats(1e-3, 1e3))
def test_student_limit_turns_with_the_data_and_ignores_its_scale(seed, scale):
    inputs, teacher, q = gaussian(seed, 3, 6), gaussian(seed + 1, 6), rotation(seed + 2, 6)
    limit = student_limit(inputs, teacher)
    assert torch.allclose(student_limit(inputs @ q, teacher @ q), limit @ q, atol=1e-12)
    assert torch.allclose(student_limit(scale * inputs, teacher), limit, atol=1e-12)
    assert torch.allclose(student_limit(inputs, scale * teacher), scale * limit, rtol=1e-9)


# --- perturbed minimisers --------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 0.5, -3.0, 90.0])
def test_perturbed_students_are_minimisers_of_the_stated_length(delta):
    inputs, teacher = gaussian(0, 6, 4, 15), gaussian(1, 15)
    student = perturbed_student(inputs, teacher, delta, generator(2))
    limit = student_limit(inputs, teacher)
    scale = inputs.norm(dim=(-1, -2)) * limit.norm(dim=-1)
    assert bool((cross_entropy(student, inputs, teacher) < 1e-20).all())
    error = (inputs @ (student - limit).unsqueeze(-1)).squeeze(-1).norm(dim=-1)
    assert bool((error < 1e-14 * (1 + abs(delta)) * scale).all())
    length = (student - limit).norm(dim=-1)
    assert torch.allclose(length, abs(delta) * limit.norm(dim=-1), rtol=1e-12)


def test_perturbed_angle_in_closed_form():
    """q is orthogonal to w_hat, but not to the teacher; on average over q the cosine shrinks."""
    inputs, teacher = gaussian(0, 3, 8), gaussian(1, 8)
    limit = student_limit(inputs, teacher)
    students = perturbed_student(inputs.expand(4000, 3, 8), teacher, 2.0, generator(2))
    turned = angle(students, limit.expand(4000, 8), signed=True)
    assert torch.allclose(turned, torch.tensor(math.atan(2.0)).double(), atol=1e-6)
    mean = (students @ teacher).mean() / (teacher @ limit)
    assert abs(float(mean) - 1) < 0.2


def test_directions_are_isotropic_in_the_complement():
    inputs, teacher = torch.eye(2, 6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    students = perturbed_student(inputs.expand(20_000, 2, 6), teacher, 1.0, generator(3))
    q = (students - torch.tensor([1.0, 1, 0, 0, 0, 0])) / math.sqrt(2)
    covariance = q.mT @ q / len(q)
    expected = torch.diag(torch.tensor([0, 0, 1, 1, 1, 1]).double() / 4)
    assert float((covariance - expected).abs().max()) < 6 * 0.25 / math.sqrt(20_000)


def test_one_draw_serves_several_deltas():
    inputs, teacher = gaussian(0, 5, 3, 9), gaussian(1, 9)
    deltas = torch.tensor([0.0, 1.0, 10.0], dtype=torch.float64)
    together = perturbed_student(inputs, teacher, deltas[:, None], generator(4))
    assert together.shape == (3, 5, 9)
    for delta, students in zip(deltas, together, strict=True):
        alone = perturbed_student(inputs, teacher, float(delta), generator(4))
        assert torch.allclose(students, alone, atol=1e-13)
    assert torch.allclose(together[0], student_limit(inputs, teacher), atol=1e-14)
    single = perturbed_student(inputs[0], teacher, deltas, generator(4))
    assert single.shape == (3, 9)


def test_perturbed_student_without_complement():
    inputs, teacher = gaussian(0, 9, 4), gaussian(1, 4)
    assert torch.equal(perturbed_student(inputs, teacher, 0.0, generator(0)), teacher)
    with pytest.raises(ValueError, match="delta must be 0 when the inputs span"):
        perturbed_student(inputs, teacher, 1.0, generator(0))
    deficient = inputs.clone()
    deficient[:, 3] = 0
    student = perturbed_student(deficient, teacher, 1.0, generator(0))
    assert cross_entropy(student, deficient, teacher) < 1e-28


@pytest.mark.parametrize("delta", [math.nan, math.inf, torch.ones(7)])
def test_perturbed_student_refuses_deltas(delta):
    with pytest.raises(ValueError, match="delta"):
        perturbed_student(gaussian(0, 5, 3, 9), gaussian(1, 9), delta, generator(0))


# --- hard targets ----------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), n=st.integers(1, 6), d=st.integers(1, 8))
def test_hard_target_limit_agrees_with_brute_force(seed, n, d):
    inputs, teacher = gaussian(seed, n, d), gaussian(seed + 1, d)
    ours, exact = hard_target_limit(inputs, teacher), brute_force_margin(inputs, teacher)
    assert torch.allclose(ours, exact, rtol=1e-7, atol=1e-9 * float(exact.norm()))
    assert hard_margin_residual(ours, inputs, teacher) < 1e-8


@pytest.mark.parametrize("shape", [(5, 12), (20, 8), (60, 5), (8, 8)])
@pytest.mark.parametrize("seed", [0, 1])
def test_hard_target_limit_agrees_with_slsqp(shape, seed):
    inputs, teacher = gaussian(seed, *shape), gaussian(seed + 10, shape[1])
    rows = signed_rows(inputs, teacher).numpy()
    start = (teacher / (inputs @ teacher).abs().min()).numpy()
    found = minimize(
        lambda w: w @ w / 2,
        start,
        jac=lambda w: w,
        constraints={"type": "ineq", "fun": lambda w: rows @ w - 1, "jac": lambda w: rows},
        method="SLSQP",
        options={"maxiter": 2000, "ftol": 1e-14},
    )
    ours = hard_target_limit(inputs, teacher)
    assert float((ours - torch.from_numpy(found.x)).norm() / ours.norm()) < 1e-5


@pytest.mark.parametrize("shape", [(6, 20), (40, 6), (300, 10)])
@pytest.mark.parametrize("seed", [0, 1])
def test_hard_target_limit_agrees_with_a_support_vector_machine(shape, seed):
    inputs, teacher = gaussian(seed, *shape), gaussian(seed + 10, shape[1])
    # every example and its mirror image: the intercept of the symmetric problem is zero
    mirrored = torch.cat([inputs, -inputs]).numpy()
    labels = torch.where(inputs @ teacher >= 0, 1, -1)
    machine = SVC(C=1e10, kernel="linear", tol=1e-10)
    machine.fit(mirrored, torch.cat([labels, -labels]).numpy())
    theirs = torch.from_numpy(machine.coef_[0].copy())
    ours = hard_target_limit(inputs, teacher)
    assert float(angle(ours, theirs, signed=True)) < 1e-4
    assert float(hard_margin_residual(ours, inputs, teacher)) < 1e-8
    assert float((signed_rows(inputs, teacher) @ ours).min()) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("kappa", [0.25, 1.0])
@pytest.mark.parametrize(("n", "d"), [(5, 100), (6, 100), (20, 60), (30, 5), (100, 10)])
def test_batches_of_task_data_meet_the_optimality_conditions(n, d, kappa):
    task = PolynomialAngleTask(d, kappa)
    inputs = task.sample((150, n), generator(n))
    weights = hard_target_limit(inputs, task.teacher)
    assert float(hard_margin_residual(weights, inputs, task.teacher).max()) < 1e-6
    for i in (0, 77, 149):
        alone = hard_target_limit(inputs[i], task.teacher)
        assert torch.allclose(weights[i], alone, rtol=1e-6, atol=1e-7 * float(alone.norm()))


def test_margins_that_differ_by_thirty_powers_of_ten():
    task = PolynomialAngleTask(100, 0.1)
    inputs = task.sample((500, 6), generator(0))
    margins = (inputs @ task.teacher).abs()
    assert float(margins.min()) < 1e-25
    weights = hard_target_limit(inputs, task.teacher)
    assert float(hard_margin_residual(weights, inputs, task.teacher).max()) < 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_tiny_rows_and_condition_1e7(seed):
    lengths = torch.tensor([1e-4, 1e-3, 1.0, 1.0, 3.0]).double()
    spread = torch.diag(torch.logspace(0, -7, 5, dtype=torch.float64))
    inputs = lengths[:, None] * (rotation(seed, 5) @ spread @ rotation(seed + 1, 12)[:5])
    teacher = gaussian(seed + 2, 12)
    weights = hard_target_limit(inputs, teacher)
    assert float(hard_margin_residual(weights, inputs, teacher)) < 1e-6
    exact = brute_force_margin(inputs, teacher)
    assert float((weights - exact).norm() / exact.norm()) < 1e-5


def test_duplicates_change_nothing():
    inputs, teacher = gaussian(0, 4, 7), gaussian(1, 7)
    more = torch.cat([inputs, inputs, -inputs[:2], 3 * inputs[1:3]])
    expected = hard_target_limit(inputs, teacher)
    assert torch.allclose(hard_target_limit(more, teacher), expected, atol=1e-10)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), scale=st.floats(1e-3, 1e3))
def test_hard_target_limit_scales_and_turns_with_the_data(seed, scale):
    inputs, teacher, q = gaussian(seed, 5, 4), gaussian(seed + 1, 4), rotation(seed + 2, 4)
    weights = hard_target_limit(inputs, teacher)
    close = {"rtol": 1e-6, "atol": 1e-8 * float(weights.norm())}
    assert torch.allclose(hard_target_limit(scale * inputs, teacher) * scale, weights, **close)
    assert torch.allclose(hard_target_limit(inputs, scale * teacher), weights, **close)
    assert torch.allclose(hard_target_limit(inputs @ q, teacher @ q), weights @ q, **close)


def test_hard_target_limit_lies_in_the_span_and_broadcasts():
    inputs, teachers = gaussian(0, 3, 4, 9), gaussian(1, 2, 1, 9)
    weights = hard_target_limit(inputs, teachers)
    assert weights.shape == (2, 3, 9)
    assert torch.allclose(project_onto_span(inputs, weights), weights, atol=1e-11)
    assert torch.allclose(weights[1, 2], hard_target_limit(inputs[2], teachers[1, 0]))
    assert hard_target_limit(inputs.float(), teachers.float()).dtype == torch.float32


def test_examples_on_the_boundary_count_as_positive():
    inputs = torch.tensor([[2.0, 0.0], [0.0, 4.0]])
    weights = hard_target_limit(inputs, torch.tensor([1.0, 0.0]))
    assert torch.allclose(weights, torch.tensor([0.5, 0.25]))
    opposite = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 4.0], [0.0, -4.0]]])
    with pytest.raises(ValueError, match=r"labels of inputs\[1\] are not separable"):
        hard_target_limit(opposite, torch.tensor([1.0, 0.0]))


def test_a_margin_below_rounding_is_an_error_that_names_the_set():
    easy, turn = gaussian(0, 10, 4), rotation(1, 4)
    flat = gaussian(2, 10, 4) * torch.tensor([1e-12, 1, 1, 1])
    inputs, teacher = torch.stack([easy, flat @ turn]), turn[0]
    with pytest.raises(RuntimeError, match=r"inputs\[1\]"):
        hard_target_limit(inputs, teacher)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), size=st.floats(1e-6, 0.3))
def test_residual_vanishes_at_the_solution_only(seed, size):
    inputs, teacher = gaussian(seed, 6, 4), gaussian(seed + 1, 4)
    weights = hard_target_limit(inputs, teacher)
    noise = gaussian(seed + 2, 4)
    moved = weights + size * weights.norm() * noise / noise.norm()
    at, off = hard_margin_residual(torch.stack([weights, moved]), inputs, teacher)
    assert float(at) < 1e-8
    assert float(off) > 1e-3 * size
    assert float(hard_margin_residual((1 + size) * weights, inputs, teacher)) > 0.1 * size
    assert float(hard_margin_residual((1 - size) * weights, inputs, teacher)) > 0.9 * size


@pytest.mark.parametrize(
    ("inputs", "teacher", "message"),
    [
        (torch.zeros(2, 2), torch.ones(2), "every row of inputs must not be the zero"),
        (torch.ones(2, 2), torch.ones(3), "teacher must have shape"),
        (torch.ones(0, 2), torch.ones(2), "n >= 1"),
        (torch.ones(2, 2), torch.tensor([math.nan, 0]), "teacher must be finite"),
    ],
)
def test_hard_target_limit_refuses(inputs, teacher, message):
    with pytest.raises(ValueError, match=message):
        hard_target_limit(inputs, teacher)


def test_residual_refuses_zero_weights():
    with pytest.raises(ValueError, match="weights must not be the zero vector"):
        hard_margin_residual(torch.zeros(2), torch.ones(1, 2), torch.ones(2))
