"""The registry of outside files: what they are, where they may lie, and which are here.

Light on purpose (no numpy, no torch): the book's build reads it to decide what has changed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path, PurePosixPath

import yaml

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = ROOT / "data" / "registry.yml"


@dataclass(frozen=True)
class OutsideFile:
    """One file that can be downloaded: identity, place, hashes and mirrors.

    Attributes:
        name: Unique name, for example ``mnist-train-images``.
        dataset: The data set it belongs to, for example ``mnist``.
        says: What it holds.
        file: Place below ``$BOOK_DATA`` or the cache, with forward slashes.
        bytes: Length.
        sha256: Hash of the file, 64 hexadecimal digits.
        mirrors: Addresses, tried in this order; a part of another file may have none.
        md5: Hash that torchvision checks, or None.
        unpacked_sha256: Hash of what the .gz holds, or None.
        part_of: The file of the same data set that holds all of this one's data, or None.
    """

    name: str
    dataset: str
    says: str
    file: str
    bytes: int
    sha256: str
    mirrors: tuple[str, ...]
    md5: str | None = None
    unpacked_sha256: str | None = None
    part_of: str | None = None


@dataclass(frozen=True)
class Dataset:
    """A data set: title, licence, citation, and its files."""

    name: str
    title: str
    licence: str
    citation: str
    files: tuple[OutsideFile, ...]


@dataclass(frozen=True)
class EmbeddedSet:
    """A data set that comes inside a pinned Python package."""

    name: str
    says: str
    package: str
    content_sha256: str
    licence: str
    citation: str


@dataclass(frozen=True)
class Registry:
    """All of ``data/registry.yml``, validated."""

    datasets: dict[str, Dataset]
    embedded: dict[str, EmbeddedSet]

    def files(self) -> tuple[OutsideFile, ...]:
        """All downloadable files, in the registry's order."""
        return tuple(file for dataset in self.datasets.values() for file in dataset.files)


def load_registry(path: Path | None = None) -> Registry:
    """Read and validate the registry.

    Args:
        path: The YAML file; the book's own ``data/registry.yml`` when None.

    Returns:
        The registry. The same file is parsed once per process.

    Raises:
        ValueError: Unknown or missing key, hash of the wrong length, no mirror, name given twice,
            path that leaves the data folder. The message names the entry.
        FileNotFoundError: No such file.

    Example:
        >>> registry = load_registry()
        >>> [file.bytes for file in registry.datasets["mnist"].files]
        [9912422, 28881, 1648877, 4542]
    """
    path = Path(path or REGISTRY)
    return _load(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _load(path: Path, _changed: int) -> Registry:
    """Parse ``path``; the second argument makes an edited file a new one to the memo."""
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    _check_keys(raw, "the registry", required={"datasets", "embedded"})
    for part in ("datasets", "embedded"):
        _check_mapping(raw[part], part)
    datasets = {name: _dataset(name, entry) for name, entry in raw["datasets"].items()}
    embedded = {name: _embedded(name, entry) for name, entry in raw["embedded"].items()}
    registry = Registry(datasets, embedded)
    for attribute in ("name", "file"):
        seen: set[str] = set()
        for file in registry.files():
            value = getattr(file, attribute)
            if value in seen:
                raise ValueError(
                    f"registry entry {file.name!r}: {attribute} {value!r} is given twice"
                )
            seen.add(value)
    return registry


def _dataset(name: str, entry: object) -> Dataset:
    """One validated entry of ``datasets``."""
    keys = {"title", "licence", "citation", "files"}
    _check_keys(entry, name, required=keys)
    _check_text(entry, name, keys - {"files"})
    if not isinstance(entry["files"], list) or not entry["files"]:
        raise ValueError(f"registry entry {name!r}: files must be a list of at least one file")
    files = tuple(_file(name, item) for item in entry["files"])
    _check_parts(name, [item for item in entry["files"] if "part_of" in item], files)
    return Dataset(name, entry["title"], entry["licence"], entry["citation"], files)


def _embedded(name: str, entry: object) -> EmbeddedSet:
    """One validated entry of ``embedded``."""
    keys = {field.name for field in fields(EmbeddedSet)} - {"name"}
    _check_keys(entry, name, required=keys)
    _check_text(entry, name, keys)
    _check_hash(entry, name, "content_sha256", 64)
    return EmbeddedSet(name=name, **entry)


def _file(dataset: str, item: object) -> OutsideFile:
    """One validated file of a data set."""
    label = item.get("name", dataset) if isinstance(item, dict) else dataset
    optional = {"md5", "unpacked_sha256", "part_of"}
    if isinstance(item, dict) and "part_of" in item:
        optional |= {"mirrors"}
    required = {field.name for field in fields(OutsideFile)} - optional - {"dataset"}
    _check_keys(item, label, required=required, optional=optional)
    _check_text(item, label, {"name", "says", "file"})
    for key, digits in {"sha256": 64, "md5": 32, "unpacked_sha256": 64}.items():
        if key in item:
            _check_hash(item, label, key, digits)
    if type(item["bytes"]) is not int or item["bytes"] < 1:
        raise ValueError(
            f"registry entry {label!r}: bytes is {item['bytes']!r}, must be a whole number >= 1"
        )
    place = PurePosixPath(item["file"])
    if place.is_absolute() or ".." in place.parts or "\\" in item["file"]:
        raise ValueError(
            f"registry entry {label!r}: file {item['file']!r} must be a relative path with "
            "forward slashes that stays inside the data folder"
        )
    if "mirrors" in item:
        _check_mirrors(item["mirrors"], label)
    mirrors = tuple(item.get("mirrors", ()))
    return OutsideFile(**{**item, "dataset": dataset, "mirrors": mirrors})


def _check_parts(dataset: str, parts: list[dict], files: tuple[OutsideFile, ...]) -> None:
    """Refuse a part of anything but a whole file of the same data set."""
    wholes = sorted({file.name for file in files} - {item["name"] for item in parts})
    for item in parts:
        if item["part_of"] not in wholes:
            raise ValueError(
                f"registry entry {item['name']!r}: part_of is {item['part_of']!r}, must be a "
                f"whole file of {dataset}: {', '.join(wholes)}"
            )


def _check_mirrors(mirrors: object, label: str) -> None:
    """Refuse anything but a list of at least one distinct http(s) address."""
    if not isinstance(mirrors, list) or not mirrors:
        raise ValueError(f"registry entry {label!r}: no mirrors; give a list of at least one")
    for mirror in mirrors:
        if not isinstance(mirror, str) or not re.match(r"https?://[^/]+/.", mirror):
            raise ValueError(
                f"registry entry {label!r}: mirror {mirror!r} is no http or https address"
            )
    if len(set(mirrors)) < len(mirrors):
        raise ValueError(f"registry entry {label!r}: the same mirror is given twice")


def _check_mapping(entry: object, label: str) -> None:
    """Refuse anything but a mapping."""
    if not isinstance(entry, dict):
        raise ValueError(f"registry entry {label!r}: must be a mapping, is {entry!r}")


def _check_keys(entry: object, label: str, required: set, optional: set = frozenset()) -> None:
    """Refuse a missing or an unknown key."""
    _check_mapping(entry, label)
    unknown, missing = set(entry) - required - optional, required - set(entry)
    if unknown or missing:
        raise ValueError(
            f"registry entry {label!r}: unknown keys {sorted(map(str, unknown))}, missing keys "
            f"{sorted(missing)}; allowed are {sorted(required | optional)}"
        )


def _check_text(entry: dict, label: str, keys: set) -> None:
    """Refuse a value that is no text, or empty."""
    for key in sorted(keys):
        if not isinstance(entry[key], str) or not entry[key].strip():
            raise ValueError(
                f"registry entry {label!r}: {key} is {entry[key]!r}, must be text (quote it)"
            )


def _check_hash(entry: dict, label: str, key: str, digits: int) -> None:
    """Refuse a hash of the wrong length or alphabet."""
    value = entry[key]
    if not isinstance(value, str) or not re.fullmatch(rf"[0-9a-f]{{{digits}}}", value):
        raise ValueError(
            f"registry entry {label!r}: {key} is {value!r}, must be {digits} lower-case "
            "hexadecimal digits (quote it if YAML reads a number)"
        )


def data_folder() -> Path | None:
    """The folder named by the environment variable ``BOOK_DATA``, or None when it is not set.

    A relative path counts from the repository's root, not from the current folder, so that it
    means the same to a notebook, to the Makefile and to the tests. Only read, never written.

    Raises:
        ValueError: The variable names no folder.
    """
    value = os.environ.get("BOOK_DATA", "").strip()
    if not value:
        return None
    folder = (ROOT / Path(value).expanduser()).resolve()
    if not folder.is_dir():
        raise ValueError(
            f"BOOK_DATA is {value!r}, but {folder} is no folder; name a folder laid out as "
            "data/README.md describes (mnist/train-images-idx3-ubyte.gz, ...) or unset it"
        )
    return folder


def cache_folder() -> Path:
    """Where downloads are kept: ``$BOOK_CACHE`` if set, else ``data/cache`` in the repository."""
    value = os.environ.get("BOOK_CACHE", "").strip()
    return (ROOT / Path(value).expanduser()).resolve() if value else ROOT / "data" / "cache"


def places() -> dict[str, Path]:
    """The local folders in the order of search: ``{"$BOOK_DATA": ..., "cache": ...}``."""
    folder = data_folder()
    return ({"$BOOK_DATA": folder} if folder else {}) | {"cache": cache_folder()}


def select(names: list[str] | tuple[str, ...] = ()) -> tuple[OutsideFile, ...]:
    """The files with these names; a data set's name stands for all its files, none for all.

    Raises:
        ValueError: A name that is neither a file nor a data set of the registry.

    Example:
        >>> [file.name for file in select(["clinc150"])]
        ['clinc150-full']
    """
    registry = load_registry()
    files = registry.files()
    allowed = set(registry.datasets) | {file.name for file in files}
    for name in names:
        if name not in allowed:
            raise ValueError(f"name is {name!r}, must be one of {', '.join(sorted(allowed))}")
    return tuple(f for f in files if not names or f.name in names or f.dataset in names)


def locate(name: str) -> dict[str, Path]:
    """Which files of a data set (or which single file) lie here, without opening them.

    Args:
        name: A data set or a file of the registry.

    Returns:
        File name -> path, in the first place that has it; files that are absent are left out.
        Nothing is verified here: the loaders do that before use.

    Raises:
        ValueError: Unknown name, or ``BOOK_DATA`` names no folder.
    """
    found = {file.name: first_path(file) for file in select([name])}
    return {name: path for name, (_, path) in found.items() if path}


def available() -> dict[str, str]:
    """Every registered file that lies here -> where: ``"$BOOK_DATA"`` or ``"cache"``."""
    found = {file.name: first_path(file) for file in load_registry().files()}
    return {name: where for name, (where, path) in found.items() if path}


def first_path(file: OutsideFile) -> tuple[str, Path | None]:
    """The first place that has the file, and its path there."""
    for where, folder in places().items():
        if (folder / file.file).is_file():
            return where, folder / file.file
    return "", None
