"""What the page "Full training" draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lib.book.figures import band, colours
from lib.book.pages.distillation_runs import MethodRuns, paired_difference
from lib.book.pages.full_training_tables import METHODS, published_difference
from lib.distill import OBJECTIVES, objective_loss

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
EXAMPLES = (
    ("not blocked", (0.50, 0.40, 0.10), (0.70, 0.10, 0.20), 1.6),
    ("blocked", (0.90, 0.07, 0.03), (0.40, 0.25, 0.35), 1.0),
)  # name, student, teacher, how far the picture reaches
_HOLLOW = ("dp-s", "dhkd")  # they often lie on another method's mark


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
    ax.fill_between([corner[0], 3 * reach], corner[1], 3 * reach, color="#d9efe6", zorder=0)
    ax.axhline(0, color="black", lw=0.8)
    ax.axvline(0, color="black", lw=0.8)
    ends = {}
    for name, change in changes.items():
        over = max(1.0, float(change.abs().max()) / reach)
        end = ends[name] = (change / over).tolist()
        style = ":" if over > 1 else "-"
        ax.plot([0, end[0]], [0, end[1]], style, color=colours[LOOKS[name][0]], lw=1.5, zorder=2)
        ax.plot(*end, **_mark(name), zorder=4)
        if over > 1:
            ax.annotate(f"× {over:.1f}", end, (7, -4), textcoords="offset points", fontsize=9)
    (left, low), (right, high) = (
        [pick(end[axis] for end in ends.values()) for axis in (0, 1)] for pick in (min, max)
    )
    ax.set(xlim=(min(left, 0) - 0.15 * reach, max(right, corner[0]) + 0.4 * reach))
    ax.set(ylim=(min(low, 0) - 0.15 * reach, high + 0.4 * reach), aspect="equal")
    ax.text(0.98, 0.97, "no loss\nagainst CE", transform=ax.transAxes, ha="right", va="top")
    ax.set(xlabel="gain of $M_2$", ylabel="gain of $M_3$")


def add_legend(fig: Figure, ax: Axes, columns: int = 5) -> None:
    """Write the marks of all methods above a figure.

    Args:
        fig: the figure.
        ax: one of its panels.
        columns: of the legend.
    """
    handles = [ax.plot([], [], **_mark(name), label=OBJECTIVES[name].title)[0] for name in METHODS]
    fig.legend(handles=handles, loc="outside upper center", ncols=columns, fontsize=9)


def draw_differences(ax: Axes, rows: Mapping[str, MethodRuns], text: bool) -> None:
    """Draw by how much TPKD leads each other method: ours with its interval, and the paper's.

    Ours: mean, interval over seeds, and a dot for each seed. The paper's: a star, with the widest
    interval that its table permits as a thin line and the narrowest as a thick one.

    Args:
        ax: where to draw.
        rows: of all methods, two or more seeds.
        text: compare with CLINC150 instead of CIFAR-100.
    """
    others = [name for name in METHODS if name != "tpkd" and name in rows]
    ink, ours = "#262626", colours["blue"]
    for place, name in enumerate(others):
        gap, least, most = published_difference("tpkd", name, text)
        ax.plot([gap - most, gap + most], [place - 0.2] * 2, color=ink, lw=0.8)
        ax.plot([gap - least, gap + least], [place - 0.2] * 2, color=ink, lw=3)
        ax.plot(gap, place - 0.2, "*", color=ink, ms=9, label=None if place else "paper")
        found = paired_difference(rows["tpkd"].accuracy, rows[name].accuracy)
        ax.plot([found.low, found.high], [place + 0.2] * 2, color=ours, lw=1.2)
        ax.plot(found.each, [place + 0.2] * len(found.each), "|", color=ours, ms=8)
        ax.plot(found.mean, place + 0.2, "o", color=ours, ms=6, label=None if place else "ours")
    ax.axvline(0, color="black", lw=1)
    ax.set_yticks(range(len(others)), [OBJECTIVES[name].title for name in others])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)


def draw_search(ax: Axes, found: Mapping[float, Mapping[str, MethodRuns]], usual: float) -> None:
    """Draw what KD and TPKD gain over CE against a factor, with a band over seeds.

    Args:
        ax: where to draw.
        found: by value and method, as from `lib.book.pages.full_training.search`.
        usual: the value of the comparison; a dotted line.
    """
    places = list(range(len(found)))
    for name, style in (("kd", "-"), ("tpkd", "--")):
        pairs = [(rows[name].accuracy, rows["ce"].accuracy) for rows in found.values()]
        gains = torch.stack([first - second for first, second in pairs], 1)
        colour, marker = LOOKS[name]
        band(ax, places, gains, OBJECTIVES[name].title, colour, ls=style, marker=marker, ms=7)
        ax.plot(places, gains.T, ".", color=colours[colour], ms=4)
    ax.axhline(0, color="black", lw=1)
    ax.axvline(list(found).index(usual), color="#949494", lw=1, ls=":", zorder=0)
    ax.set_xticks(places, [f"{value:g}" for value in found])
    ax.set_ylim(-2, 4.5)


def _mark(name: str) -> dict:
    """The mark of a method."""
    colour, marker = LOOKS[name]
    face = "none" if name in _HOLLOW else colours[colour]
    look = {"ms": 11 if marker in "*X" else 8, "mfc": face, "mec": "black", "mew": 0.7}
    return look | {"marker": marker, "ls": "none"}
