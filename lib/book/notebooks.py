"""Notebooks as plain JSON: their cells, their parameters, the chapters of the book."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.book.strict_yaml import load_yaml


@dataclass(frozen=True)
class Cell:
    """One cell: ``kind`` is "code", "markdown" or "raw"; ``metadata`` as in the file."""

    kind: str
    source: str
    metadata: dict
    outputs: tuple = ()
    execution_count: int | None = None

    @property
    def tags(self) -> list[str]:
        """The cell's tags."""
        return list(self.metadata.get("tags", []))


@dataclass(frozen=True)
class Notebook:
    """A notebook file: its cells and its own metadata."""

    path: Path
    cells: tuple[Cell, ...]
    metadata: dict


def read_notebook(path: Path) -> Notebook:
    """Reads a notebook of format 4.

    Args:
        path: the ``.ipynb`` file.

    Returns:
        Its cells and metadata.

    Raises:
        ValueError: naming the file, where it is missing or no notebook.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        cells = tuple(_cell(cell) for cell in raw["cells"])
        return Notebook(path, cells, raw["metadata"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is no readable notebook ({error!r}).") from None


def _cell(raw: dict) -> Cell:
    source = raw["source"] if isinstance(raw["source"], str) else "".join(raw["source"])
    return Cell(
        raw["cell_type"],
        source,
        raw.get("metadata", {}),
        tuple(raw.get("outputs", ())),
        raw.get("execution_count"),
    )


def chapter_path(root: Path, chapter: str) -> Path:
    """Returns the source of a chapter."""
    return root / "book" / f"{chapter}.ipynb"


def pages(root: Path) -> list[str]:
    """Returns every page of ``_toc.yml`` in its order, by its path under ``book/`` without suffix.

    Raises:
        ValueError: where the file is missing, malformed, or names a page twice.
    """
    toc = load_yaml(root / "_toc.yml", root)
    if not isinstance(toc, dict) or "root" not in toc:
        raise ValueError("_toc.yml has no root; it must be a table of contents of format jb-book.")
    found = [toc["root"], *_files(toc)]
    twice = sorted({page for page in found if found.count(page) > 1})
    if twice:
        raise ValueError(f"_toc.yml names {', '.join(twice)} twice; a page stands in one place.")
    return found


def page_path(root: Path, page: str) -> Path:
    """Returns the file of a page, a notebook or Markdown.

    Raises:
        ValueError: where there is neither.
    """
    for suffix in (".ipynb", ".md"):
        path = root / "book" / f"{page}{suffix}"
        if path.exists():
            return path
    raise ValueError(f"_toc.yml names {page!r}, but book/{page}.ipynb and .md do not exist.")


def _files(node: Any) -> list[str]:
    if isinstance(node, list):
        return [name for entry in node for name in _files(entry)]
    if not isinstance(node, dict):
        return []
    own = [node["file"]] if "file" in node else []
    return own + [n for key in ("parts", "chapters", "sections") for n in _files(node.get(key))]


def chapters(root: Path) -> list[str]:
    """Returns the pages of ``_toc.yml`` that are notebooks, in its order."""
    return [page for page in pages(root) if chapter_path(root, page).exists()]


def parameters(notebook: Notebook, name: str) -> dict[str, Any]:
    """Returns the names and values of a notebook's ``parameters`` cell.

    Args:
        notebook: the notebook.
        name: what to call it in errors.

    Returns:
        The literals, in the order of the cell.

    Raises:
        ValueError: where there is not exactly one such cell, or it holds more than assignments of
            plain literals to plain names.
    """
    cells = [cell for cell in notebook.cells if "parameters" in cell.tags]
    if len(cells) != 1 or cells[0].kind != "code":
        raise ValueError(
            f"{name} has {len(cells)} cells with the tag 'parameters'; it must have exactly one, a "
            "code cell with the paper's setting."
        )
    found: dict[str, Any] = {}
    try:
        for statement in ast.parse(cells[0].source).body:
            target, value = _assignment(statement)
            if target in found:
                raise ValueError(f"{target} is assigned twice")
            found[target] = ast.literal_eval(value)
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"{name}: its parameters cell may hold only lines like 'steps = 1000' with plain "
            f"literals ({error})."
        ) from None
    return found


def _assignment(statement: ast.stmt) -> tuple[str, ast.expr]:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target, value = statement.target, statement.value
    else:
        raise ValueError(f"line {statement.lineno} is no assignment")
    if not isinstance(target, ast.Name):
        raise ValueError(f"line {statement.lineno} assigns to something other than a name")
    return target.id, value
