"""The teacher of Section 5.2: a linear classifier learnt from labelled data."""

from __future__ import annotations

import torch

GRADIENT_TOLERANCE = 1e-8


def fit_logistic_teacher(
    inputs: torch.Tensor, labels: torch.Tensor, penalty: float
) -> torch.Tensor:
    r"""Weights of an L2-regularised logistic regression without intercept.

    $$w_* = \arg\min_w \frac1m \sum_{i=1}^m \log\bigl(1 + e^{-s_i w^\top x_i}\bigr)
            + \frac{\lambda}{2} |w|^2, \qquad s_i = 2 y_i - 1.$$

    Without the penalty a separable set has no minimiser, and the paper names none; the penalty is
    therefore part of the experiment. The solution is accepted only when the gradient of this
    objective, computed here and not by the solver, is at most ``1e-8`` times its value at the
    zero vector, in norm.

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
        RuntimeError: The solver stopped before the minimum.

    Example:
        One input on either side of the origin: the minimum is at $w = 1$ when the penalty is
        $\sigma(-1) = 1 / (1 + e)$.

        >>> import math
        >>> inputs, labels = torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 0])
        >>> weights = fit_logistic_teacher(inputs, labels, penalty=1 / (1 + math.e))
        >>> round(weights.item(), 8)
        1.0
    """
    from sklearn.linear_model import LogisticRegression

    _check(inputs, labels, penalty)
    x = inputs.detach().to("cpu", torch.float64)
    y = labels.detach().to("cpu", torch.float64)
    model = LogisticRegression(
        C=1 / (len(x) * penalty),
        fit_intercept=False,
        solver="newton-cholesky",
        tol=1e-12,
        max_iter=1000,
    )
    weights = torch.from_numpy(model.fit(x.numpy(), y.numpy()).coef_[0].copy())
    gradient = _gradient(weights, x, y, penalty).norm().item()
    start = _gradient(torch.zeros_like(weights), x, y, penalty).norm().item()
    if not gradient <= GRADIENT_TOLERANCE * start:
        raise RuntimeError(
            f"logistic regression stopped at a gradient of norm {gradient:.1e} (at zero: "
            f"{start:.1e}); a larger penalty than {penalty} makes the problem easier"
        )
    return weights.to(inputs.device)


def _gradient(
    weights: torch.Tensor, inputs: torch.Tensor, labels: torch.Tensor, penalty: float
) -> torch.Tensor:
    """Gradient of the objective: mean of ``(sigma(w.x) - y) x``, plus ``penalty * w``."""
    residuals = torch.sigmoid(inputs @ weights) - labels
    return inputs.T @ residuals / len(inputs) + penalty * weights


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
