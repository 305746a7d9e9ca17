"""Objectives that imitate all the teacher's probabilities: KD, KL-Dist, XE-KL."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from lib.distill.batch import Batch
from lib.distill.label import label_loss
from lib.tpkd.divergence import divergence


def imitation_loss(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    r"""Return the softened divergence from teacher to student, one value per example.

    $$T^2 \operatorname{KL}(t^{(T)} \| p^{(T)}), \qquad
      \nabla_z = T\,(p^{(T)} - t^{(T)}), \qquad p^{(T)} = \operatorname{softmax}(z / T)$$

    **Source**: Hinton, Vinyals & Dean (2015), Section 2.

    Args:
        student: (..., K) float32 or float64, finite.
        teacher: (..., K), where -inf the teacher's probability is zero.
        temperature: T > 0.

    Returns:
        (...) >= 0.

    Example:
        >>> import torch
        >>> imitation_loss(torch.zeros(3), torch.tensor([0.0, 0.0, -torch.inf])).exp()
        tensor(1.5000)
    """
    targets = (teacher / temperature).log_softmax(-1)
    return temperature**2 * divergence(targets, (student / temperature).log_softmax(-1))


def kd_losses(batch: Batch, options: Mapping[str, object], step: int | None) -> tuple[Tensor]:
    r"""Return the loss of KD.

    $$L = w_{\rm ce} \operatorname{CE} + w_{\rm kd}\, T^2 \operatorname{KL}(t^{(T)} \| p^{(T)})$$

    Yuan & Tao give $T = 4$ and $w_{\rm kd} = 1$, and leave $w_{\rm ce}$ open; 1 here. The released
    code of Zhao et al. has 0.1 and 0.9.

    **Source**: Hinton, Vinyals & Dean (2015); Yuan & Tao, Appendix E.1.
    """
    imitation = imitation_loss(batch.student, batch.teacher, options["temperature"])
    label = label_loss(batch.student, batch.labels)
    return (options["ce_weight"] * label + options["kd_weight"] * imitation,)


def kl_dist_losses(batch: Batch, options: Mapping[str, object], step: int | None) -> tuple[Tensor]:
    r"""Return the loss of KL-Dist.

    $$L = \operatorname{KL}(t \| p) + w_{\rm ce} \operatorname{CE}, \qquad w_{\rm ce} = 0$$

    The released configuration has no label term; Yuan & Tao do not spell it out.

    **Source**: Roth et al. (2024), released configuration; Yuan & Tao, Appendix E.1.
    """
    label = label_loss(batch.student, batch.labels)
    return (imitation_loss(batch.student, batch.teacher) + options["ce_weight"] * label,)


def xe_kl_losses(batch: Batch, options: Mapping[str, object], step: int | None) -> tuple[Tensor]:
    r"""Return the loss of XE-KL.

    $$L = \lambda \operatorname{KL}(t \| p) + (1 - \lambda) \operatorname{CE}, \qquad
      \nabla_z L = p - [\lambda t + (1 - \lambda) e_y]$$

    The released configuration has $\lambda = 1/2$. Its code hands probabilities to a cross-entropy
    that expects logits, $-\log \operatorname{softmax}(p)_y$; `double_softmax` repeats that.

    **Source**: Roth et al. (2024), released configuration and code.
    """
    share = options["kl_weight"]
    logits = batch.student.softmax(-1) if options["double_softmax"] else batch.student
    imitation = imitation_loss(batch.student, batch.teacher)
    return (share * imitation + (1 - share) * label_loss(logits, batch.labels),)
