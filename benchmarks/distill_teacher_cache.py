"""What the cache of the teacher's logits saves: time and memory of a step without the teacher.

    python -m benchmarks.distill_teacher_cache [--quick] [--only NAME] [--device cuda]

Three ways to get the teacher's logits for a batch of 64 into a step of KD: a forward pass of the
teacher in every step; rows of the cache, mapped from its file; rows of the same table read into
memory. All take turns on the same batches; a gain is the time of the first way over that of
another, as median [quartiles] over the rounds. "pays after" is the number of epochs of one run
after which filling the cache, for all views, has cost less than it saved; runs of other methods
and seeds read the same file for nothing.

Memory, on a CPU: every way in a process of its own, with a table as large as that of the whole data
set; the peak of its steps, in memory of its own and mapped from files, which the system can take
back at any time. "no teacher" is a step of CE. torch alone maps some 300 MiB.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.distill_cases import generator, texts
from benchmarks.rounds import (
    clock,
    interleave,
    machine,
    own_process,
    peak_of,
    print_table,
    quartiles,
    ratios,
    spread,
)
from lib.datasets.phrases import synthetic_phrases
from lib.distill import (
    Examples,
    ImageExamples,
    TokenExamples,
    batch_at,
    cached_logits,
    fixed_views,
    objective_loss,
    read_checkpoint,
    write_checkpoint,
)
from lib.models.pretrained import kept_word_pieces, minilm, weights_here
from lib.models.residual import residual
from lib.models.text import text_encoder

WAYS = ("forward", "mapped", "in memory")
MEASURED = ("residual", "minilm")  # whose memory
BATCH = 64


@dataclass(frozen=True)
class Pair:
    """A teacher, a student, and what they read.

    Attributes:
        says: what they are.
        teacher: makes the teacher.
        student: makes the student.
        examples: n of them in V views.
        rounds: of the timing.
        table: (V, N, K) of the whole data set.
    """

    says: str
    teacher: Callable[[], nn.Module]
    student: Callable[[], nn.Module]
    examples: Examples = field(repr=False)
    rounds: int
    table: tuple[int, int, int]


def encoders(n: int) -> Pair:
    """A text encoder of four layers teaches one of a single layer."""
    tokens, lengths, labels = synthetic_phrases(20, n, 600, 5, generator=generator())
    return Pair(
        "text encoders, 4 layers of width 128 and 1 of 64, synthetic phrases",
        lambda: text_encoder(600, 20, 128, 4, 4, generator=generator()),
        lambda: text_encoder(600, 20, 64, 1, 4, generator=generator()),
        TokenExamples(tokens, lengths, labels),
        30,
        (1, 6000, 20),
    )


def residuals(n: int, views: int = 8, widths: tuple[int, int] = (32, 8)) -> Pair:
    """A wide residual network teaches a narrow one, in eight views of random images."""
    images = torch.rand(n, 3, 32, 32, generator=generator())
    labels = torch.randint(100, (n,), generator=generator())
    wide, narrow = widths
    return Pair(
        f"residual networks, depth 14, widths {wide} and {narrow}, {views} views",
        lambda: residual(14, 100, wide, generator=generator()),
        lambda: residual(14, 100, narrow, generator=generator()),
        ImageExamples(images, labels, *fixed_views(n, views, 4, generator())),
        6,
        (views, 50_000, 100),
    )


def minilms(n: int) -> Pair | None:
    """MiniLM teaches its own first layer; None without the weights."""
    if not weights_here("minilm"):
        return None
    tokens, lengths, labels, where = texts(n)
    kept = kept_word_pieces(tokens)
    return Pair(
        f"MiniLM, 6 layers and 1, {where}",
        lambda: minilm(6, 150, generator=generator(), vocabulary=kept),
        lambda: minilm(1, 150, generator=generator(), vocabulary=kept),
        TokenExamples(tokens, lengths, labels),
        8,
        (1, 18_000, 150),
    )


PAIRS = {"encoder": (encoders, 2000), "residual": (residuals, 256), "minilm": (minilms, 768)}


class Steps:
    """Steps of KD, or of CE without rows of a teacher."""

    def __init__(
        self,
        pair: Pair,
        device: str,
        rows: Callable[[tuple[Tensor, ...], Tensor, Tensor], Tensor] | None,
    ) -> None:
        self.examples, self.device, self.rows, self.taken = pair.examples, device, rows, 0
        self.student = pair.student().to(device)
        self.optimiser = torch.optim.SGD(self.student.parameters(), 1e-3, 0.9)

    def __call__(self) -> None:
        n, views = len(self.examples.labels), self.examples.views
        index, view, _ = batch_at(n, views, min(BATCH, n), self.taken, 0)
        inputs = tuple(x.to(self.device) for x in self.examples.inputs(index, view))
        labels = self.examples.labels[index].to(self.device)
        teacher = None if self.rows is None else self.rows(inputs, index, view).to(self.device)
        method = "ce" if teacher is None else "kd"
        self.optimiser.zero_grad()
        objective_loss(method, self.student(*inputs), teacher, labels).backward()
        self.optimiser.step()
        self.taken += 1


def source(way: str, pair: Pair, table: Tensor, device: str) -> Callable | None:
    """Where the rows of the teacher come from."""
    if way == "no teacher":
        return None
    if way == "forward":
        teacher = pair.teacher().to(device).eval()
        return torch.no_grad()(lambda inputs, index, view: teacher(*inputs))
    held = table.clone() if way == "in memory" else table
    return lambda inputs, index, view: held[view, index]


def time_ways(name: str, pair: Pair, folder: str, device: str, factor: float) -> dict:
    """Seconds of each way, and of filling the cache and of opening it."""
    teacher, marks = pair.teacher().to(device), [clock(device)]
    for _ in range(2):
        table = cached_logits(teacher, pair.examples, folder)
        marks.append(clock(device))
    calls = {way: Steps(pair, device, source(way, pair, table, device)) for way in WAYS}
    seconds = interleave(calls, max(1, round(pair.rounds * factor)), device, name)
    return {
        "seconds": seconds,
        "fill_s": marks[1] - marks[0],
        "open_s": marks[2] - marks[1],
        "n": len(pair.examples.labels),
    }


def memory(name: str, way: str, n: int, path: str) -> dict:
    """Peak memory of some steps in this process, with a table from a file."""
    torch.set_num_threads(1)
    make, _ = PAIRS[name]
    pair, table = make(n), None
    if way in ("mapped", "in memory"):
        table = read_checkpoint(path, mapped=True)[0]["logits"]
    rows = source(way, pair, table, "cpu")
    del table
    steps, found = Steps(pair, "cpu", rows), {}
    with peak_of(found):
        for _ in range(3):
            steps()
    return found


def all_memory(name: str, pair: Pair, folder: str) -> dict[str, dict]:
    """Peak memory of every way, each in its own process."""
    path, n = Path(folder) / f"{name}.safetensors", len(pair.examples.labels)
    write_checkpoint(path, {"logits": torch.randn(pair.table, generator=generator())}, {})
    module = "benchmarks.distill_teacher_cache"
    ways = ("no teacher", *WAYS)
    return {way: own_process(module, "--memory", name, way, n, path) for way in ways}


def time_line(name: str, found: dict) -> list[str]:
    seconds = found["seconds"]
    medians = {way: quartiles(seconds[way])[1] for way in WAYS}
    saved = (medians["forward"] - medians["mapped"]) * found["n"] / BATCH
    return [
        name,
        f"{1e3 * medians['forward']:.1f} ms",
        f"{1e3 * medians['mapped']:.1f} ms",
        spread(ratios(seconds, "forward", "mapped")),
        spread(ratios(seconds, "forward", "in memory")),
        f"{found['fill_s']:.1f} s",
        f"{1e3 * found['open_s']:.0f} ms",
        f"{found['fill_s'] / saved:.1f} epochs" if saved > 0 else "never",
    ]


def memory_line(name: str, found: dict) -> list[str]:
    cells = [f"{math.prod(found['table']) * 4 / 2**20:.0f}"]
    for one in found["memory"].values():
        mapped = one["mapped_mib"] or 0
        cells.append(f"{one['peak_mib'] - mapped:.0f} + {mapped:.0f}")
    return [name, *cells]


def main(arguments: list[str] | None = None) -> dict[str, dict]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="text encoders alone, no memory")
    parser.add_argument("--only", choices=PAIRS, action="append", help="of these pairs alone")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--memory", nargs=4, help=argparse.SUPPRESS)  # name, way, n, file
    options = parser.parse_args(arguments)
    if options.memory:
        name, way, n, path = options.memory
        print(json.dumps(memory(name, way, int(n), path)))
        return {}
    torch.set_num_threads(1)
    wanted = options.only or (["encoder"] if options.quick else list(PAIRS))
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            make, n = PAIRS[name]
            n = n // 4 if options.quick else n
            pair = make(n)
            if pair is None:
                print(f"{name}: left out, its weights are not installed")
                continue
            print(f"{name}: {pair.says}, {n} examples", flush=True)
            factor = 0.25 if options.quick else 1
            found[name] = time_ways(name, pair, folder, options.device, factor)
            if options.device == "cpu" and not options.quick and name in MEASURED:
                found[name] |= {"memory": all_memory(name, pair, folder), "table": pair.table}
    report(found, options.device)
    return found


def report(found: dict[str, dict], device: str) -> None:
    print(f"\n{machine(device)}, a step of KD on {BATCH} examples\n")
    heads = ["", "forward", "mapped", "gain, mapped", "gain, in memory", "fill", "open"]
    print_table([*heads, "pays after"], [time_line(*item) for item in found.items()])
    measured = {name: one for name, one in found.items() if "memory" in one}
    if measured:
        ways = next(iter(measured.values()))["memory"]
        rows = [memory_line(name, one) for name, one in measured.items()]
        print_table(["peak MiB, own + mapped", "table", *ways], rows)


if __name__ == "__main__":
    main()
