"""The set-up cell: it finds or fetches the book, and installs on Colab only what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from lib.book import bootstrap
from lib.book.lint import bootstrap_source
from tests.book.conftest import CODE

THERE = ("torch", "numpy", "scipy", "matplotlib", "scikit-learn", "pip")
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]


def git(folder: Path, *arguments: str) -> None:
    subprocess.run([*GIT, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """Returns a git repository with this engine, one page and the pins, as a release would have."""
    root = tmp_path / "origin"
    shutil.copytree(CODE / "lib" / "book", root / "lib" / "book", ignore=ignore_caches)
    shutil.copy(CODE / "lib" / "__init__.py", root / "lib")
    shutil.copy(CODE / "requirements.txt", root)
    (root / "book").mkdir()
    (root / "book" / "page.ipynb").write_text("{}")
    (root / "book" / "profiles.yml").write_text("quick: {page: {steps: 3, minutes: 1}}\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "All")
    return root


def ignore_caches(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "__pycache__"}


def colab(repository: Path, **more: str) -> dict[str, str]:
    """Returns the environment of a Colab kernel whose book comes from ``repository``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BOOK_", "PYTHONPATH"))}
    return kept | {
        "COLAB_RELEASE_TAG": "release-colab",
        "BOOK_REPOSITORY": repository.as_uri(),
        "MPLBACKEND": "Agg",
        **more,
    }


def run_cell(python: Path | str, cwd: Path, environment: dict, then: str = "") -> str:
    cell = bootstrap_source(CODE, "page")
    cwd.mkdir(exist_ok=True)
    done = subprocess.run(
        [python, "-c", f"{cell}\n{then}"], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_on_colab_the_book_is_fetched_at_its_release_and_else_at_main(repository, tmp_path):
    where = "import lib, pathlib; print(pathlib.Path(lib.__file__).parents[1])"
    out = run_cell(sys.executable, tmp_path / "content", colab(repository), where)
    root = tmp_path / "content" / "what-the-student-learns"
    assert out.splitlines()[-1] == str(root)
    assert "profile: the parameters on this page" in out
    assert "for a quick look set steps = 3" in out

    release = re.search(r'"(v\d+\.\d+\.\d+)"', bootstrap_source(CODE, "page"))[1]
    git(repository, "tag", release)
    (repository / "later.txt").write_text("after the release")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "Later")
    run_cell(sys.executable, tmp_path / "released", colab(repository))
    assert not (tmp_path / "released" / "what-the-student-learns" / "later.txt").exists()

    (root / "mine.txt").write_text("kept")
    run_cell(sys.executable, tmp_path / "content", colab(repository))
    assert (root / "mine.txt").exists(), "a second run of the cell must not fetch again"


@pytest.mark.slow
def test_in_a_checkout_the_cell_finds_the_root_from_any_folder_below(repository):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BOOK_")}
    where = "import lib, pathlib; print(pathlib.Path(lib.__file__).parents[1])"
    out = run_cell(sys.executable, repository / "book" / "part", environment, where)
    assert out.splitlines()[-1] == str(repository)


@pytest.mark.slow
def test_a_bare_colab_gets_the_light_packages_and_keeps_the_others(repository, tmp_path):
    """Torch and NumPy come from a folder that pip may not touch; the rest is really installed."""
    if _index_is_out_of_reach():
        pytest.skip("no package index can be reached")
    home = tmp_path / "bare"
    venv.create(home)
    (site,) = (home / "lib").glob("python*/site-packages")
    given = tmp_path / "given"
    link_packages(THERE, given)
    (site / "given.pth").write_text(f"{given}\n")
    before = {path: path.lstat().st_mtime_ns for path in given.iterdir()}
    python = home / "bin" / "python"
    installed_before = versions(python)
    assert not {"pandas", "mlxtend", "pyyaml"} & set(installed_before)

    then = "import pandas, mlxtend, yaml, seaborn, tqdm; print(pandas.__version__)"
    environment = colab(repository, PIP_NO_COMPILE="1")
    out = run_cell(python, tmp_path / "content", environment, then)
    pins = bootstrap._pins(CODE)
    assert out.splitlines()[0].startswith("Installing ")
    assert "torch" not in out
    assert "numpy" not in out
    installed = versions(python)
    assert f"pandas=={installed['pandas']}" == pins["pandas"]
    assert f"seaborn=={installed['seaborn']}" == pins["seaborn"]
    assert {n: installed[n] for n in installed_before} == installed_before
    assert {path: path.lstat().st_mtime_ns for path in given.iterdir()} == before
    assert not [path for path in site.iterdir() if path.name.startswith(("torch", "numpy"))]
    assert "Installing" not in run_cell(python, tmp_path / "content", environment)


def _index_is_out_of_reach() -> bool:
    probe = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps"]
    return subprocess.run([*probe, "tqdm"], capture_output=True, timeout=60).returncode != 0


def versions(python: Path) -> dict[str, str]:
    code = "import importlib.metadata as m\n"
    code += "for d in m.distributions(): print(d.name.lower(), d.version)"
    out = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    return dict(line.split() for line in out.splitlines())


def link_packages(names: tuple[str, ...], folder: Path) -> None:
    """Links installed packages and all that they need into a folder."""
    folder.mkdir()
    waiting, seen = list(names), set()
    while waiting:
        name = waiting.pop()
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if found.name in seen:
            continue
        seen.add(found.name)
        wanted = [line for line in found.requires or () if "extra ==" not in line]
        waiting += [re.split(r"[^A-Za-z0-9._-]", line)[0] for line in wanted]
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            link = folder / top
            if not link.exists():
                link.symlink_to(found.locate_file(top))


@pytest.fixture
def missing(monkeypatch):
    """Returns a function that makes modules look missing."""

    def hide(*modules):
        monkeypatch.setattr(bootstrap, "_is_there", lambda module: module not in modules)

    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    return hide


def test_elsewhere_a_missing_package_is_one_clear_sentence(missing):
    missing("pandas", "torch")
    with pytest.raises(
        ImportError, match=r"^The book needs torch, pandas.*'make lab'.*pip install"
    ):
        bootstrap.ensure_packages(CODE)


def test_colab_never_gets_torch_or_numpy(missing, monkeypatch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "x")
    missing("numpy", "pandas")
    with pytest.raises(ImportError, match="lacks numpy, which the book never installs"):
        bootstrap.ensure_packages(CODE)


def test_pins_that_do_not_fit_give_way_to_any_version_and_nothing_present_moves(
    missing, monkeypatch, capsys
):
    calls = []

    def pip(command, **options):
        limits = Path(command[command.index("--constraint") + 1]).read_text()
        calls.append((command[-1], limits))
        return subprocess.CompletedProcess(command, len(calls) == 1, "", "no match\nlast line")

    monkeypatch.setenv("COLAB_RELEASE_TAG", "x")
    monkeypatch.setattr(bootstrap.subprocess, "run", pip)
    missing("pandas")
    bootstrap.ensure_packages(CODE)
    assert [wanted for wanted, _ in calls] == [bootstrap._pins(CODE)["pandas"], "pandas"]
    for name in ("numpy", "torch"):
        assert f"{name}=={importlib.metadata.version(name)}\n" in calls[0][1]
    calls.clear()
    monkeypatch.setattr(
        bootstrap.subprocess,
        "run",
        lambda command, **options: subprocess.CompletedProcess(command, 1, "", "a\nlast line"),
    )
    with pytest.raises(ImportError, match="pip could not install pandas: last line"):
        bootstrap.ensure_packages(CODE)


def test_a_page_that_is_not_there_or_another_than_the_runners_is_refused(book, monkeypatch):
    with pytest.raises(ValueError, match=r"book/part/gone\.ipynb does not exist"):
        bootstrap.start("part/gone")
    monkeypatch.setenv("BOOK_PROFILE", "quick")
    monkeypatch.setenv("BOOK_CHAPTER", "part/sum")
    with pytest.raises(ValueError, match="'part/plain' in the first cell, but this page is"):
        bootstrap.start("part/plain")


def test_every_pin_is_found():
    pins = bootstrap._pins(CODE)
    assert {name.lower() for name in bootstrap.LIGHT.values()} <= set(pins)
