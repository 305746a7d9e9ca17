"""When the student is the closest safe imitation, and what protecting the label alone allows."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lib.tpkd.checks import others, prepare_pair
from lib.tpkd.divergence import assemble, conditional, largest_log_ratio, odds
from lib.tpkd.geometry import binary_divergence


def is_blocked(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    r"""Say whether full imitation is blocked: no safe prediction is as close to the teacher.

    $$p_j \le t_j \quad \text{for all } j \neq y$$

    Only the class with the largest p_j / t_j counts. A tie there is blocked, and found exactly: for
    logits that are floating-point numbers p_j = t_j holds only if the differences of all logits to
    the j-th are the same numbers for student and teacher, in some order
    (Lindemann-Weierstrass). So 1 / p_j and 1 / t_j are compared pair by pair, sorted, and a student
    whose logits are the teacher's plus a constant is blocked.

    **Source**: Yuan & Tao, Theorem 1.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; where -inf, t is zero and the student is not blocked.
        labels: (...) integer, in [0, K).

    Returns:
        (...) bool.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([0.9, 0.07, 0.03]), torch.tensor([0.4, 0.25, 0.35])
        >>> is_blocked(student.log(), teacher.log(), torch.tensor(0))
        tensor(True)
    """
    (student, teacher), labels, _ = prepare_pair(student_logits, teacher_logits, labels)
    inside = others(labels, student.shape[-1])
    worst = torch.where(inside, student - teacher, -math.inf).argmax(-1, keepdim=True)
    limit = teacher.gather(-1, worst)
    own = (student - student.gather(-1, worst)).sort(-1).values
    theirs = (teacher - torch.where(limit == -math.inf, 0.0, limit)).sort(-1).values
    return (_sum_of_gaps(own, theirs) >= 0) & (limit > -math.inf).squeeze(-1)


def blocked_confidence_limit(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor
) -> Tensor:
    r"""Return the confidence from which on the student's conditional distribution is blocked.

    $$1 - (1 - \tau) \min_{j \neq y} \frac{q_j}{r_j}$$

    A student with the conditional distribution r and any confidence above is strictly blocked, at
    it blocked with equality for one class, below it not blocked. The confidence of
    `student_logits` itself does not enter.

    **Source**: Yuan & Tao, Appendix A.2.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; where -inf, q is zero, and the limit is 1: never blocked.
        labels: (...) integer, in [0, K).

    Returns:
        (...) in [0, 1]; it may round to one, `blocked_log_odds_limit` does not.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([0.9, 0.07, 0.03]), torch.tensor([0.4, 0.25, 0.35])
        >>> blocked_confidence_limit(student.log(), teacher.log(), torch.tensor(0))  # 1 - 5/14
        tensor(0.6429)
    """
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    off_label = logsigmoid(-odds(teacher, labels))
    least = -largest_log_ratio(student, teacher, labels)
    return (-torch.expm1(off_label + least)).to(dtype)


def blocked_log_odds_limit(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor
) -> Tensor:
    r"""Return the limit of `blocked_confidence_limit` as log-odds.

    $$\log \bigl(e^D - 1 + e^{D + \operatorname{logit}(\tau)}\bigr), \qquad D = D_\infty(r \| q)$$

    For q = r it is the teacher's log-odds.

    **Source**: Yuan & Tao, Appendix A.2, in log-odds.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; where -inf, q is zero, and the limit is inf: never blocked.
        labels: (...) integer, in [0, K).

    Returns:
        (...); -inf for a teacher of confidence 0 with q = r.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([0.9, 0.07, 0.03]), torch.tensor([0.4, 0.25, 0.35])
        >>> blocked_log_odds_limit(student.log(), teacher.log(), torch.tensor(0)).exp()  # 9/5
        tensor(1.8000)
    """
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    ratio = largest_log_ratio(student, teacher, labels)
    finite = torch.where(ratio == math.inf, 0.0, ratio)
    rise = finite + torch.log(-torch.expm1(-finite))
    limit = torch.logaddexp(rise, finite + odds(teacher, labels))
    return torch.where(ratio == math.inf, math.inf, limit).to(dtype)


def label_only_optimum(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the closest imitation that protects nothing but the label's cross-entropy.

    $$p^*_{\mathrm{CE}} = (a_*, (1 - a_*) q), \qquad a_* = \max(\rho, \tau)$$

    **Source**: Yuan & Tao, Eq. A.7.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; where -inf, q is zero, and so is the optimum.
        labels: (...) integer, in [0, K).

    Returns:
        (..., K), log-probabilities.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([0.9, 0.07, 0.03]), torch.tensor([0.4, 0.25, 0.35])
        >>> label_only_optimum(student.log(), teacher.log(), torch.tensor(0)).exp()  # 1/24, 7/120
        tensor([0.9000, 0.0417, 0.0583])
    """
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    confidence = torch.maximum(odds(student, labels), odds(teacher, labels))
    return assemble(confidence, conditional(teacher, labels), labels).to(dtype)


def label_only_kl(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the full KL that `label_only_optimum` leaves.

    $$\min_{p'_y \ge \rho} \operatorname{KL}(t \| p')
      = \operatorname{kl}_{\mathrm{Ber}}(\tau \| \max(\rho, \tau))$$

    **Source**: Yuan & Tao, Eq. A.7.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; -inf is a probability of zero, but not for all other classes.
        labels: (...) integer, in [0, K).

    Returns:
        (...) >= 0; 0 where the student is no more confident than the teacher.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([2.0, 1.0, 1.0]), torch.tensor([-torch.inf, 0.0, 0.0])
        >>> label_only_kl(student.log(), teacher, torch.tensor(0)).exp()  # 1 / (1 - 1/2)
        tensor(2.)
    """
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    target, own = odds(teacher, labels), odds(student, labels)
    return binary_divergence(target, torch.maximum(own, target)).to(dtype)


def _sum_of_gaps(first: Tensor, second: Tensor) -> Tensor:
    """The sum of e^a - e^b over pairs, up to a positive factor; exactly 0 for equal pairs."""
    larger = torch.maximum(first, second)
    scale = (larger - larger.amax(-1, keepdim=True)).exp()
    return (scale * -torch.expm1(-(first - second).abs()) * (first - second).sign()).sum(-1)
