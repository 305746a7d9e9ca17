"""What the benchmarks of distillation share: interleaved rounds, quartiles, memory, tables."""

import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")  # of Linux: memory of this process by kind


def clock(device: str) -> float:
    """Processor seconds of this process; on a GPU wall seconds, after it has done its work."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def interleave(
    calls: dict[str, Callable[[], object]],
    rounds: int,
    device: str = "cpu",
    label: str = "",
    warm: int = 1,
) -> dict[str, list[float]]:
    """Seconds of each call in every round.

    A round makes each call once, in a new random order, so that what slows the machine down for a
    while slows all of them, and none always follows the same other. The first `warm` rounds do not
    count.
    """
    generator = torch.Generator().manual_seed(0)
    names, seconds = list(calls), {name: [] for name in calls}
    for number in range(warm + rounds):
        for place in torch.randperm(len(names), generator=generator).tolist():
            begin = clock(device)
            calls[names[place]]()
            if number >= warm:
                seconds[names[place]].append(clock(device) - begin)
        tell(f"{label}: round {number + 1} of {warm + rounds}")
    tell("")
    return seconds


def tell(line: str) -> None:
    """Rewrite the line of progress, where somebody watches it."""
    if sys.stderr.isatty():
        print(f"\r{line:<78}", end="" if line else "\r", file=sys.stderr, flush=True)


def ratios(seconds: dict[str, list[float]], name: str, base: str) -> list[float]:
    """The ratio of two calls in each round."""
    return [a / b for a, b in zip(seconds[name], seconds[base], strict=True)]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile."""
    if len(values) == 1:
        return (values[0],) * 3
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """An interval that holds the true median with a probability of 95 %, or all there is.

    Order statistics of a sign test: how many of n values lie below the median is binomial.
    """
    ordered, n = sorted(values), len(values)
    below, term, cut = 0.0, 0.5**n, 0
    while below + term <= 0.025:
        below += term
        term *= (n - cut) / (cut + 1)
        cut += 1
    cut = max(cut - 1, 0)
    return ordered[cut], ordered[n - 1 - cut]


def spread(values: Sequence[float]) -> str:
    """Median and quartiles in print."""
    low, middle, high = quartiles(values)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def mebibytes(kind: str) -> float | None:
    """Memory of this process in MiB: "VmHWM" is the peak, "RssAnon" its own, "RssFile" mapped.

    Where the system does not tell, the peak comes from `getrusage` and the others are None.
    """
    if STATUS.is_file():
        for line in STATUS.read_text().splitlines():
            if line.startswith(f"{kind}:"):
                return int(line.split()[1]) / 1024
    if kind != "VmHWM":
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if platform.system() == "Darwin" else 1024)


@contextmanager
def peak_of(found: dict) -> Iterator[None]:
    """Put the peak memory of the block into `found`, in MiB, and what was held before it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    except OSError:
        found["peak_includes_loading"] = True
    found["before_mib"] = mebibytes("VmRSS")
    yield
    found["peak_mib"] = mebibytes("VmHWM")
    found["own_mib"], found["mapped_mib"] = mebibytes("RssAnon"), mebibytes("RssFile")


def own_process(module: str, *arguments: object) -> dict:
    """What `python -m module arguments` prints as its last line, as JSON."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def machine(device: str = "cpu") -> str:
    """The machine in words."""
    if torch.device(device).type == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{platform.machine()}, {torch.get_num_threads()} thread, torch {torch.__version__}"


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they need to be; the first to the left, the others to the right."""
    lines = [[str(cell) for cell in row] for row in [heads, *rows]]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        first, *rest = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *rest]).rstrip())
    print(flush=True)
