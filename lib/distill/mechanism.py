"""What training does to outputs: blocked examples (Table 1) and exact head steps (Table 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lib.tpkd import (
    conditional_kl,
    directions,
    exact_head_step,
    is_blocked,
    margins,
    potential,
    potential_gradient,
    retention_bound,
    transfer_cost,
    update_direction,
)

HEAD_STEPS = ("ce", "compensation-only", "tpkd-no-projection", "tpkd", "ce-plus-kl")
MARGIN_TOLERANCE = 1e-12  # of Appendix E.2, for inequalities and the order of margins


@dataclass(frozen=True)
class Blocking:
    """How much of a set of examples is blocked, and what is left to learn there.

    Attributes:
        examples: number of examples, every view counted.
        blocked: how many of them are blocked.
        conditional_kl: mean conditional KL over the blocked ones, in nats; NaN where there is none.
        cost: mean transfer cost over the blocked ones, in nats; NaN where there is none.
        smallest_kl: least conditional KL of a blocked one; NaN where there is none.
    """

    examples: int
    blocked: int
    conditional_kl: float
    cost: float
    smallest_kl: float

    @property
    def share(self) -> float:
        """Blocked examples over examples, in [0, 1]."""
        return self.blocked / self.examples


def blocking_summary(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Blocking:
    r"""Return one row of Table 1.

    $$\text{blocked: } p_j \le t_j \text{ for all } j \ne y, \qquad
      L_{\mathrm{cond}} = \operatorname{KL}(q \| r), \qquad
      D_\infty(q \| r) = \max_{j \ne y} \log \frac{q_j}{r_j}$$

    Compared and measured from log-probabilities, in float64.

    **Source**: Yuan & Tao, Table 1 and Appendix E.2.

    Args:
        student_logits: (..., K) finite, K >= 3.
        teacher_logits: (..., K); -inf is a probability of zero.
        labels: (...) integer, in [0, K); leading dimensions broadcast, such as views.

    Returns:
        `Blocking`.

    Raises:
        ValueError: if there is no example, or an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([0.9, 0.07, 0.03]), torch.tensor([0.4, 0.25, 0.35])
        >>> found = blocking_summary(student.log(), teacher.log(), torch.tensor(0))
        >>> found.share, round(torch.tensor(found.cost).exp().item() * 18, 4)  # 35/18
        (1.0, 35.0)
    """
    arguments = student_logits, teacher_logits, labels
    blocked = is_blocked(*arguments)
    if blocked.numel() == 0:
        raise ValueError(
            f"student_logits must hold at least one example, got {tuple(student_logits.shape)}"
        )
    error = conditional_kl(*arguments).to(torch.float64)[blocked]
    cost = transfer_cost(*arguments).to(torch.float64)[blocked]
    least = float(error.min()) if len(error) else float("nan")
    return Blocking(
        blocked.numel(), int(blocked.sum()), float(error.mean()), float(cost.mean()), least
    )


@dataclass(frozen=True)
class HeadSteps:
    r"""Five exact head steps from the same start on batches of N examples.

    Attributes:
        step_size: $\eta$.
        start_kl: (..., N), conditional KL at the common start.
        kl: (..., N) for each of `HEAD_STEPS`, conditional KL at its endpoint.
        label_loss: (..., N) for each, cross-entropy at its endpoint.
        margin_change: (..., N) for each, the least margin at its endpoint minus the same margin at
            the endpoint of "ce".
        retention: (..., N), $u^\top d / \|u\|^2$; 1 where u is zero.
        cosine: (..., N), $\cos \angle (v, g_\Phi)$.
        potential_change: (..., N), $\Phi$ at the endpoint of "tpkd" minus at the start.
        residual: (..., N), $R_h = g_\Phi^\top v - \|v\|^2 - \gamma_K \|g_\Phi\|^2 / 4$.
        descent_slack: (..., N), right side of Eq. 13 minus left side.
        execution_error: (...), largest gap between a logit after a step and its prescription.
        rank: (...) int64, of the features.
        condition: (...), condition number of the features.
    """

    step_size: float
    start_kl: Tensor
    kl: dict[str, Tensor]
    label_loss: dict[str, Tensor]
    margin_change: dict[str, Tensor]
    retention: Tensor
    cosine: Tensor
    potential_change: Tensor
    residual: Tensor
    descent_slack: Tensor
    execution_error: Tensor
    rank: Tensor
    condition: Tensor

    @property
    def gain(self) -> Tensor:
        """(..., N), conditional KL of CE's endpoint minus of TPKD's."""
        return self.kl["ce"] - self.kl["tpkd"]

    @property
    def kl_change(self) -> Tensor:
        """(..., N), conditional KL of TPKD's endpoint minus of the start."""
        return self.kl["tpkd"] - self.start_kl

    @property
    def compensation_gap(self) -> Tensor:
        """(..., N), conditional KL of the endpoint of compensation only minus of CE's."""
        return self.kl["compensation-only"] - self.kl["ce"]

    def loses_margin(self, rule: str) -> Tensor:
        """(..., N) bool, whether the endpoint of a rule lies below CE's in some margin."""
        return self.margin_change[rule] < -MARGIN_TOLERANCE


def exact_head_steps(
    features: Tensor,
    head: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    step_size: float = 0.01,
) -> HeadSteps:
    r"""Take the five exact steps of Table 2 on frozen features, and measure their endpoints.

    $$A^+ = A - \eta X^\dagger V_{\rm row}, \qquad
      v \in \{h,\ h + \tfrac12 \ell a_0,\ h + \tfrac12 u,\ h + \tfrac12 d,\ h + (p - t)\}$$

    Everything is computed in float64, through the singular value decomposition and without a
    ridge; the step is per example, not divided by N.

    **Source**: Yuan & Tao, Table 2, Proposition 1 and Appendix E.2.

    Args:
        features: (..., N, D) of full row rank, with a last column of ones for a bias.
        head: (D, K) or (..., D, K), K >= 3.
        teacher_logits: (..., N, K); -inf is a probability of zero.
        labels: (..., N) integer, in [0, K).
        step_size: eta >= 0.

    Returns:
        `HeadSteps`.

    Raises:
        ValueError: if the features are not of full row rank, or an argument does not fit.

    Example:
        >>> features, head = torch.eye(2, dtype=torch.float64), torch.zeros(2, 3)
        >>> teacher, labels = torch.tensor([[9.0, 1.0, 1.0], [9.0, 1.0, 2.0]]), torch.tensor([0, 0])
        >>> steps = exact_head_steps(features, head, teacher, labels)
        >>> steps.gain[0] == 0, steps.gain[1] > 0  # the first teacher says nothing new
        (tensor(True), tensor(True))
    """
    features, head = features.to(torch.float64), head.to(torch.float64)
    teacher = teacher_logits.to(torch.float64)
    start = features @ head
    ends, error = {}, []
    for rule in HEAD_STEPS:
        update = update_direction(rule, start, teacher, labels)
        ends[rule] = features @ exact_head_step(features, head, update, step_size)
        error.append((ends[rule] - (start - step_size * update)).abs().amax((-2, -1)))
    values = torch.linalg.svdvals(features)
    rounding = max(features.shape[-2:]) * torch.finfo(values.dtype).eps
    return HeadSteps(
        step_size,
        conditional_kl(start, teacher, labels),
        {rule: conditional_kl(end, teacher, labels) for rule, end in ends.items()},
        {rule: _label_loss(end, labels) for rule, end in ends.items()},
        {rule: _margin_change(end, ends["ce"], labels) for rule, end in ends.items()},
        *_inequalities(start, ends["tpkd"], teacher, labels, step_size),
        torch.stack(error).amax(0),
        (values > rounding * values.amax(-1, keepdim=True)).sum(-1),
        values.amax(-1) / values.amin(-1),
    )


def repeats_agree(
    features: Tensor,
    head: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    step_size: float = 0.01,
    repeats: int = 2,
) -> bool:
    """Return whether the exact steps come out the same, bit for bit, when they are taken again.

    **Source**: Yuan & Tao, Appendix E.2, "two repeat checks".

    Args:
        features: as for `exact_head_steps`, like all other arguments.
        head: (D, K) or (..., D, K).
        teacher_logits: (..., N, K).
        labels: (..., N).
        step_size: eta >= 0.
        repeats: how often to take them again, >= 1.

    Returns:
        True if every head of every repetition equals the first, element by element.

    Raises:
        ValueError: if `repeats` is below 1, or as `exact_head_steps`.

    Example:
        >>> teacher = torch.tensor([[9.0, 1.0, 2.0]])
        >>> repeats_agree(torch.ones(1, 1), torch.zeros(1, 3), teacher, torch.tensor([0]))
        True
    """
    if not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"repeats must be an integer >= 1, got {repeats!r}")
    features, head = features.to(torch.float64), head.to(torch.float64)
    teacher, found = teacher_logits.to(torch.float64), []
    for _ in range(repeats + 1):
        start = features @ head
        updates = [update_direction(rule, start, teacher, labels) for rule in HEAD_STEPS]
        found.append([exact_head_step(features, head, v, step_size) for v in updates])
    return all(
        torch.equal(a, b) for again in found[1:] for a, b in zip(found[0], again, strict=True)
    )


def _inequalities(
    start: Tensor, end: Tensor, teacher: Tensor, labels: Tensor, step_size: float
) -> tuple[Tensor, ...]:
    """Retention, cosine, change of the potential, alignment residual, slack of Eq. 13."""
    found = directions(start, teacher, labels)
    u, d, v = found.conditional, found.corrected, found.update
    joint, gamma = potential_gradient(found.label, u), retention_bound(start.shape[-1])
    squares = u.square().sum(-1)
    kept = (u * d).sum(-1)
    retention = torch.where(squares > 0, kept / squares.where(squares > 0, 1.0), 1.0)
    product, own, other = (joint * v).sum(-1), v.square().sum(-1), joint.square().sum(-1)
    change = potential(end, teacher, labels) - potential(start, teacher, labels)
    promised = step_size * (gamma / 4 * other + (1 - 1.25 * step_size) * own)
    cosine = product / (own.sqrt() * other.sqrt())
    return retention, cosine, change, product - own - gamma / 4 * other, -promised - change


def _margin_change(end: Tensor, reference: Tensor, labels: Tensor) -> Tensor:
    """The least change of a margin against a reference endpoint."""
    gap = margins(end, labels) - margins(reference, labels)
    return gap.scatter(-1, labels.unsqueeze(-1), torch.inf).amin(-1)


def _label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each example."""
    return -logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
