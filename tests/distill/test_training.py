"""Whole runs: what they measure and log, and when they stop."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lib.distill.evaluation import predict
from lib.distill.examples import TensorExamples
from lib.distill.methods import OBJECTIVES
from lib.distill.order import batch_at
from lib.distill.settings import TrainingSettings
from lib.distill.trainer import Trainer, TrainingError
from lib.distill.training import train_student
from tests.distill.small_runs import network, settings, task, weights
from tests.tpkd.states import DEVICES


@pytest.mark.parametrize("method", OBJECTIVES)
def test_a_nan_stops_the_run_before_it_reaches_the_weights(method, tmp_path):
    examples, teacher = task(17)
    values = settings(method, 20, checkpoint_every=1)
    spoilt = TensorExamples(examples.values[0].clone(), examples.labels)
    place = int(batch_at(60, 1, 20, 2, 42).index[5])
    frozen = torch.zeros(1, 60, 4) if OBJECTIVES[method].needs_frozen else None
    spoilt.values[0, place, 0] = math.nan
    model = network()
    trainer = Trainer(model, spoilt, values, teacher=teacher, frozen=frozen)
    for k in (0, 1):
        trainer.step(k)
    before = trainer.state()
    with pytest.raises(TrainingError, match=rf"^{method} cannot go on at step 2: the loss is nan"):
        trainer.step(2)
    after = trainer.state()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_run_that_fails_keeps_its_last_checkpoint_and_says_where(tmp_path):
    examples, teacher = task(17)
    spoilt = TensorExamples(examples.values[0].clone(), examples.labels)
    spoilt.values[0, int(batch_at(60, 1, 20, 2, 42).index[5]), 0] = math.inf
    values = settings("kd", 20, checkpoint_every=2)
    for _ in range(2):  # the second try goes on from the checkpoint and fails alike
        with pytest.raises(TrainingError, match=r"kd cannot go on at step 2.*is kept in .*run"):
            train_student(network(), spoilt, values, teacher=teacher, folder=tmp_path / "run")
        assert (tmp_path / "run" / "checkpoint.safetensors").is_file()


def test_an_infinite_gradient_behind_a_finite_loss_stops_the_run():
    """The label's logit at infinity has loss zero."""

    class Certain(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            return self.inner(x).exp().exp().exp() * 1e300

    examples, _ = task(17)
    trainer = Trainer(Certain(), examples, settings("ce", 3))
    with pytest.raises(TrainingError, match="ce cannot go on at step 0"):
        trainer.step(0)


@pytest.mark.parametrize("watched", ["test", "observation"])
def test_logits_that_overflow_after_the_last_step_end_the_run_as_diverged(watched, tmp_path):
    examples, _ = task(17)
    values = settings("ce", 1, learning_rate=1e200)
    deep = nn.Sequential(*[nn.Linear(a, b).double() for a, b in ((5, 8), (8, 8), (8, 4))])
    with pytest.raises(TrainingError, match=r"ce .* step 1: a logit is not finite .* kept in"):
        train_student(deep, examples, values, **{watched: examples}, folder=tmp_path)
    assert all(bool(weight.isfinite().all()) for weight in deep.parameters())


def test_weights_that_are_not_finite_replace_no_checkpoint(tmp_path):
    """The loss of a step is that before it: the step may destroy the weights and be the last."""
    examples, _ = task(17)
    values = settings("ce", 9, learning_rate=1e308, momentum=0.0, checkpoint_every=1)
    big = TensorExamples(1e3 * examples.values[0], examples.labels)
    linear = nn.Sequential(nn.Linear(5, 4).double())
    with pytest.raises(TrainingError, match="ce cannot go on at step 1: a weight is not finite"):
        train_student(linear, big, values, folder=tmp_path, snapshots=(0, 1))
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["step-0.safetensors"]


def test_sets_that_are_measured_at_the_end_are_checked_at_the_start():
    """A run of hours must not end in a complaint about its arguments."""
    examples, teacher = task(17)
    wide = TensorExamples(torch.zeros(60, 6, dtype=torch.float64), examples.labels)
    more = TensorExamples(examples.values[0], examples.labels + 4)
    steps = []

    def progress(iterable, label):
        steps.append(label)
        yield from iterable

    cases = [
        ({"test": wide}, "test must be what the student reads"),
        ({"observation": wide}, "observation must be what the student reads"),
        ({"test": more}, r"labels of test must lie in \[0, 4\)"),
        ({"test": examples, "test_teacher": teacher[:, 1:]}, r"test_teacher must have shape"),
        ({"test": examples, "test_teacher": teacher[..., 1:]}, r"test_teacher must have shape"),
        ({"test": examples, "test_teacher": teacher * math.nan}, "test_teacher must be finite"),
        ({"test_teacher": teacher}, "test must be given for test_teacher"),
        ({"observation_teacher": teacher}, "observation must be given for observation_teacher"),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=message):
            train_student(network(), examples, settings("ce"), progress=progress, **arguments)
    assert steps == []


def test_arguments_of_another_type_are_named():
    examples, teacher = task(17)
    cases = [
        ((torch.tanh, examples, settings("ce")), {}, "student must be Module"),
        ((network(), None, settings("ce")), {}, "examples must be given, got None"),
        ((network(), examples, {}), {}, "settings must be TrainingSettings, got dict"),
        ((network(), examples, settings("kd")), {"teacher": teacher.numpy()}, "teacher must be a"),
    ]
    for arguments, named, message in cases:
        with pytest.raises(ValueError, match=message):
            train_student(*arguments, **named)


def test_an_exploding_conditional_kl_stops_the_run():
    examples, teacher = task(18)
    values = settings("tpkd", 400, learning_rate=50.0, log_every=1, largest_kl=20.0)
    with pytest.raises(TrainingError, match=r"tpkd .* the conditional KL is .* largest_kl=20"):
        train_student(network(), examples, values, teacher=teacher)


def test_a_run_measures_logs_observes_and_keeps(tmp_path):
    examples, teacher = task(23)
    seen = []

    def progress(steps, label):
        seen.append((len(steps), label))
        yield from steps

    model = network(dropout=0.1)
    values = settings("tpkd", 12, observe_every=(0, 1, 8), log_every=5)
    result = train_student(
        model,
        examples,
        values,
        teacher=teacher,
        test=examples,
        test_teacher=teacher,
        observation=examples,
        observation_teacher=teacher[0],
        snapshots=(0, 8, 12),
        progress=progress,
        folder=tmp_path,
    )
    assert seen == [(12, "tpkd, seed 42")]
    assert [row["iteration"] for row in result.log] == [0, 1, 5, 8, 10, 11, 12]
    assert [row["iteration"] for row in result.log if "observation" in row] == [0, 1, 8, 12]
    assert [row["iteration"] for row in result.log if "loss" in row] == [0, 5, 10, 11]
    assert result.log[-1]["observation"] == result.measures
    assert result.log[4]["epoch"] == 3
    torch.testing.assert_close(result.test_logits, predict(model, examples))
    accuracy = float((result.test_logits.argmax(1) == examples.labels).double().mean())
    assert result.measures["accuracy"] == pytest.approx(accuracy)
    assert model.training
    assert sorted(result.snapshots) == [0, 8, 12]
    again = network(dropout=0.1)
    assert torch.equal(result.snapshots[0]["student.0.weight"], again[0].weight)
    other = Trainer(network(9, dropout=0.1), examples, values, teacher=teacher)
    other.load_state(result.snapshots[8])
    for k in range(8, 12):
        other.step(k)
    assert torch.equal(weights(other.student), weights(model))


def test_the_teacher_changes_nothing_of_ce_but_its_log():
    examples, teacher = task(24)
    bare = train_student(network(), examples, settings("ce"))
    told = train_student(network(), examples, settings("ce"), teacher=teacher)
    assert bare.weights_digest == told.weights_digest
    assert "conditional_kl" not in bare.log[0]
    assert told.log[0]["conditional_kl"] > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", OBJECTIVES)
def test_every_method_learns_on_every_device(method, device):
    examples, teacher = task(26, dtype=torch.float32)
    values = TrainingSettings(method, 60, 42, 0.1, batch_size=20, micro_batch=10)
    model = network(dtype=torch.float32)
    before = predict(model, examples)
    result = train_student(model, examples, values, teacher=teacher, test=examples, device=device)
    labels = examples.labels
    start = float((before.argmax(1) == labels).double().mean())
    assert result.measures["accuracy"] > start + 0.2
    assert next(model.parameters()).device.type == device
