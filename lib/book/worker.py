"""The process that executes one chapter: papermill in, a clean notebook or an error out.

The runner starts a fresh one per chapter and holds the other end of its standard input: when the
runner dies, however it dies, that pipe closes and the worker takes its kernel down.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lib.book.files import write_atomically

PART, RESULT, CELL = "part.ipynb", "result.json", "cell.txt"


@dataclass(frozen=True)
class Outcome:
    """How an execution ended. ``cell`` counts from 1 in the source notebook; 0 where it is unknown.

    Attributes:
        error: empty where all went well.
        cell: the failing cell.
        cells: how many cells the notebook has.
        line: the first line of the failing cell.
        peak_mib: the kernel's largest resident memory.
    """

    error: str = ""
    cell: int = 0
    cells: int = 0
    line: str = ""
    peak_mib: float = 0.0


def main(job_file: str) -> None:
    """Executes the job that a JSON file describes, and leaves notebook and outcome beside it.

    Args:
        job_file: path of a JSON file with ``notebook``, ``parameters`` and ``kernel``; the working
            folder of the kernel is the notebook's own.
    """
    folder = Path(job_file).parent
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _follow_cells(folder / CELL)
    outcome = _execute(job, folder)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    mib = peak / (2**20 if sys.platform == "darwin" else 2**10)
    fields = asdict(outcome) | {"peak_mib": round(mib, 1)}
    write_atomically(folder / RESULT, json.dumps(fields))


def _execute(job: dict[str, Any], folder: Path) -> Outcome:
    import nbformat
    import papermill

    source = Path(job["notebook"])
    cells = len(json.loads(source.read_text(encoding="utf-8"))["cells"])
    try:
        notebook = papermill.execute_notebook(
            str(source),
            str(folder / PART),
            parameters=job["parameters"],
            kernel_name=job["kernel"],
            cwd=str(source.parent),
            progress_bar=False,
            log_output=True,
            start_timeout=180,
        )
    except papermill.PapermillExecutionError as error:
        return _failure(error, job, source, cells)
    except Exception as error:
        return Outcome(error=f"{type(error).__name__}: {error}", cells=cells)
    nbformat.write(scrub(notebook), folder / PART)
    return Outcome(cells=cells)


def _failure(error: Any, job: dict[str, Any], source: Path, cells: int) -> Outcome:
    """Returns the failing cell as it counts in the source, where papermill's own cell is absent."""
    raw = json.loads(source.read_text(encoding="utf-8"))["cells"]
    tagged = [i for i, c in enumerate(raw) if "parameters" in c["metadata"].get("tags", [])]
    shift = 1 if job["parameters"] and tagged and error.cell_index > tagged[0] else 0
    line = next((line for line in error.source.splitlines() if line.strip()), "")
    position = error.cell_index - shift + 1
    return Outcome(f"{error.ename}: {error.evalue}", position, cells, line.strip())


def scrub(notebook: Any) -> Any:
    """Takes out of an executed notebook whatever differs from one execution to the next.

    Clock times go, papermill's own cell gets a fixed id and leaves the page, and the output that a
    stream delivered in several pieces becomes one.

    Args:
        notebook: the executed notebook; it is changed in place.

    Returns:
        The same notebook.
    """
    notebook.metadata.pop("papermill", None)
    for cell in notebook.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.metadata["tags"] = ["injected-parameters", "remove-cell"]
            cell["id"] = "injected-parameters"
        if cell.cell_type == "code":
            cell.outputs = _merged(cell.outputs)
    return notebook


def _merged(outputs: list) -> list:
    merged: list = []
    for output in outputs:
        last = merged[-1] if merged else {}
        same = output.get("name") == last.get("name")
        if same and output["output_type"] == last.get("output_type") == "stream":
            last["text"] += output["text"]
        else:
            merged.append(output)
    return merged


def _end_with_parent() -> None:
    """Waits for the runner to close its pipe, then ends the kernel and this process at once."""
    sys.stdin.buffer.read()
    import psutil

    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(1)


def _follow_cells(path: Path) -> None:
    """Writes papermill's "Executing Cell 7" to a file, from which the runner says how far it is."""

    class CellFile(logging.Handler):
        """Keeps the number of the last cell in a file."""

        def emit(self, record: logging.LogRecord) -> None:
            """Writes the number of the cell that a message announces."""
            found = re.match(r"Executing Cell (\d+)", record.getMessage())
            if found:
                path.write_text(found[1], encoding="utf-8")

    logger = logging.getLogger("papermill")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(CellFile())
