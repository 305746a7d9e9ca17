"""Update directions in logit space: the label's, the teacher's, and their safe sum."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lib.tpkd.checks import at_label, check_beside, check_labels, check_number, prepare
from lib.tpkd.projection import project

_TEACHER = ("teacher_logits",)  # the argument that may hold a probability of zero
_LARGEST_WEIGHT = 1e30  # far from where float32 overflows


@dataclass(frozen=True)
class Directions:
    r"""The directions at one student output; a step subtracts them from the logits.

    Attributes:
        label: (..., K), $h = p - e_y$, the gradient of the cross-entropy.
        conditional: (..., K), $u = (0, r - q)$, the gradient of the conditional KL.
        corrected: (..., K), $d$, the projection of $u$ onto the safe cone.
        update: (..., K), $v = h + w d$ for the weight $w$.
        compensation: (...), $\ell = -d_y \ge 0$.
        clipped_teacher: (..., K), $\tilde q = \min(q, r + \ell)$, sum $1 - \ell$, 0 at the label.
    """

    label: Tensor
    conditional: Tensor
    corrected: Tensor
    update: Tensor
    compensation: Tensor
    clipped_teacher: Tensor


def directions(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    weight: float | Tensor = 0.5,
) -> Directions:
    r"""Return the label, conditional, corrected and complete directions.

    $$h = p - e_y, \quad u = (0, r - q), \quad d = \Pi_{\mathcal K_y}(u), \quad v = h + w d, \quad
      \tilde q_j = \min(q_j, r_j + \ell), \quad \ell = -d_y$$

    Everything is computed from softmaxes of the non-target logits, so it is exact where the
    label's probability rounds to one. A teacher probability of zero is allowed. Computed in
    float64 if a logit tensor is float64, else in float32.

    **Source**: Yuan & Tao, Sections 5.1 and 5.2, Eqs. 6 and 9; other weights Appendix C.5.

    Args:
        student_logits: (..., K), finite.
        teacher_logits: (..., K), -inf allowed; leading dimensions broadcast.
        labels: (...) integer, in [0, K).
        weight: number or (...) >= 0; 1/2 in the paper.

    Returns:
        `Directions`, in the promoted dtype of the logits.

    Raises:
        ValueError: if there are fewer than 3 classes, a teacher's row is -inf outside the label, or
            a value, shape or type does not fit.

    Example:
        >>> student = torch.tensor([0.5, 0.2, 0.3, 0.5]).log()
        >>> teacher = torch.tensor([0.5, 0.30, 0.32, 0.38]).log()
        >>> found = directions(student, teacher, torch.tensor(0))
        >>> found.corrected, found.compensation
        (tensor([-0.0500, -0.0500, -0.0200,  0.1200]), tensor(0.0500))
    """
    student, teacher, labels, weight, dtype = _check(student_logits, teacher_logits, labels, weight)
    found = directions_between(student, conditional_probabilities(teacher, labels), labels, weight)
    if found.update.dtype == dtype:
        return found
    return Directions(*(getattr(found, field.name).to(dtype) for field in fields(found)))


def directions_between(student: Tensor, q: Tensor, labels: Tensor, weight: Tensor) -> Directions:
    """Do the work of `directions` for checked logits and the teacher's conditional probabilities.

    Args:
        student: (..., K) float32 or float64, finite.
        q: (..., K), 0 at the label.
        labels: (...) int64, with the same leading dimensions.
        weight: (...) floating point.

    Returns:
        `Directions`.

    Example:
        >>> q, half = torch.tensor([0.0, 0.5, 0.5]), torch.tensor(0.5)
        >>> directions_between(torch.zeros(3), q, torch.tensor(0), half).update
        tensor([-0.6667,  0.3333,  0.3333])
    """
    label, r = _label_direction(student, labels)
    signal = r - q
    corrected = project(signal, labels)
    taken = -at_label(corrected, labels)
    clipped = torch.minimum(q, r + taken.unsqueeze(-1))
    update = torch.addcmul(label, weight.to(label).unsqueeze(-1), corrected)
    return Directions(label, signal, corrected, update, taken, clipped)


def surrogate_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    weight: float | Tensor = 0.5,
) -> Tensor:
    r"""Return the scalar whose gradient in the student's logits is the update divided by N.

    $$L_{\rm sur} = \frac1N \sum_i \langle \operatorname{stopgrad}(v_i), z_i \rangle$$

    Its value means nothing; back-propagation through it applies $v$ to the parameters. The teacher
    gets no gradient.

    **Source**: Yuan & Tao, Section 5.1, Eq. 8.

    Args:
        student_logits: (..., K), finite.
        teacher_logits: (..., K), -inf allowed; leading dimensions broadcast.
        labels: (...) integer, in [0, K).
        weight: number or (...) >= 0; 1/2 in the paper.

    Returns:
        () in the promoted dtype of the logits; N is the number of examples.

    Raises:
        ValueError: as `directions`, or if there is no example.

    Example:
        >>> z = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
        >>> surrogate_loss(z, torch.zeros(1, 3), torch.tensor([0])).backward()
        >>> z.grad  # no teacher signal: the cross-entropy gradient
        tensor([[-0.6667,  0.3333,  0.3333]], dtype=torch.float64)
    """
    student, teacher, labels, weight, dtype = _check(student_logits, teacher_logits, labels, weight)
    with torch.no_grad():
        label, r = _label_direction(student, labels)
        corrected = project(r.sub_(conditional_probabilities(teacher, labels)), labels)
        update = torch.addcmul(label, weight.to(label).unsqueeze(-1), corrected).to(dtype)
    if update.numel() == 0:
        raise ValueError(
            f"student_logits must hold at least one example for a mean, got {tuple(update.shape)}"
        )
    return ((update * student).sum() * (update.shape[-1] / update.numel())).to(dtype)


def confidence_direction(
    labels: Tensor, classes: int, dtype: torch.dtype = torch.float64
) -> Tensor:
    r"""Return the direction that raises every margin alike.

    $$a_0 = (-1, 1/(K-1), \dots, 1/(K-1)) \quad \text{with } {-1} \text{ at the label}$$

    **Source**: Yuan & Tao, Section 5.2.

    Args:
        labels: (...) integer, in [0, K).
        classes: K >= 3.
        dtype: of the result, floating.

    Returns:
        (..., K), of squared norm K / (K - 1).

    Raises:
        ValueError: if classes < 3, a label does not fit or the dtype is not floating.

    Example:
        >>> confidence_direction(torch.tensor(1), 3)
        tensor([ 0.5000, -1.0000,  0.5000], dtype=torch.float64)
    """
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 3:
        raise ValueError(f"classes must be an integer >= 3, got {classes!r}")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating torch.dtype, got {dtype!r}")
    labels = check_labels(labels, classes)
    shape = (*labels.shape, classes)
    direction = torch.full(shape, 1 / (classes - 1), dtype=dtype, device=labels.device)
    return direction.scatter_(-1, labels.unsqueeze(-1), -1.0)


def conditional_component(corrected: Tensor, labels: Tensor) -> Tensor:
    r"""Return what is left of a direction once its confidence push is taken out.

    $$w_{\rm cond} = d - \ell a_0, \qquad \ell = -d_y$$

    Its label entry is 0. For the corrected direction $d$ it sums to zero and is orthogonal to
    $a_0$: it alone moves the relations among the other classes.

    **Source**: Yuan & Tao, Section 5.2.

    Args:
        corrected: (..., K) real and finite, such as `directions(...).corrected`.
        labels: (...) integer, in [0, K); leading dimensions broadcast.

    Returns:
        (..., K), in the dtype of `corrected`; integers count as float32.

    Raises:
        ValueError: if a value, shape or type does not fit.

    Example:
        >>> conditional_component(torch.tensor([-2.0, -2.0, 4.0]), torch.tensor(0))
        tensor([ 0., -3.,  3.])
    """
    (corrected,), labels, dtype = prepare(labels, compute=None, corrected=corrected)
    index = labels.unsqueeze(-1)
    push = corrected.gather(-1, index) / (corrected.shape[-1] - 1)
    return (corrected + push).scatter(-1, index, 0.0).to(dtype)


def conditional_probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the softmax of the logits other than the label's.

    Args:
        logits: (..., K), one of them finite besides the label's.
        labels: (...) int64, with the same leading dimensions.

    Returns:
        (..., K), 0 at the label.

    Example:
        >>> conditional_probabilities(torch.tensor([9.0, 2.0, 2.0]), torch.tensor(0))
        tensor([0.0000, 0.5000, 0.5000])
    """
    return logits.scatter(-1, labels.unsqueeze(-1), -torch.inf).softmax(-1)


def _check(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor, weight: float | Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, torch.dtype]:
    """Student, teacher, labels and weight after every check, and the dtype of the results."""
    (student, teacher), labels, dtype = prepare(
        labels,
        zeros=_TEACHER,
        compute=None,
        student_logits=student_logits,
        teacher_logits=teacher_logits,
    )
    weight = check_number("weight", weight, 0.0, _LARGEST_WEIGHT, student.device)
    check_beside("weight", weight, labels.shape)
    return student, teacher, labels, weight, dtype


def _label_direction(student: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """p - e_y and the conditional probabilities, of a finite student.

    The log-odds of the label are z_y - max_j z_j + log max_j r_j over the other classes: a
    difference of logits, so that they are accurate where the label's probability rounds to one.
    """
    index = labels.unsqueeze(-1)
    masked = student.scatter(-1, index, -torch.inf)
    r = masked.softmax(-1)
    lead = masked.amax(-1, keepdim=True) - student.gather(-1, index)
    doubt = torch.sigmoid(lead - r.amax(-1, keepdim=True).log())
    return (doubt * r).scatter_(-1, index, -doubt), r
