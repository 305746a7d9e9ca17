"""Numerically exact pieces that the geometry of the outputs is made of, all in log space."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lib.tpkd.checks import at_label, others

_SERIES = 0.5  # below this modulus e^x - 1 - x comes from its series
_TERMS = 14  # of that series: the next one is below 1e-16 of the first


def divergence(log_weights: Tensor, log_model: Tensor) -> Tensor:
    r"""Return the Kullback-Leibler divergence of two distributions from their logarithms.

    $$\operatorname{KL}(a \| b) = \sum_j a_j \varphi(x_j), \qquad x_j = \log b_j - \log a_j, \quad
      \varphi(x) = e^x - 1 - x$$

    Both sums of probabilities are one, so this is the usual sum; but every term is >= 0 and a small
    divergence keeps its relative accuracy: an error of the normalisation enters in second order.

    **Source**: ours.

    Args:
        log_weights: (..., C), log a; -inf contributes nothing but its share of b.
        log_model: (..., C), log b, finite where log a is.

    Returns:
        (...).

    Example:
        >>> third, half = torch.full((3,), 1 / 3).log(), torch.tensor([0.5, 0.5, 0.0]).log()
        >>> divergence(half, third).exp()
        tensor(1.5000)
    """
    possible = log_weights > -math.inf
    gap = torch.where(possible, log_model - log_weights, 0.0)
    weights, model = log_weights.exp(), log_model.exp()
    near = possible & (gap.abs() <= _SERIES)
    small = weights * _excess(torch.where(near, gap, 0.0))
    return torch.where(near, small, (model - weights) - weights * gap).sum(-1)


def conditional(logits: Tensor, labels: Tensor) -> Tensor:
    """Return log-probabilities given that the label is wrong, -inf at the label.

    Args:
        logits: (..., K), one of them finite besides the label's.
        labels: (...) int64.

    Returns:
        (..., K).

    Example:
        >>> conditional(torch.tensor([5.0, 1.0, 1.0]), torch.tensor(0)).exp()
        tensor([0.0000, 0.5000, 0.5000])
    """
    return logits.masked_fill(~others(labels, logits.shape[-1]), -math.inf).log_softmax(-1)


def odds(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-odds of the label, from logits alone.

    Args:
        logits: (..., K), one of them finite besides the label's.
        labels: (...) int64.

    Returns:
        (...), -inf where the label's logit is.

    Example:
        >>> odds(torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0]), torch.tensor(0)).exp()
        tensor(0.2500)
    """
    own = at_label(logits, labels)
    base = torch.where(own == -math.inf, 0.0, own)
    gaps = (logits - base.unsqueeze(-1)).masked_fill(~others(labels, logits.shape[-1]), -math.inf)
    return torch.where(own == -math.inf, -math.inf, -gaps.logsumexp(-1))


def largest_log_ratio(above: Tensor, below: Tensor, labels: Tensor) -> Tensor:
    r"""Return the largest log-ratio of two conditional distributions, D_inf(a || b).

    $$\max_j \log \frac{a_j}{b_j} = -\log \sum_j b_j e^{\delta_j - \max_k \delta_k}, \qquad
      \delta = z^a - z^b$$

    The second form is exactly 0 where the logits differ by a constant, and keeps the relative
    accuracy of small ratios; the first serves large ones.

    **Source**: ours.

    Args:
        above: (..., K), logits of a.
        below: (..., K), logits of b; not both -inf in one place.
        labels: (...) int64.

    Returns:
        (...) >= 0, infinite where b is zero and a is not.

    Example:
        >>> a, b = torch.tensor([0.0, 0.5, 0.5]).log(), torch.tensor([0.0, 0.25, 0.75]).log()
        >>> largest_log_ratio(a, b, torch.tensor(0)).exp()
        tensor(2.)
    """
    inside = others(labels, above.shape[-1])
    delta = torch.where(inside, above - below, -math.inf)
    top = delta.amax(-1, keepdim=True)
    log_above, log_below = conditional(above, labels), conditional(below, labels)
    mean = (log_below.exp() * torch.expm1(delta - top)).sum(-1)
    direct = torch.where(inside, log_above - log_below, -math.inf).amax(-1)
    ratio = torch.where(mean > -0.5, torch.log1p(mean).abs(), direct)
    return torch.where(top.squeeze(-1) == math.inf, math.inf, ratio)


def log_mixture(log_first: Tensor, log_second: Tensor, share: Tensor) -> Tensor:
    r"""Return the logarithm of (1 - s) a + s b from those of a and b, exact at both ends.

    Differentiable in s inside (0, 1).

    Args:
        log_first: (...), log a; -inf only where log b is.
        log_second: (...), log b; -inf is allowed.
        share: (...), s in [0, 1].

    Returns:
        (...).

    Example:
        >>> one = torch.zeros(())
        >>> log_mixture(one, one + math.log(3), torch.tensor(0.5)).exp()
        tensor(2.)
    """
    empty = log_first == -math.inf
    first = torch.where(empty, 0.0, log_first)
    gap = torch.where(empty, 0.0, log_second - first)
    near = gap.abs() <= 1
    rise = torch.log1p(share * torch.expm1(torch.where(near, gap, 0.0)))
    share = torch.where(near, 0.5, share)
    gap = torch.where(near, 0.0, gap)
    far = torch.logaddexp(torch.log1p(-share) + first, torch.log(share) + first + gap)
    return torch.where(empty, -math.inf, torch.where(near, first + rise, far))


def assemble(log_odds: Tensor, log_conditional: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probabilities of a confidence and a conditional distribution.

    Args:
        log_odds: (...), of the label.
        log_conditional: (..., K), -inf at the label.
        labels: (...) int64.

    Returns:
        (..., K).

    Example:
        >>> thirds = torch.tensor([0.0, 1 / 3, 2 / 3]).log()
        >>> assemble(torch.tensor(0.0), thirds, torch.tensor(0)).exp()
        tensor([0.5000, 0.1667, 0.3333])
    """
    rest = logsigmoid(-log_odds).unsqueeze(-1) + log_conditional
    inside = others(labels, log_conditional.shape[-1])
    return torch.where(inside, rest, logsigmoid(log_odds).unsqueeze(-1))


def _excess(x: Tensor) -> Tensor:
    """e^x - 1 - x for |x| <= 1/2, by its series."""
    series = torch.ones_like(x)
    for order in range(_TERMS, 2, -1):
        series = 1 + x / order * series
    return x * x / 2 * series
