"""Helpers of the page "Data geometry", against linear algebra, quadrature and counting."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import levy

from lib.book.pages import data_geometry as page
from lib.linear import PolynomialAngleTask, angle, expected_risk, student_limit


def _normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(6, 12))
def test_cot_squared_of_the_student_is_the_quadratic_form_of_the_proposition(seed, n, d):
    teacher, inputs = _normal(seed, d), _normal(seed + 1, n, d)
    unit = teacher / teacher.norm()
    inputs = inputs * torch.sign(inputs @ unit).unsqueeze(-1)
    along = inputs @ unit
    around = inputs - along.unsqueeze(-1) * unit
    directions = around / around.norm(dim=-1, keepdim=True)
    cotangents = along / around.norm(dim=-1)
    form = cotangents @ torch.linalg.solve(directions @ directions.T, cotangents)
    student = student_limit(inputs, teacher)
    torch.testing.assert_close(angle(student, teacher).tan() ** -2, form, rtol=1e-6, atol=1e-12)


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_cotangents_of_orthogonal_directions_add_up(seed, n):
    angles = 0.1 + 1.4 * torch.rand(
        n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    inputs = torch.cat([angles.cos().unsqueeze(-1), torch.diag(angles.sin())], dim=-1)
    teacher = torch.eye(n + 1, dtype=torch.float64)[0]
    found = angle(student_limit(inputs, teacher), teacher).tan() ** -2
    torch.testing.assert_close(found, page.cotangent_sum(angles), rtol=1e-9, atol=0)


@pytest.mark.parametrize(("n", "d"), [(2, 8), (5, 12), (10, 30)])
def test_mean_factor_of_the_proposition(n, d):
    generator = torch.Generator().manual_seed(n)
    trial = page.run_trial(PolynomialAngleTask(d, 1.0), n, 20_000, 20, generator)
    ratio = trial.angles.tan() ** -2 / trial.cotangents
    error = float(ratio.std()) / 20_000**0.5
    assert abs(float(ratio.mean()) - (d - 3) / (d - n - 2)) < 5 * error
    assert error < 0.05


@given(st.floats(-0.9, 6))
def test_half_normal_moment_is_the_integral(power):
    value = quad(lambda z: z**power * math.exp(-z * z / 2), 0, 1, points=[0])[0]
    value += quad(lambda z: z**power * math.exp(-z * z / 2), 1, 12)[0]
    assert page.half_normal_moment(power) == pytest.approx(value * math.sqrt(2 / math.pi), rel=1e-5)


@pytest.mark.parametrize("kappa", [0.5, 1.0, 2.0])
def test_sum_of_squared_cotangents_follows_the_levy_law(kappa):
    n, generator = 400, torch.Generator().manual_seed(7)
    boundary = PolynomialAngleTask(3, kappa).boundary_angle(
        torch.rand(4000, n, generator=generator, dtype=torch.float64)
    )
    scaled = page.cotangent_sum(math.pi / 2 - boundary) / n**2
    for quantile in (0.25, 0.5, 0.75):
        place = levy.ppf(quantile, scale=2 * kappa**2 / math.pi)
        share = float((scaled < place).double().mean())
        assert abs(share - quantile) < 0.04


@pytest.mark.parametrize("kappa", [0.5, 1.0, 1.5])
def test_limit_risk_meets_exact_risks_where_n_and_d_are_large(kappa):
    task, generator = PolynomialAngleTask(4000, kappa), torch.Generator().manual_seed(3)
    task_angles = math.pi / 2 - task.boundary_angle(
        torch.rand(20_000, 100, generator=generator, dtype=torch.float64)
    )
    tilt = torch.atan(page.cotangent_sum(task_angles).rsqrt())
    risk = expected_risk(tilt, task)
    error = float(risk.std()) / 20_000**0.5
    assert float(risk.mean()) == pytest.approx(
        page.limit_risk(kappa, 100, 4000), rel=0.03, abs=4 * error
    )


def test_two_routes_to_the_risk_agree():
    generator = torch.Generator().manual_seed(11)
    trial = page.run_trial(PolynomialAngleTask(12, 0.5), 3, 50, 20_000, generator)
    assert 0 < trial.held_out_error < 0.01
    assert abs(float(trial.risks.mean()) - trial.held_out) < 5 * trial.held_out_error


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: page.half_normal_moment(-1.0), "power"),
        (lambda: page.limit_risk(0.0, 3, 4), "kappa"),
        (lambda: page.limit_risk(1.0, 0, 4), "n >= 1"),
        (lambda: page.limit_risk(1.0, 3, 1), "dimension"),
        (
            lambda: page.run_trial(PolynomialAngleTask(3, 1.0), 1, 1, 19, torch.Generator()),
            "n_held_out",
        ),
    ],
)
def test_bad_input_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
