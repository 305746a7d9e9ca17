import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from lib.book.pages.convolutional_networks import (
    cartesian_l1,
    largest_inactive,
    last_quarter_change,
    near_identity,
    planted_sets,
)
from lib.implicit import (
    ConvolutionalNetwork,
    DiagonalNetwork,
    direction_angle,
    dual_norm_value,
    norm_value,
    solve_max_margin,
    spectrum,
)

NORM = {"signal": "l1", "fourier": "fourier-l1"}


def draw(*arguments, seed=0, **options):
    return planted_sets(*arguments, torch.Generator().manual_seed(seed), **options)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("domain", "dimension", "n"),
    [
        ("signal", 5, 3),
        ("signal", 64, 4),
        ("fourier", 8, 2),
        ("fourier", 15, 4),
        ("fourier", 64, 4),
    ],
)
def test_a_solver_finds_the_planted_optimum_and_calls_it_unique(domain, dimension, n, seed):
    sets = draw(dimension, n, 3, domain, seed=seed)
    for inputs, labels, optimum in zip(sets.inputs, sets.labels, sets.optimum, strict=True):
        solution = solve_max_margin(inputs, labels, NORM[domain])
        assert float(direction_angle(solution.predictor, optimum)) < 1e-7
        assert solution.unique
        assert solution.inactive <= 0.4 + 1e-6


@pytest.mark.parametrize("domain", ["signal", "fourier"])
def test_the_dual_vector_certifies_the_optimum(domain):
    sets = draw(12, 4, 6, domain, seed=4, inactive=0.2)
    value = norm_value(sets.optimum, NORM[domain])
    torch.testing.assert_close((sets.dual * sets.optimum).sum(-1), value)
    torch.testing.assert_close(dual_norm_value(sets.dual, NORM[domain]), torch.ones_like(value))
    rows = sets.labels.unsqueeze(-1) * sets.inputs
    weights = torch.linalg.lstsq(rows.mT, sets.dual.unsqueeze(-1)).solution.squeeze(-1)
    torch.testing.assert_close((rows.mT @ weights.unsqueeze(-1)).squeeze(-1), sets.dual)
    assert bool((weights > 0).all())


def test_labels_hold_both_classes_and_sets_differ_between_seeds():
    sets = draw(9, 4, 20, "signal", seed=1)
    assert bool((sets.labels.sum(-1) == 0).all())
    assert sets.tried >= 20
    assert not torch.equal(sets.inputs, draw(9, 4, 20, "signal", seed=2).inputs)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((8, 3, 1, "fourier"), {}, "even"),
        ((8, 8, 1, "fourier"), {}, "n_examples"),
        ((4, 5, 1, "signal"), {}, "n_examples"),
        ((4, 2, 1, "wavelet"), {}, "domain"),
        ((4, 2, 1, "signal"), {"inactive": 1.0}, "inactive"),
    ],
)
def test_bad_arguments_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        draw(*arguments, **options)


@pytest.mark.parametrize("depth", [2, 3])
def test_starts_have_no_hidden_coordinate_near_zero(depth):
    generator = torch.Generator().manual_seed(5)
    for network, view in ((DiagonalNetwork(depth), torch.abs), (ConvolutionalNetwork(depth), None)):
        layers = near_identity(network, 64, 50, 0.1, generator)
        size = view(layers[0]) if view else spectrum(layers[0]).abs()
        assert float(size.min()) > 0.04
        assert float(size.mean()) == pytest.approx(0.1, rel=0.05)
        assert float(layers[-1].std()) == pytest.approx(1e-4, rel=0.1)
        assert network.predictor(layers).shape == (50, 64)
    with pytest.raises(ValueError, match="scale"):
        near_identity(DiagonalNetwork(2), 4, 1, 0.0, generator)


def test_largest_inactive_sees_only_unused_coefficients():
    wave = torch.cos(torch.pi * torch.arange(8, dtype=torch.float64) / 2)
    leak = 0.1 * torch.ones(8, dtype=torch.float64)  # coefficient 0.1 sqrt 8 against sqrt 8 / 2
    assert float(largest_inactive(wave + leak, wave, "fourier")) == pytest.approx(0.2)
    assert float(largest_inactive(wave, wave, "fourier")) < 1e-12
    assert float(largest_inactive(leak, leak, "signal")) == 0


def test_change_is_measured_over_the_last_quarter_only():
    early = torch.cat([torch.linspace(0, 3, 30), torch.full((10,), 3.0)]).double()
    late = torch.cat([torch.zeros(31), torch.linspace(0, 0.5, 9)]).double()
    change = last_quarter_change(torch.stack([early, late], -1))
    assert change.tolist() == pytest.approx([0.0, 0.5])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dimension", [4, 7])
def test_cartesian_cost_equals_its_dual(dimension, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(3, dimension, generator=generator, dtype=torch.float64)
    predictor, cost = cartesian_l1(rows)
    full = np.fft.fft(predictor.numpy(), norm="ortho")
    assert np.abs(full.real).sum() + np.abs(full.imag).sum() == pytest.approx(cost)
    assert float((rows @ predictor).min()) > 1 - 1e-9
    transform = np.fft.fft(rows.numpy(), norm="ortho").T
    parts = np.concatenate([transform.real, transform.imag])
    dual = linprog(-np.ones(3), np.concatenate([parts, -parts]), np.ones(4 * dimension))
    assert -dual.fun == pytest.approx(cost)
