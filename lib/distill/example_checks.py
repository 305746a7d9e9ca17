"""What examples refuse: shapes, types and values that would break a step, or a result, later."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def check_tensor(name: str, tensor: object) -> None:
    """Raise ValueError unless it is a tensor.

    Args:
        name: of the argument.
        tensor: what was given.
    """
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")


def check_finite(values: Tensor) -> None:
    """Raise ValueError for values that every loss would turn into NaN, long after."""
    if not values.is_floating_point() or not values.numel():
        return
    low, high = (float(x) for x in values.aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"values must be finite, got values from {low:.6g} to {high:.6g}")


def check_labels(labels: Tensor) -> None:
    """Raise ValueError unless labels are int64 (n,), n >= 1, and >= 0."""
    check_tensor("labels", labels)
    if labels.dtype != torch.int64 or labels.ndim != 1 or len(labels) == 0:
        raise ValueError(
            "labels must be int64 of shape (n,) with n >= 1, got "
            f"{labels.dtype} of shape {tuple(labels.shape)}"
        )
    if bool((labels < 0).any()):
        raise ValueError(f"labels must be >= 0, got {int(labels.min())}")


def check_views(views: object) -> None:
    """Raise ValueError unless it is a number of views."""
    if not is_whole(views) or views < 1:
        raise ValueError(f"views must be an integer >= 1, got {views!r}")


def check_images(images: Tensor, n: int) -> None:
    """Raise ValueError unless these are n images of three channels, uint8 or in [0, 1]."""
    check_tensor("images", images)
    if images.ndim != 4 or images.shape[:2] != (n, 3) or 0 in images.shape:
        raise ValueError(
            f"images must have shape (n, 3, H, W) with n = {n}, got {tuple(images.shape)}"
        )
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point():
        raise ValueError(f"images must be uint8 or floating point, got {images.dtype}")
    low, high = (float(x) for x in images.aminmax())
    if not (low >= 0 and high <= 1):
        raise ValueError(f"images must lie in [0, 1], got values from {low:.6g} to {high:.6g}")


def check_standard(mean: object, std: object) -> None:
    """Raise ValueError unless each channel has a mean and a standard deviation."""
    try:
        finite = all(map(math.isfinite, (*mean, *std)))
        fits = len(mean) == len(std) == 3 and finite and min(std) > 0
    except TypeError:
        fits = False
    if not fits:
        raise ValueError(
            f"mean and std must have three finite numbers each, std > 0, got {mean!r} and {std!r}"
        )


def check_fixed_views(offsets: Tensor, flips: Tensor, n: int, padding: int) -> None:
    """Raise ValueError unless each view of each image has a crop inside the frame, and a flip."""
    views = len(flips)
    if offsets.dtype != torch.int64 or offsets.shape != (views, n, 2) or views == 0:
        raise ValueError(
            f"offsets must be int64 of shape (V, {n}, 2) for flips {tuple(flips.shape)}, got "
            f"{offsets.dtype} of shape {tuple(offsets.shape)}"
        )
    if flips.dtype != torch.bool or flips.shape != (views, n):
        raise ValueError(
            f"flips must be bool of shape (V, {n}), got {flips.dtype} of shape {tuple(flips.shape)}"
        )
    low, high = (int(x) for x in offsets.aminmax())
    if low < 0 or high > 2 * padding:
        raise ValueError(
            f"offsets must lie in [0, {2 * padding}] for a padding of {padding}, got values from "
            f"{low} to {high}"
        )


def check_index(index: Tensor, view: Tensor, n: int, views: int) -> None:
    """Raise ValueError unless both are int64 (b,), b >= 1, in [0, n) and in [0, views).

    Args:
        index: which examples.
        view: in which views.
        n: number of examples.
        views: number of views.
    """
    for name, tensor, count in (("index", index, n), ("view", view, views)):
        check_tensor(name, tensor)
        if tensor.dtype != torch.int64 or tensor.ndim != 1 or not len(tensor) == len(index) > 0:
            raise ValueError(
                f"{name} must be int64 of shape (b,), b >= 1, one shape for index and view, got "
                f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            )
        low, high = (int(x) for x in tensor.aminmax())
        if low < 0 or high >= count:
            raise ValueError(f"{name} must lie in [0, {count}), got values from {low} to {high}")


def is_whole(value: object) -> bool:
    """Say whether it is an integer, and not True or False."""
    return isinstance(value, int) and not isinstance(value, bool)
