"""The official files of MNIST and CIFAR, read through torchvision."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from filelock import FileLock

from lib.datasets.files import ChecksumError, NotHereError, check_hash, fetch, mismatch
from lib.datasets.registry import OutsideFile, cache_folder, load_registry


def read_official_mnist(
    split: str, allow_download: bool
) -> tuple[torch.Tensor, torch.Tensor, dict[str, str], str]:
    """Pixels and labels of one official split.

    The four .gz files are verified (SHA-256), torchvision verifies them again (MD5) and unpacks
    them into the cache, and what it unpacked is verified before every first use in a process.

    Args:
        split: ``"train"`` or ``"test"``.
        allow_download: Whether missing files may be downloaded.

    Returns:
        Pixels uint8 ``(n, 28, 28)``, labels int64 ``(n,)``, file -> SHA-256 of the two files
        behind them, and where the files came from, in words.

    Raises:
        ChecksumError: A file is not the registered one.
        NotHereError: A file is missing and could not be downloaded, or the cache is unusable.
    """
    from torchvision.datasets import MNIST

    files = load_registry().datasets["mnist"].files
    found = [fetch(file, allow_download) for file in files]
    root = cache_folder() / "torchvision"
    try:
        _unpack(root, [path for _, path in found])
    except OSError as error:
        raise NotHereError(_cannot_unpack("MNIST", error)) from error
    for file in files:
        check_hash(
            _unpacked(root, file), file.unpacked_sha256, f"Delete {root} to have it unpacked again."
        )
    digits = MNIST(str(root), train=split == "train", download=True)
    used = {file.file: file.sha256 for file in files if f"-{split}-" in file.name}
    return digits.data, digits.targets, used, place_in_words([where for where, _ in found])


def read_official_cifar(
    archive: Path, dataset: str, split: str, labels: str = "fine"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels and labels of one official split, from a verified archive.

    torchvision unpacks the archive into the cache and reads it. What was unpacked is verified
    (torchvision's MD5 of each batch) before every use.

    Args:
        archive: The verified ``cifar-10-python.tar.gz`` or ``cifar-100-python.tar.gz``.
        dataset: ``"cifar10"`` or ``"cifar100"``.
        split: ``"train"`` or ``"test"``.
        labels: ``"fine"``, or ``"coarse"`` for the twenty groups of CIFAR-100.

    Returns:
        Pixels uint8 ``(n, 3, 32, 32)``, labels int64 ``(n,)``.

    Raises:
        ChecksumError: What was unpacked has changed since.
        NotHereError: The cache is unusable.
    """
    from torchvision.datasets import CIFAR10, CIFAR100
    from torchvision.datasets.utils import extract_archive

    reader = {"cifar10": CIFAR10, "cifar100": CIFAR100}[dataset]
    root = cache_folder() / "torchvision"
    try:
        _make_once(root, reader.base_folder, lambda work: extract_archive(str(archive), str(work)))
    except OSError as error:
        raise NotHereError(_cannot_unpack(archive.name, error)) from error
    folder = root / reader.base_folder
    meta = [reader.meta["filename"], reader.meta["md5"]]
    for name, md5 in [*reader.train_list, *reader.test_list, meta]:
        _check_md5(folder / name, md5, f"Delete {folder} to have it unpacked again.")
    images = reader(str(root), train=split == "train")
    targets = images.targets
    if labels == "coarse":
        with open(folder / split, "rb") as stream:
            targets = pickle.load(stream, encoding="latin1")["coarse_labels"]
    return torch.from_numpy(images.data).permute(0, 3, 1, 2), torch.tensor(targets)


def _check_md5(path: Path, expected: str, advice: str) -> None:
    """Refuse a file that is absent or whose MD5 differs."""
    actual = "no file"
    if path.is_file():
        with open(path, "rb") as stream:
            actual = hashlib.file_digest(stream, "md5").hexdigest()
    if actual != expected:
        raise ChecksumError(mismatch(path, expected, actual, advice))


def _cannot_unpack(what: str, error: OSError) -> str:
    """What to do when the cache cannot be written."""
    return (
        f"{what} cannot be unpacked into the cache ({error}); set BOOK_CACHE to a folder that can "
        "be written"
    )


def _unpacked(root: Path, file: OutsideFile) -> Path:
    """Where torchvision puts what a .gz file holds."""
    return root / "MNIST" / "raw" / Path(file.file).stem


def _unpack(root: Path, archives: list[Path]) -> None:
    """Let torchvision unpack copies of MNIST's archives."""
    from torchvision.datasets import MNIST

    def fill(work: Path) -> None:
        raw = work / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for archive in archives:
            shutil.copyfile(archive, raw / archive.name)
        MNIST(str(work), download=True)
        for archive in archives:
            (raw / archive.name).unlink()

    _make_once(root, "MNIST", fill)


def _make_once(root: Path, name: str, fill: Callable[[Path], None]) -> None:
    """Have ``fill(work)`` make the folder ``work / name``, then move it below ``root`` at once."""
    target = root / name
    if target.is_dir():
        return
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / ".lock"):
        if target.is_dir():
            return
        work = root / ".unpacking"
        shutil.rmtree(work, ignore_errors=True)  # what a killed run left
        work.mkdir()
        fill(work)
        os.replace(work / name, target)
        shutil.rmtree(work)


def place_in_words(where: list[str]) -> str:
    """``$BOOK_DATA``, ``the cache``, or the mirrors' hosts, each once, in words."""
    names = []
    for place in where:
        name = f"downloaded from {place.split('/')[2]}" if "://" in place else place
        names.append("the cache" if name == "cache" else name)
    return ", ".join(dict.fromkeys(names))
