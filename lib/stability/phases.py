"""Numbers that a run of descent is judged by: its plateau, and how often its loss rose."""

from __future__ import annotations

from torch import Tensor

from lib.stability.checks import count, positive
from lib.stability.descent import Descent


def plateau(run: Descent, fraction: float = 1 / 3) -> Tensor:
    """Return the ratios of sharpness to threshold over the last part of a run.

    Args:
        run: the records of descent.
        fraction: the part of the steps, in (0, 1].

    Returns:
        (m',) float64, the ratios measured at steps >= (1 - fraction) T, with T the last step.

    Raises:
        ValueError: if fraction is outside (0, 1], or nothing was measured there.

    Example:
        >>> import torch
        >>> from lib.stability import descend
        >>> data = torch.ones(1, 1), torch.zeros(1, 1)
        >>> run = descend(torch.nn.Linear(1, 1, bias=False), "square", data, 1.0, 9, every=3)
        >>> plateau(run)
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    begin = (1 - positive("fraction", fraction, 1.0)) * (len(run.losses) - 1)
    ratios = run.ratio[run.steps >= begin - 1e-9]
    if not len(ratios):
        raise ValueError(f"fraction must cover a measured step, got {fraction:g}; raise it")
    return ratios


def loss_rises(run: Descent, start: int = 0, stop: int | None = None) -> float:
    r"""Return the share of steps that raised the loss.

    $$\frac{1}{b - a}\, \#\{ t : a \le t < b,\; L(\theta_{t+1}) > L(\theta_t) \}$$

    Args:
        run: the records of descent.
        start: a, the first step.
        stop: b, the step after the last one; None for the end of the run.

    Returns:
        The share, in [0, 1].

    Raises:
        ValueError: if the steps are not inside the run, or there is none.

    Example:
        >>> import torch
        >>> from lib.stability import descend
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> run = descend(model, "square", (torch.ones(1, 1), torch.zeros(1, 1)), 2.5, 4)
        >>> loss_rises(run), loss_rises(run, 1, 3)
        (1.0, 1.0)
    """
    last = len(run.losses) - 1
    if last < 1:
        raise ValueError(f"run must have at least one step, got {max(last, 0)}")
    stop = last if stop is None else count("stop", stop, 1, last)
    start = count("start", start, 0, stop - 1)
    return float((run.losses[start : stop + 1].diff() > 0).double().mean())
