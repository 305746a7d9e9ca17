"""The settings of text: synthetic phrases, and CLINC150 with the layers of MiniLM.

DTO-KD compares logits only: in Appendix E.1 it also compares hidden states, but a teacher on frozen
features has none for the words of a text, and a bag of words has no layers. Texts are padded to the
longest of a part, not to 128.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lib.datasets.phrases import synthetic_phrases
from lib.distill.assets import Progress
from lib.distill.examples import TensorExamples, TokenExamples
from lib.distill.frozen import clinc150_sha256, clinc150_tokens, frozen_texts
from lib.distill.recipes import Materials, Setting, Table, register
from lib.distill.recipes_vision import TEACHER
from lib.distill.streams import stream
from lib.distill.teachers import teacher_outputs
from lib.models.perceptron import perceptron
from lib.models.pretrained import kept_word_pieces, minilm
from lib.models.text import text_encoder
from lib.models.weights import WEIGHTS

PAPER = {
    "optimiser": "adam-weight-decay",
    "learning_rate": 3e-4,
    "weight_decay": 0.01,
    "schedule": "warmup-linear",
    "clip": 1.0,
}  # of Appendix E.1
PHRASES = (
    TEACHER
    | PAPER
    | {
        "train": 5000,
        "test": 2000,
        "data_seed": 0,
        "classes": 20,
        "vocabulary": 600,
        "families": 5,
        "width": 32,
        "layers": 0,  # a bag of words
        "heads": 1,
        "dropout": 0.1,
        "iterations": 400,  # 5.1 epochs
        "learning_rate": 3e-3,
        "warmup": 40,
        "snapshots": [133, 267, 400],
        "log_every": 20,
        "teacher_width": 32,
        "teacher_layers": 1,
        "teacher_heads": 2,
        "teacher_dropout": 0.1,
        "teacher_learning_rate": 3e-3,
        "teacher_iterations": 300,
        "teacher_warmup": 30,
        "teacher_clip": 1.0,
    }
)
CLINC = (
    TEACHER
    | PAPER
    | {
        "train": 18_000,
        "test": 4_500,
        "classes": 150,
        "head_seed": 0,  # one head for all seeds, as in Appendix E.1
        "layers": 0,
        "dropout": 0.1,
        "iterations": 1125,  # 4 epochs
        "warmup": 112,
        "snapshots": [375, 750, 1125],
        "log_every": 25,
        "teacher_layers": 6,  # of MiniLM, frozen
        "teacher_widths": [1024],
        "teacher_dropout": [0.0, 0.0],  # of features and of hidden units
        "teacher_iterations": 2812,  # 10 epochs
        "teacher_warmup": 281,
    }
)


def _no_files(table: Table) -> dict[str, str]:
    return {}


def _clinc_data(table: Table) -> dict[str, str]:
    return {
        "clinc150": clinc150_sha256(),
        "minilm": WEIGHTS["minilm"].sha256,
        "minilm-tokenizer": WEIGHTS["minilm-tokenizer"].sha256,
    }


def _phrases(
    table: Table, teacher: str, progress: Progress | None = None, device: torch.device | None = None
) -> Materials:
    n = table["train"]
    tokens, lengths, labels = synthetic_phrases(
        table["classes"],
        n + table["test"],
        table["vocabulary"],
        table["families"],
        generator=torch.Generator().manual_seed(table["data_seed"]),
    )
    examples = TokenExamples(tokens[:n], lengths[:n], labels[:n])
    test = TokenExamples(tokens[n:], lengths[n:], labels[n:])
    network = _encoder(table, "teacher_", stream(table["teacher_seed"], "init"))
    outputs = teacher_outputs(network, examples, test, table, teacher, progress, device)
    return Materials(examples, test, *outputs)


def _encoder(table: Table, prefix: str, generator: torch.Generator) -> nn.Module:
    return text_encoder(
        table["vocabulary"],
        table["classes"],
        table[f"{prefix}width"],
        table[f"{prefix}layers"],
        table[f"{prefix}heads"],
        generator=generator,
        dropout=table[f"{prefix}dropout"],
    )


def _phrases_student(table: Table, materials: Materials, seed: int) -> nn.Module:
    return _encoder(table, "", stream(seed, "init"))


def _clinc(
    table: Table, teacher: str, progress: Progress | None = None, device: torch.device | None = None
) -> Materials:
    """Materials of a student of word pieces, with a teacher on frozen features."""
    found = clinc150_tokens()
    texts = {
        split: TokenExamples(
            *(found[f"{split}_{what}"] for what in ("tokens", "lengths", "labels"))
        )
        for split in ("train", "test")
    }
    features = frozen_texts(table["teacher_layers"], progress)
    seen = {split: TensorExamples(features[split], texts[split].labels) for split in texts}
    first, hidden = table["teacher_dropout"]
    network = perceptron(
        features["train"].shape[1],
        table["teacher_widths"],
        table["classes"],
        generator=stream(table["teacher_seed"], "init"),
        input_dropout=first,
        dropout=hidden,
    )
    outputs = teacher_outputs(
        network, seen["train"], seen["test"], table, teacher, progress, device
    )
    kept = kept_word_pieces(found["train_tokens"], found["test_tokens"])
    return Materials(texts["train"], texts["test"], *outputs, {"vocabulary": kept})


def _clinc_student(table: Table, materials: Materials, seed: int) -> nn.Module:
    return minilm(
        table["layers"],
        table["classes"],
        table["dropout"],
        generator=torch.Generator().manual_seed(table["head_seed"]),
        vocabulary=materials.assets["vocabulary"],
    )


def _add(name: str, profile: str, says: str, table: dict[str, Any], **functions: Any) -> None:
    register(Setting(name, "text", profile, says, table, **functions))


_add(
    "phrases",
    "quick",
    "5,000 synthetic phrases of 20 classes, 2,000 more for tests; teacher: one transformer block, "
    "student: a bag of words",
    PHRASES,
    data=_no_files,
    prepare=_phrases,
    student=_phrases_student,
    seconds={"one pass": 1.5, "two passes": 2.5, "materials": 8.0},
)
_CLINC_SAYS = (
    "CLINC150, 18,000 training and 4,500 test texts; teacher: perceptron on frozen features of "
    "MiniLM; student: "
)
_CLINC_HOW = {"data": _clinc_data, "prepare": _clinc, "student": _clinc_student}
_add(
    "clinc150-l0",
    "cpu",
    f"{_CLINC_SAYS}its embeddings, averaged",
    CLINC,
    **_CLINC_HOW,
    seconds={"one pass": 45.0, "two passes": 100.0, "materials": 200.0},
)
_add(
    "clinc150-l1",
    "cpu",
    f"{_CLINC_SAYS}its first layer",
    CLINC
    | {
        "layers": 1,
        "iterations": 562,  # 2 epochs
        "warmup": 56,
        "micro_batch": 32,
        "snapshots": [187, 375, 562],
        "checkpoint_every": 100,
    },
    **_CLINC_HOW,
    seconds={"one pass": 190.0, "two passes": 320.0, "materials": 200.0},
)
_add(
    "clinc150-l6",
    "gpu",
    f"{_CLINC_SAYS}all of its six layers",
    CLINC | {"layers": 6, "micro_batch": 32},
    **_CLINC_HOW,
    seconds={"one pass": 120.0, "two passes": 220.0, "materials": 200.0},
)
