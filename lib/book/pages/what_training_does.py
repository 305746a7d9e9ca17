"""What the chapter "What training does" computes: states of a run, and what Section 6 measures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from lib.book import progress
from lib.book.data_used import use_data
from lib.distill.certificates import Certificates, certify_batch
from lib.distill.config import TrainingConfig
from lib.distill.mechanism import Blocking, HeadSteps, blocking_summary
from lib.distill.mechanism import exact_head_steps as take_head_steps
from lib.distill.recipes import find_setting, resolve_table
from lib.distill.runs import make_student, prepare, settings_of, train
from lib.distill.states import RunState, fixed_batches, head_problem, outputs, split_pool
from lib.tpkd import blocked_log_odds_limit, directions, log_odds

BATCH = 64


@dataclass(frozen=True)
class Study:
    """A run on labels alone, at three moments, and its teacher.

    Attributes:
        says: what data, teacher and student are.
        epochs: how many each state has seen, by the number of its steps.
        states: by the number of steps.
        networks: the student at each state, in evaluation mode.
        facts: about the teacher.
    """

    says: str
    epochs: Mapping[int, float]
    states: Mapping[int, RunState] = field(repr=False)
    networks: Mapping[int, nn.Module] = field(repr=False)
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The number of steps of the last state."""
        return max(self.states)

    @property
    def ends(self) -> tuple[int, int]:
        """Those of the first and the last state."""
        return min(self.states), self.last

    def name(self, step: int) -> str:
        """A state as the paper names it: CE and the number of epochs."""
        return f"CE{self.epochs[step]:.2g}"

    def batches(self, count: int, seed: int, size: int = BATCH) -> tuple[Tensor, Tensor]:
        """Fixed batches of the examples, no example twice: numbers and views, (B, N) each."""
        examples = self.states[self.last].examples
        n = len(examples.labels)
        if count * size > n:
            raise ValueError(f"count must be at most {n // size} batches of {size}, got {count}")
        return fixed_batches(torch.arange(n), examples.views, size, count, seed)


@lru_cache(maxsize=4)
def study(setting: str, teacher: str = "smooth", seed: int = 42) -> Study:
    """Train a student on labels, or read the run, and return its states.

    Args:
        setting: name of a setting of `lib.distill.recipes` that keeps snapshots.
        teacher: "smooth", trained with smoothed labels, or "sharp".
        seed: of the run.

    Returns:
        The states at the setting's snapshots.

    Raises:
        ValueError: if the setting keeps no snapshots.
    """
    found = find_setting(setting)
    table = resolve_table(found, {})
    if not table["snapshots"]:
        raise ValueError(f"setting must keep snapshots, got {setting!r}, which keeps none")
    config = TrainingConfig(found.domain, "ce", seed, setting, teacher)
    materials = prepare(setting, teacher, progress=progress.track)
    kept = train(config, progress.track).snapshots
    for name, sha256 in found.data(table).items():
        use_data(name, found.says, sha256)
    model, settings = make_student(config, materials), settings_of(config)
    states = {
        step: RunState(model, kept[step], settings, step, materials.examples, materials.teacher)
        for step in table["snapshots"]
    }
    per_epoch = len(materials.examples.labels) / settings.batch_size
    return Study(
        found.says,
        {step: step / per_epoch for step in states},
        states,
        {step: state.network() for step, state in states.items()},
        materials.facts,
    )


def taught_by(found: Study, setting: str, teacher: str) -> Study:
    """Return the same run on labels beside another teacher of its setting.

    Args:
        found: the study; labels alone know no teacher, so its weights stay.
        setting: of the study.
        teacher: "smooth" or "sharp".

    Returns:
        The study with this teacher's logits.
    """
    materials = prepare(setting, teacher, progress=progress.track)
    states = {
        step: replace(state, teacher=materials.teacher) for step, state in found.states.items()
    }
    return replace(found, states=states, facts=materials.facts)


def fixed_images(found: Study, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return a fixed set of examples in all their views.

    Args:
        found: the study.
        count: how many examples; all, if there are fewer.
        seed: of the choice.

    Returns:
        Numbers and views, (V, m) each.
    """
    examples = found.states[found.last].examples
    n = len(examples.labels)
    rows = split_pool(n, min(count, n), seed)[0].expand(examples.views, -1)
    return rows, torch.arange(examples.views)[:, None].expand_as(rows)


def triple(found: Study, step: int, index: Tensor, view: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return student's and teacher's logits and the labels of some examples, in float64.

    Args:
        found: the study.
        step: of the state.
        index: (...), which examples.
        view: (...), in which views.

    Returns:
        (..., K), (..., K) and (...).
    """
    state = found.states[step]
    student = outputs(found.networks[step], state.examples, index, view)
    return student.double(), state.teacher[view, index].double(), state.examples.labels[index]


def blocking(found: Study, index: Tensor, view: Tensor) -> dict[int, Blocking]:
    """Return Table 1: what is blocked at every state, by the number of its steps."""
    return {
        step: blocking_summary(*triple(found, step, index, view))
        for step in progress.track(list(found.states), "states")
    }


def excess(found: Study, step: int, index: Tensor, view: Tensor) -> Tensor:
    """Return the student's log-odds minus the limit of Appendix A.2, (...): blocked from 0 on."""
    student, teacher, labels = triple(found, step, index, view)
    return log_odds(student, labels) - blocked_log_odds_limit(student, teacher, labels)


def tempered_shares(
    found: Study, step: int, index: Tensor, view: Tensor, temperatures: Iterable[float]
) -> list[float]:
    """Return the blocked share if the teacher's logits are divided by each temperature."""
    student, teacher, labels = triple(found, step, index, view)
    return [blocking_summary(student, teacher / T, labels).share for T in temperatures]


def head_steps(
    found: Study, step: int, index: Tensor, view: Tensor, step_size: float
) -> tuple[HeadSteps, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Return Table 2's exact steps at a state, and the problem that they solve.

    Args:
        found: the study.
        step: of the state.
        index: (B, N), batches.
        view: (B, N).
        step_size: eta.

    Returns:
        The steps; features, head, teacher and labels.
    """
    state = found.states[step]
    features, head = head_problem(found.networks[step], state.examples, index, view)
    problem = features, head, state.teacher[view, index].double(), state.examples.labels[index]
    return take_head_steps(*problem, step_size), problem


def certainly_gains(problem: tuple[Tensor, Tensor, Tensor, Tensor], step_size: float) -> Tensor:
    r"""Return where one step certainly gains over the label step, from norms at the start alone.

    $$\|d\| \left(1 - \frac\eta8\right) > \frac\eta2 \sqrt{\textstyle\sum_{j \ne y} p_j^2}$$

    Args:
        problem: features, head, teacher and labels of `head_steps`.
        step_size: eta.

    Returns:
        (B, N) bool.
    """
    features, head, teacher, labels = problem
    found = directions(features @ head, teacher, labels)
    wrong = found.label.scatter(-1, labels.unsqueeze(-1), 0.0).norm(dim=-1)
    return found.corrected.norm(dim=-1) * (1 - step_size / 8) > step_size / 2 * wrong


def certify_all(found: Study, step: int, index: Tensor, view: Tensor) -> list[Certificates]:
    """Return Table 3's geometric tests at a state, one pair for each batch of (B, N)."""
    state, network = found.states[step], found.networks[step]
    batches = list(zip(index, view, strict=True))
    return [
        certify_batch(
            network,
            state.examples.inputs(rows, seen),
            state.teacher[seen, rows],
            state.examples.labels[rows],
        )
        for rows, seen in progress.track(batches, f"batches, {found.name(step)}")
    ]
