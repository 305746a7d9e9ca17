"""What the chapters on the edge of stability share: digits, a network, one call of training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lib.book.data_used import use_data
from lib.book.progress import track
from lib.datasets import load_digits, standardise
from lib.datasets.registry import cache_folder
from lib.models.networks import fully_connected
from lib.stability.descent import Descent, descend

Data = tuple[Tensor, Tensor]


def digits_data(n: int = 500, dtype: torch.dtype = torch.float32, quiet: bool = True) -> Data:
    """Return the first n digits of 8 x 8 pixels, every pixel standardised over these n.

    Args:
        n: how many, 1 to 1,797.
        dtype: of the inputs.
        quiet: do not print where the digits come from.

    Returns:
        Inputs (n, 64) and labels (n,) int64.

    Raises:
        ValueError: if n is out of range.

    Example:
        >>> inputs, labels = digits_data(500)
        >>> inputs.shape, round(float(inputs.square().sum(0).max()))
        (torch.Size([500, 64]), 500)
    """
    found = load_digits(quiet=quiet, n=n)
    use_data("digits", f"the first {n:,}, {found.source}", next(iter(found.sha256.values())))
    return standardise(found.images).to(dtype), found.labels


def digits_network(
    widths: Sequence[int] = (100, 100), activation: str = "tanh", seed: int = 0, **options: Any
) -> nn.Sequential:
    """Return a fully connected network for the digits, drawn from a seed.

    Args:
        widths: widths of the hidden layers.
        activation: "tanh", "relu", "elu", "softplus" or "hardtanh".
        seed: of the weights.
        **options: handed to `lib.models.fully_connected`, such as `dtype` or `batch_norm`.

    Returns:
        The network, 64 inputs and 10 outputs.

    Raises:
        ValueError: if the network does not accept an argument.

    Example:
        >>> first, again = (digits_network((5,), seed=3)[1].weight for _ in range(2))
        >>> bool((first == again).all())
        True
    """
    generator = torch.Generator().manual_seed(seed)
    return fully_connected(64, widths, 10, activation, generator=generator, **options)


def train(
    label: str,
    model: nn.Module,
    data: Data,
    step_size: float,
    steps: int,
    *,
    loss: str = "square",
    keep_runs: bool = False,
    **options: Any,
) -> Descent:
    """Train by full-batch gradient descent, with progress, and keep the run where asked to.

    Args:
        label: what is trained, a few words; shown with the progress.
        model: the network; it ends with the final weights.
        data: inputs and labels, or targets.
        step_size: eta.
        steps: how many.
        loss: "square" or "cross-entropy".
        keep_runs: write a checkpoint to `data/cache/runs/`, so that a run that was stopped goes on
            where it was. The file's name says label, setting and initial weights.
        **options: handed to `lib.stability.descend`, such as `every`, `k` or `momentum`.

    Returns:
        The records.

    Raises:
        ValueError: if `descend` does not accept an argument.

    Example:
        >>> model = digits_network((5,))
        >>> train("small", model, digits_data(20), 0.1, 3, every=3).steps
        tensor([0, 3])
    """
    checkpoint = run_path(label, model, data, step_size, loss, options) if keep_runs else None
    progress = partial(track, label=f"{label}, steps")
    return descend(
        model, loss, data, step_size, steps, checkpoint=checkpoint, progress=progress, **options
    )


def run_path(
    label: str, model: nn.Module, data: Data, step_size: float, loss: str, options: dict
) -> Path:
    """Return where a run is kept: one file for each label, setting, data and initial weights.

    Args:
        label: what is trained.
        model: the network, with its initial weights.
        data: inputs and labels, or targets.
        step_size: eta.
        loss: "square" or "cross-entropy".
        options: what else is handed to `descend`.

    Returns:
        A path in `data/cache/runs/`; the folder is made.

    Example:
        >>> model, data = nn.Linear(64, 10), digits_data(20)
        >>> run_path("Two words", model, data, 0.1, "square", {}).name.startswith("two-words-")
        True
    """
    whole = hashlib.sha256(repr((str(model), step_size, loss, sorted(options.items()))).encode())
    for tensor in (*model.state_dict().values(), *data):
        whole.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    words = "".join(letter if letter.isalnum() else "-" for letter in label.lower())
    folder = cache_folder() / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{words}-{whole.hexdigest()[:16]}"
