"""What the page "Which part matters?" calls: Table 5 as printed, its rows, figures and bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lib.book.figures import colours
from lib.book.pages.distillation_runs import (
    MethodRuns,
    interval_factor,
    paired_difference,
    spread_text,
)
from lib.book.pages.student_stacks import Parts
from lib.distill import OBJECTIVES, objective_loss
from lib.tpkd import conditional_log_probs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS = ("ce", "tpkd-no-label", "tpkd-full-kl", "tpkd-no-projection", "tpkd")
DIRECTIONS = dict(zip(ROWS, ("h", "d/2", "h + Π(p - t)/2", "h + u/2", "h + d/2"), strict=True))
PUBLISHED = {
    "ce": ((87.37, 0.07), (93.24, 0.28)),
    "tpkd-no-label": ((85.33, 0.05), (91.60, 0.07)),
    "tpkd-full-kl": ((87.21, 0.04), (93.33, 0.29)),
    "tpkd-no-projection": ((87.83, 0.03), (93.83, 0.23)),
    "tpkd": ((88.05, 0.12), (93.81, 0.27)),
}  # mean and sample deviation over three seeds: CIFAR-100, CLINC150
LOOKS = {
    "ce": ("grey", "o", "-"),
    "tpkd-no-label": ("blue", "s", "--"),
    "tpkd-full-kl": ("orange", "^", "-."),
    "tpkd-no-projection": ("green", "D", ":"),
    "tpkd": ("vermilion", "*", "-"),
}  # colour, marker, line
DOMAINS = ("images", "text")
_BARS = (
    ("label", "$h$", "grey", 1.0),
    ("corrected", "$d/2$", "vermilion", 0.5),
    ("full", r"$\Pi(p-t)/2$", "orange", 0.5),
    ("conditional", "$u/2$", "green", 0.5),
)  # part, name, colour, factor
_HATCHES = ("", "//", "..", "xx")


def published_gap(method: str, text: bool) -> float:
    """Return the printed difference to TPKD in points.

    **Source**: Yuan & Tao, Table 5.

    Args:
        method: one of `ROWS`.
        text: CLINC150 instead of CIFAR-100.

    Returns:
        Points.

    Example:
        >>> round(published_gap("tpkd-no-label", text=False), 2)
        -2.72
    """
    return PUBLISHED[method][text][0] - PUBLISHED["tpkd"][text][0]


def published_interval(method: str, text: bool, seeds: int = 3) -> tuple[float, float]:
    r"""Return how wide the 95 % interval of a printed difference to TPKD can be.

    The deviation of a difference lies between $|s_a - s_b|$ and $s_a + s_b$.

    **Source**: Yuan & Tao, Table 5; the bounds are ours.

    Args:
        method: one of `ROWS`.
        text: CLINC150 instead of CIFAR-100.
        seeds: behind each entry.

    Returns:
        The least and the largest half width, in points.

    Example:
        >>> [round(x, 2) for x in published_interval("tpkd-no-projection", text=False)]
        [0.22, 0.37]
    """
    own, best = PUBLISHED[method][text][1], PUBLISHED["tpkd"][text][1]
    factor = interval_factor(seeds)
    return factor * abs(own - best), factor * (own + best)


def objective_gradient(method: str, student: Tensor, teacher: Tensor, label: Tensor) -> Tensor:
    """Return the gradient of a row's objective in the logits of one example, by autograd.

    Args:
        method: one of `ROWS`.
        student: (K,) logits.
        teacher: (K,) logits.
        label: () int64.

    Returns:
        (K,).

    Example:
        >>> z = torch.zeros(3)
        >>> objective_gradient("tpkd-no-label", z, z, torch.tensor(0))
        tensor([0., 0., 0.])
    """
    leaf = student.detach().clone().requires_grad_()
    return torch.autograd.grad(objective_loss(method, leaf, teacher, label), leaf)[0]


def full_kl_weights(student: Tensor, teacher: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return how much of the label gradient and of the conditional one full KL contains.

    $$p - t = \frac{\tau - \rho}{1 - \rho}\, h + (1 - \tau)\, u$$

    **Source**: ours, from Yuan & Tao, Eq. 1.

    Args:
        student: (..., K) logits.
        teacher: (..., K) logits.
        labels: (...).

    Returns:
        The factors of h and of u, each (...).

    Example:
        >>> p, t = torch.tensor([0.9, 0.07, 0.03]), torch.tensor([0.4, 0.25, 0.35])
        >>> full_kl_weights(p.log(), t.log(), torch.tensor(0))
        (tensor(-5.0000), tensor(0.6000))
    """
    at = labels.unsqueeze(-1)
    logs = (z.log_softmax(-1).scatter(-1, at, -torch.inf) for z in (student, teacher))
    doubt, teacher_doubt = (values.logsumexp(-1).exp() for values in logs)  # accurate near 0
    return 1 - teacher_doubt / doubt, teacher_doubt


def favourite_margin(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """Return the student's margin over the wrong class that its teacher likes best.

    Args:
        student: (..., K) logits.
        teacher: (..., K) logits.
        labels: (...).

    Returns:
        (...).

    Example:
        >>> z = torch.tensor([3.0, 1.0, 2.0])
        >>> favourite_margin(z, torch.tensor([0.0, 5.0, 1.0]), torch.tensor(0))
        tensor(2.)
    """
    liked = conditional_log_probs(teacher, labels).argmax(-1, keepdim=True)
    return (student.gather(-1, labels.unsqueeze(-1)) - student.gather(-1, liked)).squeeze(-1)


def spoil_labels(labels: Tensor, share: float, classes: int, generator: torch.Generator) -> Tensor:
    """Replace a share of labels, each by one of the other classes.

    Args:
        labels: (n,) int64.
        share: probability that a label is replaced, in [0, 1].
        classes: K.
        generator: source of randomness; two shares replace nested sets of labels.

    Returns:
        (n,) int64.

    Example:
        >>> spoilt = spoil_labels(torch.zeros(5).long(), 1.0, 3, torch.Generator().manual_seed(0))
        >>> bool((spoilt > 0).all())
        True
    """
    drawn = torch.rand(labels.shape, generator=generator)
    shift = torch.randint(1, classes, labels.shape, generator=generator)
    return torch.where(drawn < share, (labels + shift) % classes, labels)


def kept_series(images: Mapping[str, MethodRuns], text: Mapping[str, MethodRuns]) -> dict:
    """Return what a record keeps of every row and domain, one number a seed.

    Args:
        images: the runs on images by method.
        text: the runs on text.

    Returns:
        "images ce" and so on -> accuracies; "images ce blocked" and so on -> shares of the test
        examples.
    """
    found = {}
    for name, runs in zip(DOMAINS, (images, text), strict=True):
        for m in ROWS:
            found[f"{name} {m}"] = runs[m].accuracy.tolist()
            found[f"{name} {m} blocked"] = runs[m].blocked.tolist()
    return found


def fallback_rows(series: Mapping[str, list[float]], source: str) -> list[dict[str, object]]:
    """Return how much safe full KL and TPKD gain over CE, and how many states CE blocks.

    Args:
        series: from `kept_series`.
        source: where it comes from.

    Returns:
        A row for each domain: mean differences in points, and the mean blocked share of the test
        examples at the end of CE.
    """
    rows = []
    for name in DOMAINS:
        mean = {m: float(torch.tensor(series[f"{name} {m}"]).mean()) for m in ROWS}
        row = {"runs": f"{name}, {source}"}
        row["blocked under CE"] = float(torch.tensor(series[f"{name} ce blocked"]).mean())
        row["safe full KL - CE"] = mean["tpkd-full-kl"] - mean["ce"]
        rows.append(row | {"TPKD - CE": mean["tpkd"] - mean["ce"]})
    return rows


def gaps(runs: Mapping[str, MethodRuns]) -> dict[str, float]:
    """Return the mean difference to TPKD of every other row, in points.

    Args:
        runs: of all `ROWS`, by method.

    Returns:
        Method -> points.
    """
    best = runs["tpkd"].accuracy
    return {m: float((runs[m].accuracy - best).mean()) for m in ROWS[:-1]}


def table_rows(
    runs: Mapping[str, MethodRuns], text: bool, recorded: Mapping[str, Mapping[str, list[float]]]
) -> list[dict[str, object]]:
    """Return Table 5 for one domain: as printed, of this run, and as recorded elsewhere.

    Args:
        runs: of all `ROWS`, by method.
        text: the domain.
        recorded: by profile, what `kept_series` gave there.

    Returns:
        A row for each method.
    """
    rows = []
    for m in ROWS:
        mean, sd = PUBLISHED[m][text]
        row = {"condition": OBJECTIVES[m].title, "direction": DIRECTIONS[m]}
        row |= {"paper": f"{mean:.2f} ± {sd:.2f}", "this run": runs[m].text}
        for profile, kept in recorded.items():
            row[profile] = spread_text(torch.tensor(kept[f"{DOMAINS[text]} {m}"]))
        rows.append(row)
    return rows


def draw_parts(ax: Axes, parts: Parts) -> None:
    """Draw what the rows of the table add up, class by class, at one output of three classes.

    Args:
        ax: where to draw.
        parts: of one output, label first.
    """
    for i, (field, name, colour, factor) in enumerate(_BARS):
        heights = (factor * getattr(parts, field)).tolist()
        places = [j + 0.21 * (i - 1.5) for j in range(len(heights))]
        style = {"facecolor": colours[colour], "edgecolor": "white", "hatch": _HATCHES[i]}
        ax.bar(places, heights, 0.19, label=name, linewidth=0.3, **style)
    ax.axhline(0, color="black", lw=0.9)
    ax.set_xticks(range(3), ["label", "2", "3"])


def draw_gaps(
    ax: Axes,
    runs: Mapping[str, MethodRuns],
    text: bool,
    recorded: Mapping[str, Mapping[str, list[float]]],
) -> None:
    """Draw the differences to TPKD with 95 % intervals over seeds, beside the printed ones.

    Args:
        ax: where to draw.
        runs: of all `ROWS`, by method, with two seeds or more.
        text: the domain.
        recorded: by profile, what `kept_series` gave there.
    """
    sources = {"this run": {m: runs[m].accuracy for m in ROWS}}
    for profile, kept in recorded.items():
        sources[profile] = {m: torch.tensor(kept[f"{DOMAINS[text]} {m}"]) for m in ROWS}
    looks = (("blue", "o"), ("green", "s"), ("purple", "D"), ("brown", "v"))
    for i, (source, found) in enumerate(sources.items()):
        for j, m in enumerate(ROWS[:-1]):
            gap = paired_difference(found[m], found["tpkd"])
            y = j + 0.16 * (i + 1)
            colour, marker = looks[i]
            options = {"color": colours[colour], "marker": marker, "capsize": 3}
            ax.errorbar(gap.mean, y, xerr=gap.half, label=None if j else source, **options)
    printed = [published_gap(m, text) for m in ROWS[:-1]]
    ax.plot(printed, range(4), "k*", ms=9, ls="none", label="paper")
    ax.axvline(0, color="black", lw=0.9)
    ax.set_yticks(range(4), [OBJECTIVES[m].title for m in ROWS[:-1]])
    ax.locator_params(axis="x", nbins=5)
    ax.set(xlabel="points above TPKD", title=DOMAINS[text], ylim=(3.7, -0.5))


def draw_logs(axes: Sequence[Axes], runs: Mapping[str, MethodRuns]) -> None:
    """Draw conditional KL, label loss and blocked share along training, mean over seeds.

    The bands span the seeds.

    Args:
        axes: three of them.
        runs: of all `ROWS`, by method.
    """
    for m in ROWS:
        colour, marker, style = LOOKS[m]
        logs = [result.log for result in runs[m].results]
        clock = [row["iteration"] for row in logs[0]]
        for ax, field in zip(axes, ("conditional_kl", "cross_entropy", "blocked"), strict=True):
            values = torch.tensor([[row[field] for row in log] for log in logs])
            look = {
                "color": colours[colour],
                "ls": style,
                "marker": marker,
                "markevery": (0.1, 0.2),
            }
            ax.plot(clock, values.mean(0), label=OBJECTIVES[m].title, lw=1.5, **look)
            low, high = values.amin(0), values.amax(0)
            ax.fill_between(clock, low, high, color=colours[colour], alpha=0.15, lw=0)
    axes[2].set_ylim(-0.02, max(0.2, axes[2].get_ylim()[1]))
