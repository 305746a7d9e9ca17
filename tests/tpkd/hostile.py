"""Hostile arguments drawn from seeds, each with the name that a complaint must mention."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

FLOATS = [torch.float64, torch.float64, torch.float32, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int8, torch.uint8]
LABEL_DTYPES = [torch.int64, torch.int32, torch.int16, torch.uint8]
LARGEST = {torch.float64: 1e300, torch.float32: 1e30, torch.bfloat16: 1e30, torch.float16: 6e4}
BATCHES = [  # of student, teacher and labels
    ((), (), ()),
    ((2,), (2,), (2,)),
    ((2,), (), (2,)),
    ((), (2,), ()),
    ((1,), (1,), (2,)),
    ((2, 1), (2,), ()),
    ((0,), (0,), (0,)),
    ((0,), (), ()),
]
NO_TENSORS = [None, 1.0, [0.0, 0.0, 0.0], "logits", np.zeros(3), (1, 2, 3), {}]


@dataclass
class Draw:
    """Arguments and what is wrong with them: names, one of which the error must contain."""

    random: random.Random
    generator: torch.Generator
    values: dict = field(default_factory=dict)
    fault: tuple[str, ...] = ()
    scale: float = 0.0

    def blame(self, name: str, value: object, *also: str) -> None:
        """Put a wrong value in place of a right one."""
        self.values[name] = value
        self.fault = (name, *also)


def draw_states(seed: int, names: tuple[str, ...], may_be_zero: tuple[str, ...]) -> Draw:
    """Draw a student, a teacher and labels; `names` are those that the function takes, in order.

    The names are roles, "student", "teacher" and "labels". Two draws in five get a fault.
    """
    draw = Draw(random.Random(seed), torch.Generator().manual_seed(seed))
    choose = draw.random.choice
    classes = choose([3, 3, 4, 5, 8])
    batches = dict(zip(("student", "teacher", "labels"), choose(BATCHES), strict=True))
    for role in ("student", "teacher"):
        draw.values[role] = _logits(draw, batches[role], classes)
    draw.values["labels"] = torch.randint(classes, batches["labels"], generator=draw.generator).to(
        choose(LABEL_DTYPES)
    )
    _relate(draw, batches)
    for role in may_be_zero:
        if draw.random.random() < 0.3:
            draw.values[role] = _with_zeros(draw, draw.values[role], classes)
    draw.values = {name: draw.values[name] for name in names}
    if draw.random.random() < 0.4:
        _spoil(draw, names, may_be_zero, classes)
    return draw


def _logits(draw: Draw, batch: tuple[int, ...], classes: int) -> Tensor:
    dtype = draw.random.choice(DTYPES)
    shape = (*batch, classes)
    if not dtype.is_floating_point:
        low, high = (0, 200) if dtype == torch.uint8 else (-100, 100)
        draw.scale = max(draw.scale, 200.0)
        return torch.randint(low, high, shape, generator=draw.generator).to(dtype)
    scale = draw.random.choice([0.0, 1e-3, 1.0, 5.0, 30.0, 1e4, LARGEST[dtype]])
    draw.scale = max(draw.scale, scale)
    unit = torch.rand(shape, generator=draw.generator, dtype=torch.float64) * 2 - 1
    return (unit * scale).to(dtype)


def _relate(draw: Draw, batches: dict[str, tuple[int, ...]]) -> None:
    """Make student and teacher equal, equal up to a shift, or nearly so, now and then."""
    kind = draw.random.random()
    student = draw.values["student"]
    if kind > 0.25 or batches["student"] != batches["teacher"]:
        return
    if kind < 0.1 or not student.is_floating_point():
        draw.values["teacher"] = student.clone()
    elif kind < 0.15:
        draw.values["teacher"] = (student.clamp(-8, 8) * 4).round() / 4 + 2.0
        draw.values["student"] = (student.clamp(-8, 8) * 4).round() / 4
    else:
        noise = torch.randn(student.shape, generator=draw.generator, dtype=torch.float64)
        draw.values["teacher"] = (student.double() + 1e-6 * noise).to(student.dtype)


def _with_zeros(draw: Draw, logits: Tensor, classes: int) -> Tensor:
    """-inf in some places; two classes stay possible, so that one besides any label does."""
    if not logits.is_floating_point():
        return logits
    off = torch.rand(logits.shape, generator=draw.generator) < 0.4
    off[..., draw.random.sample(range(classes), 2)] = False
    return logits.masked_fill(off, -math.inf)


def _spoil(draw: Draw, names, may_be_zero, classes: int) -> None:
    """Put one thing wrong."""
    choose = draw.random.choice
    name = choose(names)
    value = draw.values[name]
    kind = choose(["type", "dtype", "value", "value", "shape", "shape", "layout"])
    if kind == "type":
        wrong = choose(NO_TENSORS)
        draw.blame(name, wrong)
    elif kind == "layout":
        draw.blame(name, choose([torch.zeros_like(value, device="meta"), value.to_sparse()]))
        if value.ndim == 0:
            draw.blame(name, torch.zeros_like(value, device="meta"))
    elif kind == "dtype":
        wrong = [torch.bool, torch.complex64, *([torch.float32] if name == "labels" else [])]
        draw.blame(name, value.to(choose(wrong)))
    elif kind == "shape":
        _misshape(draw, name, names, classes)
    elif value.numel():
        _bad_value(draw, name, may_be_zero, classes)


def _misshape(draw: Draw, name: str, names, classes: int) -> None:
    value = draw.values[name]
    others = [other for other in names if other != name]
    if draw.random.random() < 0.5 and name != "labels":
        few = draw.random.choice([value[..., :2], value[..., :0], value[..., 0].sum()])
        draw.blame(name, few)
    elif len(names) > 1:
        batch = torch.broadcast_shapes(
            *(v.shape[: v.ndim - (n != "labels")] for n, v in draw.values.items() if n != name)
        )
        misfit = (7,) if batch and batch[-1] != 1 else None
        if misfit is None and name == "student" and "teacher" in names:
            draw.blame(name, torch.zeros(classes + 1), *others)
        elif misfit is not None:
            tail = () if name == "labels" else (classes,)
            draw.blame(name, torch.zeros((*misfit, *tail), dtype=value.dtype), *others)


def _bad_value(draw: Draw, name: str, may_be_zero, classes: int) -> None:
    value = draw.values[name].clone()
    place = tuple(draw.random.randrange(size) for size in value.shape)
    if name == "labels":
        value = value.to(torch.int64)
        value[place] = draw.random.choice([-1, classes, 10**9, -(2**62)])
    elif draw.random.random() < 0.3 and name in may_be_zero and _all_full(draw):
        value = torch.full_like(value, -math.inf, dtype=torch.float32)
    else:
        bad = [math.nan, math.inf] + ([] if name in may_be_zero else [-math.inf])
        value = value if value.is_floating_point() else value.float()
        value[place] = draw.random.choice(bad)
    draw.blame(name, value)


def _all_full(draw: Draw) -> bool:
    """Whether there is an example: none, no complaint."""
    return all(value.numel() for value in draw.values.values())


def number(
    draw: Draw, name: str, right: list, wrong: list, batch: tuple[int, ...], tensors: bool = True
) -> None:
    """Add a further argument: a number, or a tensor that broadcasts, or something wrong."""
    value = draw.random.choice(right)
    if tensors and draw.random.random() < 0.4:
        shape = draw.random.choice([batch, (), (3, *([1] * len(batch)))])
        value = torch.full(shape, value, dtype=torch.float64)
    draw.values[name] = value
    if not draw.fault and draw.random.random() < 0.15:
        numbers = [*wrong, math.nan, "half", None, True, [0.5], torch.tensor(1j)]
        draw.blame(name, draw.random.choice(numbers))
        if batch and batch[-1] > 1 and draw.random.random() < 0.2:
            draw.blame(name, torch.zeros(5))
