"""The official MNIST files, read through torchvision."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch
from filelock import FileLock

from lib.datasets.files import NotHereError, check_hash, fetch
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
        raise NotHereError(
            f"MNIST cannot be unpacked into the cache ({error}); set BOOK_CACHE to a folder that "
            "can be written"
        ) from error
    for file in files:
        check_hash(
            _unpacked(root, file), file.unpacked_sha256, f"Delete {root} to have it unpacked again."
        )
    digits = MNIST(str(root), train=split == "train", download=True)
    used = {file.file: file.sha256 for file in files if f"-{split}-" in file.name}
    return digits.data, digits.targets, used, _sources([where for where, _ in found])


def _unpacked(root: Path, file: OutsideFile) -> Path:
    """Where torchvision puts what a .gz file holds."""
    return root / "MNIST" / "raw" / Path(file.file).stem


def _unpack(root: Path, archives: list[Path]) -> None:
    """Let torchvision unpack copies of the archives, then move the whole into place at once."""
    from torchvision.datasets import MNIST

    target = root / "MNIST"
    if target.is_dir():
        return
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / ".lock"):
        if target.is_dir():
            return
        work = root / ".unpacking"
        shutil.rmtree(work, ignore_errors=True)  # what a killed run left
        raw = work / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for archive in archives:
            shutil.copyfile(archive, raw / archive.name)
        MNIST(str(work), download=True)
        for archive in archives:
            (raw / archive.name).unlink()
        os.replace(work / "MNIST", target)
        shutil.rmtree(work)


def _sources(where: list[str]) -> str:
    """``$BOOK_DATA``, ``the cache``, or the mirrors' hosts, each once, in words."""
    names = []
    for place in where:
        name = f"downloaded from {place.split('/')[2]}" if "://" in place else place
        names.append("the cache" if name == "cache" else name)
    return ", ".join(dict.fromkeys(names))
