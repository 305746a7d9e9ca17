"""Keys: what goes stale when a file changes, and nothing else."""

from __future__ import annotations

import pytest

from lib.book import keys
from lib.book.keys import changed, chapter_key, imported_files, key_components, reads_records
from lib.book.notebooks import chapters, read_notebook
from lib.book.profiles import load_profiles


def components(book) -> dict[str, dict[str, str]]:
    profile = load_profiles(book.root)["quick"]
    changes = {name: setting.changes for name, setting in profile.items()}
    return {
        chapter: key_components(book.root, chapter, "quick", changes.get(chapter, {}))
        for chapter in chapters(book.root)
    }


def stale(book, before) -> dict[str, list[str]]:
    """Returns the chapters whose key changed, each with the reasons in words."""
    after = components(book)
    return {
        name: changed(before[name], after[name]) for name in after if before[name] != after[name]
    }


@pytest.fixture
def before(book):
    book.write("_toc.yml", (book.root / "_toc.yml").read_text() + "      - file: scorecard\n")
    book.notebook("scorecard", "from lib.book import scorecard")
    return components(book)


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("lib/linear/sums.py", ["part/sum"]),
        ("lib/linear/__init__.py", ["part/sum"]),
        ("lib/book/claims.py", ["part/sum"]),
        ("lib/book/rules.py", ["part/sum", "scorecard"]),
        ("lib/book/scorecard.py", ["scorecard"]),
        ("lib/linear/unused.py", []),
        ("lib/book/runner.py", []),
        ("lib/book/worker.py", []),
        ("lib/book/build.py", []),
        ("lib/book/lint.py", []),
        ("lib/book/figures.py", []),
        ("book/index.md", []),
    ],
)
def test_a_changed_file_makes_exactly_its_users_stale(book, before, name, who):
    path = book.root / name
    path.write_text(path.read_text() + "\n")
    found = stale(book, before)
    assert sorted(found) == who
    assert all(reasons == [f"{name} changed"] for reasons in found.values())


def test_cells_count_and_notebook_metadata_does_not(book, before):
    path = book.root / "book" / "part" / "plain.ipynb"
    text = path.read_text()
    path.write_text(text.replace('"display_name": "Python 3"', '"display_name": "Python"'))
    assert stale(book, before) == {}
    path.write_text(text.replace("n is", "n ="))
    assert stale(book, before) == {"part/plain": ["the notebook changed"]}


def test_parameters_count_for_their_chapter(book, before):
    book.write("book/profiles.yml", "quick:\n  part/sum: {n: 51, minutes: 3}\n")
    assert stale(book, before) == {"part/sum": ["the profile's parameters changed"]}
    book.write("book/profiles.yml", "quick:\n  part/sum: {n: 50, minutes: 4}\n")
    assert stale(book, before) == {}


def test_claims_count_for_their_chapter_and_the_scorecard(book, before):
    path = book.root / "data" / "claims" / "toy.yml"
    path.write_text(path.read_text().replace("tolerance: 0.1", "tolerance: 0.2"))
    assert stale(book, before) == {
        "part/sum": ["its claims changed"],
        "scorecard": ["data/claims/toy.yml changed"],
    }
    path.write_text(path.read_text().replace("part/sum", "part/plain"))
    assert sorted(stale(book, before)) == ["part/plain", "part/sum", "scorecard"]


def test_records_count_for_the_scorecard_only(book, before):
    book.write("_build/records/quick/part/sum.json", "{}")
    book.write("_build/records/cpu/part/sum.json", "{}")
    assert stale(book, before) == {"scorecard": ["_build/records/quick/part/sum.json is new"]}


def test_recorded_results_make_a_page_stale_but_not_its_record(book, before):
    book.write("data/results/cpu/part/sum.json", "{}")
    book.write("data/results/quick/part/sum.json", "{}")
    found = stale(book, before)
    assert found["part/sum"] == ["data/results/cpu/part/sum.json is new"]
    assert sorted(found) == ["part/sum", "scorecard"]
    after = components(book)
    assert chapter_key(after["part/sum"]) == chapter_key(before["part/sum"])


def test_versions_of_torch_and_numpy_count_for_all(book, before, monkeypatch):
    import importlib.metadata

    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "9.9" if name == "numpy" else real(name)
    )
    found = stale(book, before)
    assert len(found) == 3
    assert found["part/plain"] == [f"numpy {real('numpy')} became 9.9"]


def test_data_counts_where_the_datasets_are_used(book, monkeypatch):
    book.write("lib/datasets/__init__.py", "")
    book.write("data/registry.yml", "files: [train.gz]\n")
    book.notebook("part/plain", "from lib.datasets import x")
    monkeypatch.setattr(keys, "available", dict)
    before = components(book)
    monkeypatch.setattr(keys, "available", lambda: {"train": "cache"})
    assert stale(book, before) == {"part/plain": ["the data files at hand changed"]}
    after = components(book)
    assert chapter_key(after["part/plain"]) == chapter_key(before["part/plain"])
    book.write("data/registry.yml", "files: [train.gz, test.gz]\n")
    assert "data/registry.yml changed" in stale(book, before)["part/plain"]


@pytest.mark.parametrize(
    ("source", "inside"),
    [
        ("import lib.linear.sums", {"lib/linear/sums.py", "lib/linear/__init__.py"}),
        ("import lib.linear.sums as s", {"lib/linear/sums.py"}),
        ("from lib.linear import unused", {"lib/linear/unused.py", "lib/linear/sums.py"}),
        ("def f():\n    from lib.linear import unused", {"lib/linear/unused.py"}),
        ("%matplotlib inline\n!ls\nfrom lib import linear", {"lib/linear/sums.py"}),
        ("from lib.deep.inner import leaf", {"lib/deep/near.py", "lib/deep/inner/leaf.py"}),
        ("from lib import lazy", {"lib/lazy/hidden.py", "lib/linear/unused.py"}),
    ],
)
def test_imports_of_every_form_are_followed(book, source, inside):
    book.write("lib/deep/__init__.py", "")
    book.write("lib/deep/near.py", "")
    book.write("lib/deep/inner/__init__.py", "from .. import near")
    book.write("lib/deep/inner/leaf.py", "from . import *\nfrom .leaf import x")
    book.write(
        "lib/lazy/__init__.py",
        "from importlib import import_module\n"
        "def __getattr__(name):\n    return import_module('lib.lazy.hidden')\n",
    )
    book.write("lib/lazy/hidden.py", "from lib.linear import unused")
    found = imported_files(book.root, read_notebook(book.notebook("part/plain", source)))
    assert inside | {"lib/__init__.py"} <= found


def test_only_pages_that_show_the_records_wait_for_the_others(before):
    assert [name for name, pieces in before.items() if reads_records(pieces)] == ["scorecard"]


def test_a_cell_that_is_no_python_is_named(book):
    book.notebook("part/plain", "x = = 1")
    with pytest.raises(ValueError, match=r"plain\.ipynb: cell 4 is no Python"):
        components(book)
