"""Which data a page used: the page notes it, records and figures show it."""

from __future__ import annotations

_USED: dict[str, dict] = {}


def use_data(name: str, source: str, sha256: str | None = None) -> None:
    """Notes that this page uses a data set.

    Args:
        name: the data set, for example ``"mnist"``.
        source: where this copy came from, for example ``"embedded"`` or a host; no local path.
        sha256: the hash of the file, where there is one.

    Raises:
        ValueError: where ``name`` or ``source`` is empty.
    """
    for field, value in (("name", name), ("source", source)):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"use_data: {field} is {value!r}; it must be text and not empty.")
    _USED[name] = {"name": name, "source": source, "sha256": sha256}


def data_used() -> list[dict]:
    """Returns the data noted so far: the ``name``, ``source`` and ``sha256`` of each."""
    return [dict(_USED[name]) for name in sorted(_USED)]


def forget_data() -> None:
    """Forgets what was noted: a page starts with nothing."""
    _USED.clear()
