"""What an option of an objective may be: a number in a range, a switch, one of a few words."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass

from lib.tpkd.checks import check_scalar

LARGEST_WEIGHT = 1e6  # far above any use, far below where float32 overflows
LARGEST_TEMPERATURE = 1e4


@dataclass(frozen=True)
class Number:
    """An option that is a real number.

    Attributes:
        default: value where none is given.
        low: smallest allowed value.
        high: largest allowed value.
    """

    default: float
    low: float = 0.0
    high: float = LARGEST_WEIGHT

    def check(self, name: str, value: object) -> float:
        """Return the value as a float, or raise ValueError with the option's name."""
        return check_scalar(name, value, self.low, self.high)


@dataclass(frozen=True)
class Flag:
    """An option that is on or off.

    Attributes:
        default: value where none is given.
    """

    default: bool

    def check(self, name: str, value: object) -> bool:
        """Return the value, or raise ValueError unless it is True or False."""
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")
        return value


@dataclass(frozen=True)
class Choice:
    """An option that is one of a few words.

    Attributes:
        default: value where none is given.
        allowed: every word.
    """

    default: str
    allowed: tuple[str, ...]

    def check(self, name: str, value: object) -> str:
        """Return the value, or raise ValueError unless it is one of the words."""
        if not isinstance(value, str) or value not in self.allowed:
            raise ValueError(f"{name} must be one of {', '.join(self.allowed)}, got {value!r}")
        return value


Rule = Number | Flag | Choice


def temperature(default: float) -> Number:
    """Return the rule of a temperature, whose square no logit may overflow.

    Example:
        >>> temperature(4.0).check("temperature", 2)
        2.0
    """
    return Number(default, 1 / LARGEST_TEMPERATURE, LARGEST_TEMPERATURE)


def resolve_options(
    method: str, rules: Mapping[str, Rule], given: Mapping[str, object]
) -> dict[str, float | bool | str]:
    """Return a value for every option: the one given, checked, or the default.

    Args:
        method: name of the objective, for the message.
        rules: every option that it has.
        given: the caller's values.

    Returns:
        One value for each rule.

    Raises:
        ValueError: if an option is unknown or a value does not fit.

    Example:
        >>> resolve_options("kd", {"temperature": temperature(4.0)}, {})
        {'temperature': 4.0}
    """
    unknown = [name for name in given if name not in rules]
    if unknown:
        allowed = (
            f"must be one of {', '.join(rules)}" if rules else "must not be given: it has none"
        )
        raise ValueError(f"options of {method!r} {allowed}; got {', '.join(map(repr, unknown))}")
    return {
        name: rule.check(name, given[name]) if name in given else rule.default
        for name, rule in rules.items()
    }


def check_step(step: object) -> int | None:
    """Return the number of optimiser steps taken, or raise ValueError unless it is None or >= 0.

    Example:
        >>> check_step(3)
        3
    """
    if step is None:
        return None
    if isinstance(step, bool) or not isinstance(step, numbers.Integral) or step < 0:
        raise ValueError(f"step must be None or an integer >= 0, got {step!r}")
    return int(step)
