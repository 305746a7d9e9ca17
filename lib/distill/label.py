"""The label's loss and its gradient, exact where the label's probability rounds to one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lib.distill.batch import Batch
from lib.tpkd.divergence import conditional, odds


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the cross-entropy of the labels, one value per example.

    $$L = -\log p_y, \qquad \nabla_z L = h = p - e_y$$

    No label smoothing. It comes from the log-odds of the label, not from its probability.

    **Source**: Yuan & Tao, Section 3 and Table 4, row CE.

    Args:
        logits: (..., K) float32 or float64, finite.
        labels: (...) int64, in [0, K), with the same leading dimensions.

    Returns:
        (...) >= 0.

    Example:
        >>> label_loss(torch.zeros(4), torch.tensor(1)).exp()
        tensor(4.)
    """
    return -logsigmoid(odds(logits, labels))


def label_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Return the gradient of the cross-entropy in the logits.

    $$h = p - e_y = (1 - \rho)\,(-1, r)$$

    **Source**: Yuan & Tao, Section 5.1.

    Args:
        logits: (..., K) float32 or float64, finite.
        labels: (...) int64, in [0, K), with the same leading dimensions.

    Returns:
        (..., K), of sum 0.

    Example:
        >>> label_gradient(torch.zeros(4), torch.tensor(1))
        tensor([ 0.2500, -0.7500,  0.2500,  0.2500])
    """
    doubt = torch.sigmoid(-odds(logits, labels)).unsqueeze(-1)
    rest = doubt * conditional(logits, labels).exp()
    return rest.scatter(-1, labels.unsqueeze(-1), -doubt)


def ce_losses(batch: Batch, options: Mapping[str, object], step: int | None) -> tuple[Tensor]:
    r"""Return the loss of CE: $-\log p_y$, and nothing else."""
    return (label_loss(batch.student, batch.labels),)
