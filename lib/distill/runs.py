"""Training by config: the materials of a setting, the run's folder, and what it ended with."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lib.distill.assets import Progress, distill_folder, work_lock
from lib.distill.config import TrainingConfig
from lib.distill.distributed import current_processes
from lib.distill.recipes import (
    Materials,
    Setting,
    default_device,
    find_setting,
    resolve_table,
    training_settings,
)
from lib.distill.settings import TrainingResult, TrainingSettings
from lib.distill.training import read_result, train_student

_CONFIG = "config.json"
_MATERIALS_KEPT = 2  # settings with their teacher, in memory


def prepare(
    setting: str,
    teacher: str = "smooth",
    overrides: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    device: torch.device | None = None,
) -> Materials:
    """Return what all runs of a setting share; the first time it is computed and kept on disk.

    Args:
        setting: name of a setting.
        teacher: "smooth" or "sharp".
        overrides: entries of the setting's table that differ.
        progress: called with an iterable and a label; as `lib.book.progress.track`.
        device: where to compute; None for the GPU if there is one.

    Returns:
        Examples, test examples and the teacher's logits for them.

    Raises:
        ValueError: if an argument does not fit.
        NotHereError: if data are not to be had.
        ImportError: if pretrained weights or a library are not installed.
        CheckpointError: if a kept file is damaged; it names the file.

    Example:
        >>> import tempfile
        >>> from unittest.mock import patch
        >>> with tempfile.TemporaryDirectory() as here, patch.dict("os.environ", BOOK_CACHE=here):
        ...     found = prepare("digits", overrides={"teacher_iterations": 60})
        >>> found.teacher.shape, len(found.test.labels)
        (torch.Size([1, 1280, 10]), 517)
    """
    text = json.dumps(dict(overrides or {}), sort_keys=True)
    return _prepared(find_setting(setting), teacher, text, progress, device or default_device())


def make_student(config: TrainingConfig, materials: Materials) -> nn.Module:
    """Return the student of a config before training.

    Args:
        config: of the run.
        materials: of its setting and teacher.

    Returns:
        The network, on the CPU.

    Example:
        >>> import tempfile
        >>> from unittest.mock import patch
        >>> with tempfile.TemporaryDirectory() as here, patch.dict("os.environ", BOOK_CACHE=here):
        ...     found = prepare("digits", overrides={"teacher_iterations": 60})
        >>> config = TrainingConfig("vision", "ce", 42, "digits", overrides={"widths": [16]})
        >>> make_student(config, found).head
        Linear(in_features=16, out_features=10, bias=True)
    """
    setting = find_setting(config.setting)
    return setting.student(resolve_table(setting, config.overrides), materials, config.seed)


def settings_of(config: TrainingConfig) -> TrainingSettings:
    """Return how a config is trained.

    Args:
        config: of the run.

    Returns:
        The settings.

    Example:
        >>> settings_of(TrainingConfig("text", "kd", 42, "clinc150-l0")).clip
        1.0
    """
    return training_settings(
        find_setting(config.setting), config.method, config.seed, config.overrides
    )


def run_folder(config: TrainingConfig) -> Path:
    """Return the folder of a run; nothing is made.

    Raises:
        NotHereError: if data that the setting reads are not here.

    Example:
        >>> run_folder(TrainingConfig("vision", "ce", 42, "digits")).parent.name
        'runs'
    """
    return distill_folder() / "runs" / config.key()


def finished_result(config: TrainingConfig) -> TrainingResult | None:
    """Return what a run ended with, or None if it has not ended.

    Args:
        config: of the run.

    Returns:
        The result; nothing is trained, and neither data nor teacher are read.

    Raises:
        CheckpointError: if a file of the run is damaged; it names the file.

    Example:
        >>> finished_result(TrainingConfig("vision", "ce", 1_000_000, "digits")) is None
        True
    """
    return read_result(run_folder(config), settings_of(config))


def train(
    config: TrainingConfig,
    progress: Progress | None = None,
    *,
    keep: bool = True,
    device: torch.device | None = None,
) -> TrainingResult:
    """Train as a config says: a finished run is read, an interrupted one goes on.

    The run lies in the cache of the book under the config's key. Two processes never write the
    same run: the second waits and then reads what the first has written. The number of threads is
    not in the key, though it shows in the last bits; `sweep` gives every run one.

    Args:
        config: of the run.
        progress: called with an iterable and a label; as `lib.book.progress.track`.
        keep: False to train from the start and to leave nothing behind but the teacher.
        device: where to train; None for the GPU if there is one.

    Returns:
        The result; of "ce" with the states after the setting's "snapshots".

    Raises:
        ValueError: if a value does not fit.
        TrainingError: if the training diverges.
        NotHereError: if data are not to be had.
        ImportError: if pretrained weights or a library are not installed.
        CheckpointError: if a kept file is damaged; it names the file.

    Example:
        >>> short = {"iterations": 40, "teacher_iterations": 60}
        >>> config = TrainingConfig("vision", "tpkd", 42, "digits", overrides=short)
        >>> import tempfile
        >>> from unittest.mock import patch
        >>> with tempfile.TemporaryDirectory() as here, patch.dict("os.environ", BOOK_CACHE=here):
        ...     result = train(config)
        >>> result.measures["count"], result.log[-1]["iteration"]
        (517, 39)
    """
    device = device or default_device()
    if not keep:
        return _train(config, None, progress, device)
    folder = run_folder(config)
    with work_lock(folder):
        finished = finished_result(config)
        return finished or _train(config, folder, progress, device)


def kept_configs() -> dict[str, TrainingConfig]:
    """Return the configs of all runs that were begun, by key.

    Runs of settings that are no longer there are left out.

    Example:
        >>> isinstance(kept_configs(), dict)
        True
    """
    found = {}
    for path in sorted((distill_folder() / "runs").glob(f"*/{_CONFIG}")):
        try:
            found[path.parent.name] = TrainingConfig.from_json(json.loads(path.read_text("utf-8")))
        except ValueError:
            continue
    return found


def _train(
    config: TrainingConfig, folder: Path | None, progress: Progress | None, device: torch.device
) -> TrainingResult:
    setting, settings = find_setting(config.setting), settings_of(config)
    table = resolve_table(setting, config.overrides)
    materials = prepare(config.setting, config.teacher, config.overrides, progress, device)
    student, layers = make_student(config, materials), None
    if settings.feature_weight:
        layers = setting.layers(table, materials, config.teacher, student, device)
    if folder is not None:
        _write_config(folder, config)
    return train_student(
        student,
        materials.examples,
        settings,
        teacher=materials.teacher,
        test=materials.test,
        test_teacher=materials.test_teacher,
        folder=folder,
        snapshots=table["snapshots"] if config.method == "ce" else (),
        progress=progress,
        device=device,
        features=layers,
    )


def _write_config(folder: Path, config: TrainingConfig) -> None:
    """Beside the run, for whoever lists the runs; whole or not at all."""
    if not current_processes().first:
        return
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{_CONFIG}.part"
    part.write_text(json.dumps(config.to_json(), indent=1) + "\n", encoding="utf-8")
    os.replace(part, folder / _CONFIG)


@lru_cache(maxsize=_MATERIALS_KEPT)
def _remembered(setting: str, teacher: str, overrides: str, device: torch.device) -> list:
    """A place for materials that this process has read before."""
    return []


def _prepared(
    setting: Setting, teacher: str, overrides: str, progress: Progress | None, device: torch.device
) -> Materials:
    place = _remembered(setting.name, teacher, overrides, device)
    if not place:
        table = resolve_table(setting, json.loads(overrides))
        if teacher not in table:
            raise ValueError(f"teacher must be 'smooth' or 'sharp', got {teacher!r}")
        place.append(setting.prepare(table, teacher, progress, device))
    return place[0]
