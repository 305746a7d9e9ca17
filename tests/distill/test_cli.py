"""The command line: one line for an error, exit codes, and what it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lib.distill import runs
from lib.distill.__main__ import main
from lib.distill.recipes import load_settings
from lib.distill.runs import kept_configs
from tests.distill import tiny_setting  # noqa: F401

ROOT = Path(__file__).parents[2]
SWEEP = ["sweep", "--setting", "tiny", "--jobs", "1"]


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    """An empty cache, no data, and nothing in memory."""
    monkeypatch.setenv("BOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BOOK_DATA", raising=False)
    runs._remembered.cache_clear()
    return tmp_path / "cache"


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code and what was printed, errors without the bars of progress."""
    try:
        code = main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    out, error = capsys.readouterr()
    told = [line for line in error.splitlines() if line.startswith(("error", "interrupted"))]
    return code, out, "\n".join(told)


def test_a_sweep_prints_plan_and_means(capsys):
    code, out, _ = run(capsys, *SWEEP, "--methods", "ce,tpkd", "--seeds", "42,43")
    assert code == 0
    assert "0 finished, 4 to run, about 8 s on 1 core" in out
    assert "tiny, smooth teacher, tpkd: " in out
    assert out.rstrip().endswith("4 finished, 0 failed")
    assert len(kept_configs()) == 4


def test_a_failing_run_gives_exit_code_one(capsys):
    code, out, _ = run(
        capsys, *SWEEP, "--methods", "ce", "--seeds", "42", "--set", "learning_rate=1e30"
    )
    assert code == 1
    assert "failed    tiny-smooth-ce-42: TrainingError: ce cannot go on at step" in out
    code, _, error = run(
        capsys, "train", "--setting", "tiny", "--method", "ce", "--set", "learning_rate=1e30"
    )
    assert code == 1
    assert error.startswith("error: ce cannot go on at step")


def test_a_dry_run_of_all_methods_and_both_teachers_writes_nothing(capsys, isolated):
    code, out, _ = run(
        capsys,
        *SWEEP,
        "--methods",
        "all",
        "--seeds",
        "42",
        "--teacher",
        "smooth,sharp",
        "--dry-run",
    )
    assert code == 0
    assert "0 finished, 28 to run" in out
    assert not isolated.exists()


def test_domain_and_profile_name_a_setting(capsys):
    code, out, _ = run(capsys, "sweep", "--domain", "vision", "--dry-run", "--seeds", "7")
    assert code == 0
    assert "digits-smooth-tpkd-7-" in out


def test_train_prints_what_was_measured(capsys):
    arguments = ("train", "--setting", "tiny", "--method", "kd", "--seed", "7")
    code, out, _ = run(capsys, *arguments, "--set", 'options={"kd": {"temperature": 2.0}}')
    assert code == 0
    found = json.loads(out)
    assert found["run"].startswith("tiny-smooth-kd-7-")
    assert found["count"] == 30
    (config,) = kept_configs().values()
    assert config.overrides == {"options": {"kd": {"temperature": 2.0}}}


def test_status_lists_the_runs_of_a_setting(capsys):
    run(capsys, *SWEEP, "--methods", "ce", "--seeds", "1,2")
    code, out, _ = run(capsys, "status")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["finished", "finished"]
    assert run(capsys, "status", "--setting", "digits")[:2] == (0, "")
    assert run(capsys, "status", "--setting", "nowhere")[0] == 2


def test_files_that_cannot_be_written_are_one_line(capsys, isolated):
    isolated.write_text("no folder")
    code, _, error = run(capsys, "train", "--setting", "tiny", "--method", "ce")
    assert code == 2
    assert error.startswith("error: [Errno")
    assert str(isolated) in error


def test_settings_and_their_tables_are_printed(capsys):
    code, out, _ = run(capsys, "settings")
    assert code == 0
    assert len(out.splitlines()) == len(load_settings())
    code, out, _ = run(capsys, "settings", "clinc150-l0")
    assert "  learning_rate = 0.0003" in out.splitlines()


def test_prepare_tells_about_the_teachers(capsys):
    code, out, _ = run(capsys, "prepare", "--setting", "tiny", "--teacher", "smooth,sharp")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == [
        "tiny, smooth teacher",
        "tiny, sharp teacher",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sweep"], "give --domain vision or --domain text, or --setting NAME"),
        ([], "the following arguments are required"),
        (["dance"], "invalid choice: 'dance'"),
        (["sweep", "--domain", "sound"], "invalid choice: 'sound'"),
        ([*SWEEP, "--methods", "ce,magic"], "method must be one of ce, kd"),
        ([*SWEEP, "--seeds", "42,x"], "--seeds must be integers with commas, got 'x'"),
        ([*SWEEP, "--seeds", "-1"], "seed must be an integer >= 0, got -1"),
        ([*SWEEP, "--teacher", "wise"], "teacher must be one of smooth, sharp, got 'wise'"),
        ([*SWEEP, "--set", "speed=3"], "overrides of 'tiny' must be among"),
        ([*SWEEP, "--set", "iterations"], "--set must be NAME=VALUE, got 'iterations'"),
        ([*SWEEP, "--set", "iterations=many"], "overrides['iterations'] must be of the type"),
        ([*SWEEP, "--jobs", "0"], "jobs must be an integer >= 1, got 0"),
        ([*SWEEP, "--jobs", "two"], "invalid int value: 'two'"),
        ([*SWEEP, "--domain", "text"], "setting 'tiny' is of the domain 'vision', got 'text'"),
        (["sweep", "--setting", "nowhere"], "setting must be one of"),
        (["sweep", "--domain", "vision", "--profile", "cpu"], "CIFAR-100 with 20,000 training"),
        (["train", "--setting", "tiny"], "the following arguments are required: --method"),
        (["train", "--setting", "tiny", "--method", "ce", "--set", "missing=true"], "not here"),
        ([*SWEEP, "--set", "weight_decay=null"], "overrides['weight_decay'] must be of the type"),
        ([*SWEEP, "--set", "train=null"], "overrides['train'] must be of the type of 60"),
        ([*SWEEP, "--methods", "dkd", "--set", "train=0"], "overrides['train'] must be >= 1"),
        ([*SWEEP, "--set", 'options={"KD": {"temperature": 2}}'], "got 'KD': {'temperature': 2}"),
        ([*SWEEP, "--set", 'options={"ce": 3}'], "overrides['options'] must map methods"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_line_and_exit_code_two(capsys, isolated, arguments, says):
    code, out, error = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert error.startswith("error: ")
    assert says in error
    assert "\n" not in error
    assert not list(isolated.rglob("*.safetensors"))


def test_an_interruption_says_how_to_go_on(capsys, monkeypatch):
    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "train", interrupted)
    code, _, error = run(capsys, "train", "--setting", "tiny", "--method", "ce")
    assert code == 130
    assert error == "interrupted: finished runs are kept; run again to go on."


def test_an_error_has_a_line_of_its_own_below_the_bars(capsys, monkeypatch):
    def find(part):
        raise ImportError("the weights are not here")

    def failing(config, progress, **named):
        return list(find(part) for part in progress([1, 2], "parts"))  # noqa: C400, has a frame

    monkeypatch.setattr(runs, "train", failing)
    code, _, error = run(capsys, "train", "--setting", "tiny", "--method", "ce")
    assert code == 2
    assert error == "error: the weights are not here"


@pytest.mark.slow
def test_two_processes_train_a_run_together(isolated, capsys):
    """The command of the paper profile, `torchrun ... -m lib.distill`, on digits and two CPUs."""
    short = {"iterations": 6, "micro_batch": 32, "teacher_iterations": 4, "teacher_warmup": 1}
    short |= {"teacher_micro_batch": 32, "snapshots": []}
    changes = [f"--set={name}={json.dumps(value)}" for name, value in short.items()]
    asked = ["sweep", "--setting", "digits", "--methods", "tpkd", "--seeds", "42", *changes]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
    ]
    environment = os.environ | {"BOOK_CACHE": str(isolated), "OMP_NUM_THREADS": "1"}
    together = subprocess.run(
        [*command, "29731", "-m", "lib.distill", *asked],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert together.returncode == 0, together.stderr
    assert together.stdout.count("1 finished, 0 failed") == 1
    ((key, config),) = kept_configs().items()
    shared = runs.finished_result(config)
    alone = runs.train(config, keep=False)
    assert key == config.key()
    assert (shared.test_logits - alone.test_logits).abs().max() < 1e-5
