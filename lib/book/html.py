"""Small tables that read well in light and dark pages, in Colab and as plain text.

Colours come from the page itself (``currentColor``), so that one table serves both modes; meaning
is always in words, a coloured edge only repeats it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

_TABLE = "border-collapse:collapse;margin:.4em 0;font-size:.92em;line-height:1.4"
_HEAD = "padding:.25em .8em;border-bottom:2px solid currentColor;font-weight:600"
_CELL = "padding:.25em .8em;border-bottom:1px solid rgba(128,128,128,.45);vertical-align:top"
_SHORT = 16  # characters


@dataclass(frozen=True)
class Markup:
    """A cell that brings its own HTML beside its plain text."""

    html: str
    text: str

    def __str__(self) -> str:
        return self.text


def table_html(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns an HTML table; columns that hold numbers only are set flush right.

    Args:
        columns: the heads.
        rows: one sequence of cells per row, each a text or a :class:`Markup`.

    Returns:
        The HTML, everything but :class:`Markup` escaped.
    """
    sides = [_side([row[i] for row in rows]) for i in range(len(columns))]
    head = "".join(
        f'<th scope="col" style="{_HEAD};text-align:{side}">{html.escape(str(name))}</th>'
        for name, side in zip(columns, sides, strict=True)
    )
    lines = []
    for row in rows:
        cells = zip(row, sides, strict=True)
        lines.append(
            "".join(
                f'<td style="{_CELL};text-align:{s}{_wrap(c)}">{_cell(c)}</td>' for c, s in cells
            )
        )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        '<div style="overflow-x:auto" tabindex="0" role="group" aria-label="Table">'
        f'<table class="book-table" style="{_TABLE}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def table_text(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns the same table as aligned plain text.

    Example:
        >>> print(table_text(["n", "risk"], [["1", "0.25"], ["10", "0.01"]]))
         n  risk
         1  0.25
        10  0.01
    """
    cells = [[str(name) for name in columns], *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    sides = [_side([row[i] for row in rows]) for i in range(len(columns))]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if side == "right" else cell.ljust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def show(markup: str, text: str) -> None:
    """Displays HTML with a plain fallback in a notebook, and prints the text anywhere else.

    Args:
        markup: the HTML.
        text: what a terminal or a text-only reader gets.
    """
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        print(text)
        return
    if get_ipython() is None:
        print(text)
    else:
        display({"text/html": markup, "text/plain": text}, raw=True)


def number(value: object, digits: int = 4) -> str:
    """Returns a value as the tables write it.

    Args:
        value: a bool, a number or anything with a text form.
        digits: significant digits of floating-point numbers, 1 or more.

    Returns:
        The text.

    Example:
        >>> number(0.123456), number(True), number(3), number(1e-12, 2)
        ('0.1235', 'yes', '3', '1e-12')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return str(value)


def _cell(cell: object) -> str:
    return cell.html if isinstance(cell, Markup) else html.escape(str(cell))


def _wrap(cell: object) -> str:
    """Keeps a short cell on one line, so that no number breaks at its sign.

    What a :class:`Markup` shows may be longer than its plain text: the sentence under a label must
    break, or it pushes the other columns out of sight.
    """
    shown = re.sub(r"<[^>]*>", "", cell.html) if isinstance(cell, Markup) else str(cell)
    return ";white-space:nowrap" if len(shown) <= _SHORT else ""


def _side(cells: Sequence[object]) -> str:
    plain = [str(cell) for cell in cells if str(cell) not in ("", "—")]
    return "right" if plain and all(_is_number(cell) for cell in plain) else "left"


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return True
