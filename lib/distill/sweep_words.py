"""What a sweep tells its reader: the plan, the end, how far a run is."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lib.datasets.files import NotHereError
from lib.distill.checkpoints import CheckpointError
from lib.distill.config import TrainingConfig
from lib.distill.run_files import LOG
from lib.distill.runs import finished_result, run_folder, settings_of
from lib.distill.settings import TrainingResult
from lib.distill.sweep_plan import Plan


@dataclass(frozen=True)
class Failure:
    """A run that did not finish.

    Attributes:
        config: of the run.
        reason: in one line.
    """

    config: TrainingConfig
    reason: str


def describe_plan(plan: Plan, jobs: int) -> str:
    """Return the plan as lines for a reader.

    Args:
        plan: of a sweep.
        jobs: runs at a time.

    Returns:
        One line for each run, and the total.

    Example:
        >>> print(describe_plan(Plan({}, {}, {}), 2))
        0 finished, 0 to run, about 0 s on 1 core
    """
    lines = [
        f"  finished  {key}  {_measures(result)}, {result.seconds:.0f} s"
        for key, result in plan.finished.items()
    ]
    for key in plan.pending:
        source = "from finished runs" if key in plan.measured else "estimate of the setting"
        lines.append(f"  to run    {key}  about {_duration(plan.seconds[key])} ({source})")
    at_once = max(1, min(jobs, len(plan.pending)))
    lines.append(
        f"{len(plan.finished)} finished, {len(plan.pending)} to run, about "
        f"{_duration(plan.total / at_once)} on {at_once} core{'s' if at_once > 1 else ''}"
    )
    return "\n".join(lines)


def describe_end(
    results: dict[str, TrainingResult],
    configs: dict[str, TrainingConfig],
    failures: Sequence[Failure],
) -> str:
    """Return accuracies by setting, teacher and method, and every failure, as lines for a reader.

    Args:
        results: by key.
        configs: by key.
        failures: runs that did not finish.

    Returns:
        One line for each method with mean and sample standard deviation over seeds.

    Example:
        >>> describe_end({}, {}, [])
        '0 finished, 0 failed'
    """
    groups: dict[str, list[float]] = {}
    for key, result in results.items():
        config = configs[key]
        name = f"{config.setting}, {config.teacher} teacher, {config.method}"
        groups.setdefault(name, []).append(100 * result.measures["accuracy"])
    lines = []
    for name, values in groups.items():
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        seeds = f"{len(values)} seed{'s' if len(values) > 1 else ''}"
        lines.append(f"  {name}: {statistics.fmean(values):.2f}{spread} % ({seeds})")
    lines.append(f"{len(results)} finished, {len(failures)} failed")
    lines += [f"  failed    {failure.config.label()}: {failure.reason}" for failure in failures]
    return "\n".join(lines)


def describe_run(key: str, config: TrainingConfig) -> str:
    """Return how far a run is, in one line.

    Args:
        key: of the run.
        config: of the run.

    Returns:
        Its name, and what it ended with or how many steps its log tells of.
    """
    try:
        if key != config.key():
            return f"outdated  {key}"
        result = finished_result(config)
    except NotHereError as error:
        return f"no data   {key}  {one_line(error)}"
    except CheckpointError as error:
        return f"damaged   {key}  {one_line(error)}"
    if result is not None:
        return f"finished  {key}  {_measures(result)}, {result.seconds:.0f} s"
    taken = _last_logged(run_folder(config) / LOG)
    return f"begun     {key}  {taken} of {settings_of(config).iterations} steps"


def one_line(error: BaseException) -> str:
    """Return kind and message of an error without line breaks.

    Example:
        >>> one_line(ValueError("one\\ntwo"))
        'ValueError: one two'
    """
    return " ".join(f"{type(error).__name__}: {error}".split())


def _last_logged(log: Path) -> int:
    """The iteration of the last whole line of a log; 0 without one."""
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    for line in reversed(lines):
        with contextlib.suppress(json.JSONDecodeError):  # half a line, of a run that was killed
            return json.loads(line)["iteration"]
    return 0


def _measures(result: TrainingResult) -> str:
    return f"{100 * result.measures['accuracy']:.2f} %"


def _duration(seconds: float) -> str:
    """Seconds as a reader says them.

    Example:
        >>> _duration(75), _duration(4020)
        ('1 min 15 s', '1 h 07 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
