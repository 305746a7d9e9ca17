"""The claims of the sources, read from ``data/claims/*.yml`` and checked field by field."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.book.rules import NOT_REPRODUCED, NOT_RUN, REPRODUCED, RULES, TREND, VERDICTS, Check
from lib.book.strict_yaml import load_yaml

KINDS = (
    "theorem",
    "lemma",
    "corollary",
    "proposition",
    "figure",
    "table",
    "example",
    "statement",
)
_ID = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
_NAME = re.compile(r"[a-z0-9]+([._][a-z0-9]+)*")
_CHAPTER = re.compile(r"[a-z0-9]+([-/][a-z0-9]+)*")


@dataclass(frozen=True)
class Claim:
    """One statement of a source, and the rules that decide it. Fields as in the YAML files."""

    id: str
    kind: str
    label: str
    section: str
    chapter: str
    says: str
    paper: str | None
    expect: str
    why: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Source:
    """One source (a paper or a page) with all its claims, in the order of the file."""

    name: str
    title: str
    citation: str
    claims: tuple[Claim, ...]


def load_sources(root: Path) -> tuple[Source, ...]:
    """Returns every source under ``data/claims``, sorted by file name.

    Args:
        root: the checkout.

    Returns:
        The sources; claim ids are unique over all of them.

    Raises:
        ValueError: naming the file, the claim and the reason, for anything outside the schema.
    """
    sources, seen = [], {}
    for path in sorted((root / "data" / "claims").glob("*.yml")):
        source = _source(load_yaml(path, root), path.relative_to(root).as_posix(), path.stem)
        for claim in source.claims:
            if claim.id in seen:
                raise ValueError(
                    f"{path.relative_to(root).as_posix()}: claim {claim.id!r} stands in "
                    f"{seen[claim.id]} too; ids are unique over all sources."
                )
            seen[claim.id] = path.relative_to(root).as_posix()
        sources.append(source)
    return tuple(sources)


def find_claim(root: Path, claim_id: str) -> Claim:
    """Returns the claim with this id.

    Args:
        root: the checkout.
        claim_id: for example ``"pl.fig3"``.

    Returns:
        The claim.

    Raises:
        ValueError: where no source has it; the error lists the nearest ids.
    """
    claims = {claim.id: claim for source in load_sources(root) for claim in source.claims}
    if claim_id not in claims:
        import difflib

        near = difflib.get_close_matches(claim_id, claims, n=5, cutoff=0.3)
        raise ValueError(
            f"claim {claim_id!r} stands in no file of data/claims; "
            f"nearest: {', '.join(near) if near else 'none'}."
        )
    return claims[claim_id]


def _source(raw: Any, where: str, stem: str) -> Source:
    _keys(raw, where, required=("source", "title", "citation", "claims"))
    for field in ("source", "title", "citation"):
        _text(raw[field], f"{where}: {field}")
    if raw["source"] != stem:
        raise ValueError(
            f"{where}: source is {raw['source']!r}; it must be the file's name {stem!r}."
        )
    if not isinstance(raw["claims"], list) or not raw["claims"]:
        raise ValueError(f"{where}: claims must be a list with at least one claim.")
    claims = []
    for position, entry in enumerate(raw["claims"], 1):
        claims.append(_claim(entry, where, position))
        if claims[-1].id in {claim.id for claim in claims[:-1]}:
            raise ValueError(
                f"{where}: claim {claims[-1].id!r} stands there twice; ids are unique."
            )
    return Source(raw["source"], raw["title"].strip(), raw["citation"], tuple(claims))


def _claim(raw: Any, where: str, position: int) -> Claim:
    found = raw.get("id") if isinstance(raw, dict) else None
    here = f"{where}: claim {found!r}" if isinstance(found, str) else f"{where}: claim {position}"
    required = ("id", "kind", "label", "section", "chapter", "says", "paper", "checks")
    _keys(raw, here, required, optional=("expect", "why"))
    for field in ("id", "kind", "label", "section", "chapter", "says"):
        _text(raw[field], f"{here}: {field}")
    _match(_ID, raw["id"], f"{here}: id", "lower-case words joined by . or -")
    _match(_CHAPTER, raw["chapter"], f"{here}: chapter", "a page's path under book/, no suffix")
    _one_of(raw["kind"], KINDS, f"{here}: kind")
    expect, why = raw.get("expect", REPRODUCED), raw.get("why", "")
    _one_of(expect, VERDICTS, f"{here}: expect")
    if expect in (NOT_REPRODUCED, TREND, NOT_RUN):
        _text(why, f"{here}: why (required when expect is {expect!r})")
    elif why:
        _text(why, f"{here}: why")
    if raw["paper"] is not None and not isinstance(raw["paper"], str | int | float):
        raise ValueError(f"{here}: paper is {raw['paper']!r}; it must be text, a number or null.")
    checks = _checks(raw["checks"], here)
    paper = None if raw["paper"] is None else str(raw["paper"]).strip()
    names = {field: raw[field].strip() for field in ("kind", "label", "section", "chapter", "says")}
    return Claim(id=raw["id"], paper=paper, expect=expect, why=why.strip(), checks=checks, **names)


def _checks(raw: Any, here: str) -> tuple[Check, ...]:
    if not isinstance(raw, list) or not raw:
        raise ValueError(f"{here}: checks must be a list with at least one check.")
    checks = tuple(_check(entry, here, position) for position, entry in enumerate(raw, 1))
    names = [check.name for check in checks]
    if len(set(names)) < len(names):
        raise ValueError(f"{here}: its checks are named {names}; names must differ.")
    return checks


def _check(raw: Any, here: str, position: int) -> Check:
    found = raw.get("name") if isinstance(raw, dict) else None
    here = f"{here}: check {found!r}" if isinstance(found, str) else f"{here}: check {position}"
    rule = raw.get("rule") if isinstance(raw, dict) else None
    bounds = {"holds": (), "within": ("target", "tolerance")}.get(rule, ("bound",))
    _keys(
        raw, here, ("name", "rule", "meaning"), optional=("trend", "bound", "target", "tolerance")
    )
    _one_of(rule, RULES, f"{here}: rule")
    _keys(raw, here, ("name", "rule", "meaning", *bounds), optional=("trend",))
    _match(_NAME, raw["name"], f"{here}: name", "lower-case words joined by _ or .")
    _text(raw["meaning"], f"{here}: meaning")
    trend = raw.get("trend", False)
    if not isinstance(trend, bool):
        raise ValueError(f"{here}: trend is {trend!r}; it must be true or false.")
    return Check(raw["name"], rule, _bound(raw, rule, here), trend, raw["meaning"].strip())


def _bound(raw: dict, rule: str, here: str) -> float | tuple[float, float] | None:
    if rule == "holds":
        return None
    if rule == "within":
        target = _number(raw["target"], f"{here}: target")
        tolerance = _number(raw["tolerance"], f"{here}: tolerance")
        if tolerance < 0:
            raise ValueError(f"{here}: tolerance is {tolerance}; it must be 0 or more.")
        return target, tolerance
    if rule != "between":
        return _number(raw["bound"], f"{here}: bound")
    bound = raw["bound"]
    if not isinstance(bound, list) or len(bound) != 2:
        raise ValueError(f"{here}: bound is {bound!r}; 'between' needs [low, high].")
    low, high = (_number(value, f"{here}: bound") for value in bound)
    if low > high:
        raise ValueError(f"{here}: bound is {bound!r}; low must not be above high.")
    return low, high


def _keys(raw: Any, here: str, required: tuple, optional: tuple = ()) -> None:
    if not isinstance(raw, dict):
        raise ValueError(f"{here}: saw {raw!r}; it must be a mapping with {', '.join(required)}.")
    for missing in [key for key in required if key not in raw]:
        raise ValueError(f"{here}: {missing!r} is missing.")
    for unknown in [key for key in raw if key not in required + optional]:
        allowed = ", ".join(required + optional)
        raise ValueError(f"{here}: {unknown!r} is not allowed here; allowed: {allowed}.")


def _text(value: Any, here: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"{here}: saw {value!r}; it must be text (quote it in YAML) and not empty."
        )


def _match(pattern: re.Pattern, value: Any, here: str, allowed: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{here}: saw {value!r}; allowed: {allowed}.")


def _one_of(value: Any, allowed: tuple, here: str) -> None:
    if value not in allowed:
        raise ValueError(f"{here}: saw {value!r}; allowed: {', '.join(allowed)}.")


def _number(value: Any, here: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{here}: saw {value!r}; it must be a finite number.")
    return float(value)
