"""The scorecard on the command line, and the check that keeps it honest."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from lib.book.claim_files import load_sources
from lib.book.html import table_text
from lib.book.keys import chapter_key, key_components
from lib.book.notebooks import chapter_path
from lib.book.profiles import check_profile, read_profiles
from lib.book.rules import NOT_RUN, meets
from lib.book.scorecard import Standing, standings
from lib.book.verdicts import MISSING, OUTDATED, chip


def print_scorecard(root: Path, profile: str = "quick", check: bool = False) -> int:
    """Prints every claim's verdict and, on demand, decides whether all are as expected.

    Args:
        root: the checkout.
        profile: which records to read.
        check: whether a missing or unexpected verdict is a failure.

    Returns:
        0, or 1 where ``check`` finds a difference.

    Raises:
        ValueError: for malformed claims or a damaged record.
    """
    check_profile(profile)
    sources = load_sources(root)
    found = [s for source in sources for s in standings(root, source, profile)]
    found = dated(root, found)
    rows = [
        [s.claim.id, s.claim.label, s.claim.expect, chip(s.verdict).text, s.claim.chapter]
        for s in found
    ]
    if rows:
        print(table_text(["claim", "label", "expected", "found", "chapter"], rows))
    due = [s for s in found if not awaits_its_chapter(root, s)]
    differences = [_difference(s) for s in due if not meets(s.claim.expect, s.verdict)]
    met = len(due) - len(differences)
    print(f"\n{met} of {len(due)} claims stand as expected at profile {profile}")
    if len(due) < len(found):
        print(f"claims that wait for chapters not written yet: {len(found) - len(due)}")
    if check:
        for line in differences:
            print(line, file=sys.stderr)
    return 1 if check and differences else 0


def awaits_its_chapter(root: Path, standing: Standing) -> bool:
    """Returns whether a claim is stated, and said to be not run, before its chapter is written.

    Args:
        root: the checkout.
        standing: where the claim stands.

    Returns:
        Whether it has no record, expects none, and its chapter does not exist.
    """
    claim = standing.claim
    written = chapter_path(root, claim.chapter).exists()
    return standing.verdict == MISSING and claim.expect == NOT_RUN and not written


def dated(root: Path, found: list[Standing]) -> list[Standing]:
    """Returns the standings, with ``OUTDATED`` for each whose chapter has changed since its run.

    Args:
        root: the checkout.
        found: standings at any profile.

    Returns:
        As many standings, in the same order.
    """
    places = {(s.claim.chapter, s.profile) for s in found if s.verdict != MISSING}
    keys = {place: present_key(root, *place) for place in places}
    return [
        s
        if s.verdict == MISSING or s.key == keys[s.claim.chapter, s.profile]
        else replace(s, verdict=OUTDATED)
        for s in found
    ]


def present_key(root: Path, chapter: str, profile: str) -> str | None:
    """Returns the key that a record of this chapter would carry if it were run now.

    Args:
        root: the checkout.
        chapter: the page under ``book/``, without suffix.
        profile: the profile.

    Returns:
        The key, or ``None`` where there is no such notebook.
    """
    if not chapter_path(root, chapter).exists():
        return None
    setting = read_profiles(root)[profile].get(chapter)
    changes = setting.changes if setting else {}
    return chapter_key(key_components(root, chapter, profile, changes))


def _difference(standing: Standing) -> str:
    claim = standing.claim
    return (
        f"{claim.id} ({claim.label}, {claim.chapter}): expected {claim.expect!r}, "
        f"found {standing.verdict!r} at profile {standing.profile}"
    )
