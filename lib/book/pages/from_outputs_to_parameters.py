"""What the chapter "From outputs to parameters" computes and draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lib.book.pages.digit_networks import trainable
from lib.tpkd import (
    alignment_bound,
    conditional_component,
    conditional_kl,
    confidence_direction,
    directions,
    output_vjp,
    potential,
    potential_gradient,
    restricted_spectrum,
    retention_bound,
)


@dataclass(frozen=True)
class Signals:
    r"""The stacked output signals of a batch, divided by $\sqrt N$.

    Attributes:
        conditional: U, (N, K).
        component: R, (N, K).
        joint: W, (N, K).
        update: V, (N, K).
        compensation: what compensation only puts in the place of V, (N, K).
        energy: E, the mean of $|h|^2 + |u|^2 / 12$, ().
    """

    conditional: Tensor
    component: Tensor
    joint: Tensor
    update: Tensor
    compensation: Tensor
    energy: Tensor


@dataclass(frozen=True)
class Certificate:
    r"""What back-propagation does to one pair of signals.

    Attributes:
        classes: K.
        smallest: m.
        largest: M.
        cosine: between the two output signals.
        product: $a^\top G b$.
        norms: $|a|$ and $|b|$.
        stretched: $|J^\top a|^2$ and $|J^\top b|^2$.
    """

    classes: int
    smallest: float
    largest: float
    cosine: float
    product: float
    norms: tuple[float, float]
    stretched: tuple[float, float]

    @property
    def ratio(self) -> float:
        """chi = M / m, infinite where m is zero to a relative 1e-12."""
        return self.largest / self.smallest if self.smallest > 1e-12 * self.largest else torch.inf

    @property
    def parameter_cosine(self) -> float:
        """The cosine between the two gradients."""
        return self.product / (self.stretched[0] * self.stretched[1]) ** 0.5


def signals(logits: Tensor, teacher: Tensor, labels: Tensor) -> Signals:
    """Return the stacked signals of Appendix D.2.

    Args:
        logits: (N, K).
        teacher: (N, K).
        labels: (N,).

    Returns:
        The signals, detached.

    Example:
        >>> found = signals(torch.zeros(4, 3), torch.zeros(4, 3), torch.zeros(4).long())
        >>> float((4 * found.update - found.joint).abs().max())  # u = 0: four times h on one side
        0.0
    """
    found = directions(logits.detach(), teacher.detach(), labels)
    push = confidence_direction(labels, logits.shape[-1], found.label.dtype)
    parts = (
        found.conditional,
        conditional_component(found.corrected, labels),
        potential_gradient(found.label, found.conditional),
        found.update,
        found.label + found.compensation.unsqueeze(-1) / 2 * push,
    )
    energy = (found.label.square() + found.conditional.square() / 12).sum(-1).mean()
    return Signals(*(part / len(logits) ** 0.5 for part in parts), energy)


def certificate(
    outputs: Tensor, parameters: list[Tensor], first: Tensor, second: Tensor
) -> Certificate:
    """Return the certificate of a pair of signals, from vector-Jacobian products alone.

    Args:
        outputs: (N, K), differentiable in the parameters.
        parameters: tensors that require gradients.
        first: (N, K), a.
        second: (N, K), b.

    Returns:
        `Certificate`.

    Example:
        >>> theta = torch.tensor([[0.0, 0.0, 0.0]], requires_grad=True)
        >>> a, b = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 0.0]])
        >>> found = certificate(theta * torch.tensor([2.0, 1.0, 1.0]), [theta], a, b)
        >>> round(found.ratio, 6), round(found.product, 6)
        (4.0, 4.0)
    """
    vjp = output_vjp(outputs / len(outputs) ** 0.5, parameters)
    smallest, largest = restricted_spectrum(vjp, first, second)
    one, two = (torch.cat([g.flatten() for g in vjp(signal)]) for signal in (first, second))
    norms = float(first.norm()), float(second.norm())
    return Certificate(
        outputs.shape[-1],
        float(smallest),
        float(largest),
        float((first * second).sum()) / (norms[0] * norms[1]),
        float(one @ two),
        norms,
        (float(one @ one), float(two @ two)),
    )


def step_falls(
    network: nn.Module,
    images: Tensor,
    teacher: Tensor,
    labels: Tensor,
    step_sizes: list[float],
) -> tuple[float, float]:
    """Take parameter steps with TPKD and with compensation only, from the same parameters.

    Args:
        network: left as it is.
        images: (N, D).
        teacher: (N, K) logits.
        labels: (N,).
        step_sizes: values of eta, tried one by one.

    Returns:
        Mean conditional KL after compensation only minus after TPKD, and fall of the mean joint
        potential under TPKD, each the least over the step sizes. Both are positive where Theorem 5
        says so.
    """
    parameters = trainable(network)
    outputs = network(images)
    found = signals(outputs, teacher, labels)
    vjp = output_vjp(outputs / len(images) ** 0.5, list(parameters.values()))
    ways = [vjp(direction) for direction in (found.update, found.compensation)]
    start = potential(outputs.detach(), teacher, labels).mean()
    gains, falls = [], []
    for eta in step_sizes:
        after = [_moved(network, parameters, way, eta, images) for way in ways]
        kl = [conditional_kl(z, teacher, labels).mean() for z in after]
        gains.append(float(kl[1] - kl[0]))
        falls.append(float(start - potential(after[0], teacher, labels).mean()))
    return min(gains), min(falls)


def _moved(
    network: nn.Module,
    parameters: dict[str, Tensor],
    way: tuple[Tensor, ...],
    step_size: float,
    images: Tensor,
) -> Tensor:
    """The outputs after a step against a gradient."""
    pairs = zip(parameters.items(), way, strict=True)
    new = {name: (old - step_size * g).detach() for (name, old), g in pairs}
    return torch.func.functional_call(network, new, (images,)).detach()


def conditional_slacks(found: Certificate) -> list[float]:
    """Return the relative slacks of D.5, both parts of D.6, and the bound on t_c.

    Args:
        found: certificate of the pair (U, R).

    Returns:
        Four numbers, >= 0 up to rounding where the bounds hold.
    """
    (u, r), m, largest = found.norms, found.smallest, found.largest
    gamma, cosine = float(retention_bound(found.classes)), float(alignment_bound(found.classes))
    beta = (1 + cosine) * m - (1 - cosine) * largest
    return [
        ((1 + gamma) * found.cosine * u * r - gamma * u**2 - r**2) / u**2,
        (found.stretched[1] - m * r**2) / (largest * r**2),
        (r**2 - gamma**2 * u**2) / u**2,
        (found.product / 2 - beta / 4 * u * r) / (largest * u * r),
    ]


def joint_slacks(found: Certificate, energy: float) -> list[float]:
    """Return the relative slacks of D.4: two bounds on t_Phi, |g_T|^2, |W||V| and |V|^2 by E.

    Args:
        found: certificate of the pair (W, V).
        energy: E.

    Returns:
        Five numbers; the second only means something where mu_Phi > 0, and is 0 elsewhere.
    """
    (w, v), m, largest = found.norms, found.smallest, found.largest
    root = float(retention_bound(found.classes).sqrt())
    mu = ((1 + root) * m - (1 - root) * largest) / 2
    return [
        (found.product - mu * w * v) / (largest * w * v),
        (found.product - mu * energy) / (largest * energy) if mu > 0 else 0.0,
        (8 * largest * energy - found.stretched[1]) / (8 * largest * energy),
        (w * v - energy) / energy,
        (8 * energy - v**2) / energy,
    ]


def linear_step_slacks(
    features: Tensor, head: Tensor, teacher: Tensor, labels: Tensor
) -> tuple[float, float]:
    r"""Take the explicit steps of D.3 and D.7 in a linear model, of known Lipschitz constants.

    With $z = X A$ the gradients of the mean losses are Lipschitz with $\lambda / 2$ and
    $5 \lambda / 2$, for $\lambda$ the largest eigenvalue of $X X^\top / N$.

    Args:
        features: X, (N, D).
        head: A, (D, K).
        teacher: (N, K) logits.
        labels: (N,).

    Returns:
        Relative slacks of the promised gain over compensation only, and of the promised fall of
        the potential; NaN where the certificate does not hold.
    """
    count, weights = len(labels), head.clone().requires_grad_()
    outputs = features @ weights
    found = signals(outputs, teacher, labels)
    lam = float(torch.linalg.matrix_norm(features, 2) ** 2 / count)
    pairs = (found.conditional, found.component), (found.joint, found.update)
    first, second = (certificate(outputs, [weights], *pair) for pair in pairs)
    back = features.T / count**0.5
    steps = {"T": back @ found.update, "C": back @ found.compensation}

    def loss(kind: str, eta: float, which: Callable[..., Tensor]) -> float:
        moved = features @ (head - eta * steps[kind])
        return float(which(moved, teacher, labels).mean())

    gain, squares = first.product / 2, sum(float(g.square().sum()) for g in steps.values())
    eta = gain / (lam / 2 * squares)
    change = loss("T", eta, conditional_kl) - loss("C", eta, conditional_kl)
    root = float(retention_bound(head.shape[-1]).sqrt())
    mu = ((1 + root) * second.smallest - (1 - root) * second.largest) / 2
    small = mu / (8 * second.largest * 2.5 * lam)
    fall = loss("T", 0.0, potential) - loss("T", small, potential)
    promised = small * mu / 2 * float(found.energy)
    return (
        (-change - eta * gain / 2) / (eta * gain) if gain > 0 else float("nan"),
        (fall - promised) / promised if mu > 0 else float("nan"),
    )


def dense_spectrum(
    network: nn.Module, images: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor]:
    """Return m and M from the dense Jacobian, for small networks.

    Args:
        network: any.
        images: (N, D).
        first: (N, K), a.
        second: (N, K), b, independent of a.

    Returns:
        (m, M).
    """
    parameters = dict(network.named_parameters())

    def outputs(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(network, values, (images,)).flatten()

    blocks = torch.func.jacrev(outputs)(parameters)
    dense = torch.cat([b.flatten(1) for b in blocks.values()], 1).detach() / len(images) ** 0.5
    basis, _ = torch.linalg.qr(torch.stack([first.flatten(), second.flatten()], 1))
    values = torch.linalg.eigvalsh(basis.T @ dense @ dense.T @ basis)
    return values[0], values[1]
