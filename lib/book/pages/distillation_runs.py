"""What the chapters on full training share: a table of runs, and how to compare two of its rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from lib.book.data_used import use_data
from lib.book.progress import track
from lib.distill import OBJECTIVES
from lib.distill.config import TrainingConfig
from lib.distill.recipes import find_setting, resolve_table
from lib.distill.runs import prepare, train
from lib.distill.settings import TrainingResult


@dataclass(frozen=True)
class MethodRuns:
    """One method in one setting, one student a seed, measured after the last step.

    Attributes:
        method: name of the objective.
        seeds: of the students.
        accuracy: (S,) float64, on the test examples, in percent.
        correct: (S, n) bool, which test examples each student gets right.
        conditional_kl: (S,) float64, mean over the test examples, in nats.
        blocked: (S,) float64, share of the test examples in a blocked state.
        results: what each run ended with.
    """

    method: str
    seeds: tuple[int, ...]
    accuracy: Tensor
    correct: Tensor
    conditional_kl: Tensor
    blocked: Tensor
    results: tuple[TrainingResult, ...]

    @property
    def title(self) -> str:
        """The method's name in the paper."""
        return OBJECTIVES[self.method].title

    @property
    def text(self) -> str:
        """Mean and sample deviation of the accuracies, as the paper prints them."""
        return spread_text(self.accuracy)

    @property
    def counts(self) -> str:
        """How many test examples each student gets right."""
        return ", ".join(str(int(count)) for count in self.correct.sum(-1))


@dataclass(frozen=True)
class Paired:
    """The difference of two methods over common seeds, in points.

    Attributes:
        each: (S,) float64, one difference a seed.
        mean: their mean.
        sd: their sample standard deviation, denominator S - 1.
        half: half the width of the 95 % interval over seeds.
    """

    each: Tensor
    mean: float
    sd: float
    half: float

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half


@dataclass(frozen=True)
class Discordant:
    """How often exactly one of two students is right, on the same test examples.

    Attributes:
        first: (...) int64, examples that only the first student gets right.
        second: (...) int64, examples that only the second one does.
        p_value: (...) float64, two-sided, of the exact sign test that both are equally likely.
    """

    first: Tensor
    second: Tensor
    p_value: Tensor


def interval_factor(seeds: int, level: float = 0.95) -> float:
    r"""Return half the width of an interval over seeds, as a multiple of the sample deviation.

    $$\frac{t_{n-1}(\tfrac12 + \tfrac{\text{level}}2)}{\sqrt n}$$

    For three seeds $t_2(p) = (2p - 1) / \sqrt{2 p (1 - p)}$, and the factor at 95 % is 2.484.

    **Source**: Student's interval for a mean.

    Args:
        seeds: n >= 2.
        level: in (0, 1).

    Returns:
        A number > 0.

    Raises:
        ValueError: if there are fewer than two seeds, or level is not in (0, 1).

    Example:
        >>> round(interval_factor(3), 3)
        2.484
    """
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 2:
        raise ValueError(f"seeds must be an integer >= 2, got {seeds!r}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1), got {level!r}")
    return float(stats.t.ppf(0.5 + level / 2, seeds - 1)) / seeds**0.5


def paired_difference(first: Tensor, second: Tensor) -> Paired:
    r"""Return mean, deviation and 95 % interval of the differences at common seeds.

    $$\bar\delta \pm \frac{t_{n-1}(0.975)}{\sqrt n}\, s_\delta, \qquad \delta_s = a_s - b_s$$

    What both methods share at a seed, such as the order of the data, cancels. The interval speaks
    of further seeds on the same test examples, not of other examples.

    Args:
        first: (S,) accuracies a in percent, S >= 2.
        second: (S,) accuracies b at the same seeds.

    Returns:
        `Paired`.

    Raises:
        ValueError: if the shapes differ or there are fewer than two seeds.

    Example:
        >>> ninety = torch.full((3,), 90.0)
        >>> found = paired_difference(ninety + torch.tensor([1.0, 2.0, 3.0]), ninety)
        >>> found.mean, found.sd
        (2.0, 1.0)
    """
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(
            f"first and second must have one shape (S,), got {tuple(first.shape)} and "
            f"{tuple(second.shape)}"
        )
    each = first.double() - second.double()
    factor = interval_factor(len(each))
    sd = float(each.std())
    return Paired(each, float(each.mean()), sd, factor * sd)


def discordant(first: Tensor, second: Tensor) -> Discordant:
    r"""Count the examples that exactly one of two students gets right, and test the two counts.

    Only these examples tell two students apart: the difference of their accuracies is
    $(b - c) / n$. If both were equally good, $b$ would be binomial with $b + c$ trials and
    probability one half.

    **Source**: McNemar (1947), in its exact form.

    Args:
        first: (..., n) bool, whether the first student is right.
        second: (..., n) bool, on the same examples.

    Returns:
        `Discordant`, with the leading dimensions.

    Raises:
        ValueError: if the shapes differ or a tensor is not bool.

    Example:
        >>> right = torch.tensor([True, True, True, False])
        >>> discordant(right, torch.tensor([False, False, False, False])).p_value
        tensor(0.2500, dtype=torch.float64)
    """
    for name, tensor in (("first", first), ("second", second)):
        if tensor.dtype != torch.bool or tensor.shape != first.shape or tensor.ndim < 1:
            raise ValueError(
                f"{name} must be bool of shape {tuple(first.shape)} with at least one dimension, "
                f"got {tensor.dtype} {tuple(tensor.shape)}"
            )
    only_first, only_second = (first & ~second).sum(-1), (second & ~first).sum(-1)
    total = only_first + only_second
    tail = stats.binom.cdf(torch.minimum(only_first, only_second).numpy(), total.numpy(), 0.5)
    p_value = (2 * torch.as_tensor(tail, dtype=torch.float64)).clamp(max=1.0)
    return Discordant(only_first, only_second, p_value)


def over_examples(first: Tensor, second: Tensor) -> tuple[float, float]:
    r"""Return the mean difference in points, and half its 95 % interval over test examples.

    The score of an example is how many more of the first students than of the second get it right,
    as a share of the seeds. The interval is $1.96\, s / \sqrt n$ over the $n$ scores: what these
    very students would do on other examples.

    Args:
        first: (S, n) bool, students of one method, n >= 2.
        second: (S, n) bool, of another.

    Returns:
        Mean and half width, both in points.

    Raises:
        ValueError: if the shapes differ or there are fewer than two examples.

    Example:
        >>> right, wrong = torch.ones(1, 5, dtype=torch.bool), torch.zeros(1, 5, dtype=torch.bool)
        >>> over_examples(right, wrong)
        (100.0, 0.0)
    """
    if first.shape != second.shape or first.ndim != 2 or first.shape[1] < 2:
        raise ValueError(
            f"first and second must have one shape (S, n) with n >= 2, got {tuple(first.shape)} "
            f"and {tuple(second.shape)}"
        )
    scores = 100 * (first.double() - second.double()).mean(0)
    half = stats.norm.ppf(0.975) * float(scores.std()) / len(scores) ** 0.5
    return float(scores.mean()), float(half)


def run_methods(
    setting: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    teacher: str = "smooth",
    changes: Mapping[str, Any] | None = None,
    keep: bool = False,
) -> dict[str, MethodRuns]:
    """Train every method with every seed from one start, with progress, and note the data.

    Args:
        setting: name of a setting, which decides data, teacher, student and budget.
        methods: names of `OBJECTIVES`.
        seeds: one student each.
        teacher: "smooth" or "sharp".
        changes: entries of the setting's table that differ.
        keep: store finished runs and read them again.

    Returns:
        By method, in the order given.

    Raises:
        ValueError: if a name or a value does not fit, or there is no seed.
        TrainingError: if a run diverges.

    Example:
        >>> short = {"iterations": 20, "snapshots": [], "teacher_iterations": 60}
        >>> run_methods("digits", ["ce"], [42, 43], changes=short)["ce"].correct.shape
        torch.Size([2, 517])
    """
    if not seeds:
        raise ValueError(f"seeds must hold at least one seed, got {seeds!r}")
    note_data(setting, changes)
    domain = find_setting(setting).domain
    configs = [
        TrainingConfig(domain, method, seed, setting, teacher, dict(changes or {}))
        for method in methods
        for seed in seeds
    ]
    labels = prepare(setting, teacher, changes, track).test.labels
    label = f"{setting}, {teacher} teacher, runs"
    texts = [json.dumps(config.to_json(), sort_keys=True) for config in configs]
    results = [_trained(text, keep) for text in track(texts, label)]
    rows = [results[start : start + len(seeds)] for start in range(0, len(results), len(seeds))]
    gather = partial(_gather, seeds=tuple(seeds), labels=labels)
    return {m: gather(m, tuple(row)) for m, row in zip(methods, rows, strict=True)}


def note_data(setting: str, changes: Mapping[str, Any] | None = None) -> None:
    """Note on the page which files a setting reads.

    Args:
        setting: its name.
        changes: entries of its table that differ.
    """
    found = find_setting(setting)
    files = found.data(resolve_table(found, changes or {}))
    for name, sha256 in files.items():
        use_data(name, f"as the setting {setting} reads it", sha256)
    if not files:
        use_data(setting, "synthetic, drawn on this page")


def spread_text(values: Tensor) -> str:
    """Return mean and sample deviation with two decimals, as the paper prints them.

    Args:
        values: (S,); with one value only that is returned.

    Example:
        >>> spread_text(torch.tensor([90.0, 91.0, 92.0]))
        '91.00 ± 1.00'
    """
    mean = f"{float(values.double().mean()):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {float(values.double().std()):.2f}"


@lru_cache(maxsize=1024)
def _trained(config: str, keep: bool) -> TrainingResult:
    """A run that this process has not made yet, without the states it went through."""
    result = train(TrainingConfig.from_json(json.loads(config)), track, keep=keep)
    return replace(result, snapshots={})


def _gather(
    method: str, results: tuple[TrainingResult, ...], seeds: tuple[int, ...], labels: Tensor
) -> MethodRuns:
    """The runs of one method as tensors."""
    measured = {
        name: torch.tensor([result.measures[name] for result in results], dtype=torch.float64)
        for name in ("accuracy", "conditional_kl", "blocked")
    }
    correct = torch.stack([result.test_logits.argmax(-1) == labels for result in results])
    measured["accuracy"] = 100 * measured["accuracy"]
    return MethodRuns(method, seeds, correct=correct, results=results, **measured)
