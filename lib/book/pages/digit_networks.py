"""Small networks with a batch each, for the chapter "From outputs to parameters"."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lib.models import fully_connected

SHAPES = (  # hidden widths, activation, least scale of the frozen last layer
    ((16,), "tanh", 1.0),
    ((48, 48), "tanh", 1.0),
    ((24, 24, 24), "relu", 1.0),
    ((16,), "tanh", 1e-3),
)


def trainable(network: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that are not frozen, by name.

    Args:
        network: any.

    Returns:
        Names and parameters.
    """
    return {name: value for name, value in network.named_parameters() if value.requires_grad}


def uneven_layer(classes: int, least: float) -> nn.Linear:
    """Return a frozen layer that scales the classes by 1 down to `least`, geometrically.

    Args:
        classes: K.
        least: scale of the last class.

    Returns:
        (N, K) -> (N, K), float64.

    Example:
        >>> uneven_layer(3, 0.25)(torch.ones(1, 3, dtype=torch.float64))
        tensor([[1.0000, 0.5000, 0.2500]], dtype=torch.float64)
    """
    layer = nn.Linear(classes, classes, bias=False, dtype=torch.float64).requires_grad_(False)
    powers = torch.linspace(0, 1, classes, dtype=torch.float64)
    layer.weight.copy_(torch.diag(least**powers))
    return layer


def train(network: nn.Module, images: Tensor, labels: Tensor, steps: int) -> None:
    """Train a network on labels with Adam, step size 0.01, on the whole batch.

    Args:
        network: changed in place.
        images: (N, D).
        labels: (N,).
        steps: number of steps.
    """
    optimiser = torch.optim.Adam(trainable(network).values(), 0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimiser.step()


def population(
    images: Tensor, labels: Tensor, teacher: Tensor, generator: torch.Generator
) -> Iterator[tuple[nn.Module, Tensor, Tensor, Tensor]]:
    """Yield small networks with a batch each: K from 3 to 10, four shapes, two ages, two sizes.

    Each network trains on the first 200 examples of its classes; batches come from all of them.

    Args:
        images: (N, D) float64.
        labels: (N,), in [0, 10).
        teacher: (N, 10) logits, of which the first K are used.
        generator: source of randomness.

    Yields:
        Network, images, teacher logits (n, K) and labels of a batch.
    """
    for classes in range(3, 11):
        rows = (labels < classes).nonzero()[:, 0]
        for widths, activation, least in SHAPES:
            options = {"generator": generator, "dtype": torch.float64}
            network = fully_connected(images.shape[-1], widths, classes, activation, **options)
            network.append(uneven_layer(classes, least))
            for more in (0, 40):
                train(network, images[rows[:200]], labels[rows[:200]], more)
                for size in (4, 32):
                    at = rows[torch.randperm(len(rows), generator=generator)[:size]]
                    yield network, images[at], teacher[at, :classes], labels[at]
