"""Named streams of random numbers: what one of them draws does not depend on the others."""

from __future__ import annotations

import hashlib
import json

import torch

_BYTES = 8


def stream_seed(seed: int, *names: str | int) -> int:
    r"""Return the seed of a named stream.

    $$\lfloor \operatorname{SHA256}(\text{seed}, \text{names})_{\text{first 64 bits}} / 2 \rfloor
      \in [0, 2^{63})$$

    Initialisation, order, augmentation and dropout each have a stream of their own, so that every
    method sees the same examples in the same order, however many numbers it draws itself. Text and
    numbers are different names. The CPU generator of torch uses the last 32 bits of a seed.

    **Source**: ours; that all methods share data order and initialisation is from Yuan & Tao,
    Appendix E.1.

    Args:
        seed: integer >= 0, of the run.
        *names: text or integers >= 0, such as "dropout", iteration, part of the batch.

    Returns:
        An integer in [0, 2^63).

    Raises:
        ValueError: if seed is no integer >= 0, or a name is neither text nor an integer >= 0.

    Example:
        >>> stream_seed(42, "order", 0) == stream_seed(42, "order", 0)
        True
        >>> stream_seed(42, "order", 0) == stream_seed(42, "order", "0")
        False
    """
    _check_whole("seed", seed)
    for name in names:
        if not isinstance(name, str):
            _check_whole("a name that is no text", name)
    text = json.dumps([seed, *names], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:_BYTES]) >> 1


def stream(seed: int, *names: str | int) -> torch.Generator:
    """Return a new generator on the CPU at the start of a named stream.

    **Source**: ours, see `stream_seed`.

    Args:
        seed: integer >= 0, of the run.
        *names: text or integers >= 0.

    Returns:
        A generator.

    Raises:
        ValueError: as `stream_seed`.

    Example:
        >>> first, second = (torch.rand(3, generator=stream(42, "order")) for _ in range(2))
        >>> torch.equal(first, second)
        True
    """
    return torch.Generator().manual_seed(stream_seed(seed, *names))


def _check_whole(what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{what} must be an integer >= 0, got {value!r}")
