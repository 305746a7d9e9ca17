"""Sweeps: what is finished is skipped, what fails is told, what is killed goes on."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lib.datasets.files import NotHereError
from lib.distill import runs, sweeps
from lib.distill.assets import distill_folder
from lib.distill.config import TrainingConfig
from lib.distill.recipes import SETTINGS
from lib.distill.runs import finished_result, run_folder, train
from lib.distill.sweep_plan import Plan, plan_sweep
from lib.distill.sweep_words import describe_end, describe_plan, describe_run
from lib.distill.sweeps import sweep
from tests.distill import kept_sweep
from tests.distill.tiny_setting import TINY

ROOT = Path(__file__).parents[2]
DIVERGES = {"learning_rate": 1e30}


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    """An empty cache, and nothing in memory."""
    monkeypatch.setenv("BOOK_CACHE", str(tmp_path / "cache"))
    runs._remembered.cache_clear()
    return tmp_path / "cache"


def config(method: str = "ce", seed: int = 42, **overrides: object) -> TrainingConfig:
    return TrainingConfig("vision", method, seed, "tiny", overrides=overrides)


def run(configs: list, **options: object) -> tuple[sweeps.SweepReport, str]:
    """A sweep in this process, and what it told."""
    lines: list[str] = []
    return sweep(configs, **{"jobs": 1, "report": lines.append} | options), "\n".join(lines)


def test_a_failing_run_stops_no_other():
    good = [config("ce"), config("tpkd"), config("kd", 43)]
    bad = config("tpkd", 44, **DIVERGES)
    report, told = run([good[0], bad, *good[1:]])
    assert list(report.results) == [one.key() for one in good]
    (failure,) = report.failures
    assert failure.config == bad
    assert "tpkd cannot go on at step" in failure.reason
    assert "\n" not in failure.reason
    assert f"failed    {bad.label()}: TrainingError: tpkd cannot go on" in told
    assert "3 finished, 1 failed" in told
    for one in good:
        assert torch.equal(report.results[one.key()].test_logits, train(one).test_logits)


def test_finished_runs_are_skipped(monkeypatch):
    both = [config("ce"), config("kd")]
    run(both[:1])
    trained = []
    real = sweeps.train
    monkeypatch.setattr(sweeps, "train", lambda c, *a, **k: trained.append(c) or real(c, *a, **k))
    report, told = run(both)
    assert trained == both[1:]
    assert len(report.results) == 2
    assert f"finished  {both[0].key()}" in told
    assert f"to run    {both[1].key()}" in told
    again, _ = run(both)
    assert trained == both[1:]
    assert again.plan.total == 0


def test_a_config_that_is_named_twice_runs_once():
    report, _ = run([config("ce"), config("ce")])
    assert list(report.results) == [config("ce").key()]


def test_a_dry_run_writes_nothing(isolated):
    report, told = run([config("ce"), config("dto-kd")], dry_run=True)
    assert not isolated.exists()
    assert not report.results
    assert not report.failures
    assert "about 2 s (estimate of the setting)" in told
    assert "about 5 s (estimate of the setting)" in told
    assert told.endswith("0 finished, 2 to run, about 7 s on 1 core")


def test_estimates_come_from_finished_runs():
    """Of the same method the median; of others the setting's estimate in proportion."""
    for seed in (1, 2, 3):
        train(config("ce", seed))
    seconds = [finished_result(config("ce", seed)).seconds for seed in (1, 2, 3)]
    pending = [config("ce"), config("dto-kd"), config("ce", iterations=24)]
    plan = plan_sweep(pending)
    keys = [one.key() for one in pending]
    median = sorted(seconds)[1]
    assert plan.seconds[keys[0]] == median
    assert plan.seconds[keys[1]] == pytest.approx(median / 2.0 * 5.0)
    assert plan.seconds[keys[2]] == pytest.approx(median / 2.0 * 4.0)
    assert plan.measured == set(keys)
    assert plan.total == pytest.approx(sum(plan.seconds.values()))


def test_a_setting_that_cannot_be_made_fails_whole_and_alone():
    missing = [config("ce", missing=True), config("kd", missing=True)]
    report, told = run([*missing, config("ce")])
    assert [failure.config for failure in report.failures] == missing
    assert all("the weights are not here" in failure.reason for failure in report.failures)
    assert list(report.results) == [config("ce").key()]
    assert told.count("ImportError: the weights are not here; run pip install nothing") == 2


def test_workers_train_as_this_process_does(isolated, monkeypatch):
    """Two processes, one failing run among good ones, a setting that they do not know."""
    configs = [config("ce"), config("tpkd"), config("tpkd", 43, **DIVERGES), config("kd")]
    report, told = run(configs, jobs=2)
    assert "3 finished, 1 failed" in told
    assert [failure.config for failure in report.failures] == [configs[2]]
    monkeypatch.setenv("BOOK_CACHE", str(isolated.with_name("other")))
    runs._remembered.cache_clear()
    for one in (configs[0], configs[1], configs[3]):
        assert torch.equal(report.results[one.key()].test_logits, train(one).test_logits)


def _ends_at_once(*arguments: object) -> None:
    os._exit(1)


def test_a_worker_that_dies_is_told(monkeypatch):
    """Runs that had not ended are failures, and the sweep can be run again."""
    monkeypatch.setattr(sweeps, "_work", _ends_at_once)
    report, told = run([config("ce"), config("kd")], jobs=2)
    assert len(report.failures) == 2
    assert "a worker ended early (TerminatedWorkerError" in told
    assert "run the sweep again to go on" in told


def test_a_killed_sweep_goes_on(isolated, monkeypatch):
    """Killed in its second run, it keeps the first and ends with the bits of an unbroken one."""
    broken = _start(isolated)
    second = kept_sweep.configs()[1]
    log = run_folder(second) / "log.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") > 20):
        assert time.monotonic() < deadline
        assert broken.poll() is None, broken.stderr.read()
        time.sleep(0.01)
    broken.send_signal(signal.SIGKILL)
    broken.communicate()
    first = run_folder(kept_sweep.configs()[0]) / "result.safetensors"
    written = first.stat().st_mtime_ns
    assert finished_result(second) is None
    assert describe_run(second.key(), second).startswith("begun")
    report, _ = run(kept_sweep.configs())
    assert first.stat().st_mtime_ns == written
    monkeypatch.setenv("BOOK_CACHE", str(isolated.with_name("whole")))
    for one in kept_sweep.configs():
        assert train(one).weights_digest == report.results[one.key()].weights_digest


def _start(cache: Path) -> subprocess.Popen:
    environment = os.environ | {"BOOK_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.distill.kept_sweep"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"jobs": 0}, ValueError, "jobs must be an integer >= 1, got 0"),
        ({"jobs": True}, ValueError, "jobs must be an integer"),
        ({"backend": "threads"}, ValueError, "backend must be one of loky, dask, ray"),
    ],
)
def test_bad_options_are_named(options, error, says):
    with pytest.raises(error, match=says):
        run([config()], **options)


@pytest.mark.parametrize(("backend", "library"), [("dask", "distributed"), ("ray", "ray")])
def test_a_backend_that_is_not_installed_is_named(backend, library, monkeypatch, isolated):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == library else real(name, *a)
    )
    with pytest.raises(ImportError, match=rf"'{backend}' needs {library}: pip install"):
        run([config()], backend=backend)
    assert not isolated.exists()


def test_a_run_says_how_far_it_is():
    one = config("ce")
    train(one)
    assert describe_run(one.key(), one).startswith(f"finished  {one.key()}")
    path = run_folder(one) / "result.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert describe_run(one.key(), one).startswith(f"damaged   {one.key()}")
    path.unlink()
    assert describe_run(one.key(), one) == f"begun     {one.key()}  11 of 12 steps"
    with (run_folder(one) / "log.jsonl").open("a") as log:
        log.write('{"iterat')  # killed while it wrote
    assert describe_run(one.key(), one) == f"begun     {one.key()}  11 of 12 steps"
    assert describe_run("tiny-of-yesterday", one) == "outdated  tiny-of-yesterday"


def test_a_kept_run_whose_data_are_gone_stops_neither_status_nor_plan(monkeypatch):
    """It was of all images, say, and only the subset is still here."""

    def data(table):
        if table["train"] > 60:
            raise NotHereError("all images are not here")
        return {}

    monkeypatch.setitem(SETTINGS, "elsewhere", replace(TINY, name="elsewhere", data=data))
    whole, part = (
        TrainingConfig("vision", "ce", 42, "elsewhere", overrides={"train": n}) for n in (90, 60)
    )
    with monkeypatch.context() as patch:
        patch.setitem(SETTINGS, "elsewhere", replace(SETTINGS["elsewhere"], data=lambda table: {}))
        train(whole)
        key = whole.key()
    assert describe_run(key, whole) == f"no data   {key}  NotHereError: all images are not here"
    assert list(plan_sweep([part]).pending) == [part.key()]


def test_the_end_gives_means_over_seeds():
    configs = [config("ce", seed) for seed in (1, 2)] + [config("kd", 1)]
    results = {
        one.key(): replace(train(config("ce")), measures={"accuracy": value})
        for one, value in zip(configs, (0.90, 0.92, 0.5), strict=True)
    }
    told = describe_end(results, {one.key(): one for one in configs}, [])
    assert "tiny, smooth teacher, ce: 91.00 ± 1.41 % (2 seeds)" in told
    assert "tiny, smooth teacher, kd: 50.00 % (1 seed)" in told


def test_the_total_counts_cores_that_have_work():
    pending = {"a": config("ce"), "b": config("kd")}
    plan = Plan({}, pending, {"a": 30.0, "b": 90.0})
    assert describe_plan(plan, 8).endswith("2 to run, about 1 min 00 s on 2 cores")
    assert describe_plan(plan, 1).endswith("2 to run, about 2 min 00 s on 1 core")


def test_no_run_is_written_outside_the_cache(isolated):
    run([config("ce")])
    assert {path.name for path in isolated.iterdir()} == {"distill"}
    assert {path.name for path in distill_folder().iterdir()} <= {"runs", "teachers", "assets"}
    assert TINY.name == "tiny"
