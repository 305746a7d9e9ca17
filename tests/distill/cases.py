"""Closed-form logit gradients, and random arguments that fit every method."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from lib.distill import OBJECTIVES, objective_loss
from tests.tpkd.states import random_states

NAMES = list(OBJECTIVES)
SURROGATES = [name for name, spec in OBJECTIVES.items() if spec.surrogate]
SUMS = [name for name in NAMES if name != "dto-kd"]  # losses that are means over examples


def arguments(seed: int, count: int, classes: int, scale: float = 3.0, zeros: float = 0.0) -> dict:
    """Everything that any method takes, in float64."""
    student, teacher, labels = random_states(seed, count, classes, scale, zeros)
    frozen, auxiliary, _ = random_states(seed + 1, count, classes, scale)
    return {
        "student_logits": student,
        "teacher_logits": teacher,
        "labels": labels,
        "frozen_logits": frozen,
        "auxiliary_logits": auxiliary,
    }


def rows(values: dict, start: int, stop: int) -> dict:
    """The same arguments for some of the examples."""
    return {name: tensor[start:stop] for name, tensor in values.items()}


def evaluate(name: str, values: dict, **options: object) -> tuple[Tensor, Tensor, Tensor | None]:
    """The loss and its gradients in the student's and the auxiliary logits."""
    leaves = {
        key: values[key].clone().requires_grad_() for key in ("student_logits", "auxiliary_logits")
    }
    loss = objective_loss(name, **{**values, **leaves}, **options)
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return loss.detach(), *grads


def split(values: dict, temperature: float = 1.0) -> dict[str, Tensor]:
    """p, t, p0, e, and the conditional r, q with a zero at the label, from plain softmaxes."""
    labels = values["labels"]
    found = {"e": one_hot(labels, values["student_logits"].shape[-1]).double()}
    found["y"] = found["e"].bool()
    for full, part, key in (("p", "r", "student_logits"), ("t", "q", "teacher_logits")):
        found[full] = (values[key] / temperature).softmax(-1)
        rest = found[full].masked_fill(found["y"], 0.0)
        found[part] = rest / rest.sum(-1, keepdim=True)
    found["p0"] = values["frozen_logits"].softmax(-1)
    return found


def closed_form(name: str, values: dict) -> Tensor:
    """The gradient per example that the definition of a method prescribes, at default options."""
    at = split(values)
    h = at["p"] - at["e"]
    if name == "kd":
        soft = split(values, 4.0)
        return h + 4 * (soft["p"] - soft["t"])
    if name == "kl-dist":
        return at["p"] - at["t"]
    if name == "xe-kl":
        return at["p"] - (at["t"] + at["e"]) / 2
    if name == "dkd":
        soft = split(values, 4.0)
        gap = ((soft["p"] - soft["t"]) * soft["e"]).sum(-1, keepdim=True)
        return h + 4 * gap * (soft["e"] - soft["r"]) + 8 * 4 * (soft["r"] - soft["q"])
    if name == "dp-u":
        chosen = at["t"].amax(-1) > at["p0"].amax(-1)
        return at["p"] - torch.where(chosen.unsqueeze(-1), at["t"], at["p0"])
    if name == "dp-s":
        chosen = at["t"][at["y"]] > at["p0"][at["y"]]
        return at["p"] - torch.where(chosen.unsqueeze(-1), at["t"], at["p0"])
    if name in ("ce", "dhkd"):
        return h
    return safe_direction(name, at)


def safe_direction(name: str, at: dict[str, Tensor]) -> Tensor:
    """The direction of TPKD and its controls, by sorting and prefix means."""
    h, u = at["p"] - at["e"], at["r"] - at["q"]
    classes = h.shape[-1]
    d = project(u, at["y"])
    push = (1 - at["e"]) / (classes - 1) - at["e"]
    return {
        "tpkd": h + d / 2,
        "tpkd-no-label": d / 2,
        "tpkd-full-kl": h + project(at["p"] - at["t"], at["y"]) / 2,
        "tpkd-no-projection": h + u / 2,
        "compensation-only": h - d[at["y"]].unsqueeze(-1) * push / 2,
    }[name]


def project(x: Tensor, y: Tensor) -> Tensor:
    """Eq. B.1 as it stands, for rows x and masks y of the label."""
    ascending = x.masked_fill(y, torch.inf).sort(-1).values[..., :-1]
    sums = torch.cat([torch.zeros_like(x[..., :1]), ascending.cumsum(-1)], -1)
    counts = torch.arange(1, x.shape[-1] + 1)
    zeta = ((sums + x[y].unsqueeze(-1)) / counts).amin(-1, keepdim=True)
    return torch.where(y, zeta, torch.maximum(x, zeta))
