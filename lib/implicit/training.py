"""What descent and flow share: the training problem, and the record of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from lib.implicit.checks import choice, signed_examples
from lib.implicit.losses import LOSSES, example_weights, log_loss
from lib.implicit.packing import Weights, pack, unpacker


@dataclass(frozen=True)
class Trajectory:
    r"""Records of a training run; R is the number of records, ... are starts and data sets.

    Attributes:
        step: (R,) int64, gradient steps done at each record; for a flow (..., R), steps of the
            integrator.
        direction: (..., R, D), the predictor divided by its length; NaN where the predictor is 0.
        norm: (..., R), the length of the predictor.
        log_loss: (..., R), the logarithm of the training loss.
        margin: (..., R), the smallest margin of the unit predictor,
            $\min_n \langle a_n, \beta \rangle / \|\beta\|$.
        growth: (..., R), $\log \|w\|^L$, the clock that the limit is approached in.
        example_weights: (..., R, N), each example's share of the gradient.
        weights: the final weights.
    """

    step: Tensor
    direction: Tensor
    norm: Tensor
    log_loss: Tensor
    margin: Tensor
    growth: Tensor
    example_weights: Tensor
    weights: Weights

    @property
    def loss(self) -> Tensor:
        """The training loss, (..., R); 0 once it is below what float64 can hold."""
        return self.log_loss.exp()

    @property
    def predictor(self) -> Tensor:
        """The last predictor, (..., D)."""
        return self.norm[..., -1:] * self.direction[..., -1, :]


@dataclass(frozen=True)
class TrainingProblem:
    """Signed examples, a network and a loss, with flat weights.

    Attributes:
        network: any of the networks.
        rows: (..., N, D), the signed examples.
        loss: "exponential" or "logistic".
        start: (..., p), the initial weights, packed.
        unpack: from packed weights to the network's.
    """

    network: object
    rows: Tensor
    loss: str
    start: Tensor
    unpack: Callable[[Tensor], Weights]

    def snapshot(self, flat: Tensor) -> dict[str, Tensor]:
        """Everything that a `Trajectory` keeps of one moment, without the step."""
        predictor = self.network.predictor(self.unpack(flat))
        norm = torch.linalg.vector_norm(predictor, dim=-1)
        margins = (self.rows @ predictor.unsqueeze(-1)).squeeze(-1)
        return {
            "direction": predictor / norm.unsqueeze(-1),
            "norm": norm,
            "log_loss": log_loss(margins, self.loss),
            "margin": margins.amin(-1) / norm,
            "growth": self.network.degree * torch.linalg.vector_norm(flat, dim=-1).log(),
            "example_weights": example_weights(margins, self.loss),
        }


def training_problem(
    network: object,
    inputs: Tensor,
    labels: Tensor,
    loss: str,
    weights: Weights | None,
    generator: torch.Generator | None,
    scale: float,
    batch: tuple[int, ...],
) -> TrainingProblem:
    """Return a checked training problem with its initial weights.

    Args:
        network: any of the networks.
        inputs: (..., N, D), rows are examples.
        labels: (..., N), -1 or +1.
        loss: "exponential" or "logistic".
        weights: initial weights, whose batch dimensions broadcast with those of the data; None to
            draw them.
        generator: source of randomness, needed when weights is None.
        scale: standard deviation of the weights drawn.
        batch: shape of a batch of starts for every data set.

    Returns:
        The problem; weights drawn have batch dimensions (*batch, ...).

    Raises:
        ValueError: if an argument does not fit.

    Example:
        >>> from lib.implicit.networks import DiagonalNetwork
        >>> x, y, g = torch.ones(6, 1, 2), torch.ones(1), torch.Generator()
        >>> training_problem(DiagonalNetwork(2), x, y, "logistic", None, g, 0.1, (3,)).start.shape
        torch.Size([3, 6, 4])
    """
    choice("loss", loss, LOSSES)
    rows = signed_examples(inputs, labels)
    dimension = rows.shape[-1]
    if weights is None:
        if generator is None:
            raise ValueError("generator must be given when weights are not: it draws them")
        batch = (*batch, *rows.shape[:-2])
        weights = network.initialise(dimension, generator, scale, batch)
    weights = network.validate(weights, dimension)
    start = pack(weights)
    shape = torch.broadcast_shapes(start.shape[:-1], rows.shape[:-2])
    start = start.expand(*shape, -1)
    return TrainingProblem(network, rows, loss, start, unpacker(weights))


def cosine_weights(
    network: object, dimension: int, scale: float = 0.1, offset: int | Tensor = 0
) -> Weights:
    r"""Return initial weights that need no random numbers, the same on every machine.

    $$w_j = \text{scale} \cdot \cos(J^2 + J / 2), \qquad J = j + \text{offset}, \quad
      j = 1, 2, \dots$$

    over the packed weights.

    Args:
        network: a dense, diagonal or convolutional network.
        dimension: D, the dimension of the inputs.
        scale: largest size of a weight.
        offset: integer, or an integer tensor (...) for a batch of starts.

    Returns:
        Weights with the batch dimensions of `offset`.

    Example:
        >>> from lib.implicit.networks import DiagonalNetwork
        >>> cosine_weights(DiagonalNetwork(1), 2)
        (tensor([0.0071, 0.0284], dtype=torch.float64),)
    """
    shapes = network.shapes(dimension)
    template = [torch.empty(shape) for shape in shapes]
    index = torch.arange(1, sum(map(prod, shapes)) + 1, dtype=torch.float64)
    index = index + torch.as_tensor(offset).unsqueeze(-1)
    return unpacker(template)(scale * torch.cos(index**2 + index / 2))
