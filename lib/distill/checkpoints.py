"""Tensors and facts in one file that is written whole or not at all, and checked when it is read.

A file is in the safetensors format, which holds no code. Its header carries the facts as JSON and
the SHA-256 of the whole file, computed with zeros in its own place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load, save
from torch import Tensor

_BLANK = b"0" * 64
_START = b'{"__metadata__":{"checkpoint":"{\\"sha256\\":\\"'
_AT = 8 + len(_START)  # where the hash stands, after the length of the header
_KEY = "checkpoint"


class CheckpointError(ValueError):
    """A file is damaged, or belongs to something else; the message names the file."""


def write_checkpoint(path: Path | str, tensors: Mapping[str, Tensor], facts: Mapping) -> None:
    """Write tensors and facts so that a reader sees the old file or the new one, never half.

    The file is written beside its place under the name with ".part" added, brought to the disk and
    then renamed. Whoever is killed in between leaves the old file as it was; the next writer
    replaces the part. There must be one writer at a time. Equal content gives equal bytes.

    **Source**: ours.

    Args:
        path: of the file; missing folders are made.
        tensors: name -> tensor of any device, any shape, and any dtype but complex128.
        facts: plain JSON with text as keys: what the file is of. Tuples come back as lists.

    Raises:
        ValueError: if a tensor cannot be stored, or facts are not plain JSON.
        OSError: if the file cannot be written; the old one is as it was.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_checkpoint(f"{folder}/run.safetensors", {"w": torch.ones(2)}, {"seed": 42})
        ...     read_checkpoint(f"{folder}/run.safetensors", {"seed": 42})
        ({'w': tensor([1., 1.])}, {'seed': 42})
    """
    path = Path(path)
    text = json.dumps({"sha256": _BLANK.decode(), "facts": _plain(facts)}, **_COMPACT)
    body = _serialise(tensors, text)
    if body[_AT - len(_START) : _AT + 64] != _START + _BLANK:
        raise RuntimeError("safetensors no longer writes its metadata first; use version 0.8")
    digest = hashlib.sha256(body).hexdigest().encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as stream:
            for piece in (body[:_AT], digest, memoryview(body)[_AT + 64 :]):
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()  # a disk that is full needs the room
        raise
    _keep_name(path.parent)


def read_checkpoint(
    path: Path | str, expected: Mapping | None = None, *, mapped: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Return what `write_checkpoint` wrote, after checking every byte of it.

    **Source**: ours.

    Args:
        path: of the file.
        expected: facts that the file must have; it may have others besides.
        mapped: if True, the tensors' memory is the file's, read when needed and shared between
            processes; what is written to them stays with this process.

    Returns:
        Name -> tensor on the CPU, and the facts; None if there is no file.

    Raises:
        CheckpointError: if the file is damaged, or its facts are not those expected.
        ValueError: if expected is not plain JSON.

    Example:
        >>> read_checkpoint("no-such-file.safetensors") is None
        True
    """
    path, expected = Path(path), _plain(expected or {})
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise CheckpointError(_damaged(path, "it is a folder")) from None
    with stream:
        facts, body = _verify(path, stream)
        with body:
            _compare(path, facts, expected)
            if not mapped:
                return load(body[:]), facts
    with safetensors.safe_open(path, framework="pt") as found:
        return {name: found.get_tensor(name) for name in found.keys()}, facts  # noqa: SIM118


_COMPACT = {"separators": (",", ":"), "allow_nan": False}


def _plain(facts: Mapping) -> dict[str, Any]:
    """The facts as they come back from JSON, with sorted keys."""
    try:
        plain = json.loads(json.dumps(facts, sort_keys=True, **_COMPACT))
    except (TypeError, ValueError) as error:
        raise ValueError(f"facts must be plain JSON, got {facts!r}: {error}") from None
    if not isinstance(plain, dict):
        raise ValueError(f"facts must map names to plain JSON, got {type(facts).__name__}")
    return plain


def _serialise(tensors: Mapping[str, Tensor], text: str) -> bytes:
    whole = {}
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ValueError(
                "tensors must map text to tensors, got "
                f"{name!r} -> {type(tensor).__name__}; put numbers into facts"
            )
        whole[name] = tensor.detach()
    try:
        whole = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in whole.items()}
        return save(whole, metadata={_KEY: text})
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        kinds = sorted({f"{tensor.dtype}, {tensor.layout}" for tensor in whole.values()})
        raise ValueError(f"tensors cannot be stored, among {kinds}: {error!r}") from error


def _verify(path: Path, stream: Any) -> tuple[dict[str, Any], mmap.mmap]:
    """Checks the hash of an open file and returns its facts and its bytes."""
    size = os.fstat(stream.fileno()).st_size
    if size <= _AT + 64:
        raise CheckpointError(_damaged(path, f"it ends after {size:,} bytes"))
    body = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    stated = body[_AT : _AT + 64].decode("ascii", "replace")
    with memoryview(body) as view:
        actual = hashlib.sha256(view[:_AT])
        actual.update(_BLANK)
        actual.update(view[_AT + 64 :])
    if actual.hexdigest() != stated:
        body.close()
        reason = f"its SHA-256 is {actual.hexdigest()}, it says {stated}"
        raise CheckpointError(_damaged(path, reason))
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    return json.loads(header["__metadata__"][_KEY])["facts"], body


def _damaged(path: Path, reason: str) -> str:
    return f"{path} is damaged or no checkpoint: {reason}; delete it to compute it again"


def _compare(path: Path, facts: Mapping, expected: Mapping) -> None:
    """Raises if a fact is not the expected one, and names every one that differs."""
    differ = [
        f"{name} is {there} there, {here} here"
        for name, there, here in _differences(facts, expected)
    ]
    if differ:
        raise CheckpointError(
            f"{path} is of another run: {'; '.join(differ)}; delete it or choose another folder"
        )


def _differences(facts: Mapping, expected: Mapping, prefix: str = "") -> Iterator[tuple]:
    for name in sorted(expected):
        here, there = expected[name], facts.get(name, _Missing())
        if isinstance(here, dict) and isinstance(there, dict):
            yield from _differences(there, here, f"{prefix}{name}.")
        elif type(here) is not type(there) or here != there:
            yield f"{prefix}{name}", repr(there), repr(here)


class _Missing:
    def __repr__(self) -> str:
        return "missing"


def _keep_name(folder: Path) -> None:
    """Brings a new name in a folder to the disk, where the system lets a folder be opened."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
