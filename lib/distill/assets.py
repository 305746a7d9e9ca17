"""Tensors that take long to compute and never change: computed once, kept, checked at every use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from lib.datasets.registry import cache_folder
from lib.distill.checkpoints import read_checkpoint, write_checkpoint
from lib.distill.config import digest_of
from lib.distill.distributed import current_processes

Progress = Callable[[Iterable, str], Iterable]
Tensors = dict[str, Tensor]


def distill_folder() -> Path:
    """Return where runs, teachers and frozen features are kept, inside the cache of the book.

    Example:
        >>> distill_folder().name
        'distill'
    """
    return cache_folder() / "distill"


def asset_path(name: str, facts: Mapping[str, Any]) -> Path:
    """Return the file of an asset.

    Args:
        name: what it is, in a few words.
        facts: everything that decides its content, as plain JSON.

    Returns:
        The path; nothing is made.

    Example:
        >>> asset_path("maps", {"size": 96}).suffix
        '.safetensors'
    """
    return distill_folder() / "assets" / f"{name}-{digest_of(facts)}.safetensors"


def cached_tensors(name: str, facts: Mapping[str, Any], make: Callable[[], Tensors]) -> Tensors:
    """Return tensors from their file, or make them and keep them there.

    Of several processes that ask at once, one computes and the others wait.

    Args:
        name: what they are.
        facts: everything that decides their content, as plain JSON.
        make: computes them.

    Returns:
        Name -> tensor, mapped from the file, which stays as it is if one writes to them.

    Raises:
        CheckpointError: if the file is damaged; it names the file.

    Example:
        >>> import os, tempfile
        >>> from unittest.mock import patch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with patch.dict(os.environ, {"BOOK_CACHE": folder}):
        ...         cached_tensors("one", {"size": 2}, lambda: {"x": torch.ones(2)})
        {'x': tensor([1., 1.])}
    """
    path = asset_path(name, facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        found = read_checkpoint(path, dict(facts), mapped=True)
        if found is None:
            write_checkpoint(path, make(), facts)
            found = read_checkpoint(path, dict(facts), mapped=True)
    return found[0]


def cached_rows(
    name: str,
    facts: Mapping[str, Any],
    n: int,
    make: Callable[[slice], Tensors],
    rows: int = 2500,
    progress: Progress | None = None,
) -> Tensors:
    """Return tensors of n rows from their file, or make them part by part and keep every part.

    A computation that was broken off goes on after its last whole part.

    Args:
        name: what they are.
        facts: everything that decides their content, as plain JSON.
        n: number of rows, >= 1.
        make: computes the rows of a slice.
        rows: of a part, >= 1; the last has the rest.
        progress: called with the parts and a label.

    Returns:
        Name -> tensor (n, ...), as `cached_tensors`.

    Raises:
        CheckpointError: if a file is damaged; it names the file.
    """

    def whole() -> Tensors:
        parts = [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
        found = [
            _part(path, dict(facts), part, make)
            for part in (progress(parts, f"parts of {name}") if progress else parts)
        ]
        return {key: torch.cat([part[key] for part in found]) for key in found[0]}

    path = asset_path(name, facts)
    found = cached_tensors(name, facts, whole)
    for part in path.parent.glob(f"{path.stem}.rows-*"):
        part.unlink(missing_ok=True)  # another process may do the same
    return found


@contextmanager
def work_lock(folder: Path) -> Iterator[None]:
    """Keep a folder for this process, or for those that train together, during the block.

    Others wait. Of processes that train together the first holds the lock; all enter the block
    only then, so that they find the same files.

    Args:
        folder: whose parent is made if missing.

    Yields:
        Nothing.
    """
    processes = current_processes()
    if not processes.first:
        processes.wait()
        yield
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        processes.wait()
        yield


def _part(path: Path, facts: dict[str, Any], part: slice, make: Callable) -> Tensors:
    """The rows of one part, from its own file or made now."""
    place = path.with_name(f"{path.stem}.rows-{part.start}.safetensors")
    facts["rows"] = [part.start, part.stop]
    found = read_checkpoint(place, facts)
    if found is None:
        tensors = make(part)
        write_checkpoint(place, tensors, facts)
        return tensors
    return found[0]
