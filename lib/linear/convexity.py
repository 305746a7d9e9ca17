"""Constants of the distillation loss on a sublevel set: strong convexity, gradient dominance.

On W = {w : L(w) <= l} every single loss obeys l_i(u_i) <= n l, which confines the logit u_i to an
interval around the teacher's. All constants here are read off the ends of these intervals.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lib.linear.checks import check_number, prepare, to_float64
from lib.linear.loss import bernoulli_divergence, logits, sigmoid_difference, sigmoid_slope

_NEWTON_STEPS = 100
_NEWTON_TOLERANCE = 1e-15


def sublevel_interval(teacher_logits: Tensor, level: float) -> tuple[Tensor, Tensor]:
    r"""Return the ends of the interval of logits whose loss is at most a level.

    $$\{u : \mathrm{KL}(\sigma(z) \,\|\, \sigma(u)) \le b\} = [u^-, u^+], \qquad
      u^+ \le \frac{b + H}{1 - \sigma(z)}, \qquad u^- \ge -\frac{b + H}{\sigma(z)}$$

    with H the entropy of the label. The loss is convex, so Newton's method falls monotonically from
    the stated bounds to the ends.

    **Source**: Phuong & Lampert, proof of Theorem 9, after Eq. 34; the explicit bounds are ours.

    Args:
        teacher_logits: (...), z, at most 700 in size.
        level: b, > 0, in nats.

    Returns:
        (low, high), each (...), with low < z < high.

    Raises:
        ValueError: if level is not positive, or a logit is not finite or larger than 700.

    Example:
        Label 3/4, and the loss of a student at 0: the other end is log(t / (2 - t)) with the
        tribonacci constant t, the root of t^3 = t^2 + t + 1.

        >>> z = torch.tensor(3.0, dtype=torch.float64).log()
        >>> level = float(0.75 * z - torch.tensor(2.0, dtype=torch.float64).log())
        >>> low, high = sublevel_interval(z, level)
        >>> t = 2 * torch.sigmoid(high)
        >>> abs(low.item()) < 1e-12, abs(t**3 - t**2 - t - 1).item() < 1e-12
        (True, True)
    """
    level = check_number("level", level, 0.0, open_low=True)
    (z,), dtype = to_float64(teacher_logits=teacher_logits)
    if bool((z.abs() > 700).any()):
        raise ValueError(
            f"teacher_logits must be at most 700 in size, got {float(z.abs().max()):.4g}: beyond, "
            "the label is 0 or 1 in double precision and the interval has no end"
        )
    return -_upper_end(-z, level).to(dtype), _upper_end(z, level).to(dtype)


def _upper_end(z: Tensor, level: float) -> Tensor:
    """Larger root of KL(sigma(z) || sigma(u)) = level, by Newton's method from above."""
    entropy = -logsigmoid(z.abs()) + z.abs() * torch.sigmoid(-z.abs())
    difference = (level + entropy) / torch.sigmoid(-z) - z
    for _ in range(_NEWTON_STEPS):
        excess = (bernoulli_divergence(z, difference) - level).clamp(min=0)
        step = excess / sigmoid_difference(z, difference)
        difference = difference - step
        if bool((step <= _NEWTON_TOLERANCE * difference).all()):
            break
    return z + difference


def strong_convexity(inputs: Tensor, teacher: Tensor, level: float, log: bool = False) -> Tensor:
    r"""Return the constant mu of restricted strong convexity on a sublevel set.

    $$\mu = \frac1n\, \omega\, \lambda, \qquad
      \omega = \min_i \min_{u \in [u_i^-, u_i^+]} \sigma(u)\, \sigma(-u)$$

    with lambda the smallest non-zero eigenvalue of the Gram matrix X X^T (rows are examples). The
    paper's proof has no 1/n, because its Eq. 32 misses that factor.

    **Source**: Phuong & Lampert, Theorem 9 and its proof, Eq. 33 to 35.

    Args:
        inputs: (..., n, d), rows are examples, not all zero.
        teacher: (..., d), leading dimensions broadcast.
        level: l, > 0: the set is {w : L(w) <= l}.
        log: whether to return log(mu), which stays finite where mu underflows.

    Returns:
        (...), mu > 0 (0 if it underflows), or its natural logarithm.

    Raises:
        ValueError: if shapes do not fit, inputs are all zero, or level is not positive.

    Example:
        One input of norm 2, logit 0: for a level that nearly vanishes, 4 times the slope 1/4.

        >>> x = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
        >>> round(strong_convexity(x, torch.tensor([0.0, 1.0]).double(), 1e-14).item(), 6)
        1.0
    """
    (x, w), dtype = prepare(inputs, teacher=teacher)
    low, high = sublevel_interval(logits(x, w), x.shape[-2] * check_number("level", level))
    farthest = torch.maximum(low.abs(), high.abs()).amax(-1)
    log_omega = logsigmoid(farthest) + logsigmoid(-farthest)
    log_mu = log_omega + torch.log(smallest_eigenvalue(x) / x.shape[-2])
    return (log_mu if log else log_mu.exp()).to(dtype)


def gradient_dominance(inputs: Tensor, teacher: Tensor, level: float) -> Tensor:
    r"""Return a constant c of the restricted Polyak-Lojasiewicz inequality that does not collapse.

    $$c = \frac{\lambda}{2n} \min_i \min_{u \in [u_i^-, u_i^+]}
      \frac{\sigma(u) - \sigma(z_i)}{u - z_i}$$

    The slope of the chord takes the place of the slope at the far end in `strong_convexity`: of
    order 1/u instead of exp(-u). With S the diagonal of the chords' slopes and M = X^T S X / n,
    the gradient is M e for e = w - w*, and L <= e.M e by convexity; hence
    |M e|^2 >= lambda_min(M) e.M e >= lambda_min(M) L.

    **Source**: the inequality is Phuong & Lampert, Corollary 10; this constant is ours.

    Args:
        inputs: (..., n, d), rows are examples, not all zero.
        teacher: (..., d), leading dimensions broadcast.
        level: l, > 0.

    Returns:
        (...), c > 0 with c L(w) <= |grad L(w)|^2 / 2 wherever L(w) <= l.

    Raises:
        ValueError: if shapes do not fit, inputs are all zero, or level is not positive.

    Example:
        One input of norm 2, logit 0: for a level that nearly vanishes, half of mu = 1.

        >>> x = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
        >>> round(gradient_dominance(x, torch.tensor([0.0, 1.0]).double(), 1e-14).item(), 6)
        0.5
    """
    (x, w), dtype = prepare(inputs, teacher=teacher)
    z = logits(x, w)
    slopes = sigmoid_slope(z)
    for end in sublevel_interval(z, x.shape[-2] * check_number("level", level)):
        slopes = torch.minimum(slopes, sigmoid_difference(z, end - z) / (end - z))
    return (slopes.amin(-1) * smallest_eigenvalue(x) / (2 * x.shape[-2])).to(dtype)


def smallest_eigenvalue(inputs: Tensor) -> Tensor:
    r"""Return the smallest non-zero eigenvalue of the Gram matrix of the inputs.

    It is $\lambda_{\min}$ of the proof of Theorem 9 where n >= d, and $1 / \lambda_{\max}$ of it
    where n < d. Singular values below max(n, d) eps times the largest count as zero.

    **Source**: Phuong & Lampert, proof of Theorem 9.

    Args:
        inputs: (..., n, d), rows are examples, not all zero.

    Returns:
        (...) float64, > 0.

    Raises:
        ValueError: if inputs are all zero.

    Example:
        Two unit vectors at an angle of 60 degrees: 1 - cos(60).

        >>> x = torch.tensor([[1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)
        >>> torch.allclose(smallest_eigenvalue(x), torch.tensor(0.5, dtype=torch.float64))
        True
    """
    (x,), _ = prepare(inputs)
    values = torch.linalg.svdvals(x)
    largest = values[..., :1]
    if not bool((largest > 0).all()):
        raise ValueError("inputs must not be all zero: they span no direction")
    kept = values > max(x.shape[-2:]) * torch.finfo(values.dtype).eps * largest
    return torch.where(kept, values, torch.inf).amin(-1).square()
