"""Runs that are interrupted, killed and tampered with end with the bits of an unbroken one."""

from __future__ import annotations

import random
import time

import pytest
import torch
from torch import nn

from lib.distill.checkpoints import CheckpointError, read_checkpoint
from lib.distill.methods import OBJECTIVES
from lib.distill.run_files import LOG
from lib.distill.training import read_result, train_student
from tests.distill.killed import BEGUN, ITERATIONS, kill, run, start
from tests.distill.small_runs import network, settings, task, texts, weights


class Interrupted(Exception):
    """What a test raises in the middle of a run."""


def until(last):
    """A progress that stops a run before a step."""

    def progress(steps, label):
        for step in steps:
            if step == last:
                raise Interrupted
            yield step

    return progress


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    return run(folder), (folder / LOG).read_bytes()


def same(result, folder, unbroken):
    """Weights, log, log file, test logits, measures and snapshots are those of the unbroken run."""
    other, log = unbroken
    assert result.weights_digest == other.weights_digest
    assert result.log == other.log
    assert (folder / LOG).read_bytes() == log
    assert torch.equal(result.test_logits, other.test_logits)
    assert result.measures == other.measures
    for step, state in other.snapshots.items():
        assert result.snapshots[step].keys() == state.keys()
        assert all(torch.equal(state[name], result.snapshots[step][name]) for name in state)


def test_the_unbroken_run_learns_and_is_the_same_without_a_folder(unbroken):
    result, log = unbroken
    assert len(log.splitlines()) == len(result.log)
    assert result.measures["accuracy"] > 0.5
    memory = run(None)
    assert memory.weights_digest == result.weights_digest
    assert memory.log == result.log


@pytest.mark.parametrize("fatal", [2, 11, 35])
def test_a_killed_run_goes_on_to_the_same_bits(fatal, tmp_path, unbroken):
    process = start(tmp_path, fatal=fatal)
    process.join()
    assert process.exitcode == -9
    rows = (tmp_path / LOG).read_text().splitlines()
    reached = fatal // 3 * 3  # the last checkpoint
    found = read_checkpoint(tmp_path / "checkpoint.safetensors")
    if reached == 0:
        assert found is None
    else:
        assert found[1]["iteration"] == reached
        assert len(rows) > len(found[1]["log"])  # the log was ahead, and must be cut back
    same(run(tmp_path), tmp_path, unbroken)


@pytest.mark.parametrize("writing", [1, 5, 9])
def test_a_run_killed_while_it_writes_a_checkpoint(writing, tmp_path, unbroken):
    """The bytes lie beside the file already, under a name of their own."""
    process = start(tmp_path, writing=writing)
    waited = 0
    while not (tmp_path / BEGUN).exists() and waited < 60:
        time.sleep(0.02)
        waited += 0.02
    assert kill(process)
    assert list(tmp_path.glob("*.part"))
    same(run(tmp_path), tmp_path, unbroken)


def kill_at_random(folder, kills, seed):
    """Kill a run at random moments; the steps of the checkpoint that each kill left behind."""
    chance, left = random.Random(seed), []
    for _ in range(kills):
        process = start(folder, writing=chance.choice([None, None, 2, 3, 4]))
        while not (folder / LOG).exists():  # the run has begun
            time.sleep(0.002)
        deadline = time.monotonic() + chance.uniform(0.0, 0.5)
        while time.monotonic() < deadline and process.is_alive():
            time.sleep(0.002)
        if kill(process):
            found = read_checkpoint(folder / "checkpoint.safetensors")
            left.append(0 if found is None else found[1]["iteration"])
    return left


def test_a_run_killed_at_random_moments(tmp_path, unbroken):
    assert kill_at_random(tmp_path, 3, seed=0)
    same(run(tmp_path), tmp_path, unbroken)


@pytest.mark.slow
def test_a_run_killed_twenty_times(tmp_path, unbroken):
    left = [kill_at_random(tmp_path / f"run-{k}", 5, seed=k) for k in range(4)]
    assert sum(map(len, left)) >= 10
    for k in range(4):
        same(run(tmp_path / f"run-{k}"), tmp_path / f"run-{k}", unbroken)


@pytest.mark.parametrize("method", OBJECTIVES)
def test_every_method_goes_on_where_it_was(method, tmp_path):
    whole = run(None, method)
    for last in (5, 16):
        with pytest.raises(Interrupted):
            run(tmp_path, method, until(last))
    found = run(tmp_path, method)
    assert found.weights_digest == whole.weights_digest
    assert found.log == whole.log
    assert torch.equal(found.test_logits, whole.test_logits)


def resumed(build, examples, values, folder, **resources):
    """Weights of an unbroken run, and of one that was stopped after 7 of its steps."""
    whole, broken = build(), build()
    train_student(whole, examples, values, **resources)
    with pytest.raises(Interrupted):
        train_student(build(), examples, values, folder=folder, progress=until(7), **resources)
    train_student(broken, examples, values, folder=folder, **resources)
    return weights(whole), weights(broken), whole, broken


@pytest.mark.parametrize(
    "changes",
    [
        {"optimiser": "adam-weight-decay", "clip": 0.1, "schedule": "warmup-linear", "warmup": 3},
        {"precision": "float64"},
        {"precision": "amp-bfloat16"},
        {"momentum": 0.0},
    ],
    ids=["adam", "float64", "bfloat16", "no momentum"],
)
def test_every_optimiser_and_precision_goes_on_where_it_was(changes, tmp_path):
    dtype = torch.float64 if changes.get("precision") == "float64" else torch.float32
    examples, teacher = task(3, dtype=dtype)
    values = settings("tpkd", 12, checkpoint_every=2, **({"precision": "float32"} | changes))
    found = resumed(
        lambda: network(dropout=0.1, dtype=dtype), examples, values, tmp_path, teacher=teacher
    )
    assert torch.equal(*found[:2])


def test_statistics_of_a_normalisation_come_back(tmp_path):
    examples, teacher = task(3, dtype=torch.float32)
    values = settings("kd", 12, checkpoint_every=2, precision="float32", micro_batch=10)

    def build():
        model = network(dtype=torch.float32)
        model[1] = nn.BatchNorm1d(8)
        return model

    *_, whole, broken = resumed(build, examples, values, tmp_path, teacher=teacher)
    assert whole[1].num_batches_tracked == 24
    for one, other in zip(whole.state_dict().values(), broken.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_texts_of_different_lengths_go_on_where_they_were(tmp_path):
    from lib.models.text import text_encoder

    examples, teacher = texts()
    values = settings("tpkd", 12, checkpoint_every=2, precision="float32", micro_batch=8)

    def build():
        return text_encoder(20, 4, 8, 1, 2, generator=torch.Generator().manual_seed(0))

    found = resumed(build, examples, values, tmp_path, teacher=teacher)
    assert torch.equal(*found[:2])


def test_a_finished_run_is_read_and_its_student_filled(tmp_path, unbroken):
    run(tmp_path)
    taken = []

    def progress(steps, label):
        taken.append(len(steps))
        return steps

    model = network(3, dropout=0.2, dtype=torch.float32)
    same(run(tmp_path, progress=progress, model=model), tmp_path, unbroken)
    assert taken == []
    checkpoint = read_checkpoint(tmp_path / "checkpoint.safetensors")
    assert checkpoint[1]["iteration"] == ITERATIONS
    assert torch.equal(model[0].weight, checkpoint[0]["student.0.weight"])


def test_a_result_can_be_read_by_its_settings_alone(tmp_path):
    examples, _ = task(3)
    values = settings("ce", 4)
    assert read_result(tmp_path, values) is None
    with pytest.raises(Interrupted):
        train_student(network(), examples, values, folder=tmp_path, progress=until(2))
    assert read_result(tmp_path, values) is None
    made = train_student(network(), examples, values, folder=tmp_path, test=None, snapshots=())
    found = read_result(tmp_path, values)
    assert found == made
    with pytest.raises(CheckpointError, match="seed is 42 there, 43 here"):
        read_result(tmp_path, settings("ce", 4, seed=43))


@pytest.mark.parametrize("share", [0.01, 0.3, 0.99])
def test_a_damaged_checkpoint_is_refused(share, tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, progress=until(10))
    path = tmp_path / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)
    log = (tmp_path / LOG).read_bytes()
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors is damaged"):
        run(tmp_path)
    assert path.read_bytes() == content
    assert (tmp_path / LOG).read_bytes() == log


def test_a_damaged_log_is_written_anew(tmp_path, unbroken):
    with pytest.raises(Interrupted):
        run(tmp_path, progress=until(20))
    (tmp_path / LOG).write_text('{"iteration": 0, "lo')
    same(run(tmp_path), tmp_path, unbroken)


def test_a_missing_snapshot_is_named(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, progress=until(20))
    (tmp_path / "step-10.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"step-10\.safetensors is missing"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"values": settings("ce", 6, learning_rate=0.2)}, "settings.learning_rate is 0.1 there"),
        ({"values": settings("kl-dist", 6)}, "settings.method"),
        ({"model": network(5)}, "student is"),
        ({"examples": task(4)[0]}, "examples is"),
        ({"teacher": task(4)[1]}, "teacher of examples is"),
        ({"test": task(4)[0]}, "test is"),
        ({"snapshots": (3,)}, "snapshots is"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(change, named, tmp_path):
    def train(model=None, examples=None, values=None, teacher=None, progress=None, **more):
        return train_student(
            network() if model is None else model,
            task(3)[0] if examples is None else examples,
            settings("ce", 6, checkpoint_every=2) if values is None else values,
            teacher=task(3)[1] if teacher is None else teacher,
            folder=tmp_path,
            progress=progress,
            **more,
        )

    with pytest.raises(Interrupted):
        train(progress=until(5))
    with pytest.raises(CheckpointError, match=f"of another run: .*{named}"):
        train(**change)
    train()
    with pytest.raises(CheckpointError, match=f"of another run: .*{named}"):
        train(**change)


def test_logs_may_be_checkpointed_more_often(tmp_path):
    """How often a checkpoint is written changes nothing, and may change between two starts."""
    examples, teacher = task(3)
    whole = network()
    train_student(whole, examples, settings("kd", 12), teacher=teacher)
    for every, stop in ((2, 5), (5, 11)):
        with pytest.raises(Interrupted):
            train_student(
                network(),
                examples,
                settings("kd", 12, checkpoint_every=every),
                teacher=teacher,
                folder=tmp_path,
                progress=until(stop),
            )
    broken = network()
    train_student(broken, examples, settings("kd", 12), teacher=teacher, folder=tmp_path)
    assert torch.equal(weights(whole), weights(broken))
