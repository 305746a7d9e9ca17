"""Runs that are killed: what a child process does, and how its parent kills it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import torch

from lib.distill import checkpoints
from lib.distill.training import train_student
from tests.distill.small_runs import network, settings, task

ITERATIONS = 40
BEGUN = "write-begun"


def run(folder: Path, method: str = "tpkd", progress=None, model=None):
    """One run of 40 steps with a checkpoint after every third, in float32 with dropout."""
    examples, teacher = task(2, dtype=torch.float32)
    values = settings(
        method,
        ITERATIONS,
        precision="float32",
        micro_batch=8,
        checkpoint_every=3,
        log_every=2,
        observe_every=7,
        auxiliary_head="nonlinear",
    )
    return train_student(
        network(3, dropout=0.2, dtype=torch.float32) if model is None else model,
        examples,
        values,
        teacher=teacher,
        test=examples,
        test_teacher=teacher,
        observation=examples,
        observation_teacher=teacher,
        folder=folder,
        snapshots=(10, 30),
        progress=progress,
    )


def slowly(steps, label):
    """Take a while for every step, so that a kill may come anywhere."""
    for step in steps:
        yield step
        time.sleep(0.004)


def child(folder: str, method: str, fatal: int | None, writing: int | None) -> None:
    """Run, and die by SIGKILL before step `fatal`, or slow down inside checkpoint `writing`."""
    torch.set_num_threads(1)

    def progress(steps, label):
        for step in slowly(steps, label):
            if step == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            yield step

    if writing is not None:
        linger_in_write(Path(folder), writing)
    run(Path(folder), method, progress)


def linger_in_write(folder: Path, which: int) -> None:
    """Make one write of a file stop for long after its bytes are written, before its name is."""
    real, count = os.fsync, [0]

    def fsync(handle: int) -> None:
        real(handle)
        count[0] += 1
        if count[0] == which:
            (folder / BEGUN).touch()
            time.sleep(60)

    checkpoints.os.fsync = fsync


def start(folder: Path, method="tpkd", fatal=None, writing=None):
    """Start a child in a process of its own, forked from a server that has loaded all."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.distill.killed", "torch._dynamo"])
    process = context.Process(target=child, args=(str(folder), method, fatal, writing))
    process.start()
    return process


def kill(process) -> bool:
    """Kill a child at once; True if it was still at work."""
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL
