"""What the page "Full training" runs: first steps side by side, the search, large steps."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lib.book.pages.distillation_runs import MethodRuns, run_methods
from lib.book.pages.full_training_tables import THREE
from lib.distill import OBJECTIVES
from lib.distill.config import TrainingConfig
from lib.distill.evaluation import predict
from lib.distill.examples import Examples
from lib.distill.partition import teacher_chosen
from lib.distill.recipes import find_setting
from lib.distill.runs import make_student, prepare, settings_of
from lib.distill.teacher_cache import model_digest
from lib.distill.training import Trainer, TrainingError

SEARCH = "mnist-5k"  # the setting of the search, at every profile
SHORT = {"iterations": 375, "snapshots": []}  # 6 epochs
STEPPING = ("ce", "tpkd-no-projection", "tpkd", "compensation-only")  # rules that meet large steps
_EPOCH = 62.5  # steps
_MEASURED = ("accuracy", "conditional KL", "range of the logits")
FACTORS = {
    "label smoothing of the teacher": ((0.0, 0.1, 0.3), 0.1, ("kd", "tpkd")),
    "temperature of KD": ((1.0, 4.0, 8.0), 4.0, ("kd",)),
    "loudness of the teacher": ((0.25, 1.0, 4.0), 1.0, ("kd", "tpkd")),
    "learning rate": ((0.01, 0.1), 0.01, THREE),
    "epochs": ((2, 6, 12), 6, THREE),
    "width of the student": ((16, 64, 256), 64, THREE),
}  # values, the one of the comparison, the methods that it touches


def compare_beginnings(
    setting: str,
    methods: Sequence[str],
    seed: int,
    steps: int,
    teacher: str = "smooth",
    changes: Mapping[str, Any] | None = None,
) -> list[dict[str, str]]:
    """Take the first steps of several methods and say what they started from, read, and became.

    Args:
        setting: name of a setting.
        methods: names of `OBJECTIVES`.
        seed: of the runs.
        steps: how many, >= 1.
        teacher: "smooth" or "sharp".
        changes: entries of the setting's table that differ.

    Returns:
        By method: its title, and the first digits of three SHA-256 values: of the weights before,
        of all examples and views in the order in which the network read them, of the weights after.

    Example:
        >>> short = {"teacher_iterations": 60}
        >>> first, second = compare_beginnings("digits", ["ce", "kd"], 42, 2, changes=short)
        >>> first["examples in order"] == second["examples in order"]
        True
    """
    materials, domain = prepare(setting, teacher, changes), find_setting(setting).domain
    rows = []
    for method in methods:
        config = TrainingConfig(domain, method, seed, setting, teacher, dict(changes or {}))
        student, watched = make_student(config, materials), _Watched(materials.examples)
        before = model_digest(student)
        trainer = Trainer(student, watched, settings_of(config), teacher=materials.teacher)
        watched.seen = hashlib.sha256()
        for iteration in range(steps):
            trainer.step(iteration)
        digests = before, watched.seen.hexdigest(), model_digest(trainer.student)
        names = "weights before", "examples in order", f"weights after {steps} steps"
        found = {name: digest[:8] for name, digest in zip(names, digests, strict=True)}
        rows.append({"method": OBJECTIVES[method].title} | found)
    return rows


def teacher_share(
    setting: str,
    seeds: Sequence[int],
    teacher: str = "smooth",
    changes: Mapping[str, Any] | None = None,
) -> Tensor:
    """Return the share of the training examples for which DP-U takes the teacher.

    The student before training is computed anew for each seed, in every view.

    Args:
        setting: name of a setting.
        seeds: of the students.
        teacher: "smooth" or "sharp".
        changes: entries of the setting's table that differ.

    Returns:
        (S,) float64, in [0, 1].

    Example:
        >>> float(teacher_share("digits", [42], changes={"teacher_iterations": 60})) > 0
        True
    """
    materials, domain = prepare(setting, teacher, changes), find_setting(setting).domain
    shares = []
    for seed in seeds:
        config = TrainingConfig(domain, "dp-u", seed, setting, teacher, dict(changes or {}))
        student = make_student(config, materials)
        views = range(materials.examples.views)
        frozen = torch.stack([predict(student, materials.examples, view) for view in views])
        shares.append(teacher_chosen(materials.teacher, frozen, None).double().mean())
    return torch.stack(shares)


def logit_gap(first: MethodRuns, second: MethodRuns) -> float:
    """Return the largest difference of the final test logits at the same seed.

    Args:
        first: runs of one method.
        second: runs of another, in the same setting and with the same seeds.

    Returns:
        A number >= 0; 0 means equal to the last bit.
    """
    pairs = zip(first.results, second.results, strict=True)
    return max(float((a.test_logits - b.test_logits).abs().max()) for a, b in pairs)


def search(
    factor: str, seeds: Sequence[int], keep: bool = False
) -> dict[float, dict[str, MethodRuns]]:
    """Train CE, KD and TPKD on the small digits of MNIST while one thing varies.

    Runs that a value does not touch are those of the comparison.

    Args:
        factor: one of `FACTORS`.
        seeds: one student each.
        keep: store finished runs and read them again.

    Returns:
        By value of the factor and by method.

    Raises:
        ValueError: if there is no such factor.
    """
    if factor not in FACTORS:
        raise ValueError(f"factor must be one of {', '.join(FACTORS)}, got {factor!r}")
    values, usual, touched = FACTORS[factor]
    found = {}
    for value in values:
        changes = SHORT | ({} if value == usual else factor_changes(factor, value))
        rows = run_methods(SEARCH, THREE, seeds, changes=SHORT, keep=keep)
        found[value] = rows | run_methods(SEARCH, touched, seeds, changes=changes, keep=keep)
    return found


def factor_changes(factor: str, value: float) -> dict[str, Any]:
    """Return the entries of the setting's table that a factor changes.

    Args:
        factor: one of `FACTORS`.
        value: of the factor.

    Returns:
        Name -> value.

    Example:
        >>> factor_changes("epochs", 2)
        {'iterations': 125}
    """
    loud = {"kd": {"kd_weight": value}, "tpkd": {"weight": value / 2}}
    return {
        "label smoothing of the teacher": {"smooth": value},
        "temperature of KD": {"options": {"kd": {"temperature": value}}},
        "loudness of the teacher": {"options": loud},
        "learning rate": {"learning_rate": value},
        "epochs": {"iterations": int(value * _EPOCH)},
        "width of the student": {"widths": [value]},
    }[factor]


def large_step_rows(
    step: float, seeds: Sequence[int], keep: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    """Train four update rules on the small digits with one learning rate; some will not survive.

    Args:
        step: learning rate.
        seeds: one student each.
        keep: store finished runs and read them again.

    Returns:
        A row for each rule: accuracy, conditional KL and the mean range of the logits, all on the
        test examples. And what the guard said where it stopped a run.
    """
    changes = SHORT | {"learning_rate": step}
    rows, messages = [], []
    for method in STEPPING:
        row = {"method": OBJECTIVES[method].title}
        try:
            found = run_methods(SEARCH, [method], seeds, changes=changes, keep=keep)[method]
        except TrainingError as error:
            messages.append(str(error))
            rows.append(row | dict.fromkeys(_MEASURED, "stopped"))
            continue
        logits = torch.stack([result.test_logits for result in found.results])
        values = found.text, found.conditional_kl.mean(), (logits.amax(-1) - logits.amin(-1)).mean()
        rows.append(row | dict(zip(_MEASURED, values, strict=True)))
    return rows, messages


class _Watched:
    """Examples that note which of them were read, in which order."""

    def __init__(self, examples: Examples) -> None:
        self.examples, self.seen = examples, hashlib.sha256()
        self.labels, self.views, self.lengths = examples.labels, examples.views, examples.lengths

    def inputs(self, index: Tensor, view: Tensor) -> tuple[Tensor, ...]:
        for tensor in (index, view):
            self.seen.update(tensor.cpu().contiguous().numpy().tobytes())
        return self.examples.inputs(index, view)

    def digest(self) -> str:
        return self.examples.digest()
