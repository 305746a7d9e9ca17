import math

import pytest
import torch

from lib.book.pages.how_fast import risk_curves
from lib.book.pages.why_the_bound_holds import best_point_bound, sort_events, tilting_inputs
from lib.linear import (
    MarginAngleTask,
    PolynomialAngleTask,
    angle,
    sharp_risk_bound,
    student_limit,
    transfer_risk,
)

UP = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)


def _seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.2, 1 / 3, 0.6])
def test_a_second_example_raises_the_risk_from_nothing(share, seed):
    generator = _seeded(seed)
    test = tilting_inputs(4000, generator, share)
    sets = tilting_inputs((3000, 2), generator, share)
    first = transfer_risk(student_limit(sets[:, :1], UP), UP, test)
    second = transfer_risk(student_limit(sets, UP), UP, test)
    assert float(first.max()) == 0
    error = float(second.std()) / len(second) ** 0.5 + 0.01 * share
    assert abs(float(second.mean()) - share * (1 - share) ** 2) < 5 * error


@pytest.mark.parametrize("seed", range(4))
def test_two_steep_examples_improve_the_angle_and_fail_on_all_flat_inputs(seed):
    inputs = tilting_inputs(400, _seeded(seed), thickness=0.0)
    steep, flat = inputs[inputs[:, 0] != 0], inputs[inputs[:, 0] == 0]
    one, two = student_limit(steep[:1], UP), student_limit(steep[:2], UP)
    torch.testing.assert_close(two, torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64) / 3)
    assert float(angle(UP, two)) < float(angle(UP, one))
    assert float(transfer_risk(one, UP, inputs)) == 0
    assert float(transfer_risk(two, UP, flat)) == 1
    assert float(transfer_risk(two, UP, steep)) == 0


@pytest.mark.parametrize("kappa", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_the_bound_without_beta_is_a_beta_function_for_polynomial_tails(kappa):
    n = torch.tensor([1.0, 2.0, 7.0, 50.0], dtype=torch.float64)
    ends = torch.tensor([kappa + 1], dtype=torch.float64)
    log = torch.lgamma(ends) + torch.lgamma(kappa * n + 1) - torch.lgamma(kappa * n + kappa + 1)
    found = best_point_bound(PolynomialAngleTask(60, kappa), n)
    torch.testing.assert_close(found, log.exp(), rtol=1e-4, atol=0)
    assert bool((found <= math.gamma(kappa + 1) / (kappa * n) ** kappa).all())


@pytest.mark.parametrize("degrees", [5.0, 22.5, 36.0])
def test_the_bound_without_beta_gains_a_factor_with_a_margin(degrees):
    n = torch.tensor([1.0, 3.0, 10.0], dtype=torch.float64)
    gamma = (90 - 2 * degrees) / (90 - degrees)
    found = best_point_bound(MarginAngleTask(20, math.radians(degrees)), n)
    torch.testing.assert_close(found, gamma ** (n + 1) / (n + 1), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("kappa", [0.3, 1.0, 3.0])
def test_the_bound_without_beta_lies_between_the_risk_and_the_sharp_bound(kappa):
    task, n = PolynomialAngleTask(5, kappa), torch.arange(1, 5)
    bound = best_point_bound(task, n)
    assert bool((bound <= sharp_risk_bound(task.angle_tail, n)).all())
    assert bool((risk_curves(task, 4, 2000, _seeded(1))[1].mean(0) <= bound / 2).all())


@pytest.mark.parametrize("kappa", [0.5, 1.0, 2.0])
def test_half_of_it_is_the_risk_of_one_example_in_the_plane(kappa):
    task = PolynomialAngleTask(2, kappa)
    risk = risk_curves(task, 1, 40_000, _seeded(2))[1]
    gap = float(risk.mean()) - float(best_point_bound(task, 1)) / 2
    assert abs(gap) < 5 * float(risk.std()) / len(risk) ** 0.5


@pytest.mark.parametrize(("share", "thickness"), [(0.0, 0.0), (1.0, 0.0), (0.5, -1.0), (0.5, 1.0)])
def test_tilting_inputs_refuse_what_is_out_of_range(share, thickness):
    with pytest.raises(ValueError, match="must lie in"):
        tilting_inputs(3, _seeded(0), share, thickness)


@pytest.mark.parametrize(("n", "nodes"), [(0, 10), (3, 0)])
def test_best_point_bound_refuses_empty_sets(n, nodes):
    with pytest.raises(ValueError, match="at least 1"):
        best_point_bound(PolynomialAngleTask(3, 1.0), n, nodes)


@pytest.mark.parametrize("seed", [0, 1])
def test_events_are_what_a_loop_over_all_pairs_finds(seed):
    generator = _seeded(seed)
    sets = torch.randn(6, 2, 3, generator=generator, dtype=torch.float64)
    test = torch.randn(15, 3, generator=generator, dtype=torch.float64)
    students, beta = student_limit(sets, UP), 0.8
    events = sort_events(students, sets, test, UP, beta)
    for i, x in enumerate(test):
        for j, student in enumerate(students):
            cosines = [abs(float(v @ UP)) / float(v.norm()) for v in sets[j]]
            assert bool(events.easy[i, j]) == (abs(float(x[2])) / float(x.norm()) > math.cos(beta))
            assert bool(events.good[i, j]) == (max(cosines) > math.sin(beta))
            assert bool(events.wrong[i, j]) == (float(x @ student) * float(x[2]) < 0)


def test_sort_events_refuses_degrees():
    with pytest.raises(ValueError, match="radians"):
        sort_events(UP[None], UP[None, None], UP[None], UP, beta=60)
