"""The GPU check without a GPU: the whole script, and what becomes of parts that break."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check, gpu_parts
from benchmarks.gpu_record import Place, Record, read_record

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_whole_script(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "BOOK_DATA"}
    environment |= {"OMP_NUM_THREADS": "1", "OUT": str(tmp_path)}
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--device", "cpu", "--tiny"]
    command += ["--limit", "1500"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + (tmp_path / "gpu-check.log").read_text()
    found = json.loads((tmp_path / "gpu-check.json").read_text())["parts"]
    assert list(found) == list(gpu_check.PARTS)
    assert {one["status"] for one in found.values()} == {"passed"}
    assert len(found["objectives"]["checks"]) == 28
    assert len(found["table4"]["rows"]) == 14
    assert {path.name for path in tmp_path.iterdir()} == {"gpu-check.json", "gpu-check.log"}


def sleeps(place: Place) -> None:
    place.record.put("before", 1)
    time.sleep(600)


def fails(place: Place) -> None:
    place.record.put("before", 2)
    raise ValueError("a reason")


def dies(place: Place) -> None:
    os._exit(7)


def differs(place: Place) -> None:
    place.record.check("a number", float("nan"), 1.0)


def passes(place: Place) -> None:
    place.record.check("a number", 0.5, 1.0)


def test_parts_that_break_cost_no_other(tmp_path, monkeypatch, capsys):
    parts = {
        work.__name__: gpu_check.Part(work, 1.5 if work is sleeps else 60)
        for work in (sleeps, fails, dies, differs, passes)
    }
    monkeypatch.setattr(gpu_check, "PARTS", parts)
    monkeypatch.setattr(gpu_check, "_LEAST", 1.0)
    assert gpu_check.main(["--device", "cpu", "--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "gpu-check.json").read_text())["parts"]
    assert {name: one["status"] for name, one in found.items()} == {
        "sleeps": "out of time",
        "fails": "failed",
        "dies": "failed",
        "differs": "differs",
        "passes": "passed",
    }
    assert (found["sleeps"]["before"], found["fails"]["before"]) == (1, 2)
    assert found["fails"]["error"] == "ValueError: a reason"
    assert found["dies"]["error"] == "ended with status 7"
    assert "a reason" in (tmp_path / "gpu-check.log").read_text()
    assert "a reason" in capsys.readouterr().out


def test_no_part_starts_without_time(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "PARTS", {"passes": gpu_check.Part(passes, 60)})
    assert gpu_check.main(["--device", "cpu", "--out", str(tmp_path), "--limit", "1"]) == 1
    found = json.loads((tmp_path / "gpu-check.json").read_text())["parts"]
    assert found["passes"]["status"] == "not run"


def test_a_missing_gpu_is_a_failure_and_no_crash(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert gpu_check.main(["--part", "machine", "--out", str(tmp_path)]) == 1


def test_record_survives_and_knows_nan(tmp_path):
    record = Record(tmp_path / "record.json")
    record.check("right", 1.0, 1.0)
    record.check("wrong", float("nan"), 1.0)
    record.finish()
    found = read_record(tmp_path / "record.json")
    assert found["status"] == "differs"
    assert [found["checks"][name]["holds"] for name in ("right", "wrong")] == [True, False]


def test_a_gradient_wrong_by_a_thousandth_would_be_seen():
    logits, labels = gpu_parts.draw(0, 8, 5, torch.float32)
    exact = gpu_parts.evaluate("kd", logits, labels, torch.float64, "cpu")
    found = gpu_parts.evaluate("kd", logits, labels, torch.float32, "cpu")
    bound = gpu_parts.OBJECTIVE_BOUNDS["float32"]
    assert gpu_parts.furthest(found, exact) < bound
    assert gpu_parts.furthest([1.001 * one for one in found], exact) > bound


@pytest.mark.parametrize("name", ["perceptron", "residual", "encoder"])
def test_twenty_steps_can_be_told_from_others(name):
    start, one = gpu_parts.travelled(name, "kd", "float64", "cpu")
    _, other = gpu_parts.travelled(name, "ce", "float64", "cpu")
    apart = float((other - one).norm() / (one - start).norm())
    assert apart > 10 * gpu_parts.RUN_BOUNDS["float32"]
