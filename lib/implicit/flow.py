"""Gradient flow in logarithmic time: limit directions to many digits, for many starts at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lib.implicit.checks import count, positive
from lib.implicit.losses import log_slopes
from lib.implicit.packing import Weights, pack
from lib.implicit.runge_kutta import ORDER, LocalField, runge_kutta_step
from lib.implicit.training import Trajectory, TrainingProblem, training_problem

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
    r"""Follow the gradient flow of the training loss until the weights have grown by a given amount.

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
        growth: the final E in (0, 28]; beyond it float64 cannot resolve the shares p.
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
    growth = positive("growth", growth, high=28)
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
    """States (B, R, p) and step counts (B, R) at the first step past each level, member by member."""
    state = problem.start.reshape(-1, problem.start.shape[-1])
    shape = (*problem.start.shape[:-1], *problem.rows.shape[-2:])
    rows = problem.rows.expand(shape).reshape(-1, *problem.rows.shape[-2:])
    level = state.new_tensor(levels)
    kept = state.unsqueeze(1).repeat(1, len(levels), 1)
    steps = torch.zeros(len(state), len(levels), dtype=torch.int64, device=state.device)
    member = torch.arange(len(state), device=state.device)
    done = torch.zeros_like(member)
    cursor = (_growth(problem, state).unsqueeze(-1) >= level).sum(-1)
    slope = _field(problem, rows)(state).value
    step = torch.full_like(state[:, 0], _FIRST_STEP)
    for _ in range(most_steps):
        active = cursor < len(levels)
        if not bool(active.all()):
            member, done, cursor, state, slope, step, rows = (
                value[active] for value in (member, done, cursor, state, slope, step, rows)
            )
            if on_record is not None:
                on_record(len(kept) - len(member), len(kept))
        if not len(member):
            return kept, steps
        moved, moved_slope, error = runge_kutta_step(
            _field(problem, rows), state, slope, step, tolerance
        )
        good = error <= tolerance
        state = torch.where(good.unsqueeze(-1), moved, state)
        slope = torch.where(good.unsqueeze(-1), moved_slope, slope)
        done = done + good
        factor = _SAFETY * (tolerance / error.clamp(min=1e-300)) ** (1 / ORDER)
        step = step * factor.clamp(_MOST_SHRINKING, _MOST_GROWTH)
        reached = (_growth(problem, state).unsqueeze(-1) >= level).sum(-1)
        for i in torch.nonzero(reached > cursor).flatten().tolist():
            kept[member[i], cursor[i] : reached[i]] = state[i]
            steps[member[i], cursor[i] : reached[i]] = done[i]
        cursor = torch.maximum(cursor, reached)
    raise RuntimeError(
        f"{len(member)} of {len(kept)} starts did not reach log |w|^L = {levels[-1]:g} within "
        f"{most_steps} steps; the slowest stands at {float(_growth(problem, state).min()):.3g}. "
        "Either it cannot reach a separator from where it starts, or it needs more steps"
    )


def _growth(problem: TrainingProblem, state: Tensor) -> Tensor:
    """log |w|^L, (B,)."""
    return problem.network.degree * torch.linalg.vector_norm(state, dim=-1).log()


def _field(problem: TrainingProblem, rows: Tensor) -> Callable[[Tensor], LocalField]:
    """The right-hand side of the flow, with the inverse of its stiff part."""

    def evaluate(state: Tensor) -> LocalField:
        network = problem.network.linearise(problem.unpack(state))
        margins = (rows @ network.predictor.unsqueeze(-1)).squeeze(-1)
        slopes = log_slopes(margins, problem.loss)
        shares = torch.softmax(slopes, -1)
        speed = torch.linalg.vector_norm(state, dim=-1) ** (2 - problem.network.degree)
        pull = (shares.unsqueeze(-2) @ rows).squeeze(-2)
        value = speed.unsqueeze(-1) * pack(network.adjoint(pull))

        def solve(right: Tensor, length: Tensor) -> Tensor:
            reaction = torch.diag_embed(shares) - shares.unsqueeze(-1) * shares.unsqueeze(-2)
            if problem.loss == "logistic":
                reaction = reaction * torch.sigmoid(margins).unsqueeze(-2)
            length = (length * speed)[:, None, None]
            moved = network.pushforward(problem.unpack(right))
            change = reaction @ (rows @ moved.unsqueeze(-1))
            system = length * reaction @ network.gram(rows)
            system = system + torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device)
            shift = length * torch.linalg.solve(system, change)
            back = (shift.mT @ rows).squeeze(-2)
            return right - pack(network.adjoint(back))

        return LocalField(value, solve)

    return evaluate
