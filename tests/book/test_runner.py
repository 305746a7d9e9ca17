"""The runner on tiny books: what it refuses, what a failure costs, what an interruption leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import psutil
import pytest

from lib.book.keys import key_components
from lib.book.runner import executed_path, key_path, run, stale_reasons
from lib.book.worker import scrub
from tests.book.conftest import CODE


def files(book) -> dict[str, bytes]:
    """Returns everything that a run leaves, by path, without the timings."""
    build = book.root / "_build"
    return {
        path.relative_to(build).as_posix(): path.read_bytes()
        for path in build.rglob("*")
        if path.is_file() and path.name != "timings.json"
    }


def outputs(book, chapter: str) -> str:
    notebook = nbformat.read(executed_path(book.root, "quick", chapter), as_version=4)
    return "".join(o.get("text", "") for c in notebook.cells for o in c.get("outputs", []))


@pytest.mark.slow
def test_a_run_executes_what_is_stale_and_leaves_the_same_files_again(book):
    show = "import os\nprint(n, os.environ['OMP_NUM_THREADS'], os.getcwd())"
    book.notebook("part/plain", show)
    done = book.command("run", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "part/sum: started (not executed yet)" in done.stdout
    assert "part/plain: done in" in done.stdout
    assert "TCP" not in done.stdout + done.stderr
    assert outputs(book, "part/plain") == f"100 1 {book.root / 'book' / 'part'}\n"

    first = files(book)
    assert not [name for name in first if name.startswith("work/")]
    record = json.loads(first["records/quick/part/sum.json"])
    assert record["parameters"] == {"n": 50}
    assert record["claims"]["toy.sum"]["values"] == {"ratio": 0.51}
    timings = json.loads((book.root / "_build/executed/quick/timings.json").read_text())
    assert set(timings) == {"part/sum", "part/plain"}
    assert all(t["seconds"] > 0 and t["peak_mib"] > 20 for t in timings.values())

    again = book.command("run")
    assert "2 of 2 chapters are fresh" in again.stdout
    assert "started" not in again.stdout
    forced = book.command("run", "--force", "--jobs", "1")
    assert "asked for by --force" in forced.stdout
    assert files(book) == first


@pytest.mark.slow
def test_a_failing_chapter_is_named_its_old_output_goes_and_the_others_finish(book):
    toc = (book.root / "_toc.yml").read_text()
    book.write("_toc.yml", toc + "      - file: part/killed\n")
    book.notebook("part/sum", "ok = 1", "# a remark\nraise KeyError('no such thing')")
    book.notebook("part/killed", "import os\nos.kill(os.getppid(), 9)")
    stale = [
        book.write(f"_build/executed/quick/part/sum{end}", "{}") for end in (".ipynb", ".key.json")
    ]
    stale.append(book.write("_build/records/quick/part/sum.json", "{}"))
    done = book.command("run", "--jobs", "2")
    assert done.returncode == 1
    assert "failed: part/sum, part/killed" in done.stderr or "part/killed, part/sum" in done.stderr
    assert "part/sum: FAILED in cell 5 of 5" in done.stdout
    assert "the cell begins: # a remark" in done.stdout
    assert "KeyError: 'no such thing'" in done.stdout
    assert "part/killed: FAILED" in done.stdout
    assert "signal SIGKILL; perhaps the machine ran out of memory" in done.stdout
    assert not [path for path in stale if path.exists()]
    assert outputs(book, "part/plain") == "n is 100\n"
    assert set(files(book)) == {
        "executed/quick/part/plain.ipynb",
        "executed/quick/part/plain.key.json",
    }


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_ended_leaves_nothing_half_done_and_resumes(book, how):
    book.notebook("part/plain", "1 + 1")
    book.notebook(
        "part/sum",
        "import os, pathlib, time\nfrom lib.book import claims\nclaims.check('toy.sum', 0.5)",
        "root = pathlib.Path(os.environ['BOOK_ROOT'])",
        "(root / 'reached').write_text(str(os.getpid()))",
        "time.sleep(120 if (root / 'slow').exists() else 0)\nprint('done')",
    )
    slow, reached = book.write("slow", ""), book.root / "reached"
    process = subprocess.Popen(
        [sys.executable, "-m", "lib.book", "run", "--jobs", "1", "part/sum"],
        cwd=CODE,
        env=os.environ | {"BOOK_ROOT": str(book.root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: reached.exists() and reached.read_text())
    kernel = int(reached.read_text())
    process.send_signal(how)
    assert process.wait(timeout=120) in (-how, 130)
    wait_for(lambda: not psutil.pid_exists(kernel))
    left = set(files(book))
    assert not [name for name in left if not name.startswith("work/")], "no final file yet"
    slow.unlink()
    resumed = book.command("run", "--jobs", "1", "part/sum")
    assert resumed.returncode == 0, resumed.stdout
    assert outputs(book, "part/sum") == "done\n"
    whole = files(book)
    assert set(whole) == {
        "executed/quick/part/sum.ipynb",
        "executed/quick/part/sum.key.json",
        "records/quick/part/sum.json",
    }
    if how == signal.SIGKILL:
        assert book.command("run", "--jobs", "1", "--force", "part/sum").returncode == 0
        assert files(book) == whole


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"parameters": None}, "has 0 cells with the tag 'parameters'"),
        ({"parameters": "n = 10 * 10"}, "plain literals"),
        ({"parameters": "print(1)"}, "line 1 is no assignment"),
        ({"parameters": "n = 1\nn = 2"}, "n is assigned twice"),
        ({"parameters": "m = 1"}, "unknown parameter 'n'; its parameters cell has: m"),
        ({"kernel": None}, "names no kernel"),
        ({"kernel": "fortran"}, "kernel 'fortran', which is not installed; installed: .*python3"),
    ],
)
def test_a_malformed_notebook_is_refused_before_anything_runs(book, change, reason):
    book.notebook("part/sum", "1", **change)
    with pytest.raises(ValueError, match=reason) as caught:
        run(book.root)
    assert "part/sum" in str(caught.value)
    assert not (book.root / "_build").exists()


def test_unknown_names_are_refused_with_what_is_allowed(book):
    with pytest.raises(ValueError, match=r"unknown chapter part/x; the notebooks.*part/sum"):
        run(book.root, wanted=["part/x"])
    with pytest.raises(ValueError, match="saw 'fast'; allowed: quick"):
        run(book.root, profile="fast")
    with pytest.raises(ValueError, match="jobs is 0; it must be 1 or more"):
        run(book.root, jobs=0)


def test_a_copy_that_was_touched_or_lost_is_not_served(book):
    pieces = key_components(book.root, "part/plain", "quick", {})
    assert stale_reasons(book.root, "quick", "part/plain", pieces) == ["not executed yet"]
    key = key_path(book.root, "quick", "part/plain")
    book.write(key.relative_to(book.root).as_posix(), "not json")
    assert stale_reasons(book.root, "quick", "part/plain", pieces) == ["its key file is damaged"]
    key.write_text(json.dumps({"components": pieces, "executed": "0", "record": None}))
    copy = executed_path(book.root, "quick", "part/plain")
    assert stale_reasons(book.root, "quick", "part/plain", pieces) == ["its executed copy is gone"]
    copy.write_text("{}")
    assert stale_reasons(book.root, "quick", "part/plain", pieces) == [
        "its executed copy was changed by hand"
    ]


def test_what_differs_between_executions_is_scrubbed():
    stream = {"output_type": "stream", "name": "stdout"}
    cell = nbformat.v4.new_code_cell(
        "x", metadata={"papermill": {"start_time": "now"}, "execution": {"iopub": "now"}}
    )
    cell.outputs = [
        nbformat.from_dict(stream | {"text": "a"}),
        nbformat.from_dict(stream | {"text": "b"}),
        nbformat.from_dict(stream | {"name": "stderr", "text": "c"}),
        nbformat.from_dict(stream | {"text": "d"}),
    ]
    injected = nbformat.v4.new_code_cell("n = 1", metadata={"tags": ["injected-parameters"]})
    notebook = nbformat.v4.new_notebook(metadata={"papermill": {}}, cells=[cell, injected])
    scrub(notebook)
    assert "papermill" not in notebook.metadata
    assert notebook.cells[0].metadata == {}
    assert [o["text"] for o in notebook.cells[0].outputs] == ["ab", "c", "d"]
    assert notebook.cells[1].metadata["tags"] == ["injected-parameters", "remove-cell"]
    assert notebook.cells[1]["id"] == "injected-parameters"
