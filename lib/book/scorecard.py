"""The scorecard: every claim of every source, with the verdict that our records give it."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lib.book.claim_files import Claim, Source, load_sources
from lib.book.html import Markup, number, show, table_html, table_text
from lib.book.notebooks import chapter_path
from lib.book.records import read_record, records_path, results_path
from lib.book.rules import NOT_RUN, VERDICTS, describe, rule_hash, verdict
from lib.book.session import PROFILES, current_profile, find_root, inside_runner
from lib.book.verdicts import MISSING, STALE, chip

SITE = "https://what-the-student-learns.github.io/what-the-student-learns/"


@dataclass(frozen=True)
class Standing:
    """Where a claim stands at one profile.

    Attributes:
        claim: the claim.
        profile: the profile of the record.
        verdict: a verdict, or ``MISSING`` or ``STALE``.
        values: the values by check; empty where there is no valid record.
        note: what the page said about them.
        key: the content key of the chapter that was run, where the runner ran it.
    """

    claim: Claim
    profile: str
    verdict: str
    values: dict[str, float | bool]
    note: str = ""
    key: str | None = None


def standings(root: Path, source: Source, profile: str) -> list[Standing]:
    """Returns where each claim of a source stands at a profile.

    The record of the last run counts; where there is none, the one that the repository keeps.

    Args:
        root: the checkout.
        source: the source.
        profile: a profile, or ``"notebook"``.

    Returns:
        One standing per claim, in the order of the file.

    Raises:
        ValueError: naming the file, for a damaged record or one whose verdict does not follow from
            its values.
    """
    return [_standing(root, claim, profile) for claim in source.claims]


def recorded(root: Path, claim: Claim, without: str) -> list[Standing]:
    """Returns where a claim stands at the profiles other than ``without`` that have results."""
    found = []
    for profile in PROFILES:
        path = results_path(root, profile, claim.chapter)
        if profile != without and path.exists():
            standing = _from_record(root, path, claim, profile)
            found += [standing] if standing.verdict != MISSING else []
    return found


def _standing(root: Path, claim: Claim, profile: str) -> Standing:
    for place in (records_path, results_path):
        path = place(root, profile, claim.chapter)
        if path.exists():
            return _from_record(root, path, claim, profile)
    return Standing(claim, profile, MISSING, {})


def _from_record(root: Path, path: Path, claim: Claim, profile: str) -> Standing:
    record = read_record(path, root)
    entry = record["claims"].get(claim.id)
    name = path.relative_to(root).as_posix()
    if (record["chapter"], record["profile"]) != (claim.chapter, profile):
        raise ValueError(f"{name} is the record of another chapter or profile; delete it.")
    if entry is None:
        return Standing(claim, profile, MISSING, {})
    if entry["rule_hash"] != rule_hash(claim.checks):
        return Standing(claim, profile, STALE, {})
    follows = NOT_RUN
    if entry["values"]:
        follows = verdict(claim.checks, entry["values"], entry["paper_scale"])
    if entry["verdict"] != follows:
        raise ValueError(
            f"{name}: claim {claim.id!r} says {entry['verdict']!r}, but its values give "
            f"{follows!r}; delete the file and run the chapter again."
        )
    return Standing(claim, profile, follows, entry["values"], entry["note"], record["key"])


def show_summary() -> None:
    """Shows how many claims of each source have which verdict, at the profile of this page."""
    root, profile = find_root(), current_profile()
    sources = load_sources(root)
    counts = [Counter(s.verdict for s in standings(root, src, profile)) for src in sources]
    total = sum(counts, Counter())
    kept = [name for name in (*VERDICTS, MISSING, STALE) if name in VERDICTS or total[name]]
    columns = ["verdict", *(source.title.partition(", ")[0] for source in sources)]
    if len(sources) > 1:
        counts.append(total)
        columns.append("all")
    rows = [[chip(name), *(str(count[name]) for count in counts)] for name in kept]
    rows.append(["claims", *(str(count.total()) for count in counts)])
    show(table_html(columns, rows), table_text(columns, rows))


def show_claims(names: Sequence[str] | None = None) -> None:
    """Shows every claim, source by source: what it says, the paper's value, ours, rule and verdict.

    Args:
        names: which sources, by the names of their files in ``data/claims``; all by default.

    Raises:
        ValueError: where there is no such source.
    """
    root, profile = find_root(), current_profile()
    sources = {source.name: source for source in load_sources(root)}
    unknown = sorted(set(names or ()) - set(sources))
    if unknown:
        raise ValueError(f"names has {', '.join(unknown)}; the sources are {', '.join(sources)}.")
    columns = ["claim", "paper", "ours and the rule", "verdict"]
    for name in names or sources:
        rows = [_row(root, standing) for standing in standings(root, sources[name], profile)]
        title = sources[name].title
        head = f"<p><strong>{html.escape(title)}</strong></p>"
        show(head + table_html(columns, rows), f"{title}\n{table_text(columns, rows)}")


def _row(root: Path, standing: Standing) -> list[object]:
    claim = standing.claim
    every = [standing, *recorded(root, claim, without=standing.profile)]
    paper = claim.paper or "—"
    return [
        _claim_cell(root, claim),
        Markup(f"<small>{html.escape(paper)}</small>", paper),
        _joined([line for entry in every for line in _ours(entry, alone=len(every) == 1)]),
        _joined([_verdict_line(entry) for entry in every]),
    ]


def _joined(lines: list[Markup]) -> Markup:
    return Markup("<br>".join(m.html for m in lines), "; ".join(m.text for m in lines))


def _verdict_line(standing: Standing) -> Markup:
    mark = chip(standing.verdict)
    return Markup(
        f"{mark.html}<br><small>{standing.profile}</small>", f"{mark.text} ({standing.profile})"
    )


def _claim_cell(root: Path, claim: Claim) -> Markup:
    """Returns label, section and a link to the chapter if it is written, with what is claimed."""
    base = "" if inside_runner() else SITE
    anchor = "claim-" + claim.id.replace(".", "-")
    link = html.escape(claim.label)
    if chapter_path(root, claim.chapter).exists():
        link = f'<a href="{base}{claim.chapter}.html">{link}</a>'
    section = "" if claim.label.startswith("Section") else f"Section {html.escape(claim.section)}, "
    place = f"<small>{section}<code>{claim.id}</code></small>"
    says = f"<br><small>{html.escape(claim.says)}</small>"
    return Markup(f'<span id="{anchor}">{link}</span> {place}{says}', f"{claim.label} ({claim.id})")


def _ours(standing: Standing, alone: bool) -> list[Markup]:
    """Returns a line per check: its name, our value and the rule; the note where there is none."""
    prefix = "" if alone else f"{standing.profile}: "
    if not standing.values:
        words = prefix + (standing.note or standing.claim.why or "—")
        return [Markup(f"<small>{html.escape(words)}</small>", words)]
    lines = []
    for rule in standing.claim.checks:
        name = f"{prefix}{rule.name.replace('_', ' ')}"
        ours = f"{number(standing.values[rule.name])} (rule: {describe(rule)})"
        kept = f'<span style="white-space:nowrap">{html.escape(ours)}</span>'
        lines.append(Markup(f"<small>{html.escape(name)} {kept}</small>", f"{name} {ours}"))
    return lines
