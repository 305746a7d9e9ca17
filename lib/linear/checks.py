"""Input checks shared by the modules of `lib.linear`: every error names argument, value and cure.

Numbers: the theory runs in float64. Every public function of `lib.linear` converts what it gets to
float64, computes there, and rounds its result to the widest floating dtype among its tensor
arguments (integer tensors count as float64), so float32 in gives a float32 result that is accurate
to the last bit or so, and half precision in gives half precision out.
"""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor


def to_float64(**tensors: Tensor) -> tuple[tuple[Tensor, ...], torch.dtype]:
    """Convert named tensors to float64 and say in which dtype the result should be returned.

    Args:
        **tensors: real tensors by argument name, all on one device, without NaN or infinity.

    Returns:
        The tensors in float64, in the order given, and the widest floating dtype among them
        (integer and boolean tensors count as float64).

    Raises:
        TypeError: if a value is not a tensor.
        ValueError: if a tensor is complex, holds NaN or infinity, or lies on another device.

    Example:
        >>> (x, w), dtype = to_float64(x=torch.ones(2, dtype=torch.float32), w=torch.ones(2).half())
        >>> x.dtype, dtype
        (torch.float64, torch.float32)
    """
    widest = None
    devices = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{name} must be a torch.Tensor, got {type(tensor).__name__}; "
                f"convert it with torch.as_tensor({name})"
            )
        if tensor.is_complex():
            raise ValueError(f"{name} must be real, got dtype {tensor.dtype}; pass {name}.real")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} must be finite, got NaN or infinity; remove those entries")
        dtype = tensor.dtype if tensor.is_floating_point() else torch.float64
        widest = dtype if widest is None else torch.promote_types(widest, dtype)
        devices.setdefault(tensor.device, name)
    if len(devices) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise ValueError(
            f"all tensors must be on one device, got {places}; move them with .to(...)"
        )
    return tuple(tensor.to(torch.float64) for tensor in tensors.values()), widest


def as_tensor(value: float | Tensor, device: torch.device | str | None = None) -> Tensor:
    """Return tensors as they are and numbers in float64, which torch would make float32.

    Args:
        value: a tensor, or a number or sequence of numbers.
        device: where to put it; None leaves a tensor where it is.

    Returns:
        A tensor.

    Example:
        >>> float(as_tensor(0.1)) == 0.1
        True
    """
    if isinstance(value, Tensor):
        return value if device is None else value.to(device)
    return torch.as_tensor(value, dtype=torch.float64, device=device)


def prepare(inputs: Tensor, **vectors: Tensor) -> tuple[tuple[Tensor, ...], torch.dtype]:
    """Check inputs (..., n, d) against vectors (..., d), and convert them all to float64.

    Args:
        inputs: (..., n, d) real, rows are examples, n >= 1 and d >= 1.
        **vectors: (..., d) real, by argument name; leading dimensions broadcast with the others'.

    Returns:
        (inputs, *vectors) in float64, unbroadcast, and the dtype of the result (see `to_float64`).

    Raises:
        ValueError: if a shape, a value or a device does not fit; the message names the argument.

    Example:
        >>> (x, w), dtype = prepare(torch.eye(3), w=torch.ones(3))
        >>> x.dtype, w.shape
        (torch.float64, torch.Size([3]))
    """
    converted, dtype = to_float64(inputs=inputs, **vectors)
    check_inputs(inputs)
    batch = inputs.shape[:-2]
    for name, vector in vectors.items():
        if vector.ndim < 1 or vector.shape[-1] != inputs.shape[-1]:
            raise ValueError(
                f"{name} must have shape (..., {inputs.shape[-1]}) to match inputs of shape "
                f"{tuple(inputs.shape)}, got {tuple(vector.shape)}"
            )
        try:
            batch = torch.broadcast_shapes(batch, vector.shape[:-1])
        except RuntimeError:
            raise ValueError(
                f"the leading dimensions of {name} {tuple(vector.shape)} do not broadcast with "
                f"{tuple(batch)}; add dimensions of size 1 where they should"
            ) from None
    return converted, dtype


def check_inputs(inputs: Tensor) -> None:
    """Raise ValueError unless inputs has shape (..., n, d) with n >= 1 and d >= 1.

    Args:
        inputs: the tensor to check.

    Raises:
        ValueError: if it has fewer than two dimensions, no example or no feature.

    Example:
        >>> check_inputs(torch.ones(0, 2))
        Traceback (most recent call last):
        ValueError: inputs must hold n >= 1 examples of dimension d >= 1, got shape (0, 2)
    """
    if inputs.ndim < 2:
        raise ValueError(
            f"inputs must have shape (..., n, d), one example a row, got {tuple(inputs.shape)}; "
            "use inputs[None] for a single example"
        )
    if inputs.shape[-2] < 1 or inputs.shape[-1] < 1:
        raise ValueError(
            f"inputs must hold n >= 1 examples of dimension d >= 1, got shape {tuple(inputs.shape)}"
        )


def check_nonzero(name: str, vector: Tensor) -> None:
    """Raise ValueError if a vector (last dimension) is zero.

    Args:
        name: the argument's name, for the message.
        vector: (..., d).

    Raises:
        ValueError: if any vector of the batch has no non-zero entry.

    Example:
        >>> check_nonzero("teacher", torch.zeros(2))
        Traceback (most recent call last):
        ValueError: teacher must not be the zero vector: it has no direction
    """
    if not bool((vector != 0).any(-1).all()):
        raise ValueError(f"{name} must not be the zero vector: it has no direction")


def check_broadcast(**tensors: Tensor) -> None:
    """Raise ValueError unless tensors broadcast with each other.

    Args:
        **tensors: tensors by argument name.

    Raises:
        ValueError: if their shapes do not broadcast.

    Example:
        >>> check_broadcast(n=torch.ones(3), beta=torch.ones(2))
        Traceback (most recent call last):
        ValueError: n (3,) and beta (2,) must broadcast; add dimensions of size 1 where they should
    """
    try:
        torch.broadcast_shapes(*(tensor.shape for tensor in tensors.values()))
    except RuntimeError:
        shapes = " and ".join(f"{name} {tuple(value.shape)}" for name, value in tensors.items())
        raise ValueError(
            f"{shapes} must broadcast; add dimensions of size 1 where they should"
        ) from None


def check_count(name: str, value: int, minimum: int = 1) -> int:
    """Return an integer count, or raise ValueError.

    Args:
        name: the argument's name, for the message.
        value: an integer (bool is refused).
        minimum: the smallest value allowed.

    Returns:
        The value as a Python int.

    Raises:
        ValueError: if it is not an integer, or below the minimum.

    Example:
        >>> check_count("n", 0)
        Traceback (most recent call last):
        ValueError: n must be an integer >= 1, got 0
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        raise ValueError(f"{name} must be an integer >= {minimum}, got {value!r}")
    return int(value)


def check_number(
    name: str,
    value: float,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """Return a finite number inside an interval, or raise ValueError.

    Args:
        name: the argument's name, for the message.
        value: a Python, NumPy or 0-dimensional tensor number.
        low: lower end of the interval.
        high: upper end of the interval.
        open_low: whether the lower end itself is refused.
        open_high: whether the upper end itself is refused.

    Returns:
        The value as a Python float.

    Raises:
        ValueError: if it is no number, NaN, infinite or outside.

    Example:
        >>> check_number("kappa", 0.0, 0.0, open_low=True)
        Traceback (most recent call last):
        ValueError: kappa must be a finite number > 0, got 0.0
    """
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    below = number <= low if open_low else number < low
    above = number >= high if open_high else number > high
    if not math.isfinite(number) or below or above:
        allowed = [f"{'>' if open_low else '>='} {low:g}"] if low > -math.inf else []
        allowed += [f"{'<' if open_high else '<='} {high:g}"] if high < math.inf else []
        interval = " " + " and ".join(allowed) if allowed else ""
        raise ValueError(f"{name} must be a finite number{interval}, got {value!r}")
    return number
