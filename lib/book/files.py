"""Files written whole or not at all, and the hashes of what they hold."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Writes ``text`` to ``path`` so that a reader sees the old file or the new one, never half.

    Args:
        path: the file to write; missing folders are made.
        text: its whole content, stored as UTF-8.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder) / "a" / "b.txt", "one")
        ...     print((Path(folder) / "a" / "b.txt").read_text())
        one
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def canonical_json(value: Any) -> str:
    """Returns the one spelling of ``value`` as JSON: sorted keys, no spaces, finite numbers only.

    Args:
        value: anything that JSON can hold.

    Returns:
        The text; equal values give equal text.

    Raises:
        ValueError: where a number is NaN or infinite.

    Example:
        >>> canonical_json({"b": 1, "a": [True, None]})
        '{"a":[true,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """Returns the sha256 of bytes, of text, or of the canonical JSON of anything else.

    Args:
        value: ``bytes``, ``str``, or a JSON value.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> digest(b"")[:8], digest({"a": 1}) == digest('{"a":1}')
        ('e3b0c442', True)
    """
    if isinstance(value, bytes):
        data = value
    else:
        data = (value if isinstance(value, str) else canonical_json(value)).encode()
    return hashlib.sha256(data).hexdigest()
