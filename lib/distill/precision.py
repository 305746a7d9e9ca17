"""Numerical precision of a training step: autocast, the loss scale, exact float32."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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


@contextmanager
def computing(precision: str, device: torch.device) -> Iterator[None]:
    """Run the block's network in the precision; float32 means float32, never TF32.

    Args:
        precision: one of `PRECISIONS`.
        device: where the network is.

    Yields:
        None.
    """
    dtype = _AUTOCAST.get(precision)
    cast = nullcontext() if dtype is None else torch.autocast(device.type, dtype)
    exact = torch.backends.cudnn.flags(allow_tf32=False) if device.type == "cuda" else nullcontext()
    with cast, exact:
        yield


def is_finite(*values: float) -> bool:
    """Say whether all numbers are finite.

    Example:
        >>> is_finite(1.0, float("nan"))
        False
    """
    return all(math.isfinite(value) for value in values)
