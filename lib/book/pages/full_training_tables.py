"""What the page "Full training" puts into tables: Table 4 as printed, rows of recorded runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from lib.book.pages.distillation_runs import (
    MethodRuns,
    interval_factor,
    paired_difference,
    spread_text,
)
from lib.distill import OBJECTIVES

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
THREE = ("ce", "kd", "tpkd")


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


def printed(method: str, text: bool) -> str:
    """Return an entry of Table 4 as the paper prints it.

    Args:
        method: one of `METHODS`.
        text: CLINC150 instead of CIFAR-100.

    Example:
        >>> printed("tpkd", False)
        '88.05 ± 0.12'
    """
    mean, deviation = PUBLISHED[method][bool(text)]
    return f"{mean:.2f} ± {deviation:.2f}"


def rank(rows: Mapping[str, MethodRuns], method: str) -> int:
    """Return the place of a method by its mean accuracy, one more than how many are better.

    Args:
        rows: by method.
        method: one of them.
    """
    means = {name: float(row.accuracy.mean()) for name, row in rows.items()}
    return 1 + sum(mean > means[method] for mean in means.values())


def accuracies(rows: Mapping[str, MethodRuns], prefix: str = "") -> dict[str, list[float]]:
    """Return the accuracies of all seeds as lists, which a record can hold.

    Args:
        rows: by method.
        prefix: of the names, for example a setting and a kind of teacher.
    """
    return {f"{prefix} {name}".strip(): row.accuracy.tolist() for name, row in rows.items()}


def contrast_rows(series: Mapping[str, Sequence[float]]) -> list[dict[str, str]]:
    """Return a row for each setting and teacher: three accuracies and two paired differences.

    Args:
        series: accuracies of the seeds by "setting teacher method", with "ce", "kd" and "tpkd".

    Returns:
        Rows for `lib.book.tables.show`.

    Example:
        >>> found = {f"tiny sharp {name}": [90.0, 91.0] for name in ("ce", "kd", "tpkd")}
        >>> contrast_rows(found)[0]["TPKD - KD"]
        '+0.00 ± 0.00'
    """
    rows = []
    for place in dict.fromkeys(name.rsplit(" ", 1)[0] for name in series):
        ce, kd, tpkd = (torch.tensor(series[f"{place} {name}"]) for name in THREE)
        row = dict(zip(("setting", "teacher"), place.split(), strict=True))
        row |= {"CE": spread_text(ce), "KD": spread_text(kd), "TPKD": spread_text(tpkd)}
        for name, other in (("CE", ce), ("KD", kd)):
            found = paired_difference(tpkd, other)
            row[f"TPKD - {name}"] = f"{found.mean:+.2f} ± {found.half:.2f}"
        rows.append(row)
    return rows


def recorded_rows(
    images: Mapping[str, Sequence[float]], text: Mapping[str, Sequence[float]]
) -> list[dict[str, str | None]]:
    """Return the rows of Table 4 from recorded accuracies, beside the paper's.

    Args:
        images: accuracies of the seeds by method, or nothing.
        text: the same on text.

    Returns:
        Rows for `lib.book.tables.show`.

    Example:
        >>> recorded_rows({"tpkd": [88.0, 89.0]}, {})[0]["images, ours"]
        '88.50 ± 0.71'
    """
    rows = []
    for method in (name for name in METHODS if name in images or name in text):
        row = {"method": OBJECTIVES[method].title}
        for name, paper, kept in (("images", "CIFAR-100", images), ("text", "CLINC150", text)):
            found = kept.get(method)
            row[f"{name}, ours"] = found and spread_text(torch.tensor(found))
            row[f"{paper}, paper"] = printed(method, name == "text")
        rows.append(row)
    return rows
