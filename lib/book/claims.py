"""What a page says to check a claim: predict, compute, show, then ``claims.check``."""

from __future__ import annotations

import html
import importlib.metadata
import json
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lib.book.claim_files import Claim, find_claim
from lib.book.data_used import data_used, forget_data, use_data
from lib.book.html import Markup, number, show
from lib.book.html import table_html as _html
from lib.book.html import table_text as _text
from lib.book.records import FORMAT, read_record, records_path, results_path, write_record
from lib.book.rules import NOT_RUN, Check, describe, passes, rule_hash, verdict
from lib.book.session import PROFILES, current_chapter, current_profile, find_root, inside_runner
from lib.book.verdicts import chip

__all__ = ["ClaimRecord", "check", "recorded_series", "skip", "use_data"]


@dataclass(frozen=True)
class ClaimRecord:
    """What ``check`` and ``skip`` found: values by check name, and the verdict."""

    claim: str
    chapter: str
    profile: str
    values: dict[str, float | bool]
    verdict: str
    paper_scale: bool
    note: str

    def _ipython_display_(self) -> None:
        """Shows nothing: the table is on the page already."""


def check(
    claim_id: str,
    values: Mapping[str, Any] | float | bool,
    paper_scale: bool = True,
    note: str = "",
    series: Mapping[str, Sequence[float]] | None = None,
) -> ClaimRecord:
    """Checks a claim, shows target, ours, rule and verdict, and writes the record.

    Args:
        claim_id: the claim, as in ``data/claims``.
        values: one number (or bool, for the rule ``holds``) per check of the claim, by name; a bare
            value where the claim has one check. Scalars of NumPy and PyTorch are welcome.
        paper_scale: whether this is the paper's own setting; ``False`` turns "reproduced" into
            "reproduced at smaller scale".
        note: a sentence for the record, for example what is smaller.
        series: short lists of finite numbers by name, for example the points of a curve; they are
            kept with the record and decide nothing. :func:`recorded_series` gives them back.

    Returns:
        The record.

    Raises:
        ValueError: for an unknown claim, a claim of another chapter, missing or unknown checks, a
            value that is no number, or a series that holds anything but finite numbers.
    """
    claim = _claim_of_this_chapter(claim_id)
    if not isinstance(paper_scale, bool):
        raise ValueError(f"{claim_id}: paper_scale is {paper_scale!r}; it must be True or False.")
    numbers = _values(claim, values)
    found = verdict(claim.checks, numbers, paper_scale)
    return _finish(claim, numbers, found, paper_scale, note, _lists(claim_id, series or {}))


def skip(claim_id: str, reason: str) -> ClaimRecord:
    """Records that a claim is not run at this profile.

    Args:
        claim_id: the claim, as in ``data/claims``.
        reason: why, in a sentence; it is shown.

    Returns:
        The record, with the verdict "not run at this profile".

    Raises:
        ValueError: for an unknown claim, a claim of another chapter, or an empty reason.
    """
    claim = _claim_of_this_chapter(claim_id)
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"{claim_id}: reason is {reason!r}; say why it is not run.")
    return _finish(claim, {}, NOT_RUN, False, reason)


def recorded_series(claim_id: str) -> dict[str, dict[str, list[float]]]:
    """Returns the series that runs at other profiles have recorded for a claim of this page.

    Args:
        claim_id: the claim, as in ``data/claims``.

    Returns:
        By profile, the lists that ``check`` was given there; profiles without a record, with
        another rule or without series are left out.

    Raises:
        ValueError: for an unknown claim or a claim of another chapter.
    """
    entries = _recorded(_claim_of_this_chapter(claim_id))
    return {name: entry["series"] for name, entry in entries.items() if entry.get("series")}


def _claim_of_this_chapter(claim_id: str) -> Claim:
    claim, chapter = find_claim(find_root(), claim_id), current_chapter()
    if claim.chapter != chapter:
        raise ValueError(
            f"claim {claim_id!r} belongs to the chapter {claim.chapter!r}, and this is "
            f"{chapter!r}; check it there, or correct its 'chapter' in data/claims."
        )
    return claim


def _values(claim: Claim, values: Any) -> dict[str, float | bool]:
    names = [rule.name for rule in claim.checks]
    if not isinstance(values, Mapping):
        if len(names) > 1:
            raise ValueError(
                f"{claim.id}: values is {values!r}, but the claim has the checks "
                f"{', '.join(names)}; hand in a dict with one value for each."
            )
        values = {names[0]: values}
    if set(values) != set(names):
        raise ValueError(
            f"{claim.id}: values has {', '.join(map(str, sorted(values)))}; "
            f"the claim's checks are {', '.join(names)}, no more and no less."
        )
    return {rule.name: _scalar(claim.id, rule, values[rule.name]) for rule in claim.checks}


def _lists(claim_id: str, series: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    lists = {name: [float(value) for value in values] for name, values in series.items()}
    for name, values in lists.items():
        if not values or not all(map(math.isfinite, values)):
            raise ValueError(f"{claim_id}: the series {name!r} is {values}; use finite numbers.")
    return lists


def _scalar(claim_id: str, rule: Check, value: Any) -> float | bool:
    plain = value.item() if callable(getattr(value, "item", None)) else value
    if rule.rule == "holds":
        if not isinstance(plain, bool):
            raise ValueError(f"{claim_id}: {rule.name} is {value!r}; 'holds' needs a bool.")
        return plain
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise ValueError(
            f"{claim_id}: {rule.name} is {value!r}; the rule {rule.rule!r} needs one number."
        )
    return float(plain)


def _finish(
    claim: Claim,
    values: dict[str, float | bool],
    found: str,
    paper_scale: bool,
    note: str,
    series: Mapping[str, list[float]] | None = None,
) -> ClaimRecord:
    record = ClaimRecord(
        claim.id, claim.chapter, current_profile(), values, found, paper_scale, note.strip()
    )
    _store(claim, record, dict(series or {}))
    _show(claim, record)
    return record


def _store(claim: Claim, record: ClaimRecord, series: dict[str, list[float]]) -> None:
    """Adds the record to the chapter's file; while the runner is at work, to its waiting place."""
    root = find_root()
    path = records_path(root, record.profile, record.chapter)
    path = root / os.environ.get("BOOK_RECORD", path.relative_to(root))
    entries = read_record(path, root)["claims"] if path.exists() else {}
    entries[claim.id] = {
        "values": record.values,
        "paper": claim.paper,
        "targets": {rule.name: describe(rule) for rule in claim.checks},
        "rules": {rule.name: rule.rule for rule in claim.checks},
        "rule_hash": rule_hash(claim.checks),
        "verdict": record.verdict,
        "paper_scale": record.paper_scale,
        "note": record.note,
    } | ({"series": series} if series else {})
    parameters = os.environ.get("BOOK_PARAMETERS")
    content = {
        "format": FORMAT,
        "chapter": record.chapter,
        "profile": record.profile,
        "key": os.environ.get("BOOK_KEY"),
        "parameters": json.loads(parameters) if parameters else None,
        "data": data_used(),
        "versions": _versions(),
        "device": _device(),
        "claims": entries,
    }
    write_record(path, content)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("torch", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _device() -> str:
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch and torch.cuda.is_available() else "cpu"


def _show(claim: Claim, record: ClaimRecord) -> None:
    recorded = _recorded(claim)
    columns = ["check", "target", "ours", *(f"ours, {name}" for name in recorded), "verdict"]
    rows = []
    for rule in claim.checks:
        ours = record.values.get(rule.name)
        seen = [_seen(entry["values"].get(rule.name)) for entry in recorded.values()]
        met = "—" if ours is None else ("passes" if passes(rule, ours) else "fails")
        name = rule.name.replace("_", " ")
        label = Markup(f"{name}<br><small>{html.escape(rule.meaning)}</small>", name)
        rows.append([label, describe(rule), _seen(ours), *seen, met])
    elsewhere = "; ".join(f"recorded at {p}: {entry['verdict']}" for p, entry in recorded.items())
    head = f"{claim.label} ({claim.id})" + (f", paper: {claim.paper}" if claim.paper else "")
    tail = ". ".join(part for part in (record.note.rstrip("."), elsewhere) if part)
    verdict_chip = chip(record.verdict)
    text = f"{head}: {verdict_chip.text}\n{_text(columns, rows)}" + (f"\n{tail}." if tail else "")
    markup = (
        f"<p><strong>{html.escape(head)}</strong> {verdict_chip.html}</p>{_html(columns, rows)}"
    )
    show(markup + (f"<p><small>{html.escape(tail)}.</small></p>" if tail else ""), text)


def _recorded(claim: Claim) -> dict[str, dict]:
    """Returns what the repository has recorded for this claim at profiles other than this one."""
    root, entries = find_root(), {}
    for profile in PROFILES:
        path = results_path(root, profile, claim.chapter)
        if profile == current_profile() or not path.exists():
            continue
        entry = read_record(path, root)["claims"].get(claim.id)
        if entry and entry["rule_hash"] == rule_hash(claim.checks):
            entries[profile] = entry
    return entries


def _seen(value: float | bool | None) -> str:
    return "—" if value is None else number(value)


def start_chapter() -> None:
    """Forgets what an earlier run noted: its data and, outside the runner, its record."""
    forget_data()
    if not inside_runner():
        records_path(find_root(), current_profile(), current_chapter()).unlink(missing_ok=True)
