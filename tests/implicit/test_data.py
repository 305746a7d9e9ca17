from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.implicit import WORKED_EXAMPLES, random_separable, solve_max_margin, worked_example


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("norm", ["l2", "l1", "fourier-l1"])
@settings(max_examples=15)
@given(st.data())
def test_the_planted_predictor_is_the_unique_optimum(norm, data):
    d = data.draw(st.integers(2, 64))
    n = data.draw(st.integers(2, 12))
    seed = data.draw(st.integers(0, 10**6))
    inputs, labels, beta = random_separable(d, n, generator(seed), norm, inactive=0.3)
    assert set(labels.tolist()) == {-1.0, 1.0}
    solution = solve_max_margin(inputs, labels, norm)
    assert torch.allclose(solution.predictor, beta, rtol=1e-7, atol=1e-7 * float(beta.abs().max()))
    assert solution.unique
    assert solution.inactive <= 0.3 + 1e-9


def test_batches_are_independent_and_seeds_decide():
    batch = random_separable(8, 5, generator(0), "l1", batch=(2, 3))
    assert [t.shape for t in batch] == [(2, 3, 5, 8), (2, 3, 5), (2, 3, 8)]
    again = random_separable(8, 5, generator(0), "l1", batch=(2, 3))
    other = random_separable(8, 5, generator(1), "l1", batch=(2, 3))
    assert torch.equal(batch[0], again[0])
    assert not torch.equal(batch[0], other[0])
    assert not torch.allclose(batch[2][0, 0], batch[2][1, 1])


def test_worked_examples_hold_both_labels():
    for name in WORKED_EXAMPLES:
        inputs, labels = worked_example(name)
        assert inputs.shape[0] == len(labels)
        assert set(labels.tolist()) == {-1.0, 1.0}


def test_errors():
    with pytest.raises(ValueError, match="name must be one of 'E1'"):
        worked_example("E5")
    with pytest.raises(ValueError, match="dimension must be an integer >= 2"):
        random_separable(1, 4, generator(0))
    with pytest.raises(ValueError, match="support must be at most n = 4"):
        random_separable(8, 4, generator(0), support=5)
    with pytest.raises(ValueError, match="inactive must be"):
        random_separable(8, 4, generator(0), "l1", inactive=1.0)
