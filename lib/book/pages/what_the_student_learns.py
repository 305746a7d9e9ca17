"""What the chapter "What does the student learn?" draws and computes around the flows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from torch import Tensor

from lib.linear import (
    cross_entropy,
    cross_entropy_gradient,
    gradient_dominance,
    gradient_flow,
    initial_norm_limit,
    logits,
    project_onto_span,
    strong_convexity,
    student_limit,
)
from lib.linear.loss import sigmoid_slope

_REST = 40.0  # e-folds after which a decaying component is below double precision
_DRAWS = 100
_RESOLVED = 1e-18  # share of the first loss below which rounding takes over


def draw_tasks(
    n_sets: int, n: int, dimension: int, teacher_norm: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw transfer sets of Gaussian inputs, each with a teacher in a random direction.

    Args:
        n_sets: number of transfer sets.
        n: examples in each.
        dimension: d.
        teacher_norm: norm of every teacher, > 0.
        generator: source of randomness.

    Returns:
        Inputs (n_sets, n, d) and teachers (n_sets, d), float64.

    Example:
        >>> x, w_star = draw_tasks(3, 2, 5, 4.0, torch.Generator().manual_seed(0))
        >>> x.shape, [round(norm, 9) for norm in w_star.norm(dim=-1).tolist()]
        (torch.Size([3, 2, 5]), [4.0, 4.0, 4.0])
    """
    inputs = torch.randn(n_sets, n, dimension, generator=generator, dtype=torch.float64)
    return inputs, teacher_norm * random_directions((n_sets, dimension), generator)


def random_directions(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw unit vectors, uniform on the sphere of the last dimension.

    Args:
        shape: (..., d).
        generator: source of randomness.

    Returns:
        (..., d), float64, of norm 1.

    Example:
        >>> round(random_directions((7,), torch.Generator().manual_seed(0)).norm().item(), 12)
        1.0
    """
    draw = torch.randn(shape, generator=generator, dtype=torch.float64)
    return draw / draw.norm(dim=-1, keepdim=True)


def slowest_rate(inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the smallest non-zero eigenvalue of the Hessian at the student's limit.

    $$\lambda = \lambda_{\min}^+\big(\nabla^2 L^1(\hat w)\big)
      = \sigma_{\min}\big(n^{-1/2} D^{1/2} X\big)^2, \qquad
      D_{ii} = \sigma(w_*^\top x_i)\,\sigma(-w_*^\top x_i)$$

    Near the limit the student's slowest component decays like exp(-lambda t), and its loss like
    exp(-2 lambda t).

    **Source**: ours; the Hessian is that of Phuong & Lampert, Eq. 32, with the factor 1/n.

    Args:
        inputs: (..., n, d) of full rank, rows are examples.
        teacher: (..., d), w*.

    Returns:
        (...), > 0.

    Example:
        Two orthogonal unit inputs with logit 0: 1/2 times the slope 1/4.

        >>> x = torch.eye(2, 3, dtype=torch.float64)
        >>> round(slowest_rate(x, torch.eye(3, dtype=torch.float64)[2]).item(), 12)
        0.125
    """
    slope = sigmoid_slope(logits(inputs, teacher)) / inputs.shape[-2]
    return torch.linalg.svdvals(slope.sqrt().unsqueeze(-1) * inputs)[..., -1] ** 2


def settling_time(inputs: Tensor, teacher: Tensor, start_norm: Tensor, depth: int) -> Tensor:
    r"""Return a time after which the flow of a balanced deep student has come to rest.

    It is the sum of an allowance for leaving the saddle at zero, ten times
    $|g|^{-1} \log(|\hat w| / |w(0)|)$ for N = 2 and $|g|^{-1} |w(0)|^{2/N - 1}$ beyond, with
    $g = \nabla L^1(0)$, and of 40 e-folds of the slowest component, each of length
    $|\hat w|^{2/N - 2} / \lambda$.

    **Source**: ours, from Phuong & Lampert, Lemma 12, linearised at zero and at the limit.

    Args:
        inputs: (..., n, d) of full rank, rows are examples.
        teacher: (..., d), w*.
        start_norm: (...), $|w(0)|$ > 0, at most of the limit's order.
        depth: N >= 1; the first summand is 0 for N = 1.

    Returns:
        (...), > 0.

    Example:
        One input of norm 1, logit 0: 40 e-folds at rate 1/4.

        >>> x, w_star = torch.eye(1, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)[1]
        >>> round(settling_time(x, w_star, torch.tensor(0.1), 1).item(), 9)
        160.0
    """
    limit = student_limit(inputs, teacher).norm(dim=-1)
    rate = slowest_rate(inputs, teacher) * limit ** (2 - 2 / depth)
    if depth == 1:
        return _REST / rate
    slope = cross_entropy_gradient(torch.zeros_like(teacher), inputs, teacher).norm(dim=-1)
    leaving = torch.log1p(limit / start_norm) if depth == 2 else start_norm ** (2 / depth - 1)
    return 10 * leaving / slope + _REST / rate


def loss_rates(inputs: Tensor, teachers: Tensor) -> Tensor:
    r"""Return how fast the loss decays along flows from zero, and what is known beforehand.

    The rate at a time is $-\frac{d}{dt} \log L = |\nabla L|^2 / L$; times run to 20 over the
    smallest `slowest_rate`. What comes after 18 powers of ten of the loss is rounding.

    **Source**: Phuong & Lampert, proof of Theorem 1, Eq. 8 and 10.

    Args:
        inputs: (sets, n, d) of full rank, rows are examples.
        teachers: (sets, d).

    Returns:
        (sets, 4): the smallest rate seen, twice the `slowest_rate`, and the constant c of Eq. 10,
        from the paper's proof (`lib.linear.strong_convexity`) and from chords
        (`lib.linear.gradient_dominance`).

    Example:
        >>> x, w_star = draw_tasks(3, 2, 4, 1.0, torch.Generator().manual_seed(0))
        >>> seen, _, proof, chords = loss_rates(x, w_star).T
        >>> bool((seen >= 2 * proof).all()), bool((seen >= 2 * chords).all())
        (True, True)
    """
    rate = slowest_rate(inputs, teachers)
    times = torch.cat([torch.zeros(1), torch.logspace(-4, 0, 120)]).double() * _REST / 2
    path = gradient_flow(inputs, teachers, times / rate.min())
    x, w_star = inputs[:, None], teachers[:, None]
    loss = cross_entropy(path, x, w_star)
    seen = cross_entropy_gradient(path, x, w_star).square().sum(-1) / loss
    seen = torch.where(loss > _RESOLVED * loss[:, :1], seen, torch.inf).amin(1)
    tasks = list(zip(inputs, teachers, loss[:, 0].tolist(), strict=True))
    constants = [
        torch.stack([bound(*task) for task in tasks])
        for bound in (strong_convexity, gradient_dominance)
    ]
    return torch.stack([seen, 2 * rate, *constants], dim=-1)


def largest_norms(epsilon: Tensor, limit_norm: Tensor, depth: int, share: float = 0.999) -> Tensor:
    """Return initial norms just below what condition 11a admits.

    Args:
        epsilon: (...), the distances to reach, > 0.
        limit_norm: (...), norms of the limits, > 0; broadcasts.
        depth: N >= 1.
        share: the part of the admitted norm to take, below 1 because 11a is a strict inequality.

    Returns:
        (...), float64.

    Example:
        >>> largest_norms(torch.tensor([3.0]), torch.tensor(3.0), 2, share=0.5)
        tensor([0.7500], dtype=torch.float64)
    """
    epsilon, limit_norm = torch.broadcast_tensors(epsilon, limit_norm)
    pairs = zip(epsilon.flatten().tolist(), limit_norm.flatten().tolist(), strict=True)
    norms = [share * initial_norm_limit(e, norm, depth) for e, norm in pairs]
    return torch.tensor(norms, dtype=torch.float64).reshape(epsilon.shape)


def mean_sine(n: int, dimension: int) -> float:
    r"""Return the mean sine of the angle between a random vector and an n-dimensional subspace.

    $$\mathbb E\, s = \frac{\Gamma(\frac{d-n+1}{2})\, \Gamma(\frac d2)}
      {\Gamma(\frac{d-n}{2})\, \Gamma(\frac{d+1}{2})},
      \qquad s^2 \sim \mathrm{Beta}\big(\tfrac{d-n}{2}, \tfrac n2\big)$$

    **Source**: ours.

    Args:
        n: dimension of the subspace, 1 <= n < dimension.
        dimension: d.

    Returns:
        The mean.

    Example:
        In the plane the mean of |sin| is 2 / pi.

        >>> round(mean_sine(1, 2) * math.pi, 12)
        2.0
    """
    outside = math.lgamma((dimension - n + 1) / 2) - math.lgamma((dimension - n) / 2)
    return math.exp(outside + math.lgamma(dimension / 2) - math.lgamma((dimension + 1) / 2))


def starts_below(
    inputs: Tensor, teacher: Tensor, norm: Tensor, generator: torch.Generator
) -> Tensor:
    """Draw starts of a given norm that satisfy condition 11b, L(w(0)) < L(0).

    A random direction is turned around where that is what it needs, and drawn again where neither
    sign will do.

    **Source**: Phuong & Lampert, Section 4.1, after Theorem 2.

    Args:
        inputs: (..., n, d), rows are examples.
        teacher: (..., d).
        norm: (..., batch), the starts' norms; batch dimensions are those of the teacher.
        generator: source of the directions.

    Returns:
        (..., batch, d).

    Raises:
        RuntimeError: if 100 draws are not enough.

    Example:
        >>> x = torch.eye(1, 2, dtype=torch.float64)
        >>> w = starts_below(x, x[0], torch.tensor(0.5), torch.Generator().manual_seed(0))
        >>> bool(w[0] > 0), round(w.norm().item(), 12)
        (True, 0.5)
    """
    at_zero = cross_entropy(torch.zeros_like(teacher), inputs, teacher)
    shape = (*torch.broadcast_shapes(norm.shape, at_zero.shape), inputs.shape[-1])
    start, done = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape[:-1]).bool()
    for _ in range(_DRAWS):
        fresh = norm.unsqueeze(-1) * random_directions(shape, generator)
        for candidate in (fresh, -fresh):
            below = ~done & (cross_entropy(candidate, inputs, teacher) < at_zero)
            start = torch.where(below.unsqueeze(-1), candidate, start)
            done = done | below
        if bool(done.all()):
            return start
    raise RuntimeError(f"no start below L(0) in {_DRAWS} draws; use a smaller norm")


def share_below(inputs: Tensor, teacher: Tensor, norms: Tensor, directions: Tensor) -> Tensor:
    """Return the share of directions of which one sign satisfies condition 11b, per norm.

    Args:
        inputs: (sets, n, d), rows are examples.
        teacher: (sets, d).
        norms: (T,), initial norms.
        directions: (draws, sets, d), unit vectors.

    Returns:
        (T,), in [0, 1].

    Example:
        With one example a sign always fits while |w(0)| is below twice the limit's norm.

        >>> x, w_star = torch.ones(1, 1, 1).double(), torch.ones(1, 1).double()
        >>> share_below(x, w_star, torch.tensor([0.1, 9.0]), torch.ones(1, 1, 1).double())
        tensor([1., 0.], dtype=torch.float64)
    """
    at_zero = cross_entropy(torch.zeros_like(teacher), inputs, teacher)
    shares = []
    for norm in norms:
        signs = torch.stack([norm * directions, -norm * directions])
        below = (cross_entropy(signs, inputs, teacher) < at_zero).any(0)
        shares.append(below.double().mean())
    return torch.stack(shares)


def lopsided_factors(start: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    r"""Write a vector as a product of two layers of one hidden unit whose norms have a given ratio.

    $$W_1 = \sqrt{\rho / |w|}\; w^\top, \qquad W_2 = \sqrt{|w| / \rho}, \qquad
      |W_1| / |W_2| = \rho$$

    Only rho = 1 is balanced (Eq. 11c).

    **Source**: ours.

    Args:
        start: (d,), w(0), not zero.
        ratio: (...), rho > 0.

    Returns:
        W_1 of shape (..., 1, d) and W_2 of shape (..., 1, 1).

    Example:
        >>> first, second = lopsided_factors(torch.tensor([3.0, 4.0]), torch.tensor(5.0))
        >>> first, second
        (tensor([[3., 4.]]), tensor([[1.]]))
    """
    norm = start.norm()
    first = torch.sqrt(ratio / norm)[..., None, None] * start
    return first, torch.sqrt(norm / ratio)[..., None, None]


def lopsided_distance(start: Tensor, ratio: Tensor, inputs: Tensor, teacher: Tensor) -> Tensor:
    r"""Return the distance from the projection at which `lopsided_factors` end.

    W_1 changes within the data span only, so its part outside, of norm p, is there at the end,
    multiplied by the final W_2 = a. As |W_2|^2 - |W_1|^2 is conserved, too,
    $$a^2 = \frac{m + \sqrt{m^2 + 4 |\hat w|^2}}{2}, \qquad
      m = |W_2(0)|^2 - |W_1(0)|^2 + p^2, \qquad |w(\infty) - \hat w| = a\,p.$$

    **Source**: ours; with rho = 1 it is `lib.linear.landing_distance` for N = 2.

    Args:
        start: (d,), w(0).
        ratio: (...), |W_1(0)| / |W_2(0)| > 0.
        inputs: (n, d), rows are examples.
        teacher: (d,).

    Returns:
        (...).

    Example:
        w(0) = (0, 1), the data span the first axis and w_hat = (2, 0): m = 1 = p for rho = 1, so
        a^2 = (1 + sqrt(17)) / 2.

        >>> w, x = torch.tensor([0.0, 1.0]).double(), torch.eye(1, 2).double()
        >>> distance = lopsided_distance(w, torch.tensor(1.0).double(), x, 2 * x[0])
        >>> round(2 * distance.item() ** 2 - 17**0.5, 12)
        1.0
    """
    norm, limit = start.norm(), student_limit(inputs, teacher).norm()
    outside = (start - project_onto_span(inputs, start)).norm()
    squared = ratio / norm * outside**2  # of the part of W_1 outside the span
    m = norm / ratio - ratio * norm + squared
    root = torch.sqrt(m**2 + 4 * limit**2)
    gain = torch.where(m > 0, (m + root) / 2, 2 * limit**2 / (root - m))
    return torch.sqrt(gain * squared)


def escape_delay(tilt: Tensor, slope: float) -> Tensor:
    r"""Return how much later a start in the wrong direction leaves the saddle at zero, N = 2.

    A start at the angle phi to the direction of steepest ascent follows the mirrored start, at phi
    to the direction of steepest descent, with the delay
    $$\frac{2}{|g|} \log \cot \frac{\varphi}{2}, \qquad g = \nabla L^1(0),$$
    as long as both stay so close to zero that the gradient is constant.

    **Source**: ours, from Phuong & Lampert, Lemma 12, linearised at zero.

    Args:
        tilt: (...), phi in (0, pi/2].
        slope: |g| > 0.

    Returns:
        (...), a time >= 0.

    Example:
        >>> tilt = 2 * torch.atan(torch.tensor(-1.0).exp())
        >>> escape_delay(tilt, 1.0)  # 2 log(e)
        tensor(2.)
    """
    return -2 / slope * torch.log(torch.tan(tilt / 2))


def draw_path(ax: Axes, path: Tensor, style: str, label: str) -> None:
    """Draw the curve of a student's weights in the plane, with a dot at its start.

    Args:
        ax: where to draw.
        path: (T, 2).
        style: line style.
        label: the legend's text.
    """
    (line,) = ax.plot(path[:, 0], path[:, 1], linestyle=style, label=label)
    ax.plot(*path[0].tolist(), "o", color=line.get_color())


def draw_ring(ax: Axes, point: Tensor) -> None:
    """Draw a ring around a predicted limit.

    Args:
        ax: where to draw.
        point: (2,).
    """
    ax.plot(*point.tolist(), "o", markersize=11, fillstyle="none", color="black", zorder=4)


def finish_planes(axes: Sequence[Axes], line: Tensor, teacher: Tensor) -> None:
    """Add the line of minimisers, the teacher, labels and a legend to panels in weight space.

    Args:
        axes: the panels.
        line: (2, 2), two points of the line, one a row.
        teacher: (2,).
    """
    for ax in axes:
        ax.plot(*line.T, color="0.6", linewidth=3, zorder=0)
        ax.plot(*teacher.tolist(), "k*", markersize=12, zorder=5)
        ax.annotate("teacher", teacher.tolist(), (8, 2), textcoords="offset points", fontsize=9)
        ax.set(xlabel="weight $w_1$", ylabel="weight $w_2$", aspect="equal")
        ax.set(xlim=(-1, 5), ylim=(-1.3, 4.9))
        ax.legend(fontsize=8, loc="upper right")
