"""The moving part of a descent: weights, momentum and records, and how they go to a file."""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from lib.stability.records import CheckpointError, read_checkpoint, tensor_digest, write_checkpoint
from lib.stability.training import TrainingProblem

DIVERGED = 1e3
_ENDS = ("open", "goal", "diverged")


@dataclass(frozen=True)
class Setting:
    """What decides a run, apart from the model, the data and the number of steps.

    Attributes:
        step_size: eta.
        optimiser: "gd", "polyak" or "nesterov".
        momentum: beta.
        every: measure at every multiple of this step, or at these steps.
        k: number of eigenvalues.
        tol: relative tolerance of the eigenvalues.
        micro_batch: examples that pass the model at once, or None.
        goal_accuracy: where to stop, or None.
        goal_loss: where to stop, or None.
    """

    step_size: float
    optimiser: str
    momentum: float
    every: int | tuple[int, ...]
    k: int
    tol: float
    micro_batch: int | None
    goal_accuracy: float | None
    goal_loss: float | None

    def measures(self, step: int) -> bool:
        """Whether the sharpness is measured at a step."""
        return step % self.every == 0 if isinstance(self.every, int) else step in self.every

    def reaches(self, value: float, accuracy: float) -> bool:
        """Whether a loss and an accuracy meet one of the goals."""
        return (self.goal_loss is not None and value <= self.goal_loss) or (
            self.goal_accuracy is not None and accuracy >= self.goal_accuracy
        )


class RunState:
    """A descent between two steps: the model holds iterate `step`, the lists what was seen."""

    def __init__(self, problem: TrainingProblem, setting: Setting) -> None:
        self.problem, self.setting = problem, setting
        self.step, self.ended = 0, "open"
        self.velocity = [torch.zeros_like(p) for p in problem.parameters if setting.momentum]
        self.losses: list[float] = []
        self.steps: list[int] = []
        self.accuracies: list[float] = []
        self.products: list[int] = []
        self.sharpness: list[Tensor] = []
        self.residuals: list[Tensor] = []
        self.start: Tensor | None = None

    def look(self, step: int) -> list[Tensor]:
        """Return the gradient at iterate `step`, and record the iterate if it is a new one."""
        seen = step < len(self.losses)
        measured = self.setting.measures(step)
        accuracy = measured or bool(self.setting.goal_accuracy or self.setting.goal_loss)
        with self.problem.unchanged_buffers() if seen else nullcontext():
            value, gradient, share = self.problem.value_and_gradient(accuracy)
        if seen:
            return gradient
        self.losses.append(value)
        if not math.isfinite(value) or value > DIVERGED * self.losses[0]:
            self.ended = "diverged"
            return gradient
        if self.setting.reaches(value, share):
            self.ended = "goal"
        if measured or self.ended == "goal":
            self._measure(step, share)
        return gradient

    def advance(self, gradient: list[Tensor]) -> None:
        """Do one step in place, with the arithmetic of `torch.optim.SGD`."""
        setting, parameters = self.setting, self.problem.parameters
        with torch.no_grad():
            if setting.momentum:
                for velocity, piece in zip(self.velocity, gradient, strict=True):
                    velocity.mul_(setting.momentum).add_(piece)
                    if setting.optimiser == "nesterov":
                        piece.add_(velocity, alpha=setting.momentum)
                if setting.optimiser == "polyak":
                    gradient = self.velocity
            for parameter, piece in zip(parameters, gradient, strict=True):
                parameter.add_(piece, alpha=-setting.step_size)
        self.step += 1

    def _measure(self, step: int, accuracy: float) -> None:
        top = self.problem.sharpness(self.setting.k, self.setting.tol, self.start)
        self.start = top.vectors.sum(0)
        self.steps.append(step)
        self.accuracies.append(accuracy)
        self.products.append(top.products)
        self.sharpness.append(top.values.cpu())
        self.residuals.append(top.residuals.cpu())

    def rows(self, values: list[Tensor]) -> Tensor:
        """Return k numbers a measurement as one tensor (m, k)."""
        return torch.stack(values) if values else torch.empty(0, self.setting.k).double()

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that a run needs to go on, by name."""
        model = {f"model.{name}": value for name, value in self.problem.model.state_dict().items()}
        velocity = {f"velocity.{i}": value for i, value in enumerate(self.velocity)}
        start = {} if self.start is None else {"start": self.start}
        return {
            "step": torch.tensor(self.step),
            "ended": torch.tensor(_ENDS.index(self.ended)),
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "steps": torch.tensor(self.steps, dtype=torch.int64),
            "accuracies": torch.tensor(self.accuracies, dtype=torch.float64),
            "products": torch.tensor(self.products, dtype=torch.int64),
            "sharpness": self.rows(self.sharpness),
            "residuals": self.rows(self.residuals),
            **model,
            **velocity,
            **start,
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take up a run where `tensors` left it."""
        names = ("losses", "steps", "accuracies", "products")
        self.losses, self.steps, self.accuracies, self.products = (
            tensors[name].tolist() for name in names
        )
        self.sharpness, self.residuals = (
            list(tensors[name].unbind()) for name in ("sharpness", "residuals")
        )
        self.step, self.ended = int(tensors["step"]), _ENDS[int(tensors["ended"])]
        model = self.problem.model
        model.load_state_dict({name: tensors[f"model.{name}"] for name in model.state_dict()})
        for index, velocity in enumerate(self.velocity):
            velocity.copy_(tensors[f"velocity.{index}"])
        if "start" in tensors:
            self.start = tensors["start"].to(self.problem.parameters[0].device)


@dataclass(frozen=True)
class RunFile:
    """The checkpoint of a run.

    Attributes:
        path: the file.
        every: steps between two writes.
        fingerprint: setting, data and initial weights.
    """

    path: Path
    every: int
    fingerprint: dict

    def restore(self, state: RunState, steps: int) -> None:
        """Bring a fresh state to where the file is, if there is one.

        Raises:
            CheckpointError: if the file is damaged, of another run, or beyond `steps`.
        """
        tensors = read_checkpoint(self.path, self.fingerprint)
        if tensors is None:
            return
        if int(tensors["step"]) > steps:
            raise CheckpointError(
                f"checkpoint {self.path} is at step {int(tensors['step'])}, beyond steps={steps}; "
                "ask for at least as many, or delete it"
            )
        state.load(tensors)

    def save(self, state: RunState) -> None:
        """Write the state."""
        write_checkpoint(self.path, self.fingerprint, state.tensors())


def run_file(
    checkpoint: str | Path, every: int, setting: Setting, problem: TrainingProblem
) -> RunFile:
    """Return the checkpoint of a run that starts with the model's present weights.

    Raises:
        CheckpointError: if the file has no folder to stand in.
    """
    if not isinstance(checkpoint, str | os.PathLike):
        raise CheckpointError(f"checkpoint must be a path, got {checkpoint!r}")
    path = Path(checkpoint)
    if not path.parent.is_dir():
        raise CheckpointError(f"checkpoint {path} has no folder: create {path.parent}")
    inputs, targets = (torch.cat(side) for side in zip(*problem.chunks, strict=True))
    fingerprint = asdict(setting) | {
        "loss": problem.loss,
        "model": " ".join(str(problem.model).split()),
        "initial weights": tensor_digest(*problem.model.state_dict().values())[:16],
        "data": tensor_digest(inputs, targets)[:16],
    }
    return RunFile(path, every, fingerprint | _unlike_fresh(problem.model))


def _unlike_fresh(model: nn.Module) -> dict:
    """What a model's words and weights do not tell, where it is not as it was made."""
    frozen = [name for name, weights in model.named_parameters() if not weights.requires_grad]
    modes = [name for name, module in model.named_modules() if not module.training]
    return ({"frozen": frozen} if frozen else {}) | ({"in eval mode": modes} if modes else {})
