"""Checkpoints of long runs: whole or not at all, checked, and bound to their setting."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_MAGIC = b"stability-checkpoint-1\n"
_DIGEST = hashlib.sha256().digest_size
_FINGERPRINT = "fingerprint"


class CheckpointError(ValueError):
    """A checkpoint is damaged, or belongs to another run; the message names the file."""


def tensor_digest(*tensors: Tensor) -> str:
    """Return the SHA-256 of tensors: dtype, shape and bytes of each, in order.

    Args:
        tensors: any, on any device.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> tensor_digest(torch.zeros(2)) == tensor_digest(torch.zeros(2, 1))
        False
    """
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        whole.update(flat.numpy().view(np.uint8))
    return whole.hexdigest()


def write_checkpoint(path: str | Path, fingerprint: dict, tensors: dict[str, Tensor]) -> None:
    """Write a checkpoint: a reader finds the file before it or the file after it, never a part.

    The bytes are a header, their SHA-256, and a NumPy archive without pickled objects. They go to a
    file beside the path, which then takes the path's name.

    Args:
        path: the file; its folder must exist.
        fingerprint: the setting that the run belongs to: words and numbers that JSON can hold.
        tensors: named tensors.

    Raises:
        FileNotFoundError: if the folder does not exist.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "run"
        >>> write_checkpoint(file, {"step_size": 0.1}, {"losses": torch.ones(2)})
        >>> read_checkpoint(file, {"step_size": 0.1})
        {'losses': tensor([1., 1.])}
    """
    path = Path(path)
    arrays = {f"tensor:{name}": tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    archive = io.BytesIO()
    np.savez(archive, **{_FINGERPRINT: np.array(json.dumps(fingerprint))}, **arrays)
    payload = archive.getbuffer()
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        file.write(_MAGIC + hashlib.sha256(payload).digest())
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def read_checkpoint(path: str | Path, fingerprint: dict) -> dict[str, Tensor] | None:
    """Return the tensors of a checkpoint, or None where there is no file yet.

    Args:
        path: the file.
        fingerprint: the setting of the run that asks.

    Returns:
        Named tensors on the CPU.

    Raises:
        CheckpointError: if the bytes are not those that were written, or the file belongs to a run
            with another setting; the message names the file and what differs.

    Example:
        >>> read_checkpoint("no-such-folder/run", {}) is None
        True
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except (IsADirectoryError, NotADirectoryError):
        raise CheckpointError(f"checkpoint must be a file, got {path}") from None
    start = len(_MAGIC) + _DIGEST
    payload = memoryview(content)[start:]
    if not content.startswith(_MAGIC) or (
        hashlib.sha256(payload).digest() != content[len(_MAGIC) : start]
    ):
        raise CheckpointError(
            f"checkpoint {path} is damaged: its bytes are not those that were written; "
            "delete it to start the run again"
        )
    with np.load(io.BytesIO(payload), allow_pickle=False) as arrays:
        _compare(path, json.loads(str(arrays[_FINGERPRINT])), fingerprint)
        names = [name for name in arrays.files if name != _FINGERPRINT]
        return {name.removeprefix("tensor:"): torch.from_numpy(arrays[name]) for name in names}


def _compare(path: Path, there: dict, here: dict) -> None:
    """Refuse a checkpoint of another setting, saying what differs."""
    here = json.loads(json.dumps(here))
    differ = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    if differ:
        what = "; ".join(
            f"{name} is {there.get(name)!r} there, {here.get(name)!r} here" for name in differ
        )
        raise CheckpointError(
            f"checkpoint {path} belongs to another run: {what}; pass another path, or delete it"
        )
