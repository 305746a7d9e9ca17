"""Named streams: reproducible, distinct, and without a word to the global generator."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.distill import stream, stream_seed

NAMES = st.lists(st.text('ab01,"é', max_size=4) | st.integers(0, 2**40), max_size=3)


def test_seed_is_the_hash_that_its_docstring_promises():
    expected = int(hashlib.sha256(b'[42,"dropout",7,1]').hexdigest()[:16], 16) // 2
    assert stream_seed(42, "dropout", 7, 1) == expected


@given(st.integers(0, 2**70), NAMES)
def test_seed_has_63_bits_and_is_a_function_of_its_arguments(seed, names):
    found = stream_seed(seed, *names)
    assert 0 <= found < 2**63
    assert found == stream_seed(seed, *names)


@given(st.integers(0, 99), NAMES, st.integers(0, 99), NAMES)
def test_other_arguments_have_other_seeds(seed, names, other_seed, other_names):
    same = (seed, names) == (other_seed, other_names)
    assert (stream_seed(seed, *names) == stream_seed(other_seed, *other_names)) == same


def test_names_are_neither_joined_nor_converted():
    seeds = [
        stream_seed(1, "ab"),
        stream_seed(1, "a", "b"),
        stream_seed(1, "a,b"),
        stream_seed(1, 'a","b'),
        stream_seed(1, 2),
        stream_seed(1, "2"),
        stream_seed(12),
        stream_seed(1, "", "ab"),
    ]
    assert len(set(seeds)) == len(seeds)


def test_seeds_differ_in_the_bits_that_the_generator_of_the_cpu_uses():
    seeds = {stream_seed(42, "dropout", k, m) % 2**32 for k in range(1125) for m in range(2)}
    assert len(seeds) == 2250


def test_streams_do_not_resemble_one_another():
    draws = torch.stack(
        [
            torch.randn(20_000, generator=stream(seed, name, epoch))
            for seed in (42, 43)
            for name in ("order", "augmentation")
            for epoch in (0, 1)
        ]
    )
    correlations = torch.corrcoef(draws).fill_diagonal_(0)
    assert float(correlations.abs().max()) < 5 / 20_000**0.5


def test_a_stream_begins_anew_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    first = torch.rand(5, generator=stream(3, "init"))
    assert torch.equal(first, torch.rand(5, generator=stream(3, "init")))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("seed", [-1, 1.0, True, "1", None])
def test_seed_must_be_a_whole_number(seed):
    with pytest.raises(ValueError, match="seed must be an integer >= 0"):
        stream_seed(seed)


@pytest.mark.parametrize("name", [-1, 0.5, True, None, ("a",)])
def test_name_must_be_text_or_a_whole_number(name):
    with pytest.raises(ValueError, match="must be an integer >= 0, got"):
        stream(0, "a", name)
