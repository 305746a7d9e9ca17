"""What the page "Full training" calls: Table 4 as printed, the directions of ten methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lib.book.figures import colours
from lib.book.pages.distillation_runs import interval_factor
from lib.distill import OBJECTIVES, objective_loss

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METHODS = ("ce", "kd", "kl-dist", "dkd", "dp-u", "dp-s", "xe-kl", "dhkd", "dto-kd", "tpkd")
PUBLISHED = {
    "ce": ((87.37, 0.07), (93.24, 0.28)),
    "kd": ((87.58, 0.07), (93.46, 0.34)),
    "kl-dist": ((82.26, 0.05), (93.38, 0.19)),
    "dkd": ((84.53, 0.09), (93.59, 0.20)),
    "dp-u": ((83.14, 0.04), (93.38, 0.19)),
    "dp-s": ((83.65, 0.01), (93.44, 0.28)),
    "xe-kl": ((84.17, 0.05), (93.41, 0.22)),
    "dhkd": ((85.83, 0.10), (93.29, 0.38)),
    "dto-kd": ((87.81, 0.11), (93.46, 0.23)),
    "tpkd": ((88.05, 0.12), (93.81, 0.27)),
}  # mean and sample deviation over three seeds: CIFAR-100, CLINC150
LOOKS = {
    "ce": ("grey", "o"),
    "kd": ("blue", "s"),
    "kl-dist": ("orange", "^"),
    "dkd": ("purple", "v"),
    "dp-u": ("brown", "<"),
    "dp-s": ("pink", ">"),
    "xe-kl": ("yellow", "P"),
    "dhkd": ("sky", "X"),
    "dto-kd": ("green", "D"),
    "tpkd": ("vermilion", "*"),
}  # colour and marker


def published_difference(
    first: str, second: str, text: bool, seeds: int = 3
) -> tuple[float, float, float]:
    r"""Return a difference of Table 4, and how wide its interval over seeds can be.

    The table prints deviations of accuracies, $s_a$ and $s_b$, not of their differences. But
    $s_\delta^2 = s_a^2 + s_b^2 - 2 r s_a s_b$ with a correlation $r \in [-1, 1]$, so

    $$|s_a - s_b| \le s_\delta \le s_a + s_b .$$

    **Source**: Yuan & Tao, Table 4; the bounds are ours.

    Args:
        first: one of `METHODS`.
        second: another.
        text: CLINC150 instead of CIFAR-100.
        seeds: behind each entry.

    Returns:
        The difference in points, and the least and the largest half width of its 95 % interval.

    Example:
        >>> found = published_difference("tpkd", "kd", text=False)
        >>> [round(x, 2) for x in found]
        [0.47, 0.12, 0.47]
    """
    (a, sd_a), (b, sd_b) = PUBLISHED[first][text], PUBLISHED[second][text]
    factor = interval_factor(seeds)
    return a - b, factor * abs(sd_a - sd_b), factor * (sd_a + sd_b)


def logit_gradients(
    student: Tensor,
    teacher: Tensor,
    label: Tensor,
    frozen: Tensor,
    methods: Sequence[str] = METHODS,
    options: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Tensor]:
    """Return the gradient of each method in the logits of one example, by autograd.

    DHKD distils into its second head; its gradient in the first one, which classifies, is what is
    returned. The two losses of DTO-KD are weighted as if the logits were the parameters.

    Args:
        student: (K,) logits.
        teacher: (K,) logits.
        label: () int64.
        frozen: (K,) logits of the student before training, for DP-U and DP-S.
        methods: names of `OBJECTIVES`.
        options: by method, handed to `objective_loss`.

    Returns:
        By method, (K,) float64.

    Example:
        >>> z, label = torch.zeros(3), torch.tensor(0)
        >>> logit_gradients(z, z, label, z, ["kl-dist"])["kl-dist"]
        tensor([0., 0., 0.], dtype=torch.float64)
    """
    found = {}
    for name in methods:
        z = student.detach().double().requires_grad_()
        extra = dict((options or {}).get(name, {}))
        if OBJECTIVES[name].needs_frozen:
            extra["frozen_logits"] = frozen.double()
        if OBJECTIVES[name].needs_auxiliary:
            extra["auxiliary_logits"] = student.detach().double()
        loss = objective_loss(name, z, teacher.double(), label, **extra)
        found[name] = torch.autograd.grad(loss, z)[0]
    return found


def margin_change(gradient: Tensor, label: int = 0) -> Tensor:
    r"""Return by how much a small output step changes the margins, per unit of step size.

    $$\frac{M_j(z - \eta g) - M_j(z)}\eta = g_j - g_y$$

    Args:
        gradient: (..., K).
        label: y.

    Returns:
        (..., K - 1), the classes besides the label in order.

    Example:
        >>> margin_change(torch.tensor([-3.0, 1.0, 2.0]))
        tensor([4., 5.])
    """
    rest = [j for j in range(gradient.shape[-1]) if j != label]
    return gradient[..., rest] - gradient[..., label : label + 1]


def draw_directions(ax: Axes, changes: Mapping[str, Tensor], reach: float) -> None:
    """Draw the margins that one output step of each method gains, for three classes.

    Shaded: steps that gain at least what the label step gains. A step that leaves the panel is cut
    at its edge, dotted, with its length over the length drawn.

    Args:
        ax: where to draw.
        changes: by method, (2,), as from `margin_change`; with "ce".
        reach: largest coordinate that is drawn to scale.
    """
    corner = changes["ce"].tolist()
    span = 2.4 * reach
    ax.fill_between([corner[0], span], corner[1], span, color="#d9efe6", zorder=0)
    ax.axhline(0, color="black", lw=0.8)
    ax.axvline(0, color="black", lw=0.8)
    for name, change in changes.items():
        colour, marker = LOOKS[name]
        over = max(1.0, float(change.abs().max()) / reach)
        end = (change / over).tolist()
        style = ":" if over > 1 else "-"
        ax.plot([0, end[0]], [0, end[1]], style, color=colours[colour], lw=1.5, zorder=2)
        size = 11 if marker in "*X" else 8
        filled = colours[colour] if name not in ("dp-s", "dhkd") else "none"
        ax.plot(*end, marker, ms=size, mfc=filled, mec="black", mew=0.7, zorder=4, ls="none")
        if over > 1:
            ax.annotate(f"× {over:.1f}", end, (7, -4), textcoords="offset points", fontsize=9)
    ax.set(xlim=(-reach, 1.25 * reach), ylim=(-1.15 * reach, reach), aspect="equal")
    ax.set(xlabel="gain of $M_2$", ylabel="gain of $M_3$")
