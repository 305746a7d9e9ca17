"""What the page "The loss up close" calls: students of a sublevel set, and the constants there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from lib.book.figures import colours
from lib.linear import (
    cross_entropy,
    cross_entropy_gradient,
    cross_entropy_hessian,
    gradient_dominance,
    logits,
    project_onto_span,
    soft_labels,
    strong_convexity,
    sublevel_interval,
)
from lib.linear.convexity import smallest_eigenvalue

_BISECTIONS = 60


def plain_loss(weights: Tensor, inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the loss up to its constant L*, in the shortest form: mean of log(1 + e^u) - y u.

    For automatic differentiation, as a route of its own beside `lib.linear`.

    **Source**: Phuong & Lampert, Eq. 1.

    Args:
        weights: (d,).
        inputs: (n, d), rows are examples.
        teacher: (d,).

    Returns:
        A scalar, in nats.

    Example:
        >>> x = torch.ones(1, 1, dtype=torch.float64)
        >>> abs(plain_loss(0 * x[0], x, x[0]).item() - math.log(2)) < 1e-15
        True
    """
    u = inputs @ weights
    return (softplus(u) - soft_labels(inputs, teacher) * u).mean()


def minimise_elsewhere(inputs: Tensor, teacher: Tensor, start: Tensor, method: str) -> Tensor:
    """Minimise the loss with SciPy.

    Args:
        inputs: (n, d) float64.
        teacher: (d,) float64.
        start: (d,) float64.
        method: of `scipy.optimize.minimize`: "BFGS", "L-BFGS-B" or "trust-ncg".

    Returns:
        (d,), the weights where the solver stopped.

    Example:
        >>> x, w_star = torch.eye(2, dtype=torch.float64), torch.tensor([1.0, -1.0]).double()
        >>> found = minimise_elsewhere(x, w_star, 0 * w_star, "BFGS")
        >>> torch.allclose(found, w_star, atol=1e-6)
        True
    """
    from scipy.optimize import minimize

    def value_and_slope(w):
        w = torch.from_numpy(w)
        slope = cross_entropy_gradient(w, inputs, teacher)
        return cross_entropy(w, inputs, teacher).item(), slope.numpy()

    options = {"gtol": 1e-13, "maxiter": 5000} | ({"ftol": 0} if method == "L-BFGS-B" else {})
    hessian = {"hess": lambda w: cross_entropy_hessian(torch.from_numpy(w), inputs).numpy()}
    result = minimize(
        value_and_slope,
        start.numpy(),
        jac=True,
        method=method,
        options=options,
        **(hessian if method == "trust-ncg" else {}),
    )
    return torch.from_numpy(result.x)


def sublevel_students(
    inputs: Tensor, teacher: Tensor, level: float, count: int, generator: torch.Generator
) -> Tensor:
    """Draw students in the data span whose loss is at most a level, half of them on the border.

    Each lies on a random ray in the span from the teacher's projection; the border is found by
    bisection, and every second student stops at a random share of the way.

    Args:
        inputs: (n, d) float64.
        teacher: (d,) float64.
        level: l, > 0.
        count: how many.
        generator: source of the rays.

    Returns:
        (count, d).

    Example:
        >>> x, w_star = torch.eye(2, dtype=torch.float64), torch.tensor([1.0, -1.0]).double()
        >>> students = sublevel_students(x, w_star, 0.1, 6, torch.Generator().manual_seed(0))
        >>> cross_entropy(students, x, w_star)[::2]
        tensor([0.1000, 0.1000, 0.1000], dtype=torch.float64)
    """
    shape = (count, inputs.shape[-1])
    rays = torch.randn(shape, generator=generator, dtype=torch.float64)
    rays = project_onto_span(inputs, rays)
    centre = project_onto_span(inputs, teacher)
    loss = lambda reach: cross_entropy(centre + reach[:, None] * rays, inputs, teacher)  # noqa: E731
    low, high = torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
    while bool((inside := loss(high) <= level).any()):
        high = torch.where(inside, 2 * high, high)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        inside = loss(middle) <= level
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    share = torch.rand(count, generator=generator, dtype=torch.float64)
    share[::2] = 1.0
    return centre + (share * low)[:, None] * rays


def corner_students(inputs: Tensor, teacher: Tensor, level: float) -> Tensor:
    """Return the students that spend the whole level on one example: 2 n corners of the set.

    Their logits are the teacher's but for one, which stands at an end of its interval. There the
    curvature is smallest.

    Args:
        inputs: (n, d) float64 of rank n <= d.
        teacher: (d,) float64.
        level: l, > 0.

    Returns:
        (2 n, d), in the data span, each of loss l.

    Example:
        >>> x, w_star = torch.eye(2, dtype=torch.float64), torch.tensor([1.0, -1.0]).double()
        >>> cross_entropy(corner_students(x, w_star, 0.1), x, w_star)
        tensor([0.1000, 0.1000, 0.1000, 0.1000], dtype=torch.float64)
    """
    n = inputs.shape[-2]
    z = logits(inputs, teacher)
    inverse = torch.linalg.pinv(inputs)
    ends = sublevel_interval(z, n * level)
    moved = torch.cat([torch.diag(end - z) for end in ends])
    return project_onto_span(inputs, teacher) + moved @ inverse.mT


def pair_curvature(first: Tensor, second: Tensor, inputs: Tensor) -> Tensor:
    r"""Return the mean curvature of the loss between students, seen from the second.

    $$\frac{2}{|v - w|^2} \big( L^1(v) - L^1(w) - \nabla L^1(w)^\intercal (v - w) \big)$$

    The bracket is the distillation loss of v with w as its teacher, which is how it is computed:
    nothing cancels.

    **Source**: Phuong & Lampert, Eq. 30.

    Args:
        first: (..., d), v.
        second: (..., d), w, different from v.
        inputs: (n, d).

    Returns:
        (...), >= 0.

    Example:
        >>> x = torch.eye(1, dtype=torch.float64)  # near w = 0 the curvature is 1/4
        >>> round(pair_curvature(1e-6 * x[0], 0 * x[0], x).item(), 6)
        0.25
    """
    return 2 * cross_entropy(first, inputs, second) / (first - second).square().sum(-1)


def log_least_curvature(students: Tensor, inputs: Tensor) -> Tensor:
    r"""Return the logarithm of the Hessian's least eigenvalue on the data span.

    With G = X X^T (rows are examples) and slopes D = diag(sigma'(u_i)), it is the reciprocal of the
    largest eigenvalue of n D^{-1/2} G^{-1} D^{-1/2}, which keeps its digits when slopes underflow.

    Args:
        students: (..., d) float64.
        inputs: (n, d) float64 of rank n <= d.

    Returns:
        (...).

    Example:
        >>> x = torch.eye(2, dtype=torch.float64)  # sigma'(0) / n
        >>> round(log_least_curvature(torch.zeros(2).double(), x).exp().item(), 6)
        0.125
    """
    u = logits(inputs, students)
    log_slopes = logsigmoid(u) + logsigmoid(-u)
    least = log_slopes.amin(-1, keepdim=True)
    root = ((least - log_slopes) / 2).exp()
    gram = torch.linalg.inv(inputs @ inputs.mT)
    scaled = root.unsqueeze(-1) * gram * root.unsqueeze(-2)
    largest = torch.linalg.eigvalsh(scaled)[..., -1]
    return least[..., 0] - torch.log(inputs.shape[-2] * largest)


def dominance_ratio(students: Tensor, inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return half the squared gradient norm over the loss, $|\nabla L^1|^2 / (2 L^1)$.

    **Source**: Phuong & Lampert, Eq. 36.

    Args:
        students: (..., d), none of them a minimiser.
        inputs: (n, d).
        teacher: (d,).

    Returns:
        (...).

    Example:
        >>> x = torch.eye(1, dtype=torch.float64)  # near a minimum at logit 0: the curvature 1/4
        >>> round(dominance_ratio(1e-6 * x[0], x, 0 * x[0]).item(), 6)
        0.25
    """
    slope = cross_entropy_gradient(students, inputs, teacher)
    return slope.square().sum(-1) / (2 * cross_entropy(students, inputs, teacher))


def farthest_logit_bound(teacher_logits: Tensor, level: float) -> Tensor:
    r"""Return the closed bound on the logits whose loss is at most a level.

    $$K = \frac{b + H(y)}{\min(y, 1 - y)}, \qquad \{u : \ell(u) \le b\} \subset [-K, K]$$

    **Source**: Phuong & Lampert, proof of Theorem 9, where K exists; the formula is ours.

    Args:
        teacher_logits: (...) float64, z, with y = sigma(z).
        level: b, in nats.

    Returns:
        (...).

    Example:
        >>> round(farthest_logit_bound(torch.tensor(0.0), 1.0).item(), 4)  # 2 (1 + log 2)
        3.3863
    """
    size = teacher_logits.abs()
    rarer = torch.sigmoid(-size)
    return (level + size * rarer - logsigmoid(size)) / rarer


def decades_lost(
    n: int, dimension: int, norm: float, repeats: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return how many powers of ten the constants lie below 1, proven and found.

    Inputs are standard Gaussian, the teacher has a given norm, and the set is W = {L <= L(0)}.

    Args:
        n: examples, at most `dimension`.
        dimension: d.
        norm: |w*|, > 0.
        repeats: how many transfer sets.
        generator: source of inputs and teachers.

    Returns:
        By name, (repeats,): "mu" of Theorem 9, the least "curvature" found, "c" of our
        proposition, the least "dominance" found, and the closed form lambda exp(-K) / n as
        "bound".

    Example:
        >>> lost = decades_lost(3, 5, 1.0, 4, torch.Generator().manual_seed(0))
        >>> bool((lost["mu"] >= lost["curvature"]).all() and (lost["c"] >= lost["dominance"]).all())
        True
    """
    found = {"mu": [], "curvature": [], "c": [], "dominance": [], "bound": []}
    for _ in range(repeats):
        x = torch.randn(n, dimension, generator=generator, dtype=torch.float64)
        teacher = torch.randn(dimension, generator=generator, dtype=torch.float64)
        teacher *= norm / torch.linalg.vector_norm(teacher)
        level = cross_entropy(torch.zeros_like(teacher), x, teacher).item()
        corners = corner_students(x, teacher, level)
        students = torch.cat([corners, sublevel_students(x, teacher, level, 60, generator)])
        found["mu"].append(strong_convexity(x, teacher, level, log=True))
        found["curvature"].append(log_least_curvature(corners, x).min())
        found["c"].append(gradient_dominance(x, teacher, level).log())
        found["dominance"].append(dominance_ratio(students, x, teacher).min().log())
        farthest = farthest_logit_bound(logits(x, teacher), n * level).max()
        found["bound"].append(torch.log(smallest_eigenvalue(x) / n) - farthest)
    return {name: -torch.stack(values) / math.log(10) for name, values in found.items()}


def draw_logit_loss(ax: Axes, label: float) -> None:
    """Draw the loss of one logit with its asymptotes, and the loss of the hard label beside it.

    Args:
        ax: where to draw.
        label: soft label in (0, 1).

    Example:
        >>> import matplotlib.pyplot as plt
        >>> fig, ax = plt.subplots()
        >>> draw_logit_loss(ax, 0.5)
        >>> [line.get_label() for line in ax.lines]
        ['soft label 0.5', 'asymptotes', 'hard label 1']
        >>> plt.close(fig)
    """
    u = torch.linspace(-4, 6, 301, dtype=torch.float64)
    entropy = -label * math.log(label) - (1 - label) * math.log(1 - label)
    soft = softplus(u) - label * u - entropy
    straight = torch.maximum(-label * u, (1 - label) * u) - entropy
    ax.plot(u, soft, color=colours["blue"], label=f"soft label {label:g}")
    ax.plot(u, straight, ":", color=colours["blue"], lw=1.4, label="asymptotes")
    ax.plot(u, softplus(-u), "--", color=colours["orange"], label="hard label 1")
    ax.set(ylabel=r"loss $\ell(u)$ (nats)", ylim=(-0.05, 1.5))


def draw_decades(ax: Axes, places: Sequence[float], curves: Sequence[dict[str, Tensor]]) -> None:
    """Draw what `decades_lost` found: medians, and bands that hold 95 % of the transfer sets.

    Args:
        ax: where to draw.
        places: (T,) positions on the horizontal axis.
        curves: T results of `decades_lost`.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> lost = {name: torch.zeros(2).double() for name in ("mu", "curvature", "c")}
        >>> lost |= {"dominance": lost["c"], "bound": lost["c"]}
        >>> fig, ax = plt.subplots()
        >>> draw_decades(ax, [1.0, 2.0], [lost, lost])
        >>> len(ax.lines), len(ax.collections)
        (5, 4)
        >>> plt.close(fig)
    """
    looks = {
        "mu": ("vermilion", "-", "o", "μ, proven"),
        "curvature": ("orange", "--", "s", "curvature, found"),
        "c": ("blue", "-.", "^", "our c, proven"),
        "dominance": ("green", ":", "D", "steepness, found"),
    }
    shares = torch.tensor([0.025, 0.5, 0.975], dtype=torch.float64)
    for name, (colour, style, marker, label) in looks.items():
        values = torch.stack([curve[name] for curve in curves])
        low, middle, high = torch.quantile(values, shares, dim=1)
        ax.plot(places, middle, style, marker=marker, color=colours[colour], label=label)
        ax.fill_between(places, low, high, color=colours[colour], alpha=0.12, linewidth=0)
    bound = torch.stack([torch.quantile(curve["bound"], 0.5) for curve in curves])
    ax.plot(places, bound, color="#262626", linestyle=(0, (5, 3)), lw=1.2, label="λ exp(−K) / n")
