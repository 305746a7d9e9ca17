"""What the first code cell of every page calls: packages, figure style, one line of facts.

Imports only the standard library at first, because on Colab the light packages may be missing.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from lib.book.session import NOTEBOOK, current_profile, find_root, inside_runner

HEAVY = {"torch": "torch", "numpy": "numpy"}
LIGHT = {
    "matplotlib": "matplotlib",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "mlxtend": "mlxtend",
    "seaborn": "seaborn",
    "pandas": "pandas",
    "yaml": "PyYAML",
    "tqdm": "tqdm",
}

_VERSION = re.compile(
    r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?(\+[A-Za-z0-9.]+)?"
)


def start(chapter: str) -> None:
    """Makes a page ready: packages, figure style, and a line that says where it runs.

    On Colab the missing light packages are installed, and nothing that is there is changed, torch
    and NumPy least of all. Elsewhere a missing package is an error that says what to run.

    Args:
        chapter: the page's path under ``book/``, without suffix.

    Raises:
        ImportError: where a package is missing and may not, or cannot, be installed.
        ValueError: where ``chapter`` is no page of the book, or not the one the runner started.
    """
    root = find_root()
    expected = os.environ.get("BOOK_CHAPTER") if inside_runner() else chapter
    if chapter != expected:
        raise ValueError(
            f"chapter is {chapter!r} in the first cell, but this page is {expected!r}."
        )
    if not (root / "book" / f"{chapter}.ipynb").exists():
        raise ValueError(f"chapter is {chapter!r}, but book/{chapter}.ipynb does not exist.")
    os.environ["BOOK_CHAPTER"] = chapter
    ensure_packages(root)
    from lib.book.claims import start_chapter
    from lib.book.figures import set_style

    set_style()
    start_chapter()
    print(_facts(root, chapter))


def ensure_packages(root: Path) -> None:
    """Installs the missing light packages on Colab; elsewhere refuses to go on without them.

    Args:
        root: the checkout, whose ``requirements.txt`` holds the versions.

    Raises:
        ImportError: where a package is missing and may not, or cannot, be installed.
    """
    importlib.invalidate_caches()
    missing = {mod: name for mod, name in (HEAVY | LIGHT).items() if not _is_there(mod)}
    if not missing:
        return
    names = ", ".join(missing.values())
    if "COLAB_RELEASE_TAG" not in os.environ:
        raise ImportError(
            f"The book needs {names}, missing from {sys.executable}: run 'make lab' in {root}, or "
            "'pip install -r requirements.txt' there."
        )
    heavy = [name for mod, name in missing.items() if mod in HEAVY]
    if heavy:
        raise ImportError(
            f"This runtime lacks {', '.join(heavy)}, which the book never installs on Colab: "
            "choose a standard Python 3 runtime (Runtime, Change runtime type)."
        )
    _install(root, list(missing.values()))


def _install(root: Path, names: list[str]) -> None:
    """Installs the book's pins or, where these do not fit what is there, any version that does."""
    pins = _pins(root)
    kept = {d.name: d.version for d in importlib.metadata.distributions() if d.name}
    kept = {name: version for name, version in kept.items() if _VERSION.fullmatch(version or "")}
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("".join(f"{name}=={kept[name]}\n" for name in sorted(kept)))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--constraint"]
        command += [str(constraints), "--disable-pip-version-check"]
        for wanted in ([pins.get(name.lower(), name) for name in names], names):
            print(f"Installing {', '.join(wanted)} ...", flush=True)
            done = subprocess.run([*command, *wanted], capture_output=True, text=True)
            if done.returncode == 0:
                break
        else:
            last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise ImportError(f"pip could not install {', '.join(names)}: {last}")
    importlib.invalidate_caches()


def _pins(root: Path) -> dict[str, str]:
    """Returns the lines of requirements.txt by lower-case package name."""
    lines = (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = [line.split("#")[0].strip() for line in lines]
    return {re.split(r"[\s=<>!~;\[]", line)[0].lower(): line for line in wanted if line}


def _is_there(module: str) -> bool:
    return module in sys.modules or importlib.util.find_spec(module) is not None


def _facts(root: Path, chapter: str) -> str:
    """Returns the line that tells a reader what runs here, and what would run faster."""
    from lib.book.profiles import read_profiles

    profiles, profile = read_profiles(root), current_profile()
    setting = profiles["paper" if profile == NOTEBOOK else profile].get(chapter)
    name = "the parameters on this page" if profile == NOTEBOOK else profile
    parts = [f"device: {device()}", f"profile: {name}"]
    if setting and setting.minutes:
        parts.append(f"about {setting.minutes:g} min")
    quick = profiles["quick"].get(chapter)
    if profile == NOTEBOOK and quick and quick.changes:
        changes = ", ".join(f"{key} = {value!r}" for key, value in quick.changes.items())
        parts.append(f"for a quick look set {changes}")
    return " · ".join(parts)


def device() -> str:
    """Returns ``"cuda"`` where torch can use a GPU, else ``"cpu"``.

    Torch takes seconds to import, so it is asked only where an NVIDIA driver is installed.
    """
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
