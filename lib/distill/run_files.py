"""The files of one training run: checkpoint, log, snapshots, result."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from lib.distill.checkpoints import CheckpointError, read_checkpoint, write_checkpoint
from lib.distill.settings import TrainingResult, TrainingSettings

LOG = "log.jsonl"
_CHECKPOINT = "checkpoint.safetensors"
_RESULT = "result.safetensors"
_LOGITS = "test_logits"


@dataclass
class Progressed:
    """How far a run is.

    Attributes:
        iteration: steps taken.
        log: rows of the steps before.
        seconds: spent on training.
    """

    iteration: int = 0
    log: list[dict] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class RunFiles:
    """A folder that holds one run, or nothing where the folder is None.

    The checkpoint holds the log's lines too, so that after an interruption the log is cut back to
    the checkpoint and grows again as if nothing had happened.

    Attributes:
        folder: of the run, or None.
        facts: settings and digests that the run belongs to, plain JSON.
        writes: whether this process writes.
    """

    folder: Path | None
    facts: Mapping
    writes: bool = True

    def start(self) -> tuple[dict[str, Tensor] | None, Progressed]:
        """Return the state to go on from, or None for a new run, and how far it is.

        Raises:
            CheckpointError: if the checkpoint is damaged or of another run.
        """
        found = None
        if self.folder is not None:
            found = read_checkpoint(self.folder / _CHECKPOINT, self._named("checkpoint"))
        state, progressed = None, Progressed()
        if found is not None:
            state, facts = found
            rows = [json.loads(line) for line in facts["log"]]
            progressed = Progressed(facts["iteration"], rows, facts["seconds"])
        if self.folder is not None and self.writes:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_log(self.folder / LOG, progressed.log)
        return state, progressed

    def load_student(self, student: nn.Module) -> None:
        """Put the weights of the checkpoint into a network, in their own dtype.

        Raises:
            CheckpointError: if the checkpoint is missing, damaged or of another run.
        """
        path = self.folder / _CHECKPOINT
        found = read_checkpoint(path, self._named("checkpoint"))
        if found is None:
            raise CheckpointError(f"{path} is missing; delete {self.folder} to start again")
        own = {name.removeprefix("student."): x for name, x in found[0].items()}
        own = {name: own[name] for name in student.state_dict()}
        if any(tensor.dtype == torch.float64 for tensor in own.values()):
            student.double()
        student.load_state_dict(own)

    def note(self, progressed: Progressed, row: dict) -> None:
        """Add a row to the log."""
        progressed.log.append(row)
        if self.folder is not None and self.writes:
            with (self.folder / LOG).open("a", encoding="utf-8") as file:
                file.write(_line(row))

    def save(self, state: Mapping[str, Tensor], progressed: Progressed) -> None:
        """Write the checkpoint, whole or not at all."""
        if self.folder is not None and self.writes:
            facts = {
                "iteration": progressed.iteration,
                "log": [_line(row) for row in progressed.log],
                "seconds": progressed.seconds,
            }
            write_checkpoint(self.folder / _CHECKPOINT, state, self._named("checkpoint") | facts)

    def save_snapshot(self, iteration: int, state: Mapping[str, Tensor]) -> None:
        """Keep the state after a number of steps."""
        if self.folder is not None and self.writes:
            write_checkpoint(self._snapshot(iteration), state, self._named(f"step {iteration}"))

    def snapshots(self, iterations: Sequence[int]) -> dict[int, dict[str, Tensor]]:
        """Return the states that an interrupted run kept.

        Raises:
            CheckpointError: if one is missing, damaged or of another run.
        """
        found = {}
        for iteration in iterations:
            path = self._snapshot(iteration)
            kept = read_checkpoint(path, self._named(f"step {iteration}"))
            if kept is None:
                raise CheckpointError(
                    f"{path} is missing, though the run's checkpoint is beyond it; delete "
                    f"{self.folder} to start the run again"
                )
            found[iteration] = kept[0]
        return found

    def save_result(self, result: TrainingResult) -> None:
        """Write what the run ended with."""
        if self.folder is None or not self.writes:
            return
        facts = {
            "measures": result.measures,
            "log": [_line(row) for row in result.log],
            "seconds": result.seconds,
            "weights_digest": result.weights_digest,
            "kept": sorted(result.snapshots),
        }
        logits = {} if result.test_logits is None else {_LOGITS: result.test_logits}
        write_checkpoint(self.folder / _RESULT, logits, self._named("result") | facts)

    def result(self, settings: TrainingSettings) -> TrainingResult | None:
        """Return what the run ended with, or None if it has not ended.

        Raises:
            CheckpointError: if a file is missing, damaged or of another run.
        """
        if self.folder is None:
            return None
        return self._finished(settings, self._named("result"))

    def _finished(self, settings: TrainingSettings, expected: Mapping) -> TrainingResult | None:
        found = read_checkpoint(self.folder / _RESULT, expected)
        if found is None:
            return None
        tensors, facts = found
        files = RunFiles(self.folder, facts["run"], writes=False)
        return TrainingResult(
            settings,
            facts["measures"],
            tensors.get(_LOGITS),
            [json.loads(line) for line in facts["log"]],
            facts["seconds"],
            facts["weights_digest"],
            files.snapshots(facts["kept"]),
        )

    def _snapshot(self, iteration: int) -> Path:
        return self.folder / f"step-{iteration}.safetensors"

    def _named(self, kind: str) -> dict:
        return {"kind": kind, "run": dict(self.facts)}


def read_result(folder: Path | str, settings: TrainingSettings) -> TrainingResult | None:
    """Return what a finished run left in a folder, without its examples or its student.

    Args:
        folder: that `train_student` wrote to.
        settings: of the run.

    Returns:
        The result, or None if no run has finished there.

    Raises:
        CheckpointError: if a file is damaged, or the run had other settings.

    Example:
        >>> read_result("no-such-folder", TrainingSettings("ce", 1, 42, 0.1)) is None
        True
    """
    expected = {"kind": "result", "run": {"settings": settings.fingerprint()}}
    return RunFiles(Path(folder), {}, writes=False)._finished(settings, expected)


def _line(row: dict) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _write_log(path: Path, rows: Sequence[dict]) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text("".join(map(_line, rows)), encoding="utf-8")
    os.replace(part, path)
