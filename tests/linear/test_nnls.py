from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from lib.linear.nnls import masked_least_squares, nonnegative_least_squares


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def residual(matrix, values, target):
    return torch.linalg.vector_norm((matrix @ values.unsqueeze(-1)).squeeze(-1) - target, dim=-1)


@given(seed=st.integers(0, 2**32), m=st.integers(1, 12), k=st.integers(1, 12))
def test_solutions_are_as_good_as_scipys(seed, m, k):
    matrix, target = gaussian(seed, 5, m, k), gaussian(seed + 1, 5, m)
    ours = nonnegative_least_squares(matrix, target)
    assert bool((ours >= 0).all())
    for i in range(5):
        _, best = nnls(matrix[i].numpy(), target[i].numpy())
        assert float(residual(matrix[i], ours[i], target[i])) <= best + 1e-10 * (1 + best)


@given(seed=st.integers(0, 2**32))
def test_optimality_conditions_hold(seed):
    matrix, target = gaussian(seed, 20, 8, 6), gaussian(seed + 1, 20, 8)
    values = nonnegative_least_squares(matrix, target)
    rest = target - (matrix @ values.unsqueeze(-1)).squeeze(-1)
    slope = (matrix.mT @ rest.unsqueeze(-1)).squeeze(-1)
    assert bool((slope <= 1e-11).all())
    assert bool((slope * values).abs().max() <= 1e-11)


def test_known_solution_is_found_again():
    matrix = gaussian(0, 10, 9, 6)
    known = gaussian(1, 10, 6).clamp(min=0)
    target = (matrix @ known.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(nonnegative_least_squares(matrix, target), known, atol=1e-9)


def test_dependent_and_zero_columns_do_no_harm():
    base = gaussian(2, 3, 6, 2)
    matrix = torch.cat([base, base, -base, torch.zeros(3, 6, 1, dtype=torch.float64)], -1)
    target = gaussian(3, 3, 6)
    values = nonnegative_least_squares(matrix, target)
    free = torch.linalg.lstsq(base, target.unsqueeze(-1)).solution.squeeze(-1)
    expected = residual(base, free, target)  # base and -base reach every sign
    assert torch.allclose(residual(matrix, values, target), expected, rtol=1e-10)


def test_column_lengths_do_not_matter():
    matrix, target = gaussian(4, 30, 7, 5), gaussian(5, 30, 7)
    lengths = 10 ** (4 * gaussian(6, 30, 1, 5))
    scaled = nonnegative_least_squares(matrix * lengths, target)
    expected = nonnegative_least_squares(matrix, target)
    assert torch.allclose(scaled * lengths.squeeze(-2), expected, atol=1e-10)


def test_zero_target_gives_zero():
    assert nonnegative_least_squares(gaussian(7, 2, 3, 4), torch.zeros(2, 3).double()).norm() == 0


def test_early_stop_returns_a_feasible_point_below_the_mark():
    matrix = gaussian(8, 40, 12, 10).abs()
    known = gaussian(9, 40, 10).abs()
    target = (matrix @ known.unsqueeze(-1)).squeeze(-1)
    values = nonnegative_least_squares(matrix, target, stop_below=0.1)
    share = residual(matrix, values, target) / torch.linalg.vector_norm(target, dim=-1)
    assert bool((values >= 0).all())
    assert bool((share <= 0.1).all())
    assert bool((share > 1e-6).any())


@pytest.mark.parametrize("seed", range(3))
def test_masked_least_squares_equals_lstsq_on_the_free_columns(seed):
    matrix, target = gaussian(seed, 6, 7, 5), gaussian(seed + 10, 6, 7)
    free = gaussian(seed + 20, 6, 5) > 0
    values = masked_least_squares(matrix, target, free)
    assert bool((values[~free] == 0).all())
    for i in range(6):
        columns = matrix[i][:, free[i]]
        expected = torch.linalg.lstsq(columns, target[i, :, None]).solution[:, 0]
        assert torch.allclose(values[i][free[i]], expected, atol=1e-10)
