"""DKD: the teacher's confidence and its conditional probabilities with weights of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from lib.distill.batch import Batch
from lib.distill.label import label_loss
from lib.tpkd.divergence import conditional, divergence, odds
from lib.tpkd.geometry import binary_divergence

_ROUNDING = 1e-9  # of a quotient of steps, which must not end an epoch late


def target_loss(student: Tensor, teacher: Tensor, labels: Tensor, temperature: float) -> Tensor:
    r"""Return the divergence of the softened confidences, one value per example.

    $$\mathrm{TCKD} = T^2 \operatorname{kl_{Ber}}(\tau_T \| b), \qquad
      \nabla_z = T\,(b - \tau_T)\,(1 \text{ at } y;\ -r^{(T)}_j \text{ at } j)$$

    with $b = p^{(T)}_y$ and $\tau_T = t^{(T)}_y$.

    **Source**: Zhao et al. (2022), released code.

    Args:
        student: (..., K) float32 or float64, finite.
        teacher: (..., K), -inf allowed, but not for all classes besides the label.
        labels: (...) int64.
        temperature: T > 0.

    Returns:
        (...) >= 0.

    Example:
        >>> import torch
        >>> teacher = torch.tensor([-torch.inf, 0.0, 0.0])
        >>> target_loss(torch.zeros(3), teacher, torch.tensor(0), 1.0).exp()  # log(1 / (2/3))
        tensor(1.5000)
    """
    confidences = (odds(logits / temperature, labels) for logits in (teacher, student))
    return temperature**2 * binary_divergence(*confidences)


def nontarget_loss(student: Tensor, teacher: Tensor, labels: Tensor, temperature: float) -> Tensor:
    r"""Return the divergence of the softened conditional probabilities, one value per example.

    $$\mathrm{NCKD} = T^2 \operatorname{KL}(q^{(T)} \| r^{(T)}), \qquad
      \nabla_z = T\,(0 \text{ at } y;\ r^{(T)}_j - q^{(T)}_j \text{ at } j)$$

    The loss of KD is $\mathrm{TCKD} + (1 - \tau_T)\,\mathrm{NCKD}$.

    **Source**: Zhao et al. (2022), released code.

    Args:
        student: (..., K) float32 or float64, finite.
        teacher: (..., K), -inf allowed, but not for all classes besides the label.
        labels: (...) int64.
        temperature: T > 0.

    Returns:
        (...) >= 0.

    Example:
        >>> import torch
        >>> teacher = torch.tensor([7.0, 0.0, -torch.inf])
        >>> nontarget_loss(torch.zeros(3), teacher, torch.tensor(0), 1.0).exp()  # log(1 / (1/2))
        tensor(2.)
    """
    logs = (conditional(logits / temperature, labels) for logits in (teacher, student))
    return temperature**2 * divergence(*logs)


def warmup_factor(step: int | None, warmup_epochs: float, steps_per_epoch: float) -> float:
    r"""Return the factor of DKD's distillation terms at a step.

    $$w(e) = \min(e / E, 1), \qquad e = 1 + \lfloor k / s \rfloor$$

    with the epoch $e$ counted from one, so that the factor is never 0.

    **Source**: Zhao et al. (2022), released trainer.

    Args:
        step: k >= 0, number of optimiser steps already taken; None for after the warm-up.
        warmup_epochs: E >= 0.
        steps_per_epoch: s > 0, not necessarily whole.

    Returns:
        A number in (0, 1].

    Example:
        >>> [warmup_factor(k, 2, 281.25) for k in (0, 281, 282)]
        [0.5, 0.5, 1.0]
    """
    if step is None or warmup_epochs == 0:
        return 1.0
    epoch = 1 + math.floor(step / steps_per_epoch + _ROUNDING)
    return min(epoch / warmup_epochs, 1.0)


def dkd_losses(batch: Batch, options: Mapping[str, object], step: int | None) -> tuple[Tensor]:
    r"""Return the loss of DKD.

    $$L = w_{\rm ce} \operatorname{CE} + w(e)\,[\alpha\,\mathrm{TCKD} + \beta\,\mathrm{NCKD}],
      \qquad w(e) = \min(e / E, 1)$$

    with $T = 4$, $\alpha = 1$, $\beta = 8$. Yuan & Tao warm up for 2 epochs on text and leave the
    length for images open; the released configuration has 20.

    **Source**: Zhao et al. (2022), released code; Yuan & Tao, Appendix E.1.
    """
    arguments = (batch.student, batch.teacher, batch.labels, options["temperature"])
    terms = options["alpha"] * target_loss(*arguments)
    terms = terms + options["beta"] * nontarget_loss(*arguments)
    factor = warmup_factor(step, options["warmup_epochs"], options["steps_per_epoch"])
    return (options["ce_weight"] * label_loss(batch.student, batch.labels) + factor * terms,)
