"""Input checks of `lib.implicit`: every error names the argument, the value seen and the cure.

Everything here runs in float64: real tensors of any dtype are converted, and results are float64.
"""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor


def real(name: str, value: Tensor) -> Tensor:
    """Return a finite real tensor in float64.

    Args:
        name: the argument's name, for the message.
        value: a tensor, or numbers that `torch.as_tensor` takes.

    Returns:
        The same numbers in float64.

    Raises:
        ValueError: if it is complex or holds NaN or infinity.

    Example:
        >>> real("inputs", torch.tensor([1, 2])).dtype
        torch.float64
    """
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    if tensor.is_complex():
        raise ValueError(f"{name} must be real, got dtype {tensor.dtype}; pass {name}.real")
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} must be finite, got NaN or infinity; remove those entries")
    return tensor.to(torch.float64)


def signed_examples(inputs: Tensor, labels: Tensor) -> Tensor:
    r"""Return the signed examples, whose inner products with a predictor are its margins.

    $$a_n = y_n x_n$$

    Args:
        inputs: (..., N, D), rows are examples, no zero row.
        labels: (..., N), every entry -1 or +1; leading dimensions broadcast with those of inputs.

    Returns:
        (..., N, D), float64.

    Raises:
        ValueError: if a shape does not fit, a value is NaN or infinite, a row is zero, or a label
            is neither -1 nor +1.

    Example:
        >>> signed_examples(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([1, -1]))
        tensor([[ 1.,  2.],
                [-3., -0.]], dtype=torch.float64)
    """
    inputs, labels = real("inputs", inputs), real("labels", labels)
    if inputs.ndim < 2 or min(inputs.shape[-2:]) < 1:
        raise ValueError(
            f"inputs must have shape (..., N, D) with N >= 1 and D >= 1, got {tuple(inputs.shape)};"
            " use inputs[None] for a single example"
        )
    if labels.ndim < 1 or labels.shape[-1] != inputs.shape[-2]:
        raise ValueError(
            f"labels must have shape (..., {inputs.shape[-2]}) to match inputs of shape "
            f"{tuple(inputs.shape)}, got {tuple(labels.shape)}"
        )
    strange = labels[labels.abs() != 1]
    if strange.numel():
        raise ValueError(
            f"labels must be -1 or +1, got {float(strange[0]):g}; use 2 * labels - 1 for labels 0/1"
        )
    if not bool((inputs != 0).any(-1).all()):
        raise ValueError(
            "inputs must not hold a zero row: its margin is 0 for every predictor; remove it"
        )
    return labels.unsqueeze(-1) * inputs


def nonzero_predictor(predictor: Tensor, dimension: int) -> Tensor:
    """Return a predictor (..., D) in float64, or raise ValueError.

    Args:
        predictor: (..., D), not the zero vector.
        dimension: D.

    Returns:
        The predictor in float64.

    Raises:
        ValueError: if its last dimension is not D, it is zero, or holds NaN or infinity.

    Example:
        >>> nonzero_predictor(torch.zeros(2), 2)
        Traceback (most recent call last):
        ValueError: predictor must not be the zero vector: it has no direction
    """
    predictor = real("predictor", predictor)
    if predictor.ndim < 1 or predictor.shape[-1] != dimension:
        raise ValueError(
            f"predictor must have shape (..., {dimension}) to match the inputs, "
            f"got {tuple(predictor.shape)}"
        )
    if not bool((predictor != 0).any(-1).all()):
        raise ValueError("predictor must not be the zero vector: it has no direction")
    return predictor


def count(name: str, value: int, minimum: int = 1) -> int:
    """Return an integer not below a minimum, or raise ValueError.

    Args:
        name: the argument's name, for the message.
        value: an integer (bool is refused).
        minimum: the smallest value allowed.

    Returns:
        The value as a Python int.

    Raises:
        ValueError: if it is not an integer, or below the minimum.

    Example:
        >>> count("depth", 0)
        Traceback (most recent call last):
        ValueError: depth must be an integer >= 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        raise ValueError(f"{name} must be an integer >= {minimum}, got {value!r}")
    return int(value)


def positive(name: str, value: float, low: float = 0.0, high: float = math.inf) -> float:
    """Return a finite number above `low` and at most `high`, or raise ValueError.

    Args:
        name: the argument's name, for the message.
        value: a Python, NumPy or 0-dimensional tensor number.
        low: the number must be larger than this.
        high: and not larger than this.

    Returns:
        The value as a Python float.

    Raises:
        ValueError: if it is no number, NaN, infinite or outside.

    Example:
        >>> positive("scale", -1.0)
        Traceback (most recent call last):
        ValueError: scale must be a finite number > 0, got -1.0
    """
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number) or number <= low or number > high:
        upper = f" and <= {high:g}" if high < math.inf else ""
        raise ValueError(f"{name} must be a finite number > {low:g}{upper}, got {value!r}")
    return number


def choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return a word that is one of those allowed, or raise ValueError.

    Args:
        name: the argument's name, for the message.
        value: the word.
        allowed: the words allowed.

    Returns:
        The word.

    Raises:
        ValueError: if it is another one.

    Example:
        >>> choice("norm", "l3", ("l1", "l2"))
        Traceback (most recent call last):
        ValueError: norm must be one of 'l1', 'l2', got 'l3'
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value
