"""Progress of long loops: seen by a reader and by the runner, absent from the built page."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
_EVERY = 2.0


def track(iterable: Iterable[Item], label: str) -> Iterator[Item]:
    """Yields every item and, once the loop has taken 2 seconds, says how far it is.

    In a reader's notebook one line is rewritten every 2 seconds or after every slower step. Under
    the runner the line goes to the runner's "still running" message, so that a built page holds no
    clock time.

    Args:
        iterable: what to loop over.
        label: what a step is, a few words.

    Yields:
        The items, unchanged.

    Example:
        >>> list(track(range(3), "steps"))
        [0, 1, 2]
    """
    total = f" of {len(iterable)}" if isinstance(iterable, Sized) else ""
    began = told = time.monotonic()
    done, spoke = 0, False
    for item in iterable:
        yield item
        done, now = done + 1, time.monotonic()
        if now - told >= _EVERY:
            told, spoke = now, True
            _tell(f"{label}: {done}{total}, {now - began:.0f} s")
    if spoke:
        _tell(f"{label}: {done}{total}, {time.monotonic() - began:.0f} s", last=True)


def _tell(line: str, last: bool = False) -> None:
    channel = os.environ.get("BOOK_PROGRESS")
    if channel:
        Path(channel).write_text("" if last else line, encoding="utf-8")
    else:
        print(f"\r{line}", end="\n" if last else "", flush=True)
