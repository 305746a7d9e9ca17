"""A whole training run: resumed where it was interrupted, the same to the last bit on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from lib.distill.auxiliary import LayerFeatures
from lib.distill.digests import tensor_digest
from lib.distill.distributed import current_processes
from lib.distill.evaluation import measure
from lib.distill.example_checks import check_tensor
from lib.distill.examples import Examples
from lib.distill.run_files import RunFiles, read_result
from lib.distill.settings import TrainingResult, TrainingSettings
from lib.distill.teacher_cache import cached_logits, model_digest
from lib.distill.trainer import Trainer, TrainingError

__all__ = ["Trainer", "TrainingError", "read_result", "train_student"]

Track = Callable[[Iterable[int], str], Iterable[int]]


def train_student(
    student: nn.Module,
    examples: Examples,
    settings: TrainingSettings,
    *,
    teacher: Tensor | None = None,
    test: Examples | None = None,
    test_teacher: Tensor | None = None,
    observation: Examples | None = None,
    observation_teacher: Tensor | None = None,
    folder: Path | str | None = None,
    snapshots: Sequence[int] = (),
    progress: Track | None = None,
    device: torch.device | str | None = None,
    features: LayerFeatures | None = None,
) -> TrainingResult:
    r"""Train a student by one method, and measure it after the last step.

    The last step is fixed in advance; no measurement selects anything. A row of the log with
    `iteration` k describes the student after k steps, and the batch of the next.

    With a folder the run survives being killed at any moment: called again with the same student
    (as it was before training) and the same arguments, it goes on from its last checkpoint, and on
    a CPU it ends with the same bits if it has as many threads: sums of a matrix product are split
    among them. A run that has ended is read. Under `torchrun` (see
    `joined_processes`) all processes call this with the same arguments and the same folder.

    **Source**: Yuan & Tao, Appendix E.1.

    Args:
        student: the network before training; afterwards the trained one.
        examples: what is trained on, n of them in V views.
        settings: of the run.
        teacher: (V, n, K), the teacher's logits; None for a method without a teacher, whose log
            then has no conditional KL.
        test: measured after the last step, in view 0.
        test_teacher: (n', K) or (V', n', K), of the test examples.
        observation: measured on the way, in view 0.
        observation_teacher: of the observed examples.
        folder: of this run alone; None to keep nothing on disk.
        snapshots: numbers of steps after which to keep the state.
        progress: called with the steps and a label; as `lib.book.progress.track`.
        device: where to train; None for where the student is.
        features: of "dto-kd" with a `feature_weight`.

    Returns:
        `TrainingResult`.

    Raises:
        ValueError: if an argument does not fit.
        TrainingError: if loss, gradient, conditional KL, a weight or a logit is not finite or too
            large; the last checkpoint stays.
        CheckpointError: if a file of the folder is damaged or belongs to another run.

    Example:
        >>> from lib.distill.examples import TensorExamples
        >>> examples = TensorExamples(torch.eye(3), torch.tensor([0, 1, 2]))
        >>> settings = TrainingSettings("ce", 60, 42, 1.0, batch_size=3)
        >>> train_student(nn.Linear(3, 3), examples, settings, test=examples).measures["accuracy"]
        1.0
    """
    observed = (observation, observation_teacher)
    sets = {"examples": (examples, teacher), "test": (test, test_teacher), "observation": observed}
    _check_kinds(student, settings, sets)
    snapshots = _check_snapshots(snapshots, settings.iterations)
    facts = _facts(student, settings, sets, snapshots)
    folder = None if folder is None else Path(folder)
    files = RunFiles(folder, facts, writes=current_processes().first)
    finished = files.result(settings)
    if finished is not None:
        files.load_student(student)
        return finished
    trainer = Trainer(
        student,
        examples,
        settings,
        teacher=teacher,
        device=device,
        features=features,
        frozen=_frozen_logits(student.to(device), examples, settings, folder),
    )
    for name in ("test", "observation"):
        if sets[name][0] is not None:
            trainer.parts.check_set(name, *sets[name])
    run = _Run(trainer, files, snapshots, *observed)
    try:
        result = run.result(test, _first_view(test_teacher), progress)
    except TrainingError as error:
        where = "" if folder is None else f"; the last checkpoint is kept in {folder}"
        raise TrainingError(f"{error}{where}") from None
    files.save_result(result)
    trainer.processes.wait()
    return result


class _Run:
    """A trainer between its first step and its last."""

    def __init__(
        self,
        trainer: Trainer,
        files: RunFiles,
        snapshots: Sequence[int],
        observation: Examples | None,
        observation_teacher: Tensor | None,
    ) -> None:
        self.trainer, self.files, self.snapshots = trainer, files, snapshots
        self.observation, self.teacher = observation, _first_view(observation_teacher)
        state, self.progressed = files.start()
        self.kept: dict[int, dict[str, Tensor]] = {}
        if state is not None:
            trainer.load_state(state)
            self.kept = files.snapshots([k for k in snapshots if k <= self.progressed.iteration])

    def result(
        self, test: Examples | None, teacher: Tensor | None, progress: Track | None
    ) -> TrainingResult:
        """Take the steps that are left, and measure what they lead to."""
        self._finish(progress)
        self.trainer.agree()
        logits, measures = self._measured(test, teacher)
        return TrainingResult(
            self.trainer.settings,
            measures,
            logits,
            self.progressed.log,
            self.progressed.seconds,
            model_digest(self.trainer.student),
            self.kept,
        )

    def _finish(self, progress: Track | None) -> None:
        """Take the steps that are left."""
        settings, progressed = self.trainer.settings, self.progressed
        steps = range(progressed.iteration, settings.iterations)
        label = f"{settings.method}, seed {settings.seed}"
        began = time.monotonic() - progressed.seconds
        for iteration in steps if progress is None else progress(steps, label):
            if iteration == 0:
                self._keep(0)
            self._step(iteration)
            progressed.iteration = iteration + 1
            last = progressed.iteration == settings.iterations
            saves = last or progressed.iteration % settings.checkpoint_every == 0
            if saves or progressed.iteration in self.snapshots:
                self.trainer.check_weights(progressed.iteration)
            self._keep(progressed.iteration)
            if last and self.observation is not None:
                self._note({"iteration": progressed.iteration} | self._observe())
            progressed.seconds = time.monotonic() - began
            if saves:
                self.files.save(self.trainer.state(), progressed)

    def _measured(
        self, examples: Examples | None, teacher: Tensor | None
    ) -> tuple[Tensor | None, dict]:
        """Return the logits of examples and what is measured of them; nothing without any."""
        if examples is None:
            return None, {}
        logits = self.trainer.predict(examples)
        if not bool(logits.isfinite().all()):
            raise self.trainer.failure(self.progressed.iteration, "a logit is not finite")
        return logits, measure(logits, teacher, examples.labels)

    def _step(self, iteration: int) -> None:
        settings = self.trainer.settings
        logged = iteration % settings.log_every == 0 or iteration == settings.iterations - 1
        observed = self.observation is not None and settings.observes(iteration)
        observation = self._observe() if observed else {}
        found = self.trainer.step(iteration, measured=logged)
        if logged or observed:
            self._note({"iteration": iteration} | (found if logged else {}) | observation)

    def _observe(self) -> dict:
        return {"observation": self._measured(self.observation, self.teacher)[1]}

    def _note(self, row: dict) -> None:
        self.files.note(self.progressed, row)

    def _keep(self, iteration: int) -> None:
        if iteration in self.snapshots:
            self.kept[iteration] = {n: x.cpu() for n, x in self.trainer.state().items()}
            self.files.save_snapshot(iteration, self.kept[iteration])


def _frozen_logits(
    student: nn.Module, examples: Examples, settings: TrainingSettings, folder: Path | None
) -> Tensor | None:
    """Logits of the student before training, kept beside the checkpoint; None to compute them."""
    if not settings.objective.needs_frozen or folder is None or settings.precision == "float64":
        return None
    return cached_logits(student, examples, folder / "frozen")


def _facts(
    student: nn.Module,
    settings: TrainingSettings,
    sets: dict[str, tuple[Examples | None, Tensor | None]],
    snapshots: Sequence[int],
) -> dict:
    """What a run is the run of."""
    found = {"settings": settings.fingerprint(), "student": model_digest(student)}
    for name, (examples, teacher) in sets.items():
        found[name] = None if examples is None else examples.digest()
        logits = [] if teacher is None else [("logits", teacher)]
        found[f"teacher of {name}"] = tensor_digest(logits) if logits else None
    return found | {"snapshots": list(snapshots)}


def _check_kinds(
    student: object, settings: object, sets: dict[str, tuple[Examples | None, Tensor | None]]
) -> None:
    """Refuse what is not of the right type, or has nothing that it belongs to."""
    for name, value, kind in (
        ("student", student, nn.Module),
        ("settings", settings, TrainingSettings),
    ):
        if not isinstance(value, kind):
            raise ValueError(f"{name} must be {kind.__name__}, got {type(value).__name__}")
    for name, (examples, teacher) in sets.items():
        argument = "teacher" if name == "examples" else f"{name}_teacher"
        if examples is None and (name == "examples" or teacher is not None):
            missing = f"{name} must be given" + (f" for {argument}" if teacher is not None else "")
            raise ValueError(f"{missing}, got None")
        if teacher is not None:
            check_tensor(argument, teacher)


def _check_snapshots(snapshots: Sequence[int], iterations: int) -> tuple[int, ...]:
    found = tuple(sorted(set(snapshots)))
    for one in found:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= iterations:
            raise ValueError(f"snapshots must be integers in [0, {iterations}], got {one!r}")
    return found


def _first_view(logits: Tensor | None) -> Tensor | None:
    """Logits (n, K) of view 0."""
    return logits[0] if logits is not None and logits.ndim == 3 else logits
