"""What the page "The dense network: depth plays no role" calls: data of many sizes, drawings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from torch import Tensor

from lib.book.figures import colours
from lib.implicit.networks import DenseNetwork

_INK, _DASHES = "#262626", (0, (5, 3))
_LOOKS = (("blue", "o"), ("orange", "s"), ("green", "D"), ("purple", "^"))


def padded_sets(
    dimensions: Sequence[int],
    sets_each: int,
    n_examples: int,
    generator: torch.Generator,
    length: float = 16.0,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Draw separable data sets of several dimensions, filled up with zero features to one size.

    Inputs are Gaussian, of root mean square length `length`; labels alternate, and an input on the
    wrong side of the set's random teacher is replaced by its negative.

    Args:
        dimensions: the dimensions D, each >= 1.
        sets_each: data sets for every dimension.
        n_examples: N, the same for all.
        generator: source of randomness.
        length: typical length of an input.

    Returns:
        inputs (S, N, max D), labels (N,), and present (S, max D), 1 for features that exist.

    Example:
        >>> inputs, labels, present = padded_sets([1, 3], 2, 4, torch.Generator())
        >>> inputs.shape, labels.tolist(), present.sum(-1).tolist()
        (torch.Size([4, 4, 3]), [1.0, -1.0, 1.0, -1.0], [1.0, 1.0, 3.0, 3.0])
    """
    sizes = torch.tensor(dimensions).repeat_interleave(sets_each)
    largest = int(sizes.max())
    present = (torch.arange(largest) < sizes[:, None]).double()
    options = {"generator": generator, "dtype": torch.float64}
    teachers = torch.randn(len(sizes), largest, **options) * present
    draws = torch.randn(len(sizes), n_examples, largest, **options) * present[:, None]
    labels = torch.ones(n_examples, dtype=torch.float64)
    labels[1::2] = -1
    sides = (draws @ teachers[..., None]).squeeze(-1).sign() * labels
    return draws * sides[..., None] * (length / sizes.sqrt())[:, None, None], labels, present


def padded_start(
    network: DenseNetwork, present: Tensor, generator: torch.Generator, scale: float
) -> tuple[Tensor, ...]:
    """Draw weights for `padded_sets` whose first layer is zero on the features that do not exist.

    Those weights never move, so the network is exactly one for the smaller dimension.

    Args:
        network: a dense network.
        present: (S, D), 1 for features that exist.
        generator: source of randomness.
        scale: standard deviation of the other weights.

    Returns:
        The layers, each with batch dimension S.

    Example:
        >>> present = torch.tensor([[1.0, 0.0]])
        >>> first, _ = padded_start(DenseNetwork(2, 3), present, torch.Generator(), 0.1)
        >>> first[0, 1].abs().sum()
        tensor(0., dtype=torch.float64)
    """
    sets, largest = present.shape
    first, *others = network.initialise(largest, generator, scale, (sets,))
    return (first * present.reshape(sets, largest, *[1] * (first.ndim - 2)), *others)


def draw_separators(ax: Axes, signed: Tensor, predictor: Tensor) -> None:
    """Draw signed examples in the plane, the cone of separators, and the lines of margin 1.

    Args:
        ax: where to draw.
        signed: (N, 2) float64; the first two examples bound the cone.
        predictor: (2,) with margin 1 on the first two.
    """
    edges = torch.stack([signed[:2, 1], -signed[:2, 0]], -1)
    edges = edges * (edges @ signed[:2].T).sum(-1, keepdim=True).sign() * 6
    ax.fill(*torch.cat([0 * edges[:1], edges]).T, color=colours["sky"], alpha=0.25, lw=0)
    for n, row in enumerate(signed, start=1):
        ax.plot(*row, "o", color=colours["vermilion"], ms=6)
        ax.annotate(f"$a_{n}$", row.tolist(), xytext=(6, 4), textcoords="offset points")
    for edge in edges:
        ax.axline(predictor.tolist(), (predictor + edge).tolist(), color=_INK, lw=1, ls=":")
    arrow = {"arrowstyle": "-|>", "lw": 2, "color": colours["blue"], "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", predictor.tolist(), (0, 0), arrowprops=arrow)
    ax.set(xlim=(-1.5, 3.6), ylim=(-1.6, 3.4), aspect="equal")
    ax.set(xlabel="first entry", ylabel="second entry")


def draw_by_kind(
    ax: Axes, angles: dict[int, Tensor], kind: Tensor, names: Sequence[str], bound: float
) -> None:
    """Draw final angles for every depth, data sets side by side and sorted by kind.

    Args:
        ax: where to draw, log scale.
        angles: (S,) by depth.
        kind: (S,) index into names.
        names: the kinds.
        bound: where to draw a dashed line.
    """
    shift = torch.empty(len(kind))
    shift[kind.argsort(stable=True)] = torch.linspace(-0.3, 0.3, len(kind))
    looks = (("green", "^"), ("orange", "s"), ("blue", "o"))
    for k, (colour, marker) in enumerate(looks[: len(names)]):
        place = torch.cat([depth + shift[kind == k] for depth in angles])
        final = torch.cat([angle[kind == k] for angle in angles.values()])
        ax.semilogy(place, final, marker, color=colours[colour], ms=4, label=names[k])
    ax.axhline(bound, color=_INK, ls=_DASHES, lw=1.2)
    ax.set(xlabel="depth $L$", ylabel="angle to the SVM (rad)", ylim=(None, 1))
    ax.set_xticks(list(angles))
    ax.legend(fontsize=8, loc="lower left")


def draw_gaps(
    axes: Sequence[Axes],
    true: dict[int, Tensor],
    certified: dict[int, Tensor],
    angles: dict[int, Tensor],
) -> None:
    """Draw true and certified margin gaps as distributions, and angles against certified angles.

    Args:
        axes: two of them.
        true: (S,) relative margin gaps by depth.
        certified: (S,) upper bounds on them.
        angles: (S,) angles to the optimum.
    """
    for (colour, marker), depth in zip(_LOOKS, true, strict=False):
        options = {"color": colours[colour]}
        share = torch.arange(1, len(true[depth]) + 1) / len(true[depth])
        axes[0].step(true[depth].clamp(min=1e-17).sort().values, share, **options)
        axes[0].step(certified[depth].clamp(min=1e-17).sort().values, share, ":", **options)
        bound = torch.arccos(1 - certified[depth])
        axes[1].plot(bound, angles[depth], marker, ms=3.5, label=f"depth {depth}", **options)
    axes[1].set(xscale="log", yscale="log", xlabel="certified angle (rad)")
    axes[1].set(ylabel="true angle (rad)")
    axes[1].axline((1e-4, 1e-4), (1e-2, 1e-2), color=_INK, ls=_DASHES, lw=1.2)
    axes[0].set(xscale="log", xlabel="relative margin gap", ylabel="share of data sets")
    axes[1].legend(fontsize=8)
