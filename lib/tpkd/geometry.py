"""What an output says about the label and about the other classes: margins, odds, divergences.

Everything comes from differences of logits, never from probabilities, so confidences that round to
one and logits of 1e4 do no harm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lib.tpkd.checks import at_label, others, prepare, prepare_pair
from lib.tpkd.divergence import conditional, divergence, odds


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return how far the label's logit stands above every other.

    $$M_j = \log \frac{p_y}{p_j} = z_y - z_j$$

    **Source**: Yuan & Tao, Section 3.

    Args:
        logits: (..., K) real and finite, K >= 3: a margin divides by both probabilities.
        labels: (...) integer, in [0, K).

    Returns:
        (..., K), 0 at the label.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> margins(torch.tensor([3.0, 1.0, 5.0]), torch.tensor(0))
        tensor([ 0.,  2., -2.])
    """
    (logits,), labels, dtype = prepare(labels, logits=logits)
    return (at_label(logits, labels).unsqueeze(-1) - logits).to(dtype)


def log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the log-odds of the label.

    $$\operatorname{logit}(\rho) = z_y - \log \sum_{j \neq y} e^{z_j}$$

    **Source**: Yuan & Tao, Section 3.

    Args:
        logits: (..., K) real, K >= 3; -inf is a probability of zero, but not for all other classes.
        labels: (...) integer, in [0, K).

    Returns:
        (...), -inf where the label's logit is.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> log_odds(torch.tensor([0.9, 0.07, 0.03]).log(), torch.tensor(0)).exp()
        tensor(9.)
    """
    (logits,), labels, dtype = prepare(labels, zeros=("logits",), logits=logits)
    return odds(logits, labels).to(dtype)


def conditional_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the log-probabilities of the other classes, given that it is one of them.

    $$\log r_j = \log \frac{p_j}{1 - \rho} = z_j - \log \sum_{k \neq y} e^{z_k}$$

    **Source**: Yuan & Tao, Section 3.

    Args:
        logits: (..., K) real, K >= 3; -inf is a probability of zero, but not for all other classes.
        labels: (...) integer, in [0, K).

    Returns:
        (..., K), -inf at the label.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> conditional_log_probs(torch.tensor([9.0, 2.0, 2.0]), torch.tensor(0)).exp()
        tensor([0.0000, 0.5000, 0.5000])
    """
    (logits,), labels, dtype = prepare(labels, zeros=("logits",), logits=logits)
    return conditional(logits, labels).to(dtype)


def conditional_kl(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the conditional error of the student: what is left to learn of the teacher.

    $$L_{\mathrm{cond}} = \operatorname{KL}(q \| r)$$

    Errors as small as 1e-30 keep their relative accuracy. Differentiable in both logits; the
    gradient in the student's is u = r - q, 0 at the label.

    **Source**: Yuan & Tao, Section 3.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; where -inf, q is zero.
        labels: (...) integer, in [0, K).

    Returns:
        (...) >= 0.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, -torch.inf])
        >>> conditional_kl(student, teacher, torch.tensor(0)).exp()  # log(1 / (1/2))
        tensor(2.)
    """
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    return divergence(conditional(teacher, labels), conditional(student, labels)).to(dtype)


def bernoulli_kl(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the divergence of the two confidences.

    $$\operatorname{kl}_{\mathrm{Ber}}(\tau \| \rho)
      = \tau \log \frac{\tau}{\rho} + (1 - \tau) \log \frac{1 - \tau}{1 - \rho}$$

    **Source**: Yuan & Tao, Eq. 1, first term.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; -inf is a probability of zero, but not for all other classes.
        labels: (...) integer, in [0, K).

    Returns:
        (...) >= 0.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([-torch.inf, 0.0, 0.0])
        >>> bernoulli_kl(student, teacher, torch.tensor(0)).exp()  # log(1 / (2/3))
        tensor(1.5000)
    """
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    return binary_divergence(odds(teacher, labels), odds(student, labels)).to(dtype)


def full_kl(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    r"""Return the loss of full imitation.

    $$L_T = \operatorname{KL}(t \| p) = \operatorname{kl}_{\mathrm{Ber}}(\tau \| \rho)
      + (1 - \tau) \operatorname{KL}(q \| r)$$

    It is computed from the K classes, without the decomposition, and needs no label.

    **Source**: Yuan & Tao, Section 3 and Eq. 1.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; where -inf, t is zero.

    Returns:
        (...) >= 0.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> full_kl(torch.zeros(3), torch.tensor([0.0, 0.0, -torch.inf])).exp()
        tensor(1.5000)
    """
    (student, teacher), _, dtype = prepare(
        None,
        labelled=False,
        zeros=("teacher_logits",),
        student_logits=student_logits,
        teacher_logits=teacher_logits,
    )
    return divergence(teacher.log_softmax(-1), student.log_softmax(-1)).to(dtype)


def weighted_label_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Return the label loss in which each competitor has a weight.

    $$L_\omega = \log \Bigl(1 + \sum_{j \neq y} \omega_j e^{-M_j}\Bigr)$$

    Unit weights give cross-entropy; a single one isolates one competitor. Differentiable in the
    logits.

    **Source**: Yuan & Tao, Appendix A.1.

    Args:
        logits: (..., K) real and finite, K >= 3.
        labels: (...) integer, in [0, K).
        weights: (..., K) real, finite and >= 0, the entry at the label is not used; None for ones.

    Returns:
        (...) >= 0, in the promoted dtype of logits and weights.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> weighted_label_loss(torch.zeros(4), torch.tensor(1)).exp()
        tensor(4.)
    """
    if weights is None:
        (logits,), labels, dtype = prepare(labels, logits=logits)
        log_weights = torch.zeros_like(logits)
    else:
        (logits, weights), labels, dtype = prepare(labels, logits=logits, weights=weights)
        if bool((weights < 0).any()):
            raise ValueError(f"weights must be >= 0, got {float(weights.min()):.6g}")
        log_weights = weights.log()
    exponents = log_weights + logits - at_label(logits, labels).unsqueeze(-1)
    used = others(labels, logits.shape[-1]) & (log_weights > -math.inf)
    total = exponents.masked_fill(~used, -math.inf).logsumexp(-1)
    return (-logsigmoid(-total)).to(dtype)


def binary_divergence(log_odds: Tensor, model_log_odds: Tensor) -> Tensor:
    r"""Return the divergence of two confidences that are given by their log-odds.

    Args:
        log_odds: (...) floating point; -inf and inf are allowed.
        model_log_odds: (...) finite.

    Returns:
        (...) >= 0.

    Example:
        >>> binary_divergence(torch.tensor(torch.inf), torch.tensor(0.0)).exp()
        tensor(2.)
    """
    first, second = (
        torch.stack((logsigmoid(a), logsigmoid(-a)), dim=-1)
        for a in torch.broadcast_tensors(log_odds, model_log_odds)
    )
    return divergence(first, second)
