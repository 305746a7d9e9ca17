"""Processes that are forked from a test, because a new one spends seconds on imports."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable

import pytest
import torch

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def kill_inside(work: Callable, *arguments: object) -> None:
    """Runs work(stop, ...) in a process of its own and kills it where it calls `stop`."""
    context = multiprocessing.get_context("fork")
    reached = context.Event()

    def stop(*ignored: object) -> None:
        reached.set()
        time.sleep(600)

    process = context.Process(target=_alone, args=(work, stop, *arguments))
    process.start()
    assert reached.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def run_together(work: Callable, count: int, *arguments: object) -> list:
    """Runs work(report, meet, ...) in several processes and returns what they report.

    Each waits for the others where it calls `meet`.
    """
    context = multiprocessing.get_context("fork")
    queue, barrier = context.SimpleQueue(), context.Barrier(count, timeout=60)
    whole = (work, queue.put, barrier.wait, *arguments)
    processes = [context.Process(target=_alone, args=whole) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    return [queue.get() for _ in processes]


def _alone(work: Callable, *arguments: object) -> None:
    torch.set_num_threads(1)  # the threads of the parent did not come along
    work(*arguments)
