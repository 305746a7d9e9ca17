"""The tables of the chapter "What training does": ours, row by row, beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lib.book.pages.what_training_does import Study, triple
from lib.distill.certificates import Certificate, Certificates
from lib.distill.evaluation import measure
from lib.distill.mechanism import HEAD_STEPS, Blocking, HeadSteps
from lib.distill.native import Continuation
from lib.tpkd import log_odds

PAPER = {  # Tables 1 to 3 as printed, and Section 6 on 128 further steps
    "epochs": (20, 40, 60),
    "share": (0.5000, 0.5529, 0.5890),
    "conditional_kl": (1.696, 1.766, 1.803),
    "cost": (7.520, 7.632, 7.569),
    "gain": (1.195e-3, 1.213e-3),
    "kl_change": (-1.359e-3, -1.283e-3),
    "retention": (0.5213, 0.5213),
    "cosine": (0.7220, 0.7221),
    "potential_change": (-3.302e-3, -1.831e-3),
    "native_gain": (8.252e-3, 9.886e-3),
    "continued": {"tpkd": 1.557, "ce": 1.557 + 0.244, "compensation-only": 1.557 + 0.320},
    "start": 1.800,
}
NAMES = {
    "ce": "CE",
    "compensation-only": "compensation only",
    "tpkd": "TPKD",
    "tpkd-no-projection": "no projection",
    "ce-plus-kl": "CE + full KL",
}
BLOCKING = ("share", "conditional_kl", "cost")
ENDS = ("conditional KL", "label loss", "right, %", "log-odds", "spread of wrong logits")
ARMS = {  # colour, marker and line
    "ce": ("grey", "s", "-"),
    "compensation-only": ("vermilion", "^", "--"),
    "tpkd": ("blue", "o", "-"),
    "tpkd-no-projection": ("green", "v", ":"),
}


def blocking_columns(table: Mapping[int, Blocking]) -> dict[str, list[float]]:
    """Return share, conditional KL and cost at each state; a column without a gap in every state.

    Args:
        table: of `blocking`.

    Returns:
        Lists by name; means over no blocked example at all are left out with their column.
    """
    columns = {name: [getattr(row, name) for row in table.values()] for name in BLOCKING}
    return {name: values for name, values in columns.items() if all(map(math.isfinite, values))}


def growth(shares: Sequence[float]) -> float:
    """Return the last share over the first; infinite if the first alone is 0.

    Example:
        >>> growth([0.1, 0.3, 0.2]), growth([0.0, 0.2])
        (2.0, inf)
    """
    return shares[-1] / shares[0] if shares[0] else math.inf if shares[-1] else math.nan


def blocking_rows(found: Study, table: Mapping[int, Blocking], kept: Mapping) -> list[dict]:
    """Return the rows of Table 1: ours, those recorded at other profiles, and the paper's.

    Args:
        found: the study.
        table: of `blocking`.
        kept: of `claims.recorded_series`: by profile, what `blocking_columns` returned there.

    Returns:
        Rows for `tables.show`, None where nothing is blocked.
    """
    rows = []
    for step, row in table.items():
        values = [
            getattr(row, name) if row.blocked or name == "share" else None for name in BLOCKING
        ]
        rows.append((f"{found.name(step)}, ours", *values))
    for profile, columns in kept.items():
        for k in range(len(columns["share"])):
            values = [columns[name][k] if name in columns else None for name in BLOCKING]
            rows.append((f"state {k + 1}, profile {profile}", *values))
    printed = zip(*(PAPER[name] for name in BLOCKING), strict=True)
    rows += [(f"CE{n}, paper", *v) for n, v in zip(PAPER["epochs"], printed, strict=True)]
    names = ("state", "share", "conditional KL", "cost")
    return [dict(zip(names, row, strict=True)) for row in rows]


def head_rows(found: Study, steps: Mapping[int, HeadSteps]) -> list[dict]:
    """Return Table 2, the paper's rows below ours; losses in thousandths, shares in per cent."""
    rows = [
        {
            "state": f"{found.name(step)}, ours",
            "gain": 1e3 * x.gain.mean(),
            "KL change": 1e3 * x.kl_change.mean(),
            "least retained": 100 * x.retention.min(),
            "least cosine": x.cosine.min(),
            "potential": 1e3 * x.potential_change.mean(),
        }
        for step, x in steps.items()
    ]
    for k, epochs in enumerate((20, 60)):
        rows.append(
            {
                "state": f"CE{epochs}, paper",
                "gain": 1e3 * PAPER["gain"][k],
                "KL change": 1e3 * PAPER["kl_change"][k],
                "least retained": 100 * PAPER["retention"][k],
                "least cosine": PAPER["cosine"][k],
                "potential": 1e3 * PAPER["potential_change"][k],
            }
        )
    return rows


def rule_rows(steps: HeadSteps) -> list[dict]:
    """Return what each of the five rules does in a step from the same start; losses in 10^-3."""
    return [
        {
            "step": NAMES[rule],
            "conditional KL, change": 1e3 * (steps.kl[rule] - steps.start_kl).mean(),
            "loses a margin of CE's": f"{100 * steps.loses_margin(rule).double().mean():.1f} %",
            "least margin against CE": steps.margin_change[rule].min(),
        }
        for rule in HEAD_STEPS
    ]


def passed(tests: Sequence[Certificate]) -> tuple[int, int, int]:
    """Return how many pass by the class-dependent limit, the measured angle, and directly."""
    return (
        sum(test.holds for test in tests),
        sum(test.holds_measured for test in tests),
        sum(test.holds_directly for test in tests),
    )


def certificate_rows(found: Mapping[str, Sequence[Certificates]]) -> list[dict]:
    """Return a row for each state and pair of signals: largest ratio, limit, and who passes."""
    rows = []
    for name, batches in found.items():
        for pair in ("conditional", "joint"):
            tests = [getattr(batch, pair) for batch in batches]
            by_limit, measured, direct = passed(tests)
            rows.append(
                {
                    "state": name,
                    "pair": pair,
                    "largest ratio": max(test.ratio for test in tests),
                    "limit": tests[0].limit,
                    "below": f"{by_limit}/{len(tests)}",
                    "measured angle": f"{measured}/{len(tests)}",
                    "product > 0": f"{direct}/{len(tests)}",
                }
            )
    return rows


def end_columns(found: Study, path: Continuation, watched: Tensor) -> dict[str, list[float]]:
    """Return the common start of a continuation, and what each arm of it ended with.

    Args:
        found: the study, from whose last state the arms went on.
        path: of `continue_run`.
        watched: (m,), numbers of the observed examples.

    Returns:
        By column, the start and then every arm: means of conditional KL, label loss, accuracy, the
        label's log-odds, and the standard deviation of the other logits.
    """
    start, teacher, labels = triple(found, found.last, watched, torch.zeros_like(watched))
    columns: dict[str, list[float]] = {name: [] for name in ENDS}
    for logits in (start, *path.logits.values()):
        row = measure(logits, teacher, labels)
        wrong = logits[torch.arange(logits.shape[-1]) != labels[:, None]]
        spread = wrong.reshape(len(labels), -1).double().std(-1)
        odds = log_odds(logits.double(), labels)
        values = (
            row["conditional_kl"],
            row["loss"],
            100 * row["accuracy"],
            odds.mean(),
            spread.mean(),
        )
        for name, value in zip(ENDS, values, strict=True):
            columns[name].append(float(value))
    return columns


def end_rows(columns: Mapping[str, Sequence[float]]) -> list[dict]:
    """Return the rows of a table of `end_columns`, also of recorded ones with more columns."""
    names = ["start", *(NAMES[name] for name in ARMS)]
    return [
        {"arm": name} | {column: columns[column][k] for column in ENDS}
        for k, name in enumerate(names)
    ]
