"""The best full imitation that gives back no margin, in closed form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lib.tpkd.checks import others, prepare_pair


def safe_imitation(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the safe prediction that is closest to the teacher in full KL.

    $$p'_y = c\, p_y, \qquad p'_j = \min\{t_j,\ c\, p_j\}, \qquad
      c = \max_{A \ni y} \frac{\sum_{i \in A} t_i}{\sum_{i \in A} p_i} \ge 1$$

    The constraints are \(p'_j / p'_y \le p_j / p_y\). A multiplier of one normalises the minimiser
    of \(-\sum_i t_i \log p'_i\); then \(p'_j = t_j\) where margin j may grow, and \(p'_j = c p_j\)
    where it is kept. The total \(c p_y + \sum_j \min\{t_j, c p_j\}\) is the least over all sets A
    with the label of \(c\, p(A) + t(A^c)\), so it is one at the largest ratio \(t(A) / p(A)\). The
    best set consists of the label and the classes with the largest \(t_j / p_j\). The student is
    blocked exactly where c = 1 and the result is the student.

    **Source**: ours; Theorem 1 of Yuan & Tao is the case c = 1.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; -inf is a probability of zero, but not for all other classes.
        labels: (...) integer, in [0, K).

    Returns:
        (..., K), log-probabilities; -inf where the teacher's logit of another class is.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([0.5, 0.35, 0.15]), torch.tensor([0.4, 0.25, 0.35])
        >>> safe_imitation(student.log(), teacher.log(), torch.tensor(0)).exp()  # 15/26, 1/4, 9/52
        tensor([0.5769, 0.2500, 0.1731])
    """
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    log_p, log_t = student.log_softmax(-1), teacher.log_softmax(-1)
    inside = others(labels, log_p.shape[-1])
    order = torch.where(inside, log_t - log_p, math.inf).argsort(-1, descending=True)
    shares = [logs.gather(-1, order).logcumsumexp(-1) for logs in (log_t, log_p)]
    log_c = (shares[0] - shares[1]).amax(-1, keepdim=True).clamp(min=0.0)
    raised = log_p + log_c
    result = torch.where(inside, torch.minimum(log_t, raised), raised)
    return result.to(dtype)
