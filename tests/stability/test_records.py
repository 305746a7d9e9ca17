"""Checkpoints: killed runs end like whole ones; damaged files and other runs are refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lib.stability.run_state as run_state
from lib.models import fully_connected
from lib.stability import CheckpointError, descend
from lib.stability.records import read_checkpoint, tensor_digest, write_checkpoint

ROOT = Path(__file__).resolve().parents[2]
SETTING = {"step_size": 0.1, "every": 5, "optimiser": "nesterov", "momentum": 0.5, "k": 2}


def network(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return fully_connected(6, (8,), 3, generator=generator, batch_norm=True)


def task(seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(40, 6, generator=generator)
    return inputs, torch.randint(3, (40,), generator=generator)


def train(path=None, steps=30, model=None, data=None, **change):
    model = network() if model is None else model
    data = task() if data is None else data
    run = descend(model, "square", data, steps=steps, checkpoint=path, **(SETTING | change))
    return run, model


def fields(run, model):
    kept = {name: value for name, value in vars(run).items() if isinstance(value, torch.Tensor)}
    return kept | {f"model.{name}": value for name, value in model.state_dict().items()}


def assert_same(first, second):
    first, second = fields(*first), fields(*second)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


class StopError(Exception):
    pass


def stop_at(step):
    def wrap(steps):
        for now in steps:
            if now == step:
                raise StopError
            yield now

    return wrap


@pytest.mark.parametrize("checkpoint_every", [None, 1, 3, 7, 100])
@pytest.mark.parametrize("stops", [(0,), (1,), (5, 6, 6), (11, 29), (30,)])
def test_a_stopped_run_ends_like_a_whole_one(tmp_path, checkpoint_every, stops):
    path = tmp_path / "run"
    for stop in stops:
        with pytest.raises(StopError):
            train(path, checkpoint_every=checkpoint_every, progress=stop_at(stop))
    assert_same(train(path, checkpoint_every=checkpoint_every), train())


def test_a_finished_run_is_read_back_without_work(tmp_path, monkeypatch):
    first = train(tmp_path / "run")
    monkeypatch.setattr(run_state.RunState, "look", None)
    assert_same(train(tmp_path / "run"), first)


def test_a_finished_run_goes_on_when_more_steps_are_asked_for(tmp_path):
    train(tmp_path / "run", steps=13)
    assert_same(train(tmp_path / "run"), train())
    with pytest.raises(CheckpointError, match=r"run is at step 30, beyond steps=13"):
        train(tmp_path / "run", steps=13)


@pytest.mark.parametrize(
    ("change", "ended"), [({"goal_loss": 0.2}, "goal"), ({"step_size": 1e5}, "diverged")]
)
def test_an_early_end_is_remembered(tmp_path, change, ended):
    first = train(tmp_path / "run", steps=300, **change)
    again = train(tmp_path / "run", steps=400, **change)
    assert first[0].ended == again[0].ended == ended
    assert_same(first, again)


OTHERS = [
    ({"step_size": 0.2}, "step_size is 0.1 there, 0.2 here"),
    ({"momentum": 0.9}, "momentum is 0.5 there, 0.9 here"),
    ({"optimiser": "polyak"}, "optimiser is 'nesterov' there, 'polyak' here"),
    ({"every": [0, 5]}, r"every is 5 there, \[0, 5\] here"),
    ({"k": 1, "tol": 1e-3}, "k is 2 there, 1 here; tol is 0.0001 there, 0.001 here"),
    ({"micro_batch": 8}, "micro_batch is None there, 8 here"),
    ({"model": network(1)}, "initial weights is"),
    ({"data": task(1)}, "data is"),
]


@pytest.mark.parametrize(("change", "message"), OTHERS)
def test_another_run_is_refused_by_name(tmp_path, change, message):
    path = tmp_path / "this.run"
    train(path, steps=6)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=rf"this\.run belongs to another run: {message}"):
        train(path, steps=6, **change)
    assert path.read_bytes() == before


def test_another_architecture_is_refused_by_name(tmp_path):
    train(tmp_path / "run", steps=6)
    generator = torch.Generator().manual_seed(0)
    other = fully_connected(6, (8,), 3, "relu", generator=generator, batch_norm=True)
    with pytest.raises(CheckpointError, match=r"model is .*Tanh.* there, .*ReLU.* here"):
        train(tmp_path / "run", steps=6, model=other)


def test_every_flipped_byte_is_refused_by_name(tmp_path):
    path = tmp_path / "some.run"
    write_checkpoint(path, {"a": 1}, {"weights": torch.arange(3.0)})
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"some\.run is damaged"):
            read_checkpoint(path, {"a": 1})


@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.999])
def test_a_part_of_a_file_is_refused_by_name(tmp_path, part):
    path = tmp_path / "some.run"
    train(path, steps=6)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(CheckpointError, match=r"some\.run is damaged"):
        train(path, steps=6)
    path.write_bytes(whole + b" ")
    with pytest.raises(CheckpointError, match=r"some\.run is damaged"):
        train(path, steps=6)


def test_a_folder_is_refused_and_a_missing_one_named_before_the_first_step(tmp_path):
    def never(steps):
        raise AssertionError("a step was taken")

    with pytest.raises(CheckpointError, match="must be a file"):
        train(tmp_path, progress=never)
    with pytest.raises(CheckpointError, match=r"nowhere.run has no folder: create .*nowhere"):
        train(tmp_path / "nowhere" / "run", progress=never)
    with pytest.raises(CheckpointError, match="must be a path, got 3"):
        train(3, progress=never)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_checkpoint(tmp_path / "nowhere" / "run", {}, {})


def test_a_checkpoint_knows_what_is_frozen_and_in_which_mode(tmp_path):
    path, frozen = tmp_path / "run", network()
    train(path, steps=3)
    with pytest.raises(CheckpointError, match="in eval mode"):
        train(path, steps=3, model=network().eval())
    frozen[1].weight.requires_grad_(False)
    with pytest.raises(CheckpointError, match="frozen"):
        train(path, steps=3, model=frozen)
    assert_same(train(path, steps=3), train(steps=3))


def test_tensors_come_back_as_they_were(tmp_path):
    tensors = {
        "half of them": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
        "double": torch.tensor([float("nan"), -0.0, float("inf")], dtype=torch.float64),
        "count": torch.tensor(7),
        "empty": torch.empty(0, 2),
    }
    write_checkpoint(tmp_path / "run", {}, tensors)
    back = read_checkpoint(tmp_path / "run", {})
    assert list(back) == list(tensors)
    for name, value in tensors.items():
        assert (back[name].dtype, back[name].shape) == (value.dtype, value.shape)
        assert tensor_digest(back[name]) == tensor_digest(value)
    assert os.listdir(tmp_path) == ["run"]


def test_digest_sees_bytes_shape_and_dtype():
    zeros = [torch.zeros(2), -torch.zeros(2), torch.zeros(2, 1), torch.zeros(2).int()]
    assert len({tensor_digest(value) for value in zeros}) == 4
    assert tensor_digest(torch.zeros(2), torch.zeros(2)) != tensor_digest(torch.zeros(2))
    turned = torch.arange(6.0).reshape(2, 3)
    assert tensor_digest(turned.T) == tensor_digest(turned.T.contiguous())


def test_a_checkpoint_holds_no_pickle(tmp_path):
    import numpy as np

    with pytest.raises(ValueError, match="pickle"):
        write_checkpoint_of_objects(tmp_path / "run", np)


def write_checkpoint_of_objects(path, np):
    """A file with a right checksum whose archive holds a pickled object."""
    import hashlib
    import io

    from lib.stability import records

    archive = io.BytesIO()
    np.savez(archive, fingerprint=np.array("{}"), evil=np.array([{}], dtype=object))
    payload = archive.getvalue()
    path.write_bytes(records._MAGIC + hashlib.sha256(payload).digest() + payload)
    read_checkpoint(path, {})


KILLED = """
import json, os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from tests.stability.test_records import fields, tensor_digest, train

folder, kills = sys.argv[1], int(sys.argv[2])
random.seed(int(sys.argv[3]))

def run(name):
    result = train(os.path.join(folder, name), steps=120, checkpoint_every=1)
    return {key: tensor_digest(value) for key, value in fields(*result).items()}

began = time.monotonic()
whole = run("whole")
length = time.monotonic() - began
killed = writing = 0
while killed < kills:
    child = os.fork()
    if child == 0:
        run("killed")
        os._exit(0)
    time.sleep(random.uniform(0, 1.2 * length / kills))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        break
    killed += 1
    writing += os.path.exists(os.path.join(folder, "killed.part"))
print(json.dumps({"whole": whole, "killed": run("killed"), "kills": killed, "writing": writing}))
"""


@pytest.mark.slow
def test_a_killed_run_ends_bit_for_bit_like_a_whole_one(tmp_path):
    """SIGKILL at random moments, also while a checkpoint is written."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), "14", "0"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["killed"] == found["whole"]
    assert found["kills"] >= 10
    assert found["writing"] >= 1
