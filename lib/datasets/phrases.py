"""Synthetic phrases: a text task that needs no file."""

from __future__ import annotations

import torch
from torch import Tensor

PADDING, SHORTEST, LONGEST = 0, 3, 30
MEAN_LENGTH, LENGTH_SPREAD = 10.0, 0.45  # of the log-normal lengths: median, spread of the log
CLASS_WORDS, FAMILY_WORDS, FEWEST_COMMON = 8, 16, 10
SHARES = {"own": 0.35, "kin": 0.05, "family": 0.2}  # of the words of a phrase; the rest is common
FRAMED = 0.12  # share of phrases in which only the order of two words tells the class


def synthetic_phrases(
    classes: int = 20,
    n: int = 6000,
    vocabulary: int = 600,
    families: int = 5,
    *,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Draw labelled phrases of common words, words of a family and words of a class.

    Classes c stand in families of equal size. A word w of a phrase is drawn from

    $$P(w \mid c) = s_{\rm own}\, U_c(w) + s_{\rm kin}\, \frac{1}{|F|} \sum_{c' \in F} U_{c'}(w)
      + s_{\rm family}\, U_F(w) + s_{\rm common}\, Z(w)$$

    with uniform words of the class $U_c$ and of its family $U_F$, and Zipf's common words Z. So
    short phrases are ambiguous, and what is mistaken is mostly a class of the same family. In
    12 % of the phrases only the order tells: neighbours 2k and 2k + 1 both frame them with one
    word of each, and the first word is the class's own. Lengths are log-normal, cut to 3 to 30.

    **Source**: ours.

    Args:
        classes: K, a multiple of 2 `families`.
        n: number of phrases, >= 1; they are independent, so that any parts of them are
            samples of one task.
        vocabulary: number of tokens with the padding, >= 1 + 8 K + 16 `families` + 10.
        families: number of families, >= 1.
        generator: source of randomness; the tensors are on its device.

    Returns:
        Tokens (n, 30) int64 in [1, vocabulary), 0 behind the end; lengths (n,) int64 in [3, 30];
        labels (n,) int64 in [0, K).

    Raises:
        ValueError: if a number is outside its range.

    Example:
        >>> tokens, lengths, labels = synthetic_phrases(n=100, generator=torch.Generator())
        >>> bool(((tokens > 0).sum(1) == lengths).all())
        True
    """
    _check(classes, n, vocabulary, families, generator)
    options = {"generator": generator, "device": generator.device}
    labels = torch.randint(classes, (n,), **options)
    lengths = _draw_lengths(n, generator)
    share = word_shares(classes, vocabulary, families).to(generator.device)
    tokens = torch.multinomial(share[labels], LONGEST, replacement=True, generator=generator)
    framed = (torch.rand(n, **options) < FRAMED).nonzero().squeeze(1)
    _frame(tokens, framed, lengths, labels, share, generator)
    places = torch.arange(LONGEST, device=tokens.device)
    return tokens.where(places < lengths[:, None], PADDING), lengths, labels


def word_shares(classes: int, vocabulary: int, families: int) -> Tensor:
    """Return how often each class uses each word, away from the frames.

    Words of classes come first, then those of families, then common ones by falling frequency.

    Args:
        classes: K, a multiple of 2 `families`.
        vocabulary: number of tokens with the padding.
        families: number of families.

    Returns:
        (K, vocabulary) float64, with rows of sum 1; padding never occurs.

    Example:
        >>> word_shares(20, 600, 5).sum(1).unique(sorted=True).round(decimals=12)
        tensor([1.], dtype=torch.float64)
    """
    own = torch.eye(classes, dtype=torch.float64).repeat_interleave(CLASS_WORDS, 1) / CLASS_WORDS
    member = torch.eye(families, dtype=torch.float64).repeat_interleave(classes // families, 0)
    kin = member @ member.T @ own / (classes // families)
    family = member.repeat_interleave(FAMILY_WORDS, 1) / FAMILY_WORDS
    common = vocabulary - 1 - own.shape[1] - family.shape[1]
    zipf = 1 / torch.arange(1, common + 1, dtype=torch.float64)
    rest = (1 - sum(SHARES.values())) * zipf / zipf.sum()
    parts = [
        torch.zeros(classes, 1, dtype=torch.float64),
        SHARES["own"] * own + SHARES["kin"] * kin,
        SHARES["family"] * family,
        rest.expand(classes, -1),
    ]
    return torch.cat(parts, 1)


def _frame(
    tokens: Tensor,
    rows: Tensor,
    lengths: Tensor,
    labels: Tensor,
    share: Tensor,
    generator: torch.Generator,
) -> None:
    """Replace the class words of some phrases by a frame whose order tells the class."""
    options = {"generator": generator, "device": generator.device}
    neutral = share.clone()
    neutral[:, : 1 + CLASS_WORDS * len(share)] = 0
    drawn = torch.multinomial(neutral[labels[rows]], LONGEST, replacement=True, generator=generator)
    word = torch.randint(1, CLASS_WORDS + 1, (2, len(rows)), **options)
    label = labels[rows]
    drawn[:, 0] = CLASS_WORDS * label + word[0]
    drawn.scatter_(1, lengths[rows, None] - 1, (CLASS_WORDS * (label ^ 1) + word[1])[:, None])
    tokens[rows] = drawn


def _draw_lengths(n: int, generator: torch.Generator) -> Tensor:
    """Log-normal lengths, rounded and cut to what a phrase may have."""
    normal = torch.randn(n, generator=generator, device=generator.device)
    lengths = MEAN_LENGTH * (LENGTH_SPREAD * normal).exp()
    return lengths.round().long().clamp(SHORTEST, LONGEST)


def _check(
    classes: int, n: int, vocabulary: int, families: int, generator: torch.Generator
) -> None:
    """Refuse numbers that make no task."""
    if not isinstance(generator, torch.Generator):
        raise ValueError(f"generator is {generator!r}, must be a torch.Generator")
    for name, value in (("n", n), ("families", families), ("classes", classes)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} is {value!r}, must be a whole number >= 1")
    if classes % (2 * families):
        raise ValueError(f"classes is {classes}, must be a multiple of {2 * families}, 2 families")
    least = 1 + CLASS_WORDS * classes + FAMILY_WORDS * families + FEWEST_COMMON
    if type(vocabulary) is not int or vocabulary < least:
        raise ValueError(f"vocabulary is {vocabulary!r}, must be a whole number >= {least}")
