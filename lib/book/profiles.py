"""The profiles: per chapter, the parameters that differ from the paper's setting."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.book.notebooks import chapter_path, chapters, parameters, read_notebook
from lib.book.session import PROFILES
from lib.book.strict_yaml import load_yaml

MINUTES = "minutes"


@dataclass(frozen=True)
class Setting:
    """What a profile says about a chapter.

    Attributes:
        changes: the parameters that it changes, by name.
        minutes: how long the chapter takes, where somebody has noted it.
    """

    changes: dict[str, Any]
    minutes: float | None


def read_profiles(root: Path) -> dict[str, dict[str, Setting]]:
    """Returns ``book/profiles.yml`` as it stands, without a look at the notebooks.

    Args:
        root: the checkout.

    Returns:
        Settings by profile and chapter; every profile is there.

    Raises:
        ValueError: for an unknown profile or a malformed entry.
    """
    raw = load_yaml(root / "book" / "profiles.yml", root)
    if not isinstance(raw, dict):
        raise ValueError(f"book/profiles.yml must be a mapping with {', '.join(PROFILES)}.")
    for profile in raw:
        check_profile(profile, "book/profiles.yml: profile")
    return {
        profile: {
            chapter: _setting(entry, f"book/profiles.yml: {profile}: {chapter}")
            for chapter, entry in (raw.get(profile) or {}).items()
        }
        for profile in PROFILES
    }


def check_profile(profile: Any, where: str = "profile") -> None:
    """Refuses a profile that does not exist.

    Example:
        >>> check_profile("fast")
        Traceback (most recent call last):
        ValueError: profile: saw 'fast'; allowed: quick, cpu, gpu, paper.
    """
    if profile not in PROFILES:
        raise ValueError(f"{where}: saw {profile!r}; allowed: {', '.join(PROFILES)}.")


def load_profiles(root: Path, only: Collection[str] | None = None) -> dict[str, dict[str, Setting]]:
    """Returns the profiles after checking every chapter and parameter against the notebooks.

    Args:
        root: the checkout.
        only: the chapters whose notebooks are read for it; by default every one that is named.

    Returns:
        Settings by profile and chapter.

    Raises:
        ValueError: for an unknown profile, chapter or parameter, or a value of another type than
            the notebook's; it names what is allowed.
    """
    profiles, known = read_profiles(root), chapters(root)
    own: dict[str, dict[str, Any]] = {}
    for profile, settings in profiles.items():
        for chapter, setting in settings.items():
            where = f"book/profiles.yml: {profile}: {chapter}"
            if chapter not in known:
                allowed = ", ".join(known) or "none yet"
                raise ValueError(f"{where}: unknown chapter; the notebooks of _toc.yml: {allowed}.")
            if only is not None and chapter not in only:
                continue
            if chapter not in own:
                notebook = read_notebook(chapter_path(root, chapter))
                own[chapter] = parameters(notebook, f"book/{chapter}.ipynb")
            _check_changes(setting.changes, own[chapter], where)
    return profiles


def _setting(entry: Any, where: str) -> Setting:
    entry = {} if entry is None else entry
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: saw {entry!r}; it must map parameters to values.")
    minutes = entry.get(MINUTES)
    plain = isinstance(minutes, int | float) and not isinstance(minutes, bool)
    if minutes is not None and not (plain and minutes > 0):
        raise ValueError(f"{where}: minutes is {minutes!r}; it must be a number above 0.")
    changes = {name: value for name, value in entry.items() if name != MINUTES}
    try:
        json.dumps(changes, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}; use plain numbers, texts, lists or null.") from None
    return Setting(changes, None if minutes is None else float(minutes))


def _check_changes(changes: dict[str, Any], own: dict[str, Any], where: str) -> None:
    if MINUTES in own:
        raise ValueError(f"{where}: the notebook's parameter 'minutes' needs another name.")
    for name, value in changes.items():
        if name not in own:
            raise ValueError(
                f"{where}: unknown parameter {name!r}; its parameters cell has: "
                f"{', '.join(own) or 'none'}."
            )
        if not _same_kind(value, own[name]):
            raise ValueError(
                f"{where}: {name} is {value!r}, and {own[name]!r} in the notebook; give it the "
                "same type."
            )


def _same_kind(value: Any, own: Any) -> bool:
    if value is None or own is None:
        return True
    number, sequence = (int, float), (list, tuple)
    for kind in (bool, number, sequence):
        if isinstance(own, kind) or isinstance(value, kind):
            return isinstance(own, kind) and isinstance(value, kind)
    return type(value) is type(own)
