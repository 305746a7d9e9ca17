"""The paper's settings: their numbers, and that they run with small random networks."""

from __future__ import annotations

import pytest
import torch

from lib.distill import recipes_paper, runs
from lib.distill.config import TrainingConfig
from lib.distill.order import batch_at, micro_batches
from lib.distill.recipes import find_setting, resolve_table, training_settings
from lib.distill.runs import prepare, train
from lib.models import paper

SMALL_IMAGES = {
    "pretrained": False,
    "train": 6,
    "test": 4,
    "views": 2,
    "batch_size": 4,
    "micro_batch": 2,
    "iterations": 2,
    "snapshots": [],
    "precision": "float32",
    "teacher_iterations": 1,
    "teacher_batch_size": 2,
    "teacher_micro_batch": 2,
    "teacher_warmup": 0,
    "teacher_precision": "float32",
}
SMALL_TEXTS = {
    "pretrained": False,
    "train": 40,
    "test": 10,
    "batch_size": 4,
    "micro_batch": 2,
    "iterations": 3,
    "warmup": 1,
    "snapshots": [],
    "layer_ratio": 2,
    "padded": 40,
    "teacher_iterations": 2,
    "teacher_batch_size": 4,
    "teacher_micro_batch": 4,
    "teacher_warmup": 0,
}


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    """An empty cache, and nothing in memory."""
    monkeypatch.setenv("BOOK_CACHE", str(tmp_path))
    runs._remembered.cache_clear()


def test_vision_is_appendix_e_1():
    setting = find_setting("paper-vision")
    table = resolve_table(setting, {})
    found = {name: training_settings(setting, name, 42) for name in ("tpkd", "kl-dist", "dkd")}
    one = found["tpkd"]
    assert one.iterations * one.batch_size == 60 * 50_000
    assert (one.batch_size, one.micro_batch, one.optimiser, one.momentum) == (64, 32, "sgd", 0.9)
    assert (one.learning_rate, one.schedule, one.clip) == (1e-4, "constant", None)
    assert (one.precision, one.auxiliary_head) == ("amp-float16", "nonlinear")
    assert one.weight_decay == 1e-3
    assert found["kl-dist"].weight_decay == pytest.approx(1e-4)
    assert found["dkd"].options["warmup_epochs"] == pytest.approx(20)
    assert [table[name] for name in ("views", "padding", "size", "regularisation")] == [
        8,
        4,
        224,
        0.01,
    ]
    assert [step * 64 / 50_000 for step in table["snapshots"]] == [20, 40, 60]


def test_text_is_appendix_e_1():
    setting = find_setting("paper-text")
    table = resolve_table(setting, {})
    found = {name: training_settings(setting, name, 42) for name in ("tpkd", "dto-kd", "dkd")}
    one = found["tpkd"]
    assert (one.iterations, one.batch_size, one.micro_batch) == (1125, 64, 32)
    assert (one.optimiser, one.weight_decay, one.clip) == ("adam-weight-decay", 0.01, 1.0)
    assert (one.learning_rate, one.schedule, one.warmup) == (3e-4, "warmup-linear", 112)
    assert (one.precision, table["padded"], table["train"]) == ("float32", 128, 18_000)
    assert (one.feature_weight, found["dto-kd"].feature_weight) == (0.0, 1.0)
    assert found["dkd"].options["warmup_epochs"] == pytest.approx(2)
    order = torch.cat([batch_at(18_000, 1, 64, k, 42).index for k in range(1125)])
    assert order.bincount().tolist() == [4] * 18_000
    batch = batch_at(18_000, 1, 64, 0, 42)
    assert [len(part) for part in micro_batches(batch.index, batch.view, None, 32)] == [32, 32]


def test_vision_runs(monkeypatch):
    """Two views and tiny networks; the head is the fitted one, and all seeds start alike."""
    draw = torch.Generator().manual_seed(0)
    sets = {
        split: (torch.rand(n, 3, 32, 32, generator=draw), torch.arange(n) % 3)
        for split, n in (("train", 6), ("test", 4))
    }
    monkeypatch.setattr(recipes_paper, "cifar100", lambda split, *counts: sets[split])
    setting = find_setting("paper-vision")
    monkeypatch.setitem(
        recipes_paper.register.__globals__["SETTINGS"],
        "paper-vision",
        setting.__class__(**{**setting.__dict__, "data": lambda table: {}}),
    )
    for place, name in (("student", "pit_ti_224"), ("teacher", "pit_ti_224")):
        monkeypatch.setitem(paper.VISION, place, name)
    overrides = SMALL_IMAGES | {"classes": 3}
    found = prepare("paper-vision", overrides=overrides)
    assert found.teacher.shape == (2, 6, 3)
    result = train(TrainingConfig("vision", "tpkd", 42, "paper-vision", overrides=overrides))
    assert result.measures["count"] == 4
    student = setting.student(resolve_table(setting, overrides), found, 42)
    assert torch.equal(student.head.weight, found.assets["head.weight"])
    other = setting.student(resolve_table(setting, overrides), found, 43)
    assert torch.equal(next(student.body.parameters()), next(other.body.parameters()))


@pytest.mark.parametrize("method", ["tpkd", "dto-kd"])
def test_text_runs(method, monkeypatch):
    """DTO-KD compares hidden states of every second block of a teacher of four with a student's."""
    draw = torch.Generator().manual_seed(0)
    sizes = {"train": 18_000, "test": 4_500}
    tokens = {}
    for split, n in sizes.items():
        tokens[f"{split}_tokens"] = torch.randint(5, 900, (n, 40), generator=draw)
        tokens[f"{split}_lengths"] = torch.arange(n) % 38 + 2
        tokens[f"{split}_labels"] = torch.arange(n) * 150 // n
    monkeypatch.setattr(recipes_paper, "clinc150_tokens", lambda: tokens)
    monkeypatch.setitem(paper.SIZES, paper.TEXT["student"], (2, 16, 2))
    monkeypatch.setitem(paper.SIZES, paper.TEXT["teacher"], (4, 24, 2))
    config = TrainingConfig("text", method, 42, "paper-text", overrides=SMALL_TEXTS)
    result = train(config)
    assert result.measures["count"] == 10
    assert result.settings.feature_weight == (1.0 if method == "dto-kd" else 0.0)
    found = prepare("paper-text", overrides=SMALL_TEXTS)
    assert len(found.examples.labels.unique()) == 40
    first = torch.zeros(1, dtype=torch.int64)
    assert found.examples.inputs(first, first)[0].shape == (1, 40)
