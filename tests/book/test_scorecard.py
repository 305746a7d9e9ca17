"""The scorecard: missing, stale and forged records are never shown as reproduced."""

from __future__ import annotations

import math

import pytest

from lib.book import claims, scorecard
from lib.book.claim_files import load_sources
from lib.book.records import read_record, records_path, results_path, write_record
from lib.book.report import present_key, print_scorecard


@pytest.fixture
def page(book, monkeypatch):
    """Returns a function that records a value of ``toy.sum`` as the runner would."""
    monkeypatch.setenv("BOOK_CHAPTER", "part/sum")
    monkeypatch.setenv("BOOK_PROFILE", "quick")

    def record(value):
        monkeypatch.setenv("BOOK_KEY", present_key(book.root, "part/sum", "quick"))
        claims.check("toy.sum", value)
        return records_path(book.root, "quick", "part/sum")

    return record


def found(book) -> str:
    (source,) = load_sources(book.root)
    return scorecard.standings(book.root, source, "quick")[0].verdict


def test_the_check_passes_only_on_the_expected_verdict(book, page, capsys):
    assert print_scorecard(book.root, "quick", check=True) == 1
    assert "expected 'reproduced', found 'missing'" in capsys.readouterr().err
    page(math.nan)
    assert print_scorecard(book.root, "quick", check=True) == 1
    assert "found 'not reproduced'" in capsys.readouterr().err
    assert print_scorecard(book.root, "quick", check=False) == 0
    page(0.5)
    assert print_scorecard(book.root, "quick", check=True) == 0
    assert "1 of 1 claims stand as expected" in capsys.readouterr().out


def test_an_expected_difference_is_met_and_a_surprise_is_not(book, page, capsys):
    text = (book.root / "data/claims/toy.yml").read_text()
    expect = '    expect: not reproduced\n    why: the source rounds\n    paper: "0.5"'
    book.write("data/claims/toy.yml", text.replace('    paper: "0.5"', expect))
    page(9.0)
    assert print_scorecard(book.root, "quick", check=True) == 0
    page(0.5)
    assert print_scorecard(book.root, "quick", check=True) == 1
    assert "expected 'not reproduced', found 'reproduced'" in capsys.readouterr().err


def test_a_changed_rule_makes_the_record_stale(book, page):
    page(0.5)
    assert found(book) == "reproduced"
    text = (book.root / "data/claims/toy.yml").read_text()
    book.write("data/claims/toy.yml", text.replace("tolerance: 0.1", "tolerance: 0.3"))
    assert found(book).startswith("stale")
    assert print_scorecard(book.root, "quick", check=True) == 1


def test_changed_sources_make_the_record_stale(book, page, capsys):
    page(0.5)
    book.write("lib/linear/sums.py", "def total(n):\n    return 0\n")
    assert print_scorecard(book.root, "quick", check=True) == 1
    assert "stale: the sources changed since" in capsys.readouterr().err


def test_damaged_and_forged_records_are_refused_by_name(book, page):
    path = page(9.0)
    record = read_record(path, book.root)
    record["claims"]["toy.sum"]["verdict"] = "reproduced"
    write_record(path, record)
    with pytest.raises(ValueError, match=r"_build/records/quick/part/sum\.json.*'not reproduced'"):
        found(book)
    write_record(path, record | {"profile": "cpu"})
    with pytest.raises(ValueError, match=r"sum\.json is the record of another"):
        found(book)
    path.write_bytes(path.read_bytes().replace(b"9.0", b"0.5"))
    with pytest.raises(ValueError, match=r"sum\.json does not match its checksum"):
        found(book)


def test_a_skipped_claim_is_no_success(book, page):
    page(0.5)
    claims.skip("toy.sum", "too long")
    assert found(book) == "not run at this profile"
    assert print_scorecard(book.root, "quick", check=True) == 1


def test_the_page_shows_all_profiles_and_links_to_the_chapter(book, page, capsys, monkeypatch):
    path = page(0.5)
    record = read_record(path, book.root)
    write_record(results_path(book.root, "cpu", "part/sum"), record | {"profile": "cpu"})
    shown: list[str] = []
    monkeypatch.setattr(scorecard, "show", lambda markup, text: shown.extend([markup, text]))
    scorecard.show_summary()
    scorecard.show_claims()
    markup = shown[2]
    assert 'href="part/sum.html"' in markup
    assert 'id="claim-toy-sum"' in markup
    for part in ("Statement 1", "The sum of the first n", "0.5 ± 0.1", "quick", "cpu"):
        assert part in markup
    assert "✓ reproduced (quick); ✓ reproduced (cpu)" in shown[3]
    with pytest.raises(ValueError, match="names has gone; the sources are toy"):
        scorecard.show_claims(["gone"])


def test_the_summary_counts_every_claim_once(book, page, capsys):
    scorecard.show_summary()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["?", "missing", "1"] in rows
    assert rows[-1] == ["claims", "1"]
    page(0.5)
    capsys.readouterr()
    scorecard.show_summary()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["✓", "reproduced", "1"] in rows
    assert sum(int(row[-1]) for row in rows[1:-1]) == 1


def test_a_claim_stated_before_its_chapter_waits_and_links_nowhere(book, page, capsys):
    page(0.5)
    text = (book.root / "data/claims/toy.yml").read_text()
    later = text[text.index("  - id: toy.sum") :].replace("toy.sum", "toy.later")
    later = later.replace("chapter: part/sum", "chapter: part/later")
    expect = (
        '    expect: not run at this profile\n    why: its chapter comes later\n    paper: "0.5"'
    )
    waiting = text + later.replace('    paper: "0.5"', expect)
    book.write("data/claims/toy.yml", waiting)
    page(0.5)
    assert print_scorecard(book.root, "quick", check=True) == 0
    assert "wait for chapters not written yet: 1" in capsys.readouterr().out
    (source,) = load_sources(book.root)
    cells = [scorecard._claim_cell(book.root, claim).html for claim in source.claims]
    assert ["<a " in cell for cell in cells] == [True, False]
    book.write("data/claims/toy.yml", text + later)
    assert print_scorecard(book.root, "quick", check=True) == 1
    assert "toy.later" in capsys.readouterr().err
