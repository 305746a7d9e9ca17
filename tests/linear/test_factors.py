"""Weight matrices: balance, products, initial norms, and the reduction to what moves."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from lib.linear.factors import (
    balanced_factors,
    balancedness,
    check_factors,
    end_to_end,
    initial_norm_limit,
    reduce_factors,
)
from lib.linear.geometry import data_span


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**31),
    depth=st.integers(1, 6),
    width=st.integers(1, 9),
    size=st.floats(1e-6, 1e6),
)
def test_balanced_factors_are_balanced_and_multiply_to_the_vector(seed, depth, width, size):
    vector = size * normal(seed, 2, 3, 4)
    factors = balanced_factors(vector, depth, seeded(seed), width)
    shapes = [(width, 4)] + [(width, width)] * (depth - 2) + [(1, width)]
    shapes = [(1, 4)] if depth == 1 else shapes
    assert [tuple(w.shape) for w in factors] == [(2, 3, *shape) for shape in shapes]
    scale = vector.norm(dim=-1)
    assert ((end_to_end(factors) - vector).norm(dim=-1) / scale).max() < 1e-13
    assert (balancedness(factors) / scale ** (2 / depth)).max() < 1e-14


def test_every_balanced_factor_has_the_same_norm_and_rank_one():
    vector = normal(1, 5)
    factors = balanced_factors(vector, 4, seeded(), width=6)
    for matrix in factors:
        values = torch.linalg.svdvals(matrix)
        assert float(values[0]) == pytest.approx(float(vector.norm()) ** 0.25, rel=1e-14)
        assert (values[1:] < 1e-14).all()


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_balanced_factors_of_very_short_and_very_long_vectors(size):
    vector = size * torch.tensor([3.0, 4.0], dtype=torch.float64)
    factors = balanced_factors(vector, 2, seeded())
    norms = torch.stack([factor.norm() for factor in factors])
    assert torch.allclose(norms, torch.full_like(norms, (5 * size) ** 0.5))
    assert torch.allclose(end_to_end(factors) / size, vector / size)


def test_width_is_the_dimension_by_default_and_the_generator_decides():
    vector = normal(1, 5)
    first, again, other = (balanced_factors(vector, 3, seeded(seed)) for seed in (1, 1, 2))
    assert first[1].shape == (5, 5)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.allclose(first[0], other[0])


def test_hidden_directions_are_uniform():
    # u_1 = W_1 v / |v|^(3/2): the mean of u u^T over many draws is the identity over the width.
    vector = torch.tensor([[0.0, 4.0]], dtype=torch.float64).expand(20_000, 2)
    first = balanced_factors(vector, 2, seeded(7), width=3)[0]
    units = first[..., 1] / 2.0
    assert torch.allclose(units.norm(dim=-1), torch.ones(20_000).double())
    assert torch.allclose(units.mean(0), torch.zeros(3).double(), atol=0.02)
    assert torch.allclose(units.mT @ units / 20_000, torch.eye(3).double() / 3, atol=0.02)


def test_balancedness_is_the_largest_deviation_of_any_layer():
    factors = [normal(seed, *shape) for seed, shape in enumerate([(3, 5), (4, 3), (1, 4)])]
    loops = max(
        abs(float(b[:, i] @ b[:, j] - a[i] @ a[j]))
        for a, b in ((factors[0], factors[1]), (factors[1], factors[2]))
        for i in range(len(a))
        for j in range(len(a))
    )
    assert float(balancedness(factors)) == pytest.approx(loops, rel=1e-14)
    assert float(balancedness([normal(0, 1, 4)])) == 0.0


def test_dtype_follows_the_widest_input():
    factors = balanced_factors(torch.tensor([3.0, 4.0]), 3, seeded())
    assert {w.dtype for w in factors} == {torch.float32}
    assert end_to_end(factors).dtype == torch.float32
    assert end_to_end([factors[0], factors[1].double(), factors[2]]).dtype == torch.float64
    assert balanced_factors(torch.tensor([3, 4]), 2, seeded())[0].dtype == torch.float64


@settings(max_examples=50)
@given(epsilon=st.floats(1e-3, 1e2), limit_norm=st.floats(1e-2, 1e2), depth=st.integers(1, 8))
def test_initial_norm_limit_solves_the_bound_at_the_end_of_the_proof(epsilon, limit_norm, depth):
    # the display before Eq. 54, solved for x = |w(0)|^(2/N) by bisection
    top = limit_norm ** (2 / depth)

    def excess(x):
        return limit_norm ** (2 + 2 / depth) / (top - x) - limit_norm**2 - epsilon**2

    root = brentq(excess, 0.0, top * (1 - 1e-15), xtol=1e-300, rtol=1e-14)
    found = initial_norm_limit(epsilon, limit_norm, depth)
    assert found == pytest.approx(root ** (depth / 2), rel=1e-7)


@given(epsilon=st.floats(1e-2, 10), limit_norm=st.floats(1e-1, 10), depth=st.integers(1, 8))
def test_initial_norm_limit_is_the_formula_as_printed(epsilon, limit_norm, depth):
    inner = epsilon**2 * limit_norm ** (-2 / depth) + limit_norm ** (2 - 2 / depth)
    second = epsilon**depth * inner ** (-depth / 2)
    assert second < limit_norm  # the minimum's first entry never decides
    found = initial_norm_limit(epsilon, limit_norm, depth)
    assert found == pytest.approx(min(limit_norm, second), rel=1e-11)


def test_initial_norm_limit_takes_batches_and_extreme_numbers():
    epsilon = torch.tensor([[0.1], [0.3]], dtype=torch.float64)
    norms = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    table = initial_norm_limit(epsilon, norms, 3)
    assert table.shape == (2, 3)
    assert float(table[1, 2]) == pytest.approx(initial_norm_limit(0.3, 3.0, 3), rel=1e-14)
    assert initial_norm_limit(1e-200, 1e200, 5) == 0.0
    assert initial_norm_limit(1e200, 1e-200, 50) == pytest.approx(1e-200)


def raw_space_dimensions(factors, inputs):
    """The same subspaces by brute force: words in the matrices, one dimension at a time."""
    spaces = [torch.linalg.svd(inputs.mT, full_matrices=False)[0]]
    spaces += [torch.zeros(w.shape[0], 0, dtype=w.dtype) for w in factors[:-1]]
    spaces += [torch.ones(1, 1, dtype=inputs.dtype)]
    for _ in range(50):
        for j in range(1, len(factors)):
            parts = [spaces[j], factors[j - 1] @ spaces[j - 1], factors[j].mT @ spaces[j + 1]]
            columns = torch.cat(parts, dim=1)
            columns = columns / columns.norm(dim=0).clamp_min(1e-300)
            left, values, _ = torch.linalg.svd(columns, full_matrices=False)
            spaces[j] = left[:, values > 1e-9]
    return [space.shape[1] for space in spaces]


@pytest.mark.parametrize(
    ("widths", "n"), [((6,), 2), ((3,), 4), ((5, 4), 2), ((2, 6, 3), 3), ((9,), 20)]
)
def test_reduced_sizes_agree_with_brute_force(widths, n):
    sizes = (8, *widths, 1)
    factors = [normal(j, b, a) for j, (a, b) in enumerate(pairwise(sizes))]
    inputs = normal(99, n, 8)
    reduced = reduce_factors(factors, data_span(inputs).basis)
    dimensions = [reduced.factors[0].shape[-1]] + [w.shape[-2] for w in reduced.factors]
    assert dimensions == raw_space_dimensions(factors, inputs)


def test_two_generic_layers_need_one_more_direction_than_the_data():
    factors = [normal(1, 50, 30), normal(2, 1, 50)]
    reduced = reduce_factors(factors, data_span(normal(3, 4, 30)).basis)
    assert [tuple(w.shape) for w in reduced.factors] == [(5, 4), (1, 5)]


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_balanced_layers_need_one_direction_each(depth):
    vector = normal(1, 2, 30)
    factors = balanced_factors(vector, depth, seeded(), width=40)
    reduced = reduce_factors(factors, data_span(normal(3, 2, 4, 30)).basis)
    assert reduced.unknowns == 4 + depth - 1


def test_the_reduced_matrices_give_back_the_end_to_end_vector():
    factors = [normal(1, 3, 6, 9), normal(2, 3, 5, 6), normal(3, 3, 1, 5)]
    reduced = reduce_factors(factors, data_span(normal(4, 3, 2, 9)).basis)
    first, second, third = reduced.factors
    above = (third @ second).mT
    rebuilt = reduced.basis @ first.mT @ above + reduced.remainder @ above
    assert torch.allclose(rebuilt[..., 0], end_to_end(factors), rtol=0, atol=1e-12)


def test_members_with_smaller_subspaces_get_zero_directions():
    factors = [normal(1, 2, 4, 6), normal(2, 2, 1, 4)]
    factors[0][0] = 0.0  # the first member uses one hidden direction, the second three
    basis = data_span(normal(3, 2, 2, 6)).basis
    reduced = reduce_factors(factors, basis)
    alone = reduce_factors([w[0] for w in factors], basis[0])
    assert reduced.factors[0].shape == (2, 3, 2)
    assert alone.factors[0].shape == (1, 2)
    assert torch.allclose(reduced.factors[1][0, :, :1].abs(), alone.factors[1].abs())
    assert reduced.factors[1][0, :, 1:].abs().max() < 1e-13


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: balanced_factors(torch.zeros(3), 2, seeded()), "vector must not be the zero"),
        (lambda: balanced_factors(torch.ones(3), 0, seeded()), "depth must be an integer >= 1"),
        (lambda: balanced_factors(torch.ones(3), 2.0, seeded()), "depth must be an integer >= 1"),
        (lambda: balanced_factors(torch.ones(3), 2, seeded(), 0), "width must be an integer >= 1"),
        (lambda: balanced_factors(torch.tensor(1.0), 2, seeded()), "vector must have shape"),
        (lambda: balanced_factors(torch.tensor([math.nan]), 2, seeded()), "vector must be finite"),
        (lambda: end_to_end([]), "factors must hold at least one matrix"),
        (lambda: end_to_end([torch.ones(3)]), r"factors\[0\] must be a matrix"),
        (lambda: end_to_end([torch.ones(2, 3)]), r"factors\[0\] must have one row"),
        (lambda: end_to_end([torch.ones(2, 3), torch.ones(1, 3)]), r"factors\[1\] must have 2 col"),
        (lambda: check_factors([torch.ones(2, 2, 3), torch.ones(3, 1, 2)]), "do not broadcast"),
        (lambda: reduce_factors([torch.ones(1, 3)], torch.eye(3)), "at least two matrices"),
        (lambda: initial_norm_limit(0.0, 1.0, 2), "epsilon must be a finite number > 0"),
        (lambda: initial_norm_limit(1.0, math.nan, 2), "limit_norm must be a finite number > 0"),
        (lambda: initial_norm_limit(1.0, torch.zeros(2), 2), "limit_norm must be > 0, got 0"),
        (lambda: initial_norm_limit(1.0, 1.0, 0), "depth must be an integer >= 1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
