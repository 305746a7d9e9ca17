"""The teacher of Section 5.2: a linear classifier learnt from labelled data."""

from __future__ import annotations

import warnings

import torch

RELATIVE_ERROR = 1e-6  # of the weights, in norm


def fit_logistic_teacher(
    inputs: torch.Tensor, labels: torch.Tensor, penalty: float
) -> torch.Tensor:
    r"""Weights of an L2-regularised logistic regression without intercept.

    $$w_* = \arg\min_w \frac1m \sum_{i=1}^m \log\bigl(1 + e^{-s_i w^\top x_i}\bigr)
            + \frac{\lambda}{2} |w|^2, \qquad s_i = 2 y_i - 1.$$

    Without a penalty a separable set has no minimiser; the paper names none, so that the penalty
    is part of our setting. The objective $f$ is $\lambda$-strongly convex, hence any $w$ satisfies
    $|w - w_*| \le |\nabla f(w)| / \lambda$. The solution is accepted only when this bound, with a
    gradient computed here and not by the solver, is at most ``1e-6`` of $|w|$.

    **Source**: Phuong & Lampert, Section 5.2 (the teacher is "a logistic regression").

    Args:
        inputs: ``(m, d)``, m >= 2, finite.
        labels: ``(m,)``, integers 0 and 1, both present.
        penalty: $\lambda$ > 0.

    Returns:
        ``(d,)``, float64, on the inputs' device.

    Raises:
        ValueError: Wrong shapes, non-finite inputs, labels other than 0 and 1 or only one of them,
            or a penalty that is not a positive number.
        RuntimeError: The solver stopped too far from the minimum.

    Example:
        One input on either side of the origin: the minimum is at $w = 1$ when the penalty is
        $\sigma(-1) = 1 / (1 + e)$.

        >>> import math
        >>> inputs, labels = torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 0])
        >>> weights = fit_logistic_teacher(inputs, labels, penalty=1 / (1 + math.e))
        >>> round(weights.item(), 8)
        1.0
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    _check(inputs, labels, penalty)
    x = inputs.detach().to("cpu", torch.float64)
    y = labels.detach().to("cpu", torch.float64)
    model = LogisticRegression(
        C=1 / (len(x) * penalty),
        fit_intercept=False,
        solver="newton-cholesky",
        tol=1e-15,
        max_iter=1000,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the bound below decides instead
        weights = torch.from_numpy(model.fit(x.numpy(), y.numpy()).coef_[0].copy())
    error = (_gradient(weights, x, y, penalty).norm() / penalty / weights.norm()).item()
    if not error <= RELATIVE_ERROR:
        raise RuntimeError(
            f"the solver stopped too early: the weights may be wrong by {error:.1e} of their norm, "
            f"allowed is {RELATIVE_ERROR}; a penalty larger than {penalty} makes the problem easier"
        )
    return weights.to(inputs.device)


def _gradient(
    weights: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor, penalty: float
) -> torch.Tensor:
    """Gradient of the objective; with signs, so that nothing cancels far from the boundary."""
    signs = 2 * labels - 1
    pulls = signs * torch.sigmoid(-signs * (inputs @ weights))
    return penalty * weights - inputs.T @ pulls / len(inputs)


def _check(inputs: torch.Tensor, labels: torch.Tensor, penalty: float) -> None:
    """Refuse what ``fit_logistic_teacher`` cannot use."""
    if inputs.ndim != 2 or labels.shape != inputs.shape[:1] or len(inputs) < 2:
        raise ValueError(
            f"inputs has shape {tuple(inputs.shape)} and labels {tuple(labels.shape)}, must be "
            "(m, d) and (m,) with m >= 2"
        )
    if not inputs.isfinite().all():
        raise ValueError("inputs holds NaN or infinity, must be finite")
    if labels.is_floating_point() or labels.unique().tolist() != [0, 1]:
        raise ValueError(
            f"labels has dtype {labels.dtype} and values {labels.unique().tolist()[:5]}, must be "
            "integers 0 and 1, both present (digit_pair gives them)"
        )
    if not 0 < penalty < float("inf"):
        raise ValueError(f"penalty is {penalty!r}, must be a positive number")
