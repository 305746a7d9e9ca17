"""Numerical precision of a training step: autocast, the loss scale, exact float32."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

_AUTOCAST = {"amp-float16": torch.float16, "amp-bfloat16": torch.bfloat16}
_GROWTH_INTERVAL = 2000
_SMALLEST = 2.0**-24  # a scale at which no gradient overflows for want of range


@dataclass
class LossScale:
    r"""The factor by which a loss is multiplied so that float16 gradients do not vanish.

    Halved after a step whose gradients are not finite, which is skipped; doubled after 2,000 steps
    in a row that were. The constants are those of `torch.amp.GradScaler`; ours also serves methods
    that combine two gradients.

    **Source**: Micikevicius et al. (2018), Section 3.2.

    Attributes:
        value: the factor, a power of two.
        clean: steps in a row with finite gradients.

    Example:
        >>> scale = LossScale(65536.0)
        >>> scale.update(finite=False)
        >>> scale.value
        32768.0
    """

    value: float = 1.0
    clean: int = 0

    def update(self, finite: bool) -> None:
        """Take note of a step."""
        if not finite:
            self.value, self.clean = self.value / 2, 0
            return
        self.clean += 1
        if self.clean == _GROWTH_INTERVAL:
            self.value, self.clean = min(self.value * 2, 2.0**100), 0

    @property
    def exhausted(self) -> bool:
        """Whether smaller scales cannot be the cure."""
        return self.value < _SMALLEST


def first_scale(precision: str) -> LossScale | None:
    """Return the scale at the start of a run, or None where the precision needs none.

    Example:
        >>> first_scale("amp-float16").value, first_scale("float32")
        (65536.0, None)
    """
    return LossScale(65536.0) if precision == "amp-float16" else None


def computing(precision: str, device: torch.device) -> AbstractContextManager:
    """Return the context in which a network runs in a precision: autocast, or none.

    Args:
        precision: one of `PRECISIONS`.
        device: where the network is.

    Returns:
        A context manager.

    Example:
        >>> with computing("amp-bfloat16", torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.bfloat16
    """
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Let float32 mean float32 on a GPU, never TF32, forwards and backwards.

    **Source**: Yuan & Tao, Appendix E.1, the text protocol.

    Args:
        device: where the network is; a CPU has no TF32.

    Yields:
        None.
    """
    if device.type != "cuda":
        yield
        return
    places = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    try:
        for place in places:
            place.allow_tf32 = False
        yield
    finally:
        for place, allowed in zip(places, before, strict=True):
            place.allow_tf32 = allowed


def is_finite(*values: float) -> bool:
    """Say whether all numbers are finite.

    Example:
        >>> is_finite(1.0, float("nan"))
        False
    """
    return all(math.isfinite(value) for value in values)
