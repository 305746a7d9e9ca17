"""The record of a chapter: what it measured, under which parameters, and the verdicts.

A record holds no clock time, so two executions of the same sources give the same bytes; it carries
a checksum of itself, so a changed byte is noticed and the file refused by name.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from lib.book.files import canonical_json, digest, write_atomically

FORMAT = 1
_FIELDS = {
    "format",
    "chapter",
    "profile",
    "key",
    "parameters",
    "data",
    "versions",
    "device",
    "claims",
}
_CLAIM_FIELDS = {"paper", "values", "targets", "rules", "rule_hash"}
_CLAIM_FIELDS |= {"verdict", "paper_scale", "note"}


def records_path(root: Path, profile: str, chapter: str) -> Path:
    """Returns where a build keeps the record of a chapter."""
    return root / "_build" / "records" / profile / f"{chapter}.json"


def results_path(root: Path, profile: str, chapter: str) -> Path:
    """Returns where the repository keeps the promoted record of a chapter."""
    return root / "data" / "results" / profile / f"{chapter}.json"


def write_record(path: Path, record: dict) -> None:
    """Writes a record with its checksum, whole or not at all.

    Args:
        path: the JSON file.
        record: the fields of a record; numbers may be NaN or infinite.
    """
    plain = encode_numbers({key: value for key, value in record.items() if key != "checksum"})
    whole = plain | {"checksum": digest(plain)}
    canonical_json(whole)
    text = json.dumps(whole, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text + "\n")


def read_record(path: Path, root: Path) -> dict:
    """Reads a record and refuses a damaged one.

    Args:
        path: the JSON file.
        root: the checkout, for the names in errors.

    Returns:
        The record, without its checksum.

    Raises:
        ValueError: naming the file, where it is no JSON, lacks a field, has another format or does
            not match its checksum.
    """
    name = path.relative_to(root).as_posix()
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(f"{name} is no readable record ({error}); {_CURE}") from None
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise ValueError(f"{name} is no record of format {FORMAT}; {_CURE}")
    checksum = whole.pop("checksum", None)
    if checksum != digest(whole):
        raise ValueError(f"{name} does not match its checksum: it was changed or damaged; {_CURE}")
    missing = sorted(_FIELDS - set(whole))
    claims = whole.get("claims")
    if missing or not isinstance(claims, dict):
        raise ValueError(f"{name} lacks {', '.join(missing) or 'its claims'}; {_CURE}")
    for claim_id, claim in claims.items():
        if not isinstance(claim, dict) or _CLAIM_FIELDS - set(claim):
            raise ValueError(f"{name}: the record of claim {claim_id!r} is incomplete; {_CURE}")
    for claim in claims.values():
        claim["values"] = {key: decode_number(value) for key, value in claim["values"].items()}
    return whole


_CURE = "delete it and run the chapter again (python -m lib.book run)."


def encode_numbers(value: Any) -> Any:
    """Returns ``value`` with every NaN and infinity spelt as text, which JSON can hold.

    Example:
        >>> encode_numbers({"a": [float("nan"), float("-inf"), 1.5]})
        {'a': ['nan', '-inf', 1.5]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: encode_numbers(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [encode_numbers(entry) for entry in value]
    return value


def decode_number(value: Any) -> Any:
    """Returns the number behind a spelt NaN or infinity, and anything else as it is.

    Example:
        >>> decode_number("-inf"), decode_number(1.5), decode_number(True)
        (-inf, 1.5, True)
    """
    return float(value) if value in ("nan", "inf", "-inf") else value
