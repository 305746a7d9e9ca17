from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.implicit import (
    bridge_minimum,
    bridge_penalty,
    margin_vertices,
    max_margin,
    polish_stationary,
    random_separable,
    solve_max_margin,
    stability_numbers,
    stationarity,
    worked_example,
)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


# --- the residual ------------------------------------------------------------------------------


@given(
    st.sampled_from([("l2", 2.0, "signal"), ("l1", 1.0, "signal"), ("fourier-l1", 1.0, "fourier")]),
    st.sampled_from(["E1", "E2", "E3", "E4"]),
    st.floats(1e-6, 1e6),
)
def test_convex_optima_are_stationary_at_every_scale(problem, name, scale):
    norm, power, domain = problem
    inputs, labels = worked_example(name)
    best = scale * max_margin(inputs, labels, norm)
    assert float(stationarity(best, inputs, labels, power, domain)) < 1e-10
    other = max_margin(inputs, labels, "l1" if norm == "l2" else "l2")
    assert float(stationarity(other, inputs, labels, power, domain)) > 1e-3


def test_the_fourier_optimum_is_not_stationary_at_depth_three():
    inputs, labels = worked_example("E2")
    best = max_margin(inputs, labels, "fourier-l1")
    rho = stationarity(best, inputs, labels, 2 / 3, "fourier")
    assert float(rho) == pytest.approx(3.4e-2, abs=5e-4)


def test_the_dense_form_sees_coordinates_that_should_not_vanish():
    inputs, labels = torch.tensor([[3.0, 4.0]]), torch.tensor([1])
    sparse = vector(0.0, 1.0)
    assert float(stationarity(sparse, inputs, labels, 1.0, "signal")) < 1e-12
    assert float(stationarity(sparse, inputs, labels, 2.0, "signal")) == pytest.approx(0.6)


def test_slack_decides_which_examples_count():
    inputs, labels = torch.eye(2, dtype=torch.float64), torch.ones(2)
    nearly = vector(1.0, 1.04)
    assert float(stationarity(nearly, inputs, labels, 2.0, "signal")) < 1e-12
    strict = float(stationarity(nearly, inputs, labels, 2.0, "signal", slack=1e-3))
    assert strict == pytest.approx(1.04 / (1 + 1.04**2) ** 0.5)


def test_predictors_come_in_batches():
    inputs, labels = worked_example("E3")
    first, second = max_margin(inputs, labels, "l1"), max_margin(inputs, labels, "l2")
    both = torch.stack([first, second])[None]
    rho = stationarity(both, inputs, labels, 1.0, "signal")
    assert rho.shape == (1, 2)
    assert float(rho[0, 1]) == float(stationarity(second, inputs, labels, 1.0, "signal"))
    assert stability_numbers(both, inputs, labels, 2, "signal").shape == (1, 2, 5)
    assert stability_numbers(both, inputs, labels, 2, "fourier").shape == (1, 2, 3)


# --- stability ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "domain"), [("l1", "signal"), ("fourier-l1", "fourier")])
def test_at_depth_two_stability_is_dual_feasibility(norm, domain):
    inputs, labels, beta = random_separable(16, 6, generator(0), norm)
    kappa = stability_numbers(beta, inputs, labels, 2, domain)
    active = (kappa - 1).abs() < 1e-9
    assert int(active.sum()) == 2
    solution = solve_max_margin(inputs, labels, norm)
    assert float(kappa[~active].max()) == pytest.approx(solution.inactive)


def test_a_small_residual_may_stand_next_to_an_unstable_coefficient():
    inputs, labels = worked_example("E3")
    false_limit = vector(5.2360679775, -5.0, 2.8541019662, 0.3819660113, -3.4721359550)
    with_mean = false_limit + 0.0013 / 5**0.5
    for predictor in (false_limit, with_mean):
        assert float(stationarity(predictor, inputs, labels, 2 / 3, "fourier")) < 0.02
    kappa = stability_numbers(with_mean, inputs, labels, 3, "fourier")
    assert float(kappa[0]) == pytest.approx(11.5 * 0.0013 ** (1 / 3), rel=0.01)
    assert float(kappa[0]) > 1


# --- polish ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "domain", "limit"),
    [
        ("E2", "fourier", (1 / 3, 0.4200281400, 0.5844538244, 0.4977590178)),
        ("E2", "fourier", (-1.0681109231, 0.1191941154, 0.0170277308, 0.9318890769)),
        ("E3", "fourier", (0.2785329978, -0.3070659956, 0.1107335011, 0.5142664989, -0.5964670022)),
        ("E3", "signal", (0, 0, 0, 3 / 4, -5 / 4)),
    ],
)
def test_polish_gives_the_digits_back(name, domain, limit):
    inputs, labels = worked_example(name)
    rough = vector(*limit) + 1e-5 * torch.randn(len(limit), generator=generator(0)).double()
    found = polish_stationary(3 * rough, inputs, labels, 2 / 3, domain, support=0.02)
    assert torch.allclose(found, vector(*limit), atol=2e-10)
    assert float(stationarity(found, inputs, labels, 2 / 3, domain, slack=1e-9)) < 1e-10


def test_polish_says_when_nothing_is_near():
    inputs, labels = worked_example("E3")
    far = max_margin(inputs, labels, "l2")
    with pytest.raises(RuntimeError, match="no stationary point was found next to"):
        polish_stationary(far, inputs, labels, 2 / 3, "fourier", slack=1e-9, support=0.9)


# --- vertices ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "minimum", "penalty"),
    [
        ("E1", (0, 1 / 3, 5 / 3), 1.8865),
        ("E2", (0, 0, 1 / 3, 5 / 6), 1.366299),
        ("E3", (0, 0, 0.3, 0.3, -0.8), 1.758055),
        ("E4", (0, -5 / 4, 0, 0, 0, 0, 0, -1 / 2), 1.790358),
    ],
)
def test_global_bridge_minima(name, minimum, penalty):
    inputs, labels = worked_example(name)
    found = bridge_minimum(inputs, labels, 2 / 3)
    assert torch.allclose(found, vector(*minimum), atol=1e-12)
    assert float(bridge_penalty(found, 2 / 3, "signal")) == pytest.approx(penalty, abs=5e-5)
    assert float(stationarity(found, inputs, labels, 2 / 3, "signal")) < 1e-12


@given(st.integers(0, 10**6), st.sampled_from([0.5, 2 / 3, 1.0]))
def test_no_feasible_predictor_beats_the_minimum(seed, power):
    inputs, labels = worked_example("E3")
    best = bridge_penalty(bridge_minimum(inputs, labels, power), power, "signal")
    tried = torch.randn(200, 5, generator=generator(seed), dtype=torch.float64)
    tried = tried + max_margin(inputs, labels, "l1")
    smallest = (labels * (tried @ inputs.T)).amin(-1)
    feasible = tried[smallest > 0] / smallest[smallest > 0, None]
    assert bool((bridge_penalty(feasible, power, "signal") >= best * (1 - 1e-12)).all())


def test_vertices_are_feasible_vertices_without_repetition():
    inputs, labels = worked_example("E4")
    vertices = margin_vertices(inputs, labels)
    margins = labels * (vertices @ inputs.T)
    assert bool((margins >= 1 - 1e-9).all())
    active = (margins < 1 + 1e-9).sum(-1) + (vertices.abs() < 1e-12).sum(-1)
    assert bool((active >= 8).all())
    assert torch.cdist(vertices, vertices).fill_diagonal_(1).min() > 1e-6


# --- refusals ----------------------------------------------------------------------------------


def test_errors():
    inputs, labels = worked_example("E2")
    best = max_margin(inputs, labels, "l2")
    with pytest.raises(ValueError, match="predictor must give every example a positive margin"):
        stationarity(-best, inputs, labels, 1.0, "signal")
    with pytest.raises(ValueError, match="domain must be one of 'signal', 'fourier'"):
        stationarity(best, inputs, labels, 1.0, "time")
    with pytest.raises(ValueError, match="power must be a finite number > 0 and <= 2"):
        stationarity(best, inputs, labels, 0.0, "signal")
    with pytest.raises(ValueError, match="depth must be an integer >= 2"):
        stability_numbers(best, inputs, labels, 1, "signal")
    with pytest.raises(ValueError, match="power must be a finite number > 0 and <= 1"):
        bridge_minimum(inputs, labels, 1.5)
    with pytest.raises(ValueError, match="systems to solve, more than"):
        margin_vertices(torch.randn(30, 30), torch.ones(30))
    with pytest.raises(ValueError, match="linearly separable"):
        bridge_minimum(torch.tensor([[1.0], [1.0]]), torch.tensor([1, -1]), 1.0)
