"""Content keys: what a chapter's output depends on, piece by piece, and why it is stale.

The code that counts is found by reading imports: from the notebook's cells through the files of
``lib`` that they reach. Imports that are built from text at run time are not seen.
"""

from __future__ import annotations

import ast
import importlib.metadata
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lib.book.claim_files import load_sources
from lib.book.files import digest
from lib.book.notebooks import Notebook, chapter_path, read_notebook
from lib.book.session import PROFILES
from lib.datasets.registry import available

READER = "lib/book/scorecard.py"
AT_HAND = "the data files at hand"
_RESULTS = "data/results/"


def key_components(
    root: Path, chapter: str, profile: str, changes: dict[str, Any]
) -> dict[str, str]:
    """Returns the pieces that a chapter's output depends on.

    They are the notebook's cells, the parameters, every file of ``lib`` that its imports reach, the
    data where it reaches ``lib.datasets``, its claims, what is recorded for it, and the versions of
    torch and NumPy. A page that reads the records (it reaches ``lib/book/scorecard.py``) depends on
    all claims and all records instead.

    Args:
        root: the checkout.
        chapter: the page under ``book/``, without suffix.
        profile: the profile.
        changes: the parameters that the profile changes.

    Returns:
        A hash or a version per piece.

    Raises:
        ValueError: where the notebook or a file of ``lib`` cannot be read as Python.
    """
    notebook = read_notebook(chapter_path(root, chapter))
    cells = [[cell.kind, cell.source, cell.metadata] for cell in notebook.cells]
    code = imported_files(root, notebook)
    found = {
        "the notebook": digest(cells),
        "the profile's parameters": digest([profile, changes]),
        **{name: digest((root / name).read_bytes()) for name in sorted(code)},
    }
    if any(name.startswith("lib/datasets/") for name in code):
        found |= _data(root)
    if READER in code:
        found |= _everything_recorded(root, profile)
    else:
        found["its claims"] = digest(_claims(root, chapter))
        recorded = [root / _RESULTS / name / f"{chapter}.json" for name in PROFILES]
        own = root / _RESULTS / profile
        found |= _hashes(root, [path for path in recorded if not path.is_relative_to(own)])
    return found | {name: _version(name) for name in ("torch", "numpy")}


def chapter_key(components: dict[str, str]) -> str:
    """Returns the key under which a chapter's results are recorded.

    Two pieces count for staleness only: what the repository has recorded, which the page shows but
    does not compute with, and which data files are at hand, which the run itself may download (the
    record names the data that was used).

    Example:
        >>> old = {"the notebook": "1"}
        >>> chapter_key(old) == chapter_key(old | {"data/results/cpu/a.json": "2"})
        True
    """
    kept = {k: v for k, v in components.items() if not k.startswith((_RESULTS, AT_HAND))}
    return digest(kept)


def reads_records(components: dict[str, str]) -> bool:
    """Returns whether a page shows the records of the others, and so runs after them."""
    return READER in components


def changed(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Returns, in words, which pieces differ.

    Example:
        >>> changed({"lib/a.py": "1", "numpy": "2.3"}, {"lib/a.py": "2", "numpy": "2.4"})
        ['lib/a.py changed', 'numpy 2.3 became 2.4']
    """
    reasons = []
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            reasons.append(f"{name} is new")
        elif name not in new:
            reasons.append(f"{name} is gone")
        elif old[name] != new[name]:
            version = name in ("torch", "numpy")
            words = f"{name} {old[name]} became {new[name]}" if version else f"{name} changed"
            reasons.append(words)
    return reasons


def imported_files(root: Path, notebook: Notebook) -> set[str]:
    """Returns the files of ``lib`` that a notebook's imports reach, relative to ``root``.

    Args:
        root: the checkout.
        notebook: the notebook; lines that start with ``%`` or ``!`` are skipped.

    Returns:
        Paths like ``"lib/linear/tasks.py"``, with the ``__init__.py`` of every package on the way.

    Raises:
        ValueError: naming the cell or file that is no Python.
    """
    waiting: list[str] = []
    for position, cell in enumerate(notebook.cells, 1):
        if cell.kind == "code":
            where = f"{notebook.path.name}: cell {position}"
            waiting += _imports(_parse(_without_magics(cell.source), where), package="")
    seen: set[str] = set()
    files: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        path = _module_file(root, module)
        if path is None:
            continue
        name = path.relative_to(root).as_posix()
        files.add(name)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        tree = _parse(path.read_text(encoding="utf-8"), name)
        waiting += _imports(tree, package)
        if _imports_by_name(tree):
            inside = sorted(path.parent.rglob("*.py"))
            waiting += [".".join(p.relative_to(root).with_suffix("").parts) for p in inside]
    return files


def _without_magics(source: str) -> str:
    lines = source.splitlines()
    return "\n".join("pass" if line.startswith(("%", "!")) else line for line in lines)


def _parse(source: str, where: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"{where} is no Python ({error}).") from None


def _imports_by_name(tree: ast.Module) -> bool:
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return bool(names & {"import_module", "__import__"})


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yields every module of ``lib`` that a source may import, its parent packages included."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    for name in names:
        parts = name.split(".")
        if parts[0] == "lib":
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base


def _module_file(root: Path, module: str) -> Path | None:
    base = root.joinpath(*module.split("."))
    for path in (base / "__init__.py", base.with_suffix(".py")):
        if path.exists():
            return path
    return None


def _data(root: Path) -> dict[str, str]:
    """Returns the registry, and where the files that it names lie on this machine."""
    registry = root / "data" / "registry.yml"
    text = registry.read_text(encoding="utf-8") if registry.exists() else ""
    return {
        "the data files at hand": digest(sorted(available().items())),
        "data/registry.yml": digest(text),
    }


def _claims(root: Path, chapter: str) -> list[dict]:
    sources = load_sources(root)
    return [asdict(c) for source in sources for c in source.claims if c.chapter == chapter]


def _everything_recorded(root: Path, profile: str) -> dict[str, str]:
    paths = [*(root / "data" / "claims").glob("*.yml"), *(root / _RESULTS).rglob("*.json")]
    paths += (root / "_build" / "records" / profile).rglob("*.json")
    return _hashes(root, paths)


def _hashes(root: Path, paths: list[Path]) -> dict[str, str]:
    existing = sorted(path for path in paths if path.exists())
    return {path.relative_to(root).as_posix(): digest(path.read_bytes()) for path in existing}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
