"""The command line: ``python -m lib.book run | build | scorecard | record | lint``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lib.book.session import PROFILES, find_root


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: as on the command line, without the program's name.

    Returns:
        0 where all is well, 1 where a chapter, a check or a page failed, 2 for bad input, 130 when
        interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: finished chapters are kept; run again to go on.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lib.book", description="The book engine.")
    commands = parser.add_subparsers(required=True)
    run = _command(commands, "run", _run, "execute the chapters whose sources changed")
    run.add_argument(
        "chapters", nargs="*", help="pages under book/, without suffix; all by default"
    )
    build = _command(commands, "build", _build, "execute, then build the site")
    for command in (run, build):
        command.add_argument("--jobs", type=int, help="chapters at a time")
        command.add_argument("--force", action="store_true", help="execute fresh chapters too")
    scorecard = _command(commands, "scorecard", _scorecard, "print the verdicts of all claims")
    scorecard.add_argument(
        "--check", action="store_true", help="exit 1 unless every claim has the verdict it expects"
    )
    record = _command(commands, "record", _record, "keep a run's records in data/results")
    record.add_argument("chapters", nargs="*", help="all that were run, by default")
    lint = _command(commands, "lint", _lint, "check the form of every notebook")
    lint.add_argument("--fix", action="store_true", help="rewrite set-up cells and canonical form")
    return parser


def _command(commands, name, function, words) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=words, description=f"{words.capitalize()}.")
    command.set_defaults(command=function)
    if name != "lint":
        command.add_argument("--profile", default="quick", choices=PROFILES)
    return command


def _run(options: argparse.Namespace) -> int:
    from lib.book.runner import run

    wanted = options.chapters or None
    failed = run(find_root(), options.profile, wanted, options.jobs, options.force)
    return _verdict_on(failed)


def _verdict_on(failed: list[str]) -> int:
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _build(options: argparse.Namespace) -> int:
    from lib.book.build import build

    return build(find_root(), options.profile, options.jobs, options.force)


def _scorecard(options: argparse.Namespace) -> int:
    from lib.book.report import print_scorecard

    return print_scorecard(find_root(), options.profile, options.check)


def _record(options: argparse.Namespace) -> int:
    from lib.book.promote import promote

    return promote(find_root(), options.profile, options.chapters)


def _lint(options: argparse.Namespace) -> int:
    from lib.book.lint import lint_all

    return lint_all(find_root(), options.fix)


if __name__ == "__main__":
    sys.exit(main())
