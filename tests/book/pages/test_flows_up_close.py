"""The helpers of the chapter against the book's own flows and closed forms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.book.pages import flows_up_close as page
from lib.linear import cross_entropy_gradient, end_to_end_flow, gradient_flow


def task(seed, n=3, d=5):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return x, torch.randn(d, generator=generator, dtype=torch.float64)


@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_the_full_flow_agrees_with_the_reduced_one(seed):
    x, teacher = task(seed)
    times = torch.tensor([0.1, 1.0, 30.0]).double()
    full, reduced = page.full_gradient_flow(x, teacher, times), gradient_flow(x, teacher, times)
    assert torch.allclose(full, reduced, atol=1e-7)


def test_outside_share_in_batches():
    x = torch.eye(4)[:2].expand(3, 2, 4)
    path = torch.tensor([3.0, 0.0, 0.0, 4.0]).expand(3, 6, 4)
    assert torch.allclose(page.outside_share(path, x), torch.full((3, 6), 0.8))


def test_plain_descent_is_the_euler_method():
    x, teacher = task(0)
    weights = torch.zeros(5, dtype=torch.float64)
    end = page.optimise(torch.optim.SGD([weights], lr=0.1), weights, x, teacher, 2)
    by_hand = torch.zeros(5, dtype=torch.float64)
    for _ in range(2):
        by_hand = by_hand - 0.1 * cross_entropy_gradient(by_hand, x, teacher)
    assert torch.allclose(end, by_hand)


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_leaving_time_solves_its_equation(depth):
    start, slope = torch.tensor(1e-3).double(), torch.tensor(0.7).double()
    ends = torch.logspace(-2.9, -1, 5).double().requires_grad_()
    times = page.leaving_time(start, ends, depth, slope)
    (speed,) = torch.autograd.grad(times.sum(), ends)
    assert torch.allclose(1 / speed, depth * slope * ends ** (2 - 2 / depth))
    assert float(page.leaving_time(start, start, depth, slope)) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("depth", [2, 4])
def test_leaving_time_is_measured_on_the_flow(depth):
    x, teacher = task(1)
    g = cross_entropy_gradient(torch.zeros(5).double(), x, teacher)
    start, level = torch.tensor(1e-6).double(), 1e-4
    guess = float(page.leaving_time(start, torch.tensor(level), depth, g.norm()))
    window = page.crossing_window(guess)
    path = end_to_end_flow(-start * g / g.norm(), depth, x, teacher, window)
    seen = page.crossing_time(window, path.norm(dim=-1), level)
    assert seen == pytest.approx(guess, rel=1e-3)


def test_a_level_that_is_not_reached_is_refused():
    with pytest.raises(ValueError, match="level must lie between 1 and 2, got 3"):
        page.crossing_time(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]), 3.0)
