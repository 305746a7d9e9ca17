"""What the chapter "What protection keeps" draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib.patches import Polygon
from torch import Tensor

from lib.book import figures
from lib.tpkd import conditional_component, project_onto_safe_cone

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#262626"


def draw_clipping(axes: np.ndarray, r: Tensor, q: Tensor, clipped: Tensor, taken: float) -> None:
    """Draw a teacher's requests, their caps, and the corrected direction.

    Args:
        axes: two panels.
        r: (n,) of the student.
        q: (n,) of the teacher.
        clipped: (n,) clipped teacher.
        taken: the compensation.
    """
    places = np.arange(len(r))
    looks = (("$r$", r, "sky", "", -1), ("$q$", q, "orange", "//", 0))
    looks = (*looks, (r"$\tilde q$", clipped, "green", "..", 1))
    for name, values, colour, hatch, shift in looks:
        style = {"color": figures.colours[colour], "hatch": hatch, "edgecolor": "white"}
        axes[0].bar(places + 0.27 * shift, values, width=0.25, label=name, **style)
    for place, height in zip(places, (r + taken).tolist(), strict=True):
        name = r"cap $r + \ell$" if place == 0 else None
        axes[0].plot([place - 0.42, place + 0.42], [height] * 2, "--", color=_INK, label=name)
    axes[0].set(xticks=places, xticklabels=["2", "3", "4"], xlabel="class", ylabel="mass")
    axes[0].set_ylim(0, 0.75)
    axes[0].legend(ncols=2, loc="upper left")
    d, zero = torch.cat([torch.tensor([-taken]), r - clipped]), torch.zeros(1)
    signal = torch.cat([zero, r - q])
    axes[1].bar(np.arange(4), d, color=figures.colours["green"], width=0.5, label="$d$")
    axes[1].bar(np.arange(4), signal, fill=False, edgecolor=_INK, width=0.75, label="$u$")
    axes[1].axhline(0, color=_INK, linewidth=1)
    axes[1].axhline(-taken, color=_INK, linestyle="--", linewidth=1.2)
    axes[1].set(xticks=range(4), xticklabels=["label", "2", "3", "4"], ylabel="entry")
    axes[1].legend(loc="upper left")


def draw_oblique(ax: Axes, push: float, across: Tensor, signal: float) -> None:
    """Draw -d as confidence push plus pure component, over the plane of conditional directions.

    Args:
        ax: where to draw.
        push: length of l a_0.
        across: (2,), w in the plane, along u and across it.
        signal: length of u.
    """
    tilt = torch.tensor([[1.0, 0.0], [0.45, 0.32], [0.0, 1.0]], dtype=torch.float64)
    corners = torch.tensor([[-0.03, -0.07, 0.0], [0.18, -0.07, 0.0], [0.18, 0.09, 0.0]])
    corners = torch.cat([corners, torch.tensor([[-0.03, 0.09, 0.0]])]).double() @ tilt
    ax.add_patch(Polygon(corners.numpy(), facecolor="#eeeeee", edgecolor="#949494"))
    w = torch.tensor([float(across[0]), float(across[1]), 0.0], dtype=torch.float64)
    up = torch.tensor([0.0, 0.0, push], dtype=torch.float64)
    ends = {
        "-u": (torch.tensor([signal, 0.0, 0.0]).double(), "orange", (4, -12)),
        r"-w_{\mathrm{cond}}": (w, "blue", (7, 1)),
        r"-\ell a_0": (up, "purple", (-14, 6)),
        "-d": (w + up, "green", (4, 4)),
    }
    for name, (end, colour, shift) in ends.items():
        place = (end @ tilt).tolist()
        look = {"arrowstyle": "-|>", "color": figures.colours[colour], "linewidth": 2.2}
        ax.annotate("", place, (0, 0), arrowprops=look | {"shrinkA": 0, "shrinkB": 0})
        ax.annotate(f"${name}$", place, shift, textcoords="offset points", ha="left")
    for start in (w, up):
        line = torch.stack([start @ tilt, (w + up) @ tilt])
        ax.plot(*line.T, ":", color=_INK, linewidth=1.2)
    ax.set(aspect="equal", xlim=(-0.09, 0.26), ylim=(-0.06, 0.12), xticks=[], yticks=[])
    ax.axis("off")


def draw_angle(ax: Axes, across: Tensor, signal: float, cosine: float) -> None:
    """Draw u and w in the plane of conditional directions, and the largest possible angle.

    Args:
        ax: where to draw.
        across: (2,), w along u and across it.
        signal: length of u.
        cosine: the least cosine.
    """
    for end, colour in (((signal, 0.0), "orange"), (tuple(across.tolist()), "blue")):
        look = {"arrowstyle": "-|>", "color": figures.colours[colour], "linewidth": 2.2}
        ax.annotate("", end, (0, 0), arrowprops=look | {"shrinkA": 0, "shrinkB": 0})
    ax.annotate("$-u$", (signal, 0), (-4, -17), textcoords="offset points")
    ax.annotate(r"$-w_{\mathrm{cond}}$", across.tolist(), (-42, 9), textcoords="offset points")
    reach = 0.17 * np.array([cosine, np.sqrt(1 - cosine**2)])
    for sign in (1, -1):
        ax.plot([0, reach[0]], [0, sign * reach[1]], "--", color=_INK, linewidth=1.2)
    ax.text(reach[0], -reach[1], "bound", ha="right", va="top")
    ax.set(aspect="equal", xlim=(-0.01, 0.19), ylim=(-0.06, 0.06), xticks=[], yticks=[])
    ax.axis("off")


def draw_disc(ax: Axes, u: Tensor, labels: Tensor, gamma: float) -> None:
    """Draw pure components in units of their signals, in the disc of Eq. B.4.

    Args:
        ax: where to draw.
        u: (N, K), elements of L_y.
        labels: (N,).
        gamma: the retention bound.
    """
    w = conditional_component(project_onto_safe_cone(u, labels), labels)
    square = u.square().sum(-1)
    along = (u * w).sum(-1) / square
    beside = (w - along.unsqueeze(-1) * u).norm(dim=-1) / square.sqrt()
    ax.plot(along, beside, ".", color=figures.colours["sky"], markersize=3, alpha=0.5)
    turn = np.linspace(0, np.pi, 200)
    middle, radius = (1 + gamma) / 2, (1 - gamma) / 2
    ax.plot(middle + radius * np.cos(turn), radius * np.sin(turn), color=_INK, label="Eq. B.4")
    slope = radius / np.sqrt(middle**2 - radius**2)
    ax.plot([0, 1.05], [0, 1.05 * slope], "--", color=figures.colours["vermilion"], label="Eq. 11")
    ax.plot(gamma, 0, "D", color=figures.colours["purple"], clip_on=False, label=r"$\gamma_K$")
    ax.set(aspect="equal", xlim=(0.45, 1.05), ylim=(0, 0.36))
    ax.set(xlabel=r"along $u$, per $\|u\|$")
