"""A setting that trains in a blink: three Gaussian classes, a small teacher, a linear student."""

from __future__ import annotations

import torch

from lib.distill.examples import TensorExamples
from lib.distill.recipes import SETTINGS, Materials, Setting, register
from lib.distill.recipes_vision import TEACHER
from lib.distill.streams import stream
from lib.distill.teachers import teacher_outputs
from lib.models.perceptron import perceptron

TABLE = TEACHER | {
    "train": 60,
    "test": 30,
    "classes": 3,
    "iterations": 12,
    "batch_size": 20,
    "micro_batch": 10,
    "learning_rate": 0.05,
    "weight_decay": 1e-3,
    "snapshots": [6, 12],
    "checkpoint_every": 5,
    "log_every": 4,
    "missing": False,
    "teacher_batch_size": 20,
    "teacher_micro_batch": 10,
    "teacher_iterations": 15,
    "teacher_warmup": 3,
}
MADE = []  # one entry for each time that materials were made


def _prepare(table, teacher, progress=None, device=None):
    if table["missing"]:
        raise ImportError("the weights are not here;\n  run pip install nothing")
    MADE.append(teacher)
    draw = torch.Generator().manual_seed(0)
    centres = 2 * torch.eye(3, 4)
    parts = []
    for n in (table["train"], table["test"]):
        labels = torch.arange(n) % 3
        parts.append(TensorExamples(centres[labels] + torch.randn(n, 4, generator=draw), labels))
    network = perceptron(4, (8,), 3, generator=stream(42, "init"))
    return Materials(*parts, *teacher_outputs(network, *parts, table, teacher, progress, device))


def _student(table, materials, seed):
    return perceptron(4, (6,), 3, generator=stream(seed, "init"))


TINY = SETTINGS.get("tiny") or register(
    Setting(
        name="tiny",
        domain="vision",
        profile="quick",
        says="three Gaussian classes",
        table=TABLE,
        data=lambda table: {"nothing": "0" * 64},
        prepare=_prepare,
        student=_student,
        seconds={"one pass": 2.0, "two passes": 5.0, "materials": 1.0},
    )
)
