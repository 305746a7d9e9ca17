"""Every method of Table 4 and every control of Table 5 as a loss of logits and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from lib.distill.batch import Batch, prepare_batch
from lib.distill.methods import OBJECTIVES, Objective
from lib.distill.options import check_step, resolve_options


def objective_loss(
    name: str,
    student_logits: Tensor,
    teacher_logits: Tensor | None,
    labels: Tensor,
    *,
    frozen_logits: Tensor | None = None,
    auxiliary_logits: Tensor | None = None,
    step: int | None = None,
    **options: float | bool | str,
) -> Tensor:
    r"""Return the scalar whose gradient in the logits is what a method prescribes.

    $$\frac1N \sum_i L(z_i, z^T_i, y_i)$$

    Only the student's logits, of both heads, get a gradient. Two methods combine the gradients of
    two losses of the whole batch in the parameters, which no loss of logits can do: `dhkd` is the
    plain sum here, without alignment, and `dto-kd` is weighted as if the logits were the
    parameters. To train with them take `objective_losses` and `combine_gradients`.

    **Source**: Yuan & Tao, Tables 4 and 5, Appendix E.1; for each method `OBJECTIVES[name].source`,
    and the formula in the docstring of `OBJECTIVES[name].losses`.

    Args:
        name: one of `OBJECTIVES`.
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real, a probability of zero where -inf; None if not needed.
        labels: (...) integer, in [0, K).
        frozen_logits: (..., K) finite, of the student before training, for `dp-u` and `dp-s`.
        auxiliary_logits: (..., K) finite, of the second head, for `dhkd`.
        step: number of optimiser steps already taken, for the warm-up of `dkd`, which counts
            `steps_per_epoch` of them for an epoch; None for after the warm-up.
        **options: of the method, see `OBJECTIVES[name].options`.

    Returns:
        () in float64 if one of the logits is, else in float32.

    Raises:
        ValueError: if the name or an option is unknown, logits that the method needs are missing,
            there is no example, or a value, shape or type does not fit.

    Example:
        >>> import torch
        >>> student, teacher = torch.zeros(1, 3), torch.tensor([[0.0, 0.0, -torch.inf]])
        >>> objective_loss("kl-dist", student, teacher, torch.tensor([0])).exp()
        tensor(1.5000)
    """
    arguments = (student_logits, teacher_logits, labels, frozen_logits, auxiliary_logits)
    objective, batch, values, losses = _evaluate(name, arguments, step, options)
    if objective.total is None:
        return losses[0]
    return objective.total(batch, losses, values)


def objective_losses(
    name: str,
    student_logits: Tensor,
    teacher_logits: Tensor | None,
    labels: Tensor,
    *,
    frozen_logits: Tensor | None = None,
    auxiliary_logits: Tensor | None = None,
    step: int | None = None,
    **options: float | bool | str,
) -> tuple[Tensor, ...]:
    r"""Return the batch-mean losses that a method differentiates one by one.

    One loss, or the task loss and the distillation loss, in this order, where
    `OBJECTIVES[name].backward_passes` is 2.

    **Source**: as `objective_loss`.

    Args:
        name: as for `objective_loss`, like all other arguments.
        student_logits: (..., K).
        teacher_logits: (..., K) or None.
        labels: (...).
        frozen_logits: (..., K) or None.
        auxiliary_logits: (..., K) or None.
        step: number of optimiser steps already taken, or None.
        **options: of the method.

    Returns:
        Tensors (), one for each backward pass; two of them share a graph, which the first pass
        must retain.

    Raises:
        ValueError: as `objective_loss`.

    Example:
        >>> import torch
        >>> z, teacher = torch.zeros(1, 3), torch.tensor([[0.0, 0.0, -torch.inf]])
        >>> task, distil = objective_losses("dto-kd", z, teacher, torch.tensor([0]))
        >>> task.exp(), distil.exp()
        (tensor(3.), tensor(1.5000))
    """
    arguments = (student_logits, teacher_logits, labels, frozen_logits, auxiliary_logits)
    return _evaluate(name, arguments, step, options)[-1]


def combine_gradients(
    name: str,
    gradients: Sequence[Tensor],
    losses: Sequence[float | Tensor],
    **options: float | bool | str,
) -> Tensor:
    r"""Return the gradient that a method hands to the optimiser.

    The only gradient; for `dhkd` $g_{\rm ce} + g'_{\rm kd}$ with the second aligned, for `dto-kd`
    $\sum_i w_i \nabla L_i$.

    **Source**: Yang et al. (2025), released code; Hayder et al. (2026), Eqs. 8 to 15.

    Args:
        name: one of `OBJECTIVES`.
        gradients: of the losses of `objective_losses`, in their order, each (P,): of the whole
            batch, in all parameters, finite, before any clipping.
        losses: the losses of the whole batch, in the same order.
        **options: of the method, the same as for the losses.

    Returns:
        (P,).

    Raises:
        ValueError: if the name or an option is unknown, a number of gradients or losses is wrong,
            or a value, shape or type does not fit.

    Example:
        >>> import torch
        >>> task, distil = torch.tensor([1.0, 0.0]), torch.tensor([-3.0, 2.0])
        >>> combine_gradients("dhkd", (task, distil), (1.0, 1.0))
        tensor([1., 2.])
    """
    objective = _find(name)
    values = resolve_options(name, objective.rules, options)
    for what, given in (("gradients", gradients), ("losses", losses)):
        if not isinstance(given, tuple | list) or len(given) != objective.backward_passes:
            raise ValueError(
                f"{what} must hold {objective.backward_passes} for {name!r}, as objective_losses "
                f"returns them, got {len(given) if hasattr(given, '__len__') else given!r}"
            )
    if objective.combine is None:
        return gradients[0]
    return objective.combine(tuple(gradients), tuple(losses), values)


def _evaluate(
    name: str,
    arguments: tuple[Tensor | None, ...],
    step: int | None,
    options: Mapping[str, object],
) -> tuple[Objective, Batch, dict, tuple[Tensor, ...]]:
    """Check everything, and compute the batch-mean losses of a method."""
    objective = _find(name)
    values = resolve_options(name, objective.rules, options)
    step = check_step(step)
    student, teacher, labels, frozen, auxiliary = arguments
    needs = {
        "teacher_logits": (objective.needs_teacher, teacher),
        "frozen_logits": (objective.needs_frozen, frozen),
        "auxiliary_logits": (objective.needs_auxiliary, auxiliary),
    }
    for argument, (needed, tensor) in needs.items():
        if needed and tensor is None:
            raise ValueError(f"{argument} must be given for {name!r}, got None")
    batch = prepare_batch(
        student,
        teacher,
        labels,
        frozen_logits=frozen,
        auxiliary_logits=auxiliary,
        conditional=objective.needs_conditional,
    )
    losses = objective.losses(batch, values, step)
    return objective, batch, values, tuple(loss.mean() for loss in losses)


def _find(name: str) -> Objective:
    if not isinstance(name, str) or name not in OBJECTIVES:
        raise ValueError(f"name must be one of {', '.join(OBJECTIVES)}, got {name!r}")
    return OBJECTIVES[name]
