"""The best partial transfer for a limited increase in log-odds: the frontier of Appendix A.7."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lib.tpkd.checks import check_beside, check_number, prepare_pair
from lib.tpkd.divergence import conditional, divergence, largest_log_ratio

_SMALL_BUDGET = 1.0  # nats; up to here 1 - e^B R is taken as (1 - R) - (e^B - 1) R


def transfer_frontier(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor, budget: float | Tensor
) -> Tensor:
    r"""Return the least conditional error that B nats of log-odds can buy.

    $$\mathcal V(B) = \min_x \operatorname{KL}(q \| x) = \operatorname{KL}(q \| x^*), \qquad
      x^*_j = \min(e^B r_j, q_j / \lambda), \quad \sum_j x^*_j = 1$$

    Exact, by one sort, see `frontier_optimum`. V falls convexly from KL(q||r) at 0; it is positive
    below the transfer cost and exactly 0 from there on. It is not meant to be differentiated.

    **Source**: Yuan & Tao, Eq. A.9 and A.10.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; where -inf, q is zero, and V is the infimum over positive x.
        labels: (...) integer, in [0, K).
        budget: (...) or number, B >= 0 in nats, broadcast with the leading dimensions; inf is
            allowed.

    Returns:
        (...) >= 0, in nats, in the dtype of the logits.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student = torch.zeros(3)  # r = (1/2, 1/2), q = (1, 0), x = (e^B / 2, 1 - e^B / 2)
        >>> teacher = torch.tensor([0.0, 0.0, -torch.inf])
        >>> budgets = torch.tensor([0.0, 0.25, 1.0])
        >>> transfer_frontier(student, teacher, torch.tensor(0), budgets)  # [log 2 - B]_+
        tensor([0.6931, 0.4431, 0.0000])
    """
    log_q, log_x, dtype = _solve(student_logits, teacher_logits, labels, budget)
    return divergence(log_q.expand(log_x.shape), log_x).to(dtype)


def frontier_optimum(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor, budget: float | Tensor
) -> Tensor:
    r"""Return the conditional distribution that attains the frontier.

    $$x^*_j = \min(e^B r_j, q_j / \lambda), \qquad
      \lambda = \min_k \frac{\sum_{i > k} q_{(i)}}{1 - e^B \sum_{i \le k} r_{(i)}}$$

    Classes are sorted by falling q / r; the first k are capped. Each k with a positive denominator
    bounds lambda from above, because the sum of min(a_j, b_j) is at most the sum of a_j over some
    classes and of b_j over the others, and the right k attains it. Together with the label's
    log-odds raised by B it is the best safe prediction.

    **Source**: Yuan & Tao, Eq. A.9; the closed form of lambda is ours.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; where -inf, q is zero, and x is zero unless the caps of the
            other classes leave mass over: it then goes to those of q = 0 in proportion to r.
        labels: (...) integer, in [0, K).
        budget: (...) or number, B >= 0 in nats, broadcast with the leading dimensions; inf is
            allowed.

    Returns:
        (..., K), log-probabilities in the dtype of the logits, -inf at the label.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.zeros(3), torch.tensor([0.0, 0.75, 0.25]).log()
        >>> x = frontier_optimum(student, teacher, torch.tensor(0), torch.tensor(1.2).log())
        >>> x.exp()  # 1.2 / 2 and the rest; q would need B = log 1.5
        tensor([0.0000, 0.6000, 0.4000])
    """
    _, log_x, dtype = _solve(student_logits, teacher_logits, labels, budget)
    return log_x.to(dtype)


def _solve(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor, budget: float | Tensor
) -> tuple[Tensor, Tensor, torch.dtype]:
    """log q and log x*, both -inf at the label, and the dtype of the result."""
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    budget = check_number("budget", budget, 0.0, device=student.device)
    check_beside("budget", budget, labels.shape)
    log_r, log_q = conditional(student, labels), conditional(teacher, labels)
    cost = largest_log_ratio(teacher, student, labels)
    enough = (budget >= cost).unsqueeze(-1)
    limit = torch.minimum(budget, cost).unsqueeze(-1)
    log_lambda = _log_multiplier(log_r, log_q, limit)
    wanted = log_q > -math.inf
    capped = torch.minimum(limit + log_r, log_q - log_lambda)
    log_x = torch.where(wanted, capped, log_r + _log_leftover(log_r, wanted, limit, log_lambda))
    return log_q, torch.where(enough, log_q, log_x), dtype


def _log_multiplier(log_r: Tensor, log_q: Tensor, limit: Tensor) -> Tensor:
    """log lambda, at most 0; -inf where the caps of the classes with q > 0 sum to less than one."""
    ratio = torch.where(log_q > -math.inf, log_q - log_r, -math.inf)
    order = ratio.argsort(-1, descending=True)
    log_r, log_q = log_r.gather(-1, order), log_q.gather(-1, order)
    capped = torch.logcumsumexp(log_r, -1)
    capped = torch.cat((torch.full_like(capped[..., :1], -math.inf), capped[..., :-1]), -1)
    rest_r, rest_q = (x.flip(-1).logcumsumexp(-1).flip(-1) for x in (log_r, log_q))
    log_room = _log_room(capped, rest_r, limit)
    bounds = torch.where(log_room > -math.inf, rest_q - log_room, math.inf)
    return bounds.amin(-1, keepdim=True).clamp(max=0.0)


def _log_leftover(log_r: Tensor, wanted: Tensor, limit: Tensor, log_lambda: Tensor) -> Tensor:
    """log of x / r on the classes with q = 0: what full caps elsewhere leave over, or -inf."""
    taken = log_r.masked_fill(~wanted, -math.inf).logsumexp(-1, keepdim=True)
    unwanted = log_r.masked_fill(wanted, -math.inf).logsumexp(-1, keepdim=True)
    share = _log_room(taken, unwanted, limit) - unwanted
    return torch.where(log_lambda == -math.inf, share, -math.inf)


def _log_room(log_part: Tensor, log_rest: Tensor, limit: Tensor) -> Tensor:
    """log of 1 - e^B R for a part R of a whole R + rest = 1; -inf where it is not positive."""
    small = log_rest.exp() - torch.expm1(limit.clamp(max=_SMALL_BUDGET)) * log_part.exp()
    large = -torch.expm1(limit + log_part)
    return torch.where(limit <= _SMALL_BUDGET, small, large).clamp(min=0.0).log()
