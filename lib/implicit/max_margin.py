"""Maximum-margin predictors for the three norms, each with a certificate that needs no solver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lib.implicit.checks import choice, nonzero_predictor, real, signed_examples
from lib.implicit.groups import choose_groups
from lib.implicit.polish import newton_polish
from lib.implicit.solvers import largest_box_margin, solve_fourier_l1, solve_l1, solve_l2
from lib.implicit.spectrum import NORMS, dual_norm_value, norm_value, spectrum

_LARGEST_GAP = 1e-8
_SEPARABLE = 1e-9  # smallest margin, relative to the largest entry, that counts as separable
_SUPPORT = 1e-6  # relative size above which a coefficient or a multiplier counts as non-zero
_SOLVERS = {"l2": solve_l2, "l1": solve_l1, "fourier-l1": solve_fourier_l1}


@dataclass(frozen=True)
class MaxMargin:
    r"""The solution of a maximum-margin problem, with what proves it.

    Attributes:
        predictor: (D,) float64, the predictor of least norm whose smallest margin is 1.
        multipliers: (N,) >= 0. For "l2" the predictor is the sum of multipliers times signed
            examples; for the others that sum z is a subgradient of the norm at the predictor.
        norm: "l2", "l1" or "fourier-l1".
        value: the norm of the predictor, 1 / (the largest margin at unit norm).
        gap: relative duality gap, at most 1e-8.
        inactive: the largest modulus of z, or of its Fourier coefficients, where the predictor's
            are zero; at most 1. Training of depth 2 approaches the limit like T^{-(1 - inactive)}.
            0 for "l2" and where nothing is inactive.
        conditioning: smallest singular value, relative to the largest, of the linear system that
            fixes the sizes of the active coefficients once their signs or phases are known.
        unique: True if the optimum is proved to be unique: inactive < 1 and conditioning > 0, with
            a tolerance of 1e-6.
    """

    predictor: Tensor
    multipliers: Tensor
    norm: str
    value: float
    gap: float
    inactive: float
    conditioning: float
    unique: bool


def max_margin(inputs: Tensor, labels: Tensor, norm: str) -> Tensor:
    r"""Return the predictor of least norm whose smallest margin is one.

    $$\arg\min_\beta \|\beta\| \quad \text{such that} \quad y_n \langle x_n, \beta \rangle \ge 1
      \text{ for all } n$$

    Its direction is what training chooses: the "l2" norm for dense networks of every depth, the
    l1 norm of the Fourier coefficients ("fourier-l1") for convolutional and "l1" for diagonal
    networks of depth two.

    **Source**: Gunasekar et al. (2018), Theorems 1 and 2, and the lemma on diagonal networks.

    Args:
        inputs: (N, D), rows are examples, no zero row.
        labels: (N,), -1 or +1, both present unless N = 1.
        norm: "l2", "l1" or "fourier-l1".

    Returns:
        (D,), float64, with smallest margin 1 and a duality gap of at most 1e-8. Where the optimum
        is not unique it is one of them; `solve_max_margin` tells.

    Raises:
        ValueError: if the examples are not separable through the origin, or an argument does not
            fit.
        RuntimeError: if no solution with a gap of at most 1e-8 was found.

    Example:
        >>> inputs, labels = torch.tensor([[3.0, 4.0], [-6.0, -8.0]]), torch.tensor([1, -1])
        >>> max_margin(inputs, labels, "l2")  # x / |x|^2 for the nearer example
        tensor([0.1200, 0.1600], dtype=torch.float64)
    """
    return solve_max_margin(inputs, labels, norm).predictor


def solve_max_margin(inputs: Tensor, labels: Tensor, norm: str) -> MaxMargin:
    """Return the maximum-margin predictor with multipliers, certificate and uniqueness report.

    **Source**: as `max_margin`; the certificate is `duality_gap`.

    Args:
        inputs: (N, D), rows are examples, no zero row.
        labels: (N,), -1 or +1, both present unless N = 1.
        norm: "l2", "l1" or "fourier-l1".

    Returns:
        A `MaxMargin`.

    Raises:
        ValueError: if the examples are not separable through the origin, or an argument does not
            fit.
        RuntimeError: if no solution with a gap of at most 1e-8 was found.

    Example:
        >>> solution = solve_max_margin(torch.tensor([[1.0, 2.0]]), torch.tensor([1]), "l1")
        >>> solution.predictor, solution.value, solution.inactive, solution.unique
        (tensor([0.0000, 0.5000], dtype=torch.float64), 0.5, 0.5, True)
    """
    choice("norm", norm, NORMS)
    signed = _separable_rows(inputs, labels)
    rows = signed.cpu().numpy()
    scale = float(np.linalg.norm(rows, axis=1).max())
    rows = rows / scale
    best = _best_of(_candidates(rows, norm), rows, norm)
    predictor, multipliers, gap = best
    if not gap <= _LARGEST_GAP:
        raise RuntimeError(
            f"no maximum-margin solution with a duality gap of at most {_LARGEST_GAP:g} was found "
            f"(best: {gap:.2g}); the examples are too nearly inseparable for float64"
        )
    report = _uniqueness(predictor, multipliers, rows, norm)
    predictor = torch.from_numpy(predictor / scale).to(signed.device)
    multipliers = multipliers / (scale**2 if norm == "l2" else scale)
    multipliers = torch.from_numpy(multipliers).to(signed.device)
    value = float(norm_value(predictor, norm))
    return MaxMargin(predictor, multipliers, norm, value, gap, *report)


def duality_gap(
    predictor: Tensor,
    inputs: Tensor,
    labels: Tensor,
    norm: str,
    weights: Tensor | None = None,
) -> Tensor:
    r"""Return a bound on how far a predictor's margin is from the largest, as a fraction of it.

    $$1 - \frac{\min_n \langle a_n, \beta \rangle / \|\beta\|}{\| \sum_n p_n a_n \|_*}, \qquad
      a_n = y_n x_n, \quad p \text{ in the simplex}$$

    The largest margin at unit norm is the minimum of the denominator over p, so this is a rigorous
    bound for every p, such as the softmax weights of the training loss. For "l2" the angle to the
    optimum has cos(angle) >= 1 - gap.

    **Source**: minimax duality for norms.

    Args:
        predictor: (..., D), non-zero.
        inputs: (N, D), rows are examples.
        labels: (N,), -1 or +1.
        norm: "l2", "l1" or "fourier-l1".
        weights: (..., N) >= 0, not all zero, normalised here; None for the best ones, which a
            solver finds.

    Returns:
        (...), float64, >= 0; at most 1 when the predictor separates the examples.

    Raises:
        ValueError: if an argument does not fit, or, without weights, the data are not separable.

    Example:
        >>> inputs, labels = torch.tensor([[3.0, 4.0]]), torch.tensor([1])
        >>> gap = duality_gap(torch.tensor([1.0, 0.0]), inputs, labels, "l2", torch.ones(1))
        >>> round(float(gap), 12)  # margin 3 of 5
        0.4
    """
    choice("norm", norm, NORMS)
    rows = signed_examples(inputs, labels)
    predictor = nonzero_predictor(predictor, rows.shape[-1])
    if weights is None:
        weights = solve_max_margin(inputs, labels, norm).multipliers
    weights = real("weights", weights)
    if weights.shape[-1:] != rows.shape[-2:-1] or bool((weights < 0).any()):
        raise ValueError(
            f"weights must be {rows.shape[-2]} numbers >= 0, one for each example, got shape "
            f"{tuple(weights.shape)} with smallest entry {float(weights.min()):g}"
        )
    if not bool((weights.sum(-1) > 0).all()):
        raise ValueError("weights must not all be zero: they say which examples bound the margin")
    weights = weights / weights.sum(-1, keepdim=True)
    smallest = (predictor @ rows.mT).amin(-1) / norm_value(predictor, norm)
    return (1 - smallest / dual_norm_value(weights @ rows, norm)).clamp(min=0)


def _separable_rows(inputs: Tensor, labels: Tensor) -> Tensor:
    """The signed examples (N, D) of data that a predictor can separate, or a ValueError."""
    rows = signed_examples(inputs, labels)
    if rows.ndim != 2:
        raise ValueError(
            f"inputs must have shape (N, D), got {tuple(rows.shape)}; solve one data set at a time"
        )
    if len(rows) > 1 and bool((labels == labels[0]).all()):
        raise ValueError(
            f"labels must hold both classes, got {len(labels)} times {float(labels[0]):g}; to pose "
            "a problem in signed examples, negate some of them with their labels: y x stays as is"
        )
    array = rows.cpu().numpy()
    array = array / np.abs(array).max()
    if largest_box_margin(array) <= _SEPARABLE:
        raise ValueError(
            "the examples must be linearly separable through the origin: no predictor gives every "
            "one of them a positive margin; remove examples or change labels"
        )
    return rows


def _candidates(rows: np.ndarray, norm: str):
    """The solver's solution, then the same after Newton's method on its active sets."""
    predictor, multipliers = _SOLVERS[norm](rows)
    yield predictor, multipliers
    if norm == "l2":
        return
    domain = "signal" if norm == "l1" else "fourier"
    everything = choose_groups(rows.shape[1], domain)
    length = everything.lengths(everything.coordinates(predictor))
    groups = choose_groups(rows.shape[1], domain, np.flatnonzero(length > _SUPPORT * length.max()))
    active = multipliers > _SUPPORT * multipliers.max()
    start = groups.coordinates(predictor), multipliers[active]
    coordinates, found = newton_polish(groups, rows[active], *start, power=1.0)
    polished = np.zeros(len(rows))
    polished[active] = np.maximum(found, 0)
    yield groups.vector(coordinates), polished


def _best_of(candidates, rows: np.ndarray, norm: str) -> tuple[np.ndarray, np.ndarray, float]:
    """The last candidate with a negligible gap, else the one with the smallest: scaled, judged."""
    best = None
    for predictor, multipliers in candidates:
        smallest = (rows @ predictor).min()
        if not (smallest > 0 and multipliers.sum() > 0 and np.isfinite(smallest)):
            continue
        predictor = predictor / smallest
        value = float(norm_value(torch.from_numpy(predictor), norm))
        weights = multipliers / multipliers.sum()
        dual = float(dual_norm_value(torch.from_numpy(weights @ rows), norm))
        gap = max(1 - 1 / (value * dual), 0.0)
        if best is None or gap <= max(best[2], 1e-13):
            best = predictor, weights * (value**2 if norm == "l2" else value), gap
    if best is None:
        return np.zeros(rows.shape[1]), np.zeros(len(rows)), np.inf
    return best


def _uniqueness(
    predictor: np.ndarray, multipliers: np.ndarray, rows: np.ndarray, norm: str
) -> tuple[float, float, bool]:
    """Largest inactive dual modulus, conditioning of the active system, and whether both suffice.

    Every optimum is a combination, with sizes t_d >= 0, of the signs or phases of z on its active
    coefficients, and has margin one wherever the multiplier is positive: a linear system in t.
    """
    if norm == "l2":
        return 0.0, 1.0, True
    dual = multipliers @ rows
    to_domain = (lambda v: spectrum(torch.from_numpy(v)).numpy()) if norm != "l1" else np.asarray
    size, phase = np.abs(to_domain(predictor)), to_domain(dual)
    active = size > _SUPPORT * size.max()
    inactive = float(np.abs(phase[~active]).max()) if (~active).any() else 0.0
    groups = choose_groups(rows.shape[1], "signal" if norm == "l1" else "fourier")
    binding = multipliers > _SUPPORT * multipliers.max()
    system = (to_domain(rows[binding]).conj() * phase * groups.weight).real[:, active]
    values = np.linalg.svd(system, compute_uv=False)
    full = len(system) >= system.shape[1]
    conditioning = float(values[-1] / values[0]) if full else 0.0
    return inactive, conditioning, inactive < 1 - _SUPPORT and conditioning > _SUPPORT
