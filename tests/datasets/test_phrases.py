"""Synthetic phrases: their form, their law by brute force, and what a bag of words can learn."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lib.datasets.phrases import (
    CLASS_WORDS,
    FAMILY_WORDS,
    FRAMED,
    LONGEST,
    SHARES,
    SHORTEST,
    synthetic_phrases,
    word_shares,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def framed_by(tokens, lengths, labels):
    """Rows whose only class words are the first, of the class, and the last, of its neighbour."""
    owner = (tokens - 1) // CLASS_WORDS
    is_class_word = (tokens > 0) & (owner < labels.max() + 1)
    last = owner.gather(1, lengths[:, None] - 1).squeeze(1)
    inner = is_class_word.sum(1) == 2
    return inner & (owner[:, 0] == labels) & (last == (labels ^ 1))


@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 60), st.integers(0, 80), st.integers(0, 99)
)
def test_form(families, pairs, n, common, seed):
    classes = 2 * families * pairs
    vocabulary = 1 + CLASS_WORDS * classes + FAMILY_WORDS * families + 10 + common
    tokens, lengths, labels = synthetic_phrases(
        classes, n, vocabulary, families, generator=generator(seed)
    )
    assert tokens.shape == (n, LONGEST)
    assert {tokens.dtype, lengths.dtype, labels.dtype} == {torch.int64}
    assert lengths.min() >= SHORTEST
    assert lengths.max() <= LONGEST
    real = torch.arange(LONGEST) < lengths[:, None]
    assert ((tokens > 0) == real).all()
    assert tokens.max() < vocabulary
    assert labels.min() >= 0
    assert labels.max() < classes
    again = synthetic_phrases(classes, n, vocabulary, families, generator=generator(seed))
    assert all(torch.equal(a, b) for a, b in zip((tokens, lengths, labels), again, strict=True))


def test_other_seeds_give_other_phrases_and_the_global_generator_rests():
    state = torch.get_rng_state()
    first, other = (synthetic_phrases(generator=generator(seed))[0] for seed in (0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, other)


def test_shares_by_the_formula():
    """Word by word, with nothing but arithmetic."""
    classes, families, vocabulary = 8, 2, 140
    found = word_shares(classes, vocabulary, families)
    common = vocabulary - 1 - CLASS_WORDS * classes - FAMILY_WORDS * families
    harmonic = sum(1 / k for k in range(1, common + 1))
    for label in range(classes):
        for word in range(vocabulary):
            of_class, of_family = (word - 1) // CLASS_WORDS, word - 1 - CLASS_WORDS * classes
            expected = 0.0
            if word and of_class < classes:
                expected += (of_class == label) * SHARES["own"] / CLASS_WORDS
                expected += (of_class // 4 == label // 4) * SHARES["kin"] / 4 / CLASS_WORDS
            elif word and of_family < FAMILY_WORDS * families:
                same = of_family // FAMILY_WORDS == label // 4
                expected = same * SHARES["family"] / FAMILY_WORDS
            elif word:
                rank = of_family - FAMILY_WORDS * families + 1
                expected = (1 - sum(SHARES.values())) / rank / harmonic
            assert found[label, word].item() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_words_and_labels_follow_the_law(seed):
    """Frequencies of 40,000 phrases, frames apart, within five standard errors."""
    tokens, lengths, labels = synthetic_phrases(n=40_000, generator=generator(seed))
    framed = framed_by(tokens, lengths, labels)
    accidental = 0.005  # phrases that look framed and are not
    assert -0.008 < framed.double().mean() - FRAMED < accidental + 0.008
    assert (labels.bincount() - 2_000).abs().max() < 5 * 2_000**0.5
    assert 10 < lengths.double().mean() < 12
    rest = tokens[~framed], labels[~framed]
    share = word_shares(20, 600, 5)
    for label in (0, 7, 19):
        words = rest[0][rest[1] == label]
        words = words[words > 0]
        found = words.bincount(minlength=600) / len(words)
        spread = (share[label] * (1 - share[label]) / len(words)).sqrt()
        assert (found - share[label]).abs().le(5 * spread + 1e-3).all()


def test_only_the_order_tells_framed_phrases_apart():
    """The same words in reverse are a phrase of the neighbour."""
    tokens, lengths, labels = synthetic_phrases(n=5_000, generator=generator())
    rows = framed_by(tokens, lengths, labels).nonzero().squeeze(1)
    assert len(rows) > 400
    for row in rows[:50].tolist():
        length = lengths[row]
        turned = tokens[row : row + 1].clone()
        turned[0, :length] = tokens[row, :length].flip(0)
        neighbour = labels[row : row + 1] ^ 1
        owner = (turned[0, [0, length - 1]] - 1) // CLASS_WORDS
        assert owner.tolist() == [neighbour.item(), labels[row].item()]


def test_a_bag_of_words_learns_most_and_not_the_order():
    """400 steps of width 32: about nine in ten right; framed phrases are a coin toss."""
    tokens, lengths, labels = synthetic_phrases(n=7_000, generator=generator())
    counts = torch.zeros(7_000, 600).scatter_add_(1, tokens, (tokens > 0).float())
    bags = counts / lengths[:, None]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(600, 32, bias=False), nn.Linear(32, 20))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for k in range(400):
        batch = torch.randint(5_000, (64,), generator=generator(k))
        loss = nn.functional.cross_entropy(model(bags[batch]), labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    right = model(bags[5_000:]).argmax(1) == labels[5_000:]
    framed = framed_by(tokens, lengths, labels)[5_000:]
    assert 0.85 < right.double().mean() < 0.94
    assert right[~framed].double().mean() > 0.92
    assert 0.3 < right[framed].double().mean() < 0.7
    family = model(bags[5_000:]).argmax(1) // 4 == labels[5_000:] // 4
    assert family[~right].double().mean() > 0.7


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"classes": 15}, "multiple of 10"),
        ({"classes": 0}, "classes"),
        ({"classes": 20.0}, "classes"),
        ({"n": 0}, "n is 0"),
        ({"families": 0}, "families"),
        ({"vocabulary": 250}, "vocabulary is 250, must be a whole number >= 251"),
        ({"vocabulary": None}, "vocabulary"),
        ({"generator": None}, "generator"),
    ],
)
def test_refusals(change, word):
    with pytest.raises(ValueError, match=word):
        synthetic_phrases(**({"generator": generator()} | change))
