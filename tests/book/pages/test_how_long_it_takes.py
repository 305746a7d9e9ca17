"""The gains, slopes and crossings of the chapter on rates, against second routes."""

import math

import pytest
import torch

from lib.book.pages.how_long_it_takes import crossing, dense_gain, log_slope, sparse_gain
from lib.implicit import ConvolutionalNetwork, DenseNetwork, DiagonalNetwork, descend, max_margin


def data():
    rows = torch.tensor([[0.0, -3, -1, 2], [-2, -1, 1, 3]], dtype=torch.float64)
    labels = torch.tensor([1.0, -1.0], dtype=torch.float64)
    return labels[:, None] * rows, labels, rows


def measured_gain(network, inputs, labels, steps=1500):
    generator = torch.Generator().manual_seed(3)
    run = descend(network, inputs, labels, steps, generator, scale=0.1)
    rise = run.log_loss[-2] - run.log_loss[-1]
    return float(rise / (run.step[-1] - run.step[-2]))


@pytest.mark.parametrize(("depth", "by_hand"), [(1, 146 / 195), (2, 292 / 341), (3, 438 / 487)])
def test_dense_gain_is_the_hand_value_and_what_descent_gains(depth, by_hand):
    inputs, labels, rows = data()
    found = dense_gain(max_margin(inputs, labels, "l2"), rows, depth)
    assert found == pytest.approx(by_hand, rel=1e-9)
    assert measured_gain(DenseNetwork(depth), inputs, labels) == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize(
    ("network", "norm", "domain", "by_hand"),
    [
        (DiagonalNetwork(2), "l1", "signal", 49 / 57),
        (ConvolutionalNetwork(2), "fourier-l1", "fourier", 361 / 442),
    ],
)
def test_sparse_gain_is_the_hand_value_and_what_descent_gains(network, norm, domain, by_hand):
    inputs, labels, rows = data()
    found = sparse_gain(max_margin(inputs, labels, norm), rows, domain)
    assert found == pytest.approx(by_hand, rel=1e-6)
    assert measured_gain(network, inputs, labels) == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_gains_never_exceed_one(seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    labels = torch.tensor([1.0, -1, 1], dtype=torch.float64)
    inputs = labels[:, None] * rows
    dense = [dense_gain(max_margin(inputs, labels, "l2"), rows, depth) for depth in (1, 2, 5)]
    sparse = [
        sparse_gain(max_margin(inputs, labels, norm), rows, domain)
        for norm, domain in (("l1", "signal"), ("fourier-l1", "fourier"))
    ]
    assert all(0 < gain <= 1 for gain in dense + sparse)
    assert dense == sorted(dense)


def test_gains_refuse_what_they_cannot_judge():
    row = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match="depth must be 1 or more, got 0"):
        dense_gain(row[0], row, 0)
    with pytest.raises(ValueError, match="smallest margin 1, got 2"):
        dense_gain(2 * row[0], row, 1)
    with pytest.raises(ValueError, match="domain must be 'signal' or 'fourier'"):
        sparse_gain(row[0], row, "time")


@pytest.mark.parametrize("power", [-1.0, -1 / 3, 0.5])
def test_log_slope_recovers_a_power_and_sees_only_the_window(power):
    steps = torch.logspace(0, 5, 51, dtype=torch.float64)
    values = torch.stack([power * steps.log(), power * steps.log() + 3])
    values[:, :20] = 99
    torch.testing.assert_close(
        log_slope(steps, values, decades=2), torch.full((2,), power, dtype=torch.float64)
    )
    assert abs(float(log_slope(steps, values, decades=5)[0]) - power) > 1


def test_log_slope_refuses_a_window_of_one_record_and_odd_lengths():
    with pytest.raises(ValueError, match="two records"):
        log_slope(torch.tensor([1, 1000]), torch.zeros(2), decades=1)
    with pytest.raises(ValueError, match="to match the steps"):
        log_slope(torch.tensor([1, 10, 100]), torch.zeros(2), decades=1)


def test_crossing_takes_the_last_one_and_says_when_there_is_none():
    path = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    angles = torch.tensor([1.0, 0.01, 0.4, 0.1], dtype=torch.float64)
    assert crossing(path, angles, 0.2) == pytest.approx(4 * math.sqrt(2))
    assert math.isnan(crossing(path, angles, 0.05))
    with pytest.raises(ValueError, match="below the first angle"):
        crossing(path, angles, 2.0)
