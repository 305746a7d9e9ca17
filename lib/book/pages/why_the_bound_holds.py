"""What the chapter "Why the bound holds" computes: a task that better angles harm, a bound."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lib.linear import angle

_STEEP_HALF_LENGTH = 0.2  # of the inputs (1, s, 1 + s)
_FLAT_HALF_LENGTH = 0.05  # of the inputs (0, -1, 1/4 + t)


class Events(NamedTuple):
    """What the proof of Theorem 3 distinguishes, for m test inputs and k transfer sets.

    Attributes:
        easy: (m, k) bool, the test input lies within beta of the teacher.
        good: (m, k) bool, the transfer set holds a good teaching point.
        wrong: (m, k) bool, student and teacher disagree.
    """

    easy: Tensor
    good: Tensor
    wrong: Tensor


def sort_events(
    students: Tensor, inputs: Tensor, test: Tensor, teacher: Tensor, beta: float
) -> Events:
    r"""Sort all pairs of a test input and a transfer set by the events of the proof of Theorem 3.

    $$\text{easy: } \bar\alpha(w_*, x) < \beta \qquad
      \text{good: } \min_i \bar\alpha(w_*, x_i) < \pi/2 - \beta$$

    **Source**: Phuong & Lampert, Eq. 22-24.

    Args:
        students: (k, d), one for each transfer set.
        inputs: (k, n, d), the transfer sets.
        test: (m, d), test inputs.
        teacher: (d,).
        beta: in [0, pi/2].

    Returns:
        The `Events`.

    Raises:
        ValueError: if beta is outside [0, pi/2].

    Example:
        The example is good, the student lies along it; of two test inputs one is easy.

        >>> x = torch.tensor([[1.0, 0.1]])
        >>> test = torch.tensor([[1.0, 0.2], [0.1, -2.0]])
        >>> events = sort_events(x, x[None], test, torch.tensor([1.0, 0.0]), beta=math.pi / 4)
        >>> events.easy.T.tolist(), events.good.T.tolist(), events.wrong.T.tolist()
        ([[True, False]], [[True, True]], [[False, True]])
    """
    if not 0 <= beta <= math.pi / 2:
        raise ValueError(f"beta must lie in [0, pi/2], got {beta!r}; it is in radians")
    wrong = (test @ students.mT >= 0) != (test @ teacher >= 0)[:, None]
    easy = angle(test, teacher) < beta
    good = (angle(inputs, teacher) < math.pi / 2 - beta).any(-1)
    return Events(easy[:, None].expand_as(wrong), good.expand_as(wrong), wrong)


def tilting_inputs(
    n: int | tuple[int, ...],
    generator: torch.Generator,
    flat_share: float = 1 / 3,
    thickness: float = 1e-4,
) -> Tensor:
    r"""Draw inputs of a task in three dimensions on which a second example harms the student.

    The teacher is (0, 0, 1). An input is one of two kinds, with a random sign:

    $$\text{steep: } (1, s, 1 + s),\ |s| \le 0.2 \qquad
      \text{flat: } (0, -1, 1/4 + t),\ |t| \le 0.05$$

    with s and t uniform, and a uniform noise in a cube of half side `thickness` on top, so that the
    law has a density. One example makes no errors; two steep ones span a plane whose projection of
    the teacher, (1, 1, 2)/3, is wrong on every flat input.

    **Source**: ours, against a remark in Phuong & Lampert, Section 4.3.

    Args:
        n: number of inputs, or a shape.
        generator: source of randomness.
        flat_share: probability of a flat input, in (0, 1).
        thickness: half side of the noise, in [0, 0.01].

    Returns:
        (*n, 3) float64.

    Raises:
        ValueError: if flat_share or thickness is outside its range.

    Example:
        Without noise the steep inputs lie in the plane z = x + y.

        >>> x = tilting_inputs(100, torch.Generator().manual_seed(0), thickness=0.0)
        >>> steep = x[x[:, 0] != 0]
        >>> float((steep[:, 2] - steep[:, 0] - steep[:, 1]).abs().max()) < 1e-15
        True
    """
    if not 0 < flat_share < 1:
        raise ValueError(f"flat_share must lie in (0, 1), got {flat_share!r}; 1/3 harms most")
    if not 0 <= thickness <= 0.01:
        raise ValueError(f"thickness must lie in [0, 0.01], got {thickness!r}; 1e-4 is thin enough")
    shape = n if isinstance(n, tuple) else (n,)
    options = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    flat = torch.rand(shape, **options) < flat_share
    along = 2 * torch.rand(shape, **options) - 1
    noise = thickness * (2 * torch.rand((*shape, 3), **options) - 1)
    sign = torch.where(torch.rand(shape, **options) < 0.5, -1.0, 1.0).to(torch.float64)
    s, t = _STEEP_HALF_LENGTH * along, _FLAT_HALF_LENGTH * along
    one = torch.ones_like(s)
    steep_input = torch.stack([one, s, 1 + s], dim=-1)
    flat_input = torch.stack([0 * one, -one, 1 / 4 + t], dim=-1)
    return sign.unsqueeze(-1) * (torch.where(flat.unsqueeze(-1), flat_input, steep_input) + noise)


def best_point_bound(task, n: int | Tensor, nodes: int = 20_000) -> Tensor:
    r"""Return the bound that compares each test input with the best teaching point, without beta.

    $$E[R] \le E_a\big[ p(\pi/2 - a)^n \big] = \int_0^1 p\big(y(u)\big)^n\, du$$

    where a is the angle of a test input and y(u) the boundary angle with mass u. A midpoint rule
    after the substitution u = v^8, which puts nodes where inputs are close to the boundary.

    **Source**: ours; the argument is that of Phuong & Lampert, proof of Theorem 3.

    Args:
        task: has `angle_tail(theta)` and `boundary_angle(mass)`.
        n: (...) or integer, number of examples >= 1.
        nodes: of the midpoint rule, >= 1.

    Returns:
        (...) float64, in [0, 1].

    Raises:
        ValueError: if n or nodes is below 1.

    Example:
        For a uniform angle the integrand is (1 - u)^n.

        >>> from lib.linear import PolynomialAngleTask
        >>> best_point_bound(PolynomialAngleTask(10, 1.0), torch.tensor([1, 4]))
        tensor([0.5000, 0.2000], dtype=torch.float64)
    """
    n = torch.as_tensor(n, dtype=torch.float64)
    if bool((n < 1).any()) or nodes < 1:
        raise ValueError(f"n and nodes must be at least 1, got n = {n.tolist()}, nodes = {nodes}")
    v = (torch.arange(nodes, dtype=torch.float64) + 0.5) / nodes
    tail = task.angle_tail(task.boundary_angle(v**8))
    return (tail ** n.unsqueeze(-1) * 8 * v**7).mean(-1)
