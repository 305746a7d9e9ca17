r"""Transfer tasks: a teacher and a distribution of inputs with a known angle to it.

All tasks here are built like the one of Section 5.1. The teacher is the first unit vector. An angle
a is drawn from a law on [low, high], a direction z uniformly among the unit vectors at angle a to
the teacher, a length nu from the standard normal law, and the input is x = nu z. What
distinguishes the tasks is the tail of the angle,

$$p(\theta) = P[a \ge \theta] = \left(\frac{high - \theta}{high - low}\right)^\kappa$$

clipped to [0, 1]. Near the decision boundary it is the small angle to the boundary, pi/2 - a, that
carries the information, so the tasks also offer that law without the loss of digits:
`boundary_mass(y)` is P[pi/2 - a <= y] and `boundary_angle` its inverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lib.linear.checks import as_tensor, check_count, check_nonzero, check_number, prepare
from lib.linear.geometry import angle

_RIGHT_ANGLE = math.pi / 2


class _ConeTask:
    """What the tasks share; a subclass has `dimension` and fills in low, high and kappa."""

    dimension: int

    @property
    def _law(self) -> tuple[float, float, float]:
        """(pi/2 - high, high - low, kappa): the boundary angle is gap + width U^(1/kappa)."""
        raise NotImplementedError

    @property
    def teacher(self) -> Tensor:
        """The teacher's weights, the first unit vector: (d,) float64."""
        return torch.eye(1, self.dimension, dtype=torch.float64)[0]

    @property
    def breakpoints(self) -> tuple[float, float]:
        """Boundary angles between which the law of the angle is smooth."""
        gap, width, _ = self._law
        return gap, gap + width

    def boundary_angle(self, mass: float | Tensor) -> Tensor:
        """Return the y with P[pi/2 - a <= y] = mass, the inverse of `boundary_mass`.

        Args:
            mass: (...) or number in [0, 1].

        Returns:
            (...) float64, in [0, pi/2].

        Raises:
            ValueError: if a mass is outside [0, 1].

        Example:
            >>> PolynomialAngleTask(3, 2.0).boundary_angle(0.25) / torch.pi
            tensor(0.2500, dtype=torch.float64)
        """
        mass = _numbers("mass", mass, 0.0, 1.0)
        gap, width, kappa = self._law
        return gap + width * mass ** (1 / kappa)

    def boundary_mass(self, boundary_angle: float | Tensor) -> Tensor:
        """Return P[pi/2 - a <= y], the probability of an input within y of the decision boundary.

        Args:
            boundary_angle: (...) or number, y in [0, pi/2].

        Returns:
            (...) float64.

        Raises:
            ValueError: if an angle is outside [0, pi/2].

        Example:
            >>> PolynomialAngleTask(3, 2.0).boundary_mass(torch.pi / 4)
            tensor(0.2500, dtype=torch.float64)
        """
        y = _numbers("boundary_angle", boundary_angle, 0.0, _RIGHT_ANGLE)
        gap, width, kappa = self._law
        return ((y - gap) / width).clamp(0, 1) ** kappa

    def angle_tail(self, theta: float | Tensor) -> Tensor:
        """Return p(theta) = P[a >= theta], the reverse distribution function of the angle.

        **Source**: Phuong & Lampert, Eq. 15.

        Args:
            theta: (...) or number, in [0, pi/2].

        Returns:
            (...) float64.

        Raises:
            ValueError: if an angle is outside [0, pi/2].

        Example:
            >>> PolynomialAngleTask(3, 1.0).angle_tail(torch.pi / 8)
            tensor(0.7500, dtype=torch.float64)
        """
        theta = _numbers("theta", theta, 0.0, _RIGHT_ANGLE)
        gap, width, kappa = self._law
        return ((_RIGHT_ANGLE - gap - theta) / width).clamp(0, 1) ** kappa

    def sample(self, n: int | tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw inputs x = nu z.

        Args:
            n: number of inputs, or a shape: (1000, 20) draws 1000 transfer sets of 20.
            generator: source of randomness; the inputs lie on its device.

        Returns:
            (*n, d) float64.

        Raises:
            ValueError: if a count is below 1.

        Example:
            >>> task = PolynomialAngleTask(50, 1.0)
            >>> task.sample((4, 3), torch.Generator().manual_seed(0)).shape
            torch.Size([4, 3, 50])
        """
        shape = tuple(check_count("n", size) for size in (n if isinstance(n, tuple) else (n,)))
        options = {"generator": generator, "device": generator.device, "dtype": torch.float64}
        boundary = self.boundary_angle(1 - torch.rand(shape, **options))
        length = torch.randn(shape, **options)
        inputs = torch.randn((*shape, self.dimension), **options)
        around = inputs[..., 1:]
        radius = torch.linalg.vector_norm(around, dim=-1)
        around.mul_((length * torch.cos(boundary) / radius).unsqueeze(-1))
        inputs[..., 0] = length * torch.sin(boundary)
        return inputs


@dataclass(frozen=True)
class PolynomialAngleTask(_ConeTask):
    r"""The task of the data-geometry experiment: angles with a polynomial tail.

    $$p(\theta) = \left(1 - \tfrac{2}{\pi}\theta\right)^\kappa$$

    kappa = 1 spreads the angle uniformly over [0, pi/2]; a larger kappa keeps inputs away from the
    decision boundary, a smaller one piles them up there.

    **Source**: Phuong & Lampert, Section 5.1.

    Args:
        dimension: d >= 2.
        kappa: > 0.

    Raises:
        ValueError: if the dimension is below 2 or kappa is not positive.

    Example:
        >>> PolynomialAngleTask(1000, 2.0).angle_tail(torch.pi / 4)
        tensor(0.2500, dtype=torch.float64)
    """

    dimension: int
    kappa: float

    def __post_init__(self):
        check_count("dimension", self.dimension, 2)
        check_number("kappa", self.kappa, 0.0, open_low=True)

    @property
    def _law(self):
        return 0.0, _RIGHT_ANGLE, self.kappa


@dataclass(frozen=True)
class MarginAngleTask(_ConeTask):
    """A task with an angular margin: angles uniform on [0, pi/2 - margin], none beyond.

    **Source**: Phuong & Lampert, Section 4.2, the margin case of Corollary 4.

    Args:
        dimension: d >= 2.
        margin: the empty wedge's half angle, in (0, pi/2).

    Raises:
        ValueError: if the dimension is below 2 or the margin is outside (0, pi/2).

    Example:
        >>> MarginAngleTask(10, torch.pi / 4).angle_tail(torch.pi / 8)
        tensor(0.5000, dtype=torch.float64)
    """

    dimension: int
    margin: float

    def __post_init__(self):
        check_count("dimension", self.dimension, 2)
        check_number("margin", self.margin, 0.0, _RIGHT_ANGLE, open_low=True, open_high=True)

    @property
    def _law(self):
        return self.margin, _RIGHT_ANGLE - self.margin, 1.0


@dataclass(frozen=True)
class BandAngleTask(_ConeTask):
    """A task whose angles are uniform on a band [low, high].

    A narrow band just above pi/4 is the counterexample to Corollary 5 with c > 1: see
    `lib.linear.polynomial_risk_bound`.

    Args:
        dimension: d >= 2.
        low: smallest angle, >= 0.
        high: largest angle, in (low, pi/2].

    Raises:
        ValueError: if the dimension is below 2 or not 0 <= low < high <= pi/2.

    Example:
        >>> BandAngleTask(4, 0.5, 1.0).angle_tail(0.75)
        tensor(0.5000, dtype=torch.float64)
    """

    dimension: int
    low: float
    high: float

    def __post_init__(self):
        check_count("dimension", self.dimension, 2)
        check_number("low", self.low, 0.0, _RIGHT_ANGLE, open_high=True)
        check_number("high", self.high, self.low, _RIGHT_ANGLE, open_low=True)

    @property
    def _law(self):
        return _RIGHT_ANGLE - self.high, self.high - self.low, 1.0


@dataclass(frozen=True)
class PlanarAngleTask(_ConeTask):
    r"""A task in the plane: a polynomial tail, and a wedge of zero mass along the boundary.

    $$p(\theta) = \left(1 - \frac{\theta}{\pi/2 - margin}\right)_+^\kappa$$

    Args:
        kappa: > 0; large for data aligned with the teacher, small for data along the boundary.
        margin: the empty wedge's half angle, in [0, pi/2).

    Raises:
        ValueError: if kappa is not positive or the margin is outside [0, pi/2).

    Example:
        >>> PlanarAngleTask(2.0, margin=torch.pi / 4).angle_tail(torch.pi / 8)
        tensor(0.2500, dtype=torch.float64)
    """

    kappa: float
    margin: float = 0.0

    dimension = 2

    def __post_init__(self):
        check_number("kappa", self.kappa, 0.0, open_low=True)
        check_number("margin", self.margin, 0.0, _RIGHT_ANGLE, open_high=True)

    @property
    def _law(self):
        return self.margin, _RIGHT_ANGLE - self.margin, self.kappa


_FIGURE_1 = {
    "A": PlanarAngleTask(kappa=3.0),
    "B": PlanarAngleTask(kappa=2.0, margin=math.pi / 6),
    "C": PlanarAngleTask(kappa=0.3),
}


def figure1_task(name: str) -> PlanarAngleTask:
    """Return an illustrative task of the kind of Figure 1, in the plane.

    A: mass aligned with the teacher. B: aligned as well, with an empty wedge along the decision
    boundary. C: mass concentrated along the boundary. The paper draws them without formulas; the
    exponents and the wedge are ours.

    **Source**: Phuong & Lampert, Figure 1.

    Args:
        name: "A", "B" or "C".

    Returns:
        A `PlanarAngleTask`.

    Raises:
        ValueError: if there is no task of that name.

    Example:
        >>> figure1_task("B").angle_tail(0.34 * torch.pi)  # nothing beyond 60 degrees
        tensor(0., dtype=torch.float64)
    """
    if name not in _FIGURE_1:
        raise ValueError(f"name must be one of {', '.join(_FIGURE_1)}, got {name!r}")
    return _FIGURE_1[name]


def empirical_angle_tail(inputs: Tensor, teacher: Tensor) -> Callable[[float | Tensor], Tensor]:
    """Return the angle tail p of data: the share of inputs at an angle of at least theta.

    An input at exactly theta counts, as in Eq. 15.

    **Source**: Phuong & Lampert, Eq. 15.

    Args:
        inputs: (..., n, d), all examples count alike; no zero rows.
        teacher: (d,), non-zero.

    Returns:
        A function of theta (number or tensor of any shape, in [0, pi/2]) with float64 values.

    Raises:
        ValueError: if shapes do not fit, a row or the teacher is zero, or a value is not finite.

    Example:
        >>> p = empirical_angle_tail(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1.0, 0]))
        >>> p(torch.tensor([0.0, 1.0, torch.pi / 2]))
        tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    (inputs, teacher), _ = prepare(inputs, teacher=teacher)
    if teacher.ndim != 1:
        raise ValueError(f"teacher must have shape (d,), got {tuple(teacher.shape)}")
    check_nonzero("teacher", teacher)
    check_nonzero("every row of inputs", inputs)
    angles = angle(inputs, teacher).flatten().sort().values

    def tail(theta: float | Tensor) -> Tensor:
        theta = _numbers("theta", theta, 0.0, _RIGHT_ANGLE, device=angles.device)
        below = torch.searchsorted(angles, theta, right=False)
        return 1 - below.to(torch.float64) / angles.numel()

    return tail


def _numbers(name: str, value: float | Tensor, low: float, high: float, device=None) -> Tensor:
    """Convert to float64; values that rounding in float32 put past the ends are put back."""
    value = as_tensor(value, device).to(torch.float64)
    slack = 1e-6
    if not bool(((value >= low - slack) & (value <= high + slack)).all()):
        raise ValueError(
            f"{name} must lie in [{low:g}, {high:.6g}], got values from "
            f"{float(value.min()):.6g} to {float(value.max()):.6g}"
        )
    return value.clamp(low, high)
