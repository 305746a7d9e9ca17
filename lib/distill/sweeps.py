"""Many runs at once: what is finished is skipped, what fails is told at the end."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import joblib
import torch
from tqdm import tqdm

from lib.distill.checkpoints import CheckpointError
from lib.distill.config import TrainingConfig
from lib.distill.distributed import current_processes
from lib.distill.recipes import Setting, find_setting, register
from lib.distill.runs import finished_result, prepare, train
from lib.distill.settings import TrainingResult
from lib.distill.sweep_plan import Plan, plan_sweep
from lib.distill.sweep_words import Failure, describe_end, describe_plan, one_line

BACKENDS = ("loky", "dask", "ray")
_BAR = "{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} left{postfix}"
_KNOWN_IN_WORKER = "lib.distill."  # settings of other modules are sent along


@dataclass(frozen=True)
class SweepReport:
    """What a sweep ended with.

    Attributes:
        results: of all finished runs, by key, in the order of the configs.
        failures: runs that did not finish.
        plan: what was to do at the start.
    """

    results: dict[str, TrainingResult]
    failures: list[Failure] = field(default_factory=list)
    plan: Plan | None = None


def sweep(
    configs: Sequence[TrainingConfig],
    jobs: int | None = None,
    backend: str = "loky",
    dry_run: bool = False,
    report: Callable[[str], None] = print,
    device: torch.device | None = None,
) -> SweepReport:
    """Train all configs that are not finished; one that fails stops no other.

    Each worker uses one thread. Under `torchrun` all processes train one run after the other
    together.

    Args:
        configs: of the runs.
        jobs: runs at a time; None for one for each core, or for one where there is a GPU.
        backend: "loky" for processes of this machine, "dask" or "ray" for a cluster to which this
            process is connected.
        dry_run: only report the plan; nothing is written.
        report: called with a line or several for the reader.
        device: where to train; None for the GPU if there is one.

    Returns:
        The results, and the failures, which are also reported at the end.

    Raises:
        ValueError: if `jobs` or `backend` does not fit.
        ImportError: if the library of the backend is not installed.
        CheckpointError: if a file of a finished run is damaged; it names the file.

    Example:
        >>> configs = [TrainingConfig("vision", "ce", 1_000_000, "digits")]
        >>> report = sweep(configs, dry_run=True, report=lambda line: None)
        >>> len(report.results), len(report.plan.pending)
        (0, 1)
    """
    jobs = _check(jobs, backend)
    plan = _agreed(plan_sweep(configs))
    report(describe_plan(plan, jobs))
    failures: list[Failure] = []
    if not dry_run and plan.pending:
        failures = _run_all(plan, jobs, backend, device)
    named = {config.key(): config for config in configs}
    found = {key: plan.finished.get(key) or _result(config) for key, config in named.items()}
    results = {key: result for key, result in found.items() if result is not None}
    if not dry_run:
        report(describe_end(results, named, failures))
    return SweepReport(results, failures, plan)


def track_bar(iterable: Iterable, label: str) -> Iterable:
    """Return what is looped over with a bar that says how long it will take.

    Args:
        iterable: what to loop over.
        label: what a step is.

    Returns:
        The same items; under `torchrun` only the first process draws.

    Example:
        >>> list(track_bar([1, 2], "steps"))
        [1, 2]
    """
    return tqdm(iterable, desc=label, leave=False, disable=not current_processes().first)


def _agreed(plan: Plan) -> Plan:
    """The plan of the first of the processes that train together."""
    if current_processes().size == 1:
        return plan
    plans = [plan]
    torch.distributed.broadcast_object_list(plans, 0)
    return plans[0]


def _check(jobs: int | None, backend: str) -> int:
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend != "loky" and importlib.util.find_spec(_library(backend)) is None:
        install = {"dask": "dask[distributed]", "ray": "ray"}[backend]
        raise ImportError(f"backend {backend!r} needs {_library(backend)}: pip install '{install}'")
    if jobs is None:
        return 1 if torch.cuda.is_available() else joblib.cpu_count()
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise ValueError(f"jobs must be an integer >= 1, got {jobs!r}")
    return jobs


def _library(backend: str) -> str:
    return {"dask": "distributed", "ray": "ray"}[backend]


def _run_all(plan: Plan, jobs: int, backend: str, device: torch.device | None) -> list[Failure]:
    """Train all that is pending; return what failed."""
    ready, failures = _prepare_all(plan, device)
    if current_processes().size > 1:
        jobs = 1
    order = sorted(ready, key=lambda key: -plan.seconds[key])  # long ones first: cores end together
    if jobs == 1:
        outcomes = (_work(ready[key], None, device, track_bar) for key in order)
        return failures + _collect(outcomes, plan, ready)
    tasks = (joblib.delayed(_work)(ready[key], _sent(ready[key]), device) for key in order)
    with _parallel(backend, jobs) as parallel:
        return failures + _collect(parallel(tasks), plan, ready)


def _prepare_all(plan: Plan, device: torch.device | None) -> tuple[dict, list[Failure]]:
    """Make what runs share before the workers start; a setting that cannot be made fails whole."""
    ready, failures, broken = {}, [], {}
    for key, config in plan.pending.items():
        shared = (config.setting, config.teacher, repr(sorted(config.overrides.items())))
        if shared not in broken:
            broken[shared] = _attempt(
                prepare, config.setting, config.teacher, config.overrides, track_bar, device
            )
        if broken[shared]:
            failures.append(Failure(config, broken[shared]))
        else:
            ready[key] = config
    return ready, failures


def _collect(outcomes: Iterator, plan: Plan, ready: dict[str, TrainingConfig]) -> list[Failure]:
    """Follow the runs as they end; whoever has not ended when the workers die has failed."""
    failures, left = [], dict(ready)
    total = sum(plan.seconds[key] for key in ready)
    quiet = not current_processes().first
    with tqdm(total=max(total, 1e-9), desc="sweep", bar_format=_BAR, disable=quiet) as bar:
        try:
            for key, reason in outcomes:
                config = left.pop(key)
                failures += [Failure(config, reason)] if reason else []
                bar.set_postfix_str(f"{len(ready) - len(left)} of {len(ready)} runs", refresh=False)
                bar.update(plan.seconds[key])
        except Exception as error:
            if not left:
                raise
            reason = f"a worker ended early ({one_line(error)}); run the sweep again to go on"
            failures += [Failure(config, reason) for config in left.values()]
    return failures


def _work(
    config: TrainingConfig,
    setting: Setting | None,
    device: torch.device | None,
    progress: Callable | None = None,
) -> tuple[str, str]:
    """Train one config in a worker; return its key and why it failed, or nothing."""
    if setting is not None:
        with contextlib.suppress(ValueError):
            register(setting)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return config.key(), _attempt(train, config, progress, device=device)
    finally:
        torch.set_num_threads(threads)


def _attempt(function: Callable, *arguments: object, **named: object) -> str:
    """Why a call failed, in one line; nothing where it did not."""
    try:
        function(*arguments, **named)
    except Exception as error:
        return one_line(error)
    return ""


def _sent(config: TrainingConfig) -> Setting | None:
    """The setting, if a new process would not know it."""
    setting = find_setting(config.setting)
    return None if setting.prepare.__module__.startswith(_KNOWN_IN_WORKER) else setting


@contextlib.contextmanager
def _parallel(backend: str, jobs: int) -> Iterator[joblib.Parallel]:
    """A pool whose workers have one thread each and yield what is ready first."""
    if backend == "ray":
        from ray.util.joblib import register_ray

        register_ray()
    options = {"inner_max_num_threads": 1} if backend == "loky" else {}
    with joblib.parallel_config(backend=backend, n_jobs=jobs, **options):
        yield joblib.Parallel(return_as="generator_unordered", pre_dispatch="all")


def _result(config: TrainingConfig) -> TrainingResult | None:
    with contextlib.suppress(CheckpointError):
        return finished_result(config)
    return None
