"""Growth outside the data span, and decay rates."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.linear.convexity import gradient_dominance
from lib.linear.factors import balanced_factors
from lib.linear.flows import deep_gradient_flow, end_to_end_flow, gradient_flow
from lib.linear.growth import measured_rate, orthogonal_growth
from lib.linear.loss import cross_entropy


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TIMES = torch.tensor([0.0, 0.3, 1.0, 10.0, 100.0, 1e4], dtype=torch.float64)


@settings(max_examples=8)
@given(seed=st.integers(0, 2**31), depth=st.integers(2, 5), size=st.floats(0.01, 10.0))
def test_the_growth_law_holds_along_the_factor_dynamics(seed, depth, size):
    inputs, teacher, start = normal(seed, 3, 7), normal(seed + 1, 7), size * normal(seed + 2, 7)
    factors = balanced_factors(start, depth, torch.Generator().manual_seed(seed), width=4)
    growth = orthogonal_growth(deep_gradient_flow(factors, inputs, teacher, TIMES), inputs, depth)
    assert growth.measured[1:].abs().max() > 1e-3
    assert torch.allclose(growth.measured, growth.predicted, rtol=0, atol=1e-7)


def test_the_law_fails_for_another_depth():
    inputs, teacher, start = normal(0, 3, 7), normal(1, 7), 0.1 * normal(2, 7)
    path = end_to_end_flow(start, 3, inputs, teacher, TIMES)
    growth = orthogonal_growth(path, inputs, depth=2)
    assert (growth.measured - growth.predicted).abs().max() > 0.1


def test_a_direct_student_does_not_grow_outside_the_span():
    inputs, teacher, start = normal(0, 4, 3, 7), normal(1, 7), normal(2, 4, 7)
    path = gradient_flow(inputs, teacher, TIMES, start)
    growth = orthogonal_growth(path, inputs, depth=1)
    assert growth.measured.shape == (4, len(TIMES))
    assert growth.measured.abs().max() < 1e-13
    assert growth.predicted.abs().max() == 0.0


def test_equation_49_follows():
    inputs, teacher, start = normal(0, 3, 7), normal(1, 7), 0.1 * normal(2, 7)
    path = end_to_end_flow(start, 3, inputs, teacher, TIMES)
    basis = torch.linalg.svd(inputs, full_matrices=True)[2][3:]
    share = (path @ basis.mT).square().sum(-1) / path.square().sum(-1)
    assert (share <= (start.norm() / path.norm(dim=-1)) ** (2 / 3)).all()


@given(
    rate=st.floats(1e-3, 1e2),
    scale=st.floats(1e-6, 1e6),
    tail=st.floats(0.1, 1.0),
    count=st.integers(3, 40),
)
def test_rate_of_an_exponential(rate, scale, tail, count):
    times = torch.linspace(0, 20 / rate, count, dtype=torch.float64)
    losses = torch.stack([scale * torch.exp(-rate * times), torch.exp(-0.5 * rate * times)])
    found = measured_rate(times, losses, tail)
    assert torch.allclose(found / rate, torch.tensor([1.0, 0.5]).double(), rtol=1e-9)


def test_rate_looks_at_the_tail_only_and_above_the_floor():
    times = torch.arange(41, dtype=torch.float64)
    losses = torch.exp(-3 * times) + torch.exp(-0.1 * times)
    assert float(measured_rate(times, losses, tail=0.5)) == pytest.approx(0.1, abs=1e-6)
    assert float(measured_rate(times, losses, tail=1.0)) > 0.102
    rounding = torch.exp(-3 * times).clamp_min(1e-17)
    assert float(measured_rate(times, rounding)) == pytest.approx(3.0, rel=1e-9)
    assert float(measured_rate(times, rounding, floor=0.0)) < 0.1


def test_flow_decays_at_twice_the_smallest_curvature_and_faster_than_promised():
    inputs, teacher = normal(0, 12, 4), 0.5 * normal(1, 4)
    hessian = inputs.mT * (torch.sigmoid(inputs @ teacher) * torch.sigmoid(-inputs @ teacher)) / 12
    slowest = float(torch.linalg.eigvalsh(hessian @ inputs)[0])
    times = torch.linspace(0, 15 / slowest, 60, dtype=torch.float64)
    losses = cross_entropy(gradient_flow(inputs, teacher, times), inputs, teacher)
    rate = float(measured_rate(times, losses, tail=0.2))
    assert rate == pytest.approx(2 * slowest, rel=5e-3)
    promised = float(gradient_dominance(inputs, teacher, float(losses[0])))
    assert promised > 0
    assert (losses <= losses[0] * torch.exp(-2 * promised * times) * (1 + 1e-9)).all()
    assert 2 * promised < rate


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: orthogonal_growth(normal(0, 2, 3), normal(1, 3, 3), 2), "outside the span"),
        (lambda: orthogonal_growth(normal(0, 3), normal(1, 1, 3), 2), "trajectory must have shape"),
        (lambda: orthogonal_growth(normal(0, 2, 3), normal(1, 1, 4), 2), "trajectory must have sh"),
        (lambda: orthogonal_growth(normal(0, 2, 3), normal(1, 1, 3), 0), "depth must be"),
        (lambda: measured_rate(TIMES, TIMES[1:]), r"losses must have shape \(..., 6\)"),
        (lambda: measured_rate(TIMES, TIMES - 1.0), "losses must be >= 0, got -1.0"),
        (lambda: measured_rate(TIMES, torch.eye(6)[0]), "losses must hold two states above"),
        (lambda: measured_rate(TIMES, TIMES, tail=0.0), "tail must be a finite number > 0"),
        (lambda: measured_rate(TIMES, TIMES, floor=1.0), "floor must be a finite number"),
        (lambda: measured_rate(TIMES, TIMES * math.nan), "losses must be finite"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
