"""Several processes that train one student: each takes a share of every batch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, distributed

Part = TypeVar("Part")


@dataclass(frozen=True)
class Processes:
    """The place of this process among those that train together.

    Attributes:
        rank: of this process, in [0, size).
        size: number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that measures and writes."""
        return self.rank == 0

    def share(self, parts: Sequence[Part]) -> list[tuple[int, Part]]:
        """Return this process's parts with their numbers: every `size`-th, from `rank` on.

        Example:
            >>> Processes(1, 2).share("abcde")
            [(1, 'b'), (3, 'd')]
        """
        return list(enumerate(parts))[self.rank :: self.size]

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, in place; as one message a dtype."""
        if self.size == 1:
            return
        for dtype in {tensor.dtype: None for tensor in tensors}:
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in same])
            distributed.all_reduce(flat)
            pieces = flat.split([tensor.numel() for tensor in same])
            torch._foreach_copy_(
                same, [piece.view_as(tensor) for piece, tensor in zip(pieces, same, strict=True)]
            )

    def spread(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of the first process, in place."""
        if self.size > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, 0)

    def wait(self) -> None:
        """Return once every process is here."""
        if self.size > 1:
            distributed.barrier()


def current_processes() -> Processes:
    """Return this process's place in the group that stands, or that of a process alone.

    Example:
        >>> current_processes()
        Processes(rank=0, size=1)
    """
    if distributed.is_available() and distributed.is_initialized():
        return Processes(distributed.get_rank(), distributed.get_world_size())
    return Processes()


@contextmanager
def joined_processes() -> Iterator[torch.device | None]:
    """Join the processes that `torchrun` started, for the time of the block.

    NCCL where there is a GPU for every process of this machine, Gloo on CPUs otherwise. A process
    that `torchrun` did not start joins nothing.

    Yields:
        The device of this process, or None where it is alone.

    Raises:
        RuntimeError: if the other processes do not answer.

    Example:
        >>> with joined_processes() as device:
        ...     print(device, current_processes().size)
        None 1
    """
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield None
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    device = torch.device("cpu")
    if torch.cuda.is_available() and torch.cuda.device_count() >= here:
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
    finally:
        distributed.destroy_process_group()
