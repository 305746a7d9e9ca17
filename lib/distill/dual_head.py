"""DHKD: the teacher's raw logits for a second head, and the alignment of the two gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lib.distill.batch import Batch
from lib.distill.gradients import check_pair, inner_product
from lib.distill.label import label_loss
from lib.tpkd.checks import check_range
from lib.tpkd.geometry import binary_divergence

_NEAR = 1.0  # below this modulus log cosh comes from the hyperbolic sine


def binary_kl_norm(auxiliary: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    r"""Return the smooth distance of raw logits that DHKD trains, one value per example.

    $$L_{\rm BN} = T^2 \sum_k \operatorname{KL}\bigl(\operatorname{Ber}(\tfrac12) \,\big\|\,
        \operatorname{Ber}(\sigma(\delta_k / T))\bigr)
      = T^2 \sum_k \log \cosh \frac{\delta_k}{2 T}, \qquad
      \frac{\partial L_{\rm BN}}{\partial a_k} = \frac T2 \tanh \frac{\delta_k}{2 T}$$

    with $\delta = a - z^T$. The pull on a logit is at most T/2; a common shift of all logits
    counts; the loss is 0 only where the logits are equal. Small distances keep their relative
    accuracy.

    **Source**: Yang et al. (2025), released code; the second form is ours.

    Args:
        auxiliary: (..., K) float32 or float64, finite.
        teacher: (..., K), finite.
        temperature: T > 0.

    Returns:
        (...) >= 0.

    Example:
        >>> a = torch.tensor([2.0, 0.0, 0.0])
        >>> binary_kl_norm(a, torch.zeros(3), 1.0).exp()  # cosh(1)
        tensor(1.5431)
    """
    half = (auxiliary - teacher) / (2 * temperature)
    near = half.abs() < _NEAR
    small = torch.log1p(torch.where(near, half, 0.0).sinh().square()) / 2
    large = torch.where(near, _NEAR, half).abs()
    large = large + softplus(-2 * large) - math.log(2)
    return temperature**2 * torch.where(near, small, large).sum(-1)


def binary_kl(auxiliary: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    r"""Return the divergence of K independent yes-or-no answers, one value per example.

    $$T^2 \sum_k \operatorname{KL}\bigl(\operatorname{Ber}(\sigma(z^T_k / T)) \,\big\|\,
        \operatorname{Ber}(\sigma(a_k / T))\bigr), \qquad
      \frac{\partial}{\partial a_k} = T\,[\sigma(a_k / T) - \sigma(z^T_k / T)]$$

    **Source**: Yang et al. (2025), released code, the variant that its commands do not use.

    Args:
        auxiliary: (..., K) float32 or float64, finite.
        teacher: (..., K), -inf allowed.
        temperature: T > 0.

    Returns:
        (...) >= 0.

    Example:
        >>> no = torch.full((3,), -torch.inf)
        >>> binary_kl(torch.zeros(3), no, 1.0).exp()  # log(1 / (1/2)) three times
        tensor(8.)
    """
    return temperature**2 * binary_divergence(teacher / temperature, auxiliary / temperature).sum(
        -1
    )


def align_gradients(task: Tensor, distil: Tensor) -> Tensor:
    r"""Return the distillation gradient without its part against the task gradient.

    $$g'_{\rm kd} = g_{\rm kd} - \min\Bigl(0, \frac{\langle g_{\rm kd}, g_{\rm ce} \rangle}
        {\|g_{\rm ce}\|^2}\Bigr)\, g_{\rm ce}$$

    After a conflict it is orthogonal to the task gradient; otherwise it is unchanged to the last
    bit. The method steps along the sum of the task gradient and this one. Both must be gradients of
    the whole batch in all parameters, zero where a head takes no part, before any clipping.

    **Source**: Yang et al. (2025), released code.

    Args:
        task: (P,), or of any shape, floating point and finite; g_ce.
        distil: the same shape and dtype; g_kd.

    Returns:
        The shape and dtype of `distil`.

    Raises:
        ValueError: if the gradients do not match, or an entry is not finite.

    Example:
        >>> align_gradients(torch.tensor([1.0, 0.0]), torch.tensor([-3.0, 2.0]))
        tensor([0., 2.])
    """
    check_pair(task, distil)
    if task.numel() == 0:
        return distil
    wide = torch.promote_types(task.dtype, torch.float32)
    largest = task.abs().amax().to(wide)
    unit = task.to(wide) / torch.where(largest > 0, largest, 1.0)
    length = inner_product(unit, unit)
    share = inner_product(distil, unit) / torch.where(length > 0, length, 1.0)
    corrected = distil.to(wide) - share.to(wide) * unit
    return torch.where(share < 0, corrected.to(distil.dtype), distil)


def dhkd_losses(
    batch: Batch, options: Mapping[str, object], step: int | None
) -> tuple[Tensor, Tensor]:
    r"""Return the two losses of DHKD, of which the first head and the second get one each.

    $$L = \gamma \operatorname{CE}(z, y) + \alpha L_{\rm BN}(a, z^T)$$

    with $T = 2$. Yuan & Tao leave the weights, the form of the binary divergence and the alignment
    open; here they are those of the released command for CIFAR-100, $\gamma = \alpha = 1$ with
    alignment.

    **Source**: Yang et al. (2025), released code; Yuan & Tao, Appendix E.1.
    """
    distance = binary_kl
    if options["variant"] == "norm":
        check_range("teacher_logits", batch.teacher)
        distance = binary_kl_norm
    distil = distance(batch.auxiliary, batch.teacher, options["temperature"])
    return options["gamma"] * label_loss(batch.student, batch.labels), options["alpha"] * distil


def sum_losses(
    batch: Batch, losses: tuple[Tensor, Tensor], options: Mapping[str, object]
) -> Tensor:
    """Return the sum of the two losses, whose gradient is the one without alignment."""
    return losses[0] + losses[1]


def combine_aligned(
    gradients: tuple[Tensor, Tensor],
    losses: tuple[Tensor, Tensor],
    options: Mapping[str, object],
) -> Tensor:
    """Return the sum of the task gradient and the distillation gradient, aligned if so wished."""
    task, distil = gradients
    return task + (align_gradients(task, distil) if options["align"] else distil)
