"""What one training step of each method costs, in steps with the plain cross-entropy.

    python -m benchmarks.distill_steps [--quick] [--rounds 1.0] [--only NAME] [--device cuda]

Four students: a perceptron, a small text encoder, the last stage of EfficientNet-Lite0 and the
first layer of MiniLM, the last two where their weights are installed. A step is the whole step of
the trainer, from the choice of the batch of 64 to the optimiser; the teacher's logits are given,
as from the cache. All methods take turns, one step each in every round and in a new order, so that
a ratio is one of the same moment; a ratio is printed as median [quartiles] over the rounds. CE and
KD take part twice: how far these are from 1 is noise.

The last table tests one claim, that a step of TPKD costs no more than one of KD, within noise: the
95 % interval of the median ratio TPKD / KD meets that of KD / KD, or lies below it. Processor time
on a CPU, one thread.
"""

import argparse

import torch

from benchmarks.distill_cases import (
    Case,
    lite0_stage,
    minilm_layers,
    small_encoder,
    small_perceptron,
)
from benchmarks.rounds import (
    interleave,
    machine,
    median_interval,
    print_table,
    quartiles,
    ratios,
    spread,
)
from lib.distill import OBJECTIVES
from lib.distill.settings import TrainingSettings
from lib.distill.training import Trainer

AGAIN = ("ce", "kd")  # take part twice
CASES = {
    "perceptron": (small_perceptron, {}, 200),
    "encoder": (small_encoder, {}, 60),
    "lite0": (lite0_stage, {}, 9),
    "minilm": (minilm_layers, {"layers": 1, "n": 6000}, 6),
}  # name -> how it is made, with what, and rounds
QUICK = {"perceptron": 60, "encoder": 20}  # rounds


class Stepping:
    """A trainer that takes its next step at every call."""

    def __init__(self, case: Case, method: str, device: str) -> None:
        settings = TrainingSettings(method, 100_000, 0, **case.settings)
        student = case.student()
        self.trainer = Trainer(
            student, case.examples, settings, teacher=case.teacher, device=device
        )
        self.taken = 0

    def __call__(self) -> None:
        self.trainer.step(self.taken)
        self.taken += 1


def measure(case: Case, rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds of a step of every method in every round."""
    runs = {name: Stepping(case, name, device) for name in OBJECTIVES}
    runs |= {f"{name} again": Stepping(case, name, device) for name in AGAIN}
    return interleave(runs, rounds, device, case.name, warm=2)


def describe(name: str, found: list[dict]) -> list[str]:
    """A line of the first table: ratios to CE."""
    return [name, *(spread(ratios(seconds, name, "ce")) for seconds in found)]


def compare(case: Case, seconds: dict[str, list[float]]) -> list[str]:
    """A line of the second table: TPKD and KD."""
    ours, noise = ratios(seconds, "tpkd", "kd"), ratios(seconds, "kd again", "kd")
    (low, high), (least, most) = median_interval(ours), median_interval(noise)
    return [
        case.name,
        spread(ours),
        f"{low:.3f} to {high:.3f}",
        f"{least:.3f} to {most:.3f}",
        "more" if low > most else "less" if high < least else "within noise",
        str(len(ours)),
    ]


def main(arguments: list[str] | None = None) -> dict[str, dict[str, list[float]]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the two small students, few rounds")
    parser.add_argument("--rounds", type=float, default=1.0, help="factor of the rounds")
    parser.add_argument("--only", choices=CASES, action="append", help="of these students alone")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases, found = [], []
    for name, (make, sizes, rounds) in CASES.items():
        if name not in (options.only or (QUICK if options.quick else CASES)):
            continue
        case = make(**sizes)
        if case is None:
            print(f"{name}: left out, its weights are not installed")
            continue
        rounds = QUICK.get(name, 2) if options.quick else rounds
        cases.append(case)
        found.append(measure(case, max(1, round(rounds * options.rounds)), options.device))
    report(cases, found, options.device)
    return {case.name: seconds for case, seconds in zip(cases, found, strict=True)}


def report(cases: list[Case], found: list[dict], device: str) -> None:
    print(f"{machine(device)}; " + "; ".join(f"{case.name}: {case.says}" for case in cases) + "\n")
    base = [f"{1e3 * quartiles(seconds['ce'])[1]:.2f} ms" for seconds in found]
    rows = [describe(name, found) for name in found[0] if name not in ("ce", "kd again")]
    print_table(["step / step of CE", *(case.name for case in cases)], [["ce", *base], *rows])
    heads = ["TPKD / KD", "median [quartiles]", "95 % of median", "KD / KD", "TPKD costs"]
    rows = [compare(case, seconds) for case, seconds in zip(cases, found, strict=True)]
    print_table([*heads, "rounds"], rows)


if __name__ == "__main__":
    main()
