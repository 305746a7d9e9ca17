"""CIFAR-10 and CIFAR-100 as tensors, from the official archives or from lossless subsets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from lib.datasets.files import NotHereError, fetch, find
from lib.datasets.images import ImageSet, check_choice, check_count
from lib.datasets.official import place_in_words, read_official_cifar
from lib.datasets.registry import OutsideFile, first_path, load_registry, places

SOURCES = ("auto", "official", "subset")
WORD = {"train": "training", "test": "test"}
OFFICIAL_SIZE = {"train": 50_000, "test": 10_000}

Pixels = tuple[torch.Tensor, torch.Tensor]  # uint8 (n, 3, 32, 32) and int64 (n,)
Reader = Callable[[Path], Pixels]


class _Short(Exception):
    """The subset lacks images that were asked for; the message says what it holds."""


def load_cifar10(
    n: int = 5000,
    split: str = "train",
    source: str = "auto",
    allow_download: bool | None = None,
    quiet: bool = False,
) -> ImageSet:
    """The first n official images of CIFAR-10.

    ``"official"`` reads ``cifar-10-python.tar.gz``. ``"subset"`` reads ``cifar10_subset.npz``,
    which holds the same pixels of the first 5,000 training and the first 1,000 test images, so that
    both return equal tensors. Each is looked for in ``$BOOK_DATA``, then in the cache, the archive
    also at the mirrors. ``"auto"`` takes whichever is found first and holds the n images.

    **Source**: Krizhevsky (2009); Cohen et al. train on the first n images.

    Args:
        n: Number of images, at most 50,000 of ``"train"`` and 10,000 of ``"test"``.
        split: ``"train"`` or ``"test"``.
        source: ``"auto"``, ``"official"`` or ``"subset"``.
        allow_download: Whether a missing archive (170 MB) may be downloaded; None means yes for
            ``"official"`` and no for ``"auto"``. ``BOOK_OFFLINE=1`` overrules it.
        quiet: Do not print the note.

    Returns:
        The image set, in the official order: images float32 ``(n, 3, 32, 32)`` in [0, 1], labels
        0 to 9.

    Raises:
        ValueError: Unknown split or source, or ``n`` out of range.
        NotHereError: The images are not to be had; says what is here and where to get the rest.
        ChecksumError: A file is not the registered one; nothing else is tried.

    Example:
        >>> from lib.datasets import locate
        >>> if locate("cifar10"):
        ...     images = load_cifar10(10, quiet=True)
        ...     assert images.labels.tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    """
    _check(n, split, source)
    says = f"CIFAR-10 {split}: the first {n:,} official images, from "
    readers = {
        "official": lambda path: _cifar_archive(path, n, "cifar10", split),
        "subset": lambda path: _cifar10_subset(path, n, split),
    }
    notes = {"official": says + "the archive {}", "subset": says + "the subset {}"}
    return _load("cifar10", split, source, readers, notes, allow_download, quiet)


def load_cifar100(
    n: int = 5000,
    split: str = "train",
    source: str = "auto",
    labels: str = "fine",
    allow_download: bool | None = None,
    quiet: bool = False,
) -> ImageSet:
    """The first n images of CIFAR-100, in the order of the source.

    ``"official"`` reads ``cifar-100-python.tar.gz``, in the official order. ``"subset"`` reads
    ``cifar100_subset.npz``: 20,000 training and 5,000 test images with the same pixels, in an order
    of its own in which the classes are mixed, so that the first n are **other** images than the
    first n official ones; the note says so. Search as in `load_cifar10`.

    **Source**: Krizhevsky (2009).

    Args:
        n: Number of images, at most 50,000 of ``"train"`` and 10,000 of ``"test"``.
        split: ``"train"`` or ``"test"``.
        source: ``"auto"``, ``"official"`` or ``"subset"``.
        labels: ``"fine"`` for the 100 classes, ``"coarse"`` for their 20 groups.
        allow_download: Whether a missing archive (169 MB) may be downloaded; None means yes for
            ``"official"`` and no for ``"auto"``. ``BOOK_OFFLINE=1`` overrules it.
        quiet: Do not print the note.

    Returns:
        The image set: images float32 ``(n, 3, 32, 32)`` in [0, 1].

    Raises:
        ValueError: Unknown split, source or kind of labels, or ``n`` out of range.
        NotHereError: The images are not to be had; says what is here and where to get the rest.
        ChecksumError: A file is not the registered one; nothing else is tried.

    Example:
        >>> from lib.datasets import locate
        >>> if locate("cifar100"):
        ...     images = load_cifar100(10, "test", labels="coarse", quiet=True)
        ...     assert images.images.shape == (10, 3, 32, 32)
    """
    _check(n, split, source)
    check_choice("labels", labels, ("fine", "coarse"))
    says = f"CIFAR-100 {split}, {labels} labels: "
    readers = {
        "official": lambda path: _cifar_archive(path, n, "cifar100", split, labels),
        "subset": lambda path: _cifar100_subset(path, n, split, labels),
    }
    notes = {
        "official": says + f"the first {n:,} official images, from the archive {{}}",
        "subset": says + f"the first {n:,} images of the subset {{}}, whose order is not the "
        "official one; figures are not comparable with the full data set's",
    }
    return _load("cifar100", split, source, readers, notes, allow_download, quiet)


def _check(n: int, split: str, source: str) -> None:
    """Refuse what no source can answer."""
    check_choice("split", split, tuple(OFFICIAL_SIZE))
    check_choice("source", source, SOURCES)
    check_count("n", n, OFFICIAL_SIZE[split])


def _load(
    dataset: str,
    split: str,
    source: str,
    readers: dict[str, Reader],
    notes: dict[str, str],
    allow_download: bool | None,
    quiet: bool,
) -> ImageSet:
    """Read the first source that holds what was asked for, scale it, print the note."""
    entries = {file.name: file for file in load_registry().datasets[dataset].files}
    files = {"official": entries[f"{dataset}-archive"], "subset": entries[f"{dataset}-subset"]}
    wanted = files if source == "auto" else {source: files[source]}
    may_download = source == "official" if allow_download is None else allow_download
    used, where, (pixels, labels) = _read_first(wanted, readers, may_download)
    file = files[used]
    note = notes[used].format(f"{Path(file.file).name} ({place_in_words([where])})")
    if not quiet:
        print(note)
    return ImageSet(
        name=dataset,
        split=split,
        source=used,
        note=note,
        sha256={file.file: file.sha256},
        shape=tuple(pixels.shape[1:]),
        images=pixels.contiguous().float().div_(255),
        labels=labels,
    )


def _read_first(
    wanted: dict[str, OutsideFile], readers: dict[str, Reader], may_download: bool
) -> tuple[str, str, Pixels]:
    """Try the wanted sources place by place, then the mirrors.

    Returns:
        The source that was read, where its file lay, and the pixels and labels.
    """
    here = {source: first_path(file)[0] for source, file in wanted.items()}
    in_order = [source for place in places() for source in wanted if here[source] == place]
    short = ""
    for source in in_order:
        where, path = find(wanted[source])
        try:
            return source, where, readers[source](path)
        except _Short as error:
            short = f"{error}\n"
    if short and "official" not in wanted:
        raise NotHereError(f"{short}Use source='official' or 'auto' with it.")
    source = next(iter(wanted))
    try:
        where, path = fetch(wanted[source], may_download)
    except NotHereError as error:
        raise NotHereError(f"{short}{error}") from error
    return source, where, readers[source](path)


def _cifar_archive(path: Path, n: int, dataset: str, split: str, labels: str = "fine") -> Pixels:
    """The first n official images, from the archive."""
    pixels, marks = read_official_cifar(path, dataset, split, labels)
    return pixels[:n], marks[:n]


def _cifar10_subset(path: Path, n: int, split: str) -> Pixels:
    """The first n official images, which the subset keeps in up to two pieces."""
    pieces = ["train", "extra_train"] if split == "train" else ["test"]
    with np.load(path, allow_pickle=False) as arrays:
        place = np.concatenate([arrays[f"{piece}_official_index"] for piece in pieces])
        order = np.argsort(place, kind="stable")
        order = order[place[order] >= 0]  # -1: the official place is not known
        held = int((place[order] == np.arange(len(order))).sum())
        _check_held(path, n, held, f"the first {held:,} official {WORD[split]} images of CIFAR-10")
        pixels, labels = (
            np.concatenate([arrays[f"{piece}_{what}"] for piece in pieces])[order[:n]]
            for what in ("images", "labels")
        )
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(labels)


def _cifar100_subset(path: Path, n: int, split: str, labels: str) -> Pixels:
    """The first n images in the subset's own order."""
    with np.load(path, allow_pickle=False) as arrays:
        marks = arrays[f"{split}_{labels}_labels"]
        held = len(marks)
        _check_held(path, n, held, f"{held:,} {WORD[split]} images of CIFAR-100, in its own order")
        pixels = arrays[f"{split}_images"][:n]
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(marks[:n].copy())


def _check_held(path: Path, n: int, held: int, what: str) -> None:
    """Refuse more images than the subset holds."""
    if n > held:
        raise _Short(
            f"{n:,} images are asked for, but {path.name} holds only {what}. All of them are in "
            "the official archive, which `make data` fetches."
        )
