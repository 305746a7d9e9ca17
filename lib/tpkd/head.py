"""The head update that realises an output step exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.tpkd.checks import check_scalar

_LARGEST_STEP = 1e30


def exact_head_step(
    features: Tensor, head: Tensor, update: Tensor, step_size: float | Tensor
) -> Tensor:
    r"""Return the head after the smallest change that moves every logit as prescribed.

    $$A - \eta X^\dagger V, \qquad X (A - \eta X^\dagger V) = X A - \eta V$$

    Of all changes that do so, this one has the least Frobenius norm. Its rows lie in the span of
    the features, so steps on the same features add up. A bias is a feature that is always 1.
    Computed in float64 through the singular value decomposition, without a ridge.

    **Source**: Yuan & Tao, Proposition 1 and Eq. D.1.

    Args:
        features: (..., N, D), X, of full row rank: N <= D and no example a combination of others,
            to the precision of the dtype.
        head: (..., D, K), A.
        update: (..., N, K), V, a row for each example, not divided by N.
        step_size: number, eta >= 0.

    Returns:
        (..., D, K), in the promoted dtype of the three; integers count as float32.

    Raises:
        ValueError: if the features are not of full row rank, or an argument does not fit.

    Example:
        >>> features = torch.tensor([[3.0, 4.0]])
        >>> exact_head_step(features, torch.zeros(2, 3), torch.tensor([[-5.0, 5.0, 0.0]]), 1.0)
        tensor([[ 0.6000, -0.6000,  0.0000],
                [ 0.8000, -0.8000,  0.0000]])
    """
    step = check_scalar("step_size", step_size, 0.0, _LARGEST_STEP)
    named = {"features": features, "head": head, "update": update}
    dtype = _result_dtype(named)
    _check_shapes(features, head, update)
    left, values, right = torch.linalg.svd(features.to(torch.float64), full_matrices=False)
    _check_rank(values, features)
    coordinates = (left.mT @ update.to(torch.float64)) / values.unsqueeze(-1)
    return (head.to(torch.float64) - step * (right.mT @ coordinates)).to(dtype)


def _result_dtype(named: dict[str, Tensor]) -> torch.dtype:
    """The promoted floating dtype of finite real matrices on one device."""
    dtype = None
    for name, matrix in named.items():
        if not isinstance(matrix, Tensor):
            raise ValueError(f"{name} must be a torch.Tensor, got {type(matrix).__name__}")
        if matrix.is_complex() or matrix.dtype == torch.bool or matrix.ndim < 2:
            raise ValueError(
                f"{name} must be a real matrix, or a batch of them, got shape "
                f"{tuple(matrix.shape)} of {matrix.dtype}"
            )
        if matrix.is_floating_point() and not bool(torch.isfinite(matrix).all()):
            raise ValueError(f"{name} must be finite, got NaN or infinity")
        own = matrix.dtype if matrix.is_floating_point() else torch.float32
        dtype = own if dtype is None else torch.promote_types(dtype, own)
    places = {name: str(matrix.device) for name, matrix in named.items()}
    if len(set(places.values())) > 1:
        raise ValueError(f"features, head and update must lie on one device, got {places}")
    return dtype


def _check_shapes(features: Tensor, head: Tensor, update: Tensor) -> None:
    """X (..., N, D), A (..., D, K) and V (..., N, K), with N, D, K >= 1."""
    shapes = [tuple(matrix.shape) for matrix in (features, head, update)]
    (examples, dimension), classes = features.shape[-2:], head.shape[-1]
    fits = head.shape[-2] == dimension and update.shape[-2:] == (examples, classes)
    try:
        torch.broadcast_shapes(*(shape[:-2] for shape in shapes))
    except RuntimeError:
        fits = False
    if not fits or min(examples, dimension, classes) < 1:
        raise ValueError(
            "features, head and update must have shapes (..., N, D), (..., D, K) and (..., N, K), "
            f"none of them 0, got {shapes[0]}, {shapes[1]} and {shapes[2]}"
        )


def _check_rank(values: Tensor, features: Tensor) -> None:
    """Raise ValueError unless features with these singular values have full row rank.

    What lies below the rounding of the features' own dtype counts as zero.
    """
    examples, dimension = features.shape[-2:]
    rounding = max(examples, dimension) * torch.finfo(values.dtype).eps
    if features.is_floating_point():
        rounding = max(rounding, 4 * torch.finfo(features.dtype).eps)
    rank = (values > rounding * values.amax(-1, keepdim=True)).sum(-1)
    if examples > dimension or bool((rank < examples).any()):
        raise ValueError(
            f"features must have full row rank {examples}, one for each example, got rank "
            f"{int(rank.min())} with {dimension} columns; use fewer or different examples"
        )
