"""List, download and verify the outside files: ``python -m lib.datasets list|download|verify``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from lib.datasets.files import ChecksumError, NotHereError, fetch, find
from lib.datasets.registry import OutsideFile, available, load_registry, select


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Command line without the program's name; ``sys.argv[1:]`` when None.

    Returns:
        0 when all is well, 1 when a file is wrong or could not be had, 2 for a bad command line.
    """
    parser = argparse.ArgumentParser(prog="python -m lib.datasets", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, says in {
        "list": "show every data set with its licence, every file with its size and where it lies",
        "download": "bring files into the cache, unless they are here already",
        "verify": "hash every file that is here",
    }.items():
        command = commands.add_parser(name, help=says, description=says)
        command.add_argument("names", nargs="*", help="files or data sets; all when none is given")
    options = parser.parse_args(arguments)
    try:
        files = select(options.names)
        here = available()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.command == "list":
        return _list(files, here)
    work = _download_one if options.command == "download" else _verify_one
    failures = sum(not _report(file, work) for file in files)
    return 1 if failures else 0


def _list(files: tuple[OutsideFile, ...], here: dict[str, str]) -> int:
    """Print a heading for each data set and a line for each file."""
    dataset = None
    for file in files:
        if file.dataset != dataset:
            dataset = file.dataset
            entry = load_registry().datasets[dataset]
            print(f"{dataset}: {entry.title}\n  licence: {entry.licence}")
        place = here.get(file.name, "not here")
        print(f"  {file.name:20} {file.bytes:>11,} bytes  {place:10}  {file.file}")
    return 0


def _report(file: OutsideFile, work: Callable[[OutsideFile], str]) -> bool:
    """Do one file's work and print its outcome; False when it failed."""
    try:
        print(f"{file.name:20} {work(file)}", flush=True)
    except (ChecksumError, NotHereError) as error:
        print(f"{file.name:20} FAILED: {error}", file=sys.stderr, flush=True)
        return False
    return True


def _download_one(file: OutsideFile) -> str:
    """Fetch a file; say where it is. A part that nobody serves is no failure: its whole is."""
    if not file.mirrors and file.name not in available():
        return f"not here, and no mirror has it: {file.part_of} holds all of it"
    where, _ = fetch(file)
    return f"verified, downloaded from {where}" if "://" in where else f"verified, in {where}"


def _verify_one(file: OutsideFile) -> str:
    """Hash a file again; say where it is."""
    found = find(file, again=True)
    return f"verified, in {found[0]}" if found else "not here"


if __name__ == "__main__":
    sys.exit(main())
