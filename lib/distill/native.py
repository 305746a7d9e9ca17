"""What a run's own optimiser makes of different directions: single steps, and many of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lib.distill.evaluation import Progress, measure
from lib.distill.example_checks import check_index
from lib.distill.states import RunState, outputs
from lib.tpkd import conditional_kl

OBSERVED_AT = (0, 1, 8, 32, 64, 128)  # of Appendix E.4
PAIR = ("tpkd", "compensation-only")


@dataclass(frozen=True)
class NativePairs:
    """Steps of two methods from one state, on B batches each.

    Attributes:
        start: (B,), mean conditional KL of each batch before the step.
        ends: by method, (B,) after it.
    """

    start: Tensor
    ends: Mapping[str, Tensor]

    @property
    def gain(self) -> Tensor:
        """(B,), conditional KL after compensation only minus after TPKD."""
        return self.ends["compensation-only"] - self.ends["tpkd"]


def native_pairs(
    state: RunState,
    index: Tensor,
    view: Tensor,
    methods: Sequence[str] = PAIR,
    learning_rate: float | None = None,
    progress: Progress | None = None,
) -> NativePairs:
    r"""Take a training step with each method, from the same state and on the same batches.

    $$G_{\rm native} = \bar L_{\rm cond}(\theta^+_{\rm C}) - \bar L_{\rm cond}(\theta^+_{\rm T})$$

    Each step restores weights, optimiser history, buffers and scaler, and draws the same random
    numbers. Before and after, the batch is measured in evaluation mode.

    **Source**: Yuan & Tao, Table 3 and Appendix E.3.

    Args:
        state: where every step starts.
        index: (B, N) int64, the batches.
        view: (B, N) int64, their views.
        methods: names of `OBJECTIVES`.
        learning_rate: of the step; None for that of the run's schedule.
        progress: called with the batches and a label.

    Returns:
        `NativePairs`.

    Raises:
        ValueError: if an argument does not fit, or there is no batch.
        TrainingError: if a step diverges.
    """
    if index.ndim != 2 or not len(index):
        raise ValueError(f"index must have shape (B, N) with B >= 1, got {tuple(index.shape)}")
    trainers = {name: state.trainer(name, 1, learning_rate) for name in methods}
    network = state.network()
    start, ends = [], {name: [] for name in methods}
    for rows in _tracked(progress, range(len(index)), "pairs"):
        start.append(_error(state, network, index[rows], view[rows]))
        for name, trainer in trainers.items():
            trainer.load_state(dict(state.saved))
            trainer.step_on(index[rows], view[rows], state.iteration)
            ends[name].append(_error(state, trainer.student, index[rows], view[rows]))
    return NativePairs(torch.stack(start), {name: torch.stack(x) for name, x in ends.items()})


@dataclass(frozen=True)
class Continuation:
    """How several methods go on from one state.

    Attributes:
        iterations: numbers of steps, at which the observation set was measured.
        measures: by method, one row of `measure` for each of them.
        logits: by method, (m, K) of the observed examples at the last of them.
    """

    iterations: tuple[int, ...]
    measures: Mapping[str, list[dict]]
    logits: Mapping[str, Tensor] = field(repr=False)

    def conditional_kl(self, method: str) -> list[float]:
        """The mean conditional KL of the observation set, one number for each iteration."""
        return [row["conditional_kl"] for row in self.measures[method]]


def continue_run(
    state: RunState,
    methods: Sequence[str],
    index: Tensor,
    view: Tensor,
    observed: Tensor,
    at: Iterable[int] = OBSERVED_AT,
    learning_rate: float | None = None,
    progress: Progress | None = None,
) -> Continuation:
    """Go on from a state with each method along the same batches, and watch other examples.

    Each method computes its directions from its own current student.

    **Source**: Yuan & Tao, Section 6 and Appendix E.4.

    Args:
        state: where every method starts.
        methods: names of `OBJECTIVES`.
        index: (T, N) int64, the batches, one for each step.
        view: (T, N) int64, their views.
        observed: (m,) int64, the examples that are measured, in view 0; disjoint from the batches.
        at: numbers of steps in [0, T] after which to measure.
        learning_rate: a constant rate; None for the run's own schedule.
        progress: called with the steps of a method and a label.

    Returns:
        `Continuation`.

    Raises:
        ValueError: if an observed example is trained on, or a number of steps is outside its range.
        TrainingError: if a method diverges.
    """
    stops, steps = sorted(set(at)), len(index)
    if not stops or not all(isinstance(k, int) and 0 <= k <= steps for k in stops):
        raise ValueError(f"at must hold numbers of steps in [0, {steps}], got {stops}")
    shared = int(torch.isin(observed, index).sum())
    if shared:
        raise ValueError(f"observed must be disjoint from the batches, got {shared} in both")
    seen = torch.zeros_like(observed)
    check_index(observed, seen, len(state.examples.labels), 1)
    teacher, labels = state.teacher[0, observed], state.examples.labels[observed]
    found: dict[str, list[dict]] = {}
    logits: dict[str, Tensor] = {}
    for name in methods:
        trainer, found[name] = state.trainer(name, max(steps, 1), learning_rate), []
        for k in _tracked(progress, range(stops[-1] + 1), f"steps of {name}"):
            if k in stops:
                logits[name] = outputs(trainer.student, state.examples, observed, seen)
                found[name].append(measure(logits[name], teacher, labels))
            if k < stops[-1]:
                trainer.step_on(index[k], view[k], state.iteration + k)
    return Continuation(tuple(stops), found, logits)


def _error(state: RunState, student: nn.Module, index: Tensor, view: Tensor) -> Tensor:
    """The mean conditional KL of a batch, in float64."""
    logits = outputs(student, state.examples, index, view).to(torch.float64)
    teacher = state.teacher[view, index].to(torch.float64)
    return conditional_kl(logits, teacher, state.examples.labels[index]).mean()


def _tracked(progress: Progress | None, items: Iterable[int], label: str) -> Iterable[int]:
    return items if progress is None else progress(items, label)
