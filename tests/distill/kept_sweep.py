"""A sweep in a process of its own, which a test kills: ``python -m tests.distill.kept_sweep``."""

from __future__ import annotations

from lib.distill.config import TrainingConfig
from lib.distill.sweeps import sweep
from tests.distill import tiny_setting  # noqa: F401

LONG = {"iterations": 800, "learning_rate": 0.01, "checkpoint_every": 50, "snapshots": []}


def configs() -> list[TrainingConfig]:
    """Two runs of some seconds."""
    return [TrainingConfig("vision", name, 42, "tiny", overrides=LONG) for name in ("ce", "tpkd")]


if __name__ == "__main__":
    sweep(configs(), jobs=1)
