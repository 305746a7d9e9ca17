"""What happens at the crossing: the growing oscillation, and the quadratic model that fails."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lib.stability.checks import count, positive
from lib.stability.descent import Descent, Progress, run_records, run_setting
from lib.stability.hessian import HessianOperator, SharpnessError
from lib.stability.run_state import RunState
from lib.stability.training import TrainingProblem, flatten, training_problem


@dataclass(frozen=True)
class Onset:
    r"""A window of descent, measured at every step.

    Attributes:
        descent: losses and sharpness of the T + 1 iterates.
        projections: (T + 1,) float64, $\langle \theta_t - \theta_0, u \rangle$ with u the top
            eigenvector of the Hessian at $\theta_0$, the window's first iterate.
    """

    descent: Descent
    projections: Tensor

    @property
    def components(self) -> Tensor:
        """(T,) the component of every step along u."""
        return self.projections.diff()


@dataclass(frozen=True)
class QuadraticModelDescent:
    """Descent on the loss and on its second-order Taylor model, from the same weights.

    Attributes:
        true_losses: (T + 1,) float64, the loss along descent on the loss.
        model_losses: (T + 1,) float64, the model's value along descent on the model.
    """

    true_losses: Tensor
    model_losses: Tensor


def onset(
    model: nn.Module,
    loss: str,
    data: tuple[Tensor, Tensor],
    step_size: float,
    steps: int,
    *,
    optimiser: str = "gd",
    momentum: float = 0.0,
    tol: float = 1e-4,
    micro_batch: int | None = None,
    progress: Progress | None = None,
) -> Onset:
    r"""Run descent through a short window and measure it at every step.

    $$p_t = \langle \theta_t - \theta_0, u \rangle, \qquad
      p_{t+1} - p_t \approx (1 - \eta S)(p_t - p_{t-1})$$

    for gradient descent while S stands for the curvature along the top eigenvector u: beyond
    $S = 2/\eta$ the steps along u flip their sign and grow.

    **Source**: Cohen et al. (2021), Section 3.2.

    Args:
        model: as in `descend`, at the window's first iterate; it ends at the last one.
        loss: "square" or "cross-entropy", as in `descend`.
        data: as in `descend`.
        step_size: eta > 0.
        steps: T >= 0, the length of the window.
        optimiser: "gd", "polyak" or "nesterov"; the velocity starts at 0.
        momentum: beta in [0, 1), 0 for "gd".
        tol: relative tolerance of the sharpness.
        micro_batch: examples that pass the model at once; None for all.
        progress: wraps the range of steps, to show how far the run is.

    Returns:
        The records; u points where the first projection that is not 0 is positive.

    Raises:
        ValueError: if an argument does not fit.
        SharpnessError: if an eigenvalue cannot be had.

    Example:
        >>> model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        >>> _ = nn.init.ones_(model.weight)
        >>> data = torch.ones(1, 1).double(), torch.zeros(1, 1).double()
        >>> onset(model, "square", data, 3.0, 3).components
        tensor([  3.,  -6.,  12.], dtype=torch.float64)
    """
    problem = training_problem(model, loss, data, micro_batch)
    setting = run_setting(
        problem, step_size, optimiser=optimiser, momentum=momentum, every=1, tol=tol
    )
    state, origin, projections = RunState(problem, setting), problem.flat(), []
    walk = range(count("steps", steps, 0) + 1)
    for step in walk if progress is None else progress(walk):
        gradient = state.look(step)
        if step == 0:
            top = state.start
            if top is None:
                raise SharpnessError(f"the loss is {state.losses[0]} at the window's first iterate")
        projections.append(float((problem.flat() - origin) @ top))
        if state.ended != "open" or step == len(walk) - 1:
            break
        state.advance(gradient)
    along = torch.tensor(projections, dtype=torch.float64)
    moved = along[along != 0]
    return Onset(run_records(state), along * (moved[0].sign() if len(moved) else 1))


def quadratic_model_descent(
    model: nn.Module,
    loss: str,
    data: tuple[Tensor, Tensor],
    step_size: float,
    steps: int,
    *,
    micro_batch: int | None = None,
) -> QuadraticModelDescent:
    r"""Run gradient descent on the loss and on its second-order Taylor model at these weights.

    $$q(\delta) = L(\theta) + \langle \nabla L(\theta), \delta \rangle
      + \tfrac12 \langle \delta, \nabla^2 L(\theta)\, \delta \rangle, \qquad
      \delta_{t+1} = \delta_t - \eta \nabla q(\delta_t), \quad \delta_0 = 0$$

    **Source**: Cohen et al. (2021), Section 4.

    Args:
        model: as in `descend`; left as it is.
        loss: "square" or "cross-entropy", as in `descend`.
        data: as in `descend`.
        step_size: eta > 0.
        steps: T >= 0.
        micro_batch: examples that pass the model at once; None for all.

    Returns:
        Both losses at each of the T + 1 iterates, NaN from where they cannot be had: descent on
        the loss ends once it is above 1,000 times the first one.

    Raises:
        ValueError: if an argument does not fit.
        SharpnessError: if the loss at these weights is NaN or infinite.

    Example:
        >>> model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        >>> _ = nn.init.ones_(model.weight)
        >>> data = torch.ones(1, 1).double(), torch.zeros(1, 1).double()
        >>> run = quadratic_model_descent(model, "square", data, 0.5, 2)
        >>> run.model_losses, bool((run.true_losses == run.model_losses).all())
        (tensor([0.5000, 0.1250, 0.0312], dtype=torch.float64), True)
    """
    step_size, steps = positive("step_size", step_size), count("steps", steps, 0)
    problem = training_problem(copy.deepcopy(model), loss, data, micro_batch)
    setting = run_setting(problem, step_size, every=[steps + 1])
    quadratic = _descend_on_model(problem, step_size, steps)
    state = RunState(problem, setting)
    for step in range(steps + 1):
        gradient = state.look(step)
        if state.ended != "open":
            break
        if step < steps:
            state.advance(gradient)
    rest = [float("nan")] * (steps + 1 - len(state.losses))
    return QuadraticModelDescent(
        torch.tensor(state.losses + rest, dtype=torch.float64), torch.stack(quadratic)
    )


def _descend_on_model(problem: TrainingProblem, step_size: float, steps: int) -> list[Tensor]:
    """The Taylor model's values along descent on it, in float64."""
    with problem.unchanged_buffers():
        value, pieces, _ = problem.value_and_gradient()
        hessian = HessianOperator(problem.closures(), problem.parameters)
        gradient = flatten(pieces).double()
        change = torch.zeros_like(gradient)
        image, values = change, []
        for step in range(steps + 1):
            image = hessian(change) if step else image
            values.append((value + gradient @ change + change @ image / 2).cpu())
            change = change - step_size * (gradient + image)
    return values
