"""Everything that only a GPU can tell about the distillation code, in one run of at most 8 minutes.

    python -m benchmarks.gpu_check [--out FOLDER] [--part NAME ...] [--limit 470]
    python -m benchmarks.gpu_check --device cpu --tiny     # the script itself, without a GPU

    machine      what the GPU is, and how fast it copies
    objectives   losses and gradients of all methods, GPU against CPU, float32 and float64
    runs         20 steps of training on the CPU and on the GPU from the same start
    precision    the trainer in float32, amp-float16 and amp-bfloat16: speed, memory, loss
    projection   the safe-cone projection and a step of TPKD's loss against softmax
    cache        a teacher in every step against its cached logits
    tests        pytest -k cuda
    table4       all methods of Table 4 once, short, on CIFAR-100 or what stands in for it

Every part runs in a process of its own with its own time limit (with --tiny, that of the whole) and
writes what it has as it goes: one that fails, hangs or runs out of time costs no other part. The
records are in gpu-check.json in the folder (FOLDER, or $OUT, or _build/gpu-check), what the parts
printed in gpu-check.log. The exit status is 0 if every part passed.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks import gpu_parts, gpu_speed
from benchmarks.gpu_record import Place, Record, read_record
from benchmarks.rounds import print_table

_PATIENCE = 5.0  # seconds between a polite and a rude end
_LEAST = 5.0  # seconds below which no part is started


@dataclass(frozen=True)
class Part:
    """One thing to find out.

    Attributes:
        work: does it, and puts what it finds into the record of its place.
        limit: seconds.
    """

    work: Callable[[Place], None]
    limit: float


PARTS = {
    "machine": Part(gpu_parts.machine, 40),
    "objectives": Part(gpu_parts.objectives, 60),
    "runs": Part(gpu_parts.runs, 60),
    "precision": Part(gpu_parts.precision, 90),
    "projection": Part(gpu_speed.projection, 40),
    "cache": Part(gpu_speed.cache, 50),
    "tests": Part(gpu_speed.tests, 100),
    "table4": Part(gpu_speed.table4, 200),
}


def work(name: str, device: str, tiny: bool, limit: float, path: Path, log: Path) -> None:
    """Do a part in this process, which was forked for it, and end it."""
    sys.stdout = sys.stderr = stream = log.open("a", buffering=1)
    for descriptor in (1, 2):  # of programs that the part starts
        os.dup2(stream.fileno(), descriptor)
    print(f"\n=== {name}", flush=True)
    record = Record(path)
    try:
        if tiny:
            torch.set_num_threads(1)
        PARTS[name].work(Place(device, tiny, time.monotonic() + limit, record))
        record.finish()
    except BaseException as error:
        traceback.print_exc()
        record.fail(error)
        raise SystemExit(1) from None


def run_part(name: str, options: argparse.Namespace, limit: float, log: Path) -> dict:
    """Start a part, wait for it as long as it may take, and return its record."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record.json"
        arguments = (name, options.device, options.tiny, limit, path, log)
        began = time.monotonic()
        process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
        process.start()
        process.join(limit)
        late = process.is_alive()
        if late:
            process.terminate()
            process.join(_PATIENCE)
            if process.is_alive():
                process.kill()
                process.join()
        found = read_record(path)
    if late:
        found["status"] = "out of time"
    elif found["status"] == "running":
        found |= {"status": "failed", "error": f"ended with status {process.exitcode}"}
    return found | {"seconds": round(time.monotonic() - began, 1), "limit": round(limit, 1)}


def write(folder: Path, found: dict) -> None:
    """Replace the file of the records by a newer one."""
    part = folder / "gpu-check.json.part"
    part.write_text(json.dumps(found, indent=1) + "\n")
    part.replace(folder / "gpu-check.json")


def check(options: argparse.Namespace, folder: Path) -> dict:
    """Run all parts that are wanted, within the limit of the whole."""
    log = folder / "gpu-check.log"
    log.write_text("")
    end = time.monotonic() + options.limit
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": options.device,
        "tiny": options.tiny,
        "torch": torch.__version__,
        "parts": {},
    }
    for name in options.part or PARTS:
        left = end - time.monotonic()
        limit = left if options.tiny else min(PARTS[name].limit, left)
        if limit < _LEAST:
            one = {"status": "not run", "error": "no time was left"}
        else:
            print(f"{name}: at most {limit:.0f} s", flush=True)
            one = run_part(name, options, limit, log)
            print(f"{name}: {one['status']} after {one['seconds']:.0f} s", flush=True)
        found["parts"][name] = one
        write(folder, found)
    return found


def report(found: dict) -> None:
    """Print what was found, in short."""
    rows = []
    for name, one in found["parts"].items():
        checks = one.get("checks", {})
        wrong = [what for what, row in checks.items() if not row["holds"]]
        note = one.get("error") or ", ".join(wrong[:3])
        rows.append([name, one["status"], len(checks), len(wrong), note[:60]])
    print()
    print_table(["part", "status", "checks", "wrong", "first"], rows)
    for one in found["parts"].values():
        for line in one.get("says", []):
            print(line)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes, to try the script")
    parser.add_argument("--part", action="append", choices=PARTS, help="this part; may be repeated")
    parser.add_argument("--out", type=Path, help="folder of the records")
    parser.add_argument("--limit", type=float, default=470.0, help="seconds of the whole")
    options = parser.parse_args(arguments)
    folder = options.out or Path(os.environ.get("OUT") or "_build/gpu-check")
    folder.mkdir(parents=True, exist_ok=True)
    found = check(options, folder)
    report(found)
    return 0 if all(one["status"] == "passed" for one in found["parts"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
