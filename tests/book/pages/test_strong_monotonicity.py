"""Helpers of the page "Strong monotonicity", against definitions, flows and exchangeability."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.book.pages import strong_monotonicity as page
from lib.linear import (
    PolynomialAngleTask,
    angle,
    hard_target_flow,
    hard_target_limit,
    monotonicity,
)


def _normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 6))
def test_best_example_is_the_one_with_the_smallest_angle(seed, n, d):
    inputs, teacher = _normal(seed, 3, n, d), _normal(seed + 1, d)
    found = page.best_example_learner(inputs, teacher)
    smallest = torch.stack([angle(one, teacher).min() for one in inputs])
    torch.testing.assert_close(angle(found, teacher, signed=True), smallest)


def test_best_example_learner_has_index_one_over_n_plus_one_and_never_worsens():
    task, sets = PolynomialAngleTask(10, 1.0), 20_000
    found = monotonicity(page.best_example_learner, task, 3, sets, torch.Generator().manual_seed(4))
    assert found.worsened == 0
    assert abs(found.index - 1 / 4) < 4 * found.index_error


@given(st.integers(0, 10_000))
def test_hard_target_flow_leaves_zero_along_the_average(seed):
    inputs, teacher = _normal(seed, 4, 6), _normal(seed + 1, 6)
    early = hard_target_flow(inputs, teacher, torch.tensor([1e-7], dtype=torch.float64))[0]
    average = page.average_learner(inputs, teacher)
    torch.testing.assert_close(early / 1e-7, average / 2, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", [1, 2])
def test_support_vectors_are_the_examples_that_cannot_be_left_out(seed):
    inputs, teacher = _normal(seed, 40, 5, 12), _normal(seed + 1, 12)
    whole = hard_target_limit(inputs, teacher)
    needed = torch.zeros(40, dtype=torch.int64)
    for i in range(5):
        rest = [j for j in range(5) if j != i]
        without = hard_target_limit(inputs[:, rest], teacher)
        needed += ((whole - without).norm(dim=-1) > 1e-6 * whole.norm(dim=-1)).long()
    counted = page.support_counts(whole, inputs, teacher)
    assert counted.tolist() == needed.tolist()
    assert len(set(counted.tolist())) > 1


def test_share_of_unchanged_sets_is_predicted_by_support_vectors():
    task, n, sets = PolynomialAngleTask(30, 1.0), 4, 4000
    inputs = task.sample((sets, n + 1), torch.Generator().manual_seed(9))
    support = page.support_counts(
        hard_target_limit(inputs, task.teacher), inputs, task.teacher
    ).double()
    found = monotonicity(hard_target_limit, task, n, sets, torch.Generator().manual_seed(10))
    error = math.sqrt(found.unchanged * (1 - found.unchanged) / sets)
    assert abs(found.unchanged - (1 - float(support.mean()) / (n + 1))) < 4 * math.sqrt(2) * error


def test_measurements_in_time_equal_those_of_a_learner_stopped_there():
    task, times = PolynomialAngleTask(8, 1.0), torch.tensor([0.5, 20.0], dtype=torch.float64)
    path = page.hard_targets_in_time(task, 3, 30, times, seed=6)
    for time, found in zip(times, path, strict=True):
        alone = monotonicity(
            lambda x, w, t=time: hard_target_flow(x, w, t[None])[:, 0],
            task,
            3,
            30,
            torch.Generator().manual_seed(6),
        )
        torch.testing.assert_close(found.angles_before, alone.angles_before, rtol=1e-6, atol=0)
        torch.testing.assert_close(found.angles_after, alone.angles_after, rtol=1e-6, atol=0)
        assert found.index == alone.index


def test_time_zero_is_refused():
    with pytest.raises(ValueError, match="times"):
        page.hard_targets_in_time(PolynomialAngleTask(4, 1.0), 2, 2, torch.tensor([0.0, 1.0]), 0)
