"""The students, examples and teachers that the benchmarks of distillation train."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from lib.datasets.clinc import load_clinc150
from lib.datasets.files import NotHereError
from lib.datasets.phrases import synthetic_phrases
from lib.distill import Examples, TensorExamples, TokenExamples
from lib.models.perceptron import perceptron
from lib.models.pretrained import (
    efficientnet_lite0,
    kept_word_pieces,
    minilm,
    tokenise,
    weights_here,
)
from lib.models.text import text_encoder

ADAM = {
    "optimiser": "adam-weight-decay",
    "learning_rate": 1e-4,
    "weight_decay": 0.01,
    "clip": 1.0,
    "micro_batch": 32,
    "auxiliary_head": "linear",
}  # as in Appendix E.1 on text
SGD = {"learning_rate": 1e-3, "weight_decay": 1e-3}


@dataclass(frozen=True)
class Case:
    """A student, what it learns from, and how.

    Attributes:
        name: of the case.
        says: what it is, for the table.
        student: makes the student, the same every time.
        examples: n of them in V views.
        teacher: (V, n, K) logits, drawn at random: no time depends on who made them.
        settings: of the training, but for method, iterations and seed.
    """

    name: str
    says: str
    student: Callable[[], nn.Module]
    examples: Examples
    teacher: Tensor = field(repr=False)
    settings: dict


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn_teacher(labels: Tensor, classes: int, views: int = 1) -> Tensor:
    """Logits of a confident teacher, spread 2, with 6 more at the label."""
    logits = 2 * torch.randn(views, len(labels), classes, generator=generator(1))
    return logits + 6 * one_hot(labels, classes)


def small_perceptron(n: int = 1280) -> Case:
    """The student of the digits, 64-128-10."""
    values = torch.randn(n, 64, generator=generator())
    labels = torch.randint(10, (n,), generator=generator())
    return Case(
        "perceptron",
        "64-128-10",
        lambda: perceptron(64, [128], 10, generator=generator()),
        TensorExamples(values, labels),
        drawn_teacher(labels, 10),
        SGD,
    )


def small_encoder(n: int = 2000) -> Case:
    """A transformer of one layer on synthetic phrases."""
    tokens, lengths, labels = synthetic_phrases(20, n, 600, 5, generator=generator())
    return Case(
        "encoder",
        "1 layer of width 64",
        lambda: text_encoder(600, 20, 64, 1, 4, generator=generator()),
        TokenExamples(tokens, lengths, labels),
        drawn_teacher(labels, 20),
        ADAM,
    )


def lite0_stage(n: int = 256) -> Case | None:
    """The last stage of EfficientNet-Lite0 on maps of 3 x 3; None without the weights."""
    if not weights_here("efficientnet-lite0"):
        return None
    maps = torch.randn(n, 192, 3, 3, generator=generator())
    labels = torch.randint(100, (n,), generator=generator())
    return Case(
        "lite0",
        "last stage of EfficientNet-Lite0",
        lambda: efficientnet_lite0(100, "last", generator=generator()),
        TensorExamples(maps, labels),
        drawn_teacher(labels, 100),
        SGD,
    )


def minilm_layers(layers: int, n: int, padded: int | None = None) -> Case | None:
    """The first layers of MiniLM on texts; None without the weights."""
    if not weights_here("minilm"):
        return None
    tokens, lengths, labels, where = texts(n)
    kept = kept_word_pieces(tokens)
    return Case(
        f"minilm-{layers}",
        f"{layers} layers of MiniLM, {where}",
        lambda: minilm(layers, 150, generator=generator(), vocabulary=kept),
        TokenExamples(tokens, lengths, labels, padded),
        drawn_teacher(labels, 150),
        ADAM,
    )


def texts(n: int) -> tuple[Tensor, Tensor, Tensor, str]:
    """Word pieces, lengths and labels of CLINC150, or random ones of like length, and which."""
    try:
        found = load_clinc150("train", allow_download=False, quiet=True)
    except NotHereError:
        return *random_texts(n), "random word pieces"
    order = torch.randperm(len(found.texts), generator=generator())[:n]
    tokens, lengths = tokenise([found.texts[i] for i in order])
    return tokens, lengths, found.labels[order], "CLINC150"


def random_texts(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Texts of 150 intents with the lengths of CLINC150: 3 to 33 word pieces, 11 on average."""
    draw = generator()
    lengths = (10.4 * (0.33 * torch.randn(n, generator=draw)).exp()).round().long().clamp(3, 33)
    tokens = torch.randint(1996, 8168, (n, 33), generator=draw)
    mask = torch.arange(33) < lengths[:, None]
    return tokens.where(mask, 0), lengths, torch.randint(150, (n,), generator=draw)
