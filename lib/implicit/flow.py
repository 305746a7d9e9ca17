"""Gradient flow in logarithmic time: limit directions to many digits, for many starts at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lib.implicit.checks import count, positive
from lib.implicit.packing import Weights
from lib.implicit.runge_kutta import ORDER, runge_kutta_step
from lib.implicit.stages import initial_slope, stage_solver
from lib.implicit.training import TrainingProblem, Trajectory, training_problem

_FIRST_STEP = 1e-3
_SAFETY, _MOST_GROWTH, _MOST_SHRINKING = 0.85, 4.0, 0.2


def log_time_flow(
    network: object,
    inputs: Tensor,
    labels: Tensor,
    growth: float = 20.0,
    generator: torch.Generator | None = None,
    scale: float = 0.01,
    loss: str = "exponential",
    *,
    weights: Weights | None = None,
    batch: tuple[int, ...] = (),
    records: int = 20,
    tolerance: float = 1e-7,
    most_steps: int = 5000,
    on_record: Callable[[int, int], None] | None = None,
) -> Trajectory:
    r"""Follow the gradient flow of the training loss until the weights have grown enough.

    $$\frac{dw}{d\tau} = \|w\|^{2-L}\, P'(w)^\top \sum_n p_n a_n, \qquad
      p_n \propto -\ell'(m_n)$$

    It is the orbit of gradient flow, run through at a speed at which log |w| grows steadily: what
    normalised descent reaches in $e^E$ steps takes some hundred steps to $\log \|w\|^L = E$. The
    equation is stiff, since the shares p react to margins of size $e^E$; but that reaction has rank
    N, so every implicit stage costs a system of N equations (Woodbury) and the weights may be many.

    **Source**: the flow of Gunasekar et al. (2018), Section 2, Eq. 7; the change of time is derived
    from the homogeneity of P.

    Args:
        network: `DenseNetwork`, `ConvolutionalNetwork`, `DiagonalNetwork` or `HomogeneousNetwork`.
        inputs: (..., N, D), rows are examples; leading dimensions are data sets.
        labels: (..., N), -1 or +1.
        growth: the final E in (0, 40]; beyond about 34 float64 cannot always resolve the margins.
        generator: draws the initial weights; may be None when `weights` is given.
        scale: standard deviation of the initial weights.
        loss: "exponential" or "logistic".
        weights: initial weights; None to draw them.
        batch: shape of a batch of independent starts for every data set.
        records: number of records, at the first step past each of E / records, 2 E / records, ...;
            a start beyond a level is itself the record.
        tolerance: error of a step relative to the length of the weights.
        most_steps: steps, refused ones too, after which the flow is given up.
        on_record: called with the number of members that have arrived and their total, whenever
            one has.

    Returns:
        A `Trajectory` with leading dimensions (*batch, ...); `step` counts accepted steps.

    Raises:
        ValueError: if an argument does not fit.
        RuntimeError: if the weights do not grow so far, as when a start cannot reach a separator.

    Example:
        >>> from lib.implicit.networks import DenseNetwork
        >>> inputs, labels = torch.tensor([[3.0, 4.0]]), torch.tensor([-1])
        >>> log_time_flow(DenseNetwork(1), inputs, labels, 20, torch.Generator()).direction[-1]
        tensor([-0.6000, -0.8000], dtype=torch.float64)
    """
    growth = positive("growth", growth, high=40)
    records, most_steps = count("records", records), count("most_steps", most_steps)
    tolerance = positive("tolerance", tolerance, high=0.1)
    problem = training_problem(network, inputs, labels, loss, weights, generator, scale, batch)
    levels = torch.linspace(growth / records, growth, records, dtype=torch.float64)
    shape = problem.start.shape[:-1]
    with torch.no_grad():
        states, steps = _follow(problem, levels.tolist(), tolerance, most_steps, on_record)
    states = states.reshape(*shape, *states.shape[1:])
    moments = [problem.snapshot(states[..., r, :]) for r in range(records)]
    fields = {
        name: torch.stack([moment[name] for moment in moments], len(shape)) for name in moments[0]
    }
    final = problem.unpack(states[..., -1, :])
    return Trajectory(step=steps.reshape(*shape, -1), weights=final, **fields)


def _follow(
    problem: TrainingProblem,
    levels: list[float],
    tolerance: float,
    most_steps: int,
    on_record: Callable[[int, int], None] | None,
) -> tuple[Tensor, Tensor]:
    """States (B, R, p) and step counts (B, R) at every member's first step past each level."""
    run = _Run(problem, levels)
    for _ in range(most_steps):
        arrived = run.drop_arrived()
        if arrived and on_record is not None:
            on_record(len(run.kept) - len(run.member), len(run.kept))
        if not len(run.member):
            return run.kept, run.steps
        solver = stage_solver(problem, run.rows, tolerance)
        moved = runge_kutta_step(solver, run.state, run.slope, run.logits, run.step)
        run.advance(*moved, tolerance)
    raise RuntimeError(
        f"{len(run.member)} of {len(run.kept)} starts did not reach log |w|^L = {levels[-1]:g} "
        f"within {most_steps} steps; the slowest stands at {float(run.growth().min()):.3g}. "
        "Either it cannot reach a separator from where it starts, or it needs more steps"
    )


class _Run:
    """The members of a batch that are still on their way, and what has been recorded of all."""

    def __init__(self, problem: TrainingProblem, levels: list[float]) -> None:
        start, data = problem.start, problem.rows.shape[-2:]
        self.degree = problem.network.degree
        self.state = start.reshape(-1, start.shape[-1])
        self.rows = problem.rows.expand(*start.shape[:-1], *data).reshape(-1, *data)
        self.levels = start.new_tensor(levels)
        self.kept = self.state.unsqueeze(1).repeat(1, len(levels), 1)
        self.steps = self.kept.new_zeros(self.kept.shape[:2], dtype=torch.int64)
        self.member = torch.arange(len(self.state), device=start.device)
        self.done = torch.zeros_like(self.member)
        self.cursor = self.reached()
        self.logits, self.slope = initial_slope(problem, self.rows, self.state)
        self.step = torch.full_like(self.state[:, 0], _FIRST_STEP)

    def growth(self) -> Tensor:
        """log |w|^L, (B,)."""
        return self.degree * torch.linalg.vector_norm(self.state, dim=-1).log()

    def reached(self) -> Tensor:
        """How many levels each member has passed, (B,)."""
        return (self.growth().unsqueeze(-1) >= self.levels).sum(-1)

    def drop_arrived(self) -> bool:
        """Keep only the members that are on their way; say whether any was dropped."""
        active = self.cursor < len(self.levels)
        if bool(active.all()):
            return False
        for name in ("state", "rows", "member", "done", "cursor", "logits", "slope", "step"):
            setattr(self, name, getattr(self, name)[active])
        return True

    def advance(
        self, state: Tensor, slope: Tensor, logits: Tensor, error: Tensor, tolerance: float
    ) -> None:
        """Accept or refuse each member's step, choose the next, record the levels passed."""
        good = error <= tolerance
        self.state = torch.where(good.unsqueeze(-1), state, self.state)
        self.slope = torch.where(good.unsqueeze(-1), slope, self.slope)
        self.logits = torch.where(good.unsqueeze(-1), logits, self.logits)
        self.done = self.done + good
        factor = _SAFETY * (tolerance / error.clamp(min=1e-300)) ** (1 / ORDER)
        self.step = self.step * factor.clamp(_MOST_SHRINKING, _MOST_GROWTH)
        reached = torch.maximum(self.reached(), self.cursor)
        for i in torch.nonzero(reached > self.cursor).flatten().tolist():
            passed = slice(self.cursor[i], reached[i])
            self.kept[self.member[i], passed] = self.state[i]
            self.steps[self.member[i], passed] = self.done[i]
        self.cursor = reached
