"""Settings: tables that hold together, the rules of Appendix E.1, and runs that are kept."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from lib.datasets.files import NotHereError
from lib.distill import OBJECTIVES, recipes, recipes_text, recipes_vision, runs
from lib.distill.assets import distill_folder
from lib.distill.checkpoints import CheckpointError
from lib.distill.config import PROFILES, TrainingConfig
from lib.distill.evaluation import predict
from lib.distill.recipes import (
    DEFAULTS,
    find_setting,
    load_settings,
    register,
    resolve_table,
    training_settings,
)
from lib.distill.runs import (
    finished_result,
    kept_configs,
    make_student,
    prepare,
    run_folder,
    settings_of,
    train,
)
from lib.models.weights import weights_here
from tests.distill import tiny_setting

SETTINGS = [name for name in load_settings() if name != "tiny"]
ONE = TrainingConfig("vision", "tpkd", 42, "tiny")


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    """An empty cache, and nothing in memory."""
    monkeypatch.setenv("BOOK_CACHE", str(tmp_path))
    runs._remembered.cache_clear()


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("method", OBJECTIVES)
def test_every_setting_fits_every_method(name, method):
    """Tables hold values that TrainingSettings accepts, and snapshots lie inside the run."""
    setting = find_setting(name)
    table = resolve_table(setting, {})
    settings = training_settings(setting, method, 42)
    assert settings.iterations == table["iterations"]
    assert all(1 <= step <= table["iterations"] for step in table["snapshots"])
    assert setting.estimate(method, table) > 0
    ratio = 0.1 if method in ("kl-dist", "xe-kl") and setting.domain == "vision" else 1.0
    assert settings.weight_decay == pytest.approx(ratio * table["weight_decay"])
    warmup = {"vision": 1 / 3, "text": 1 / 2}[setting.domain]
    if method == "dkd":
        epochs = table["iterations"] * table["batch_size"] / table["train"]
        found = settings.resolved_options(table["train"])
        assert found["warmup_epochs"] == pytest.approx(warmup * epochs)
        assert found["steps_per_epoch"] == table["train"] / table["batch_size"]


def test_the_papers_numbers_stand_in_the_paper_settings():
    """Appendix E.1, where a setting has its protocol in full."""
    text = training_settings(find_setting("clinc150-l0"), "dkd", 42)
    assert (text.iterations, text.warmup, text.learning_rate, text.clip) == (1125, 112, 3e-4, 1.0)
    assert text.options["warmup_epochs"] == pytest.approx(2.0)
    assert (text.optimiser, text.weight_decay) == ("adam-weight-decay", 0.01)


def test_profiles_and_domains_have_a_setting():
    assert set(DEFAULTS) == {(p, d) for p in PROFILES for d in ("vision", "text")}
    for (profile, domain), name in DEFAULTS.items():
        setting = find_setting(name)
        assert (setting.profile, setting.domain) == (profile, domain)


def test_a_name_is_taken_once():
    assert register(tiny_setting.TINY) is tiny_setting.TINY
    with pytest.raises(ValueError, match="name must be new, got 'tiny'"):
        register(replace(tiny_setting.TINY, says="another"))


@pytest.mark.parametrize("name", ["cifar100-stage", "cifar100-resnet"])
def test_data_that_are_not_here_are_named(name, monkeypatch):
    monkeypatch.delenv("BOOK_DATA", raising=False)
    with pytest.raises(NotHereError, match=r"CIFAR-100 .* is not here"):
        TrainingConfig("vision", "ce", 42, name).key()


def test_a_finished_run_is_read_and_not_trained_again(monkeypatch):
    first = train(ONE)
    monkeypatch.setattr(runs, "train_student", None)  # would fail if it were called
    again = train(ONE)
    assert torch.equal(first.test_logits, again.test_logits)
    assert (first.measures, first.log) == (again.measures, again.log)
    assert again.weights_digest == finished_result(ONE).weights_digest
    assert kept_configs() == {ONE.key(): ONE}


def test_runs_do_not_depend_on_those_before_them(monkeypatch, tmp_path):
    """The same bits from a warm cache, from an empty one, and without keeping anything."""
    warm = train(ONE)
    loose = train(ONE, keep=False)
    monkeypatch.setenv("BOOK_CACHE", str(tmp_path / "other"))
    runs._remembered.cache_clear()
    train(TrainingConfig("vision", "dhkd", 43, "tiny"))
    cold = train(ONE)
    for other in (loose, cold):
        assert torch.equal(warm.test_logits, other.test_logits)
        assert warm.weights_digest == other.weights_digest


def test_nothing_is_kept_where_that_is_asked_for():
    train(ONE, keep=False)
    assert not (distill_folder() / "runs").exists()
    assert finished_result(ONE) is None


@pytest.mark.parametrize("method", OBJECTIVES)
def test_every_method_trains(method):
    config = TrainingConfig("vision", method, 42, "tiny")
    result = train(config)
    assert result.measures["count"] == 30
    assert sorted(result.snapshots) == ([6, 12] if method == "ce" else [])
    materials = prepare("tiny")
    before = predict(make_student(config, materials), materials.test)
    assert not torch.equal(before, result.test_logits)


def test_snapshots_of_ce_are_states_of_the_run():
    config = TrainingConfig("vision", "ce", 42, "tiny")
    result = train(config)
    materials = prepare("tiny")
    student = make_student(config, materials)
    own = {k: x for k, x in result.snapshots[12].items() if k.startswith("student.")}
    student.load_state_dict({k.removeprefix("student."): x for k, x in own.items()})
    logits = predict(student, materials.test)
    assert torch.equal(logits, result.test_logits)
    loss = float(cross_entropy(logits.double(), materials.test.labels))
    assert result.measures["loss"] == pytest.approx(loss, rel=1e-9)


def test_methods_of_one_seed_start_alike_and_seeds_do_not():
    materials = prepare("tiny")
    first, other, seed = (
        make_student(TrainingConfig("vision", method, seed, "tiny"), materials).head.weight
        for method, seed in (("ce", 42), ("kd", 42), ("ce", 43))
    )
    assert torch.equal(first, other)
    assert not torch.equal(first, seed)


def test_materials_are_made_once_in_a_process():
    made = len(tiny_setting.MADE)
    assert prepare("tiny") is prepare("tiny")
    prepare("tiny", "sharp")
    assert tiny_setting.MADE[made:] == ["smooth", "sharp"]
    with pytest.raises(ValueError, match="teacher must be 'smooth' or 'sharp', got 'wise'"):
        prepare("tiny", "wise")


def test_overrides_reach_settings_student_and_options():
    config = TrainingConfig(
        "vision",
        "kd",
        42,
        "digits",
        overrides={"widths": [5], "options": {"kd": {"temperature": 2.0}}, "iterations": 7},
    )
    settings = settings_of(config)
    assert (settings.iterations, settings.options) == (7, {"temperature": 2.0})
    small = {"widths": [5], "teacher_iterations": 2, "teacher_warmup": 0}
    assert make_student(config, prepare("digits", overrides=small)).head.in_features == 5


def test_a_damaged_result_is_named_and_not_replaced():
    train(ONE)
    path = run_folder(ONE) / "result.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"result\.safetensors is damaged"):
        train(ONE)


def test_two_threads_that_ask_for_one_run_train_it_once(monkeypatch):
    calls = []
    real = runs.train_student

    def counted(*arguments, **named):
        calls.append(1)
        return real(*arguments, **named)

    prepare("tiny")
    monkeypatch.setattr(runs, "train_student", counted)
    results = []
    threads = [threading.Thread(target=lambda: results.append(train(ONE))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len({result.weights_digest for result in results}) == 1


def test_the_config_of_a_run_lies_beside_it():
    train(ONE)
    text = (run_folder(ONE) / "config.json").read_text("utf-8")
    assert TrainingConfig.from_json(json.loads(text)) == ONE
    (run_folder(ONE).parent / "of-another-book").mkdir()
    (run_folder(ONE).parent / "of-another-book" / "config.json").write_text('{"setting": "?"}')
    assert list(kept_configs()) == [ONE.key()]


@pytest.mark.parametrize("name", ["digits", "mnist-5k", "phrases"])
def test_quick_settings_need_no_file(name, monkeypatch):
    """Sizes as the tables say, classes in equal parts, no example in both sets."""
    monkeypatch.delenv("BOOK_DATA", raising=False)
    monkeypatch.setenv("BOOK_OFFLINE", "1")
    short = {"teacher_iterations": 3, "teacher_warmup": 1}
    found, table = prepare(name, overrides=short), resolve_table(find_setting(name), {})
    train_labels, test_labels = found.examples.labels, found.test.labels
    assert (len(train_labels), len(test_labels)) == (table["train"], table["test"])
    assert found.teacher.shape == (1, table["train"], table["classes"])
    assert found.test_teacher.shape == (1, table["test"], table["classes"])
    if name != "phrases":
        shares = [labels.bincount() / len(labels) for labels in (train_labels, test_labels)]
        assert float((shares[0] - shares[1]).abs().max()) < 2e-3
        rows = torch.cat([found.examples.values[0], found.test.values[0]])
        assert len(rows.unique(dim=0)) >= len(rows) - 1


SHORT = {"iterations": 3, "batch_size": 8, "micro_batch": 4, "snapshots": []}
SHORT |= {"teacher_iterations": 2, "teacher_warmup": 1}


def without_data(monkeypatch, name: str) -> None:
    """The setting does not ask which files are here."""
    monkeypatch.setitem(recipes.SETTINGS, name, replace(find_setting(name), data=lambda table: {}))


def random_images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(n)
    return torch.rand(n, 3, 32, 32, generator=draw), torch.arange(n) % 3


def test_residual_networks_read_fixed_views(monkeypatch):
    without_data(monkeypatch, "cifar100-resnet")
    sets = {"train": random_images(12), "test": random_images(9)}
    monkeypatch.setattr(recipes_vision, "cifar100", lambda split, *counts: sets[split])
    small = {"train": 12, "test": 9, "classes": 3, "depth": 8, "width": 4, "views": 2}
    small |= {"teacher_depth": 8, "teacher_width": 4, "teacher_precision": "float32"}
    config = TrainingConfig("vision", "tpkd", 42, "cifar100-resnet", overrides=SHORT | small)
    found = prepare("cifar100-resnet", overrides=SHORT | small)
    assert found.teacher.shape == (2, 12, 3)
    assert not torch.equal(found.teacher[0], found.teacher[1])
    assert train(config).measures["count"] == 9


@pytest.mark.skipif(not weights_here("efficientnet-lite0"), reason="needs the weights")
@pytest.mark.parametrize("name", ["cifar100-stage", "cifar100-head"])
def test_lite0_starts_from_the_logistic_head(name, monkeypatch):
    """All seeds and methods start alike: at the logits of the regression on the features."""
    without_data(monkeypatch, name)
    draw = torch.Generator().manual_seed(0)
    monkeypatch.setattr(recipes_vision, "_lite0_data", lambda table: {})

    def frozen(size, *counts, maps=False, **options):
        found = {}
        for split, n in zip(("train", "test"), counts, strict=True):
            middle = torch.rand(n, 192, 1, 1, generator=draw)
            body = recipes_vision.efficientnet_lite0(stages="last").eval().body
            with torch.no_grad():
                found[split] = {"maps": middle, "features": body(middle)}
            found[split]["labels"] = torch.arange(n) % 3
        return found

    monkeypatch.setattr(recipes_vision, "frozen_images", frozen)
    small = {"train": 12, "test": 9, "teacher_train": 15, "classes": 3, "teacher_widths": [8]}
    config = TrainingConfig("vision", "ce", 42, name, overrides=SHORT | small)
    found = prepare(name, overrides=SHORT | small)
    assert found.teacher.shape == (1, 12, 3)
    first = make_student(config, found)
    logits = predict(first, found.examples)
    features = first.eval().features(found.examples.values[0]).detach()
    expected = features @ found.assets["head.weight"].T + found.assets["head.bias"]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    other = predict(make_student(replace(config, seed=43), found), found.examples)
    assert torch.equal(logits, other)
    assert train(config).measures["count"] == 9


@pytest.mark.skipif(not weights_here("minilm"), reason="needs the weights")
@pytest.mark.parametrize(("name", "layers"), [("clinc150-l0", 0), ("clinc150-l1", 1)])
def test_minilm_reads_word_pieces_and_its_teacher_features(name, layers, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    tokens = {}
    for split, n in (("train", 24), ("test", 9)):
        tokens[f"{split}_tokens"] = torch.randint(1000, 1200, (n, 7), generator=draw)
        tokens[f"{split}_lengths"] = torch.arange(n) % 6 + 2
        tokens[f"{split}_labels"] = torch.arange(n) % 4
    features = {
        split: torch.randn(n, 5, generator=draw) for split, n in (("train", 24), ("test", 9))
    }
    monkeypatch.setattr(recipes_text, "clinc150_tokens", lambda: tokens)
    monkeypatch.setattr(recipes_text, "frozen_texts", lambda *arguments: features)
    small = {"train": 24, "classes": 4, "teacher_widths": [8], "warmup": 1}
    config = TrainingConfig("text", "tpkd", 42, name, overrides=SHORT | small)
    found = prepare(name, overrides=SHORT | small)
    student = make_student(config, found)
    assert len(student.body.encoder.encoder.layer) == layers
    occurring = torch.cat([tokens[f"{split}_tokens"].flatten() for split in ("train", "test")])
    rows = student.body.encoder.embeddings.word_embeddings.num_embeddings
    assert rows == len(occurring.unique()) + 4
    assert torch.equal(
        student.head.weight, make_student(replace(config, seed=7), found).head.weight
    )
    assert train(config).measures["count"] == 9
