"""What it costs to take over the teacher's conditional distribution, and the safe way there."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.tpkd.checks import check_beside, check_number, prepare_pair
from lib.tpkd.divergence import assemble, conditional, largest_log_ratio, log_mixture, odds


def transfer_cost(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the least increase in log-odds at which the teacher's q can be taken over safely.

    $$D_\infty(q \| r) = \log \mathcal R_\infty = \max_{j \neq y} \log \frac{q_j}{r_j}$$

    It is 0 exactly where student and teacher logits of the other classes differ by a constant.

    **Source**: Yuan & Tao, Theorem 2.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; where -inf, q is zero, and that class costs nothing.
        labels: (...) integer, in [0, K).

    Returns:
        (...) >= 0, in nats.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([0.9, 0.07, 0.03]), torch.tensor([0.4, 0.25, 0.35])
        >>> transfer_cost(student.log(), teacher.log(), torch.tensor(0)).exp()  # 35/18
        tensor(1.9444)
    """
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    return largest_log_ratio(teacher, student, labels).to(dtype)


def minimum_log_odds(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the log-odds of the least confidence at which q can be taken over safely.

    $$\operatorname{logit}(a_{\min}) = \operatorname{logit}(\rho) + D_\infty(q \| r)
      = \max_{j \neq y} (M_j + \log q_j)$$

    **Source**: Yuan & Tao, Theorem 2, Eq. 4.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; where -inf, q is zero.
        labels: (...) integer, in [0, K).

    Returns:
        (...).

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([0.9, 0.07, 0.03]), torch.tensor([0.4, 0.25, 0.35])
        >>> minimum_log_odds(student.log(), teacher.log(), torch.tensor(0)).exp()  # 35/2
        tensor(17.5000)
    """
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    return (odds(student, labels) + largest_log_ratio(teacher, student, labels)).to(dtype)


def minimum_confidence(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the least confidence at which the teacher's q can be taken over safely.

    $$a_{\min} = \frac{\rho \mathcal R_\infty}{1 - \rho + \rho \mathcal R_\infty} < 1$$

    **Source**: Yuan & Tao, Theorem 2, Eq. 4.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; where -inf, q is zero.
        labels: (...) integer, in [0, K).

    Returns:
        (...) in [0, 1]; it may round to one, `minimum_log_odds` does not.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([0.9, 0.07, 0.03]), torch.tensor([0.4, 0.25, 0.35])
        >>> minimum_confidence(student.log(), teacher.log(), torch.tensor(0))  # 35/37
        tensor(0.9459)
    """
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    log_odds = odds(student, labels) + largest_log_ratio(teacher, student, labels)
    return log_odds.sigmoid().to(dtype)


def safe_path(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor, s: float | Tensor
) -> Tensor:
    r"""Return the prediction at s on the path from the student to the teacher's conditional.

    $$r(s) = (1 - s) r + s q, \qquad
      \operatorname{logit} a(s) = \operatorname{logit} \rho + \log (1 - s + s \mathcal R_\infty)$$

    No margin falls along it, and it ends at the least confidence that permits q.

    **Source**: Yuan & Tao, Eq. A.3.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; where -inf, q is zero, and the path's end has a
            log-probability of -inf there.
        labels: (...) integer, in [0, K).
        s: (...) or number, in [0, 1], broadcast with the leading dimensions.

    Returns:
        (..., K), log-probabilities in the dtype of the logits: of p(s) = (a(s), (1 - a(s)) r(s)).

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([0.9, 0.07, 0.03]), torch.tensor([0.4, 0.25, 0.35])
        >>> end = safe_path(student.log(), teacher.log(), torch.tensor(0), 1.0)
        >>> end.exp() * 222  # 35/37, 5/222, 7/222
        tensor([210.0000,   5.0000,   7.0000])
    """
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    share = check_number("s", s, 0.0, 1.0, student.device)
    check_beside("s", share, labels.shape)
    cost = largest_log_ratio(teacher, student, labels)
    log_odds = odds(student, labels) + log_mixture(torch.zeros_like(cost), cost, share)
    mixed = log_mixture(
        conditional(student, labels), conditional(teacher, labels), share.unsqueeze(-1)
    )
    return assemble(log_odds, mixed, labels.expand(log_odds.shape)).to(dtype)
