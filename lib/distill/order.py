"""The order of the examples: any batch is a function of the seed and the iteration, no state."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lib.distill.streams import stream

_EPOCHS_KEPT = 8  # permutations in memory; a run needs two at a time


class Batch(NamedTuple):
    """The examples of one iteration.

    Attributes:
        index: (b,) int64, which examples.
        view: (b,) int64, which view of each.
        epoch: of the first of them, counted from zero.
    """

    index: Tensor
    view: Tensor
    epoch: int


def batch_at(n: int, views: int, batch_size: int, iteration: int, seed: int) -> Batch:
    r"""Return the examples of an iteration.

    $$i_j = \pi_{\lfloor m / n \rfloor}(m \bmod n), \qquad m = b k + j, \quad 0 \le j < b$$

    for iteration k and batch size b, with one random permutation for each epoch. Epochs follow one
    another without a gap: a batch may end one and begin the next, and every batch is full. The view
    of an example is drawn anew in each epoch. Nothing depends on the method.

    **Source**: ours; the paper's text protocol has 18,000 examples in 1,125 batches of 64, which is
    four epochs exactly (Yuan & Tao, Appendix E.1).

    Args:
        n: number of examples >= 1.
        views: number of views of an example >= 1.
        batch_size: b >= 1.
        iteration: k >= 0, counted from zero.
        seed: integer >= 0, of the run.

    Returns:
        A `Batch`.

    Raises:
        ValueError: if an argument is no integer or too small.

    Example:
        >>> seen = torch.cat([batch_at(3, 1, 2, k, seed=0).index for k in range(3)])
        >>> seen.bincount()  # three batches of two are two epochs of three
        tensor([2, 2, 2])
    """
    for name, value, least in (
        ("n", n, 1),
        ("views", views, 1),
        ("batch_size", batch_size, 1),
        ("iteration", iteration, 0),
    ):
        _check_count(name, value, least)
    start = iteration * batch_size
    stop, first = start + batch_size, start // n
    indices, seen = [], []
    for epoch in range(first, (stop - 1) // n + 1):
        part = _permutation(n, seed, epoch)[max(start - epoch * n, 0) : stop - epoch * n]
        indices.append(part)
        seen.append(_views(n, views, seed, epoch)[part])
    return Batch(torch.cat(indices), torch.cat(seen), first)


def micro_batches(index: Tensor, view: Tensor, lengths: Tensor | None, size: int) -> list[Tensor]:
    """Return the positions in a batch of the parts that are computed one after the other.

    With lengths, the batch is sorted by length first, so that short texts need no padding to the
    length of long ones. Sums over the whole batch stay the same.

    **Source**: ours; the paper's parts have 32 examples (Yuan & Tao, Appendix E.1).

    Args:
        index: (b,) int64, which examples.
        view: (b,) int64, which view of each.
        lengths: (n,) or (V, n), of all examples; None if they have no length.
        size: examples in a part >= 1.

    Returns:
        Tensors of int64, which partition 0, ..., b - 1; all have `size` entries, but for the last,
        which may have fewer.

    Raises:
        ValueError: if size is no integer >= 1, or the shapes do not fit.

    Example:
        >>> index, view, lengths = torch.arange(3), torch.zeros(3).long(), torch.tensor([9, 2, 5])
        >>> micro_batches(index, view, lengths, 2)
        [tensor([1, 2]), tensor([0])]
    """
    _check_count("size", size, 1)
    if index.ndim != 1 or view.shape != index.shape or len(index) == 0:
        raise ValueError(
            "index and view must have one shape (b,) with b >= 1, got "
            f"{tuple(index.shape)} and {tuple(view.shape)}"
        )
    if lengths is None:
        positions = torch.arange(len(index))
    elif lengths.ndim in (1, 2):
        own = lengths[index] if lengths.ndim == 1 else lengths[view, index]
        positions = own.argsort(stable=True).cpu()
    else:
        raise ValueError(f"lengths must have shape (n,) or (V, n), got {tuple(lengths.shape)}")
    return list(positions.split(size))


@lru_cache(maxsize=_EPOCHS_KEPT)
def _permutation(n: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(n, generator=stream(seed, "order", epoch))


@lru_cache(maxsize=_EPOCHS_KEPT)
def _views(n: int, views: int, seed: int, epoch: int) -> Tensor:
    if views == 1:
        return torch.zeros(n, dtype=torch.int64)
    return torch.randint(views, (n,), generator=stream(seed, "augmentation", epoch))


def _check_count(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
