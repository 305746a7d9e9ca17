"""The hash of tensors: of names, types, shapes and every bit of their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import torch
from torch import Tensor


def tensor_digest(tensors: Iterable[tuple[str, Tensor]], *facts: object) -> str:
    """Return the SHA-256 of named tensors and of facts about them.

    The device does not count, a name, a dtype, a shape and the sign of a zero do.

    **Source**: ours.

    Args:
        tensors: pairs of name and tensor, in an order that is fixed.
        *facts: anything that JSON can hold.

    Returns:
        64 hexadecimal digits.

    Raises:
        ValueError: if a fact is not plain JSON.

    Example:
        >>> one = [("weight", torch.ones(2))]
        >>> tensor_digest(one) == tensor_digest([("weight", torch.ones(2, dtype=torch.float64))])
        False
    """
    try:
        found = hashlib.sha256(json.dumps(facts, sort_keys=True, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise ValueError(f"facts must be plain JSON, got {facts!r}: {error}") from None
    for name, tensor in tensors:
        whole = tensor.detach().cpu().contiguous()
        header = json.dumps([name, str(whole.dtype), list(whole.shape)])
        found.update(f"\n{header}\n".encode())
        if whole.numel():
            found.update(whole.reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()
