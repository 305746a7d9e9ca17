"""What padding to the longest text of a part saves over padding to 128 word pieces.

    python -m benchmarks.distill_padding [--quick] [--only LAYERS]

MiniLM with 1 and with 6 layers learns CLINC150 by KD: the trainer's whole step on 64 texts, with
AdamWeightDecay. "128" pads as Appendix E.1 says, in two parts of 32. The other ways sort the batch
by length and pad to the longest text of a part: one part of 64, two of 32, four of 16. All take
turns on the same batches. Tokens are those that pass the network, padding included, per batch,
over an epoch. Memory is the peak of a step in a process of its own, on top of what the loaded
network holds. The largest difference of the logits to those of padding to 128 is that of 64 texts
in evaluation mode.

Without the weights of MiniLM small text encoders of the book take its place.
"""

import argparse
import json

import torch
from torch import Tensor

from benchmarks.distill_cases import (
    ADAM,
    Case,
    drawn_teacher,
    generator,
    minilm_layers,
    random_texts,
)
from benchmarks.rounds import (
    interleave,
    machine,
    own_process,
    peak_of,
    print_table,
    quartiles,
    ratios,
    spread,
)
from lib.distill import TokenExamples, batch_at, micro_batches, predict
from lib.distill.settings import TrainingSettings
from lib.distill.training import Trainer
from lib.models.text import text_encoder

FIXED, BATCH = 128, 64
WAYS = {
    "128": (FIXED, 32),
    "one of 64": (None, 64),
    "two of 32": (None, 32),
    "four of 16": (None, 16),
}
SIZES = {1: (4000, 4), 6: (2000, 2)}  # layers -> texts, rounds


def case_of(layers: int, n: int, padded: int | None) -> Case:
    """MiniLM, or a text encoder of as many layers, on n texts."""
    found = minilm_layers(layers, n, padded)
    if found is not None:
        return found
    tokens, lengths, labels = random_texts(n)
    return Case(
        f"encoder-{layers}",
        f"{layers} layers of width 128, random word pieces",
        lambda: text_encoder(8168, 150, 128, layers, 4, generator=generator()),
        TokenExamples(tokens, lengths, labels, padded),
        drawn_teacher(labels, 150),
        ADAM,
    )


class Stepping:
    """A trainer that takes its next step at every call."""

    def __init__(self, layers: int, n: int, way: str) -> None:
        padded, part = WAYS[way]
        case = case_of(layers, n, padded)
        settings = TrainingSettings("kd", 1000, 0, **case.settings | {"micro_batch": part})
        self.trainer = Trainer(case.student(), case.examples, settings, teacher=case.teacher)
        self.taken = 0

    def __call__(self) -> None:
        self.trainer.step(self.taken)
        self.taken += 1


def tokens_per_batch(examples: TokenExamples, part: int) -> float:
    """The mean number of places, padding included, of the batches of an epoch."""
    n, total = len(examples.labels), 0
    batches = n // BATCH
    for k in range(batches):
        index, view, _ = batch_at(n, 1, BATCH, k, 0)
        for place in micro_batches(index, view, examples.lengths, part):
            total += examples.inputs(index[place], view[place])[0].numel()
    return total / batches


def logit_difference(layers: int, n: int) -> tuple[float, float]:
    """The largest difference of logits between 128 and the longest, and the largest logit."""
    found: list[Tensor] = []
    for padded in (FIXED, None):
        case = case_of(layers, n, padded)
        found.append(predict(case.student(), case.examples, batch_size=BATCH))
    return float((found[0] - found[1]).abs().max()), float(found[0].abs().max())


def memory(layers: int, n: int, way: str) -> dict:
    """Peak memory of a step in this process."""
    torch.set_num_threads(1)
    step, found = Stepping(layers, n, way), {}
    with peak_of(found):
        step()
    return found


def measure(layers: int, n: int, rounds: int, ways: tuple[str, ...]) -> dict:
    """Tokens, time, memory and logits of all ways."""
    case = case_of(layers, n, None)
    print(f"{case.name}: {case.says}, {n} texts", flush=True)
    calls = {way: Stepping(layers, n, way) for way in WAYS}
    seconds = interleave(calls, rounds, label=case.name, warm=0 if layers > 1 else 1)
    del calls
    tokens = {}
    for way, (padded, part) in WAYS.items():
        examples = TokenExamples(
            case.examples.tokens, case.examples.lengths, case.examples.labels, padded
        )
        tokens[way] = tokens_per_batch(examples, part)
    module = "benchmarks.distill_padding"
    return {
        "name": case.name,
        "seconds": seconds,
        "tokens": tokens,
        "real_tokens": float(case.examples.lengths.double().mean()) * BATCH,
        "memory": {way: own_process(module, "--memory", layers, n, way) for way in ways},
        "difference": logit_difference(layers, BATCH),
    }


def lines(found: dict) -> list[list[str]]:
    """A line of the table for each way."""
    rows = []
    for way in WAYS:
        memory = found["memory"].get(way)
        used = None if memory is None else memory["peak_mib"] - (memory["before_mib"] or 0)
        rows.append(
            [
                f"{found['name']}, {way}",
                f"{found['tokens'][way]:.0f}",
                f"{found['tokens'][way] / found['real_tokens']:.2f}",
                f"{1e3 * quartiles(found['seconds'][way])[1]:.0f} ms",
                spread(ratios(found["seconds"], "128", way)),
                "" if used is None else f"{used:.0f}",
                "" if memory is None else f"{memory['peak_mib']:.0f}",
            ]
        )
    return rows


def main(arguments: list[str] | None = None) -> dict[int, dict]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one layer, one round")
    parser.add_argument("--only", type=int, choices=SIZES, help="of so many layers alone")
    parser.add_argument("--memory", nargs=3, help=argparse.SUPPRESS)  # layers, n, way
    options = parser.parse_args(arguments)
    if options.memory:
        layers, n, way = options.memory
        print(json.dumps(memory(int(layers), int(n), way)))
        return {}
    torch.set_num_threads(1)
    wanted = [options.only] if options.only else [1] if options.quick else list(SIZES)
    found = {}
    for layers in wanted:
        n, rounds = (256, 1) if options.quick else SIZES[layers]
        found[layers] = measure(layers, n, rounds, ("128", "two of 32"))
    print(f"\n{machine()}, a step of KD on {BATCH} texts\n")
    heads = ["", "tokens", "/ real", "time", "gain", "step MiB", "peak MiB"]
    print_table(heads, [line for one in found.values() for line in lines(one)])
    for one in found.values():
        largest, size = one["difference"]
        print(f"{one['name']}: logits differ by at most {largest:.1e}; the largest is {size:.2f}")
    return found


if __name__ == "__main__":
    main()
