"""The rules that decide a claim: a number in, pass or fail out, and the verdict over all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lib.book.files import digest

REPRODUCED = "reproduced"
SMALLER = "reproduced at smaller scale"
TREND = "trend only"
NOT_REPRODUCED = "not reproduced"
NOT_RUN = "not run at this profile"
VERDICTS = (REPRODUCED, SMALLER, TREND, NOT_REPRODUCED, NOT_RUN)

RULES = ("at-most", "at-least", "below", "above", "within", "between", "holds")
_SYMBOLS = {"at-most": "≤", "at-least": "≥", "below": "<", "above": ">"}


@dataclass(frozen=True)
class Check:
    """One rule of a claim.

    Attributes:
        name: the key under which a page hands in its value.
        rule: one of :data:`RULES`.
        bound: the number for ``at-most``, ``at-least``, ``below`` and ``above``; ``(low, high)``
            for ``between``; ``(target, tolerance)`` for ``within``; ``None`` for ``holds``.
        trend: whether the check counts towards "trend only".
        meaning: what the number is.
    """

    name: str
    rule: str
    bound: float | tuple[float, float] | None = None
    trend: bool = False
    meaning: str = ""


def passes(check: Check, value: float | bool) -> bool:
    """Returns whether ``value`` meets the rule; NaN never does.

    Args:
        check: the rule.
        value: a number, or a bool for ``holds``.

    Returns:
        The decision.

    Example:
        >>> passes(Check("gap", "within", (1.0, 0.25)), 1.25)
        True
        >>> passes(Check("gap", "at-most", 1.0), float("nan"))
        False
    """
    if check.rule == "holds":
        return value is True
    if math.isnan(value):
        return False
    if check.rule == "between":
        return check.bound[0] <= value <= check.bound[1]
    if check.rule == "within":
        return abs(value - check.bound[0]) <= check.bound[1]
    return {
        "at-most": value <= check.bound,
        "at-least": value >= check.bound,
        "below": value < check.bound,
        "above": value > check.bound,
    }[check.rule]


def verdict(checks: Sequence[Check], values: Mapping[str, float | bool], paper_scale: bool) -> str:
    """Returns the verdict of a claim from the values of all its checks.

    All pass: "reproduced", or "reproduced at smaller scale" where the run was smaller than the
    paper's. Otherwise "trend only" where at least one check is a trend and every trend passes.
    Otherwise "not reproduced".

    Args:
        checks: the claim's rules, at least one.
        values: one value per check, by name.
        paper_scale: whether the page ran the paper's own setting.

    Returns:
        One of :data:`VERDICTS`.

    Example:
        >>> rules = [Check("slope", "below", 0.0, trend=True), Check("gap", "at-most", 0.1)]
        >>> verdict(rules, {"slope": -1.0, "gap": 0.0}, True)
        'reproduced'
        >>> verdict(rules, {"slope": -1.0, "gap": 0.5}, True)
        'trend only'
        >>> verdict(rules, {"slope": 1.0, "gap": 0.0}, True)
        'not reproduced'
    """
    passed = {check.name: passes(check, values[check.name]) for check in checks}
    if all(passed.values()):
        return REPRODUCED if paper_scale else SMALLER
    trends = [check.name for check in checks if check.trend]
    return TREND if trends and all(passed[name] for name in trends) else NOT_REPRODUCED


def describe(check: Check) -> str:
    """Returns the rule in a few characters, as the tables show it.

    Example:
        >>> describe(Check("a", "at-most", -0.99)), describe(Check("b", "between", (0.0, 1.0)))
        ('≤ -0.99', '0 to 1')
        >>> describe(Check("c", "within", (0.5, 0.01))), describe(Check("d", "holds"))
        ('0.5 ± 0.01', 'holds')
    """
    if check.rule == "holds":
        return "holds"
    if check.rule == "between":
        return f"{check.bound[0]:g} to {check.bound[1]:g}"
    if check.rule == "within":
        return f"{check.bound[0]:g} ± {check.bound[1]:g}"
    return f"{_SYMBOLS[check.rule]} {check.bound:g}"


def rule_hash(checks: Sequence[Check]) -> str:
    """Returns a hash of what decides: names, rules, bounds and trends, not their descriptions.

    Example:
        >>> old, new = Check("a", "below", 1.0, meaning="x"), Check("a", "below", 1.0, meaning="y")
        >>> rule_hash([old]) == rule_hash([new]), rule_hash([old]) == rule_hash([])
        (True, False)
    """
    return digest([[c.name, c.rule, c.bound, c.trend] for c in checks])


def meets(expected: str, found: str) -> bool:
    """Returns whether a verdict is the expected one.

    A claim that is expected to be reproduced may be so at a smaller scale.

    Example:
        >>> meets("reproduced", "reproduced at smaller scale"), meets("trend only", "reproduced")
        (True, False)
    """
    return found == expected or (expected == REPRODUCED and found == SMALLER)
