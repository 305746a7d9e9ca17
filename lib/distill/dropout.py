"""What a network draws while it is trained: from a stream of its own, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded_noise(device: torch.device) -> Iterator[Callable[[int], None]]:
    """Let the block seed what dropout draws from, and put the generators back afterwards.

    Dropout knows only the global generators, that of the CPU and that of its device. With a seed
    for every part of every batch nothing needs to be stored to go on after an interruption, and a
    part draws the same whichever process takes it.

    **Source**: ours.

    Args:
        device: where the network is.

    Yields:
        A function that seeds the generators.

    Example:
        >>> with seeded_noise(torch.device("cpu")) as seed:
        ...     seed(5)
        ...     first = torch.rand(2)
        ...     seed(5)
        ...     torch.equal(first, torch.rand(2))
        True
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    states = [generator.get_state() for generator in generators]

    def seed(value: int) -> None:
        for generator in generators:
            generator.manual_seed(value)

    try:
        yield seed
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
