"""The bounds of Sections 5.2 to 5.4 and Appendices B to D, on random and on extreme states."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.tpkd import (
    alignment_bound,
    alignment_extremal,
    angle_spectrum_bound,
    compensation_bounds,
    conditional_component,
    conditional_kl,
    directions,
    distortion_limits,
    potential,
    potential_gradient,
    project_onto_safe_cone,
    retention_bound,
    weighted_descent_constant,
    weighted_label_loss,
    weighted_step_limit,
)
from tests.tpkd.states import random_states

SIZES = [3, 4, 10, 100, 1000]
SLACK = 1e-12
cases = st.tuples(st.integers(0, 2**32), st.just(10), st.sampled_from(SIZES), st.floats(0.05, 10))
FIRST = torch.tensor(0)


def squared(x):
    return x.square().sum(-1)


def noise(u):
    """Relative error of quantities quadratic in u: r and q are rounded, their difference is not."""
    return SLACK + 1e-15 / u.norm(dim=-1)


def dot(x, y):
    return (x * y).sum(-1)


def retained(u, labels):
    """Retained fraction, component's fraction of d, and cosine of component and signal."""
    d = project_onto_safe_cone(u, labels)
    component = conditional_component(d, labels)
    cosine = torch.cosine_similarity(u, component, dim=-1, eps=0.0)
    return dot(u, d) / squared(u), squared(component) / squared(d), cosine


def tight_signal(classes):
    """Appendix B.3: one class wanted up, the others equally down."""
    u = torch.full((classes,), 1 / (classes - 2), dtype=torch.float64)
    u[0], u[1] = 0.0, -1.0
    return u


def positive_pair(u, share=0.5):
    """Logits whose conditional distributions are positive and differ by a multiple of u."""
    uniform = torch.full_like(u, 1 / (len(u) - 1))
    step = share / (2 * len(u) * u.abs().max()) * u
    student, teacher = (uniform + step).log(), (uniform - step).log()
    return student, teacher


@pytest.mark.parametrize("classes", SIZES)
def test_constants_in_closed_form(classes):
    gamma = classes / (2 * (classes - 1))
    assert float(retention_bound(classes)) == pytest.approx(gamma, rel=1e-15)
    aligned = 2 * math.sqrt(gamma) / (1 + gamma)
    assert float(alignment_bound(classes)) == pytest.approx(aligned, rel=1e-15)
    assert aligned >= 2 * math.sqrt(2) / 3
    kappa_c, kappa_phi = distortion_limits(classes)
    assert float(kappa_phi) == pytest.approx((1 + gamma**0.5) / (1 - gamma**0.5), rel=1e-13)
    assert float(kappa_c) == pytest.approx((1 + aligned) / (1 - aligned), rel=1e-10)


def test_constants_as_printed():
    assert float(retention_bound(100)) == pytest.approx(0.5051, abs=5e-5)
    assert float(retention_bound(100)) ** 0.5 == pytest.approx(0.7107, abs=5e-5)
    kappa_c, kappa_phi = distortion_limits(100)
    assert float(kappa_c) == pytest.approx(34.957650, abs=6e-7)
    assert float(kappa_phi) == pytest.approx(5.912499, abs=6e-7)
    many = torch.tensor([3, 100])
    assert torch.equal(retention_bound(many)[1], retention_bound(100))
    assert distortion_limits(many)[0].shape == (2,)
    assert float(alignment_bound(10**9)) == pytest.approx(2 * math.sqrt(2) / 3)


@given(case=cases)
def test_theorem_3_on_random_states(case):
    student, teacher, labels = random_states(*case)
    u = directions(student, teacher, labels).conditional
    d = project_onto_safe_cone(u, labels)
    assert bool(((dot(u, d) - squared(d)).abs() <= noise(u) * squared(u)).all())
    kept, component, cosine = retained(u, labels)
    gamma = retention_bound(case[2])
    assert bool((kept >= gamma - noise(u)).all())
    assert bool((component >= gamma - noise(u)).all())
    assert bool((cosine >= alignment_bound(case[2]) - noise(u)).all())


@given(case=cases)
def test_completed_square_of_the_component(case):
    """Eq. B.4, from which the angle follows."""
    student, teacher, labels = random_states(*case)
    found = directions(student, teacher, labels)
    u, gamma = found.conditional, retention_bound(case[2])
    component = conditional_component(found.corrected, labels)
    left = (component - (1 + gamma) / 2 * u).norm(dim=-1)
    assert bool((left <= ((1 - gamma) / 2 + noise(u)) * u.norm(dim=-1)).all())


@pytest.mark.parametrize("classes", SIZES)
def test_both_norm_bounds_are_attained_at_once(classes):
    kept, component, cosine = retained(tight_signal(classes), FIRST)
    assert float(kept) == pytest.approx(float(retention_bound(classes)), rel=1e-13)
    assert float(component) == pytest.approx(float(retention_bound(classes)), rel=1e-13)
    assert float(cosine) == pytest.approx(1.0, abs=1e-13)
    student, teacher = positive_pair(tight_signal(classes))
    found = directions(student, teacher, FIRST)
    kept = dot(found.conditional, found.corrected) / squared(found.conditional)
    assert float(kept) == pytest.approx(float(retention_bound(classes)), rel=1e-11)


@pytest.mark.parametrize("classes", [4, 5, 10, 100, 1000])
def test_alignment_is_attained_from_four_classes_on(classes):
    u = alignment_extremal(classes)
    assert u.shape == (classes,)
    assert float(u.sum()) == pytest.approx(0.0, abs=1e-12)
    assert int((u < float(project_onto_safe_cone(u, FIRST)[0])).sum()) == 1
    bound = float(alignment_bound(classes))
    assert float(retained(u, FIRST)[2]) == pytest.approx(bound, abs=1e-13)
    student, teacher = positive_pair(u)
    found = directions(student, teacher, FIRST)
    assert float(retained(found.conditional, FIRST)[2]) == pytest.approx(bound, abs=1e-9)


@given(seed=st.integers(0, 2**32))
def test_three_classes_leave_no_angle_and_one_retention(seed):
    """The plane of signals is a line: the cosine is 1, above c_3, and 3/4 is always kept."""
    student, teacher, labels = random_states(seed, 5, 3, 1.0)
    u = directions(student, teacher, labels).conditional
    kept, component, cosine = retained(u, labels)
    for ratio, expected in ((kept, 0.75), (component, 0.75), (cosine, 1.0)):
        assert bool(((ratio - expected).abs() <= noise(u)).all())


@given(case=cases)
def test_compensation_lies_between_its_bounds(case):
    student, teacher, labels = random_states(*case)
    least, largest = compensation_bounds(student, teacher, labels)
    found = directions(student, teacher, labels)
    variation = found.conditional.abs().sum(-1) / 2
    torch.testing.assert_close(largest, variation / 2)
    torch.testing.assert_close(least, variation / (case[2] - 1))
    assert bool((found.compensation >= least - 1e-15).all())
    assert bool((found.compensation <= largest + 1e-15).all())


@pytest.mark.parametrize("classes", SIZES)
def test_compensation_bounds_are_attained(classes):
    """One class up: T / 2. All but one equally up: T / (K - 1)."""
    for u, end in ((tight_signal(classes), 1), (-tight_signal(classes), 0)):
        student, teacher = positive_pair(u)
        bounds = compensation_bounds(student, teacher, FIRST)
        found = directions(student, teacher, FIRST).compensation
        assert float(found) == pytest.approx(float(bounds[end]), rel=1e-12)


@given(case=cases)
def test_signal_removed(case):
    """Eqs. B.7 and B.8."""
    student, teacher, labels = random_states(*case)
    found = directions(student, teacher, labels)
    u, d, taken = found.conditional, found.corrected, found.compensation
    clipped = (d - u).scatter(-1, labels.unsqueeze(-1), 0.0)
    removed = squared(u) - squared(d)
    torch.testing.assert_close(removed, taken**2 + squared(clipped), rtol=1e-9, atol=1e-15)
    number = (clipped > 0).sum(-1)
    assert bool((removed >= taken**2 * (1 + 1 / number) - 1e-15).all())
    assert bool((removed <= 2 * taken**2 + 1e-15).all())


@given(case=cases, step=st.floats(0, 10))
def test_extra_margin_and_extra_confidence(case, step):
    """Eqs. B.9 and B.10."""
    student, teacher, labels = random_states(*case)
    found = directions(student, teacher, labels)
    limit = 3 * step / 2 * compensation_bounds(student, teacher, labels)[1]
    extra = step / 2 * (found.corrected - found.corrected.gather(-1, labels[:, None]))
    assert bool((extra >= 0).all())
    assert bool((extra.amax(-1) <= limit + 1e-15 * (1 + step)).all())
    label_end = student - step * found.label
    losses = [weighted_label_loss(z, labels) for z in (label_end, student - step * found.update)]
    doubt = [
        -directions(z, teacher, labels).label.gather(-1, labels[:, None])[:, 0]
        for z in (label_end, student)
    ]
    gained = losses[0] - losses[1]
    assert bool((gained >= -1e-14 * (1 + step)).all())
    assert bool((gained <= limit * doubt[0] + 1e-14 * (1 + step)).all())
    assert bool((doubt[0] <= doubt[1] * (1 + SLACK)).all())


@pytest.mark.parametrize("classes", [4, 10, 1000])
def test_extra_margin_limit_is_attained(classes):
    """One class up and one down by the same amount: r - q + l = T + T / 2."""
    u = torch.zeros(classes, dtype=torch.float64)
    u[1], u[2] = -1.0, 1.0
    student, teacher = positive_pair(u)
    d = directions(student, teacher, FIRST).corrected
    limit = 3 * compensation_bounds(student, teacher, FIRST)[1]
    assert float((d - d[0]).max()) == pytest.approx(float(limit), rel=1e-11)


@given(case=cases, smoothness=st.floats(0.1, 10))
def test_no_safe_direction_does_better(case, smoothness):
    """Eqs. B.11 and B.12 against random members of the cone and their mixtures with d."""
    student, teacher, labels = random_states(*case)
    found = directions(student, teacher, labels)
    u, d = found.conditional, found.corrected
    noise = torch.randn(u.shape, generator=torch.Generator().manual_seed(case[0]), dtype=u.dtype)
    for share in (1.0, 0.1, 1e-3):
        x = project_onto_safe_cone(d + share * noise * d.abs().amax(-1, True), labels)
        model = dot(u, x) - smoothness / 2 * squared(x)
        assert bool((model <= squared(d) / (2 * smoothness) * (1 + SLACK)).all())
        assert bool((dot(u, x) <= d.norm(dim=-1) * x.norm(dim=-1) * (1 + SLACK)).all())
    x = d / smoothness
    best = dot(u, x) - smoothness / 2 * squared(x)
    torch.testing.assert_close(best, squared(d) / (2 * smoothness), rtol=1e-10, atol=0.0)


@given(case=cases)
def test_complete_alignment(case):
    """Eq. 12 and the expansion C.1 term by term."""
    student, teacher, labels = random_states(*case)
    found = directions(student, teacher, labels)
    h, u, d, v = found.label, found.conditional, found.corrected, found.update
    e, g, gamma = u - d, potential_gradient(h, u), retention_bound(case[2])
    gap = dot(g, v) - squared(v) - gamma / 4 * squared(g)
    terms = [
        (3 - 4 * gamma) * squared(h),
        2 * (1 - gamma) * dot(h, d),
        (1 - 2 * gamma) * dot(h, e),
        ((1 - gamma) * squared(d) - gamma * squared(e)) / 4,
    ]
    torch.testing.assert_close(gap, sum(terms), rtol=1e-9, atol=1e-14)
    for term in terms:
        assert bool((term >= -1e-14).all())
    assert bool((torch.cosine_similarity(g, v, dim=-1, eps=0.0) >= gamma.sqrt() - SLACK).all())
    stacked = torch.cosine_similarity(g.flatten(), v.flatten(), dim=0)
    assert float(stacked) >= float(gamma.sqrt()) - SLACK


@pytest.mark.parametrize("classes", SIZES)
def test_complete_alignment_is_sharp_in_the_limit(classes):
    student, teacher = positive_pair(tight_signal(classes))
    gaps = []
    for lead in (0.0, 5.0, 15.0, 40.0):
        z = student.clone()
        z[0] = lead
        found = directions(z, teacher, FIRST)
        g = potential_gradient(found.label, found.conditional)
        cosine = torch.cosine_similarity(g, found.update, dim=0, eps=0.0)
        gaps.append(float(cosine - retention_bound(classes).sqrt()))
    assert gaps == sorted(gaps, reverse=True)
    assert abs(gaps[-1]) < 1e-10


@given(case=cases, step=st.floats(0, 0.8))
def test_one_step_lowers_the_potential(case, step):
    """Eq. 13."""
    student, teacher, labels = random_states(*case)
    found = directions(student, teacher, labels)
    g, gamma = potential_gradient(found.label, found.conditional), retention_bound(case[2])
    start = potential(student, teacher, labels)
    end = potential(student - step * found.update, teacher, labels)
    promised = step * gamma / 4 * squared(g) + step * (1 - 5 * step / 4) * squared(found.update)
    assert bool((end <= start - promised + 1e-13 * (1 + start)).all())


@pytest.mark.parametrize("classes", SIZES)
@pytest.mark.parametrize("weight", [4.0, 0.7])
def test_potential_and_its_gradient(classes, weight):
    student, teacher, labels = random_states(8, 5, classes)
    z = student.clone().requires_grad_()
    value = potential(z, teacher, labels, weight)
    parts = weight * weighted_label_loss(student, labels) + conditional_kl(student, teacher, labels)
    torch.testing.assert_close(value.detach(), parts, rtol=1e-13, atol=0.0)
    (slope,) = torch.autograd.grad(value.sum(), z)
    found = directions(student, teacher, labels)
    expected = potential_gradient(found.label, found.conditional, weight)
    torch.testing.assert_close(slope, expected, rtol=1e-9, atol=1e-14)


@given(case=cases)
def test_when_a_complete_step_lowers_its_own_error(case):
    """Eqs. C.7 to C.9; the students are confident, so that the condition holds."""
    student, teacher, labels = random_states(*case)
    student = student.scatter(-1, labels.unsqueeze(-1), student.amax(-1, True) + 12)
    found = directions(student, teacher, labels)
    h, u, d, v = found.label, found.conditional, found.corrected, found.update
    doubt = -h.gather(-1, labels.unsqueeze(-1))[:, 0]
    r = h.scatter(-1, labels.unsqueeze(-1), 0.0) / doubt.unsqueeze(-1)
    inner = doubt / 2 * (squared(u) + squared(r) - squared(r - u))
    torch.testing.assert_close(dot(u, h), inner, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(dot(u, v), inner + squared(d) / 2, rtol=1e-9, atol=1e-15)
    gamma = retention_bound(case[2])
    met = h.norm(dim=-1) / u.norm(dim=-1) < gamma / 2
    assert bool((dot(u, v)[met] > 0).all())
    limit = 4 * dot(u, v) / squared(v)
    before = conditional_kl(student, teacher, labels)
    for share in (0.01, 0.5, 0.99):
        step = (share * limit).clamp(min=0).unsqueeze(-1)
        after = conditional_kl(student - step * v, teacher, labels)
        assert bool((after < before)[met].all())


@given(case=cases, w=st.floats(0.05, 20), beta=st.floats(0.05, 20), share=st.floats(0.01, 1))
def test_general_weights(case, w, beta, share):
    """Appendix C.5: the constant is an eigenvalue, and the step it allows descends."""
    gamma = retention_bound(case[2])
    form = torch.tensor([[w, -0.5], [-0.5, beta * float(gamma)]], dtype=torch.float64)
    constant = weighted_descent_constant(w, beta, case[2])
    torch.testing.assert_close(constant, torch.linalg.eigvalsh(form)[0], rtol=1e-9, atol=1e-12)
    limit = weighted_step_limit(w, beta, case[2])
    assert float(limit) == pytest.approx(float(constant) / ((w + 1) * max(1, beta**2)))
    assert bool((constant > 0) == (limit > 0))
    if float(constant) <= 1e-9:
        return
    student, teacher, labels = random_states(*case)
    found = directions(student, teacher, labels, beta)
    step = share * limit
    start = potential(student, teacher, labels, w)
    end = potential(student - step * found.update, teacher, labels, w)
    promised = step * constant / 2 * (squared(found.label) + squared(found.conditional))
    assert bool((end <= start - promised + 1e-13 * (1 + start)).all())


@given(
    seed=st.integers(0, 2**32),
    cosine=st.floats(-0.999, 0.999),
    smallest=st.floats(0, 1),
    ratio=st.floats(1, 100),
)
def test_angle_and_spectrum(seed, cosine, smallest, ratio):
    """Eq. D.4 for any matrix with that spectrum; attained when the bisectors are its axes."""
    largest = (smallest + 0.01) * ratio
    bound = float(angle_spectrum_bound(cosine, smallest, largest))
    first = torch.tensor([1.0, 0.0], dtype=torch.float64)
    second = torch.tensor([cosine, math.sqrt(1 - cosine**2)], dtype=torch.float64)
    angle = torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def inner(turn):
        axis = torch.stack([torch.cos(turn), torch.sin(turn)])
        return float(
            smallest * first @ second + (largest - smallest) * (axis @ first) * (axis @ second)
        )

    assert inner(math.pi * angle) >= bound - 1e-12 * largest
    across = torch.tensor((math.acos(cosine) + math.pi) / 2, dtype=torch.float64)
    assert inner(across) == pytest.approx(bound, abs=1e-9 * largest)


@pytest.mark.parametrize("classes", [2, 0, -1, 3.0, True, None, torch.tensor(2), torch.tensor(3.5)])
def test_bad_class_counts_are_refused(classes):
    for function in (retention_bound, alignment_bound, distortion_limits, alignment_extremal):
        with pytest.raises(ValueError, match="classes"):
            function(classes)


def test_other_bad_input_is_named():
    with pytest.raises(ValueError, match="classes must be an integer >= 4"):
        alignment_extremal(3)
    with pytest.raises(ValueError, match="label_weight"):
        weighted_descent_constant(-1.0, 0.5, 3)
    with pytest.raises(ValueError, match="weight"):
        weighted_step_limit(1.0, -0.5, 3)
    with pytest.raises(ValueError, match="cosine"):
        angle_spectrum_bound(1.5, 0.0, 1.0)
    with pytest.raises(ValueError, match="largest"):
        angle_spectrum_bound(0.5, 2.0, 1.0)
    with pytest.raises(ValueError, match="weight"):
        potential(torch.zeros(3), torch.zeros(3), FIRST, -1.0)
    with pytest.raises(ValueError, match="teacher_logits"):
        compensation_bounds(torch.zeros(3), torch.zeros(4), FIRST)
