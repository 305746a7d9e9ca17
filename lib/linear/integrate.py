"""A stiff integrator for many small autonomous systems at once.

Gradient flow on the distillation loss is stiff: curvatures differ by many orders of magnitude, and
the limit is reached at times where an explicit method would need millions of steps. The method is
the linearly implicit Euler rule, extrapolated in the step size (as in SEULEX): every member of the
batch has its own adaptive step, and the sub-steps of all members are solved in one batched call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lib.linear.checks import check_count, check_number, to_float64

COLUMNS = 8
GROWTH_LIMIT = 10.0
SHRINK_LIMIT = 0.1
SAFETY = 0.85

Field = Callable[..., Tensor]


@dataclass(frozen=True)
class Solution:
    """States of a batch of initial value problems at the requested times.

    Attributes:
        states: (B, T, m) float64, the state of each member at each requested time.
        steps: (B,) int64, accepted steps of each member.
        rejections: (B,) int64, steps that the error estimate refused.
    """

    states: Tensor
    steps: Tensor
    rejections: Tensor


def extrapolated_step(
    field: Field,
    jacobian: Field,
    state: Tensor,
    step: Tensor,
    arguments: tuple[Tensor, ...] = (),
    columns: int = COLUMNS,
) -> tuple[Tensor, Tensor]:
    r"""Make one step of extrapolated linearly implicit Euler, with its error estimate.

    Row $j$ of the table makes $n_j = j + 1$ sub-steps $(I - h_j J)\,\Delta = h_j f(y)$ of length
    $h_j = h / n_j$ with one Jacobian $J = f'(y_0)$. The Aitken-Neville scheme removes the first
    $k - 1$ powers of $h$ from the error:
    $$T_{j,l+1} = T_{j,l} + \frac{T_{j,l} - T_{j-1,l}}{n_j / n_{j-l} - 1}.$$
    $T_{k,k}$ has local error $O(h^{k+1})$; the estimate is $T_{k,k} - T_{k,k-1} = O(h^k)$.

    **Source**: Deuflhard, *SIAM Review* 27 (1985); Hairer and Wanner, *Solving Ordinary
    Differential Equations II*, Section IV.9.

    Args:
        field: maps states (B, S, m) and the arguments to derivatives (B, S, m).
        jacobian: maps a state (B, m) and the arguments to Jacobians (B, m, m).
        state: (B, m), float64.
        step: (B,), step sizes > 0.
        arguments: tensors whose first dimension is B, handed on to `field` and `jacobian`.
        columns: the number k >= 2 of rows and columns of the table.

    Returns:
        The increment of the state and its error estimate, both (B, m).

    Raises:
        ValueError: if columns < 2.

    Example:
        For y' = -y and h = 1 two and three sub-steps end at 1 / 1.5^2 = 4/9 and 27/64.

        >>> y, h = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        >>> jacobian = lambda y: -torch.eye(1, dtype=y.dtype).expand(len(y), 1, 1)
        >>> increment, error = extrapolated_step(lambda y: -y, jacobian, y, h, columns=2)
        >>> abs(float(1 + increment) - (3 * 27 / 64 - 2 * 4 / 9)) < 1e-15
        True
    """
    check_count("columns", columns, minimum=2)
    count = torch.arange(2, columns + 2, dtype=state.dtype, device=state.device)
    substep = step / count[:, None]
    matrix = -substep[:, :, None, None] * jacobian(state, *arguments)
    matrix.diagonal(dim1=-2, dim2=-1).add_(1.0)
    factor, pivots, _ = torch.linalg.lu_factor_ex(matrix)
    total = state.new_zeros(columns, *state.shape)
    slope = field(state[:, None], *arguments).transpose(0, 1)
    for i in range(columns + 1):
        first = max(i - 1, 0)  # the first row that still has a sub-step to make
        if i > 0:
            slope = field((state + total[first:]).transpose(0, 1), *arguments).transpose(0, 1)
        right = (substep[first:, :, None] * slope)[..., None]
        total[first:] += torch.linalg.lu_solve(factor[first:], pivots[first:], right)[..., 0]
    return _extrapolate(total, count)


def _extrapolate(table: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Reduce (k, B, m) towards step zero: the last entry, and its distance to the one before."""
    correction = table[-1:]
    for level in range(1, len(count)):
        ratio = count[level:] / count[:-level]
        correction = (table[1:] - table[:-1]) / (ratio - 1.0)[:, None, None]
        table = table[1:] + correction
    return table[-1], correction[-1]


def integrate(
    field: Field,
    jacobian: Field,
    initial: Tensor,
    times: Tensor,
    arguments: tuple[Tensor, ...] = (),
    *,
    rtol: float = 1e-9,
    atol: float = 1e-12,
    normwise: bool = False,
    max_steps: int = 5_000,
) -> Solution:
    r"""Solve $y' = f(y)$, $y(0) = y_0$ for a whole batch, each member with its own step sizes.

    A step from $y$ to $y + \Delta$ is accepted when each component of its error estimate is at most
    $\mathrm{atol} + \mathrm{rtol} \cdot \max(|y_i|, |y_i + \Delta_i|)$. Requested times are hit
    exactly, by shortening the step; a member that has reached the last time leaves the batch and
    costs nothing more. Rounding sets a limit: an error of size eps |J| |y| in f, amplified about a
    hundredfold by the extrapolation, keeps steps below about rtol / (100 eps |J|), unless the field
    is written so that its rounding error vanishes near the equilibrium.

    **Source**: the method of `extrapolated_step`, with the step control of Hairer and Wanner.

    Args:
        field: maps states (B, S, m) and the arguments to derivatives (B, S, m): the S sub-steps of
            a member are evaluated together.
        jacobian: maps a state (B, m) and the arguments to Jacobians (B, m, m).
        initial: (B, m), float64, the state at time 0.
        times: (T,), increasing, >= 0.
        arguments: tensors whose first dimension is B: the data of each member.
        rtol: relative tolerance, in [1e-13, 1).
        atol: absolute tolerance, > 0.
        normwise: compare Euclidean norms instead of components, so that the result does not depend
            on the choice of orthonormal coordinates.
        max_steps: the largest number of tried steps.

    Returns:
        A `Solution`.

    Raises:
        ValueError: for tolerances out of range, shapes that do not match, times that do not
            increase, or an initial state or derivative that is not finite.
        RuntimeError: when `max_steps` are not enough, or a step falls below the resolution of time.

    Example:
        The logistic equation y' = y (1 - y) from 1/2 has the solution 1 / (1 + exp(-t)).

        >>> half = torch.full((1, 1), 0.5, dtype=torch.float64)
        >>> times = torch.tensor([0.0, 2.0, 30.0], dtype=torch.float64)
        >>> jacobian = lambda y: (1 - 2 * y)[..., None]
        >>> solution = integrate(lambda y: y * (1 - y), jacobian, half, times)
        >>> bool((solution.states[0, :, 0] - torch.sigmoid(times)).abs().max() < 1e-9)
        True
    """
    _check_problem(field, initial, arguments, rtol, atol)
    check_count("max_steps", max_steps)
    times = check_times(times).to(initial.device)
    batch, device = len(initial), initial.device
    steps = torch.zeros(batch, dtype=torch.int64, device=device)
    states = initial[:, None].repeat(1, len(times), 1)
    solution = Solution(states, steps, steps.clone())
    measure = _norm_measure if normwise else _component_measure
    for rows in torch.arange(batch, device=device).split(_chunk(initial)):
        run = _Run.start(jacobian, initial, times, arguments, solution, rows)
        for _ in range(max_steps):
            if run.finished:
                break
            step, lands = run.next_step()
            increment, error = extrapolated_step(field, jacobian, run.state, step, run.arguments)
            run.advance(step, lands, increment, measure(run.state, increment, error, rtol, atol))
        if not run.finished:
            raise RuntimeError(
                f"no end after max_steps={max_steps}: {run.report()}; raise max_steps, rtol or atol"
            )
    return solution


def _chunk(initial: Tensor) -> int:
    """Members solved together: their matrices should stay in a CPU's cache, in a GPU's memory."""
    entries = initial.shape[1] ** 2
    if initial.device.type == "cpu":
        return max(1, min(1000, 2**17 // max(1, entries)))
    return max(1, 2**25 // max(1, entries))


def check_times(times: Tensor) -> Tensor:
    """Return times in float64, or raise ValueError unless they are increasing and >= 0.

    Args:
        times: (T,), T >= 1.

    Returns:
        The times in float64.

    Raises:
        ValueError: if they are not one-dimensional, finite, non-negative and increasing.

    Example:
        >>> check_times(torch.tensor([1.0, 1.0]))
        Traceback (most recent call last):
        ValueError: times must increase, got 1.0 followed by 1.0; sort them and drop repetitions
    """
    (converted,), _ = to_float64(times=times)
    if converted.ndim != 1 or len(converted) < 1:
        raise ValueError(f"times must have shape (T,) with T >= 1, got {tuple(times.shape)}")
    if bool((converted < 0).any()):
        raise ValueError(f"times must be >= 0, got {float(converted.min())}; training starts at 0")
    stalls = (converted.diff() <= 0).nonzero()
    if len(stalls) > 0:
        first, second = converted[int(stalls[0]) :][:2].tolist()
        raise ValueError(
            f"times must increase, got {first} followed by {second}; sort them and drop repetitions"
        )
    return converted


def _component_measure(
    state: Tensor, increment: Tensor, error: Tensor, rtol: float, atol: float
) -> Tensor:
    """Largest component of the error in units of its tolerance, (B,)."""
    size = torch.maximum(state.abs(), (state + increment).abs())
    return (error.abs() / (atol + rtol * size)).amax(-1)


def _norm_measure(
    state: Tensor, increment: Tensor, error: Tensor, rtol: float, atol: float
) -> Tensor:
    """Euclidean norm of the error in units of its tolerance, (B,)."""
    size = torch.maximum(state.norm(dim=-1), (state + increment).norm(dim=-1))
    return error.norm(dim=-1) / (atol + rtol * size)


def _check_problem(field: Field, initial: Tensor, arguments, rtol: float, atol: float) -> None:
    """Refuse a problem that cannot be integrated."""
    check_number("rtol", rtol, 1e-13, 1.0, open_high=True)
    check_number("atol", atol, 0.0, open_low=True)
    if initial.ndim != 2 or initial.dtype != torch.float64:
        raise ValueError(
            f"initial must be a float64 tensor (B, m), one row per member, got {initial.dtype} "
            f"{tuple(initial.shape)}"
        )
    to_float64(initial=initial)
    for i, argument in enumerate(arguments):
        if argument.ndim < 1 or len(argument) != len(initial):
            raise ValueError(
                f"arguments[{i}] must have first dimension B = {len(initial)} like initial, "
                f"got shape {tuple(argument.shape)}"
            )
    if not bool(torch.isfinite(field(initial[:, None], *arguments)).all()):
        raise ValueError("field must be finite at initial, got NaN or infinity; start elsewhere")


@dataclass
class _Run:
    """What changes while members are integrated; rows are those that have not finished."""

    times: Tensor
    solution: Solution
    member: Tensor
    state: Tensor
    time: Tensor
    step: Tensor
    cursor: Tensor
    arguments: tuple[Tensor, ...]

    @classmethod
    def start(cls, jacobian: Field, initial, times, arguments, solution, rows) -> _Run:
        """Time 0; the first step is a tenth of the time scale of the Jacobian."""
        state = initial[rows]
        arguments = tuple(argument[rows] for argument in arguments)
        rate = jacobian(state, *arguments).flatten(1).norm(dim=1)
        run = cls(
            times=times,
            solution=solution,
            member=rows,
            state=state,
            time=torch.zeros_like(rate),
            step=torch.minimum(0.1 / rate, times[-1]),
            cursor=torch.zeros_like(rows) + int(times[0] == 0),
            arguments=arguments,
        )
        run.keep(run.cursor < len(times))
        return run

    @property
    def finished(self) -> bool:
        """Whether every member has reached the last time."""
        return len(self.member) == 0

    def next_step(self) -> tuple[Tensor, Tensor]:
        """Steps shortened to land on the next requested time, and which of them land there."""
        left = self.times[self.cursor] - self.time
        lands = self.step >= left
        short = torch.where(2 * self.step > left, 0.5 * left, self.step)
        return torch.where(lands, left, short), lands

    def advance(self, step: Tensor, lands: Tensor, increment: Tensor, error: Tensor) -> None:
        """Accept or refuse each row's step, choose the next one, store what has arrived."""
        if bool((self.time + step == self.time).any()):
            raise RuntimeError(
                f"a step fell below the resolution of time: {self.report()}; raise rtol or atol"
            )
        accepted = error <= 1.0  # false where the error is NaN
        self.solution.steps[self.member] += accepted
        self.solution.rejections[self.member] += ~accepted
        self.state = torch.where(accepted[:, None], self.state + increment, self.state)
        moved = torch.where(lands, self.times[self.cursor], self.time + step)
        self.time = torch.where(accepted, moved, self.time)
        factor = SAFETY * error.clamp_min(1e-30) ** (-1.0 / COLUMNS)
        growth = torch.clamp_min(self.step / step, GROWTH_LIMIT)
        factor = torch.where(accepted, torch.minimum(factor, growth), factor.clamp_max(0.9))
        self.step = step * torch.nan_to_num(factor, nan=0.0).clamp_min(SHRINK_LIMIT)
        self._record(accepted & lands)

    def _record(self, arrived: Tensor) -> None:
        """Store the rows that arrived at a requested time; drop those at the last one."""
        if bool(arrived.any()):
            target = self.solution.states
            target[self.member[arrived], self.cursor[arrived]] = self.state[arrived]
            self.cursor = self.cursor + arrived
            self.keep(self.cursor < len(self.times))

    def keep(self, stays: Tensor) -> None:
        """Keep only some rows."""
        if bool(stays.all()):
            return
        for name in ("member", "state", "time", "step", "cursor"):
            setattr(self, name, getattr(self, name)[stays])
        self.arguments = tuple(argument[stays] for argument in self.arguments)

    def report(self) -> str:
        """Where the slowest member stands, for error messages."""
        i = int(self.time.argmin())
        largest = float(self.state[i].abs().max())
        return (
            f"{len(self.member)} members unfinished, member {int(self.member[i])} at time "
            f"{float(self.time[i]):.6g} of {float(self.times[-1]):.6g} with step "
            f"{float(self.step[i]):.3g} and largest component {largest:.6g}"
        )
