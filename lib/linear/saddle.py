"""The starts from which a deep linear student never leaves the saddle at zero."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.linear.checks import check_count, prepare, to_float64
from lib.linear.fields import hessian, polar, soft_gradient
from lib.linear.geometry import data_span
from lib.linear.integrate import Field, integrate

_CORE = 1e-12  # where the curve starts on its tangent, relative to the smallest norm


def saddle_curve(inputs: Tensor, teacher: Tensor, depth: int, norms: Tensor) -> Tensor:
    r"""Return the balanced starts, one for each norm, that flow into the saddle w = 0.

    In the time $s$ with $ds = |w|^{1 - 2/N} d\tau$ the flow of Lemma 12 reads
    $$(\log |w|)' = -N\, u^\top g, \qquad u' = -(g - (u^\top g)\, u), \qquad
      u = w / |w|, \quad g = \nabla L^1(w).$$
    Near zero g is constant, and u runs away from $g / |g|$ towards its opposite, along which |w|
    grows. So w reaches zero only along the one curve that leaves it with the tangent
    $\nabla L^1(0)$. On it L > L(0), hence $u^\top g > 0$ by convexity, and $\ell = \log |w|$
    parametrises it backwards:
    $$\frac{dw}{d\ell} = w + \frac{|w|}{N}\, \frac{g - (u^\top g)\, u}{u^\top g}.$$

    **Source**: ours; what condition 11b of Phuong & Lampert, Theorem 2, excludes.

    Args:
        inputs: (..., n, d), rows are examples.
        teacher: (..., d), w*, with at least one logit that is not zero.
        depth: N >= 2.
        norms: (K,), increasing, > 0: the norms |w(0)| of the starts.

    Returns:
        (..., K, d), in the data span, with the given norms.

    Raises:
        ValueError: if shapes do not fit, the norms do not increase, depth < 2, or the loss has no
            gradient at zero.
        RuntimeError: if the integrator gives up.

    Example:
        One example: every vector opposed to its label, so the curve is a straight line.

        >>> x, w_star = torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 0.0])
        >>> saddle_curve(x, w_star, 2, torch.tensor([5.0]))
        tensor([[-3., -4.]])
    """
    depth = check_count("depth", depth, minimum=2)
    (x, target), dtype = prepare(inputs, teacher=teacher)
    (norms,), _ = to_float64(norms=norms)
    if norms.ndim != 1 or len(norms) < 1 or bool((norms <= 0).any() | (norms.diff() <= 0).any()):
        raise ValueError(f"norms must be a (K,) tensor of increasing values > 0, got {norms}")
    batch = torch.broadcast_shapes(x.shape[:-2], target.shape[:-1])
    x = x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:])
    target = target.expand(*batch, target.shape[-1]).reshape(-1, target.shape[-1])
    basis = data_span(x).basis
    data = (x @ basis, (target[:, None] @ basis)[:, 0])
    slope = soft_gradient(torch.zeros_like(data[1])[:, None], *data)[:, 0]
    size = torch.linalg.vector_norm(slope, dim=-1, keepdim=True)
    if bool((size == 0).any()):
        raise ValueError("teacher must have a logit that is not 0, got a loss without slope at 0")
    core = _CORE * float(norms[0])
    field, jacobian = _curve_field(depth)
    start, lengths = core * slope / size, (norms / core).log()
    tolerance = {"rtol": 1e-11, "atol": 1e-13 * core, "normwise": True}
    curve = integrate(field, jacobian, start, lengths, data, **tolerance).states
    curve = curve * (norms / torch.linalg.vector_norm(curve, dim=-1))[..., None]
    return (curve @ basis.mT).reshape(*batch, len(norms), -1).to(dtype)


def _curve_field(depth: int) -> tuple[Field, Field]:
    """The field dw / dl of `saddle_curve` and its Jacobian."""

    def field(states: Tensor, design: Tensor, teacher: Tensor) -> Tensor:
        gradient = soft_gradient(states, design, teacher)
        norm, unit = polar(states)
        along = (unit * gradient).sum(-1, keepdim=True)
        return states + norm / depth * (gradient / along - unit)

    def jacobian(state: Tensor, design: Tensor, teacher: Tensor) -> Tensor:
        gradient = soft_gradient(state[:, None], design, teacher)[:, 0, :, None]
        norm, unit = polar(state)
        norm, unit = norm[..., None], unit[..., None]
        along = unit.mT @ gradient
        identity = torch.eye(state.shape[-1], dtype=state.dtype, device=state.device)
        across = identity - unit @ unit.mT
        bend = norm * hessian(state, design)
        change = gradient.mT @ across + unit.mT @ bend  # |w| times the derivative of along
        turned = (gradient / along - unit) @ unit.mT - across
        return identity + (turned + bend / along - gradient @ change / along**2) / depth

    return field, jacobian
