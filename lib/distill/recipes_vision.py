"""The settings of vision: digits, MNIST, CIFAR-100 through frozen features, CIFAR-100 itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lib.datasets.digits import load_digits, load_mnist
from lib.datasets.registry import load_registry
from lib.datasets.splits import split_indices
from lib.distill.assets import Progress
from lib.distill.examples import Examples, ImageExamples, TensorExamples
from lib.distill.frozen import cifar100, cifar100_file, frozen_images, logistic_head
from lib.distill.recipes import Materials, Setting, Table, register
from lib.distill.streams import stream
from lib.distill.teachers import teacher_outputs
from lib.distill.views import fixed_views
from lib.models.perceptron import perceptron
from lib.models.pretrained import efficientnet_lite0
from lib.models.residual import residual
from lib.models.weights import WEIGHTS

TEACHER = {
    "teacher_seed": 42,
    "teacher_batch_size": 64,
    "teacher_micro_batch": 64,
    "teacher_optimiser": "adam-weight-decay",
    "teacher_momentum": 0.9,
    "teacher_learning_rate": 1e-3,
    "teacher_schedule": "warmup-linear",  # to 0
    "teacher_weight_decay": 0.0,
    "teacher_clip": None,
    "teacher_precision": "float32",
    "smooth": 0.1,  # label smoothing of the smooth teacher
    "sharp": 0.0,
}
DIGITS = TEACHER | {
    "train": 1280,
    "test": 517,
    "split_seed": 0,
    "classes": 10,
    "widths": [64],  # 64-64-10
    "iterations": 1200,  # 60 epochs of 20
    "learning_rate": 0.02,
    "weight_decay": 1e-4,
    "snapshots": [400, 800, 1200],  # CE20, CE40, CE60
    "teacher_widths": [256, 256],
    "teacher_dropout": [0.0, 0.0],  # of inputs and of hidden units
    "teacher_iterations": 600,  # 30 epochs
    "teacher_warmup": 60,
}
MNIST = DIGITS | {
    "train": 4000,
    "test": 1000,
    "iterations": 1250,  # 20 epochs of 62.5
    "learning_rate": 0.01,
    "snapshots": [],
    "teacher_widths": [400, 400],
    "teacher_iterations": 625,  # 10 epochs
}
STAGE = TEACHER | {
    "train": 20_000,
    "test": 5_000,
    "teacher_train": 20_000,
    "classes": 100,
    "size": 96,  # pixels a side for the student
    "teacher_size": 128,
    "regularisation": 0.01,  # C of the logistic regression that is the head before training
    "stages": "last",  # last stage, last convolution and head: 1.15 million weights
    "iterations": 312,  # 1 epoch of 312.5
    "learning_rate": 1e-3,
    "weight_decay": 1e-3,
    "snapshots": [104, 208, 312],
    "log_every": 25,
    "checkpoint_every": 100,
    "teacher_widths": [1024],
    "teacher_dropout": [0.2, 0.5],
    "teacher_iterations": 3125,  # 10 epochs
    "teacher_warmup": 312,
}
RESNET = TEACHER | {
    "train": 50_000,
    "test": 10_000,
    "classes": 100,
    "views": 8,
    "view_seed": 0,
    "padding": 4,
    "depth": 20,
    "width": 16,
    "iterations": 46_875,  # 60 epochs
    "learning_rate": 0.02,
    "weight_decay": 5e-4,
    "snapshots": [15_625, 31_250, 46_875],  # CE20, CE40, CE60
    "checkpoint_every": 2000,
    "teacher_depth": 32,
    "teacher_width": 64,
    "teacher_batch_size": 128,
    "teacher_micro_batch": 128,
    "teacher_optimiser": "sgd",
    "teacher_learning_rate": 0.1,
    "teacher_weight_decay": 5e-4,
    "teacher_precision": "amp-bfloat16",
    "teacher_iterations": 23_438,  # 60 epochs of 390.6
    "teacher_warmup": 390,
}


def _embedded(name: str) -> Mapping[str, str]:
    return {name: load_registry().embedded[name].content_sha256}


def _cifar_data(table: Table) -> dict[str, str]:
    file = cifar100_file(table["train"], table["test"])
    return {file.file: file.sha256}


def _lite0_data(table: Table) -> dict[str, str]:
    file = cifar100_file(table["teacher_train"], table["test"])
    return {file.file: file.sha256, "efficientnet-lite0": WEIGHTS["efficientnet-lite0"].sha256}


def _digits(
    table: Table, teacher: str, progress: Progress | None = None, device: torch.device | None = None
) -> Materials:
    found = load_digits(quiet=True)
    sizes = [table["train"], table["test"]]
    draw = torch.Generator().manual_seed(table["split_seed"])
    parts = split_indices(found.labels, sizes, draw)
    pairs = [(found.images[part].float(), found.labels[part]) for part in parts]
    return _perceptron_materials(pairs, table, teacher, progress, device)


def _mnist(
    table: Table, teacher: str, progress: Progress | None = None, device: torch.device | None = None
) -> Materials:
    found = [load_mnist(split, source="embedded", quiet=True) for split in ("train", "test")]
    sizes = (table["train"], table["test"])
    draw = torch.Generator().manual_seed(table["split_seed"])
    pairs = []
    for images, size in zip(found, sizes, strict=True):
        (part,) = split_indices(images.labels, [size], draw)
        pairs.append((images.images[part].float(), images.labels[part]))
    return _perceptron_materials(pairs, table, teacher, progress, device)


def _perceptron_materials(
    pairs: list[tuple[Tensor, Tensor]], table: Table, teacher: str, progress, device
) -> Materials:
    """Materials where student and teacher read the same vectors."""
    examples, test = (TensorExamples(*pair) for pair in pairs)
    network = _teacher_perceptron(pairs[0][0].shape[1], table)
    outputs = teacher_outputs(network, examples, test, table, teacher, progress, device)
    return Materials(examples, test, *outputs)


def _teacher_perceptron(inputs: int, table: Table) -> nn.Module:
    first, hidden = table["teacher_dropout"]
    return perceptron(
        inputs,
        table["teacher_widths"],
        table["classes"],
        generator=stream(table["teacher_seed"], "init"),
        input_dropout=first,
        dropout=hidden,
    )


def _perceptron_student(table: Table, materials: Materials, seed: int) -> nn.Module:
    inputs = materials.examples.values.shape[-1]
    return perceptron(inputs, table["widths"], table["classes"], generator=stream(seed, "init"))


def _lite0(
    table: Table, teacher: str, progress: Progress | None = None, device: torch.device | None = None
) -> Materials:
    """Materials of a student that reads features or maps, with a teacher of larger images."""
    counts = (table["teacher_train"], table["test"])
    maps = table["stages"] == "last"
    options = {"progress": progress, "device": device or "cpu"}
    small = frozen_images(table["size"], *counts, maps=True, **options)
    large = frozen_images(table["teacher_size"], *counts, **options)
    seen = {
        split: TensorExamples(part["features"], part["labels"]) for split, part in large.items()
    }
    network = _teacher_perceptron(large["train"]["features"].shape[1], table)
    logits, test_logits, facts = teacher_outputs(
        network, seen["train"], seen["test"], table, teacher, progress, device
    )
    n, read = table["train"], "maps" if maps else "features"
    train, test = small["train"], small["test"]
    where = {"data": dict(_lite0_data(table)), "size": table["size"]}
    head = logistic_head(train["features"][:n], train["labels"][:n], table["regularisation"], where)
    return Materials(
        TensorExamples(train[read][:n], train["labels"][:n]),
        TensorExamples(test[read], test["labels"]),
        logits[:, :n],
        test_logits,
        facts,
        {f"head.{name}": value for name, value in head.items()},
    )


def _lite0_student(table: Table, materials: Materials, seed: int) -> nn.Module:
    """All seeds start from the same weights, as in Appendix E.1."""
    student = efficientnet_lite0(
        table["classes"], table["stages"], generator=torch.Generator().manual_seed(0)
    )
    head = {name.removeprefix("head."): value for name, value in materials.assets.items()}
    student.head.load_state_dict(head)
    return student


def _cifar100(
    table: Table, teacher: str, progress: Progress | None = None, device: torch.device | None = None
) -> Materials:
    """Materials of networks that read images, in views that are fixed in advance."""
    examples, test = _image_examples(table)
    network = residual(
        table["teacher_depth"],
        table["classes"],
        table["teacher_width"],
        generator=stream(table["teacher_seed"], "init"),
    )
    outputs = teacher_outputs(network, examples, test, table, teacher, progress, device)
    return Materials(examples, test, *outputs)


def _image_examples(table: Table) -> tuple[Examples, Examples]:
    pairs = [cifar100(split, table["train"], table["test"]) for split in ("train", "test")]
    draw = torch.Generator().manual_seed(table["view_seed"])
    views = fixed_views(table["train"], table["views"], table["padding"], draw)
    return ImageExamples(*pairs[0], *views, padding=table["padding"]), ImageExamples(*pairs[1])


def _residual_student(table: Table, materials: Materials, seed: int) -> nn.Module:
    generator = stream(seed, "init")
    return residual(table["depth"], table["classes"], table["width"], generator=generator)


def _add(name: str, profile: str, says: str, table: dict[str, Any], **functions: Any) -> None:
    register(Setting(name, "vision", profile, says, table, **functions))


_DIGITS_SAYS = "scikit-learn's digits, 1,280 for training and 517 for tests; teacher 64-256-256-10"
_DIGITS_HOW = {
    "data": lambda table: _embedded("digits-8x8"),
    "prepare": _digits,
    "student": _perceptron_student,
    "seconds": {"one pass": 2.0, "two passes": 3.5, "materials": 2.0},
}
_add("digits", "quick", f"{_DIGITS_SAYS}, student 64-64-10", DIGITS, **_DIGITS_HOW)
_add(
    "digits-wide",
    "quick",
    f"{_DIGITS_SAYS}, student 64-128-10",
    DIGITS | {"widths": [128]},
    **_DIGITS_HOW,
)
_MNIST_SAYS = "5,000 digits of MNIST, 1,000 of them for tests; teacher 784-400-400-10"
_MNIST_HOW = _DIGITS_HOW | {"data": lambda table: _embedded("mnist-5k"), "prepare": _mnist}
_MNIST_HOW |= {"seconds": {"one pass": 3.0, "two passes": 5.0, "materials": 8.0}}
_add("mnist-5k", "quick", f"{_MNIST_SAYS}, student 784-64-10", MNIST, **_MNIST_HOW)
_add(
    "mnist-5k-wide",
    "quick",
    f"{_MNIST_SAYS}, student 784-128-10",
    MNIST | {"widths": [128], "iterations": 3750, "snapshots": [1250, 2500, 3750]},
    **_MNIST_HOW | {"seconds": {"one pass": 10.0, "two passes": 18.0, "materials": 8.0}},
)
_LITE0_SAYS = (
    "20,000 training and 5,000 test images of CIFAR-100; teacher: perceptron on frozen features of "
    "EfficientNet-Lite0 at 128 pixels; student: "
)
_LITE0_HOW = {
    "data": _lite0_data,
    "prepare": _lite0,
    "student": _lite0_student,
    "seconds": {"one pass": 40.0, "two passes": 75.0, "materials": 800.0},
}
_add("cifar100-stage", "cpu", f"{_LITE0_SAYS}its last stage at 96 pixels", STAGE, **_LITE0_HOW)
_add(
    "cifar100-stage-2",
    "cpu",
    f"{_LITE0_SAYS}its last stage at 96 pixels, two epochs",
    STAGE | {"iterations": 625, "snapshots": [208, 417, 625]},
    **_LITE0_HOW | {"seconds": {"one pass": 80.0, "two passes": 150.0, "materials": 800.0}},
)
_HEAD = STAGE | {
    "stages": "head",
    "iterations": 3125,  # 10 epochs
    "snapshots": [1042, 2083, 3125],
    "log_every": 100,
    "checkpoint_every": 1000,
}
_HEAD_HOW = _LITE0_HOW | {"seconds": {"one pass": 12.0, "two passes": 20.0, "materials": 800.0}}
_add("cifar100-head", "cpu", f"{_LITE0_SAYS}a linear head at 96 pixels", _HEAD, **_HEAD_HOW)
_add(
    "cifar100-head-5k",
    "cpu",
    f"{_LITE0_SAYS}a linear head at 96 pixels on 5,000 of the training images",
    _HEAD
    | {
        "train": 5_000,
        "learning_rate": 3e-3,
        "iterations": 4688,  # 60 epochs of 78.125
        "snapshots": [1563, 3125, 4688],  # CE20, CE40, CE60
    },
    **_HEAD_HOW | {"seconds": {"one pass": 17.0, "two passes": 30.0, "materials": 800.0}},
)
_add(
    "cifar100-resnet",
    "gpu",
    "CIFAR-100 in eight fixed views; teacher: residual network of 32 layers of width 64; student: "
    "of 20 layers of width 16",
    RESNET,
    data=_cifar_data,
    prepare=_cifar100,
    student=_residual_student,
    seconds={"one pass": 900.0, "two passes": 1600.0, "materials": 1200.0},
)
