"""``claims.check`` and ``claims.skip`` as a page calls them, and the records that they leave."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from lib.book import claims
from lib.book.records import read_record, records_path, results_path, write_record

TWO = """
source: two
title: Two checks
citation: two2020
claims:
  - id: two.holds
    kind: lemma
    label: Lemma 2
    section: "2"
    chapter: part/sum
    says: It holds.
    paper: null
    checks: [{name: ok, rule: holds, meaning: whether it holds}]
  - id: two.both
    kind: figure
    label: Figure 2
    section: "2"
    chapter: part/sum
    says: Both.
    paper: "-1"
    checks:
      - {name: slope, rule: below, bound: 0, trend: true, meaning: a slope}
      - {name: gap, rule: at-most, bound: 0.1, meaning: a gap}
  - id: two.elsewhere
    kind: lemma
    label: Lemma 3
    section: "2"
    chapter: part/plain
    says: It is checked elsewhere.
    paper: null
    checks: [{name: ok, rule: holds, meaning: whether it holds}]
"""


@pytest.fixture
def page(book, monkeypatch):
    """Returns the path of the record that this page writes at profile quick."""
    book.write("data/claims/two.yml", TWO)
    monkeypatch.setenv("BOOK_CHAPTER", "part/sum")
    monkeypatch.setenv("BOOK_PROFILE", "quick")
    claims.start_chapter()
    return records_path(book.root, "quick", "part/sum")


def test_a_check_shows_and_records_target_value_and_verdict(page, book, capsys):
    record = claims.check("two.both", {"slope": np.float32(-1), "gap": np.int64(0)}, note="a note")
    assert record.verdict == "reproduced"
    shown = capsys.readouterr().out
    for part in ("Figure 2", "paper: -1", "✓ reproduced", "≤ 0.1", "passes", "a note"):
        assert part in shown
    entry = read_record(page, book.root)["claims"]["two.both"]
    assert entry["values"] == {"slope": -1.0, "gap": 0.0}
    assert entry["rules"] == {"slope": "below", "gap": "at-most"}


@pytest.mark.parametrize(
    ("values", "paper_scale", "expected"),
    [
        ({"slope": -1, "gap": 0}, False, "reproduced at smaller scale"),
        ({"slope": -1, "gap": math.nan}, True, "trend only"),
        ({"slope": math.nan, "gap": 0}, True, "not reproduced"),
        ({"slope": -1, "gap": math.inf}, True, "trend only"),
    ],
)
def test_verdicts_and_numbers_survive_the_file(page, book, values, paper_scale, expected):
    assert claims.check("two.both", values, paper_scale=paper_scale).verdict == expected
    kept = read_record(page, book.root)["claims"]["two.both"]["values"]
    assert {k: str(float(v)) for k, v in values.items()} == {k: str(v) for k, v in kept.items()}


def test_two_executions_give_the_same_bytes(page):
    def execute() -> bytes:
        claims.start_chapter()
        page.unlink(missing_ok=True)
        claims.use_data("digits", "embedded", "0" * 64)
        claims.check("toy.sum", 0.1 + 0.4)
        claims.check("two.holds", np.bool_(True))
        return page.read_bytes()

    first = execute()
    assert first == execute()
    record = json.loads(first)
    assert sorted(record["claims"]) == ["toy.sum", "two.holds"]
    assert record["data"] == [{"name": "digits", "source": "embedded", "sha256": "0" * 64}]
    assert set(record["versions"]) == {"python", "torch", "numpy"}


def test_the_key_and_parameters_come_from_the_runner(page, book, monkeypatch):
    monkeypatch.setenv("BOOK_KEY", "abc")
    monkeypatch.setenv("BOOK_PARAMETERS", '{"n": 7}')
    claims.check("toy.sum", 0.5)
    record = read_record(page, book.root)
    assert (record["key"], record["parameters"]) == ("abc", {"n": 7})


def test_outside_the_runner_the_record_goes_to_the_notebook_profile(page, book, monkeypatch):
    monkeypatch.delenv("BOOK_PROFILE")
    path = records_path(book.root, "notebook", "part/sum")
    claims.check("toy.sum", 0.5)
    assert read_record(path, book.root)["profile"] == "notebook"
    assert not page.exists()
    claims.start_chapter()
    assert not path.exists()


def test_a_skip_records_why(page, book, capsys):
    assert claims.skip("two.both", "needs a GPU").verdict == "not run at this profile"
    assert "needs a GPU" in capsys.readouterr().out
    entry = read_record(page, book.root)["claims"]["two.both"]
    assert (entry["values"], entry["note"]) == ({}, "needs a GPU")


def test_results_of_longer_runs_are_shown_beside_ours(page, book, capsys):
    claims.check("two.both", {"slope": -3, "gap": 0})
    record = read_record(page, book.root)
    write_record(results_path(book.root, "gpu", "part/sum"), record | {"profile": "gpu"})
    capsys.readouterr()
    claims.check("two.both", {"slope": -1, "gap": 0})
    shown = capsys.readouterr().out
    assert "ours, gpu" in shown
    assert "-3" in shown
    assert "recorded at gpu: reproduced" in shown


def test_a_record_does_not_show_itself_twice_in_a_notebook(page):
    assert claims.check("toy.sum", 0.5)._ipython_display_() is None


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: claims.check("two.none", 1), "'two.none' stands in no file"),
        (lambda: claims.check("two.elsewhere", True), "belongs to the chapter 'part/plain'"),
        (lambda: claims.check("two.both", 1.0), "hand in a dict with one value for each"),
        (lambda: claims.check("two.both", {"slope": 1}), "has slope; the claim's checks are"),
        (lambda: claims.check("toy.sum", {"ratio": 1, "x": 2}), "has ratio, x; the claim's checks"),
        (lambda: claims.check("toy.sum", True), "needs one number"),
        (lambda: claims.check("toy.sum", "0.5"), "needs one number"),
        (lambda: claims.check("toy.sum", None), "needs one number"),
        (lambda: claims.check("two.holds", 1), "'holds' needs a bool"),
        (lambda: claims.check("toy.sum", 0.5, paper_scale="no"), "paper_scale is 'no'"),
        (lambda: claims.skip("toy.sum", " "), "say why it is not run"),
        (lambda: claims.use_data("", "x"), "use_data: name is ''"),
    ],
)
def test_bad_calls_are_refused_and_leave_no_record(page, call, reason):
    with pytest.raises(ValueError, match=reason):
        call()
    assert not page.exists()


def test_without_a_bootstrap_cell_the_page_is_told_to_run_it(book):
    with pytest.raises(ValueError, match="bootstrap cell"):
        claims.check("toy.sum", 0.5)
