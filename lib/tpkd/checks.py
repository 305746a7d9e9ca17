"""Input checks shared by the modules of `lib.tpkd`: every error names argument, value and cure.

Conventions of the room: logits are (..., K), labels (...) in [0, K), and leading dimensions
broadcast. Results come back in the promoted floating dtype of the logits, where integers count as
float32. Inside, everything is float64 unless a function asks for the narrower of float32 and
float64 that holds its input; a result that exceeds the range of its dtype rounds to infinity.
A logit of -inf is a probability of zero; only the arguments named in `zeros` may hold it.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_REAL = frozenset((*_FLOATS, *_INTEGERS))
_LABELS = frozenset((*_INTEGERS, torch.uint16, torch.uint32, torch.uint64))
_HEADROOM = 2.0**-24  # by which logits stay below the largest number, so that no sum overflows
_LIMITS = {dtype: torch.finfo(dtype).max * _HEADROOM for dtype in _FLOATS}


class Prepared(NamedTuple):
    """Logits and labels that have passed every check.

    Attributes:
        logits: the tensors in the order given, each (..., K) with the common leading dimensions,
            in the dtype of the computation.
        labels: (...) int64 with the same leading dimensions, or None without labels.
        dtype: in which the result should be returned.
    """

    logits: tuple[Tensor, ...]
    labels: Tensor | None
    dtype: torch.dtype


def prepare(
    labels: Tensor | None,
    *,
    labelled: bool = True,
    zeros: Collection[str] = (),
    compute: torch.dtype | None = torch.float64,
    **logits: Tensor,
) -> Prepared:
    """Check logits (..., K) and labels (...) against each other and bring them to one shape.

    Args:
        labels: (...) of an integer dtype, in [0, K).
        labelled: False for a function without labels, which passes None for them.
        zeros: names of the arguments that may hold -inf; one logit besides the label's must not.
        compute: dtype of the returned logits; None for float64 if one of them is, else float32.
        **logits: (..., K) real, by argument name, K >= 3.

    Returns:
        A `Prepared`; a tensor that fits is returned as it is, others as expanded views.

    Raises:
        ValueError: if a type, dtype, device, shape or value does not fit; it names the argument.

    Example:
        >>> prepared = prepare(torch.tensor(2), logits=torch.zeros(4, 3, dtype=torch.float16))
        >>> prepared.labels, prepared.logits[0].dtype, prepared.dtype
        (tensor([2, 2, 2, 2]), torch.float64, torch.float16)
    """
    dtype = None
    for name, tensor in logits.items():
        check_logits(name, tensor)
        widest = tensor.dtype if tensor.is_floating_point() else torch.float32
        dtype = widest if dtype is None else torch.promote_types(dtype, widest)
    if compute is None:
        compute = torch.promote_types(dtype, torch.float32)
    classes = _same_classes(logits)
    tensors = {"labels": labels, **logits} if labelled else logits
    if labelled:
        labels = check_labels(labels, classes)
    _same_device(tensors)
    shape = _common_shape(tensors)
    if labelled and labels.shape != shape:
        labels = labels.expand(shape)
    converted = []
    for name, tensor in logits.items():
        if tensor.dtype != compute:
            tensor = tensor.to(compute)
        some_zero = check_range(name, tensor, name in zeros)
        if tensor.shape[:-1] != shape:
            tensor = tensor.expand(*shape, classes)
        if some_zero:
            _check_support(name, tensor, labels)
        converted.append(tensor)
    return Prepared(tuple(converted), labels, dtype)


def prepare_pair(student_logits: Tensor, teacher_logits: Tensor, labels: Tensor) -> Prepared:
    """Check a student against a teacher, whose logits may be -inf, as `prepare` does.

    Args:
        student_logits: (..., K) real and finite, K >= 3.
        teacher_logits: (..., K) real; -inf is a probability of zero, but not for all other classes.
        labels: (...) of an integer dtype, in [0, K).

    Returns:
        A `Prepared` in float64, student first.

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> pair = prepare_pair(torch.zeros(2, 3), torch.zeros(3), torch.tensor(0))
        >>> pair.logits[1].shape
        torch.Size([2, 3])
    """
    return prepare(
        labels,
        zeros=("teacher_logits",),
        student_logits=student_logits,
        teacher_logits=teacher_logits,
    )


def others(labels: Tensor, classes: int) -> Tensor:
    """Mark the classes other than the label.

    Args:
        labels: (...) int64, in [0, classes).
        classes: K.

    Returns:
        (..., K) bool, False at the label.

    Example:
        >>> others(torch.tensor(1), 3)
        tensor([ True, False,  True])
    """
    return torch.arange(classes, device=labels.device) != labels.unsqueeze(-1)


def at_label(values: Tensor, labels: Tensor) -> Tensor:
    """Return the entries (...) of values (..., K) at the labels (...), which do not broadcast.

    Example:
        >>> at_label(torch.tensor([5.0, 6.0, 7.0]), torch.tensor(1))
        tensor(6.)
    """
    return values.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def check_logits(name: str, logits: Tensor) -> None:
    """Raise ValueError unless logits is a dense real tensor (..., K) with K >= 3.

    Args:
        name: the argument's name.
        logits: the tensor to check.
    """
    _check_tensor(name, logits)
    if logits.dtype not in _REAL:
        raise ValueError(
            f"{name} must be of a real dtype (float16, bfloat16, float32, float64 or an integer), "
            f"got {logits.dtype}; convert it with .float()"
        )
    if logits.ndim < 1 or logits.shape[-1] < 3:
        raise ValueError(
            f"{name} must have shape (..., K) with K >= 3 classes, got {tuple(logits.shape)}"
        )


def check_labels(labels: Tensor, classes: int) -> Tensor:
    """Return labels as int64, or raise ValueError unless they are integers in [0, classes).

    Args:
        labels: the labels, (...).
        classes: K.

    Returns:
        (...) int64.
    """
    _check_tensor("labels", labels)
    if labels.dtype not in _LABELS:
        raise ValueError(
            f"labels must be of an integer dtype, got {labels.dtype}; convert them with .long()"
        )
    if labels.dtype != torch.int64:
        labels = labels.to(torch.int64)
    if labels.numel() == 0:
        return labels
    low, high = _ends(labels)
    if low < 0 or high >= classes:
        raise ValueError(
            f"labels must lie in [0, {classes}) for {classes} classes, got values from "
            f"{low} to {high}"
        )
    return labels


def check_range(name: str, tensor: Tensor, zeros: bool = False) -> bool:
    """Raise ValueError unless every entry is finite, or -inf where that is allowed.

    Args:
        name: the argument's name.
        tensor: floating point, the dtype of the computation.
        zeros: True if -inf, a probability of zero, is allowed.

    Returns:
        True if an entry is -inf.
    """
    if tensor.numel() == 0:
        return False
    limit = _LIMITS[tensor.dtype]
    low, high = _ends(tensor)
    if -limit <= low and high <= limit:  # one pass; NaN compares false
        return False
    allowed = tensor.abs() <= limit
    if zeros:
        allowed = allowed | (tensor == -math.inf)
    if bool(allowed.all()):
        return True
    seen = float(tensor[~allowed].flatten()[0])
    rule = f"finite and at most {limit:.3g} in modulus"
    raise ValueError(f"{name} must be {rule}{' (or -inf)' if zeros else ''}, got {seen}")


def check_number(
    name: str,
    value: float | Tensor,
    low: float = -math.inf,
    high: float = math.inf,
    device: torch.device | None = None,
) -> Tensor:
    """Return a number, or a tensor of numbers, in float64 after checking its range.

    Args:
        name: the argument's name.
        value: a real number or a real tensor (...).
        low: smallest allowed value.
        high: largest allowed value; infinity allows infinity.
        device: where the other arguments lie; a tensor must lie there, a number is put there.

    Returns:
        (...) float64.

    Raises:
        ValueError: if value is no real number, or outside [low, high], or elsewhere.

    Example:
        >>> check_number("s", 1, 0.0, 1.0)
        tensor(1., dtype=torch.float64)
    """
    if isinstance(value, Tensor):
        _check_tensor(name, value)
        if value.dtype not in _REAL:
            raise ValueError(f"{name} must be of a real dtype, got {value.dtype}")
        if device is not None and value.device != device:
            raise ValueError(
                f"{name} must lie on {device} like the logits, got {value.device}; "
                "move it with .to(...)"
            )
        number = value.to(torch.float64)
        allowed = (number >= low) & (number <= high)
        seen = None if bool(allowed.all()) else float(number[~allowed].flatten()[0])
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
        value = float(value)
        number = torch.tensor(value, dtype=torch.float64, device=device)
        seen = None if low <= value <= high else value
    else:
        raise ValueError(
            f"{name} must be a real number or a torch.Tensor of them, got {type(value).__name__}"
        )
    if seen is not None:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {seen}")
    return number


def check_scalar(
    name: str, value: float | Tensor, low: float = -math.inf, high: float = math.inf
) -> float:
    """Return a single number in [low, high] as a float, or raise ValueError, as `check_number`."""
    number = check_number(name, value, low, high)
    if number.numel() != 1:
        raise ValueError(f"{name} must be one number, got shape {tuple(number.shape)}")
    return float(number)


def check_beside(name: str, value: Tensor, batch: torch.Size) -> None:
    """Raise ValueError unless value (...) broadcasts with the leading dimensions of the logits.

    Args:
        name: the argument's name.
        value: the tensor to check.
        batch: the leading dimensions.
    """
    if not value.shape:
        return
    try:
        torch.broadcast_shapes(value.shape, batch)
    except RuntimeError:
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} must broadcast with the leading dimensions "
            f"{tuple(batch)} of the logits; add dimensions of size 1 where it should"
        ) from None


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{name} must be a torch.Tensor, got {type(value).__name__}; "
            f"convert it with torch.as_tensor({name})"
        )
    if value.layout != torch.strided or value.device.type == "meta":
        raise ValueError(
            f"{name} must be a dense tensor with data, got layout {value.layout} on {value.device}"
        )


def _same_classes(logits: dict[str, Tensor]) -> int:
    (first, reference), *rest = logits.items()
    for name, tensor in rest:
        if tensor.shape[-1] != reference.shape[-1]:
            raise ValueError(
                f"{name} must have as many classes as {first}, {reference.shape[-1]}, got "
                f"{tensor.shape[-1]}"
            )
    return reference.shape[-1]


def _ends(tensor: Tensor) -> tuple[float, float]:
    """Smallest and largest entry, both NaN if one is."""
    low, high = tensor.detach().aminmax()
    return low.item(), high.item()


def _same_device(tensors: dict[str, Tensor]) -> None:
    if len({tensor.device for tensor in tensors.values()}) > 1:
        places = {name: tensor.device for name, tensor in tensors.items()}
        seen = ", ".join(f"{name} on {place}" for name, place in places.items())
        raise ValueError(f"{' and '.join(places)} must lie on one device, got {seen}")


def _common_shape(tensors: dict[str, Tensor]) -> torch.Size:
    """The broadcast leading dimensions; the label's own count whole."""
    shapes = {
        tensor.shape if name == "labels" else tensor.shape[:-1] for name, tensor in tensors.items()
    }
    if len(shapes) == 1:
        return shapes.pop()
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        seen = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(
            f"the leading dimensions of {seen} do not broadcast: logits must be (..., K), "
            "labels (...)"
        ) from None


def _check_support(name: str, logits: Tensor, labels: Tensor | None) -> None:
    """At least one logit, other than the label's, must be above -inf."""
    possible = logits > -math.inf
    if labels is not None:
        possible = possible & others(labels, logits.shape[-1])
    if not bool(possible.any(-1).all()):
        where = "" if labels is None else " other than the label's"
        raise ValueError(
            f"{name} must have a finite logit{where} in every row, got a row where all are -inf"
        )
