"""The order of the examples: stateless, complete, the same whatever else is drawn."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.distill import batch_at, micro_batches, stream
from lib.distill.order import _permutation, _views

HALVES = (slice(None, 16), slice(16, None))  # of a batch: the end of an epoch, the next


def run(n, views, batch_size, iterations, seed):
    batches = [batch_at(n, views, batch_size, k, seed) for k in range(iterations)]
    return torch.cat([b.index for b in batches]), torch.cat([b.view for b in batches]), batches


@pytest.mark.parametrize("seed", [42, 43, 44])
def test_papers_text_protocol_shows_every_example_four_times(seed):
    index, view, batches = run(18_000, 1, 64, 1_125, seed)
    assert torch.equal(index.bincount(minlength=18_000), torch.full((18_000,), 4))
    for epoch in index.split(18_000):
        assert torch.equal(epoch.sort().values, torch.arange(18_000))
    assert not view.any()
    assert [b.epoch for b in batches] == [64 * k // 18_000 for k in range(1_125)]


def test_a_batch_ends_one_epoch_and_begins_the_next():
    crossing = batch_at(18_000, 8, 64, 281, seed=42)  # 281 * 64 = 17,984
    assert crossing.epoch == 0
    assert torch.equal(crossing.index[:16], _permutation(18_000, 42, 0)[-16:])
    assert torch.equal(crossing.index[16:], _permutation(18_000, 42, 1)[:48])
    views = torch.cat([_views(18_000, 8, 42, e)[crossing.index[p]] for e, p in enumerate(HALVES)])
    assert torch.equal(crossing.view, views)


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 90), st.integers(0, 30), st.integers(0, 2**31))
def test_batches_are_the_epochs_permutations_one_after_the_other(n, batch_size, iteration, seed):
    batch = batch_at(n, 3, batch_size, iteration, seed)
    start = iteration * batch_size
    epochs = range(start // n, (start + batch_size) // n + 1)
    whole = torch.cat([torch.randperm(n, generator=stream(seed, "order", e)) for e in epochs])
    skip = start - epochs[0] * n
    assert torch.equal(batch.index, whole[skip : skip + batch_size])
    assert len(batch.index) == len(batch.view) == batch_size
    assert batch.epoch == start // n
    assert 0 <= int(batch.view.min()) <= int(batch.view.max()) < 3


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**31))
def test_counts_never_differ_by_more_than_one(n, batch_size, seed):
    index, _, _ = run(n, 2, batch_size, 7, seed)
    counts = index.bincount(minlength=n)
    assert int(counts.max() - counts.min()) <= 1
    assert int(counts.sum()) == 7 * batch_size


def test_order_depends_on_the_seed_and_on_the_epoch_alone():
    first, other = batch_at(1_000, 8, 64, 3, seed=42), batch_at(1_000, 8, 64, 3, seed=43)
    assert not torch.equal(first.index, other.index)
    assert not torch.equal(first.view, other.view)
    index, view, _ = run(1_000, 8, 50, 40, seed=42)
    assert not torch.equal(index[:1_000], index[1_000:])
    assert not torch.equal(
        view[:1_000][index[:1_000].argsort()], view[1_000:][index[1_000:].argsort()]
    )


def test_what_a_method_draws_changes_nothing():
    expected = [batch_at(500, 8, 64, k, seed=42) for k in range(20)]
    _permutation.cache_clear()
    _views.cache_clear()
    for k in reversed(range(20)):
        torch.manual_seed(k)
        torch.rand(100 * k)
        torch.rand(k, generator=stream(42, "dropout", k))
        state = torch.get_rng_state()
        found = batch_at(500, 8, 64, k, seed=42)
        assert torch.equal(found.index, expected[k].index)
        assert torch.equal(found.view, expected[k].view)
        assert torch.equal(torch.get_rng_state(), state)


def test_who_changes_a_batch_changes_no_other():
    kept = batch_at(10, 4, 10, 0, seed=1)
    index, view = kept.index.clone(), kept.view.clone()
    kept.index.zero_()
    kept.view.zero_()
    again = batch_at(10, 4, 10, 0, seed=1)
    assert torch.equal(again.index, index)
    assert torch.equal(again.view, view)


def test_views_are_equally_likely_and_drawn_anew():
    index, view, _ = run(2_000, 8, 100, 160, seed=42)  # eight epochs
    counts = view.bincount(minlength=8).double()
    assert float(((counts - 2_000) ** 2 / 2_000).sum()) < 24.3  # 99.9 % of chi-squared with 7
    by_epoch = torch.stack(
        [v[i.argsort()] for i, v in zip(index.split(2_000), view.split(2_000), strict=True)]
    )
    for one, two in itertools.pairwise(by_epoch):
        assert 0.08 < float((one == two).double().mean()) < 0.17  # 1/8


@settings(max_examples=25)
@given(st.data(), st.integers(1, 70), st.integers(1, 40), st.booleans())
def test_parts_are_a_partition_sorted_by_length(data, count, size, with_lengths):
    index = torch.tensor(data.draw(st.lists(st.integers(0, 19), min_size=count, max_size=count)))
    lengths = torch.tensor(data.draw(st.lists(st.integers(1, 5), min_size=20, max_size=20)))
    view = torch.zeros_like(index)
    parts = micro_batches(index, view, lengths if with_lengths else None, size)
    positions = torch.cat(parts)
    assert torch.equal(positions.sort().values, torch.arange(count))
    assert [len(part) for part in parts[:-1]] == [size] * ((count - 1) // size)
    assert 1 <= len(parts[-1]) <= size
    if with_lengths:
        expected = sorted(range(count), key=lambda p: (int(lengths[index[p]]), p))
    else:
        expected = list(range(count))
    assert positions.tolist() == expected


def test_lengths_may_differ_between_views():
    lengths = torch.tensor([[1, 5], [9, 2]])
    index, view = torch.tensor([0, 1, 0]), torch.tensor([1, 0, 0])
    assert torch.cat(micro_batches(index, view, lengths, 2)).tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [("n", 0, 1), ("views", 0, 1), ("batch_size", 0, 1), ("iteration", -1, 0), ("n", 2.0, 1)],
)
def test_numbers_out_of_range_are_named(name, value, least):
    arguments = {"n": 3, "views": 1, "batch_size": 2, "iteration": 0, "seed": 0} | {name: value}
    with pytest.raises(ValueError, match=f"^{name} must be an integer >= {least}, got {value}"):
        batch_at(**arguments)


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match="seed must be an integer >= 0, got -1"):
        batch_at(3, 1, 2, 0, seed=-1)


def test_parts_refuse_what_does_not_fit():
    index, view = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="size must be an integer >= 1, got 0"):
        micro_batches(index, view, None, 0)
    with pytest.raises(ValueError, match=r"one shape \(b,\).*got \(3,\) and \(2,\)"):
        micro_batches(index, view[:2], None, 2)
    with pytest.raises(ValueError, match=r"b >= 1, got \(0,\)"):
        micro_batches(index[:0], view[:0], None, 2)
    with pytest.raises(ValueError, match=r"lengths must have shape .* got \(\)"):
        micro_batches(index, view, torch.tensor(3), 2)
