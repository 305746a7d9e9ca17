"""The state of a training run as tensors with names, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from lib.distill.optimisers import AdamWeightDecay
from lib.distill.precision import LossScale

_HELD = {torch.optim.SGD: {"momentum_buffer"}, AdamWeightDecay: {"mean", "square"}}


def collect_state(
    modules: Mapping[str, nn.Module],
    optimiser: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    scale: LossScale | None,
) -> dict[str, Tensor]:
    """Return copies of everything that an optimiser step changes.

    Args:
        modules: by name; their weights and buffers are called `name.key`.
        optimiser: its tensors are called `optimiser.place.key`.
        parameters: of the optimiser, in an order that stays.
        scale: of the loss, or None.

    Returns:
        Name -> tensor, on the device where it is.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> sorted(collect_state({"student": layer}, optimiser, list(layer.parameters()), None))
        ['student.bias', 'student.weight']
    """
    named = {
        f"{kind}.{key}": value
        for kind, module in modules.items()
        for key, value in module.state_dict().items()
    }
    for place, parameter in enumerate(parameters):
        for key, value in optimiser.state.get(parameter, {}).items():
            if value is not None:
                named[f"optimiser.{place}.{key}"] = torch.as_tensor(value)
    if scale is not None:
        named["scale.value"] = torch.tensor(scale.value, dtype=torch.float64)
        named["scale.clean"] = torch.tensor(scale.clean)
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def restore_state(
    state: Mapping[str, Tensor],
    modules: Mapping[str, nn.Module],
    optimiser: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    scale: LossScale | None,
) -> None:
    """Put a state from `collect_state` back.

    Args:
        state: name -> tensor, on any device.
        modules: as for `collect_state`, like the rest.
        optimiser: loses what it holds.
        parameters: of the optimiser.
        scale: of the loss, or None.

    Raises:
        ValueError: if names or shapes do not fit.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> rest = torch.optim.SGD(layer.parameters(), lr=0.1), list(layer.parameters()), None
        >>> restore_state({"student.weight": torch.ones(1, 2)}, {"student": layer}, *rest)
        Traceback (most recent call last):
        ...
        ValueError: state must hold student.bias, but it does not
    """
    scaled = {"scale.value", "scale.clean"} if scale is not None else set()
    wanted = {f"{kind}.{key}" for kind, module in modules.items() for key in module.state_dict()}
    wanted |= scaled
    there = {name for name in state if not name.startswith("optimiser.")}
    for names, verb in ((wanted - there, "must hold"), (there - wanted, "must not hold")):
        if names:
            does = "does not" if verb == "must hold" else "does"
            raise ValueError(f"state {verb} {', '.join(sorted(names))}, but it {does}")
    for kind, module in modules.items():
        own = {key: state[f"{kind}.{key}"] for key in module.state_dict()}
        try:
            module.load_state_dict(own)
        except RuntimeError as error:
            raise ValueError(f"state does not fit the {kind}: {error}") from None
    _restore_optimiser(state, optimiser, parameters)
    if scale is not None:
        scale.value, scale.clean = float(state["scale.value"]), int(state["scale.clean"])


def _restore_optimiser(
    state: Mapping[str, Tensor], optimiser: torch.optim.Optimizer, parameters: Sequence[Tensor]
) -> None:
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        if name.startswith("optimiser."):
            _, place, key = name.split(".", 2)
            if not place.isdecimal():
                raise ValueError(f"state must hold optimiser.NUMBER.NAME, got {name}")
            found.setdefault(int(place), {})[key] = tensor
    optimiser.state.clear()
    for place, held in found.items():
        if place >= len(parameters):
            raise ValueError(
                f"state must be of {len(parameters)} parameters, got one for number {place}"
            )
        parameter, wanted = parameters[place], _HELD.get(type(optimiser), set(held))
        if set(held) != wanted:
            raise ValueError(
                f"state of the optimiser must hold {', '.join(sorted(wanted))} of parameter "
                f"{place}, for {type(optimiser).__name__}, got {', '.join(sorted(held))}"
            )
        for key, tensor in held.items():
            if tensor.shape != parameter.shape:
                raise ValueError(
                    f"state of the optimiser, {key} of parameter {place}, must have shape "
                    f"{tuple(parameter.shape)}, got {tuple(tensor.shape)}"
                )
            optimiser.state[parameter][key] = tensor.detach().to(parameter, copy=True)
