"""The Euclidean projection onto the safe cone, for a few softmaxes where arrays are large.

The projected label coordinate zeta is the root of the convex, piecewise linear function
zeta - x_y + sum_j [zeta - x_j]_+, and only entries below zeta matter. Newton's method from any
point above the root falls monotonically onto it, and the mean of x_y and any other entries is such
a point. So a sweep for the smallest entries gives a first threshold, and the search goes on among
the few entries below it. Long rows start from the minima of blocks; in small arrays, where each
operation costs more than its arithmetic, the 16 smallest entries usually suffice; rows of which
too much lies below the threshold are sorted, as in the paper. The root is found in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lib.tpkd.checks import prepare

_SMALL = 2**16  # entries up to which the smallest few of each row are tried first
_FEW = 16
_ABOVE_HALF = 0.502  # so that the mean of two numbers never rounds below it
_LONG = 2048  # classes from which rows are searched by blocks
_DENSE = 0.25  # fraction of entries below the threshold from which sorting is faster
_SWEEPS = 32  # of Newton's method; it needs about 5, sorting takes over after so many


def project_onto_safe_cone(vector: Tensor, labels: Tensor) -> Tensor:
    r"""Return the nearest vector whose subtraction from the logits reduces no margin.

    $$(\Pi x)_y = \zeta = \min_{0 \le k \le K-1} \frac{x_y + \sum_{j=1}^k x_{(j)}}{k + 1},
      \qquad (\Pi x)_j = \max(x_j, \zeta)$$

    onto the cone $\{x : x_j \ge x_y\}$, with the other entries sorted, $x_{(1)} \le x_{(2)} \dots$.
    A vector of the cone comes back unchanged to the last bit, and the result is in the cone
    exactly. Derivatives pass through: the mean over the label and the raised entries, the identity
    for all others.

    **Source**: Yuan & Tao, Appendix B.1, Eq. B.1.

    Args:
        vector: (..., K) real and finite, any vector; integers count as float32.
        labels: (...) integer, in [0, K); leading dimensions broadcast.

    Returns:
        (..., K), in the vector's dtype.

    Raises:
        ValueError: if there are fewer than 3 classes, an entry is not finite, or a label, shape or
            type does not fit.

    Example:
        >>> project_onto_safe_cone(torch.tensor([0.0, -3.0, 1.0, 2.0]), torch.tensor(0))
        tensor([-1.5000, -1.5000,  1.0000,  2.0000])
    """
    (vector,), labels, dtype = prepare(labels, compute=None, vector=vector)
    return project(vector, labels).to(dtype)


def project(vector: Tensor, labels: Tensor) -> Tensor:
    """Do the work of `project_onto_safe_cone` for arguments that have been checked.

    Args:
        vector: (..., K) float32 or float64, finite.
        labels: (...) int64, with the same leading dimensions.

    Returns:
        (..., K).

    Example:
        >>> project(torch.tensor([0.0, -1.0, -1.0, 5.0]), torch.tensor(0))
        tensor([-0.6667, -0.6667, -0.6667,  5.0000])
    """
    if vector.numel() == 0:
        return vector
    index = labels.unsqueeze(-1)
    tracked = torch.is_grad_enabled() and vector.requires_grad
    level = _label_level(vector.detach() if tracked else vector, index).to(vector.dtype)
    if tracked:
        raised = (vector < level).scatter(-1, index, True)
        mean = (vector * raised).sum(-1, keepdim=True) / raised.sum(-1, keepdim=True)
        return torch.where(raised, level + (mean - mean.detach()), vector)
    return torch.maximum(vector, level).scatter_(-1, index, level)


def _label_level(vector: Tensor, index: Tensor) -> Tensor:
    """The projected label coordinate (..., 1) in float64, by the method that fits the shape."""
    target = vector.gather(-1, index)
    if vector.numel() <= _SMALL:
        level = _smallest_few(vector, target)
        if level is not None:
            return level
    rows, target = vector.reshape(-1, vector.shape[-1]), target.reshape(-1, 1)
    level = _search(rows, target.flatten().to(torch.float64))
    if level is None:
        level, _ = _sorted_prefixes(rows.sort(-1).values, target)
        level = torch.where(rows.amin(-1, keepdim=True) < target, level, target)
    return level.reshape(index.shape)


def _sorted_prefixes(ascending: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. B.1, given the smallest entries of each row, and the number of entries that it takes.

    Target and results are (..., 1); the label's own entry does no harm. For a vector of the cone
    in float64, the last bit is not sure.
    """
    sums = torch.cat((target, ascending), -1).cumsum(-1, dtype=torch.float64)
    counts = torch.arange(1, sums.shape[-1] + 1, dtype=sums.dtype, device=sums.device)
    return sums.div_(counts).min(-1, keepdim=True)


def _smallest_few(rows: Tensor, target: Tensor) -> Tensor | None:
    """The root (..., 1) from a few entries of each row, None if some row may need more.

    The root is at most the mean of the target and the smallest entry. Entries above are cut off
    there: selection takes a third of the time among values that are nearly all equal.
    """
    few = min(_FEW, rows.shape[-1])
    lowest = rows.amin(-1, keepdim=True)
    cut = lowest.lerp(target, _ABOVE_HALF)
    smallest = torch.minimum(rows, cut).topk(few, dim=-1, largest=False).values
    level, taken = _sorted_prefixes(smallest, target)
    if few < rows.shape[-1] and taken.max().item() == few:
        return None
    if rows.dtype == torch.float64:  # in float32 the target comes back by rounding
        level = torch.where(lowest < target, level, target)
    return level


def _search(rows: Tensor, target: Tensor) -> Tensor | None:
    """The root by Newton's method on the entries below a first threshold, None if too many are."""
    classes = rows.shape[-1]
    minima = _block_minima(rows) if classes >= _LONG else rows
    level = (target + minima.amin(-1)) / 2
    row, column, values = _entries_below(minima, level)
    if len(row) > _DENSE * rows.numel():
        return None
    level = _newton(row, values, target, level)
    if level is None or minima is rows:
        return level
    row, column, _ = _entries_below(minima, level)
    column = column.unsqueeze(-1) + torch.arange(0, classes, minima.shape[-1], device=rows.device)
    row = row.unsqueeze(-1).expand_as(column)
    if row.numel() > _DENSE * rows.numel():
        return None
    inside = (row * classes + column.clamp(max=classes - 1)).flatten()
    values = rows.flatten().index_select(0, inside).to(torch.float64)
    values = values.masked_fill(column.flatten() >= classes, torch.inf)
    return _newton(row.flatten(), values, target, level)


def _entries_below(rows: Tensor, level: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and value, in float64, of every entry below the level of its row.

    The level may round up to the dtype of the rows, which only lets a few more entries in.
    """
    below = rows < level.to(rows.dtype).unsqueeze(-1)
    flat = below.flatten().nonzero().squeeze(-1)
    row = flat.div(rows.shape[-1], rounding_mode="floor")
    values = rows.flatten().index_select(0, flat).to(torch.float64)
    return row, flat - row * rows.shape[-1], values


def _newton(row: Tensor, values: Tensor, target: Tensor, level: Tensor) -> Tensor | None:
    """Lower the level of each row to the mean of its target and all its values below the level."""
    before = None
    for _ in range(_SWEEPS):
        below = values < level.index_select(0, row)
        if before is not None and torch.equal(below, before):
            return level
        sums = target.index_add(0, row, torch.where(below, values, 0.0))
        counts = torch.ones_like(target).index_add_(0, row, below.to(torch.float64))
        level, before = torch.minimum(sums / counts, level), below
    return None


def _block_minima(rows: Tensor) -> Tensor:
    """The minima of about 4 sqrt(K) interleaved blocks of each row."""
    classes = rows.shape[-1]
    blocks = 4 * int(classes**0.5)
    whole = classes - classes % blocks
    minima = rows[:, :whole].unflatten(-1, (-1, blocks)).amin(-2)
    rest = minima[:, : classes - whole]
    torch.minimum(rest, rows[:, whole:], out=rest)
    return minima
