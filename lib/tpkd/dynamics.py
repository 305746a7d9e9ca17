"""Iterated output steps: what label fitting, conditional learning and their joint potential do."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lib.tpkd.checks import check_beside, check_number, check_scalar, prepare, prepare_pair
from lib.tpkd.directions import (
    Directions,
    conditional_probabilities,
    confidence_direction,
    directions,
    directions_between,
)
from lib.tpkd.divergence import conditional, divergence, odds
from lib.tpkd.projection import project_onto_safe_cone

RULES = (
    "ce",
    "tpkd",
    "compensation-only",
    "tpkd-no-label",
    "tpkd-no-projection",
    "tpkd-full-kl",
    "ce-plus-kl",
)
_FULL = ("tpkd-full-kl", "ce-plus-kl")  # the rules that use p - t


@dataclass(frozen=True)
class OutputPath:
    r"""A batch of outputs under repeated steps, recorded at T of them.

    Attributes:
        step: (T,) int64, numbers of steps taken at each record.
        doubt: (T, ...), $1 - \rho$, accurate near 0.
        label_loss: (T, ...), $-\log \rho$.
        conditional_kl: (T, ...), $\operatorname{KL}(q \| r)$.
        uniform_kl: (T, ...), $\operatorname{KL}(\nu \| r)$ of the uniform vector to the student.
        label_norm: (T, ...), $\|h\|^2$.
        conditional_norm: (T, ...), $\|u\|^2$.
        joint_norm: (T, ...), $\|g_\Phi\|^2$ of $\Phi = 4 L_{\rm CE} + L_{\rm cond}$.
        update_norm: (T, ...), $\|v\|^2$ of the step's direction.
        label_sum: (T, ...), the sum of $\|h\|^2$ over all steps before the record.
        conditional_sum: (T, ...), of $\|u\|^2$.
        joint_sum: (T, ...), of $\|g_\Phi\|^2$.
        logits: (T, ..., K).
    """

    step: Tensor
    doubt: Tensor
    label_loss: Tensor
    conditional_kl: Tensor
    uniform_kl: Tensor
    label_norm: Tensor
    conditional_norm: Tensor
    joint_norm: Tensor
    update_norm: Tensor
    label_sum: Tensor
    conditional_sum: Tensor
    joint_sum: Tensor
    logits: Tensor

    @property
    def potential(self) -> Tensor:
        r"""(T, ...), $\Phi = 4 L_{\rm CE} + L_{\rm cond}$."""
        return 4 * self.label_loss + self.conditional_kl


def update_direction(
    rule: str,
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    weight: float | Tensor = 0.5,
) -> Tensor:
    r"""Return the direction that a rule subtracts from the logits.

    $$\begin{array}{ll}
      \text{ce} & h \\
      \text{tpkd} & h + w d \\
      \text{compensation-only} & h + w \ell a_0 \\
      \text{tpkd-no-label} & w d \\
      \text{tpkd-no-projection} & h + w u \\
      \text{tpkd-full-kl} & h + w \Pi_{\mathcal K_y}(p - t) \\
      \text{ce-plus-kl} & h + (p - t)
      \end{array}$$

    **Source**: Yuan & Tao, Eq. 6, Table 5 and Appendices E.2 and E.5.

    Args:
        rule: one of `RULES`, the names above.
        student_logits: (..., K), finite, K >= 3.
        teacher_logits: (..., K); -inf is a probability of zero.
        labels: (...) integer, in [0, K).
        weight: number or (...), w >= 0; 1/2 in the paper.

    Returns:
        (..., K), in the promoted dtype of the logits.

    Raises:
        ValueError: if the rule is unknown or an argument does not fit.

    Example:
        >>> student, teacher = torch.zeros(3), torch.tensor([0.0, -torch.inf, 0.0])
        >>> update_direction("tpkd-no-label", student, teacher, torch.tensor(0), 1.0)
        tensor([-0.2500,  0.5000, -0.2500])
    """
    _check_rule(rule)
    found = directions(student_logits, teacher_logits, labels, weight)
    weight = torch.as_tensor(weight).to(found.label)
    gap = None
    if rule in _FULL:
        named = {"student_logits": student_logits, "teacher_logits": teacher_logits}
        (student, teacher), labels, _ = prepare(labels, zeros=("teacher_logits",), **named)
        gap = (student.softmax(-1) - teacher.softmax(-1)).to(found.label.dtype)
    return _direction(rule, found, gap, labels, weight)


def run_output_steps(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    step_size: float,
    steps: int,
    rule: str = "tpkd",
    weight: float | Tensor = 0.5,
    record: Iterable[int] | None = None,
) -> OutputPath:
    r"""Take steps in logit space and record what Theorem 4 speaks of.

    $$z_{k+1} = z_k - \eta v_k$$

    **Source**: Yuan & Tao, Theorem 4 and Appendices C.2 and C.3.

    Args:
        student_logits: (..., K), finite, K >= 3; the start.
        teacher_logits: (..., K), fixed; -inf is a probability of zero.
        labels: (...) integer, in [0, K).
        step_size: eta >= 0.
        steps: number of steps >= 0.
        rule: one of `RULES`.
        weight: number or (...), w >= 0 of the rule.
        record: numbers of steps, in [0, steps], at which to record; None for all.

    Returns:
        `OutputPath`, in float64.

    Raises:
        ValueError: if the rule is unknown or an argument does not fit.

    Example:
        >>> teacher, label = torch.tensor([9.0, 1.0, 0.0]), torch.tensor(0)
        >>> path = run_output_steps(torch.zeros(3), teacher, label, step_size=0.8, steps=1)
        >>> path.label_loss.exp()[0], bool(path.potential[1] < path.potential[0])
        (tensor(3.0000, dtype=torch.float64), True)
    """
    _check_rule(rule)
    step_size = check_scalar("step_size", step_size, 0.0, 1e30)
    wanted = _records(steps, record)
    (z, teacher), labels, _ = prepare_pair(student_logits, teacher_logits, labels)
    weight = check_number("weight", weight, 0.0, 1e30, z.device)
    check_beside("weight", weight, labels.shape)
    labels = labels.expand(torch.broadcast_shapes(labels.shape, weight.shape))
    z, teacher = (x.detach().expand(*labels.shape, -1) for x in (z, teacher))
    t, q = teacher.softmax(-1), conditional_probabilities(teacher, labels)
    sums = torch.zeros(3, *labels.shape, dtype=z.dtype, device=z.device)
    rows = []
    for step in range(max(wanted) + 1):
        found = directions_between(z, q, labels, weight)
        gap = z.softmax(-1) - t if rule in _FULL else None
        update = _direction(rule, found, gap, labels, weight)
        joint = 4 * found.label + found.conditional
        norms = torch.stack([found.label, found.conditional, joint]).square().sum(-1)
        if step in wanted:
            rows.append((*_losses(z, teacher, labels), *norms, update.square().sum(-1), *sums, z))
        sums = sums + norms
        z = z - step_size * update
    columns = (torch.stack(column) for column in zip(*rows, strict=True))
    return OutputPath(torch.tensor(sorted(wanted), device=z.device), *columns)


def _direction(
    rule: str, found: Directions, gap: Tensor | None, labels: Tensor, weight: Tensor
) -> Tensor:
    """The rule's direction, given the directions and, for two rules, p - t at the same output."""
    h, w = found.label, weight.unsqueeze(-1)
    if rule == "ce":
        return h
    if rule == "tpkd":
        return found.update
    if rule == "compensation-only":
        push = confidence_direction(labels, h.shape[-1], h.dtype)
        return h + w * found.compensation.unsqueeze(-1) * push
    if rule == "tpkd-no-label":
        return w * found.corrected
    if rule == "tpkd-no-projection":
        return h + w * found.conditional
    if rule == "tpkd-full-kl":
        return h + w * project_onto_safe_cone(gap, labels)
    return h + gap


def _check_rule(rule: str) -> None:
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")


def _losses(z: Tensor, teacher: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Doubt, label loss, conditional error, and the error to the uniform conditional."""
    log_odds, log_r = odds(z, labels), conditional(z, labels)
    uniform = conditional(torch.zeros_like(z), labels)
    label_loss = -torch.nn.functional.logsigmoid(log_odds)
    errors = (divergence(target, log_r) for target in (conditional(teacher, labels), uniform))
    return torch.sigmoid(-log_odds), label_loss, *errors


def _records(steps: int, record: Iterable[int] | None) -> set[int]:
    """The numbers of steps at which to record."""
    if isinstance(steps, bool) or not isinstance(steps, numbers.Integral) or steps < 0:
        raise ValueError(f"steps must be an integer >= 0, got {steps!r}")
    if record is None:
        return set(range(steps + 1))
    try:
        wanted = {operator.index(step) for step in record}
    except TypeError:
        wanted = set()
    if not wanted or min(wanted) < 0 or max(wanted) > steps:
        raise ValueError(f"record must hold integers in [0, {steps}], got {record!r:.60}")
    return wanted
