"""Constants and bounds of the safe correction: retention, alignment, compensation, descent."""

from __future__ import annotations

import torch
from torch import Tensor

from lib.tpkd.checks import check_beside, check_number, check_scalar, prepare, prepare_pair
from lib.tpkd.divergence import conditional, divergence, odds


def retention_bound(classes: int | Tensor) -> Tensor:
    r"""Return the least fraction of the conditional signal that the correction keeps.

    $$\gamma_K = \frac{K}{2 (K - 1)}, \qquad u^\top d = \|d\|^2 \ge \gamma_K \|u\|^2, \quad
      \|w_{\rm cond}\|^2 \ge \gamma_K \|d\|^2$$

    Attained by one class that the teacher wants up and all others equally down. For K = 3 every
    signal attains it.

    **Source**: Yuan & Tao, Theorem 3, Eq. 10.

    Args:
        classes: integer K >= 3, or a tensor (...) of them.

    Returns:
        (...) float64, in (1/2, 3/4].

    Raises:
        ValueError: if classes is no integer >= 3.

    Example:
        >>> retention_bound(3), retention_bound(101)
        (tensor(0.7500, dtype=torch.float64), tensor(0.5050, dtype=torch.float64))
    """
    count = _classes(classes)
    return count / (2 * (count - 1))


def alignment_bound(classes: int | Tensor) -> Tensor:
    r"""Return the least cosine between the conditional signal and its pure component.

    $$c_K = \frac{2 \sqrt{\gamma_K}}{1 + \gamma_K} \ge \frac{2 \sqrt 2}{3}, \qquad
      \cos \angle(u, w_{\rm cond}) \ge c_K$$

    Attained for K >= 4, by `alignment_extremal`. For K = 3 the two are parallel: the cosine is 1.

    **Source**: Yuan & Tao, Theorem 3, Eq. 11; where it is attained is ours.

    Args:
        classes: integer K >= 3, or a tensor (...) of them.

    Returns:
        (...) float64, in (0.942, 0.990].

    Raises:
        ValueError: if classes is no integer >= 3.

    Example:
        >>> alignment_bound(3) / 3**0.5  # 4 / 7
        tensor(0.5714, dtype=torch.float64)
    """
    gamma = retention_bound(classes)
    return 2 * gamma.sqrt() / (1 + gamma)


def alignment_extremal(classes: int) -> Tensor:
    r"""Return a conditional signal whose pure component is as far from it as can be.

    $$u = (0, -1, x, y, \dots, y), \quad x + (K - 3) y = 1, \quad
      x^2 + (K - 3) y^2 = \frac{3 \gamma_K - 1}{2 (1 - \gamma_K)}$$

    Only the second entry is clipped, so that the inequality (B.3) is an equality, and the norms
    have the ratio that makes the following one an equality as well.

    **Source**: ours; it shows that Eq. 11 is tight for K >= 4.

    Args:
        classes: integer K >= 4.

    Returns:
        (K,) float64, sum 0, for the label 0; a small multiple is r - q for positive r and q.

    Raises:
        ValueError: if classes is no integer >= 4.

    Example:
        >>> alignment_extremal(4)  # 0, -1, (1 + sqrt 2) / 2, (1 - sqrt 2) / 2
        tensor([ 0.0000, -1.0000,  1.2071, -0.2071], dtype=torch.float64)
    """
    count = _classes(classes)
    if count.numel() != 1 or float(count) < 4:
        raise ValueError(
            f"classes must be an integer >= 4, got {classes!r}; for 3 the cosine is always 1"
        )
    classes = int(count)
    gamma, rest = retention_bound(classes), classes - 3
    squares = (3 * gamma - 1) / (2 * (1 - gamma))
    spread = ((squares * (rest + 1) - 1) / rest).sqrt()  # (x - y) sqrt(rest) = ..., sum fixed
    y = (1 - spread) / (rest + 1)
    signal = y.repeat(classes)
    signal[0], signal[1], signal[2] = 0.0, -1.0, 1 - rest * y
    return signal


def distortion_limits(classes: int | Tensor) -> tuple[Tensor, Tensor]:
    r"""Return how much back-propagation may distort the signals before a certificate is void.

    $$\kappa_\Phi = \frac{1 + \sqrt{\gamma_K}}{1 - \sqrt{\gamma_K}}, \qquad
      \kappa_c = \frac{1 + c_K}{1 - c_K} = \kappa_\Phi^2$$

    **Source**: Yuan & Tao, Section 5.4 and Eq. D.3.

    Args:
        classes: integer K >= 3, or a tensor (...) of them.

    Returns:
        (kappa_c, kappa_Phi), each (...) float64.

    Raises:
        ValueError: if classes is no integer >= 3.

    Example:
        >>> kappa_c, kappa_phi = distortion_limits(100)
        >>> kappa_c, kappa_phi
        (tensor(34.9576, dtype=torch.float64), tensor(5.9125, dtype=torch.float64))
    """
    gamma = retention_bound(classes)
    root = gamma.sqrt()
    joint = (1 + root) ** 2 / (1 - gamma)
    return joint**2, joint


def angle_spectrum_bound(
    cosine: float | Tensor, smallest: float | Tensor, largest: float | Tensor
) -> Tensor:
    r"""Return the least inner product that two unit vectors keep under a distortion.

    $$\frac{a^\top G b}{\|a\| \|b\|} \ge \tfrac12 [(1 + c) m - (1 - c) M]$$

    Positive exactly when M / m < (1 + c) / (1 - c).

    **Source**: Yuan & Tao, Eq. D.4.

    Args:
        cosine: (...) or number c in [-1, 1], the cosine of a and b or a lower bound of it.
        smallest: (...) or number m >= 0, smallest eigenvalue of G on the span of a and b.
        largest: (...) or number M >= m, the largest one.

    Returns:
        (...) float64.

    Raises:
        ValueError: if a number is outside its range, or M < m.

    Example:
        >>> angle_spectrum_bound(0.5, 1.0, 3.0)  # the limit: M / m = (3/2) / (1/2)
        tensor(0., dtype=torch.float64)
    """
    cosine = check_number("cosine", cosine, -1.0, 1.0)
    smallest = check_number("smallest", smallest, 0.0)
    largest = check_number("largest", largest, 0.0)
    _check_numbers(cosine=cosine, smallest=smallest, largest=largest)
    if not bool((largest >= smallest).all()):
        raise ValueError("largest must be >= smallest: they are eigenvalues of one matrix")
    return ((1 + cosine) * smallest - (1 - cosine) * largest) / 2


def potential(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor, weight: float = 4.0
) -> Tensor:
    r"""Return the joint potential of label fitting and conditional learning.

    $$\Phi_w = w L_{\rm CE} + L_{\rm cond}, \qquad \Phi = \Phi_4$$

    Differentiable in the student's logits, with gradient $w h + u$: `potential_gradient`.

    **Source**: Yuan & Tao, Section 5.3; other weights Appendix C.5.

    Args:
        student_logits: (..., K), finite, K >= 3.
        teacher_logits: (..., K); -inf is a probability of zero.
        labels: (...) integer, in [0, K).
        weight: w >= 0.

    Returns:
        (...) >= 0, in the promoted dtype of the logits.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> potential(torch.zeros(3), torch.zeros(3), torch.tensor(0)).exp()  # 3^4
        tensor(81.0000)
    """
    weight = check_number("weight", weight, 0.0, 1e30)
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    check_beside("weight", weight, labels.shape)
    label_loss = -torch.nn.functional.logsigmoid(odds(student, labels))
    error = divergence(conditional(teacher, labels), conditional(student, labels))
    return (weight.to(student.device) * label_loss + error).to(dtype)


def potential_gradient(label: Tensor, signal: Tensor, weight: float = 4.0) -> Tensor:
    r"""Return the gradient of the joint potential from its two parts.

    $$g_\Phi = w h + u, \qquad w = 4$$

    **Source**: Yuan & Tao, Section 5.3.

    Args:
        label: (..., K), h, `directions(...).label`.
        signal: (..., K), u, `directions(...).conditional`.
        weight: w >= 0.

    Returns:
        (..., K), in the promoted dtype.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> potential_gradient(torch.tensor([-1.0, 0.5, 0.5]), torch.tensor([0.0, 0.2, -0.2]))
        tensor([-4.0000,  2.2000,  1.8000])
    """
    weight = check_scalar("weight", weight, 0.0, 1e30)
    (label, signal), _, dtype = prepare(
        None, labelled=False, compute=None, label=label, signal=signal
    )
    return (weight * label + signal).to(dtype)


def compensation_bounds(
    student_logits: Tensor, teacher_logits: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return the least and the largest compensation that a mismatch can ask for.

    $$\frac{\operatorname{TV}(q, r)}{K - 1} \le \ell \le \frac{\operatorname{TV}(q, r)}{2}, \qquad
      \operatorname{TV}(q, r) = \tfrac12 \|q - r\|_1$$

    **Source**: Yuan & Tao, Appendix B.2.

    Args:
        student_logits: (..., K), finite, K >= 3.
        teacher_logits: (..., K); -inf is a probability of zero.
        labels: (...) integer, in [0, K).

    Returns:
        Two tensors (...), in the promoted dtype of the logits.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> student, teacher = torch.tensor([[1.0, 0.2, 0.3, 0.5], [1.0, 0.3, 0.32, 0.38]]).log()
        >>> compensation_bounds(student, teacher, torch.tensor(0))  # TV = 0.12
        (tensor(0.0400), tensor(0.0600))
    """
    (student, teacher), labels, dtype = prepare_pair(student_logits, teacher_logits, labels)
    gap = conditional(teacher, labels).exp() - conditional(student, labels).exp()
    variation = gap.abs().sum(-1) / 2
    return (variation / (student.shape[-1] - 1)).to(dtype), (variation / 2).to(dtype)


def weighted_descent_constant(
    label_weight: float | Tensor, weight: float | Tensor, classes: int | Tensor
) -> Tensor:
    r"""Return the constant that says whether a weight lets both objectives be learned.

    $$c_{w,\beta} = \tfrac12 \bigl(w + \beta \gamma_K - \sqrt{(w - \beta \gamma_K)^2 + 1}\bigr)$$

    Positive exactly when $4 w \beta \gamma_K > 1$; then every step $\eta$ up to
    `weighted_step_limit` lowers $\Phi_w$ by $\eta c_{w,\beta} (\|h\|^2 + \|u\|^2) / 2$ or more.

    **Source**: Yuan & Tao, Appendix C.5, Eqs. C.10 and C.12.

    Args:
        label_weight: (...) or number w > 0, of cross-entropy in the potential.
        weight: (...) or number beta > 0, of the corrected direction in the update.
        classes: integer K >= 3, or a tensor (...) of them.

    Returns:
        (...) float64.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> weighted_descent_constant(1.0, 4.0 / 3.0, 3)  # both eigenvalues' mean 1, gap 1
        tensor(0.5000, dtype=torch.float64)
    """
    w, kept = (
        check_number(name, value, 0.0, 1e30)
        for name, value in (("label_weight", label_weight), ("weight", weight))
    )
    gamma = retention_bound(classes)
    _check_numbers(label_weight=w, weight=kept, classes=gamma)
    kept = kept * gamma
    total = w + kept + torch.hypot(w - kept, torch.ones_like(w * kept))
    return 2 * (w * kept - 0.25) / total


def weighted_step_limit(
    label_weight: float | Tensor, weight: float | Tensor, classes: int | Tensor
) -> Tensor:
    r"""Return the largest step for which joint learning with general weights is proved.

    $$\eta \le \frac{c_{w,\beta}}{(w + 1) \max(1, \beta^2)}$$

    **Source**: Yuan & Tao, Eq. C.11.

    Args:
        label_weight: (...) or number w > 0.
        weight: (...) or number beta > 0.
        classes: integer K >= 3, or a tensor (...) of them.

    Returns:
        (...) float64, not positive where nothing is proved.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> weighted_step_limit(1.0, 4.0 / 3.0, 3) * 64  # 1/2 / (2 * 16/9)
        tensor(9., dtype=torch.float64)
    """
    constant = weighted_descent_constant(label_weight, weight, classes)
    beta = check_number("weight", weight)
    return constant / ((check_number("label_weight", label_weight) + 1) * (beta**2).clamp(min=1))


def _check_numbers(**values: Tensor) -> None:
    """Raise ValueError unless all shapes broadcast."""
    try:
        torch.broadcast_shapes(*(value.shape for value in values.values()))
    except RuntimeError:
        seen = ", ".join(f"{name} {tuple(value.shape)}" for name, value in values.items())
        raise ValueError(f"the shapes of {seen} do not broadcast") from None


def _classes(classes: int | Tensor) -> Tensor:
    """Check a number of classes, or a tensor of them, and return it in float64."""
    whole = isinstance(classes, int) and not isinstance(classes, bool)
    if isinstance(classes, Tensor):
        whole = not (classes.is_floating_point() or classes.is_complex())
        whole = whole and classes.dtype != torch.bool
    if not whole or not bool((torch.as_tensor(classes) >= 3).all()):
        raise ValueError(f"classes must be an integer >= 3, got {classes!r}")
    return torch.as_tensor(classes).to(torch.float64)
