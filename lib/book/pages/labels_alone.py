"""What label steps and the label flow do alone, for the chapter "Both at once"."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lib.tpkd import conditional_kl, conditional_log_probs, directions, log_odds


def label_flow(
    student: Tensor, labels: Tensor, length: float, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Follow the gradient flow of the label loss by its effective time $ds = (1 - \rho)\, dt$.

    In $s$ the label's logit rises at rate 1 and a competitor's falls at rate $r_j$. Runge-Kutta of
    order 4 for the logits, Simpson's rule for $dt = ds / (1 - \rho)$.

    Args:
        student: (..., K) logits.
        labels: (...).
        length: last value of s.
        steps: number of steps.

    Returns:
        s (steps + 1,), time t (steps + 1, ...) and logits (steps + 1, ..., K).
    """
    size, z = length / steps, student.to(torch.float64)
    path, times = [z], [torch.zeros_like(z[..., 0])]
    for _ in range(steps):
        one = _velocity(z, labels)
        two = _velocity(z + size / 2 * one, labels)
        three = _velocity(z + size / 2 * two, labels)
        four = _velocity(z + size * three, labels)
        middle = z + size / 24 * (5 * one + 4 * two + 4 * three - four)
        after = z + size / 6 * (one + 2 * two + 2 * three + four)
        rates = [1 + log_odds(point, labels).exp() for point in (z, middle, after)]
        times.append(times[-1] + size / 6 * (rates[0] + 4 * rates[1] + rates[2]))
        path.append(after)
        z = after
    return torch.linspace(0, length, steps + 1), torch.stack(times), torch.stack(path)


def label_steps(start: Tensor, step_size: float, steps: int) -> tuple[Tensor, Tensor]:
    r"""Take many label steps, followed by the odds $E_j = p_j / \rho$ of the competitors alone.

    $$E_j \leftarrow E_j \exp\Bigl(-\eta \frac{S + E_j}{1 + S}\Bigr), \qquad S = \sum_j E_j$$

    Args:
        start: (N, K - 1), the odds at the start; zero for a class that is not there.
        step_size: eta > 0.
        steps: number of steps.

    Returns:
        Doubt $1 - \rho$ (N,), and r (N, K - 1).

    Example:
        >>> doubt, r = label_steps(torch.tensor([[1.0, 1.0]]), 0.3, 1)
        >>> doubt, r  # S = 2 exp(-0.3) after one step
        (tensor([0.5970], dtype=torch.float64), tensor([[0.5000, 0.5000]], dtype=torch.float64))
    """
    odds = start.to(torch.float64).T.contiguous().numpy().copy()
    total, work = odds.sum(0), np.empty_like(odds)
    for _ in range(steps):
        np.add(odds, total, out=work)
        np.multiply(work, -step_size / (1 + total), out=work)
        np.exp(work, out=work)
        np.multiply(odds, work, out=odds)
        np.add.reduce(odds, 0, out=total)
    final = torch.from_numpy(odds).T
    total = final.sum(-1)
    return total / (1 + total), final / total.unsqueeze(-1)


def flow_slopes(path: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the rate of $\operatorname{KL}(\nu \| r)$ along the label flow in two ways.

    Args:
        path: (..., K) logits.
        labels: (...).

    Returns:
        The directional derivative along $-h$ by automatic differentiation, and
        $-(1 - \rho) |r - \nu|^2$, each (...).
    """
    uniform, free = torch.zeros_like(path), path.clone().requires_grad_()
    h = directions(path, uniform, labels).label
    (gradient,) = torch.autograd.grad(conditional_kl(free, uniform, labels).sum(), free)
    slope = -(gradient * h).sum(-1)
    gap = directions(path, uniform, labels).conditional
    return slope, -torch.sigmoid(-log_odds(path, labels)) * gap.square().sum(-1)


def _velocity(z: Tensor, labels: Tensor) -> Tensor:
    """dz / ds: 1 at the label and -r elsewhere."""
    r = conditional_log_probs(z, labels).exp()
    return (-r).scatter(-1, labels.unsqueeze(-1), 1.0)
