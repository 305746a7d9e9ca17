"""Building a tiny site: what is skipped, what stops it, what a second build costs."""

from __future__ import annotations

import time

import pytest

from lib.book import build
from lib.book.build import site_inputs, stage_pages
from lib.book.runner import executed_folder

CONFIG = """
title: A toy book
author: Nobody
only_build_toc_files: true
execute: {execute_notebooks: "off"}
bibtex_bibfiles: [references.bib]
sphinx: {config: {html_static_path: [assets]}}
"""


@pytest.fixture
def site(book):
    """Returns a book of one chapter and two pages with all that Jupyter Book asks for."""
    book.write("_config.yml", CONFIG)
    book.write(
        "_toc.yml",
        "format: jb-book\nroot: index\nchapters:\n  - file: part/plain\n  - file: other\n",
    )
    book.write("book/profiles.yml", "{}")
    book.write("book/assets/logo.svg", "<svg/>")
    book.write("book/references.bib", "")
    book.write("book/index.md", "# A toy book\n\n[the chapter](part/plain.ipynb)\n")
    book.write("book/other.md", "# Another page\n\nText.\n")
    return book


@pytest.mark.slow
def test_a_site_is_built_once_and_again_only_after_a_change(site, capsys):
    first = site.command("build")
    assert first.returncode == 0, first.stdout + first.stderr
    home = site.root / "_build" / "html" / "index.html"
    assert home.as_uri() in first.stdout
    chapter = home.parent / "part" / "plain.html"
    assert "n is 100" in chapter.read_text()
    built = chapter.stat().st_mtime_ns

    began = time.monotonic()
    second = site.command("build")
    assert "the site is up to date" in second.stdout
    assert time.monotonic() - began < 20
    assert chapter.stat().st_mtime_ns == built

    site.write("book/other.md", "# Another page\n\n[gone](gone.md)\n")
    broken = site.command("build")
    assert broken.returncode == 1
    assert "gone.md" in broken.stderr
    assert str(site.root) not in broken.stderr
    assert site.command("build").returncode == 1, "a cached page must not hide its warning"

    chapter.write_text(
        chapter.read_text().replace("</article>", '<a href="no.html">x</a></article>')
    )
    assert not build._succeeds(build._link_check(site.root), site.root, site.root / "links.log")
    assert "no.html" in capsys.readouterr().err


def test_a_failed_chapter_stops_the_site(site, monkeypatch, capsys):
    monkeypatch.setattr(build, "run", lambda *arguments, **options: ["part/plain"])
    assert build.build(site.root) == 1
    assert "because these failed: part/plain" in capsys.readouterr().err
    assert not (site.root / "_build" / "html").exists()


def test_a_missing_page_is_refused(site):
    (site.root / "book" / "other.md").unlink()
    done = site.command("build")
    assert done.returncode == 2
    assert "names 'other', but book/other.ipynb and .md do not exist" in done.stderr


def test_the_stage_mirrors_the_book_and_only_changes_are_written(site):
    site.write("_build/executed/quick/part/plain.ipynb", "{}")
    site.write("_build/executed/quick/part/plain.key.json", "{}")
    site.write("_build/executed/quick/timings.json", "{}")
    site.write("_build/executed/quick/left/over.md", "")
    stage = stage_pages(site.root, "quick")
    assert stage == executed_folder(site.root, "quick")

    def listing():
        files = [path for path in stage.rglob("*") if path.is_file()]
        return {p.relative_to(stage).as_posix(): p.stat().st_mtime_ns for p in files}

    first = listing()
    assert set(first) == {
        "index.md",
        "other.md",
        "references.bib",
        "assets/logo.svg",
        "part/plain.ipynb",
        "part/plain.key.json",
        "timings.json",
    }
    site.write("book/index.md", "# A toy book\n\nMore.\n")
    stage_pages(site.root, "quick")
    second = listing()
    assert [name for name in first if first[name] != second[name]] == ["index.md"]


@pytest.mark.parametrize(
    ("name", "frame", "pages"),
    [
        ("_config.yml", True, False),
        ("_toc.yml", True, False),
        ("book/extensions/mend.py", True, False),
        ("lib/linear/sums.py", True, False),
        ("_build/executed/quick/part/plain.ipynb", False, True),
        ("_build/executed/quick/timings.json", False, False),
        ("_build/executed/quick/part/plain.key.json", False, False),
    ],
)
def test_what_the_site_depends_on(site, name, frame, pages):
    site.write("_build/executed/quick/part/plain.ipynb", "{}")
    stage = stage_pages(site.root, "quick")
    before = site_inputs(site.root, stage)
    path = site.root / name
    site.write(name, (path.read_text() if path.exists() else "") + "\n")
    after = site_inputs(site.root, stage)
    assert (before["frame"] != after["frame"], before["pages"] != after["pages"]) == (frame, pages)
