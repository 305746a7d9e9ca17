"""Runs the chapters that need it: one fresh process each, results put in place only when whole."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.book.files import digest, write_atomically
from lib.book.keys import AT_HAND, changed, chapter_key, key_components, reads_records
from lib.book.notebooks import chapter_path, chapters, parameters, read_notebook
from lib.book.profiles import check_profile, load_profiles
from lib.book.records import records_path
from lib.book.worker import CELL, PART, RESULT, Outcome

STILL_RUNNING_EVERY = 15.0
_NOISE = ("IPKernelApp", "Kernel is running over TCP", "frozen modules", "-Xfrozen_modules")
_NOISE += ("PYDEVD_DISABLE_FILE_VALIDATION", "Debugger warning")
_THREADS = ("OMP", "MKL", "OPENBLAS", "VECLIB_MAXIMUM", "NUMEXPR")
_START = "import sys; sys.path.insert(0, sys.argv[1]); from lib.book.worker import main; "
_START += "main(sys.argv[2])"


@dataclass(frozen=True)
class Job:
    """A chapter to execute, and why."""

    chapter: str
    kernel: str
    own: dict[str, Any]
    changes: dict[str, Any]
    components: dict[str, str]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Running:
    """A job at work: its process, its folder for files that are not ready yet, when it began."""

    job: Job
    process: subprocess.Popen
    folder: Path
    began: float


def executed_folder(root: Path, profile: str) -> Path:
    """Returns the folder of the executed notebooks of a profile, laid out like ``book/``."""
    return root / "_build" / "executed" / profile


def executed_path(root: Path, profile: str, chapter: str) -> Path:
    """Returns where the executed copy of a chapter stands."""
    return executed_folder(root, profile) / f"{chapter}.ipynb"


def key_path(root: Path, profile: str, chapter: str) -> Path:
    """Returns the file that holds the key of an executed copy, piece by piece."""
    return executed_folder(root, profile) / f"{chapter}.key.json"


def timings_path(root: Path, profile: str) -> Path:
    """Returns the file with the seconds and peak memory of every chapter."""
    return executed_folder(root, profile) / "timings.json"


def run(
    root: Path,
    profile: str = "quick",
    wanted: list[str] | None = None,
    jobs: int | None = None,
    force: bool = False,
) -> list[str]:
    """Executes every chapter whose key has changed, the pages that read the records last.

    Args:
        root: the checkout.
        profile: one of the profiles.
        wanted: the chapters; by default all notebooks of ``_toc.yml``.
        jobs: how many run at a time, 1 or more; by default one per core, 4 at most. Each computes
            with one thread: its tensors are small, and sums then have one order on every machine.
        force: execute also what is fresh.

    Returns:
        The chapters that failed.

    Raises:
        ValueError: before anything runs, for an unknown profile or chapter, a notebook without a
            parameters cell or kernel, or an unknown parameter in the profile.
    """
    check_profile(profile)
    wanted = _wanted(root, wanted)
    jobs = _check_jobs(jobs)
    settings = load_profiles(root, only=wanted)[profile]
    changes = {chapter: settings[chapter].changes for chapter in wanted if chapter in settings}
    plan = [_job(root, profile, chapter, changes.get(chapter, {}), force) for chapter in wanted]
    _check_kernels(plan)
    first = [job for job in plan if not reads_records(job.components)]
    failed = _execute_all(root, profile, first, jobs)
    last = [
        _job(root, profile, job.chapter, job.changes, force)
        for job in plan
        if reads_records(job.components)
    ]
    return failed + _execute_all(root, profile, last, jobs)


def _wanted(root: Path, wanted: list[str] | None) -> list[str]:
    known = chapters(root)
    unknown = [chapter for chapter in wanted or [] if chapter not in known]
    if unknown:
        raise ValueError(
            f"unknown chapter {', '.join(unknown)}; the notebooks of _toc.yml: "
            f"{', '.join(known) or 'none yet'}."
        )
    return [chapter for chapter in known if not wanted or chapter in wanted]


def _check_jobs(jobs: int | None) -> int:
    if jobs is None:
        return min(core_count(), 4)
    if jobs < 1:
        raise ValueError(f"jobs is {jobs}; it must be 1 or more.")
    return jobs


def core_count() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _job(root: Path, profile: str, chapter: str, changes: dict[str, Any], force: bool) -> Job:
    notebook = read_notebook(chapter_path(root, chapter))
    kernel = notebook.metadata.get("kernelspec", {}).get("name")
    if not kernel:
        raise ValueError(f"book/{chapter}.ipynb names no kernel; its kernelspec must be python3.")
    own = parameters(notebook, f"book/{chapter}.ipynb")
    components = key_components(root, chapter, profile, changes)
    reasons = stale_reasons(root, profile, chapter, components)
    if force and not reasons:
        reasons = ["asked for by --force"]
    return Job(chapter, kernel, own, changes, components, tuple(reasons))


def stale_reasons(root: Path, profile: str, chapter: str, components: dict[str, str]) -> list[str]:
    """Returns why the executed copy of a chapter may not be used; empty where it is fresh.

    Args:
        root: the checkout.
        profile: the profile.
        chapter: the page.
        components: its present pieces, from :func:`lib.book.keys.key_components`.

    Returns:
        Reasons in words.
    """
    path = key_path(root, profile, chapter)
    if not path.exists():
        return ["not executed yet"]
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        reasons = changed(stored["components"], components)
        kept = stored["executed"], stored["record"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return ["its key file is damaged"]
    for name, known, now in zip(
        ("its executed copy", "its record"),
        kept,
        _product_hashes(root, profile, chapter),
        strict=True,
    ):
        if known != now:
            reasons.append(f"{name} is gone" if now is None else f"{name} was changed by hand")
    return reasons


def _product_hashes(root: Path, profile: str, chapter: str) -> tuple[str | None, str | None]:
    paths = executed_path(root, profile, chapter), records_path(root, profile, chapter)
    executed, record = (digest(path.read_bytes()) if path.exists() else None for path in paths)
    return executed, record


def _check_kernels(plan: list[Job]) -> None:
    """Refuses kernels that are not installed; looks only where something is to be executed."""
    needed = {job.kernel: job.chapter for job in plan if job.reasons}
    if not needed:
        return
    from jupyter_client.kernelspec import KernelSpecManager

    installed = KernelSpecManager().find_kernel_specs()
    for kernel, chapter in needed.items():
        if kernel not in installed:
            raise ValueError(
                f"book/{chapter}.ipynb asks for the kernel {kernel!r}, which is not installed; "
                f"installed: {', '.join(sorted(installed)) or 'none'}."
            )


def _execute_all(root: Path, profile: str, plan: list[Job], jobs: int) -> list[str]:
    stale = [job for job in plan if job.reasons]
    if len(stale) < len(plan):
        _say(f"{len(plan) - len(stale)} of {len(plan)} chapters are fresh at profile {profile}")
    if not stale:
        return []
    waiting, running, failed = list(stale), {}, []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    begun = _begin(root, profile, waiting.pop(0))
                    running[pool.submit(begun.process.wait)] = begun
                failed += _collect(root, profile, running, len(stale))
        except BaseException:
            for begun in running.values():
                _end(begun.process)
                shutil.rmtree(begun.folder, ignore_errors=True)
            raise
    return failed


def _collect(root: Path, profile: str, running: dict[Future, Running], total: int) -> list[str]:
    """Waits for the next chapter to end, and returns its name where it failed."""
    done, _ = wait(running, timeout=STILL_RUNNING_EVERY, return_when=FIRST_COMPLETED)
    if not done:
        for begun in running.values():
            _say(
                f"  {begun.job.chapter}: still running, {_elapsed(begun)}{_position(begun.folder)}"
            )
    failed = []
    for future in done:
        begun = running.pop(future)
        outcome = _outcome(begun)
        if not outcome.error:
            _keep(root, profile, begun, outcome)
            _say(f"  {begun.job.chapter}: done in {_elapsed(begun)}, {outcome.peak_mib:.0f} MiB")
        else:
            failed.append(begun.job.chapter)
            _say(_complaint(begun, outcome))
        shutil.rmtree(begun.folder, ignore_errors=True)
    return failed


def _begin(root: Path, profile: str, job: Job) -> Running:
    _say(f"  {job.chapter}: started ({'; '.join(_shortened(job.reasons))})")
    for path in (
        key_path(root, profile, job.chapter),
        executed_path(root, profile, job.chapter),
        records_path(root, profile, job.chapter),
    ):
        path.unlink(missing_ok=True)
    folder = _work_folder(root, profile, job.chapter)
    content = {
        "notebook": str(chapter_path(root, job.chapter)),
        "parameters": job.changes,
        "kernel": job.kernel,
    }
    write_atomically(folder / "job.json", json.dumps(content))
    code = str(Path(__file__).resolve().parents[2])
    with (folder / "noise.txt").open("wb") as noise:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, code, str(folder / "job.json")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=noise,
            env=os.environ | _environment(root, profile, job, folder),
            start_new_session=True,
        )
    return Running(job, process, folder, time.monotonic())


def _environment(root: Path, profile: str, job: Job, folder: Path) -> dict[str, str]:
    """Returns what a kernel is told: where it is, for whom it works, how many threads it has."""
    values = job.own | job.changes
    return {
        "BOOK_ROOT": str(root),
        "BOOK_PROFILE": profile,
        "BOOK_CHAPTER": job.chapter,
        "BOOK_KEY": chapter_key(job.components),
        "BOOK_PARAMETERS": json.dumps(values, sort_keys=True, default=str),
        "BOOK_RECORD": str(folder / "record.json"),
        "BOOK_PROGRESS": str(folder / "progress.txt"),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "PYTHONHASHSEED": "0",
        **{f"{name}_NUM_THREADS": "1" for name in _THREADS},
    }


def _work_folder(root: Path, profile: str, chapter: str) -> Path:
    """Returns an empty folder of this process, and removes those of processes that are gone."""
    base = root / "_build" / "work" / profile / chapter.replace("/", "--")
    for left in base.glob("*"):
        if left.name == str(os.getpid()) or not _is_alive(int(left.name)):
            shutil.rmtree(left, ignore_errors=True)
    folder = base / str(os.getpid())
    folder.mkdir(parents=True)
    return folder


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _keep(root: Path, profile: str, begun: Running, outcome: Outcome) -> None:
    """Puts record, executed copy and, last, the key in their places."""
    job, record = begun.job, begun.folder / "record.json"
    moves = [(record, records_path(root, profile, job.chapter))] if record.exists() else []
    moves.append((begun.folder / PART, executed_path(root, profile, job.chapter)))
    for ready, place in moves:
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(ready, place)
    seconds = round(time.monotonic() - begun.began, 1)
    write_timing(root, profile, job.chapter, seconds, outcome.peak_mib)
    now = key_components(root, job.chapter, profile, job.changes)
    downloads = {AT_HAND: now[AT_HAND]} if AT_HAND in job.components and AT_HAND in now else {}
    executed, written = _product_hashes(root, profile, job.chapter)
    content = {
        "components": job.components | downloads,
        "executed": executed,
        "record": written,
    }
    write_atomically(key_path(root, profile, job.chapter), json.dumps(content, indent=1))


def write_timing(root: Path, profile: str, chapter: str, seconds: float, peak_mib: float) -> None:
    """Adds the time and peak memory of a chapter to ``timings.json``."""
    path = timings_path(root, profile)
    timings = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    timings[chapter] = {"seconds": seconds, "peak_mib": peak_mib}
    write_atomically(path, json.dumps(timings, indent=1, sort_keys=True) + "\n")


def _outcome(begun: Running) -> Outcome:
    result = begun.folder / RESULT
    if result.exists():
        return Outcome(**json.loads(result.read_text(encoding="utf-8")))
    code = begun.process.returncode
    cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    hint = "; perhaps the machine ran out of memory" if code == -signal.SIGKILL else ""
    return Outcome(error=f"the process ended with {cause}{hint}")


def _complaint(begun: Running, outcome: Outcome) -> str:
    where = f" in cell {outcome.cell} of {outcome.cells}" if outcome.cell else ""
    lines = [f"  {begun.job.chapter}: FAILED{where} after {_elapsed(begun)}"]
    if outcome.line:
        lines.append(f"    the cell begins: {outcome.line}")
    lines += [f"    {line}" for line in outcome.error.splitlines()]
    if not outcome.cell:
        text = (begun.folder / "noise.txt").read_text(encoding="utf-8", errors="replace")
        heard = [line for line in text.splitlines() if not any(word in line for word in _NOISE)]
        lines += [f"    {line}" for line in heard[-5:]]
    return "\n".join(lines)


def _end(process: subprocess.Popen) -> None:
    """Closes the worker's pipe, upon which it takes its kernel down, and waits for it."""
    process.stdin.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()


def _position(folder: Path) -> str:
    cell, progress = folder / CELL, folder / "progress.txt"
    words = f", cell {cell.read_text(encoding='utf-8')}" if cell.exists() else ""
    line = progress.read_text(encoding="utf-8") if progress.exists() else ""
    return words + (f" ({line})" if line else "")


def _elapsed(begun: Running) -> str:
    seconds = time.monotonic() - begun.began
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _shortened(reasons: tuple[str, ...]) -> list[str]:
    extra = len(reasons) - 3
    return [*reasons[:3], f"and {extra} more"] if extra > 0 else list(reasons)


def _say(line: str) -> None:
    print(line, flush=True)
