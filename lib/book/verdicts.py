"""How a verdict looks: an icon, the words, and a coloured edge that repeats them."""

from __future__ import annotations

from lib.book.html import Markup
from lib.book.rules import NOT_REPRODUCED, NOT_RUN, REPRODUCED, SMALLER, TREND

MISSING = "missing"
STALE = "stale: the rule changed since"
OUTDATED = "stale: the sources changed since"

_LOOKS = {
    REPRODUCED: ("✓", "#029e73"),
    SMALLER: ("✓", "#029e73"),
    TREND: ("≈", "#de8f05"),
    NOT_REPRODUCED: ("✗", "#d55e00"),
    NOT_RUN: ("○", "#949494"),
    MISSING: ("?", "#949494"),
    STALE: ("↻", "#de8f05"),
    OUTDATED: ("↻", "#de8f05"),
}


def chip(verdict: str) -> Markup:
    """Returns a verdict ready for a table: icon and words, with an edge in its colour.

    Args:
        verdict: one of the verdicts, :data:`MISSING`, :data:`STALE` or :data:`OUTDATED`.

    Returns:
        The cell.

    Example:
        >>> chip("reproduced").text
        '✓ reproduced'
    """
    icon, colour = _LOOKS[verdict]
    style = f"border-left:4px solid {colour};padding-left:.45em;white-space:nowrap"
    return Markup(
        f'<span class="book-verdict" style="{style}"><span aria-hidden="true">{icon}</span> '
        f"{verdict}</span>",
        f"{icon} {verdict}",
    )
