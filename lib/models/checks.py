"""What the builders of networks refuse, in one place."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

import torch


def check_size(name: str, value: int, least: int = 1) -> int:
    """Return a whole number that is at least `least`.

    Raises:
        ValueError: if it is not; names the argument and the value.

    Example:
        >>> check_size("classes", 10)
        10
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
    return int(value)


def check_sizes(name: str, values: Sequence[int]) -> list[int]:
    """Return a sequence, possibly empty, of whole numbers >= 1 as a list.

    Raises:
        ValueError: if it is not one; names the argument and the value.

    Example:
        >>> check_sizes("widths", (64, 32))
        [64, 32]
    """
    if isinstance(values, str | torch.Tensor) or not isinstance(values, Sequence):
        raise ValueError(f"{name} must be a sequence of integers >= 1, got {values!r}")
    return [check_size(f"{name}[{index}]", value) for index, value in enumerate(values)]


def check_rate(name: str, value: float) -> float:
    """Return a share of dropped values: a number in [0, 1).

    Raises:
        ValueError: if it is not; names the argument and the value.

    Example:
        >>> check_rate("dropout", 0.1)
        0.1
    """
    wrong = isinstance(value, bool) or not isinstance(value, numbers.Real)
    if wrong or not (math.isfinite(value) and 0 <= value < 1):
        raise ValueError(f"{name} must be a number in [0, 1), got {value!r}")
    return float(value)


def check_word(name: str, value: str, allowed: Sequence[str]) -> str:
    """Return a word that is one of `allowed`.

    Raises:
        ValueError: if it is not; names the argument, the value and what is allowed.

    Example:
        >>> check_word("domain", "text", ("text", "vision"))
        'text'
    """
    if value not in tuple(allowed):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def check_generator(generator: torch.Generator) -> torch.Generator:
    """Return a source of randomness.

    Raises:
        ValueError: if it is not a `torch.Generator`.

    Example:
        >>> check_generator(torch.Generator()).device
        device(type='cpu')
    """
    if not isinstance(generator, torch.Generator):
        raise ValueError(
            f"generator must be a torch.Generator, got {type(generator).__name__}; "
            "use torch.Generator().manual_seed(0)"
        )
    return generator
