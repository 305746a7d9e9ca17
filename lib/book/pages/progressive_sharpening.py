"""What the chapter "Progressive sharpening" computes: flows and descents with their weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn import functional

from lib.book.pages.stability_runs import Data
from lib.book.progress import track
from lib.stability import Descent, Flow, descend, flow, hessian_vector_product, sharpness


@dataclass(frozen=True)
class Walk:
    """Records of a run, and its weights at some times.

    Attributes:
        run: the records.
        times: (m,) float64.
        weights: (m, P) the flat weights at these times.
    """

    run: Flow | Descent
    times: Tensor
    weights: Tensor


def follow_flow(label: str, model: nn.Module, data: Data, time: float, **options: Any) -> Walk:
    """Follow gradient flow of the square loss, keeping the weights at every record.

    Args:
        label: what is trained; shown with the progress.
        model: the network; it ends with the final weights.
        data: inputs, and labels or targets.
        time: how long.
        **options: handed to `lib.stability.flow`, such as `every` or `alpha`.

    Returns:
        The records and weights.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> walk = follow_flow("one weight", model, (torch.ones(2, 1), torch.zeros(2, 1)), 2.0)
        >>> bool(torch.isclose(walk.weights[2, 0], walk.weights[0, 0] * torch.e**-2, rtol=1e-5))
        True
    """
    kept: list[Tensor] = []
    run = flow(model, "square", data, time, progress=_keeping(model, kept, label), **options)
    return Walk(run, run.times, torch.stack(kept))


def follow_descent(
    label: str, model: nn.Module, data: Data, step_size: float, steps: int, every: int
) -> Walk:
    """Run gradient descent on the square loss, keeping the weights at every measured step.

    Args:
        label: what is trained; shown with the progress.
        model: the network; it ends with the final weights.
        data: inputs, and labels or targets.
        step_size: eta.
        steps: how many.
        every: steps between two measurements.

    Returns:
        The records and weights.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> data = torch.ones(2, 1), torch.zeros(2, 1)
        >>> walk = follow_descent("one weight", model, data, 0.5, 4, 2)
        >>> walk.times.tolist(), bool(walk.weights[1] == walk.weights[0] / 4)
        ([0.0, 1.0, 2.0], True)
    """
    kept: list[Tensor] = []
    keeping = _keeping(model, kept, label, every)
    run = descend(model, "square", data, step_size, steps, every=every, progress=keeping)
    return Walk(run, run.times, torch.stack(kept[: len(run.times)]))


def _keeping(model: nn.Module, kept: list[Tensor], label: str, every: int = 1):
    """A wrapper of a range that copies the model's weights whenever a multiple comes up."""

    def wrap(walk: Iterable[int]) -> Iterator[int]:
        for index in track(walk, label):
            if index % every == 0:
                parameters = [parameter.detach().flatten() for parameter in model.parameters()]
                kept.append(torch.cat(parameters))
            yield index

    return wrap


def smaller_demand(model: nn.Module, data: Data, share: float) -> Data:
    r"""Return the data with targets that lie only a part of the way to the one-hot rows.

    $$f_0(x_i) + \epsilon\, \big( y_i - f_0(x_i) \big)$$

    with the outputs $f_0$ of the model as it is now.

    Args:
        model: the network, before training.
        data: inputs and labels.
        share: epsilon, in (0, 1]; 1 gives the one-hot rows.

    Returns:
        Inputs and targets (n, K).

    Raises:
        ValueError: if the share is not in (0, 1].

    Example:
        >>> model = nn.Linear(1, 2)
        >>> smaller_demand(model, (torch.ones(1, 1), torch.tensor([1])), 1.0)[1]
        tensor([[0., 1.]])
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share!r}")
    with torch.no_grad():
        outputs = model(data[0])
    wanted = functional.one_hot(data[1], outputs.shape[1]).to(outputs.dtype)
    return data[0], torch.lerp(outputs, wanted, share)


def square_loss(model: nn.Module, data: Data):
    """Return the function () -> mean over examples of half the squared distance to one-hot rows."""
    inputs, labels = data
    targets = functional.one_hot(labels, model(inputs[:1]).shape[1]).to(inputs.dtype)
    return lambda: (model(inputs) - targets).square().sum() / (2 * len(inputs))


def arpack(loss, parameters: list[Tensor], which: str, k: int = 1) -> tuple[float, float, int]:
    """Return what SciPy's `eigsh` says on Hessian-vector products, at its default tolerance.

    Args:
        loss: a function () -> scalar.
        parameters: leaf tensors.
        which: "LA" (largest algebraic) or "LM" (largest magnitude).
        k: number of eigenvalues that it is asked for.

    Returns:
        The eigenvalue it puts first, its relative residual, and the products used.

    Example:
        >>> x = torch.tensor([1.0, 1.0, 1.0], requires_grad=True)
        >>> value, _, _ = arpack(lambda: x[0] ** 2 + x[1] ** 2 / 2 - 2 * x[2] ** 2, [x], "LM")
        >>> round(value, 4)
        -4.0
    """
    size, used = sum(parameter.numel() for parameter in parameters), 0

    def product(vector: np.ndarray) -> np.ndarray:
        nonlocal used
        used += 1
        image = hessian_vector_product(loss, parameters, torch.from_numpy(vector.ravel().copy()))
        return image.double().numpy()

    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    begin = np.random.default_rng(0).standard_normal(size)
    values, vectors = eigsh(operator, k=k, which=which, v0=begin)
    first = int(np.abs(values).argmax()) if which == "LM" else int(values.argmax())
    value, vector, products = values[first], vectors[:, first], used
    residual = np.linalg.norm(product(vector) - value * vector) / abs(value)
    return float(value), float(residual), products


def compare_methods(model: nn.Module, data: Data, near: Tensor) -> list[dict]:
    """Return rows of a table: one sharpness, measured in several ways.

    Args:
        model: the network.
        data: inputs and labels.
        near: (P,) a vector near the top eigenvector, for the warm start.

    Returns:
        Rows with the method, the value, its relative residual and the products used.
    """
    loss, parameters = square_loss(model, data), list(model.parameters())
    rows = []
    for name, which, k in (("SciPy, LM, two", "LM", 2), ("SciPy, LA, one", "LA", 1)):
        rows.append((name, *arpack(loss, parameters, which, k)))
    for name, options in (
        ("ours, tol 1e-5", {"tol": 1e-5}),
        ("ours, tol 1e-4", {}),
        ("ours, tol 1e-4, warm", {"start": near}),
    ):
        found = sharpness(loss, parameters, **options)
        rows.append((name, float(found.values[0]), float(found.residuals[0]), found.products))
    names = ("method", "sharpness", "residual", "products")
    return [dict(zip(names, row, strict=True)) for row in rows]


def value_at(times: Tensor, values: Tensor, time: float) -> float:
    """Return a value between the records, on the straight line between its neighbours.

    Example:
        >>> value_at(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 5.0]), 0.5)
        2.0
    """
    return float(np.interp(time, times.numpy(), values.numpy()))


def time_of_level(times: Tensor, values: Tensor, level: float) -> float:
    """Return when a value first reaches a level, on the straight line between its neighbours.

    Raises:
        ValueError: if it stays below.

    Example:
        >>> time_of_level(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 5.0]), 2.0)
        0.5
    """
    above = (values >= level).nonzero()
    if not len(above):
        raise ValueError(f"the values stay below {level:g}; the largest is {float(values.max()):g}")
    after = int(above[0])
    if after == 0:
        return float(times[0])
    low, high = values[after - 1], values[after]
    share = (level - low) / (high - low)
    return float(times[after - 1] + share * (times[after] - times[after - 1]))


def time_below(times: Tensor, values: Tensor, level: float) -> float | None:
    """Return the first of the times at which a value is below a level, or None.

    Example:
        >>> time_below(torch.tensor([0.0, 2.0, 4.0]), torch.tensor([5.0, 2.0, 1.0]), 3.0)
        2.0
    """
    below = (values < level).nonzero()
    return float(times[below[0, 0]]) if len(below) else None
