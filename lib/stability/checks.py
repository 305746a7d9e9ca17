"""Input checks of `lib.stability`: every error names the argument, the value seen and the cure.

Networks keep the dtype they came in, float32 or float64; what is computed from few numbers
(thresholds, growth factors, quadratic dynamics) runs in float64.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

OPTIMISERS = ("gd", "polyak", "nesterov")


def count(name: str, value: int, minimum: int = 1, maximum: float = math.inf) -> int:
    """Return an integer inside an interval, or raise ValueError.

    Args:
        name: the argument's name, for the message.
        value: an integer (bool is refused).
        minimum: the smallest value allowed.
        maximum: the largest value allowed.

    Returns:
        The value as a Python int.

    Raises:
        ValueError: if it is not an integer, or outside.

    Example:
        >>> count("steps", -1, 0)
        Traceback (most recent call last):
        ValueError: steps must be an integer >= 0, got -1
    """
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < minimum or value > maximum:
        upper = f" and <= {maximum}" if maximum < math.inf else ""
        raise ValueError(f"{name} must be an integer >= {minimum}{upper}, got {value!r}")
    return int(value)


def positive(name: str, value: float, high: float = math.inf) -> float:
    """Return a finite number above 0 and at most `high`, or raise ValueError.

    Args:
        name: the argument's name, for the message.
        value: a Python, NumPy or 0-dimensional tensor number.
        high: the number must not be larger than this.

    Returns:
        The value as a Python float.

    Raises:
        ValueError: if it is no number, NaN, infinite or outside.

    Example:
        >>> positive("step_size", 0.0)
        Traceback (most recent call last):
        ValueError: step_size must be a finite number > 0, got 0.0
    """
    try:
        number = math.nan if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number) or number <= 0 or number > high:
        upper = f" and <= {high:g}" if high < math.inf else ""
        raise ValueError(f"{name} must be a finite number > 0{upper}, got {value!r}")
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
        >>> choice("loss", "mse", ("square", "cross-entropy"))
        Traceback (most recent call last):
        ValueError: loss must be one of 'square', 'cross-entropy', got 'mse'
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def momentum_method(optimiser: str, momentum: float) -> tuple[str, float]:
    """Return a method and its momentum, or raise ValueError.

    Args:
        optimiser: "gd", "polyak" or "nesterov".
        momentum: in [0, 1); 0 for "gd".

    Returns:
        The method and the momentum as a Python float.

    Raises:
        ValueError: if the method is unknown, the momentum outside [0, 1), or not 0 for "gd".

    Example:
        >>> momentum_method("gd", 0.9)
        Traceback (most recent call last):
        ValueError: momentum must be 0 for optimiser='gd', got 0.9; use 'polyak' or 'nesterov'
    """
    choice("optimiser", optimiser, OPTIMISERS)
    try:
        number = math.nan if isinstance(momentum, str | bool) else float(momentum)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not 0 <= number < 1:
        raise ValueError(f"momentum must be a number in [0, 1), got {momentum!r}")
    if optimiser == "gd" and number:
        raise ValueError(
            f"momentum must be 0 for optimiser='gd', got {momentum!r}; use 'polyak' or 'nesterov'"
        )
    return optimiser, number


def real_float64(name: str, value: Tensor | float | Sequence[float]) -> Tensor:
    """Return finite real numbers as a float64 tensor.

    Args:
        name: the argument's name, for the message.
        value: a tensor of any real dtype, or what `torch.as_tensor` takes.

    Returns:
        The same numbers in float64, on the device they were on.

    Raises:
        ValueError: if they are no numbers, complex, NaN or infinite.

    Example:
        >>> real_float64("curvature", 2)
        tensor(2., dtype=torch.float64)
    """
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must be a tensor or numbers, got {value!r}") from None
    if tensor.is_complex():
        raise ValueError(f"{name} must be real, got dtype {tensor.dtype}; pass {name}.real")
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return tensor.to(torch.float64)


def broadcast_float64(**values: Tensor | float | Sequence[float]) -> tuple[Tensor, ...]:
    """Return finite real numbers as float64 tensors of one shape, on the device of one that has it.

    Args:
        **values: tensors or numbers, by the name of the argument.

    Returns:
        One tensor for each, in order.

    Raises:
        ValueError: if one is no finite real number, or the shapes do not broadcast.

    Example:
        >>> broadcast_float64(x=torch.ones(2), y=torch.ones(3))
        Traceback (most recent call last):
        ValueError: x (2,), y (3,) must broadcast; add dimensions of size 1 where they should
    """
    tensors = {name: real_float64(name, value) for name, value in values.items()}
    devices = [tensor.device for tensor in tensors.values() if tensor.device.type != "cpu"]
    try:
        return torch.broadcast_tensors(
            *(tensor.to(devices[0]) if devices else tensor for tensor in tensors.values())
        )
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(
            f"{shapes} must broadcast; add dimensions of size 1 where they should"
        ) from None


def leaf_parameters(parameters: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return the parameters of a loss as a tuple, or raise ValueError.

    Args:
        parameters: leaf tensors that require a gradient, all of one dtype (float32 or float64)
            and on one device; `model.parameters()` will do.

    Returns:
        The tensors, in that order.

    Raises:
        ValueError: if there is none, one is no such tensor, one stands twice, or they differ in
            dtype or device.

    Example:
        >>> leaf_parameters([torch.ones(2)])
        Traceback (most recent call last):
        ValueError: parameters[0] must be a leaf that requires a gradient; call .requires_grad_()
    """
    if isinstance(parameters, Tensor) or not isinstance(parameters, Iterable):
        raise ValueError(
            f"parameters must be a sequence of tensors, got {type(parameters).__name__}; "
            "pass [tensor] for a single one"
        )
    leaves = tuple(parameters)
    if not leaves or not any(isinstance(leaf, Tensor) and leaf.numel() for leaf in leaves):
        raise ValueError("parameters must hold at least one tensor with entries, got none")
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor) or leaf.dtype not in (torch.float32, torch.float64):
            seen = leaf.dtype if isinstance(leaf, Tensor) else type(leaf).__name__
            raise ValueError(f"parameters[{index}] must be a float32 or float64 tensor, got {seen}")
        if not (leaf.is_leaf and leaf.requires_grad):
            raise ValueError(
                f"parameters[{index}] must be a leaf that requires a gradient; "
                "call .requires_grad_()"
            )
    if len({id(leaf) for leaf in leaves}) < len(leaves):
        raise ValueError("parameters must hold each tensor once, got one of them twice")
    kinds = {f"{leaf.dtype} on {leaf.device}" for leaf in leaves}
    if len(kinds) > 1:
        raise ValueError(
            f"parameters must share dtype and device, got {', '.join(sorted(kinds))}; "
            "call .to(...) on the model"
        )
    return leaves


def loss_functions(
    loss: Callable[[], Tensor] | Sequence[Callable[[], Tensor]],
) -> tuple[Callable[[], Tensor], ...]:
    """Return a loss as a tuple of functions whose sum it is, or raise ValueError.

    Args:
        loss: a function of no argument, or a non-empty sequence of them (micro-batches).

    Returns:
        The functions.

    Raises:
        ValueError: if there is none, or one cannot be called.

    Example:
        >>> loss_functions(torch.tensor(1.0))
        Traceback (most recent call last):
        ValueError: loss must be a function of no argument, or a sequence of them, got Tensor
    """
    functions = (loss,) if callable(loss) else loss
    if not isinstance(functions, list | tuple) or not all(map(callable, functions)):
        raise ValueError(
            "loss must be a function of no argument, or a sequence of them, "
            f"got {type(loss).__name__}"
        )
    if not functions:
        raise ValueError("loss must hold at least one function, got none")
    return tuple(functions)
