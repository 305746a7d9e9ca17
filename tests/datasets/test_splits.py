"""Stratified splitting."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.datasets import split_indices


@st.composite
def labels_and_sizes(draw):
    """Labels of up to five classes, and sizes that fit."""
    labels = draw(st.lists(st.integers(-2, 4), min_size=1, max_size=60))
    sizes, left = [], len(labels)
    for _ in range(draw(st.integers(0, 4))):
        sizes.append(draw(st.integers(0, left)))
        left -= sizes[-1]
    return torch.tensor(labels), sizes, draw(st.integers(0, 2**31))


@given(labels_and_sizes())
def test_parts_are_disjoint_and_keep_the_proportions(case):
    labels, sizes, seed = case
    parts = split_indices(labels, sizes, torch.Generator().manual_seed(seed))
    assert [len(part) for part in parts] == sizes
    together = torch.cat([*parts, torch.tensor([], dtype=torch.int64)])
    assert len(together.unique()) == sum(sizes)
    left = torch.ones(len(labels), dtype=torch.bool)
    for part in parts:
        for label in labels.unique():
            share = len(part) * (labels[left] == label).sum().item() / max(left.sum().item(), 1)
            assert abs((labels[part] == label).sum().item() - share) < 1
        left[part] = False


def test_same_generator_same_parts_other_seed_other_parts():
    labels = torch.arange(1000) % 7
    first, again, other = (
        split_indices(labels, [300, 200], torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_every_item_is_equally_likely():
    labels = torch.tensor([0] * 30 + [1] * 10)
    generator = torch.Generator().manual_seed(3)
    counts = torch.zeros(40)
    for _ in range(2000):
        counts[split_indices(labels, [8, 4], generator)[1]] += 1
    expected, deviation = 200.0, (2000 * 0.1 * 0.9) ** 0.5
    assert ((counts - expected).abs() < 4.5 * deviation).all()


def test_parts_are_in_random_order():
    labels = torch.tensor([0] * 500 + [1] * 500)
    (part,) = split_indices(labels, [500], torch.Generator().manual_seed(0))
    first_half = labels[part[:250]].double().mean().item()
    assert abs(first_half - 0.5) < 0.15


@pytest.mark.parametrize("sizes", [[-1], [5, 6], [11]])
def test_sizes_that_do_not_fit_are_refused(sizes):
    with pytest.raises(ValueError, match="sizes is"):
        split_indices(torch.zeros(10, dtype=torch.int64), sizes, torch.Generator())


@pytest.mark.parametrize("labels", [torch.zeros(10), torch.zeros(5, 2, dtype=torch.int64)])
def test_labels_that_are_no_vector_of_integers_are_refused(labels):
    with pytest.raises(ValueError, match="labels has shape"):
        split_indices(labels, [1], torch.Generator())
