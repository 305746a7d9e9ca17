"""Gradient flow by explicit Runge-Kutta steps bounded by the sharpness, alone or beside descent."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from lib.stability.checks import choice, count, positive
from lib.stability.descent import Descent, Progress, run_records, run_setting
from lib.stability.run_state import DIVERGED, RunState
from lib.stability.training import TrainingProblem, training_problem

# A stage starts from the weights and this fraction of a step along the stage before it; then the
# weights of the stages in the step.
RULES = {
    "euler": ((), (1.0,)),
    "midpoint": ((1 / 2,), (0.0, 1.0)),
    "rk4": ((1 / 2, 1 / 2, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
}


@dataclass(frozen=True)
class Flow:
    r"""Records of gradient flow; m is the number of times.

    Attributes:
        times: (m,) float64.
        losses: (m,) float64.
        sharpness: (m, k) float64, the k largest eigenvalues of the Hessian, descending.
        residuals: (m, k), $\|H v - \lambda v\| / |\lambda|$ of each.
        products: (m,) int64, Hessian-vector products used.
        accuracies: (m,) share of examples whose largest output is at the label; None for targets
            that are numbers.
        integrator_steps: (m,) int64, Runge-Kutta steps done so far.
        diverged: whether the flow was left early, its loss above 1,000 times the first one.
    """

    times: Tensor
    losses: Tensor
    sharpness: Tensor
    residuals: Tensor
    products: Tensor
    accuracies: Tensor | None
    integrator_steps: Tensor
    diverged: bool


@dataclass(frozen=True)
class BesideFlow:
    """Gradient descent and gradient flow from the same weights, at equal times; m is their number.

    Attributes:
        descent: the records of descent.
        flow_losses: (m,) float64, the loss of the flow at `descent.times`.
        flow_sharpness: (m,) float64, its sharpness there.
        distances: (m,) float64, the distance of the two weight vectors.
        travelled: (m,) float64, the distance of descent from the start.
    """

    descent: Descent
    flow_losses: Tensor
    flow_sharpness: Tensor
    distances: Tensor
    travelled: Tensor


class _Walker:
    """Weights that follow the flow from measurement to measurement."""

    def __init__(
        self,
        problem: TrainingProblem,
        *,
        alpha: float,
        max_step: float,
        rule: str,
        k: int,
        tol: float,
    ) -> None:
        self.problem = problem
        self.alpha, self.max_step = positive("alpha", alpha), positive("max_step", max_step)
        self.fractions, self.shares = RULES[choice("rule", rule, tuple(RULES))]
        self.k, self.tol = count("k", k), positive("tol", tol)
        self.start: Tensor | None = None
        self.first_loss: float | None = None
        self.steps = 0

    def look(self) -> dict | None:
        """Return what is recorded here, or None where the flow has diverged."""
        loss, _, accuracy = self.problem.value_and_gradient(accuracy=True)
        self.first_loss = loss if self.first_loss is None else self.first_loss
        if not math.isfinite(loss) or loss > DIVERGED * self.first_loss:
            return None
        top = self.problem.sharpness(self.k, self.tol, self.start)
        self.start = top.vectors.sum(0)
        return {
            "losses": loss,
            "sharpness": top.values.tolist(),
            "residuals": top.residuals.tolist(),
            "products": top.products,
            "accuracies": accuracy,
            "integrator_steps": self.steps,
        }

    def walk(self, duration: float, largest_curvature: float) -> None:
        """Follow the flow for a time, in equal steps not above alpha / curvature and max_step."""
        bound = self.max_step
        if largest_curvature > 0:
            bound = min(bound, self.alpha / largest_curvature)
        steps = math.ceil(duration / bound * (1 - 1e-12))
        for _ in range(steps):
            self._step(duration / steps)
        self.steps += steps

    def _step(self, size: float) -> None:
        parameters = self.problem.parameters
        origin = [parameter.detach().clone() for parameter in parameters]
        total = [torch.zeros_like(parameter) for parameter in origin]
        for stage, share in enumerate(self.shares):
            _, slope, _ = self.problem.value_and_gradient()
            for sum_, piece in zip(total, slope, strict=True):
                sum_.add_(piece, alpha=share)
            last = stage == len(self.fractions)
            along = total if last else slope
            fraction = 1.0 if last else self.fractions[stage]
            with torch.no_grad():
                for parameter, begin, piece in zip(parameters, origin, along, strict=True):
                    parameter.copy_(begin).add_(piece, alpha=-fraction * size)


def flow(
    model: nn.Module,
    loss: str,
    data: tuple[Tensor, Tensor],
    time: float,
    *,
    every: float = 1.0,
    alpha: float = 1.0,
    max_step: float = 0.1,
    rule: str = "rk4",
    k: int = 1,
    tol: float = 1e-4,
    micro_batch: int | None = None,
    progress: Progress | None = None,
) -> Flow:
    r"""Follow gradient flow and measure its sharpness on the way.

    $$\frac{d\theta}{dt} = -\nabla L(\theta), \qquad h \le \min(\alpha / S, h_{\max})$$

    by a Runge-Kutta method whose step h the last measured sharpness S bounds. On a quadratic the
    classical method is stable up to $h S = 2.785$, Euler's and the midpoint method up to 2.

    **Source**: Cohen et al. (2021), the authors' code: the classical method with alpha = 1.

    Args:
        model: as in `descend`; it ends with the final weights.
        loss: "square" or "cross-entropy", as in `descend`.
        data: as in `descend`.
        time: how long, > 0.
        every: time between two records; the last one is at `time`.
        alpha: largest step times sharpness, > 0.
        max_step: largest step, > 0.
        rule: "rk4" (the classical method), "midpoint" or "euler".
        k: number of eigenvalues.
        tol: relative tolerance of the eigenvalues.
        micro_batch: examples that pass the model at once; None for all.
        progress: wraps the range of records, to show how far the flow is.

    Returns:
        The records. A loss above 1,000 times the first one, or not finite, ends the flow.

    Raises:
        ValueError: if an argument does not fit.
        SharpnessError: if an eigenvalue cannot be had.

    Example:
        >>> model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        >>> data = torch.ones(1, 1).double(), torch.zeros(1, 1).double()
        >>> run = flow(model, "square", data, 2.0)
        >>> bool(((run.losses / run.losses[0]).log() + 2 * run.times).abs().max() < 1e-5)
        True
    """
    problem = training_problem(model, loss, data, micro_batch)
    walker = _Walker(problem, alpha=alpha, max_step=max_step, rule=rule, k=k, tol=tol)
    times = _times(positive("time", time), positive("every", every))
    rows: list[dict] = []
    walk = range(len(times))
    for index in walk if progress is None else progress(walk):
        row = walker.look()
        if row is None:
            break
        rows.append(row)
        if index + 1 < len(times):
            walker.walk(times[index + 1] - times[index], row["sharpness"][0])
    return _flow_records(rows, times, walker)


def descend_beside_flow(
    model: nn.Module,
    loss: str,
    data: tuple[Tensor, Tensor],
    step_size: float,
    steps: int,
    *,
    every: int = 10,
    alpha: float = 1.0,
    max_step: float = 0.1,
    rule: str = "rk4",
    tol: float = 1e-4,
    micro_batch: int | None = None,
    progress: Progress | None = None,
) -> BesideFlow:
    r"""Run gradient descent and gradient flow in lockstep, and measure how far apart they are.

    $$\|\theta_t - \theta(\eta t)\|, \qquad \theta_0 = \theta(0)$$

    **Source**: Cohen et al. (2021), the authors' code, which compares random projections.

    Args:
        model: as in `descend`; it ends with the weights of descent.
        loss: "square" or "cross-entropy", as in `descend`.
        data: as in `descend`.
        step_size: eta > 0.
        steps: T >= 0, the number of steps of descent.
        every: steps of descent between two records.
        alpha: as in `flow`.
        max_step: as in `flow`.
        rule: as in `flow`.
        tol: relative tolerance of the sharpness.
        micro_batch: examples that pass the model at once; None for all.
        progress: wraps the range of steps, to show how far the run is.

    Returns:
        The records at every multiple of `every`, until descent diverges.

    Raises:
        ValueError: if an argument does not fit.
        SharpnessError: if an eigenvalue cannot be had.

    Example:
        >>> model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        >>> _ = nn.init.ones_(model.weight)
        >>> data = torch.ones(1, 1).double(), torch.zeros(1, 1).double()
        >>> run = descend_beside_flow(model, "square", data, 0.5, 2, every=2)
        >>> round(float(run.distances[1]), 4), round(torch.e ** -1 - 0.5**2, 4)
        (0.1179, 0.1179)
    """
    problem = training_problem(model, loss, data, micro_batch)
    setting = run_setting(problem, step_size, every=count("every", every), tol=tol)
    other = training_problem(copy.deepcopy(model), loss, data, micro_batch)
    walker = _Walker(other, alpha=alpha, max_step=max_step, rule=rule, k=1, tol=tol)
    origin = problem.flat()
    state, rows = RunState(problem, setting), []
    walk = range(count("steps", steps, 0) + 1)
    for step in walk if progress is None else progress(walk):
        gradient = state.look(step)
        if state.ended != "open":
            break
        if setting.measures(step):
            if step:
                walker.walk(every * setting.step_size, rows[-1][1])
            here = problem.flat()
            rows.append(_compare(walker, here, here - origin))
        if step < len(walk) - 1:
            state.advance(gradient)
    columns = torch.tensor(rows, dtype=torch.float64).reshape(-1, 4).unbind(1)
    return BesideFlow(run_records(state), *columns)


def _compare(walker: _Walker, here: Tensor, travelled: Tensor) -> tuple[float, ...]:
    """Loss and sharpness of the flow, its distance from descent, and descent's from the start."""
    row = walker.look() or {"losses": math.nan, "sharpness": [math.nan]}
    distance = float((here - walker.problem.flat()).norm())
    return row["losses"], row["sharpness"][0], distance, float(travelled.norm())


def _times(time: float, every: float) -> list[float]:
    """The multiples of `every` below the end, and the end."""
    inside = math.ceil(time / every * (1 - 1e-12))
    return [every * index for index in range(inside)] + [time]


def _flow_records(rows: list[dict], times: list[float], walker: _Walker) -> Flow:
    """The rows as tensors."""
    whole = ("products", "integrator_steps")
    columns = {
        name: torch.tensor(
            [row[name] for row in rows], dtype=torch.int64 if name in whole else torch.float64
        )
        for name in (field.name for field in fields(Flow))
        if name not in ("times", "diverged")
    }
    for name in ("sharpness", "residuals"):
        columns[name] = columns[name].reshape(-1, walker.k)
    if walker.problem.labels is None:
        columns["accuracies"] = None
    clock = torch.tensor(times[: len(rows)], dtype=torch.float64)
    return Flow(times=clock, diverged=len(rows) < len(times), **columns)
