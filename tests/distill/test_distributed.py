"""Two processes under torchrun train the student that one process trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lib.distill.checkpoints import read_checkpoint
from lib.distill.distributed import Processes, current_processes, joined_processes
from tests.distill.processes import METHODS, columns, one_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Tensors and facts of both processes, and the folder that they wrote to."""
    folder = tmp_path_factory.mktemp("processes")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "tests.distill.processes", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [read_checkpoint(folder / f"rank-{rank}.safetensors") for rank in (0, 1)], folder


def test_both_processes_end_with_the_same_bits(ranks):
    (first, second), _ = ranks
    assert [first[1]["rank"], second[1]["rank"]] == [0, 1]
    assert first[0].keys() == second[0].keys()
    for name in first[0]:
        assert torch.equal(first[0][name], second[0][name]), name


@pytest.mark.parametrize("method", METHODS)
def test_two_parts_in_two_processes_are_one_process_to_the_bit(method, ranks):
    """The sum of two numbers does not depend on their order."""
    result, weights = one_run(method, 10)
    found = ranks[0][0][0]
    assert torch.equal(found[f"{method}.10"], weights)
    torch.testing.assert_close(found[f"{method}.10.log"], columns(result), rtol=1e-13, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_five_parts_in_two_processes_are_one_process(method, ranks):
    """Three parts here and two there: sums in another order, the same dropout."""
    result, weights = one_run(method, 4)
    found = ranks[0][0][0]
    torch.testing.assert_close(found[f"{method}.4"], weights, rtol=1e-11, atol=1e-12)
    logged = found[f"{method}.4.log"]
    torch.testing.assert_close(logged, columns(result), rtol=1e-10, atol=1e-12)


def test_an_interrupted_run_goes_on(ranks):
    _, weights = one_run("tpkd", 10)
    assert torch.equal(ranks[0][0][0]["interrupted"], weights)


def test_only_the_first_process_writes(ranks):
    """One log, with every row once, though two processes ran."""
    folder = ranks[1] / "interrupted"
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [0, 3, 6, 7]


def test_a_finished_run_is_read_by_both(ranks):
    result, _ = one_run("tpkd", 10)
    assert torch.equal(ranks[0][1][0]["read"], result.test_logits)


def test_all_processes_stop_together(ranks):
    for _, facts in ranks[0]:
        assert facts["nan"].startswith("ce cannot go on at step 0")
        assert "micro_batch must split a batch of 20 into at least 2 parts" in facts["refused"]


def test_a_process_alone_joins_nothing(monkeypatch):
    for names in ({}, {"RANK": "0", "WORLD_SIZE": "1"}):
        for name, value in names.items():
            monkeypatch.setenv(name, value)
        with joined_processes() as device:
            assert device is None
            assert current_processes() == Processes(0, 1)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_shares_are_a_partition_with_the_numbers_of_the_whole(size):
    parts = list("abcdefg")
    shares = [Processes(rank, size).share(parts) for rank in range(size)]
    assert sorted(pair for share in shares for pair in share) == list(enumerate(parts))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_process_alone_adds_and_spreads_nothing():
    tensor = torch.ones(3)
    alone = Processes()
    alone.add([tensor])
    alone.spread([tensor])
    alone.wait()
    assert tensor.tolist() == [1.0, 1.0, 1.0]
