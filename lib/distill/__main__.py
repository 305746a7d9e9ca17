"""The command line: ``python -m lib.distill sweep | train | prepare | status | settings``.

``torchrun --nproc-per-node N -m lib.distill sweep --profile paper ...`` trains every run on N GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

_SEEDS = "42,43,44"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: as on the command line, without the program's name.

    Returns:
        0 where all is well, 1 where a run failed, 2 for bad input, for data, weights or libraries
        that are not to be had and for files that cannot be written, 130 when interrupted.
    """
    from lib.datasets.files import ChecksumError, NotHereError
    from lib.distill.training import TrainingError
    from lib.models.weights import WeightsError

    options = _parser().parse_args(arguments)
    bad = (ValueError, ChecksumError, NotHereError, WeightsError, ImportError)
    try:
        return options.command(options)
    except (*bad, TrainingError) as error:
        return _end(error, f"error: {error}", 1 if isinstance(error, TrainingError) else 2)
    except KeyboardInterrupt as error:
        return _end(error, "interrupted: finished runs are kept; run again to go on.", 130)
    except BrokenPipeError:  # whoever read the output, such as `head`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that cannot be written
        return _end(error, f"error: {error}; finished runs are kept", 2)


def _end(error: BaseException, message: str, code: int) -> int:
    """Say in one line of its own why it is over."""
    traceback.clear_frames(error.__traceback__)  # whose loops would leave their bars on that line
    print(" ".join(message.split()), file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    from lib.distill.sweeps import BACKENDS

    parser = _Parser(prog="python -m lib.distill", description="Trains students.")
    commands = parser.add_subparsers(required=True)
    many = _command(
        commands, "sweep", _sweep, "train many methods and seeds; finished ones are kept"
    )
    many.add_argument("--methods", default="ce,kd,tpkd", help="with commas, or 'all'")
    many.add_argument("--seeds", default=_SEEDS, help="with commas")
    many.add_argument("--dry-run", action="store_true", help="only say what there is to do")
    many.add_argument("--jobs", type=int, help="runs at a time; one for each core by default")
    many.add_argument("--backend", default="loky", choices=BACKENDS)
    one = _command(commands, "train", _train, "train one method")
    one.add_argument("--method", required=True)
    one.add_argument("--seed", type=int, default=int(_SEEDS.split(",")[0]))
    _command(commands, "prepare", _prepare, "make what all runs of a setting share")
    status = commands.add_parser("status", help="list the runs that were begun")
    status.set_defaults(command=_status)
    status.add_argument("--setting", help="only of this setting")
    settings = commands.add_parser("settings", help="list settings, or print the table of one")
    settings.set_defaults(command=_settings)
    settings.add_argument("setting", nargs="?")
    return parser


def _command(commands: Any, name: str, function: Any, words: str) -> argparse.ArgumentParser:
    from lib.distill.config import DOMAINS, PROFILES

    command = commands.add_parser(name, help=words, description=f"{words.capitalize()}.")
    command.set_defaults(command=function)
    command.add_argument("--domain", choices=DOMAINS, help="of the profile's setting")
    command.add_argument("--profile", default="quick", choices=PROFILES)
    command.add_argument("--setting", help="by name, instead of domain and profile")
    command.add_argument(
        "--teacher", default="smooth", help="smooth or sharp, or both with a comma"
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value in the setting's table, as JSON; may be repeated",
    )
    return command


def _sweep(options: argparse.Namespace) -> int:
    from lib.distill.methods import OBJECTIVES
    from lib.distill.sweeps import sweep

    methods = list(OBJECTIVES) if options.methods == "all" else options.methods.split(",")
    configs = [
        _config(options, method, _whole("seeds", seed), teacher)
        for teacher in options.teacher.split(",")
        for method in methods
        for seed in options.seeds.split(",")
    ]
    with _together() as (device, first):
        report = sweep(
            configs,
            options.jobs,
            options.backend,
            options.dry_run,
            print if first else _nothing,
            device,
        )
    return 1 if report.failures else 0


def _train(options: argparse.Namespace) -> int:
    from lib.distill.runs import train
    from lib.distill.sweeps import track_bar

    config = _config(options, options.method, options.seed, options.teacher)
    with _together() as (device, first):
        result = train(config, track_bar, device=device)
    if first:
        print(json.dumps({"run": config.key(), "seconds": result.seconds} | result.measures))
    return 0


def _prepare(options: argparse.Namespace) -> int:
    from lib.distill.runs import prepare
    from lib.distill.sweeps import track_bar

    setting = _setting(options)
    with _together() as (device, first):
        for teacher in options.teacher.split(","):
            found = prepare(setting.name, teacher, _overrides(options), track_bar, device)
            if first:
                print(f"{setting.name}, {teacher} teacher: {json.dumps(dict(found.facts))}")
    return 0


def _status(options: argparse.Namespace) -> int:
    from lib.distill.recipes import find_setting
    from lib.distill.runs import kept_configs
    from lib.distill.sweep_words import describe_run

    if options.setting:
        find_setting(options.setting)
    for key, config in kept_configs().items():
        if options.setting in (None, config.setting):
            print(describe_run(key, config))
    return 0


def _settings(options: argparse.Namespace) -> int:
    from lib.distill.recipes import find_setting, load_settings, resolve_table

    if options.setting:
        setting = find_setting(options.setting)
        print(setting.says)
        for name, value in resolve_table(setting, {}).items():
            print(f"  {name} = {json.dumps(value)}")
        return 0
    for setting in load_settings().values():
        print(f"{setting.name:18} {setting.profile:5} {setting.domain:6}  {setting.says}")
    return 0


def _setting(options: argparse.Namespace) -> Any:
    from lib.distill.recipes import DEFAULTS, find_setting

    if options.setting:
        return find_setting(options.setting)
    if options.domain is None:
        raise ValueError("give --domain vision or --domain text, or --setting NAME")
    return find_setting(DEFAULTS[options.profile, options.domain])


def _config(options: argparse.Namespace, method: str, seed: int, teacher: str) -> Any:
    from lib.distill.config import TrainingConfig

    setting = _setting(options)
    domain = options.domain or setting.domain
    return TrainingConfig(domain, method, seed, setting.name, teacher, _overrides(options))


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set must be NAME=VALUE, got {text!r}")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"--{name} must be integers with commas, got {text!r}") from None


def _nothing(line: str) -> None:
    """What processes but the first report."""


@contextlib.contextmanager
def _together() -> Iterator[tuple[Any, bool]]:
    """Join the processes of `torchrun`: the device of this one, and whether it speaks."""
    from lib.distill.distributed import current_processes, joined_processes

    with joined_processes() as device:
        yield device, current_processes().first


if __name__ == "__main__":
    sys.exit(main())
