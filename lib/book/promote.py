"""Keeps the records of a long run in the repository, with where and how they came about."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
from pathlib import Path

from lib.book.profiles import check_profile
from lib.book.records import read_record, records_path, results_path, write_record
from lib.book.report import present_key
from lib.book.runner import core_count, timings_path


def promote(root: Path, profile: str, chapters: list[str]) -> int:
    """Copies records of a run to ``data/results``, adding commit, date, machine and seconds.

    Args:
        root: the checkout.
        profile: ``cpu``, ``gpu`` or ``paper``; ``quick`` is rebuilt at every build.
        chapters: which; all that have a record, where the list is empty.

    Returns:
        0.

    Raises:
        ValueError: for the profile ``quick``, a chapter without a record, a damaged record, or one
            whose sources have changed since the run. Nothing is written then.
    """
    check_profile(profile)
    if profile == "quick":
        raise ValueError(
            "profile is 'quick', which every build runs again; allowed: cpu, gpu, paper."
        )
    base = root / "_build" / "records" / profile
    names = sorted(
        path.relative_to(base).with_suffix("").as_posix() for path in base.rglob("*.json")
    )
    if not names:
        raise ValueError(f"there is no record; run 'python -m lib.book run --profile {profile}'.")
    for chapter in chapters:
        if chapter not in names:
            raise ValueError(
                f"{chapter!r} has no record at {profile}; there are: {', '.join(names)}."
            )
    chosen = {chapter: _fresh_record(root, profile, chapter) for chapter in chapters or names}
    shared = _provenance(root)
    seconds = json.loads(timings_path(root, profile).read_text(encoding="utf-8"))
    for chapter, record in chosen.items():
        path = results_path(root, profile, chapter)
        write_record(path, record | {"provenance": shared | seconds.get(chapter, {})})
        print(f"recorded {path.relative_to(root).as_posix()}")
    return 0


def _fresh_record(root: Path, profile: str, chapter: str) -> dict:
    path = records_path(root, profile, chapter)
    record = read_record(path, root)
    if record["key"] != present_key(root, chapter, profile):
        raise ValueError(
            f"{path.relative_to(root).as_posix()} comes from other sources than those here; run "
            f"'python -m lib.book run --profile {profile} {chapter}' again."
        )
    return record


def _provenance(root: Path) -> dict:
    """Returns commit, whether other files differed from it, date and machine."""
    changes = _git(root, "status", "--porcelain", "--", ".", ":!data/results")
    return {
        "commit": _git(root, "rev-parse", "HEAD") or "no commit",
        "dirty": bool(changes),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {"processor": _processor(), "cores": core_count(), "system": platform.system()},
    }


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
