"""Which checkout, chapter and profile the present page runs in.

The runner hands these to the kernel as environment variables; a reader's own notebook sets its
chapter through the bootstrap cell and runs at the profile ``notebook`` (the parameters that stand
on the page).
"""

from __future__ import annotations

import os
from pathlib import Path

PROFILES = ("quick", "cpu", "gpu", "paper")
NOTEBOOK = "notebook"


def find_root() -> Path:
    """Returns the root of the checkout: ``$BOOK_ROOT``, else the folder that holds this ``lib``.

    Returns:
        The absolute path.

    Raises:
        ValueError: where ``$BOOK_ROOT`` is no folder.

    Example:
        >>> (find_root() / "lib").is_dir()
        True
    """
    given = os.environ.get("BOOK_ROOT")
    root = Path(given).resolve() if given else Path(__file__).resolve().parents[2]
    if not root.is_dir():
        raise ValueError(
            f"BOOK_ROOT is {given!r}, which is no folder; set it to the root of a "
            "checkout of the book, or unset it."
        )
    return root


def current_profile() -> str:
    """Returns the profile that the runner chose, or ``"notebook"`` outside the runner."""
    return os.environ.get("BOOK_PROFILE") or NOTEBOOK


def inside_runner() -> bool:
    """Returns whether ``python -m lib.book`` executes this page, rather than a reader."""
    return bool(os.environ.get("BOOK_PROFILE"))


def current_chapter() -> str:
    """Returns the page's name under ``book/``, without suffix.

    Raises:
        ValueError: where neither the runner nor the bootstrap cell has named it.
    """
    chapter = os.environ.get("BOOK_CHAPTER")
    if not chapter:
        raise ValueError(
            "BOOK_CHAPTER is not set: which chapter is this? Run the page's first code cell "
            "(the bootstrap cell) before the others."
        )
    return chapter
