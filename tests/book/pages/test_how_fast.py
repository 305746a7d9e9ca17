import math

import pytest
import torch

from lib.book.pages.how_fast import nested_angles, risk_curves
from lib.linear import (
    BandAngleTask,
    PolynomialAngleTask,
    angle,
    expected_risk,
    student_limit,
    transfer_risk,
)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("n", "d"), [(1, 2), (3, 4), (6, 6), (5, 30)])
def test_nested_angles_are_the_angles_of_the_student_limits(n, d, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(4, n, d, generator=generator, dtype=torch.float64)
    teacher = torch.randn(d, generator=generator, dtype=torch.float64)
    found = nested_angles(inputs, teacher)
    one_by_one = [angle(teacher, student_limit(inputs[:, :k], teacher)) for k in range(1, n + 1)]
    torch.testing.assert_close(found, torch.stack(one_by_one, -1), atol=1e-7, rtol=1e-7)
    assert bool((found.diff(dim=-1) <= 1e-12).all())


def test_the_teacher_is_reached_exactly_at_n_equal_to_d():
    inputs = torch.randn(7, 9, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert float(nested_angles(inputs, torch.ones(9, dtype=torch.float64))[:, -1].max()) == 0


def test_nested_angles_refuse_more_examples_than_dimensions():
    with pytest.raises(ValueError, match="n <= d"):
        nested_angles(torch.ones(3, 2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_risk_curves_agree_with_sampled_test_inputs(seed):
    task = PolynomialAngleTask(6, 0.7)
    angles, risks = risk_curves(task, 4, 3, torch.Generator().manual_seed(seed))
    fresh = task.sample((3, 4), torch.Generator().manual_seed(seed))
    test = task.sample(200_000, torch.Generator().manual_seed(seed + 100))
    for k in range(1, 5):
        students = student_limit(fresh[:, :k], task.teacher)
        sampled = transfer_risk(students, task.teacher, test)
        error = (risks[:, k - 1] * (1 - risks[:, k - 1]) / len(test)).sqrt().clamp(min=1e-5)
        assert float(((sampled - risks[:, k - 1]).abs() / error).max()) < 5
        torch.testing.assert_close(angles[:, k - 1], angle(task.teacher, students))


@pytest.mark.parametrize("kappa", [1, 2, 3])
def test_one_example_in_the_plane_has_risk_one_over_twice_a_binomial(kappa):
    _, risk = risk_curves(PolynomialAngleTask(2, float(kappa)), 1, 40_000, _seeded(kappa))
    error = float(risk.std()) / len(risk) ** 0.5
    assert abs(float(risk.mean()) - 1 / (2 * math.comb(2 * kappa, kappa))) < 5 * error


@pytest.mark.parametrize("degrees", [50.0, 54.0, 70.0])
def test_three_examples_on_a_cone_in_four_dimensions_have_the_closed_form(degrees):
    high = math.radians(degrees)
    _, risk = risk_curves(BandAngleTask(4, high - 1e-6, high), 3, 20_000, _seeded(7))
    q = 1 / math.tan(high) ** 2
    by_hand = 1 / 2 - 3 / 8 * q + 3 / 4 * q * math.log(q) - q**3 / 8
    error = float(risk[:, -1].std()) / len(risk) ** 0.5
    assert abs(float(risk[:, -1].mean()) - by_hand) < 5 * error


def test_splitting_the_quadrature_changes_nothing():
    task = PolynomialAngleTask(5, 1.5)
    angles, risks = risk_curves(task, 4, 1001, _seeded(0))
    assert torch.equal(risks, expected_risk(angles, task))


def _seeded(seed):
    return torch.Generator().manual_seed(seed)
