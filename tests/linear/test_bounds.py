from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from lib.linear import (
    BandAngleTask,
    MarginAngleTask,
    PolynomialAngleTask,
    angle,
    approximate_risk_bound,
    empirical_angle_tail,
    expected_risk,
    lemma14_angle,
    margin_risk_bound,
    polynomial_risk_bound,
    risk_bound,
    sharp_risk_bound,
    student_limit,
    tight_angle,
    transfer_risk,
)

RIGHT = math.pi / 2


def polynomial_tail(kappa):
    return PolynomialAngleTask(2, kappa).angle_tail


def exact_risks(task, n, n_sets, seed):
    inputs = task.sample((n_sets, n), torch.Generator().manual_seed(seed))
    return expected_risk(angle(student_limit(inputs, task.teacher), task.teacher, True), task)


def at_most(samples, bound):
    """Whether a mean is at most a bound, up to 5 standard errors of its estimate."""
    return float(samples.mean() - bound) <= 5 * float(samples.std()) / math.sqrt(len(samples))


@pytest.mark.parametrize(("kappa", "expected"), [(0.25, 0.8694), (0.5, 0.5524), (1.0, 0.1886)])
def test_known_minima_at_twenty_examples(kappa, expected):
    assert float(risk_bound(polynomial_tail(kappa), 20)) == pytest.approx(expected, abs=1e-4)


@given(n=st.integers(1, 500))
def test_uniform_angles_have_a_closed_form(n):
    """b = 1 - 2 beta / pi: minimise b + (1 - b)^n at (1 - b)^(n - 1) = 1 / n."""
    rest = n ** (-1 / (n - 1)) if n > 1 else 0.0
    expected = min(1.0, 1 - rest + rest**n)
    assert float(risk_bound(polynomial_tail(1.0), n)) == pytest.approx(expected, rel=1e-9)


@given(kappa=st.floats(0.1, 5), n=st.integers(1, 200))
def test_minimum_beats_every_beta_and_scipy(kappa, n):
    tail = polynomial_tail(kappa)
    best = risk_bound(tail, n)
    betas = torch.linspace(0, RIGHT, 777, dtype=torch.float64)
    everywhere = risk_bound(tail, n, betas)
    assert bool((best <= everywhere + 1e-12).all())
    start = float(betas[everywhere.argmin()])
    bounds = (max(start - 0.01, 0), min(start + 0.01, RIGHT))
    found = optimize.minimize_scalar(
        lambda beta: float(risk_bound(tail, n, beta)), bounds=bounds, method="bounded"
    )
    assert float(best) <= found.fun + 1e-9


@given(kappa=st.floats(0.1, 5), n=st.integers(1, 200), beta=st.floats(0, RIGHT))
def test_both_forms_at_a_given_beta(kappa, n, beta):
    tail = polynomial_tail(kappa)
    near = (1 - 2 * beta / math.pi) ** kappa if beta < RIGHT else 0.0
    far = (2 * beta / math.pi) ** (kappa * n)
    assert float(risk_bound(tail, n, beta)) == pytest.approx(near + far, rel=1e-9, abs=1e-12)
    sharp = near + (1 - near) * far
    assert float(sharp_risk_bound(tail, n, beta)) == pytest.approx(sharp, rel=1e-9, abs=1e-12)


@settings(max_examples=10)
@given(kappa=st.floats(0.1, 5))
def test_bounds_fall_with_more_examples_and_the_sharp_one_is_smaller(kappa):
    n = torch.arange(1, 60)
    plain, sharp = (
        risk_bound(polynomial_tail(kappa), n),
        sharp_risk_bound(polynomial_tail(kappa), n),
    )
    assert plain.shape == (59,)
    assert bool((plain.diff() <= 1e-9).all())
    assert bool((sharp <= plain + 1e-12).all())
    assert bool((sharp <= 1).all())


def test_tails_with_jumps_are_minimised_over_their_pieces():
    task = PolynomialAngleTask(3, 1.0)
    inputs = task.sample(12, torch.Generator().manual_seed(0))
    tail = empirical_angle_tail(inputs, task.teacher)
    jumps = angle(inputs, task.teacher)
    edges = (
        torch.cat([jumps, RIGHT - jumps, torch.tensor([0.0, RIGHT], dtype=torch.float64)])
        .sort()
        .values
    )
    middles = (edges[:-1] + edges[1:]) / 2
    best = torch.cat([risk_bound(tail, 4, middles), risk_bound(tail, 4, edges)]).min()
    assert float(risk_bound(tail, 4)) == pytest.approx(float(best), abs=1e-12)


@settings(max_examples=15)
@given(
    kappa=st.floats(0.2, 3),
    dimension=st.integers(4, 60),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_theorem_3_holds_for_the_exact_risk(kappa, dimension, share, seed):
    n = 1 + int(share * (dimension - 2))
    task = PolynomialAngleTask(dimension, kappa)
    risks = exact_risks(task, n, 200, seed)
    assert at_most(risks, sharp_risk_bound(task.angle_tail, n))
    assert sharp_risk_bound(task.angle_tail, n) <= risk_bound(task.angle_tail, n) + 1e-12
    if n > 1:
        assert at_most(risks, polynomial_risk_bound(kappa, n))


@pytest.mark.parametrize("n", [1, 3, 8])
def test_corollary_4_is_theorem_3_at_its_beta_and_holds(n):
    task = MarginAngleTask(12, math.radians(30))
    beta = RIGHT - task.margin
    bound = margin_risk_bound(task.angle_tail, n, beta)
    gamma = 1 - math.radians(30) / beta
    assert float(bound) == pytest.approx(gamma**n)
    assert float(risk_bound(task.angle_tail, n, beta)) == pytest.approx(gamma**n)
    assert at_most(exact_risks(task, n, 300, n), bound)


def test_corollary_4_refuses_a_beta_with_mass_beyond():
    tail = MarginAngleTask(12, math.radians(30)).angle_tail
    with pytest.raises(ValueError, match=r"p\(beta\) = 0"):
        margin_risk_bound(tail, 3, math.radians(50))
    with pytest.raises(ValueError, match=r"p\(pi/2 - beta\) < 1"):
        margin_risk_bound(tail, 3, RIGHT)


@given(kappa=st.floats(0, 5), n=st.integers(2, 400))
def test_corollary_5_follows_from_theorem_3_at_the_papers_beta(kappa, n):
    beta = RIGHT * n ** (-1 / n)
    at_beta = (1 - 2 * beta / math.pi) ** kappa + float(n) ** -kappa
    assert at_beta <= float(polynomial_risk_bound(kappa, n)) * (1 + 1e-12)
    if kappa >= 0.05:
        assert float(risk_bound(polynomial_tail(kappa), n)) <= at_beta + 1e-9


def test_corollary_5_is_false_for_c_above_one():
    """Angles in a band above pi/4: the hypothesis holds for every kappa, the claim does not."""
    task = BandAngleTask(4, math.radians(50), math.radians(51))
    kappa, n = 60.0, 3
    c = (90 / 39) ** kappa  # the tail is <= 1, and 0 from 51 degrees on
    theta = torch.linspace(0, math.radians(51), 500, dtype=torch.float64)
    assert bool((task.angle_tail(theta) <= c * (1 - 2 * theta / math.pi) ** kappa + 1e-12).all())
    risks = exact_risks(task, n, 2000, seed=0)
    claimed = float(polynomial_risk_bound(kappa, n, c))
    assert claimed < 1e-4
    assert float(risks.mean()) - 6 * float(risks.std()) / math.sqrt(2000) > 10 * claimed
    assert at_most(risks, risk_bound(task.angle_tail, n))


@settings(max_examples=15)
@given(kappa=st.floats(0.2, 4), n=st.integers(1, 100), norm=st.floats(0.01, 100))
def test_theorem_13_starts_at_theorem_3_and_grows_with_epsilon(kappa, n, norm):
    tail = polynomial_tail(kappa)
    epsilon = norm * torch.linspace(0, 0.39, 20, dtype=torch.float64)
    bounds = approximate_risk_bound(tail, n, epsilon, norm)
    tight = approximate_risk_bound(tail, n, epsilon, norm, tight=True)
    assert float(bounds[0]) == pytest.approx(float(risk_bound(tail, n)), rel=1e-9)
    assert bool((bounds.diff() >= -1e-9).all())
    assert bool((tight <= bounds + 1e-9).all())


def test_theorem_13_at_a_given_beta():
    bound = approximate_risk_bound(polynomial_tail(1.0), 3, 0.01, 2.0, beta=0.4)
    far = RIGHT - math.sqrt(2 * math.pi * 0.005) - 0.4
    expected = (1 - 0.8 / math.pi) + (1 - 2 * far / math.pi) ** 3
    assert float(bound) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tight", [False, True])
def test_theorem_13_holds_for_perturbed_students(seed, tight):
    task, n, ratio = PolynomialAngleTask(20, 2.0), 8, 0.02
    generator = torch.Generator().manual_seed(seed)
    limit = student_limit(task.sample((200, n), generator), task.teacher)
    norm = limit.norm(dim=-1, keepdim=True)
    noise = torch.randn(200, 20, generator=generator, dtype=torch.float64)
    students = limit + ratio * norm * noise / noise.norm(dim=-1, keepdim=True)
    risks = transfer_risk(students, task.teacher, task.sample(4000, generator))
    assert at_most(risks, approximate_risk_bound(task.angle_tail, n, ratio, 1.0, tight=tight))


@given(seed=st.integers(0, 2**32), d=st.integers(2, 8), ratio=st.floats(1e-9, 0.5))
def test_lemma_14_and_its_tight_form(seed, d, ratio):
    generator = torch.Generator().manual_seed(seed)
    w, noise = torch.randn(2, d, generator=generator, dtype=torch.float64)
    epsilon = ratio * float(w.norm())
    v = w + epsilon * noise / noise.norm()
    tight, paper = tight_angle(epsilon, w.norm()), lemma14_angle(epsilon, w.norm())
    assert angle(w, v, signed=True) <= tight * (1 + 1e-9) + 1e-15
    assert tight < paper
    # the tangent from the origin to the ball attains the tight bound
    q = noise - (noise @ w) / (w @ w) * w
    q = q / q.norm()
    touching = w + epsilon * (-math.sin(tight) * w / w.norm() + math.cos(tight) * q)
    assert float(angle(w, touching, signed=True)) == pytest.approx(float(tight), rel=1e-6)


def test_lemma_14_takes_tensors():
    epsilon = torch.tensor([0.0, 0.1, 0.5])
    assert torch.allclose(lemma14_angle(epsilon, 1.0), (2 * math.pi * epsilon.double()).sqrt())
    assert torch.allclose(tight_angle(epsilon, 1.0), torch.asin(epsilon.double()))


def uniform(theta):
    return 1 - 2 * theta / math.pi


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: risk_bound(uniform, 0), "n must be an integer >= 1"),
        (lambda: risk_bound(uniform, 1.5), "n must be an integer >= 1"),
        (lambda: risk_bound(uniform, torch.tensor([1, 0])), "n must be an integer >= 1"),
        (lambda: risk_bound(uniform, True), "n must be an integer >= 1"),
        (lambda: risk_bound(uniform, 2, beta=-0.1), "beta must lie in"),
        (lambda: risk_bound(uniform, 2, beta=1.6), "beta must lie in"),
        (lambda: risk_bound(uniform, 2, beta=math.nan), "beta must lie in"),
        (lambda: risk_bound(lambda theta: 2 - theta, 2), "angle_tail must map"),
        (lambda: risk_bound(lambda theta: theta * math.nan, 2), "angle_tail must map"),
        (lambda: risk_bound(lambda theta: 0.5, 2), "angle_tail must map"),
        (lambda: sharp_risk_bound(uniform, 0), "n must be an integer >= 1"),
        (
            lambda: risk_bound(uniform, torch.tensor([1, 2, 3]), beta=torch.tensor([0.1, 0.2])),
            r"n \(3,\) .* beta \(2,\) must broadcast",
        ),
        (
            lambda: approximate_risk_bound(
                uniform, torch.tensor([1, 2, 3]), torch.tensor([0.1, 0.2]), 1.0
            ),
            r"n \(3,\) and delta \(2,\) must broadcast",
        ),
        (
            lambda: lemma14_angle(torch.tensor([0.1, 0.2]), torch.ones(3)),
            r"epsilon \(2,\) and norm \(3,\) must broadcast",
        ),
        (lambda: approximate_risk_bound(uniform, 2, 0.4, 1.0), "pi/8"),
        (lambda: approximate_risk_bound(uniform, 2, 0.6, 1.0), "epsilon must lie in"),
        (lambda: approximate_risk_bound(uniform, 2, -0.1, 1.0), "epsilon must lie in"),
        (lambda: approximate_risk_bound(uniform, 2, 0.1, 0.0), "norm must be positive"),
        (lambda: approximate_risk_bound(uniform, 2, 0.1, 1.0, beta=1.5), "beta must lie in"),
        (lambda: approximate_risk_bound(uniform, 0, 0.1, 1.0), "n must be an integer"),
        (lambda: margin_risk_bound(uniform, 2, 2.0), "beta must be a finite number"),
        (lambda: polynomial_risk_bound(-1.0, 2), "kappa must be a finite number >= 0"),
        (lambda: polynomial_risk_bound(1.0, 0), "n must be an integer"),
        (lambda: polynomial_risk_bound(1.0, 2, c=0.0), "c must be a finite number > 0"),
        (lambda: lemma14_angle(0.6, 1.0), "epsilon must lie in"),
        (lambda: tight_angle(0.1, -1.0), "norm must be positive"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
