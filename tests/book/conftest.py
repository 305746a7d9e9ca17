"""Tiny books to test the engine on: real engine, real kernels, chapters of a few lines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

CODE = Path(__file__).resolve().parents[2]
SETUP = "import os, sys\nsys.path.insert(0, os.environ['BOOK_ROOT'])"
CLAIMS = """
source: toy
title: A toy source
citation: toy2020
claims:
  - id: toy.sum
    kind: statement
    label: Statement 1
    section: "1"
    chapter: part/sum
    says: The sum of the first n numbers grows like half of n squared.
    paper: "0.5"
    checks:
      - {name: ratio, rule: within, target: 0.5, tolerance: 0.1, meaning: sum over n squared}
"""


@dataclass(frozen=True)
class Book:
    """A book in a temporary folder."""

    root: Path

    def write(self, name: str, text: str) -> Path:
        """Writes a file, and returns its path."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def notebook(
        self,
        chapter: str,
        *cells: str,
        parameters: str | None = "n = 100",
        kernel: str | None = "python3",
    ) -> Path:
        """Writes a notebook: title, set-up cell, parameters cell, then the given code cells."""
        notebook = nbformat.v4.new_notebook()
        if kernel:
            notebook.metadata["kernelspec"] = {
                "name": kernel,
                "display_name": "Python 3",
                "language": "python",
            }
        made = [nbformat.v4.new_markdown_cell(f"# {chapter}"), nbformat.v4.new_code_cell(SETUP)]
        if parameters is not None:
            made.append(nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}))
        made += [nbformat.v4.new_code_cell(cell) for cell in cells]
        for position, cell in enumerate(made):
            cell["id"] = f"cell-{position}"
        notebook.cells = made
        path = self.root / "book" / f"{chapter}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, path)
        return path

    def command(self, *arguments: str, **options) -> subprocess.CompletedProcess:
        """Runs the engine's command line on this book."""
        return subprocess.run(
            [sys.executable, "-m", "lib.book", *arguments],
            cwd=CODE,
            env=os.environ | {"BOOK_ROOT": str(self.root)},
            capture_output=True,
            text=True,
            **options,
        )


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    """Returns a book with two chapters: ``part/sum`` checks a claim, ``part/plain`` does not."""
    root = tmp_path / "project"
    for package in ("lib/book", "lib/linear"):
        (root / package).mkdir(parents=True)
    shutil.copy(CODE / "lib" / "__init__.py", root / "lib")
    for path in (CODE / "lib" / "book").iterdir():
        if path.is_file():
            shutil.copy(path, root / "lib" / "book")
    made = Book(root)
    made.write("lib/linear/__init__.py", "from lib.linear.sums import total\n")
    made.write("lib/linear/sums.py", "def total(n):\n    return n * (n + 1) // 2\n")
    made.write("lib/linear/unused.py", "x = 1\n")
    made.write("data/claims/toy.yml", CLAIMS)
    made.write(
        "_toc.yml",
        "format: jb-book\nroot: index\nparts:\n  - chapters:\n"
        "      - file: part/sum\n      - file: part/plain\n",
    )
    made.write("book/index.md", "# A toy book\n")
    made.write("book/profiles.yml", "quick:\n  part/sum: {n: 50}\n")
    made.notebook(
        "part/sum",
        "from lib.book import claims\nfrom lib.linear import total",
        "claims.use_data('numbers', 'embedded')\nclaims.check('toy.sum', total(n) / n**2)",
    )
    made.notebook("part/plain", "print('n is', n)")
    monkeypatch.setenv("BOOK_ROOT", str(root))
    return made
