"""Full-batch gradient descent with records: the loss at every step, the sharpness at some."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from lib.stability.checks import count, momentum_method, positive
from lib.stability.quadratic import stability_threshold
from lib.stability.run_state import RunFile, RunState, Setting, run_file
from lib.stability.training import TrainingProblem, training_problem

Progress = Callable[[range], Iterable[int]]


@dataclass(frozen=True)
class Descent:
    r"""Records of gradient descent; m is the number of measured steps.

    Attributes:
        losses: (T + 1,) float64, the loss at every iterate, the last included.
        steps: (m,) int64, the iterates at which the sharpness was measured, before their step.
        sharpness: (m, k) float64, the k largest eigenvalues of the Hessian, descending.
        residuals: (m, k), $\|H v - \lambda v\| / |\lambda|$ of each.
        products: (m,) int64, Hessian-vector products used.
        accuracies: (m,) share of examples whose largest output is at the label; None for targets
            that are numbers.
        step_size: eta.
        threshold: the sharpness at which the method loses stability on a quadratic.
        ended: "steps", "goal" or "diverged".
    """

    losses: Tensor
    steps: Tensor
    sharpness: Tensor
    residuals: Tensor
    products: Tensor
    accuracies: Tensor | None
    step_size: float
    threshold: float
    ended: str

    @property
    def times(self) -> Tensor:
        """(m,) step size times step, the clock of gradient flow."""
        return self.step_size * self.steps.to(torch.float64)

    @property
    def ratio(self) -> Tensor:
        """(m,) the largest eigenvalue over the threshold."""
        return self.sharpness[:, 0] / self.threshold

    @property
    def crossing(self) -> int | None:
        """The first measured step with a ratio above 1, or None."""
        above = (self.ratio > 1).nonzero()
        return int(self.steps[above[0, 0]]) if len(above) else None

    @property
    def diverged(self) -> bool:
        """Whether the run ended because the loss left 1,000 times its first value behind."""
        return self.ended == "diverged"


def descend(
    model: nn.Module,
    loss: str,
    data: tuple[Tensor, Tensor],
    step_size: float,
    steps: int,
    *,
    optimiser: str = "gd",
    momentum: float = 0.0,
    every: int | Sequence[int] = 50,
    k: int = 1,
    tol: float = 1e-4,
    micro_batch: int | None = None,
    goal_accuracy: float | None = None,
    goal_loss: float | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    progress: Progress | None = None,
) -> Descent:
    r"""Train a model by full-batch gradient descent and measure its sharpness on the way.

    $$\theta_{t+1} = \theta_t - \eta\, u_t, \qquad u_t =
      \begin{cases} g_t & \text{gd} \\ v_{t+1} & \text{polyak} \\
      g_t + \beta v_{t+1} & \text{nesterov,} \end{cases} \qquad v_{t+1} = \beta v_t + g_t$$

    with $g_t$ the gradient of the loss on all examples. The sharpness is measured before the step
    is done, each time from the eigenvector of the time before.

    With a checkpoint, a run that was killed goes on where it was: on the same machine, with the
    same number of threads, its records and weights equal those of a run that was not, bit for bit.
    A finished run is read back, and goes on when more steps are asked for.

    **Source**: Cohen et al. (2021), Section 3, and the authors' code.

    Args:
        model: deterministic, inputs (n, ...) to outputs (n, K); it ends with the final weights.
        loss: "square" (half the squared distance to the one-hot row or target, mean over
            examples) or "cross-entropy".
        data: inputs (n, ...) in the model's dtype; labels (n,) int64, or targets (n, K) float.
        step_size: eta > 0.
        steps: T >= 0, the number of steps.
        optimiser: "gd", "polyak" or "nesterov", as `torch.optim.SGD` has them.
        momentum: beta in [0, 1), 0 for "gd".
        every: measure at every multiple of this step, 0 included; or the steps, increasing.
        k: number of eigenvalues.
        tol: relative tolerance of the eigenvalues.
        micro_batch: examples that pass the model at once; None for all.
        goal_accuracy: stop at the first iterate with at least this accuracy, and measure there.
        goal_loss: stop at the first iterate with at most this loss, and measure there.
        checkpoint: a file to keep the run in; None for none.
        checkpoint_every: steps between two writes; None for as often as the sharpness is measured.
        progress: wraps the range of steps, to show how far the run is.

    Returns:
        The records. A loss above 1,000 times the first one, or not finite, ends the run.

    Raises:
        ValueError: if an argument does not fit, or the checkpoint is damaged, of another run, or
            has no folder.
        SharpnessError: if an eigenvalue cannot be had.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> data = torch.tensor([[2.0]]), torch.tensor([[0.0]])
        >>> run = descend(model, "square", data, 0.25, 3, every=1)
        >>> run.sharpness[:, 0], run.threshold, (run.losses[1:] == 0).tolist()
        (tensor([4., 4., 4., 4.], dtype=torch.float64), 8.0, [True, True, True])
    """
    problem = training_problem(model, loss, data, micro_batch)
    setting = run_setting(
        problem,
        step_size,
        optimiser=optimiser,
        momentum=momentum,
        every=every,
        k=k,
        tol=tol,
        micro_batch=micro_batch,
        goal_accuracy=goal_accuracy,
        goal_loss=goal_loss,
    )
    state, steps = RunState(problem, setting), count("steps", steps, 0)
    if checkpoint_every is not None:
        count("checkpoint_every", checkpoint_every)
    file = None if checkpoint is None else _open(checkpoint, checkpoint_every, state)
    if file is not None:
        file.restore(state, steps)
    _run(state, steps, file, progress)
    return run_records(state)


def run_setting(
    problem: TrainingProblem,
    step_size: float,
    *,
    optimiser: str = "gd",
    momentum: float = 0.0,
    every: int | Sequence[int] = 1,
    k: int = 1,
    tol: float = 1e-4,
    micro_batch: int | None = None,
    goal_accuracy: float | None = None,
    goal_loss: float | None = None,
) -> Setting:
    """Return a checked setting; the arguments are those of `descend`."""
    return Setting(
        positive("step_size", step_size),
        *momentum_method(optimiser, momentum),
        _grid(every),
        count("k", k),
        positive("tol", tol),
        micro_batch,
        _goal_accuracy(goal_accuracy, problem),
        None if goal_loss is None else positive("goal_loss", goal_loss),
    )


def _run(state: RunState, steps: int, file: RunFile | None, progress: Progress | None) -> None:
    """Walk to the last step, a goal or divergence; write the file on the way and at the end."""
    done = state.ended != "open" or len(state.losses) > steps
    if done:
        return
    walk = range(state.step, steps + 1)
    for step in walk if progress is None else progress(walk):
        gradient = state.look(step)
        if state.ended != "open" or step == steps:
            break
        state.advance(gradient)
        if file is not None and state.step % file.every == 0:
            file.save(state)
    if file is not None:
        file.save(state)


def _open(checkpoint: str | Path, every: int | None, state: RunState) -> RunFile:
    if every is None:
        every = state.setting.every if isinstance(state.setting.every, int) else 50
    return run_file(checkpoint, every, state.setting, state.problem)


def run_records(state: RunState) -> Descent:
    """Return the records of a run as tensors."""
    setting = state.setting
    accuracies = torch.tensor(state.accuracies, dtype=torch.float64)
    return Descent(
        losses=torch.tensor(state.losses, dtype=torch.float64),
        steps=torch.tensor(state.steps, dtype=torch.int64),
        sharpness=state.rows(state.sharpness),
        residuals=state.rows(state.residuals),
        products=torch.tensor(state.products, dtype=torch.int64),
        accuracies=None if state.problem.labels is None else accuracies,
        step_size=setting.step_size,
        threshold=float(
            stability_threshold(setting.step_size, setting.optimiser, setting.momentum)
        ),
        ended="steps" if state.ended == "open" else state.ended,
    )


def _grid(every: int | Sequence[int]) -> int | tuple[int, ...]:
    """The steps at which to measure, checked."""
    if not isinstance(every, Sequence) or isinstance(every, str):
        return count("every", every)
    grid = tuple(count(f"every[{index}]", step, 0) for index, step in enumerate(every))
    if not all(before < after for before, after in pairwise(grid)):
        raise ValueError(f"every must be an integer or increasing steps, got {list(every)}")
    return grid


def _goal_accuracy(goal: float | None, problem: TrainingProblem) -> float | None:
    if goal is None:
        return None
    if problem.labels is None:
        raise ValueError(f"goal_accuracy must be None without labels, got {goal!r}")
    return positive("goal_accuracy", goal, 1.0)
