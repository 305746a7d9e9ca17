"""The methods of Table 4 and the controls of Table 5: what each needs, and its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from lib.distill.batch import Batch
from lib.distill.decoupled import dkd_losses
from lib.distill.dto import DTO_RULES, combine_weighted, dto_losses, weigh_losses
from lib.distill.dual_head import combine_aligned, dhkd_losses, sum_losses
from lib.distill.kd import kd_losses, kl_dist_losses, xe_kl_losses
from lib.distill.label import ce_losses
from lib.distill.options import Choice, Flag, Number, Rule, temperature
from lib.distill.partition import dp_s_losses, dp_u_losses
from lib.distill.tpkd import (
    compensation_only_losses,
    full_kl_losses,
    no_label_losses,
    no_projection_losses,
    tpkd_losses,
)

Losses = Callable[[Batch, Mapping[str, object], int | None], tuple[Tensor, ...]]
Total = Callable[[Batch, tuple[Tensor, ...], Mapping[str, object]], Tensor]
Combine = Callable[[tuple[Tensor, ...], tuple[Tensor, ...], Mapping[str, object]], Tensor]


@dataclass(frozen=True)
class Objective:
    """What a method needs, and how its losses are computed.

    Attributes:
        title: the method's name in Table 4 or Table 5.
        source: where it is defined.
        losses: the function that computes its losses per example; its docstring has the formula.
        rules: what each option may be, by name.
        needs_teacher: whether it needs teacher logits.
        needs_conditional: whether the teacher must give some class besides the label a probability.
        needs_frozen: whether it needs the logits of the student before training.
        needs_auxiliary: whether it needs the logits of a second head.
        backward_passes: 2 if the method combines the gradients of a task and a distillation loss.
        surrogate: whether the value of the loss means nothing and only its gradient counts.
        text_options: options that differ from the defaults in the text protocol.
        vision_weight_decay: of the vision protocol.
        total: makes one loss of two.
        combine: makes one gradient of two.
    """

    title: str
    source: str
    losses: Losses
    rules: Mapping[str, Rule]
    needs_teacher: bool = True
    needs_conditional: bool = False
    needs_frozen: bool = False
    needs_auxiliary: bool = False
    backward_passes: int = 1
    surrogate: bool = False
    text_options: Mapping[str, float | bool | str] = field(default_factory=dict)
    vision_weight_decay: float = 1e-3
    total: Total | None = None
    combine: Combine | None = None

    @property
    def options(self) -> dict[str, float | bool | str]:
        """Every option with its default, from Appendix E.1 where it says one."""
        return {name: rule.default for name, rule in self.rules.items()}


_ROTH = "Roth et al. (2024), Fantastic Gains and Where to Find Them"
_TPKD = "Yuan & Tao (2026), Eqs. 6 and 8"
_CONTROL = "Yuan & Tao (2026), Table 5 and Appendix E.5"
_WEIGHT = {"weight": Number(0.5)}
_SAFE = {"needs_conditional": True, "surrogate": True}

OBJECTIVES: dict[str, Objective] = {
    "ce": Objective("CE", "Yuan & Tao (2026), Section 3", ce_losses, {}, needs_teacher=False),
    "kd": Objective(
        "KD",
        "Hinton, Vinyals & Dean (2015)",
        kd_losses,
        {"temperature": temperature(4.0), "ce_weight": Number(1.0), "kd_weight": Number(1.0)},
    ),
    "kl-dist": Objective(
        "KL-Dist",
        _ROTH,
        kl_dist_losses,
        {"ce_weight": Number(0.0)},
        vision_weight_decay=1e-4,
    ),
    "dkd": Objective(
        "DKD",
        "Zhao et al. (2022), Decoupled Knowledge Distillation",
        dkd_losses,
        {
            "temperature": temperature(4.0),
            "ce_weight": Number(1.0),
            "alpha": Number(1.0),
            "beta": Number(8.0),
            "warmup_epochs": Number(20.0),
            "steps_per_epoch": Number(1.0, 1e-3, 1e12),
        },
        needs_conditional=True,
        text_options={"warmup_epochs": 2.0, "steps_per_epoch": 281.25},
    ),
    "dp-u": Objective("DP-U", _ROTH, dp_u_losses, {}, needs_frozen=True),
    "dp-s": Objective("DP-S", _ROTH, dp_s_losses, {}, needs_frozen=True),
    "xe-kl": Objective(
        "XE-KL",
        _ROTH,
        xe_kl_losses,
        {"kl_weight": Number(0.5, 0.0, 1.0), "double_softmax": Flag(False)},
        vision_weight_decay=1e-4,
    ),
    "dhkd": Objective(
        "DHKD",
        "Yang et al. (2025), Dual-Head Knowledge Distillation",
        dhkd_losses,
        {
            "temperature": temperature(2.0),
            "gamma": Number(1.0),
            "alpha": Number(1.0),
            "variant": Choice("norm", ("norm", "plain")),
            "align": Flag(True),
        },
        needs_auxiliary=True,
        backward_passes=2,
        total=sum_losses,
        combine=combine_aligned,
    ),
    "dto-kd": Objective(
        "DTO-KD",
        "Hayder et al. (2026), Dynamic Trade-off Optimization",
        dto_losses,
        DTO_RULES,
        backward_passes=2,
        total=weigh_losses,
        combine=combine_weighted,
    ),
    "tpkd": Objective("TPKD", _TPKD, tpkd_losses, _WEIGHT, **_SAFE),
    "tpkd-no-label": Objective("Without CE gradient", _CONTROL, no_label_losses, _WEIGHT, **_SAFE),
    "tpkd-full-kl": Objective("Safe full KL", _CONTROL, full_kl_losses, _WEIGHT, surrogate=True),
    "tpkd-no-projection": Objective(
        "Without projection", _CONTROL, no_projection_losses, _WEIGHT, **_SAFE
    ),
    "compensation-only": Objective(
        "Compensation only",
        "Yuan & Tao (2026), Appendix E.2",
        compensation_only_losses,
        _WEIGHT,
        **_SAFE,
    ),
}
