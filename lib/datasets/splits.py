"""Split a labelled set into disjoint parts that keep the proportions of the classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def split_indices(
    labels: torch.Tensor, sizes: Sequence[int], generator: torch.Generator
) -> tuple[torch.Tensor, ...]:
    r"""Disjoint random parts of the given sizes, each stratified by class.

    A part of size $m$, drawn when $n_c$ items of class $c$ and $n = \sum_c n_c$ items in all are
    left, gets $\lfloor m n_c / n \rfloor$ or $\lceil m n_c / n \rceil$ of class $c$: the missing
    ones go to the largest remainders (of equal ones, to the smaller label).

    Args:
        labels: ``(n,)``, integers.
        sizes: Sizes of the parts, each >= 0, together at most ``n``.
        generator: Source of all randomness; a CPU generator.

    Returns:
        One int64 tensor of positions for each size, in random order, on the labels' device.

    Raises:
        ValueError: Labels that are not a vector of integers, a negative size, or too many items.

    Example:
        >>> labels = torch.tensor([0] * 80 + [1] * 20)
        >>> first, second = split_indices(labels, [50, 10], torch.Generator().manual_seed(0))
        >>> labels[first].bincount().tolist(), labels[second].bincount().tolist()
        ([40, 10], [8, 2])
    """
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"labels has shape {tuple(labels.shape)} and dtype {labels.dtype}, must be a vector "
            "of integers"
        )
    sizes = [int(size) for size in sizes]
    if any(size < 0 for size in sizes) or sum(sizes) > len(labels):
        raise ValueError(
            f"sizes is {sizes} (sum {sum(sizes)}), must be numbers >= 0 with a sum of at most "
            f"{len(labels)}, the number of labels"
        )
    here = labels.cpu()
    shuffled = torch.randperm(len(here), generator=generator)
    queues = [shuffled[here[shuffled] == label] for label in here.unique()]
    parts = []
    for size in sizes:
        counts = _shares(size, [len(queue) for queue in queues])
        taken = torch.cat([q[:k] for q, k in zip(queues, counts, strict=True)] or [shuffled[:0]])
        queues = [q[k:] for q, k in zip(queues, counts, strict=True)]
        order = torch.randperm(len(taken), generator=generator)
        parts.append(taken[order].to(labels.device))
    return tuple(parts)


def _shares(size: int, left: list[int]) -> list[int]:
    """Divide ``size`` in the proportions ``left`` by largest remainders; never more than left."""
    total = max(sum(left), 1)
    shares = [size * count // total for count in left]
    by_remainder = sorted(range(len(left)), key=lambda c: -(size * left[c] % total))
    for c in by_remainder[: size - sum(shares)]:
        shares[c] += 1
    return shares
