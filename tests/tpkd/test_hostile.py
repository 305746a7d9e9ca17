"""Hostile arguments for every public function: the right value, or an error that names the culprit.

Each draw is valid or has one fault, and the test knows which. A valid draw must give the value of
the 60-digit reference in the promoted dtype; a faulty one a ValueError with the argument's name.
"""

import math
from dataclasses import dataclass

import pytest
import torch

import lib.tpkd as tpkd
from lib.tpkd.imitation import safe_imitation
from tests.tpkd import reference
from tests.tpkd.hostile import draw_states, number

DRAWS = 200  # for each function; half as many where the reference is slow
PAIR = ("student", "teacher", "labels")
PAIR_NAMES = ("student_logits", "teacher_logits", "labels")
FIELDS = ("label", "conditional", "corrected", "update", "compensation", "clipped_teacher")


@dataclass(frozen=True)
class Target:
    """A function, the roles of its first arguments with their names, and its reference.

    `kind` says how results compare: "log" relative to the logits, "bounded" values of order one
    whose error grows with the logits, "narrow" computed in float32 for float32 and narrower.
    """

    function: object
    exact: object
    roles: tuple = PAIR
    names: tuple = PAIR_NAMES
    zeros: tuple = ("teacher",)
    kind: str = "log"
    extra: str | None = None


def single(function, exact, name="logits", **options):
    return Target(function, exact, ("student", "labels"), (name, "labels"), (), **options)


def of_teacher(function, exact):
    roles = ("teacher", "labels")
    return Target(function, exact, roles, ("logits", "labels"), ("teacher",))


def directions_stacked(*arguments):
    """All fields as one tensor (..., 6, K); the compensation repeated."""
    found = tpkd.directions(*arguments)
    fields = [getattr(found, name) for name in FIELDS]
    fields[4] = fields[4].unsqueeze(-1).expand(fields[0].shape)
    return torch.stack(torch.broadcast_tensors(*fields), -2)


def exact_directions(z, w, y, weight):
    found = reference.directions(z, w, y, weight)
    rows = [found[name] for name in FIELDS]
    rows[4] = [rows[4]] * len(z)
    return [x for row in rows for x in row]


def exact_confidence_limit(z, w, y):
    return -math.expm1(float(reference.blocked_mass(z, w, y)))


def exact_potential(z, w, y, weight):
    with_label = reference.weighted_label_loss(z, y, [1.0] * len(z))
    return float(with_label) * weight + float(reference.conditional_kl(z, w, y))


def exact_compensation_bounds(z, w, y):
    u = reference.directions(z, w, y)["conditional"]
    variation = float(sum(map(abs, u))) / 2
    return [variation / (len(z) - 1), variation / 2]


def exact_component(vector, y):
    push = vector[y] / (len(vector) - 1)
    return [0.0 if j == y else x + push for j, x in enumerate(vector)]


def after_one_step(student, teacher, labels, step_size):
    return tpkd.run_output_steps(student, teacher, labels, step_size, 1, record=[1]).logits[0]


def exact_step(z, w, y, step_size):
    update = reference.directions(z, w, y)["update"]
    return [a - step_size * float(b) for a, b in zip(z, update, strict=True)]


def exact_optimum(*row):
    return [math.exp(x) for x in reference.frontier_optimum(*row)]


def minimum_confidence(*row):
    return reference.sigmoid(reference.minimum_log_odds(*row))


TARGETS = {
    "margins": single(tpkd.margins, reference.margins),
    "log_odds": of_teacher(tpkd.log_odds, reference.log_odds),
    "conditional_log_probs": of_teacher(
        tpkd.conditional_log_probs, reference.conditional_log_probs
    ),
    "weighted_label_loss": single(
        tpkd.weighted_label_loss,
        lambda z, y: reference.weighted_label_loss(z, y, [1.0] * len(z)),
    ),
    "project_onto_safe_cone": single(
        tpkd.project_onto_safe_cone, reference.project, "vector", kind="narrow"
    ),
    "conditional_component": single(
        tpkd.conditional_component, exact_component, "corrected", kind="narrow"
    ),
    "full_kl": Target(
        tpkd.full_kl, reference.full_kl, ("student", "teacher"), PAIR_NAMES[:2], ("teacher",)
    ),
    "conditional_kl": Target(tpkd.conditional_kl, reference.conditional_kl),
    "bernoulli_kl": Target(tpkd.bernoulli_kl, reference.bernoulli_kl),
    "is_blocked": Target(tpkd.is_blocked, reference.is_blocked, kind="bool"),
    "blocked_confidence_limit": Target(
        tpkd.blocked_confidence_limit, exact_confidence_limit, kind="bounded"
    ),
    "blocked_log_odds_limit": Target(tpkd.blocked_log_odds_limit, reference.blocked_log_odds_limit),
    "label_only_optimum": Target(tpkd.label_only_optimum, reference.label_only_optimum),
    "label_only_kl": Target(tpkd.label_only_kl, reference.label_only_kl),
    "safe_imitation": Target(safe_imitation, reference.safe_imitation),
    "transfer_cost": Target(tpkd.transfer_cost, reference.transfer_cost),
    "minimum_log_odds": Target(tpkd.minimum_log_odds, reference.minimum_log_odds),
    "minimum_confidence": Target(tpkd.minimum_confidence, minimum_confidence, kind="bounded"),
    "safe_path": Target(tpkd.safe_path, reference.safe_path, extra="s"),
    "transfer_frontier": Target(
        tpkd.transfer_frontier, reference.transfer_frontier, extra="budget"
    ),
    "frontier_optimum": Target(
        lambda *a: tpkd.frontier_optimum(*a).exp(), exact_optimum, kind="bounded", extra="budget"
    ),
    "directions": Target(directions_stacked, exact_directions, kind="narrow", extra="weight"),
    "potential": Target(tpkd.potential, exact_potential, extra="weight"),
    "compensation_bounds": Target(
        lambda *a: torch.stack(tpkd.compensation_bounds(*a), -1), exact_compensation_bounds
    ),
    "update_direction": Target(
        lambda *a: tpkd.update_direction("tpkd", *a),
        lambda *row: reference.directions(*row)["update"],
        kind="narrow",
        extra="weight",
    ),
    "run_output_steps": Target(after_one_step, exact_step, kind="wide", extra="step_size"),
}
RIGHT = {
    "s": [0.0, 0.3, 1.0],
    "budget": [0.0, 0.1, 2.0, 1e4, math.inf],
    "weight": [0.0, 0.5, 2.0],
    "step_size": [0.0, 0.1, 0.8],
}
WRONG = {
    "s": [-0.1, 1.1, math.inf],
    "budget": [-1e-9, -math.inf],
    "weight": [-0.5, math.inf],
    "step_size": [-0.5, math.inf, torch.zeros(3)],
}


def refuse(draw, function, *arguments):
    """The call must fail, and say which argument is at fault."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        function(*arguments)
    assert any(name in str(caught.value) for name in draw.fault), str(caught.value)


def batch_of(values):
    return torch.broadcast_shapes(
        *(v.shape[: v.ndim - (name != "labels")] for name, v in values.items())
    )


def promoted(values):
    dtype = torch.empty((), dtype=torch.float32).dtype
    found = None
    for name, value in values.items():
        if name != "labels":
            own = value.dtype if value.is_floating_point() else dtype
            found = own if found is None else torch.promote_types(found, own)
    return found


def rows_of(values, batch):
    """The arguments of each example, as Python numbers."""
    columns = []
    for name, value in values.items():
        tail = value.shape[-1:] if name in ("student", "teacher") else ()
        value = value if name == "labels" else value.double()
        value = value.expand((*batch, *tail)).reshape((-1, *tail))
        columns.append(value.tolist())
    return zip(*columns, strict=True)


def agree(found, exact, dtype, draw, kind):
    """Compare with tolerances of the dtype and of the logits' size."""
    dtype = torch.float64 if kind == "wide" else dtype
    assert found.dtype == (torch.bool if kind == "bool" else dtype)
    assert not bool(found.isnan().any())
    exact = torch.tensor(exact, dtype=torch.float64).reshape(found.shape)
    if kind == "bool":
        return torch.testing.assert_close(found.double(), exact)
    narrow = kind == "narrow" and dtype != torch.float64
    unit = torch.finfo(dtype).eps
    size = 1 + draw.scale
    atol = size * (4e-7 if narrow else 4e-15) + torch.finfo(dtype).tiny
    rtol = max((50 if kind == "bounded" else 2) * unit, 4e-6 if narrow else 1e-10)
    if kind == "bounded" and draw.scale > 1e6:
        assert bool(((found >= 0) & (found <= 1)).all())
        return None
    exact = exact.to(dtype)
    infinite = exact.isinf()
    if draw.scale * 8 < torch.finfo(dtype).max:
        assert torch.equal(found[infinite], exact[infinite])
    finite = ~(infinite | found.isinf())
    close = torch.testing.assert_close
    return close(found[finite].double(), exact[finite].double(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", TARGETS)
def test_states(name):
    target = TARGETS[name]
    faults, draws = 0, DRAWS // 2 if target.extra == "budget" else DRAWS
    for seed in range(draws):
        draw = draw_states(seed + 1000 * len(name), target.roles, target.zeros)
        translate = dict(zip(target.roles, target.names, strict=True))
        draw.fault = tuple(translate.get(role, role) for role in draw.fault)
        values = {role: draw.values[role] for role in target.roles}
        sound = not draw.fault
        if target.extra:
            batch = batch_of(values) if sound else ()
            tensors = target.extra != "step_size"
            right, wrong = RIGHT[target.extra], WRONG[target.extra]
            number(draw, target.extra, right, wrong, batch, tensors)
        arguments = list(draw.values.values())
        if draw.fault:
            refuse(draw, target.function, *arguments)
            faults += 1
            continue
        found = target.function(*arguments)
        batch = batch_of(values)
        if target.extra:
            extra = torch.as_tensor(draw.values[target.extra], dtype=torch.float64)
            batch = torch.broadcast_shapes(batch, extra.shape)
            values[target.extra] = extra
        assert found.shape[: len(batch)] == batch
        exact = [as_floats(target.exact(*row)) for row in rows_of(values, batch)]
        agree(found, exact, promoted({r: values[r] for r in target.roles}), draw, target.kind)
    assert draws * 0.2 < faults < draws * 0.6


def as_floats(value):
    return [float(x) for x in value] if isinstance(value, list) else float(value)
