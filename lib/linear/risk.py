"""Transfer risk: measured on inputs, or exact on tasks that are symmetric about the teacher."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lib.linear.checks import as_tensor, prepare, to_float64
from lib.linear.loss import logits

_RIGHT_ANGLE = math.pi / 2
_CHUNK = 4096  # angles integrated at once, which bounds the memory


def transfer_risk(student: Tensor, teacher: Tensor, inputs: Tensor) -> Tensor:
    r"""Return the share of inputs on which student and teacher disagree.

    $$R(h) = P[h(x) \ne h^*(x)], \qquad h(x) = 1\{w^\top x \ge 0\}$$

    **Source**: Phuong & Lampert, Eq. 4, as a Monte Carlo mean over the inputs given.

    Args:
        student: (..., d).
        teacher: (..., d).
        inputs: (..., m, d), held-out examples; leading dimensions broadcast, so many students can
            be tested on one set.

    Returns:
        (...), in [0, 1].

    Raises:
        ValueError: if shapes do not fit, or a value is NaN or infinite.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [2.0, 1.0], [-1.0, -2.0], [2.0, -1.0]])
        >>> transfer_risk(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), x)
        tensor(0.2500)
    """
    (inputs, student, teacher), dtype = prepare(inputs, student=student, teacher=teacher)
    wrong = (logits(inputs, student) >= 0) != (logits(inputs, teacher) >= 0)
    return wrong.to(torch.float64).mean(-1).to(dtype)


def expected_risk(angle: float | Tensor, task) -> Tensor:
    r"""Return the exact transfer risk of a student at an angle to the teacher.

    For inputs whose law is symmetric under rotations about the teacher, the risk depends on the
    student only through its signed angle phi to the teacher. An input at boundary angle
    y = pi/2 - a lies on the wrong side with probability P[T > tan y / tan phi], where T is the
    first coordinate of a uniform point on the unit sphere of dimension d - 2. Swapping the two
    expectations leaves one integral of the law of y,

    $$R(\varphi) = \tfrac12\, E_T\big[ P[y \le \arctan(|T| \tan \varphi)] \big]
      \ \text{ for } \varphi \le \pi/2, \qquad R(\pi - \varphi) = 1 - R(\varphi).$$

    In particular R(phi) <= P[y <= phi] / 2. The integral is done by a double exponential rule on
    the pieces where its integrand is smooth; the error is below 1e-10.

    **Source**: Phuong & Lampert, Eq. 4, on the tasks of Section 5.1; the formula is ours.

    Args:
        angle: (...) or number, signed angle in [0, pi], see `lib.linear.angle`.
        task: has `dimension`, `boundary_mass(y)` and, where that has kinks, `breakpoints`.

    Returns:
        (...) in [0, 1], of the angle's dtype.

    Raises:
        ValueError: if an angle is outside [0, pi], or the task has no `boundary_mass`.

    Example:
        In the plane, an angle that is uniform gives the share of the circle between the boundaries.

        >>> from lib.linear.tasks import PolynomialAngleTask
        >>> expected_risk(torch.tensor(torch.pi / 5), PolynomialAngleTask(2, 1.0))
        tensor(0.2000)
    """
    if not (hasattr(task, "dimension") and hasattr(task, "boundary_mass")):
        raise ValueError(
            f"task must have dimension and boundary_mass, got {type(task).__name__}; "
            "use transfer_risk on inputs drawn from it"
        )
    (angle,), dtype = to_float64(angle=as_tensor(angle))
    if not bool(((angle >= 0) & (angle <= math.pi + 1e-6)).all()):
        raise ValueError(
            f"angle must lie in [0, pi], got values from {float(angle.min()):.6g} to "
            f"{float(angle.max()):.6g}; use angle(student, teacher, signed=True)"
        )
    acute = torch.minimum(angle, (math.pi - angle).clamp(min=0)).flatten()
    if task.dimension == 2:  # |T| = 1
        risk = task.boundary_mass(acute) / 2
    else:
        risk = torch.cat([_acute_risk(chunk, task) for chunk in acute.split(_CHUNK)])
    risk = risk.reshape(angle.shape)
    return torch.where(angle > _RIGHT_ANGLE, 1 - risk, risk).to(dtype)


def _acute_risk(acute: Tensor, task) -> Tensor:
    """R for d >= 3: |T| = sin(psi), psi with density proportional to cos(psi)^(d-3)."""
    power = task.dimension - 3
    longest = min(_RIGHT_ANGLE, 9 / math.sqrt(max(power, 1)))  # cos(psi)^power < 1e-17 beyond
    sine, cosine = torch.sin(acute).unsqueeze(-1), torch.cos(acute).unsqueeze(-1)
    kinks = torch.tensor(getattr(task, "breakpoints", ()), dtype=acute.dtype, device=acute.device)
    ratio = torch.tan(kinks) * cosine / sine.clamp(min=torch.finfo(acute.dtype).tiny)
    scale = torch.atan2(cosine, sine)  # of the psi where arctan(|T| tan phi) turns over
    edges = torch.cat([torch.zeros_like(sine), torch.asin(ratio.clamp(0, 1)), scale], -1)
    edges = torch.cat([edges, torch.full_like(sine, longest)], -1).clamp(0, longest)
    edges = edges.sort(-1).values
    nodes, weights = _double_exponential_rule(acute.device)
    width = edges.diff(dim=-1).unsqueeze(-1)
    psi = edges[..., :-1, None] + width * nodes
    y = torch.atan2(torch.sin(psi) * sine.unsqueeze(-1), cosine.unsqueeze(-1))
    integrand = torch.cos(psi) ** power * task.boundary_mass(y)
    log_normaliser = math.lgamma((power + 1) / 2) - math.lgamma((power + 2) / 2)
    normaliser = math.sqrt(math.pi) / 2 * math.exp(log_normaliser)
    return (integrand * weights * width).sum((-1, -2)) / (2 * normaliser)


def _double_exponential_rule(device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights on (0, 1): x = sigmoid(pi sinh t), t equidistant; x^k at 0 does no harm."""
    step = 1 / 20
    t = step * torch.arange(-70, 71, dtype=torch.float64, device=device)
    x = torch.sigmoid(math.pi * torch.sinh(t))
    return x, step * math.pi * torch.cosh(t) * x * torch.sigmoid(-math.pi * torch.sinh(t))
