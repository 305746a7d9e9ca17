"""The geometric tests of Table 3: what back-propagation does to the signals of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lib.distill.evaluation import evaluation_mode
from lib.tpkd import (
    conditional_component,
    directions,
    distortion_limits,
    output_vjp,
    potential_gradient,
    restricted_spectrum,
)

Vjp = Callable[[Tensor], Sequence[Tensor]]
_FLAT = 1e-12  # a smallest stretch below this times the largest counts as zero


@dataclass(frozen=True)
class Signals:
    r"""The stacked output signals of a batch of N examples, divided by $\sqrt N$.

    Attributes:
        conditional: U, (N, K), of $u_i$.
        component: R, (N, K), of $w_{{\rm cond}, i}$.
        joint: W, (N, K), of $g_{\Phi, i}$.
        update: V, (N, K), of $v_i$.
    """

    conditional: Tensor
    component: Tensor
    joint: Tensor
    update: Tensor


@dataclass(frozen=True)
class Certificate:
    r"""What the batch Jacobian does to a pair of signals a and b.

    Attributes:
        smallest: m, the least squared stretch of $J^\top$ on their span.
        largest: M, the largest.
        cosine: of the two output signals, c.
        product: $\langle J^\top a, J^\top b \rangle$.
        norms: $\|J^\top a\|$ and $\|J^\top b\|$.
        limit: $\kappa$, which the ratio M / m must not reach.
    """

    smallest: float
    largest: float
    cosine: float
    product: float
    norms: tuple[float, float]
    limit: float

    @property
    def ratio(self) -> float:
        """M / m; infinite where m is zero to a relative 1e-12."""
        return self.largest / self.smallest if self.smallest > _FLAT * self.largest else torch.inf

    @property
    def measured_limit(self) -> float:
        """(1 + c) / (1 - c) for the measured cosine; infinite for parallel signals."""
        return (1 + self.cosine) / (1 - self.cosine) if self.cosine < 1 else torch.inf

    @property
    def parameter_cosine(self) -> float:
        """Of the two gradients; NaN where one of them is zero."""
        size = self.norms[0] * self.norms[1]
        return self.product / size if size > 0 else torch.nan

    @property
    def holds(self) -> bool:
        """Whether the ratio lies below the limit that depends on the number of classes alone."""
        return self.ratio < self.limit

    @property
    def holds_measured(self) -> bool:
        """Whether the ratio lies below the limit of the measured cosine."""
        return self.cosine > -1 and self.ratio < self.measured_limit

    @property
    def holds_directly(self) -> bool:
        """Whether the inner product itself is positive."""
        return self.product > 0


@dataclass(frozen=True)
class Certificates:
    r"""Both tests of Theorem 5 on a batch.

    Attributes:
        conditional: of the pair (U, R); half its product is the slope $t_c$.
        joint: of the pair (W, V); its product is the slope $t_\Phi$.
    """

    conditional: Certificate
    joint: Certificate


def batch_signals(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Signals:
    r"""Return the stacked signals of a batch.

    $$(U, R) = \tfrac1{\sqrt N} (\operatorname{col}(u_i), \operatorname{col}(w_{{\rm cond}, i})),
      \qquad (W, V) = \tfrac1{\sqrt N} (\operatorname{col}(g_{\Phi, i}), \operatorname{col}(v_i))$$

    **Source**: Yuan & Tao, Appendix D.2.

    Args:
        student_logits: (N, K), finite, K >= 3.
        teacher_logits: (N, K); -inf is a probability of zero.
        labels: (N,) integer, in [0, K).

    Returns:
        `Signals` in float64, detached.

    Raises:
        ValueError: if there is no example, or an argument does not fit.

    Example:
        >>> found = batch_signals(torch.zeros(4, 3), torch.zeros(4, 3), torch.zeros(4).long())
        >>> float((4 * found.update - found.joint).abs().max())  # u = 0: four times h on one side
        0.0
    """
    if student_logits.ndim != 2 or len(student_logits) == 0:
        raise ValueError(
            f"student_logits must have shape (N, K) with N >= 1, got {tuple(student_logits.shape)}"
        )
    student, teacher = (x.detach().to(torch.float64) for x in (student_logits, teacher_logits))
    found = directions(student, teacher, labels)
    parts = (
        found.conditional,
        conditional_component(found.corrected, labels),
        potential_gradient(found.label, found.conditional),
        found.update,
    )
    return Signals(*(part / len(student) ** 0.5 for part in parts))


def batch_vjp(
    student: nn.Module, inputs: Sequence[Tensor], micro_batch: int | None = 8
) -> tuple[Tensor, Vjp]:
    r"""Return the logits of a batch, and the map from their directions to parameter gradients.

    $$\xi \mapsto J^\top \xi, \qquad J = \tfrac1{\sqrt N} \operatorname{col}(J_i)$$

    By vector-Jacobian products alone, of a few examples at a time; every call runs the network
    anew, so that no graph is kept. Put the network into the mode in which it should be measured.

    **Source**: Yuan & Tao, Appendices D.2, D.5 and E.3.

    Args:
        student: the network; its parameters that require gradients are $\theta$.
        inputs: its arguments, each (N, ...).
        micro_batch: examples at a time, >= 1; None for all.

    Returns:
        Logits (N, K), detached, and a function of a direction (N, K) that returns a gradient for
        each parameter, in float64.

    Raises:
        ValueError: if there is no example or no parameter to differentiate in, or `micro_batch` is
            below 1; from the function, if a direction is not shaped like the logits.

    Example:
        >>> student = nn.Linear(2, 3, bias=False)
        >>> logits, vjp = batch_vjp(student, (torch.eye(2)[:1],))
        >>> vjp(torch.tensor([[1.0, 2.0, 3.0]]))[0].T
        tensor([[1., 2., 3.],
                [0., 0., 0.]], dtype=torch.float64)
    """
    count = len(inputs[0]) if len(inputs) else 0
    parameters = [p for p in student.parameters() if p.requires_grad]
    if count == 0 or not parameters:
        raise ValueError(
            f"inputs and student must not be empty, got {count} examples and {len(parameters)} "
            "parameters that require gradients"
        )
    size = count if micro_batch is None else micro_batch
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"micro_batch must be an integer >= 1 or None, got {micro_batch!r}")
    chunks = [tuple(x[k : k + size] for x in inputs) for k in range(0, count, size)]
    with torch.no_grad():
        logits = torch.cat([student(*chunk) for chunk in chunks])

    def vjp(direction: Tensor) -> list[Tensor]:
        if direction.shape != logits.shape:
            raise ValueError(
                f"direction must have the shape {tuple(logits.shape)}, got {tuple(direction.shape)}"
            )
        total = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
        for chunk, part in zip(chunks, direction.split(size), strict=True):
            with torch.enable_grad():
                products = output_vjp(student(*chunk), parameters)(part)
            for sum_, product in zip(total, products, strict=True):
                sum_ += product
        return [sum_ / count**0.5 for sum_ in total]

    return logits, vjp


def certify(vjp: Vjp, first: Tensor, second: Tensor, limit: float) -> Certificate:
    r"""Return the certificate of a pair of signals, from two vector-Jacobian products.

    $$m, M = \lambda_{\min}, \lambda_{\max} (Q^\top J J^\top Q), \qquad
      \langle J^\top a, J^\top b \rangle$$

    The products of the orthonormal basis also give the two gradients, which are combinations of
    them.

    **Source**: Yuan & Tao, Appendix D.5; the measured angle, Appendix D.2.

    Args:
        vjp: maps a direction, shaped like the signals, to gradients, such as from `batch_vjp`.
        first: a, (N, K), not zero.
        second: b, (N, K), not zero.
        limit: kappa, > 0.

    Returns:
        `Certificate`.

    Raises:
        ValueError: if a signal is zero or not finite, or the shapes differ.

    Example:
        >>> scale = torch.tensor([2.0, 1.0, 1.0])  # J is diagonal
        >>> a, b = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 0.0]])
        >>> found = certify(lambda xi: [scale * xi], a, b, 5.0)
        >>> round(found.ratio, 6), round(found.product, 6), found.holds
        (4.0, 4.0, True)
    """
    first, second = first.to(torch.float64), second.to(torch.float64)
    basis: list[tuple[Tensor, list[Tensor]]] = []

    def recorded(direction: Tensor) -> list[Tensor]:
        basis.append((direction, list(vjp(direction))))
        return basis[-1][1]

    sizes = float(first.norm()), float(second.norm())
    if not min(sizes) > 0:
        raise ValueError(f"first and second must not be zero, got norms {sizes[0]} and {sizes[1]}")
    smallest, largest = restricted_spectrum(recorded, first, second)
    one, two = (_combine(basis, signal) for signal in (first, second))
    cosine = float((first / sizes[0] * (second / sizes[1])).sum())
    return Certificate(
        float(smallest),
        float(largest),
        max(-1.0, min(1.0, cosine)),
        float(_inner(one, two)),
        (float(_inner(one, one)) ** 0.5, float(_inner(two, two)) ** 0.5),
        limit,
    )


def certify_batch(
    student: nn.Module,
    inputs: Sequence[Tensor],
    teacher_logits: Tensor,
    labels: Tensor,
    micro_batch: int | None = 8,
) -> Certificates:
    r"""Return both geometric tests of Theorem 5 for a network and a batch.

    $$\chi_c = M_c / m_c < \kappa_c, \qquad \chi_\Phi = M_\Phi / m_\Phi < \kappa_\Phi$$

    The network runs in its own precision, in evaluation mode; the geometry is float64.

    **Source**: Yuan & Tao, Theorem 5, Table 3, Appendices D.5 and E.3.

    Args:
        student: the network; it is left as it is.
        inputs: its arguments, each (N, ...).
        teacher_logits: (N, K); -inf is a probability of zero.
        labels: (N,) integer, in [0, K).
        micro_batch: examples at a time; None for all.

    Returns:
        `Certificates`.

    Raises:
        ValueError: if the conditional signal is zero on the whole batch, or as `batch_vjp`.

    Example:
        >>> features = torch.eye(2)  # orthonormal features: no distortion at all
        >>> teacher, labels = torch.tensor([[1.0, 0.0, 2.0, 3.0]] * 2), torch.tensor([0, 1])
        >>> found = certify_batch(nn.Linear(2, 4, bias=False), (features,), teacher, labels)
        >>> round(found.conditional.ratio, 4), round(found.joint.ratio, 4)
        (1.0, 1.0)
    """
    with evaluation_mode(student):
        logits, vjp = batch_vjp(student, inputs, micro_batch)
        found = batch_signals(logits, teacher_logits, labels)
        conditional, joint = (float(limit) for limit in distortion_limits(logits.shape[-1]))
        return Certificates(
            certify(vjp, found.conditional, found.component, conditional),
            certify(vjp, found.joint, found.update, joint),
        )


def _combine(basis: Iterable[tuple[Tensor, list[Tensor]]], signal: Tensor) -> list[Tensor]:
    """J^T of a signal in the span of an orthonormal basis, from J^T of the basis."""
    pairs = [((unit.to(signal) * signal).sum(), products) for unit, products in basis]
    columns = zip(*(products for _, products in pairs), strict=True)
    weights = [weight for weight, _ in pairs]
    return [
        sum(
            w.to(part.device) * part.to(torch.float64)
            for w, part in zip(weights, parts, strict=True)
        )
        for parts in columns
    ]


def _inner(first: list[Tensor], second: list[Tensor]) -> Tensor:
    """The inner product of two gradients."""
    return sum((a * b).sum() for a, b in zip(first, second, strict=True))
