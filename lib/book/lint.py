"""The form of a notebook: what every page of the book must have, and what none may have."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from lib.book.notebooks import Cell, Notebook, page_path, pages, parameters, read_notebook

LONGEST_CELL = 15
MOST_FUNCTIONS = 2
TAGS = {
    "parameters",
    "hide-input",
    "hide-output",
    "remove-input",
    "remove-output",
    "remove-cell",
}
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
_CELL_METADATA = {"tags", "mystnb"}
_FORBIDDEN = ("BOOK_PROFILE", "current_profile")


def notebook_paths(root: Path) -> list[Path]:
    """Returns every notebook under ``book/``, without JupyterLab's checkpoints."""
    found = sorted((root / "book").rglob("*.ipynb"))
    return [path for path in found if ".ipynb_checkpoints" not in path.parts]


def lint_all(root: Path, fix: bool = False) -> int:
    """Prints what is wrong with the notebooks and the table of contents.

    Args:
        root: the checkout.
        fix: first mend what a machine can mend, see :func:`fix_notebook`.

    Returns:
        0 where nothing is wrong, else 1.
    """
    paths = notebook_paths(root)
    if fix:
        for path in paths:
            if fix_notebook(root, path):
                print(f"mended {path.relative_to(root).as_posix()}")
    problems = [line for path in paths for line in lint_notebook(root, path)] + lint_pages(root)
    for line in problems:
        print(line, file=sys.stderr)
    print(f"{len(paths)} notebooks, {len(problems)} problems")
    return 1 if problems else 0


def lint_pages(root: Path) -> list[str]:
    """Returns a line for every page that is missing, and every notebook that is no page."""
    listed, problems = pages(root), []
    for page in listed:
        try:
            page_path(root, page)
        except ValueError as error:
            problems.append(str(error))
    for path in notebook_paths(root):
        if chapter_name(root, path) not in listed:
            problems.append(f"{path.relative_to(root).as_posix()} stands in no line of _toc.yml")
    return problems


def chapter_name(root: Path, path: Path) -> str:
    """Returns a notebook's path under ``book/``, without suffix."""
    return path.relative_to(root / "book").with_suffix("").as_posix()


def bootstrap_source(root: Path, chapter: str) -> str:
    """Returns the set-up cell of a chapter."""
    template = root / "lib" / "book" / "bootstrap_cell.py.txt"
    return template.read_text(encoding="utf-8").strip().replace("{chapter}", chapter)


def lint_notebook(root: Path, path: Path) -> list[str]:
    """Returns what is wrong with a notebook.

    Args:
        root: the checkout.
        path: the notebook.

    Returns:
        One line per problem, each with the file and, where it is one cell's, the cell's number from
        1.
    """
    name = path.relative_to(root).as_posix()
    try:
        notebook = read_notebook(path)
    except ValueError as error:
        return [str(error)]
    problems = _form(path) + _layout(notebook, bootstrap_source(root, chapter_name(root, path)))
    functions = 0
    for position, cell in enumerate(notebook.cells, 1):
        problems += [f"cell {position}: {line}" for line in _cell_problems(cell)]
        functions += _count_functions(cell)
    if functions > MOST_FUNCTIONS:
        problems.append(
            f"{functions} functions; {MOST_FUNCTIONS} at most, the others belong in lib"
        )
    return [f"{name}: {problem}" for problem in problems]


def fix_notebook(root: Path, path: Path) -> bool:
    """Mends what a machine can: set-up cell, outputs, counts, extra metadata, canonical form.

    Args:
        root: the checkout.
        path: the notebook.

    Returns:
        Whether the file changed.
    """
    import nbformat

    before = path.read_text(encoding="utf-8")
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL})
    for position, cell in enumerate(notebook.cells):
        cell.metadata = nbformat.from_dict(
            {k: v for k, v in cell.metadata.items() if k in _CELL_METADATA and v}
        )
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if position == 1 and "lib.book.bootstrap" in cell.source:
            cell.source = bootstrap_source(root, chapter_name(root, path))
            cell.metadata["tags"] = ["hide-input"]
    after = nbformat.writes(notebook).rstrip("\n") + "\n"
    if after != before:
        path.write_text(after, encoding="utf-8")
    return after != before


def _form(path: Path) -> list[str]:
    """Returns problems with the file itself: validity, canonical spelling, kernel, metadata."""
    import nbformat

    text, problems = path.read_text(encoding="utf-8"), []
    notebook = nbformat.reads(text, as_version=4)
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        problems.append(f"no valid notebook ({error.message})")
    if text != nbformat.writes(notebook).rstrip("\n") + "\n":
        problems.append("not in canonical form; run 'python -m lib.book lint --fix'")
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        problems.append("its kernelspec must be python3")
    extra = sorted(set(notebook.metadata) - {"kernelspec"})
    if extra:
        problems.append(f"its metadata holds {', '.join(extra)}; only kernelspec may stay")
    return problems


def _layout(notebook: Notebook, bootstrap: str) -> list[str]:
    """Returns problems with the first three cells and the number of titles."""
    cells, problems = notebook.cells, []
    if len(cells) < 3:
        return ["a page begins with a title, the set-up cell and the parameters cell"]
    if cells[0].kind != "markdown" or not cells[0].source.startswith("# "):
        problems.append("cell 1: must be Markdown that begins with '# ' and the title")
    if cells[1].kind != "code" or cells[1].source.strip() != bootstrap:
        problems.append(
            "cell 2: must equal lib/book/bootstrap_cell.py.txt with this chapter's name"
        )
    if cells[1].tags != ["hide-input"]:
        problems.append("cell 2: must have the tag hide-input and no other")
    if "parameters" not in cells[2].tags:
        problems.append("cell 3: must be the parameters cell")
    try:
        parameters(notebook, "it")
    except ValueError as error:
        problems.append(str(error))
    return problems


def _cell_problems(cell: Cell) -> list[str]:
    problems = []
    if not cell.source.strip():
        problems.append("is empty")
    unknown = sorted(set(cell.tags) - TAGS)
    if unknown:
        problems.append(f"unknown tag {', '.join(unknown)}; allowed: {', '.join(sorted(TAGS))}")
    extra = sorted(set(cell.metadata) - _CELL_METADATA)
    if extra:
        problems.append(f"its metadata holds {', '.join(extra)}; allowed: tags, mystnb")
    return problems + (_code_problems(cell) if cell.kind == "code" else [])


def _code_problems(cell: Cell) -> list[str]:
    problems = []
    if cell.outputs:
        problems.append("has outputs; notebooks are committed without")
    if cell.execution_count is not None:
        problems.append("has an execution count; notebooks are committed without")
    lines = len(cell.source.strip().splitlines())
    if lines > LONGEST_CELL:
        problems.append(f"{lines} lines of code; {LONGEST_CELL} at most, move the rest to lib")
    found = [word for word in _FORBIDDEN if word in cell.source]
    if found:
        problems.append(f"{found[0]}: a page branches on parameters, never on the profile")
    try:
        tree = ast.parse(cell.source)
    except SyntaxError as error:
        return [*problems, f"is no plain Python ({error})"]
    if any(isinstance(node, ast.ClassDef) for node in ast.walk(tree)):
        problems.append("defines a class; classes belong in lib")
    return problems


def _count_functions(cell: Cell) -> int:
    if cell.kind != "code":
        return 0
    try:
        tree = ast.parse(cell.source)
    except SyntaxError:
        return 0
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return sum(isinstance(node, kinds) for node in ast.walk(tree))
