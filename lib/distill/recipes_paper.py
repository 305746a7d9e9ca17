"""The settings of Yuan & Tao, Appendix E.1: VOLO-D2 and PiT-B, BERT-large and BERT-Mini.

What the paper does not say is ours: how the teachers were trained (the "smooth" one, the default,
with smoothed labels), which views were drawn and that each epoch draws one of them for an image,
that the student's first head was fitted on the images themselves, BERT's dropout of 0.1, texts of
like length together in a part, and measurements in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lib.distill.assets import Progress, cached_tensors
from lib.distill.auxiliary import LayerFeatures
from lib.distill.evaluation import predict
from lib.distill.examples import ImageExamples, TokenExamples
from lib.distill.frozen import (
    SPLITS,
    cifar100,
    cifar100_file,
    clinc150_sha256,
    clinc150_tokens,
    logistic_head,
)
from lib.distill.recipes import Materials, Setting, Table, register
from lib.distill.recipes_text import PAPER
from lib.distill.recipes_vision import TEACHER
from lib.distill.teachers import table_teacher, teacher_outputs
from lib.distill.views import fixed_views
from lib.models.paper import (
    IMAGE_MEAN,
    IMAGE_SIZE,
    IMAGE_STD,
    TEXT,
    VISION,
    paper_student,
    paper_teacher,
)
from lib.models.weights import WEIGHTS

IMAGES = TEACHER | {
    "train": 50_000,
    "test": 10_000,
    "classes": 100,
    "pretrained": True,
    "views": 8,
    "view_seed": 0,
    "padding": 4,
    "size": IMAGE_SIZE,
    "regularisation": 0.01,  # C of the logistic regression
    "iterations": 46_875,  # 60 epochs
    "micro_batch": 32,
    "learning_rate": 1e-4,
    "weight_decay": 1e-3,  # a tenth of it for KL-Dist and XE-KL
    "precision": "amp-float16",
    "snapshots": [15_625, 31_250, 46_875],  # CE20, CE40, CE60
    "checkpoint_every": 1000,
    "teacher_iterations": 7813,  # 10 epochs
    "teacher_micro_batch": 32,
    "teacher_learning_rate": 5e-5,
    "teacher_warmup": 781,
    "teacher_weight_decay": 0.01,
    "teacher_clip": 1.0,
    "teacher_precision": "amp-float16",
}
TEXTS = (
    TEACHER
    | PAPER
    | {
        "train": 18_000,
        "test": 4_500,
        "classes": 150,
        "pretrained": True,
        "head_seed": 0,
        "padded": 128,
        "dropout": 0.1,
        "feature_weight": 1.0,  # of the hidden states in DTO-KD
        "layer_ratio": 6,  # block m of the student is compared with block 6 m of the teacher
        "iterations": 1125,  # 4 epochs
        "micro_batch": 32,
        "warmup": 112,
        "snapshots": [375, 750, 1125],
        "teacher_iterations": 1406,  # 5 epochs
        "teacher_micro_batch": 16,
        "teacher_learning_rate": 2e-5,
        "teacher_warmup": 140,
        "teacher_weight_decay": 0.01,
        "teacher_clip": 1.0,
    }
)


class _Features(nn.Module):
    """What a student's head reads."""

    def __init__(self, student: nn.Module) -> None:
        super().__init__()
        self.student = student

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.student.features(*inputs)


def _image_data(table: Table) -> dict[str, str]:
    file = cifar100_file(table["train"], table["test"])
    return {file.file: file.sha256} | VISION


def _text_data(table: Table) -> dict[str, str]:
    return {"clinc150": clinc150_sha256(), "tokenizer": WEIGHTS["minilm-tokenizer"].sha256} | TEXT


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _images(
    table: Table, teacher: str, progress: Progress | None = None, device: torch.device | None = None
) -> Materials:
    pairs = [cifar100(split, table["train"], table["test"]) for split in SPLITS]
    views = fixed_views(
        table["train"], table["views"], table["padding"], _seeded(table["view_seed"])
    )
    how = {"padding": table["padding"], "size": table["size"], "mean": IMAGE_MEAN, "std": IMAGE_STD}
    examples, test = ImageExamples(*pairs[0], *views, **how), ImageExamples(*pairs[1], **how)
    draw = _seeded(table["teacher_seed"])
    network = paper_teacher("vision", table["classes"], table["pretrained"], generator=draw)
    outputs = teacher_outputs(network, examples, test, table, teacher, progress, device)
    head = _fitted_head(table, ImageExamples(*pairs[0], **how), progress, device)
    return Materials(examples, test, *outputs, {f"head.{name}": x for name, x in head.items()})


def _fitted_head(
    table: Table, plain: ImageExamples, progress: Progress | None, device: torch.device | None
) -> dict[str, Tensor]:
    """The head of a logistic regression on features of the training images themselves."""
    facts = {"images": plain.digest(), "student": VISION["student"], "from": table["pretrained"]}

    def make() -> dict[str, Tensor]:
        student = _Features(_bare_student(table)).to(device or "cpu")
        return {"features": predict(student, plain, progress=progress).float()}

    features = cached_tensors("paper-features", facts, make)["features"]
    return logistic_head(features, plain.labels, table["regularisation"], facts)


def _bare_student(table: Table) -> nn.Module:
    return paper_student("vision", table["classes"], table["pretrained"], generator=_seeded(0))


def _image_student(table: Table, materials: Materials, seed: int) -> nn.Module:
    student = _bare_student(table)
    head = {name.removeprefix("head."): x for name, x in materials.assets.items()}
    student.head.load_state_dict(head)
    return student


def _texts(
    table: Table, teacher: str, progress: Progress | None = None, device: torch.device | None = None
) -> Materials:
    found = clinc150_tokens()
    kept = {"train": _spread(18_000, table["train"]), "test": _spread(4_500, table["test"])}
    parts = [
        TokenExamples(
            *(found[f"{split}_{what}"][kept[split]] for what in ("tokens", "lengths", "labels")),
            padded=table["padded"],
        )
        for split in SPLITS
    ]
    network = _text_teacher(table)
    return Materials(*parts, *teacher_outputs(network, *parts, table, teacher, progress, device))


def _spread(n: int, count: int) -> Tensor:
    """So many of n places, evenly spread: all of them where count is n."""
    return torch.arange(count) * n // count


def _text_teacher(table: Table) -> nn.Module:
    draw, dropout = _seeded(table["teacher_seed"]), table["dropout"]
    return paper_teacher(
        "text", table["classes"], table["pretrained"], generator=draw, dropout=dropout
    )


def _text_student(table: Table, materials: Materials, seed: int) -> nn.Module:
    """All seeds have one head, as in Appendix E.1."""
    draw, dropout = _seeded(table["head_seed"]), table["dropout"]
    return paper_student(
        "text", table["classes"], table["pretrained"], generator=draw, dropout=dropout
    )


def _text_layers(
    table: Table, materials: Materials, teacher: str, student: nn.Module, device: torch.device
) -> LayerFeatures:
    """Every block of the student beside one of the teacher."""
    network = table_teacher(_text_teacher(table), materials.examples, table, teacher, device=device)
    blocks, ratio = list(student.body.encoder.encoder.layer), table["layer_ratio"]

    def states(tokens: Tensor, mask: Tensor) -> Tensor:
        found = network.body.states(tokens, mask)
        return torch.stack([found[ratio * (place + 1)] for place in range(len(blocks))])

    return LayerFeatures(blocks, states)


def _add(name: str, domain: str, says: str, table: dict[str, Any], **functions: Any) -> None:
    register(Setting(name, domain, "paper", says, table, **functions))


_add(
    "paper-vision",
    "vision",
    "CIFAR-100 in eight fixed views; teacher VOLO-D2, student PiT-B, 60 epochs",
    IMAGES,
    data=_image_data,
    prepare=_images,
    student=_image_student,
    seconds={"one pass": 18_000.0, "two passes": 30_000.0, "materials": 10_000.0},
)
_add(
    "paper-text",
    "text",
    "CLINC150; teacher BERT-large, student BERT-Mini, four epochs",
    TEXTS,
    data=_text_data,
    prepare=_texts,
    student=_text_student,
    seconds={"one pass": 120.0, "two passes": 400.0, "materials": 1500.0},
    layers=_text_layers,
)
