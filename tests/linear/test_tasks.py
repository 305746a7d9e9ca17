from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lib.linear import (
    BandAngleTask,
    MarginAngleTask,
    PlanarAngleTask,
    PolynomialAngleTask,
    angle,
    empirical_angle_tail,
    figure1_task,
)

TASKS = [
    PolynomialAngleTask(2, 1.0),
    PolynomialAngleTask(3, 0.25),
    PolynomialAngleTask(40, 2.5),
    MarginAngleTask(5, 0.4),
    BandAngleTask(4, 0.3, 1.2),
    PlanarAngleTask(2.0, 0.5),
]
names = [repr(task) for task in TASKS]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def largest_gap(sample, distribution):
    """Kolmogorov's distance between a sample and a distribution function."""
    return stats.kstest(sample.numpy(), distribution).statistic


def allowed_gap(m):
    """Exceeded with probability 1e-9 (Dvoretzky, Kiefer, Wolfowitz, Massart)."""
    return math.sqrt(math.log(2 / 1e-9) / (2 * m))


@pytest.mark.parametrize("task", TASKS, ids=names)
@pytest.mark.parametrize("seed", [0, 1])
def test_sampled_angles_follow_the_tail(task, seed):
    inputs = task.sample(20_000, generator(seed))
    angles = angle(inputs, task.teacher)
    gap = largest_gap(angles, lambda theta: 1 - task.angle_tail(torch.from_numpy(theta)).numpy())
    assert gap < allowed_gap(20_000)


@pytest.mark.parametrize("task", TASKS, ids=names)
def test_lengths_are_gaussian_with_a_random_sign(task):
    inputs = task.sample(20_000, generator(2))
    signed = inputs.norm(dim=-1) * torch.sign(inputs @ task.teacher)
    assert largest_gap(signed, stats.norm.cdf) < allowed_gap(20_000)


@pytest.mark.parametrize("task", [TASKS[1], TASKS[2], TASKS[3]], ids=repr)
def test_directions_around_the_teacher_are_uniform(task):
    inputs = task.sample(20_000, generator(3))
    around = inputs[:, 1:] / inputs[:, 1:].norm(dim=-1, keepdim=True)
    axis = torch.randn(task.dimension - 1, generator=generator(4), dtype=torch.float64)
    half = (task.dimension - 2) / 2
    first = (around @ (axis / axis.norm()) + 1) / 2
    assert largest_gap(first, stats.beta(half, half).cdf) < allowed_gap(20_000)


def test_planar_directions_are_fair_coins():
    inputs = PolynomialAngleTask(2, 1.0).sample(20_000, generator(5))
    right = ((inputs[:, 1] > 0) == (inputs[:, 0] > 0)).double().mean()
    assert abs(float(right) - 0.5) < 6 * 0.5 / math.sqrt(20_000)


def test_sample_shapes_and_reproducibility():
    task = PolynomialAngleTask(6, 1.0)
    assert task.sample(3, generator(0)).shape == (3, 6)
    assert task.sample((4, 3), generator(0)).shape == (4, 3, 6)
    assert torch.equal(task.sample((4, 3), generator(7)), task.sample((4, 3), generator(7)))
    assert not torch.equal(task.sample(3, generator(7)), task.sample(3, generator(8)))
    assert task.sample(3, generator(0)).dtype == torch.float64


@given(kappa=st.floats(0.05, 20), mass=st.floats(1e-12, 1))
def test_boundary_mass_inverts_boundary_angle(kappa, mass):
    task = PolynomialAngleTask(3, kappa)
    assert float(task.boundary_mass(task.boundary_angle(mass))) == pytest.approx(mass, rel=1e-12)


def test_boundary_angles_keep_all_digits_near_the_boundary():
    task = PolynomialAngleTask(3, 0.1)
    assert float(task.boundary_angle(1e-3)) == pytest.approx(math.pi / 2 * 1e-30, rel=1e-13)
    inputs = task.sample(5000, generator(0))
    sine = inputs[:, 0].abs() / inputs.norm(dim=-1)
    closest = sine.min()
    assert closest < 1e-20  # what cos(arccos(...)) could never give
    mass = task.boundary_mass(sine.asin()).sort().values
    assert largest_gap(mass, stats.uniform.cdf) < allowed_gap(5000)


@pytest.mark.parametrize("task", TASKS, ids=names)
def test_tail_runs_from_one_to_zero(task):
    theta = torch.linspace(0, math.pi / 2, 201, dtype=torch.float64)
    tail = task.angle_tail(theta)
    assert tail[0] == 1
    assert tail[-1] == 0
    assert bool((tail.diff() <= 0).all())
    assert torch.allclose(task.boundary_mass(math.pi / 2 - theta), tail)
    assert task.angle_tail(0.3).shape == ()


@given(kappa=st.floats(0.1, 10), theta=st.floats(0, math.pi / 2))
def test_polynomial_tail_is_the_papers(kappa, theta):
    expected = (1 - 2 * theta / math.pi) ** kappa
    tail = PolynomialAngleTask(5, kappa).angle_tail(theta)
    assert float(tail) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_margin_and_band_keep_their_empty_wedges():
    margin = angle(MarginAngleTask(9, 0.4).sample(5000, generator(0)), torch.eye(9)[0].double())
    assert float(margin.max()) <= math.pi / 2 - 0.4 + 1e-12
    band = angle(BandAngleTask(9, 0.5, 0.6).sample(5000, generator(0)), torch.eye(9)[0].double())
    assert float(band.min()) >= 0.5 - 1e-12
    assert float(band.max()) <= 0.6 + 1e-12


def test_a_narrow_margin_is_nearly_the_uniform_task():
    theta = torch.linspace(0, math.pi / 2, 11)
    narrow, uniform = MarginAngleTask(3, 1e-9), PolynomialAngleTask(3, 1.0)
    assert torch.allclose(narrow.angle_tail(theta), uniform.angle_tail(theta), atol=1e-8)


def test_figure_1_shows_three_kinds_of_task():
    a, b, c = (figure1_task(name) for name in "ABC")
    assert {task.dimension for task in (a, b, c)} == {2}
    middle = math.pi / 4
    assert a.angle_tail(middle) < 0.2
    assert b.angle_tail(middle) < 0.2
    assert c.angle_tail(middle) > 0.8
    late = math.radians(80)
    assert b.angle_tail(late) == 0
    assert 0 < a.angle_tail(late) < c.angle_tail(late)


def test_empirical_tail_counts_ties_and_agrees_with_a_loop():
    inputs = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [1.0, 1.0], [0.0, 3.0]], dtype=torch.float64)
    teacher = torch.tensor([5.0, 0.0], dtype=torch.float64)
    p = empirical_angle_tail(inputs, teacher)
    angles = [float(angle(row, teacher)) for row in inputs]
    for theta in (0.0, 1e-12, math.pi / 4, math.pi / 4 + 1e-12, 1.5, math.pi / 2):
        assert float(p(theta)) == sum(a >= theta for a in angles) / 4
    assert p(torch.zeros(2, 3)).shape == (2, 3)


def test_empirical_tail_takes_batches_and_approaches_the_task():
    task = PolynomialAngleTask(6, 0.7)
    p = empirical_angle_tail(task.sample((50, 400), generator(0)), 3 * task.teacher)
    theta = torch.linspace(0, math.pi / 2, 301, dtype=torch.float64)
    assert float((p(theta) - task.angle_tail(theta)).abs().max()) < allowed_gap(20_000)


def test_tasks_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PolynomialAngleTask(3, 1.0).kappa = 2.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolynomialAngleTask(1, 1.0), "dimension must be an integer >= 2, got 1"),
        (lambda: PolynomialAngleTask(3, 0.0), "kappa must be a finite number > 0"),
        (lambda: PolynomialAngleTask(3, -1.0), "kappa"),
        (lambda: PolynomialAngleTask(3, math.nan), "kappa"),
        (lambda: MarginAngleTask(3, 0.0), "margin"),
        (lambda: MarginAngleTask(3, math.pi / 2), "margin"),
        (lambda: BandAngleTask(3, 0.5, 0.5), "high"),
        (lambda: BandAngleTask(3, -0.1, 0.5), "low"),
        (lambda: PlanarAngleTask(0.0), "kappa"),
        (lambda: PlanarAngleTask(1.0, -0.1), "margin"),
        (lambda: figure1_task("D"), "name must be one of A, B, C, got 'D'"),
        (lambda: PolynomialAngleTask(3, 1.0).sample(0, generator(0)), "n must be an integer >= 1"),
        (lambda: PolynomialAngleTask(3, 1.0).sample((2, 0), generator(0)), "n must be an integer"),
        (lambda: PolynomialAngleTask(3, 1.0).angle_tail(1.6), "theta must lie in"),
        (lambda: PolynomialAngleTask(3, 1.0).angle_tail(math.nan), "theta"),
        (lambda: PolynomialAngleTask(3, 1.0).boundary_mass(-0.1), "boundary_angle"),
        (lambda: PolynomialAngleTask(3, 1.0).boundary_angle(1.1), "mass"),
        (lambda: empirical_angle_tail(torch.zeros(2, 2), torch.ones(2)), "inputs"),
        (lambda: empirical_angle_tail(torch.ones(2, 2), torch.zeros(2)), "teacher"),
        (lambda: empirical_angle_tail(torch.ones(2, 2), torch.ones(1, 2)), "teacher"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
