"""What a sweep is about to do, and how long that will take."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lib.datasets.files import NotHereError
from lib.distill.checkpoints import CheckpointError
from lib.distill.config import TrainingConfig
from lib.distill.recipes import find_setting, resolve_table
from lib.distill.runs import finished_result, kept_configs
from lib.distill.settings import TrainingResult


@dataclass(frozen=True)
class Plan:
    """What a sweep is about to do.

    Attributes:
        finished: results that are there, by key.
        pending: configs that are not finished, by key.
        seconds: estimate for each of the pending, by key.
        measured: keys whose estimate comes from finished runs, not from the setting's table.
    """

    finished: dict[str, TrainingResult]
    pending: dict[str, TrainingConfig]
    seconds: dict[str, float]
    measured: frozenset[str] = frozenset()

    @property
    def total(self) -> float:
        """Estimate for all of the pending on one core, in seconds."""
        return sum(self.seconds.values())


def plan_sweep(configs: Sequence[TrainingConfig]) -> Plan:
    """Return what is finished, what is pending, and how long that will take.

    The estimate of a run is the median of finished runs of its setting and method; else the
    setting's own estimate, times the median ratio of both over its finished runs; else the
    setting's own estimate.

    Args:
        configs: of the runs.

    Returns:
        The plan; nothing is written.

    Raises:
        CheckpointError: if a file of a finished run is damaged; it names the file.
        NotHereError: if data that a setting reads are not here.

    Example:
        >>> plan = plan_sweep([TrainingConfig("vision", "ce", 1_000_000, "digits")])
        >>> len(plan.pending), len(plan.finished)
        (1, 0)
    """
    named = {config.key(): config for config in configs}
    found = {key: finished_result(config) for key, config in named.items()}
    finished = {key: result for key, result in found.items() if result is not None}
    pending = {key: config for key, config in named.items() if found[key] is None}
    costs = _Costs({config.setting for config in pending.values()} if pending else set())
    seconds = {key: costs.estimate(config) for key, config in pending.items()}
    measured = frozenset(key for key, config in pending.items() if costs.knows(config))
    return Plan(finished, pending, seconds, measured)


class _Costs:
    """What finished runs of some settings took."""

    def __init__(self, settings: set[str]) -> None:
        self.own: dict[tuple, list[float]] = {}
        self.ratios: dict[str, list[float]] = {}
        for config in kept_configs().values() if settings else ():
            if config.setting not in settings:
                continue
            with contextlib.suppress(CheckpointError, NotHereError):  # of another size of the data
                result = finished_result(config)
                if result is not None:
                    self.own.setdefault(_kind(config), []).append(result.seconds)
                    ratio = result.seconds / _documented(config)
                    self.ratios.setdefault(config.setting, []).append(ratio)

    def knows(self, config: TrainingConfig) -> bool:
        """Whether a run of the setting has finished."""
        return config.setting in self.ratios

    def estimate(self, config: TrainingConfig) -> float:
        """Seconds for a run."""
        if _kind(config) in self.own:
            return statistics.median(self.own[_kind(config)])
        return _documented(config) * statistics.median(self.ratios.get(config.setting, [1.0]))


def _kind(config: TrainingConfig) -> tuple[str, ...]:
    """What runs of about equal length have in common."""
    return config.setting, config.method, repr(sorted(config.overrides.items()))


def _documented(config: TrainingConfig) -> float:
    setting = find_setting(config.setting)
    return setting.estimate(config.method, resolve_table(setting, config.overrides))
