"""What breaks without condition 11b of Theorem 2: starts that flow into the saddle at zero."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.linear.flows import end_to_end_flow
from lib.linear.geometry import angle, project_onto_span
from lib.linear.loss import cross_entropy, cross_entropy_gradient
from lib.linear.saddle import saddle_curve


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


INPUTS, TEACHER = normal(0, 6, 10) / 10**0.5, normal(1, 10)
ORIGIN = torch.zeros(10, dtype=torch.float64)
SLOPE = cross_entropy_gradient(ORIGIN, INPUTS, TEACHER)


@settings(max_examples=5)
@given(seed=st.integers(0, 2**31), depth=st.integers(2, 6))
def test_the_curve_has_the_norms_leaves_along_the_gradient_and_violates_11b(seed, depth):
    inputs, teacher = normal(seed, 2, 4, 6), normal(seed + 1, 2, 6)
    norms = tensor(1e-4, 0.1, 1.0, 10.0)
    curve = saddle_curve(inputs, teacher, depth, norms)
    assert torch.allclose(curve.norm(dim=-1), norms.expand(2, 4), rtol=1e-12)
    zero = torch.zeros_like(teacher)
    slope = cross_entropy_gradient(zero, inputs, teacher)
    assert angle(curve[:, 0], slope, signed=True).max() < 1e-3
    losses = cross_entropy(curve, inputs[:, None], teacher[:, None])
    assert (losses > cross_entropy(zero, inputs, teacher)[:, None]).all()
    assert torch.allclose(project_onto_span(inputs[:, None], curve), curve, rtol=0, atol=1e-12)


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_flow_runs_backwards_along_the_curve(depth):
    norms = tensor(0.2, 0.5, 1.0)
    curve = saddle_curve(INPUTS, TEACHER, depth, norms)
    times = torch.linspace(0, 6 / float(SLOPE.norm()), 100, dtype=torch.float64)
    path = end_to_end_flow(curve[-1], depth, INPUTS, TEACHER, times)
    for point in curve[:-1]:
        passed = path[int((path.norm(dim=-1) - point.norm()).abs().argmin())]
        same_norm = saddle_curve(INPUTS, TEACHER, depth, passed.norm()[None])[0]
        assert torch.allclose(passed, same_norm, rtol=0, atol=1e-9)


def test_two_layers_approach_the_saddle_exponentially():
    start = saddle_curve(INPUTS, TEACHER, 2, tensor(0.1))[0]
    rate = 2 * float(SLOPE.norm())  # |w|' = -2 |w| u.g
    times = tensor(0.0, 4.0, 6.0) / rate
    norms = end_to_end_flow(start, 2, INPUTS, TEACHER, times).norm(dim=-1)
    assert float((norms[1] / norms[2]).log()) == pytest.approx(2.0, rel=1e-2)


@pytest.mark.parametrize("depth", [3, 5])
def test_more_layers_approach_it_polynomially_and_stay(depth):
    # (|w|^(2/N - 1))' = (N - 2) |g| near zero
    start = saddle_curve(INPUTS, TEACHER, depth, tensor(0.1))[0]
    times = tensor(0.0, 5e4, 1e5)
    norms = end_to_end_flow(start, depth, INPUTS, TEACHER, times).norm(dim=-1)
    inverse = norms ** (2 / depth - 1)
    expected = (depth - 2) * float(SLOPE.norm()) * 5e4
    assert float(inverse[2] - inverse[1]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("depth", [2, 3])
def test_starts_beside_the_curve_leave_and_learn_the_teacher(depth):
    start = saddle_curve(INPUTS, TEACHER, depth, tensor(1.0))[0]
    beside = start + 0.05 * normal(3, 10)
    times = torch.cat([tensor(0.0), torch.logspace(0, 5, 80, dtype=torch.float64)])
    path = end_to_end_flow(beside, depth, INPUTS, TEACHER, times)
    assert path.norm(dim=-1).min() < 0.1  # it comes near zero first
    assert cross_entropy(path[-1], INPUTS, TEACHER) < 1e-12


@pytest.mark.parametrize("depth", [2, 4])
def test_one_example_makes_the_curve_a_ray(depth):
    inputs, teacher = tensor([3.0, 4.0]), tensor(2.0, -1.0)
    curve = saddle_curve(inputs, teacher, depth, tensor(1.0, 5.0))
    assert torch.allclose(curve, -tensor([0.6, 0.8], [3.0, 4.0]), rtol=1e-12)


def test_zero_itself_never_moves():
    times = tensor(1.0, 1e5)
    path = end_to_end_flow(ORIGIN, 3, INPUTS, TEACHER, times)
    assert path.abs().max() == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 1}, "depth must be an integer >= 2"),
        ({"norms": tensor(0.0, 1.0)}, "norms must be a"),
        ({"norms": tensor(2.0, 1.0)}, "norms must be a"),
        ({"teacher": ORIGIN}, "teacher must have a logit that is not 0"),
    ],
)
def test_bad_arguments_are_named(change, message):
    problem = {"inputs": INPUTS, "teacher": TEACHER, "depth": 2, "norms": tensor(1.0), **change}
    with pytest.raises(ValueError, match=message):
        saddle_curve(**problem)
