"""One look for every figure: colour-blind safe, light background, sharp on any screen.

The figure background is white, which stays readable on the grey panel that the theme lays under
pictures in dark mode. The colours are the palette "colorblind" of seaborn, by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np

from lib.book.session import current_profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

colours = {
    "blue": "#0173b2",
    "orange": "#de8f05",
    "green": "#029e73",
    "vermilion": "#d55e00",
    "purple": "#cc78bc",
    "brown": "#ca9161",
    "pink": "#fbafe4",
    "grey": "#949494",
    "yellow": "#ece133",
    "sky": "#56b4e9",
}

_INK = "#262626"
_WIDTH, _ASPECT, _STAMP = 7.2, 0.62, 0.2

_STYLE = {
    "figure.figsize": (_WIDTH, _ASPECT * _WIDTH * 0.8),
    "figure.facecolor": "white",
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
    "savefig.facecolor": "white",
    "savefig.dpi": 200,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": plt.cycler(color=list(colours.values())),
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "image.cmap": "cividis",
    "svg.hashsalt": "what-the-student-learns",
}


def set_style() -> None:
    """Sets the style for every figure that follows, and sharp PNG output in a notebook."""
    plt.rcParams.update(_STYLE)
    try:
        from IPython import get_ipython
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return
    shell = get_ipython()
    if shell is not None and hasattr(shell, "kernel"):
        set_matplotlib_formats("retina", bbox_inches=None)


def new(
    rows: int = 1, columns: int = 1, width: float | None = None, height: float | None = None
) -> tuple[Figure, Any]:
    """Returns a new figure in the book's style.

    Args:
        rows: rows of panels, 1 or more.
        columns: columns of panels, 1 or more.
        width: inches, the text's width by default.
        height: inches, by default so that a panel is 0.62 times as high as it is wide (0.5 where
            there is one panel).

    Returns:
        The figure and its axes: one ``Axes`` for one panel, else an array as from
        ``matplotlib.pyplot.subplots``.

    Raises:
        ValueError: where ``rows`` or ``columns`` is below 1, or a size is not positive.

    Example:
        >>> fig, axes = new(columns=2)
        >>> axes.shape, float(fig.get_figwidth())
        ((2,), 7.2)
        >>> plt.close(fig)
    """
    for name, value in (("rows", rows), ("columns", columns)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a whole number, 1 or more.")
    for name, value in (("width", width), ("height", height)):
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value!r}; it must be above 0 inches.")
    width = width or _WIDTH
    aspect = 0.5 if rows == columns == 1 else _ASPECT if columns < 3 else 0.9
    height = height or rows * aspect * width / columns + (0.3 if columns > 1 else 0.0)
    return plt.subplots(rows, columns, figsize=(width, height))


def band(
    ax: Axes, x: Any, samples: Any, label: str, colour: str = "blue", **line_options: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws the mean over repetitions and the interval that holds 95 % of them.

    The band spans the 2.5 % and 97.5 % quantiles over axis 0, so it shows how much single
    repetitions differ, not how well the mean is known.

    Args:
        ax: where to draw.
        x: (T,) positions.
        samples: (repetitions, T) values, at least 2 repetitions, all finite.
        label: the legend's text.
        colour: a name from :data:`colours` or any colour of matplotlib.
        **line_options: handed to ``ax.plot`` for the mean.

    Returns:
        ``(mean, low, high)``, each (T,).

    Raises:
        ValueError: for other shapes, fewer than 2 repetitions, or a value that is not finite.

    Example:
        >>> fig, ax = new()
        >>> mean, low, high = band(ax, [0.0, 1.0], [[0.0, 2.0], [1.0, 4.0]], "two runs")
        >>> mean.tolist(), low.round(3).tolist()
        ([0.5, 3.0], [0.025, 2.05])
        >>> plt.close(fig)
    """
    x, samples = np.asarray(x, dtype=float), np.asarray(samples, dtype=float)
    if samples.ndim != 2 or samples.shape[0] < 2 or x.shape != samples.shape[1:]:
        raise ValueError(
            f"samples has shape {samples.shape} and x {x.shape}; allowed: (repetitions, T) with 2 "
            "or more repetitions, and (T,)."
        )
    if not np.isfinite(samples).all():
        bad = int((~np.isfinite(samples)).sum())
        raise ValueError(f"samples holds {bad} values that are not finite; drop or mend them.")
    mean = samples.mean(axis=0)
    low, high = np.quantile(samples, [0.025, 0.975], axis=0)
    colour = colours.get(colour, colour)
    ax.plot(x, mean, label=label, color=colour, **line_options)
    ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    return mean, low, high


def reference(ax: Axes, value: float, label: str, axis: str = "y") -> None:
    """Draws a dashed line at a value that the paper or the theory gives.

    Args:
        ax: where to draw.
        value: the position, finite.
        label: the legend's text.
        axis: ``"y"`` for a horizontal line at ``y = value``, ``"x"`` for a vertical one.

    Raises:
        ValueError: for another axis, or a value that is not finite.
    """
    if axis not in ("x", "y"):
        raise ValueError(f"axis is {axis!r}; allowed: 'x', 'y'.")
    if not np.isfinite(float(value)):
        raise ValueError(f"value is {value!r}; it must be finite.")
    draw = ax.axhline if axis == "y" else ax.axvline
    draw(float(value), color=_INK, linestyle=(0, (5, 3)), linewidth=1.2, label=label)


def stamp(fig: Figure, made_from: str) -> None:
    """Writes a small grey note under a figure: the data or task, and the profile, that made it.

    Args:
        fig: the figure.
        made_from: the data set or task, a few words.

    Raises:
        ValueError: where ``made_from`` is empty.
    """
    if not isinstance(made_from, str) or not made_from.strip():
        raise ValueError(f"made_from is {made_from!r}; name the data or task.")
    share = _STAMP / fig.get_figheight()
    engine = fig.get_layout_engine()
    if engine is not None and "rect" in engine.get():
        engine.set(rect=(0.0, share, 1.0, 1.0 - share))
    note = f"{made_from.strip()} · profile {current_profile()}"
    fig.text(0.995, 0.15 * share, note, ha="right", va="bottom", fontsize=8.5, color="#666666")
