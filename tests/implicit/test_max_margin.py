from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.svm import SVC

from lib.implicit import (
    ConvolutionalNetwork,
    bridge_minimum,
    direction_angle,
    dual_norm_value,
    duality_gap,
    max_margin,
    norm_value,
    random_separable,
    solve_max_margin,
    spectrum,
    worked_example,
)

NORMS = ["l2", "l1", "fourier-l1"]
ROOT3 = 3**0.5
VALUES = {
    ("E1", "l2"): (42 / 17) ** 0.5,
    ("E1", "l1"): 2.0,
    ("E1", "fourier-l1"): ROOT3,
    ("E2", "l2"): (21 / 31) ** 0.5,
    ("E2", "l1"): 7 / 6,
    ("E2", "fourier-l1"): 46 / 39,
    ("E3", "l2"): (1075 / 1491) ** 0.5,
    ("E3", "l1"): 7 / 5,
    ("E3", "fourier-l1"): 1.6359964302923,
    ("E4", "l2"): 0.7518987993,
    ("E4", "l1"): 131 / 89,
    ("E4", "fourier-l1"): 1.6064949282688,
}
MULTIPLIERS = {
    ("E1", "l2"): np.array([23, 19]) / 17,
    ("E2", "l2"): np.array([10, 11]) / 31,
    ("E3", "l2"): np.array([384, 311, 380]) / 1491,
    ("E4", "l2"): np.array([9698, 14999, 17565, 10954]) / 94129,
    ("E1", "l1"): np.array([1, 1]),
    ("E2", "l1"): np.array([1 / 2, 2 / 3]),
    ("E3", "l1"): np.array([2, 2, 3]) / 5,
    ("E4", "l1"): np.array([29, 41, 33, 28]) / 89,
    ("E2", "fourier-l1"): np.array([16, 30]) / 39,
    ("E3", "fourier-l1"): np.array([0.6444666519, 0.3661598296, 0.6253699488]),
    ("E4", "fourier-l1"): np.array([0.1956552436, 0.5736031740, 0.5103095480, 0.3269269627]),
}
INACTIVE = {
    ("E1", "l1"): 0.0,
    ("E2", "l1"): 1 / 3,
    ("E3", "l1"): 2 / 5,
    ("E4", "l1"): 24 / 89,
    ("E2", "fourier-l1"): 5 / 39,
    ("E3", "fourier-l1"): 0.2149934914,
    ("E4", "fourier-l1"): 0.4045891,
}


def generator(seed):
    return torch.Generator().manual_seed(seed)


def gaussian_set(seed, n, d):
    """Gaussian examples with a random linear labelling that uses both labels."""
    g = generator(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = torch.sign(x @ torch.randn(d, generator=g, dtype=torch.float64))
    if y[0] == y[1]:
        x[0], y[0] = -x[0], -y[0]
    return x, y


# --- exact values (predictors: test_worked_examples.py) ----------------------------------------


@pytest.mark.parametrize(("name", "norm"), VALUES)
def test_exact_values_multipliers_and_inactive_moduli(name, norm):
    solution = solve_max_margin(*worked_example(name), norm)
    assert solution.value == pytest.approx(VALUES[name, norm], abs=1e-10)
    assert solution.gap < 1e-13
    assert solution.unique
    if (name, norm) in MULTIPLIERS:
        assert np.abs(solution.multipliers.numpy() - MULTIPLIERS[name, norm]).max() < 1e-9
    if (name, norm) in INACTIVE:
        assert solution.inactive == pytest.approx(INACTIVE[name, norm], abs=1e-7)


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("E1", (22.3660, 24.8399, 47.2059)),
        ("E2", (23.5051, 27.9914, 42.5559)),
        ("E3", (20.3331, 17.2607, 32.7765)),
        ("E4", (33.3989, 15.4702, 34.1923)),
    ],
)
def test_the_three_limits_are_far_apart(name, degrees):
    l2, l1, fourier = (max_margin(*worked_example(name), norm) for norm in NORMS)
    found = [direction_angle(*pair) for pair in ((l2, l1), (l2, fourier), (l1, fourier))]
    assert np.rad2deg(found) == pytest.approx(degrees, abs=1e-4)


def test_e2_by_hand():
    solution = solve_max_margin(*worked_example("E2"), "fourier-l1")
    inputs, labels = worked_example("E2")
    dual = solution.multipliers @ (labels[:, None] * inputs)
    assert torch.allclose(39 * dual, torch.tensor([-14.0, 2.0, 58.0, 32.0], dtype=torch.float64))
    expected = torch.tensor([178 / 195, (-24 + 10j) / 195, 0], dtype=torch.complex128)
    assert torch.allclose(spectrum(solution.predictor), expected, atol=1e-12)


# --- second routes -----------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.sampled_from(NORMS), st.integers(2, 9), st.integers(1, 12), st.integers(0, 10**6))
def test_random_sets_are_solved_and_certified(norm, n, d, seed):
    x, y = gaussian_set(seed, n, d)
    solution = solve_max_margin(x, y, norm)
    rows = y[:, None] * x
    assert float((rows @ solution.predictor).min()) == pytest.approx(1, abs=1e-9)
    dual = solution.multipliers @ rows
    bound = solution.multipliers.sum() / dual_norm_value(dual, norm)
    assert float(bound) == pytest.approx(solution.value, rel=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_l2_is_the_hard_margin_svm(seed):
    x, y, _ = random_separable(6, 10, generator(seed))
    # a support vector machine without a bias: every example also with the opposite sign
    both, labels = torch.cat([x, -x]), torch.cat([y, -y])
    svm = SVC(kernel="linear", C=1e8, tol=1e-10).fit(both.numpy(), labels.numpy())
    assert svm.coef_[0] == pytest.approx(max_margin(x, y, "l2").numpy(), abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_l1_is_the_best_vertex(seed):
    x, y, _ = random_separable(6, 4, generator(seed), "l1", support=3)
    best = bridge_minimum(x, y, 1.0)
    assert torch.allclose(best, max_margin(x, y, "l1"), atol=1e-9)


@pytest.mark.parametrize("name", ["E2", "E3"])
def test_fourier_l1_is_the_cheapest_convolutional_network(name):
    inputs, labels = worked_example(name)
    rows, d = labels[:, None] * inputs, inputs.shape[1]
    network = ConvolutionalNetwork(2)

    def margins(flat):
        layers = torch.from_numpy(flat.reshape(2, d))
        return (rows @ network.predictor(layers)).numpy()

    def gradients(flat):
        layers = torch.from_numpy(flat.reshape(2, d))
        return np.stack([torch.cat(network.adjoint(layers, row)).numpy() for row in rows])

    rng = np.random.default_rng(0)
    constraint = {"type": "ineq", "fun": lambda w: margins(w) - 1, "jac": gradients}
    found = [
        minimize(
            lambda w: w @ w,
            rng.standard_normal(2 * d),
            jac=lambda w: 2 * w,
            method="SLSQP",
            constraints=[constraint],
            options={"ftol": 1e-14, "maxiter": 500},
        )
        for _ in range(4)
    ]
    best = min((r for r in found if margins(r.x).min() > 1 - 1e-6), key=lambda r: r.fun)
    predictor = network.predictor(torch.from_numpy(best.x.reshape(2, d)))
    assert best.fun == pytest.approx(2 * VALUES[name, "fourier-l1"], rel=1e-6)
    assert float(direction_angle(predictor, max_margin(inputs, labels, "fourier-l1"))) < 1e-4


# --- invariances -------------------------------------------------------------------------------


def test_invariances():
    inputs, labels = worked_example("E4")
    g = generator(0)
    shift = max_margin(inputs.roll(3, 1), labels, "fourier-l1")
    assert torch.allclose(shift, max_margin(inputs, labels, "fourier-l1").roll(3), atol=1e-11)
    order = torch.randperm(8, generator=g)
    signs = torch.sign(torch.randn(8, generator=g, dtype=torch.float64))
    moved = max_margin((signs * inputs)[:, order], labels, "l1")
    assert torch.allclose(moved, (signs * max_margin(inputs, labels, "l1"))[order], atol=1e-12)
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=g, dtype=torch.float64)).Q
    turned = max_margin(inputs @ rotation, labels, "l2")
    assert torch.allclose(turned, max_margin(inputs, labels, "l2") @ rotation, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scaling_the_data_scales_the_answer(norm, scale):
    inputs, labels = worked_example("E3")
    solution = solve_max_margin(scale * inputs, labels, norm)
    expected = solve_max_margin(inputs, labels, norm)
    assert torch.allclose(scale * solution.predictor, expected.predictor, atol=1e-11)
    power = 2 if norm == "l2" else 1
    assert torch.allclose(scale**power * solution.multipliers, expected.multipliers, atol=1e-9)


# --- certificates ------------------------------------------------------------------------------


@given(st.sampled_from(NORMS), st.integers(0, 10**6))
def test_the_gap_bounds_the_loss_of_margin(norm, seed):
    inputs, labels = worked_example("E4")
    g = generator(seed)
    best = max_margin(inputs, labels, norm)
    tried = best + 0.05 * torch.randn(8, generator=g, dtype=torch.float64)
    weights = torch.rand(4, generator=g, dtype=torch.float64)
    rows = labels[:, None] * inputs
    assume(bool((rows @ tried > 0).all()))
    lost = 1 - float((rows @ tried).min() / norm_value(tried, norm) * norm_value(best, norm))
    sharp = float(duality_gap(tried, inputs, labels, norm))
    assert sharp == pytest.approx(lost, abs=1e-9)
    assert float(duality_gap(tried, inputs, labels, norm, weights)) >= sharp - 1e-9
    if norm == "l2":
        assert float(direction_angle(tried, best).cos()) >= 1 - sharp - 1e-12


def test_non_unique_optima_are_reported():
    rows = torch.tensor(
        [[-2, 2, 3, -1, 2], [3, -1, 0, -2, 1], [-1, 1, 3, -2, -2]], dtype=torch.float64
    )
    labels = torch.tensor([1.0, -1.0, 1.0])
    assert not solve_max_margin(labels[:, None] * rows, labels, "l1").unique
    tie = torch.tensor([[1.0, 1.0], [-2.0, -2.0]])
    assert not solve_max_margin(tie, torch.tensor([1, -1]), "l1").unique


# --- refusals ----------------------------------------------------------------------------------


def test_one_example_has_a_closed_form():
    x, y = torch.tensor([[3.0, 4.0]]), torch.tensor([-1])
    assert torch.allclose(max_margin(x, y, "l2"), -x[0].double() / 25)
    assert torch.allclose(max_margin(x, y, "l1"), torch.tensor([0, -0.25]).double())


def test_errors():
    x, y = torch.eye(2), torch.tensor([1.0, -1.0])
    with pytest.raises(ValueError, match="norm must be one of"):
        max_margin(x, y, "l3")
    with pytest.raises(ValueError, match="labels must hold both classes, got 2 times 1"):
        max_margin(x, torch.ones(2), "l2")
    with pytest.raises(ValueError, match="labels must be -1 or \\+1, got 0"):
        max_margin(x, torch.tensor([0, 1]), "l2")
    with pytest.raises(ValueError, match="zero row"):
        max_margin(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), y, "l1")
    with pytest.raises(ValueError, match="inputs must be finite"):
        max_margin(x / 0, y, "l1")
    with pytest.raises(ValueError, match="labels must have shape"):
        max_margin(x, torch.ones(3), "l1")
    with pytest.raises(ValueError, match=r"inputs must have shape \(N, D\)"):
        max_margin(x[None], y, "l1")
    for norm in NORMS:
        with pytest.raises(ValueError, match="linearly separable through the origin"):
            max_margin(torch.tensor([[1.0, 2.0], [2.0, 4.0]]), y, norm)


def test_gap_errors():
    x, y = torch.eye(2), torch.tensor([1.0, -1.0])
    with pytest.raises(ValueError, match="weights must be 2 numbers >= 0"):
        duality_gap(torch.ones(2), x, y, "l2", torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match="must not all be zero"):
        duality_gap(torch.ones(2), x, y, "l2", torch.zeros(2))
    with pytest.raises(ValueError, match="predictor must not be the zero vector"):
        duality_gap(torch.zeros(2), x, y, "l2")
