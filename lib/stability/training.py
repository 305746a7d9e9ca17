"""The training problem that descent and flow share: a model, a full batch and a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from lib.stability.checks import choice, count, leaf_parameters
from lib.stability.hessian import Sharpness, sharpness

LOSSES = ("square", "cross-entropy")


@dataclass(frozen=True)
class TrainingProblem:
    r"""A model and the loss of a full batch, summed over micro-batches.

    Attributes:
        model: the network; its weights are the caller's, changed in place.
        parameters: the weights that require a gradient, in the model's order.
        chunks: the micro-batches (inputs, targets); targets are float rows for the square loss,
            int64 labels for cross-entropy.
        labels: (n,) int64, or None where the targets are given as numbers.
        loss: "square" or "cross-entropy".
        examples: n, the number of examples in all micro-batches.
    """

    model: nn.Module
    parameters: list[Tensor]
    chunks: list[tuple[Tensor, Tensor]]
    labels: Tensor | None
    loss: str
    examples: int

    def part(self, chunk: int) -> Tensor:
        """The part of the loss that one micro-batch adds; the parts sum to the mean."""
        inputs, targets = self.chunks[chunk]
        return self._part(self.model(inputs), targets)

    def closures(self) -> Callable[[], Tensor] | list[Callable[[], Tensor]]:
        """The loss as `sharpness` takes it: one callable, or one for every micro-batch."""
        parts = [lambda chunk=chunk: self.part(chunk) for chunk in range(len(self.chunks))]
        return parts if len(parts) > 1 else parts[0]

    def value_and_gradient(self, accuracy: bool = False) -> tuple[float, list[Tensor], float]:
        """The loss, its gradient and the accuracy, from one forward and one backward pass.

        Args:
            accuracy: count the examples whose largest output is at the label.

        Returns:
            The loss, one gradient a parameter, and the accuracy (NaN where it is not asked for or
            there are no labels).
        """
        value, correct, gradient = 0.0, 0, None
        counted = accuracy and self.labels is not None
        begin = 0
        for inputs, targets in self.chunks:
            with torch.enable_grad():
                outputs = self.model(inputs)
                part = self._part(outputs, targets)
            pieces = torch.autograd.grad(
                part, self.parameters, allow_unused=True, materialize_grads=True
            )
            if gradient is None:
                gradient = list(pieces)
            else:
                for total, piece in zip(gradient, pieces, strict=True):
                    total.add_(piece)
            value += float(part.detach())
            if counted:
                labels = self.labels[begin : begin + len(inputs)]
                correct += int((outputs.detach().argmax(-1) == labels).sum())
            begin += len(inputs)
        return value, gradient, correct / self.examples if counted else float("nan")

    def flat(self) -> Tensor:
        """The weights as one vector (P,), float64."""
        return flatten(self.parameters).double()

    def sharpness(self, k: int, tol: float, start: Tensor | None) -> Sharpness:
        """The largest eigenvalues of the loss's Hessian, with the model left as it is."""
        with self.unchanged_buffers():
            return sharpness(self.closures(), self.parameters, k, tol, start=start)

    @contextmanager
    def unchanged_buffers(self) -> Iterator[None]:
        """Restores the running statistics of batch normalisation, which a forward pass moves."""
        kept = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, copy in kept:
                    buffer.copy_(copy)

    def _part(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.loss == "square":
            total = functional.mse_loss(outputs, targets, reduction="sum")
            return total * (0.5 / self.examples)
        return functional.cross_entropy(outputs, targets, reduction="sum") / self.examples


def training_problem(
    model: nn.Module, loss: str, data: tuple[Tensor, Tensor], micro_batch: int | None = None
) -> TrainingProblem:
    r"""Return a checked training problem.

    $$L_{\text{square}} = \frac1n \sum_{i=1}^n \tfrac12 \| f(x_i) - y_i \|^2, \qquad
      L_{\text{cross-entropy}} = -\frac1n \sum_{i=1}^n \log \operatorname{softmax}(f(x_i))_{y_i}$$

    **Source**: Cohen et al. (2021), the authors' code.

    Args:
        model: the network, inputs (n, ...) to outputs (n, K). It must be deterministic: no dropout.
        loss: "square", with one-hot rows for labels, or "cross-entropy".
        data: inputs (n, ...) in the dtype of the weights, and labels (n,) int64 in [0, K), or for
            the square loss targets (n, K) in the dtype of the weights.
        micro_batch: number of examples that pass through the model at once; None for all n.

    Returns:
        The problem; its loss is the mean over all n examples.

    Raises:
        ValueError: if an argument does not fit; see the message.

    Example:
        >>> model = nn.Linear(2, 3)
        >>> problem = training_problem(model, "square", (torch.zeros(4, 2), torch.tensor([0] * 4)))
        >>> problem.chunks[0][1][0]
        tensor([1., 0., 0.])
    """
    choice("loss", loss, LOSSES)
    parameters = _trainable(model)
    inputs, targets = _checked_data(data, parameters[0])
    width = _outputs(model, inputs)
    labels = None if targets.is_floating_point() else targets
    if labels is None:
        _check_numbers(targets, loss, width)
    else:
        _check_labels(labels, width)
        if loss == "square":
            targets = functional.one_hot(labels, width).to(inputs.dtype)
    size = len(inputs) if micro_batch is None else count("micro_batch", micro_batch)
    chunks = list(zip(inputs.split(size), targets.split(size), strict=True))
    return TrainingProblem(model, parameters, chunks, labels, loss, len(inputs))


def flatten(tensors: list[Tensor]) -> Tensor:
    """Return tensors as one flat vector (P,), in order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _trainable(model: nn.Module) -> list[Tensor]:
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("model must have parameters that require a gradient, got none")
    return list(leaf_parameters(parameters))


def _checked_data(data: tuple[Tensor, Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError(f"data must be a pair (inputs, labels or targets), got {type(data)}")
    for name, tensor in zip(("data[0] (inputs)", "data[1]"), data, strict=True):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.device != like.device:
            raise ValueError(f"{name} must be on {like.device} as the model, got {tensor.device}")
        if tensor.is_floating_point():
            if tensor.dtype != like.dtype:
                raise ValueError(
                    f"{name} must have the model's dtype {like.dtype}, got {tensor.dtype}"
                )
            if not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"{name} must be finite, got NaN or infinity")
    inputs, targets = (tensor.detach() for tensor in data)
    if inputs.ndim < 2 or len(inputs) < 1 or inputs.dtype != like.dtype:
        raise ValueError(
            f"data[0] (inputs) must have shape (n, ...), n >= 1, and dtype {like.dtype}, "
            f"got {tuple(inputs.shape)} of {inputs.dtype}"
        )
    if targets.ndim < 1 or len(targets) != len(inputs):
        raise ValueError(
            f"data[1] must have one entry for each of the {len(inputs)} inputs, "
            f"got shape {tuple(targets.shape)}"
        )
    return inputs, targets


def _outputs(model: nn.Module, inputs: Tensor) -> int:
    """The number of outputs, from two passes of two examples that leave no trace."""
    few = inputs[:2]
    outputs, again = _tried(model, few)
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(few):
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"model must return outputs of shape (n, K), got {shape} for n = {len(few)}"
        )
    if not outputs.requires_grad:
        raise ValueError("model must have outputs that depend on its parameters, got a constant")
    if not torch.allclose(outputs, again, equal_nan=True):
        raise ValueError(
            "model must be deterministic, got two outputs for the same inputs; take dropout out"
        )
    return outputs.shape[1]


def _tried(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """What the model returns in two passes, its buffers left as they were."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with torch.enable_grad():
            return [model(inputs) for _ in range(2)]
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(
            f"model must accept data[0] (inputs) of shape {tuple(inputs.shape)}: {error}"
        ) from error
    finally:
        with torch.no_grad():
            for buffer, copy in kept:
                buffer.copy_(copy)


def _check_numbers(targets: Tensor, loss: str, width: int) -> None:
    if loss != "square":
        raise ValueError(f"data[1] must be int64 labels for loss {loss!r}, got {targets.dtype}")
    if targets.ndim != 2 or targets.shape[1] != width:
        raise ValueError(
            f"data[1] must be int64 labels (n,) or targets (n, {width}) to match the model's "
            f"outputs, got {tuple(targets.shape)} of {targets.dtype}"
        )


def _check_labels(labels: Tensor, width: int) -> None:
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise ValueError(
            f"data[1] must be int64 labels (n,) or float targets (n, {width}), "
            f"got {tuple(labels.shape)} of {labels.dtype}"
        )
    strange = labels[(labels < 0) | (labels >= width)]
    if strange.numel():
        raise ValueError(
            f"data[1] must hold labels from 0 to {width - 1}, the model's outputs, "
            f"got {int(strange[0])}"
        )
