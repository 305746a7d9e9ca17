"""Clean tables for the pages, with a plain-text fallback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lib.book import html


def show(
    rows: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]],
    columns: Sequence[str] | None = None,
    digits: int = 3,
) -> None:
    """Shows a table.

    Args:
        rows: a list of dicts, one per row, or a dict of equally long columns. Values are numbers,
            texts, or scalars of NumPy and PyTorch; ``None`` shows as a dash.
        columns: which columns, in which order; by default all, in the order of the first row.
        digits: significant digits of floating-point numbers, 1 or more.

    Raises:
        ValueError: for an empty table, columns of different lengths, or a column that is not there.

    Example:
        >>> show([{"n": 1, "risk": 0.25}, {"n": 10, "risk": 1 / 3}])
         n   risk
         1   0.25
        10  0.333
    """
    if not isinstance(digits, int) or digits < 1:
        raise ValueError(f"digits is {digits!r}; it must be a whole number, 1 or more.")
    listed = _as_rows(rows)
    if not listed:
        raise ValueError("rows is empty; a table needs at least one row.")
    names = list(columns) if columns is not None else list(listed[0])
    for position, row in enumerate(listed):
        missing = [name for name in names if name not in row]
        if missing:
            raise ValueError(
                f"row {position} has no {', '.join(missing)}; it has {', '.join(map(str, row))}."
            )
    cells = [[_text(row[name], digits) for name in names] for row in listed]
    heads = [str(name) for name in names]
    html.show(html.table_html(heads, cells), html.table_text(heads, cells))


def _as_rows(rows: Any) -> list[Mapping[str, Any]]:
    if not isinstance(rows, Mapping):
        return list(rows)
    lengths = {name: len(column) for name, column in rows.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"rows has columns of different lengths: {lengths}.")
    return [dict(zip(rows, cells, strict=True)) for cells in zip(*rows.values(), strict=True)]


def _text(value: Any, digits: int) -> str:
    if value is None:
        return "—"
    plain = value.item() if callable(getattr(value, "item", None)) else value
    return html.number(plain, digits)
