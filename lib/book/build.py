"""Builds the site: executed notebooks beside the other pages, Jupyter Book, a check of links."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from lib.book.files import digest, write_atomically
from lib.book.notebooks import chapters, page_path, pages
from lib.book.runner import executed_folder, run

_KEPT_SUFFIX = ".key.json"
_KEPT = {"timings.json"}


def build(root: Path, profile: str = "quick", jobs: int | None = None, force: bool = False) -> int:
    """Executes what is stale, then builds ``_build/html`` unless it is up to date.

    Args:
        root: the checkout.
        profile: the profile.
        jobs: chapters at a time, see :func:`lib.book.runner.run`.
        force: execute fresh chapters too.

    Returns:
        0, or 1 where a chapter, Sphinx or a link failed.

    Raises:
        ValueError: for anything that :func:`lib.book.runner.run` refuses, a page of ``_toc.yml``
            that does not exist, or a missing program.
    """
    for page in pages(root):
        page_path(root, page)
    began = time.monotonic()
    failed = run(root, profile, jobs=jobs, force=force)
    if failed:
        print(f"the site is not built, because these failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    stage = stage_pages(root, profile)
    inputs = site_inputs(root, stage)
    home = root / "_build" / "html" / "index.html"
    if _stored(root) != inputs or not home.exists():
        if not _make_site(root, stage, inputs):
            return 1
        write_atomically(_hash_file(root), json.dumps(inputs, indent=1))
    else:
        print("the site is up to date")
    print(f"finished in {time.monotonic() - began:.1f} s; open {home.as_uri()} or run 'make serve'")
    return 0


def stage_pages(root: Path, profile: str) -> Path:
    """Lays everything that is no notebook beside the executed notebooks, and removes leftovers.

    Only files whose content changed are written, so that Sphinx reads only these again.

    Args:
        root: the checkout.
        profile: the profile.

    Returns:
        The folder from which the site is built.
    """
    stage, book = executed_folder(root, profile), root / "book"
    notebooks = set(chapters(root))
    sources = [page_path(root, page) for page in pages(root) if page not in notebooks]
    sources += [path for path in sorted((book / "assets").rglob("*")) if path.is_file()]
    sources += sorted(book.glob("*.bib"))
    keep = {stage / f"{name}{end}" for name in notebooks for end in (".ipynb", _KEPT_SUFFIX)}
    keep |= {stage / name for name in _KEPT}
    for source in sources:
        place = stage / source.relative_to(book)
        keep.add(place)
        if not place.exists() or place.read_bytes() != source.read_bytes():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, place)
    for path in stage.rglob("*"):
        if path.is_file() and path not in keep:
            path.unlink()
    return stage


def site_inputs(root: Path, stage: Path) -> dict[str, str]:
    """Returns hashes of what the site is made from.

    Args:
        root: the checkout.
        stage: the folder of :func:`stage_pages`.

    Returns:
        ``frame``: what every page depends on (configuration, contents, extensions, ``lib`` for the
        pages about it, claims, and the place of the stage); ``pages``: the stage itself.
    """
    frame = [root / "_config.yml", root / "_toc.yml"]
    for folder, pattern in (("book/extensions", "*.py"), ("lib", "*.py"), ("data/claims", "*.yml")):
        frame += sorted((root / folder).rglob(pattern))
    staged = [p for p in sorted(stage.rglob("*")) if p.is_file() and not _is_ours(p)]
    place = stage.relative_to(root).as_posix()
    return {
        "frame": digest([place, *_hashes(root, frame)]),
        "pages": digest(_hashes(root, staged)),
    }


def _is_ours(path: Path) -> bool:
    return path.name in _KEPT or path.name.endswith(_KEPT_SUFFIX)


def _hashes(root: Path, paths: list[Path]) -> list[list[str]]:
    return [[path.relative_to(root).as_posix(), digest(path.read_bytes())] for path in paths]


def _hash_file(root: Path) -> Path:
    return root / "_build" / "site.json"


def _stored(root: Path) -> dict | None:
    try:
        return json.loads(_hash_file(root).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _make_site(root: Path, stage: Path, inputs: dict[str, str]) -> bool:
    """Runs Sphinx, from scratch where the frame changed, and checks the links of its pages."""
    stored = _stored(root)
    _hash_file(root).unlink(missing_ok=True)
    if stored is None or stored.get("frame") != inputs["frame"]:
        shutil.rmtree(root / "_build" / "html", ignore_errors=True)
        _forget_warnings(root)
    began = time.monotonic()
    print("building the site ...", flush=True)
    command = [_program("jupyter-book"), "build", str(stage)]
    command += ["--config", str(root / "_config.yml"), "--toc", str(root / "_toc.yml")]
    command += ["--path-output", str(root), "-W", "-n", "--keep-going"]
    if not _succeeds(command, root, root / "_build" / "site.log"):
        _forget_warnings(root)
        return False
    print(f"built in {time.monotonic() - began:.1f} s; checking its links", flush=True)
    return _succeeds(_link_check(root), root, root / "_build" / "links.log")


def _forget_warnings(root: Path) -> None:
    """Removes the pages that Sphinx has cached: it would not warn about them again."""
    shutil.rmtree(root / "_build" / ".doctrees", ignore_errors=True)


def _link_check(root: Path) -> list[str]:
    html = root / "_build" / "html"
    command = [_program("lychee"), "--offline", "--include-fragments", "--no-progress"]
    command += ["--exclude-path", "_static", "--exclude-path", "404.html"]
    return [*command, "--root-dir", str(html), str(html / "**" / "*.html")]


def _program(name: str) -> str:
    """Returns the path of a program of this environment."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise ValueError(f"{name} is not installed; run 'pip install -r requirements.txt'.")
    return found


def _succeeds(command: list[str], root: Path, log: Path) -> bool:
    """Runs a program with its output in a file, and shows what matters of it on failure."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        environment = os.environ | {"NO_COLOR": "1"}
        done = subprocess.run(
            command, cwd=root, stdout=out, stderr=subprocess.STDOUT, env=environment
        )
    if done.returncode == 0:
        return True
    text = log.read_text(encoding="utf-8", errors="replace").replace(f"{root}/", "")
    lines = text.splitlines()
    told = [line for line in lines if "WARNING" in line or "ERROR" in line]
    for line in told or lines[-25:]:
        print(line, file=sys.stderr)
    print(f"whole output: {log.relative_to(root).as_posix()}", file=sys.stderr)
    return False
