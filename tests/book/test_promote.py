"""Promotion: a long run's records enter the repository with their provenance, or not at all."""

from __future__ import annotations

import subprocess

import pytest

from lib.book import claims
from lib.book.promote import promote
from lib.book.records import read_record, records_path, results_path
from lib.book.report import present_key
from lib.book.runner import write_timing


def git(book, *arguments) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=book.root, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def recorded(book, monkeypatch):
    """Returns a book in a git repository, with a record of ``part/sum`` at profile cpu."""
    monkeypatch.setenv("BOOK_CHAPTER", "part/sum")
    monkeypatch.setenv("BOOK_PROFILE", "cpu")
    monkeypatch.setenv("BOOK_KEY", present_key(book.root, "part/sum", "cpu"))
    claims.check("toy.sum", 0.5)
    write_timing(book.root, "cpu", "part/sum", 12.5, 300.0)
    book.write(".gitignore", "_build/\n")
    git(book, "init", "-q", "-b", "main")
    git(book, "add", ".")
    git(book, "commit", "-q", "-m", "All")
    return book


def test_a_record_is_kept_with_where_it_comes_from(recorded):
    assert promote(recorded.root, "cpu", []) == 0
    path = results_path(recorded.root, "cpu", "part/sum")
    kept = read_record(path, recorded.root)
    provenance = kept.pop("provenance")
    assert kept == read_record(records_path(recorded.root, "cpu", "part/sum"), recorded.root)
    assert provenance["commit"] == git(recorded, "rev-parse", "HEAD")
    assert provenance["dirty"] is False
    assert (provenance["seconds"], provenance["peak_mib"]) == (12.5, 300.0)
    assert provenance["machine"]["cores"] >= 1
    assert len(provenance["date"]) == 10
    assert promote(recorded.root, "cpu", ["part/sum"]) == 0
    again = read_record(path, recorded.root)["provenance"]
    assert again["dirty"] is False, "results do not count as changes"


def test_uncommitted_sources_are_said(recorded):
    recorded.write("book/index.md", "# Another title\n")
    promote(recorded.root, "cpu", [])
    path = results_path(recorded.root, "cpu", "part/sum")
    assert read_record(path, recorded.root)["provenance"]["dirty"] is True


def test_records_of_other_sources_are_refused(recorded):
    recorded.write("lib/linear/sums.py", "def total(n):\n    return 1\n")
    with pytest.raises(ValueError, match="comes from other sources"):
        promote(recorded.root, "cpu", [])
    assert not (recorded.root / "data" / "results").exists()


@pytest.mark.parametrize(
    ("profile", "chapters", "reason"),
    [
        ("quick", [], "allowed: cpu, gpu, paper"),
        ("fast", [], "saw 'fast'"),
        ("gpu", [], "there is no record; run 'python -m lib.book run --profile gpu'"),
        ("cpu", ["part/plain"], "'part/plain' has no record at cpu; there are: part/sum"),
    ],
)
def test_what_is_not_there_is_named(recorded, profile, chapters, reason):
    with pytest.raises(ValueError, match=reason):
        promote(recorded.root, profile, chapters)


def test_a_damaged_record_is_refused_by_name(recorded):
    path = records_path(recorded.root, "cpu", "part/sum")
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6", 1))
    with pytest.raises(ValueError, match=r"_build/records/cpu/part/sum\.json does not match"):
        promote(recorded.root, "cpu", [])
