"""DTO-KD: the shortest convex combination of the gradients of two log-losses."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from lib.distill.batch import Batch
from lib.distill.gradients import check_pair, inner_product
from lib.distill.kd import imitation_loss
from lib.distill.label import label_gradient, label_loss
from lib.distill.options import Choice, Flag, Number, resolve_options
from lib.tpkd.checks import check_number

_PARALLEL = 1e-12  # squared distance of the gradients, relative to their squares, taken for none
_EXPONENT = 1000  # a power of two by which float64 may be scaled

DTO_RULES = {
    "clip": Flag(True),
    "scale": Choice("inverse-loss", ("inverse-loss", "normalised")),
    "balance": Choice("exact", ("exact", "equal")),
    "floor": Number(1e-8, 1e-30, 1.0),
}


@dataclass(frozen=True)
class DtoWeights:
    r"""Weights of the two gradients at one step.

    Attributes:
        task: () float64, of the gradient of $L_2$: $w_2 = \pi_2 / L_2$, normalised if so wished.
        distil: () float64, of the gradient of $L_1$.
        task_share: () float64, $\pi_2$.
        distil_share: () float64, $\pi_1$.
    """

    task: Tensor
    distil: Tensor
    task_share: Tensor
    distil_share: Tensor


def dto_weights(
    task: Tensor,
    distil: Tensor,
    task_loss: float | Tensor,
    distil_loss: float | Tensor,
    **options: object,
) -> DtoWeights:
    r"""Return the weights of the task gradient and of the distillation gradient.

    $$g_i = \frac{\nabla L_i}{L_i}, \qquad
      \pi_1 = \frac{\langle g_2, g_2 - g_1 \rangle}{\|g_1 - g_2\|^2}, \quad \pi_2 = 1 - \pi_1,
      \qquad w_i = \frac{\pi_i}{L_i}, \qquad g^* = \sum_i w_i \nabla L_i$$

    with $L_1$ the distillation loss and $L_2$ the task loss. The shares minimise
    $\|\pi_1 g_1 + \pi_2 g_2\|$, so a positive multiple of a loss changes nothing. Clipped to
    [0, 1], they solve the problem on the simplex, which the paper states; its closed form drops
    the constraint. Parallel gradients of one length get a half each.

    Losses and gradients must be those of the whole batch: shares of its parts, averaged, are
    another method.

    **Source**: Hayder et al. (2026), Eqs. 8 to 15; the clip, the floor and the case of parallel
    gradients are ours; `normalised` is from Liu et al. (2023).

    Args:
        task: (P,), or of any shape, floating point and finite, the gradient of the task loss.
        distil: the same shape and dtype, the gradient of the distillation loss.
        task_loss: () finite.
        distil_loss: () finite.
        **options: `clip` (True), shares in [0, 1]; `scale`, "inverse-loss" as printed or
            "normalised" to weights of sum 1; `balance`, "exact" or "equal" shares; `floor` (1e-8)
            of the losses.

    Returns:
        `DtoWeights`.

    Raises:
        ValueError: if an argument does not fit, or normalised weights need not be positive.

    Example:
        >>> found = dto_weights(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.0]), 1.0, 1.0)
        >>> found.distil_share, found.task_share
        (tensor(0.2000, dtype=torch.float64), tensor(0.8000, dtype=torch.float64))
    """
    options = resolve_options("dto-kd", DTO_RULES, options)
    check_pair(task, distil)
    losses = [
        _loss(name, value, task.device)
        for name, value in (("distil_loss", distil_loss), ("task_loss", task_loss))
    ]
    return _weights(distil, task, losses, options)


def combine_weighted(
    gradients: tuple[Tensor, Tensor],
    losses: tuple[Tensor, Tensor],
    options: Mapping[str, object],
) -> Tensor:
    """Return the weighted sum of the task gradient and the distillation gradient."""
    task, distil = gradients
    found = dto_weights(task, distil, *losses, **options)
    wide = torch.promote_types(task.dtype, torch.float32)
    combined = found.task.to(wide) * task.to(wide) + found.distil.to(wide) * distil.to(wide)
    return combined.to(task.dtype)


def dto_losses(
    batch: Batch, options: Mapping[str, object], step: int | None
) -> tuple[Tensor, Tensor]:
    r"""Return the two losses of DTO-KD: the label's, and the divergence from the teacher.

    $$L_2 = \operatorname{CE}, \qquad L_1 = \operatorname{KL}(t \| p)$$

    On text $L_1$ has `layer_feature_loss` as a further term. The published paper does not say what
    its losses are; unit temperature is from Yuan & Tao.

    **Source**: Hayder et al. (2026); Yuan & Tao, Appendix E.1.
    """
    return label_loss(batch.student, batch.labels), imitation_loss(batch.student, batch.teacher)


def weigh_losses(
    batch: Batch, losses: tuple[Tensor, Tensor], options: Mapping[str, object]
) -> Tensor:
    r"""Return a loss whose gradient in the logits is the combined gradient of the logits.

    $$\pi_1 \log L_1 + \pi_2 \log L_2 \quad \text{or, normalised,} \quad w_1 L_1 + w_2 L_2$$

    with fixed weights from the gradients of both mean losses in the student's logits, as if these
    were the parameters. For the parameters of a network the weights differ, and `dto_weights` finds
    them.

    **Source**: Hayder et al. (2026), Eqs. 8 to 15.
    """
    with torch.no_grad():
        task, distil = logit_gradients(batch)
        found = dto_weights(task, distil, *losses, **options)
    shares, weights = (found.task_share, found.distil_share), (found.task, found.distil)
    if options["scale"] == "normalised":
        return sum(w.to(loss.dtype) * loss for w, loss in zip(weights, losses, strict=True))
    logs = (_floored_log(loss, options["floor"]) for loss in losses)
    return sum(share.to(log.dtype) * log for share, log in zip(shares, logs, strict=True))


def logit_gradients(batch: Batch) -> tuple[Tensor, Tensor]:
    r"""Return the gradients of both mean losses in the logits, $h / N$ and $(p - t) / N$.

    Args:
        batch: with a teacher.

    Returns:
        Two tensors of the shape in which the student's logits were given.
    """
    gap = batch.student.softmax(-1) - batch.teacher.softmax(-1)
    rows = (label_gradient(batch.student, batch.labels), gap)
    task, distil = (row.sum_to_size(batch.student_shape) / batch.labels.numel() for row in rows)
    return task, distil


def layer_feature_loss(
    student_states: Tensor, teacher_states: Tensor, projections: Tensor, mask: Tensor
) -> Tensor:
    r"""Return the distance of projected hidden states that DTO-KD adds on text.

    $$L_{\rm feat} = \frac1M \sum_m \frac{1}{\sum a} \sum_{i, s} a_{is}\, \frac1{D}
      \bigl\| \operatorname{LN}(H^S_{m, is} W_m) - \operatorname{LN}(H^T_{m, is}) \bigr\|^2$$

    for M pairs of layers, with layer normalisation without parameters, over real tokens only. Yuan
    & Tao say that their version distils several layers, not how.

    **Source**: ours, after Jiao et al. (2020).

    Args:
        student_states: (M, N, S, d) floating point, N texts of S tokens.
        teacher_states: (M, N, S, D) floating point; gets no gradient.
        projections: (M, d, D) floating point.
        mask: (N, S), 1 or True at real tokens, at least one of them.

    Returns:
        () >= 0, in float32 or wider.

    Raises:
        ValueError: if the shapes do not fit or there is no token.

    Example:
        >>> states, same = torch.randn(2, 3, 5, 4), torch.eye(4).expand(2, 4, 4)
        >>> layer_feature_loss(states, states, same, torch.ones(3, 5))
        tensor(0.)
    """
    _check_states(student_states, teacher_states, projections, mask)
    wide = torch.promote_types(student_states.dtype, torch.float32)
    with torch.autocast(student_states.device.type, enabled=False):
        projected = student_states.to(wide) @ projections.to(wide).unsqueeze(1)
        width = projected.shape[-1:]
        target = layer_norm(teacher_states.detach().to(wide), width)
        distance = (layer_norm(projected, width) - target).square().mean(-1)
        weight = mask.to(wide)
        return (distance * weight).sum() / (weight.sum() * len(distance))


def _weights(
    distil: Tensor, task: Tensor, losses: list[Tensor], options: Mapping[str, object]
) -> DtoWeights:
    """The weights, distillation first in `losses`, from gradients of the losses."""
    first, second = (loss.clamp(min=options["floor"]) for loss in losses)
    share = torch.full_like(first, 0.5)
    if options["balance"] == "exact":
        share = _shortest(distil.to(torch.float64) / first, task.to(torch.float64) / second)
    if options["clip"]:
        share = share.clamp(0.0, 1.0)
    weights = [share / first, (1 - share) / second]
    if options["scale"] == "normalised":
        if not options["clip"]:
            raise ValueError(
                "clip must be True for scale 'normalised', got False: signs may differ"
            )
        total = weights[0] + weights[1]
        weights = [weight / total for weight in weights]
    return DtoWeights(weights[1], weights[0], 1 - share, share)


def _shortest(first: Tensor, second: Tensor) -> Tensor:
    """The share of the first gradient in the shortest affine combination of both."""
    if first.numel() == 0:
        return first.new_full((), 0.5)
    largest = torch.maximum(first.abs().amax(), second.abs().amax())
    exponent = torch.frexp(largest).exponent.clamp(-_EXPONENT, _EXPONENT)
    scale = torch.exp2(-exponent.to(torch.float64))  # ldexp would raise 2 in float32
    first, second = first * scale, second * scale
    gap = second - first
    squares = inner_product(first, first) + inner_product(second, second)
    distance = inner_product(gap, gap)
    apart = distance > _PARALLEL * squares
    exact = inner_product(second, gap) / torch.where(apart, distance, 1.0)
    return torch.where(apart, exact, 0.5)


def _loss(name: str, value: float | Tensor, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        value = value.detach().to(device)
    loss = check_number(name, value, -sys.float_info.max, sys.float_info.max, device)
    if loss.numel() != 1:
        raise ValueError(f"{name} must be one number, got shape {tuple(loss.shape)}")
    return loss.reshape(())


def _floored_log(loss: Tensor, floor: float) -> Tensor:
    """The logarithm of a loss of at least the floor, with the gradient of the loss over that."""
    value = loss.detach().clamp(min=floor)
    return value.log() + (loss - loss.detach()) / value


def _check_states(student: Tensor, teacher: Tensor, projections: Tensor, mask: Tensor) -> None:
    named = {
        "student_states": student,
        "teacher_states": teacher,
        "projections": projections,
        "mask": mask,
    }
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if student.ndim != 4 or projections.ndim != 3:
        raise ValueError(
            "student_states must be (M, N, S, d) and projections (M, d, D), got "
            f"{tuple(student.shape)} and {tuple(projections.shape)}"
        )
    pairs, *tokens, width = student.shape
    wanted = {
        "projections": (pairs, width, projections.shape[-1]),
        "teacher_states": (pairs, *tokens, projections.shape[-1]),
        "mask": tuple(tokens),
    }
    for name, shape in wanted.items():
        if tuple(named[name].shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(named[name].shape)}")
    if not bool((mask > 0).any()):
        raise ValueError("mask must mark at least one token, got none")
