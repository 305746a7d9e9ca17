"""What the chapter "Other networks and losses" computes: networks, data, Gauss-Newton parts."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from lib.book.pages.stability_runs import Data
from lib.models import convolutional, fully_connected
from lib.stability import Descent, descend, hessian_vector_product, plateau, sharpness
from lib.stability.training import flatten, training_problem

SHAPES = {64: (1, 8, 8), 784: (1, 28, 28), 3072: (3, 32, 32)}


def dense_network(
    data: Data, widths: Sequence[int], activation: str = "tanh", seed: int = 0, **options
) -> nn.Sequential:
    """Return a fully connected network with ten outputs for a training set.

    Args:
        data: inputs (n, d) and labels.
        widths: of the hidden layers.
        activation: as `lib.models.fully_connected` knows it.
        seed: of the weights.
        **options: handed to `lib.models.fully_connected`, such as `batch_norm`.

    Returns:
        The network.

    Example:
        >>> network = dense_network((torch.zeros(3, 5), torch.zeros(3).long()), (4,), "relu")
        >>> sum(weights.numel() for weights in network.parameters())
        74
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = data[0].shape[1]
    return fully_connected(inputs, tuple(widths), 10, activation, generator=generator, **options)


def convolutional_network(
    data: Data, channels: Sequence[int], activation: str = "relu", seed: int = 0
) -> nn.Sequential:
    """Return a convolutional network with ten outputs for flat images of a known size.

    Args:
        data: inputs (n, d) with d = 64 (8 x 8), 784 (28 x 28) or 3,072 (3 x 32 x 32), and labels.
        channels: of the two blocks.
        activation: as `lib.models.convolutional` knows it.
        seed: of the weights.

    Returns:
        The network.

    Raises:
        ValueError: if d is another number.

    Example:
        >>> data = torch.zeros(2, 64), torch.zeros(2).long()
        >>> convolutional_network(data, (3, 5))(data[0]).shape
        torch.Size([2, 10])
    """
    pixels = data[0].shape[1]
    if pixels not in SHAPES:
        raise ValueError(f"data[0] must have {', '.join(map(str, SHAPES))} columns, got {pixels}")
    generator = torch.Generator().manual_seed(seed)
    return convolutional(SHAPES[pixels], tuple(channels), 10, activation, generator=generator)


def chebyshev_data(degree: int, points: int = 20) -> Data:
    r"""Return evenly spaced points of $[-1, 1]$ and a Chebyshev polynomial there.

    $$T_k(\cos\phi) = \cos k \phi$$

    Args:
        degree: k >= 0.
        points: how many, at least 2.

    Returns:
        Inputs and targets, each (points, 1) float64.

    Example:
        >>> inputs, targets = chebyshev_data(2, 3)
        >>> inputs.flatten().tolist(), targets.flatten().round(decimals=9).tolist()
        ([-1.0, 0.0, 1.0], [1.0, -1.0, 1.0])
    """
    inputs = torch.linspace(-1, 1, points, dtype=torch.float64)[:, None]
    return inputs, torch.cos(degree * torch.acos(inputs))


def chebyshev_network(seed: int = 0) -> nn.Sequential:
    """Return the authors' toy network: 1-100-1, tanh, float64, Xavier with gains 1.9 and 1.

    Example:
        >>> sum(weights.numel() for weights in chebyshev_network().parameters())
        300
    """
    generator = torch.Generator().manual_seed(seed)
    options = {"initialisation": "xavier", "gains": (1.9, 1.0), "output_bias": False}
    return fully_connected(
        1, (100,), 1, "tanh", generator=generator, dtype=torch.float64, **options
    )


def shuffled(data: Data, seed: int) -> Data:
    """Return the data with its labels in random order: nothing is left to learn but the examples.

    Example:
        >>> data = torch.zeros(4, 1), torch.tensor([0, 1, 2, 3])
        >>> shuffled(data, 0)[1].sort().values.tolist()
        [0, 1, 2, 3]
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data[1]), generator=generator).to(data[1].device)
    return data[0], data[1][order]


def softmax_factor(logits: Tensor) -> Tensor:
    r"""Return the largest eigenvalue of the Hessian of cross-entropy in the logits.

    $$\lambda_{\max}\big( \operatorname{diag} p - p p^\intercal \big), \qquad
      p = \operatorname{softmax}(z)$$

    Args:
        logits: (..., K).

    Returns:
        (...) float64, between 0 and 1/2.

    Example:
        >>> float(softmax_factor(torch.zeros(2)))
        0.5
    """
    p = logits.detach().double().softmax(-1)
    return torch.linalg.eigvalsh(torch.diag_embed(p) - p[..., :, None] * p[..., None, :])[..., -1]


def gauss_newton(model: nn.Module, data: Data, loss: str) -> float:
    r"""Return the largest eigenvalue of the Gauss-Newton part of the Hessian.

    $$\frac1n \sum_{i=1}^n J_i^\intercal B_i J_i, \qquad B_i = \begin{cases} I & \text{square} \\
      \operatorname{diag} p_i - p_i p_i^\intercal & \text{cross-entropy} \end{cases}$$

    It is the sharpness, at no displacement, of the loss of the network linearised in its weights.

    Args:
        model: the network; it is left as it is.
        data: inputs and labels.
        loss: "square" or "cross-entropy".

    Returns:
        The eigenvalue.

    Example:
        >>> data = torch.tensor([[2.0]]), torch.tensor([[0.0]])
        >>> round(gauss_newton(nn.Linear(1, 1, bias=False), data, "square"), 5)
        4.0
    """
    with warnings.catch_warnings():  # PyTorch warns of itself when `jvp` is first called.
        warnings.simplefilter("ignore", FutureWarning)
        problem = training_problem(_Linearised(model), loss, data)
        return float(sharpness(problem.closures(), problem.parameters, tol=1e-3).values[0])


class _Linearised(nn.Module):
    """A network linearised in its weights, as a function of the displacement."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.call = lambda weights, inputs: functional_call(model, weights, (inputs,))
        self.weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
        self.moves = nn.ParameterList([torch.zeros_like(w) for w in self.weights.values()])

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs at the weights, and their first-order change."""
        moves = dict(zip(self.weights, self.moves, strict=True))
        function = partial(self.call, inputs=inputs)
        outputs, change = jvp(function, (self.weights,), (moves,))
        return outputs + change


def curvature_parts(
    model: nn.Module, data: Data, step_size: float, stops: Iterable[int]
) -> list[dict[str, float]]:
    """Train on cross-entropy and take its curvature apart at some steps.

    Args:
        model: the network at step 0; it is left as it is.
        data: inputs and labels.
        step_size: eta.
        stops: the steps.

    Returns:
        A row for each step: the loss, the largest eigenvalues of the Gauss-Newton part and of
        J'J/n (the same without the factor in the middle), and the mean of that factor.
    """
    walker, now, rows = copy.deepcopy(model), 0, []
    for stop in sorted(set(stops)):
        run = descend(walker, "cross-entropy", data, step_size, stop - now, every=())
        now = stop
        with torch.no_grad():
            factor = float(softmax_factor(walker(data[0])).mean())
        rows.append(
            {
                "step": stop,
                "loss": float(run.losses[-1]),
                "Gauss-Newton": gauss_newton(walker, data, "cross-entropy"),
                "without factor": gauss_newton(walker, data, "square"),
                "mean factor": factor,
            }
        )
    return rows


def oscillation(
    model: nn.Module, data: Data, step_size: float, steps: int, points: int = 32
) -> dict[str, float | Tensor]:
    r"""Look at gradient descent on the square loss along the top eigenvector u of one iterate.

    $$c_t = \langle g_t, u \rangle, \qquad
      k = \frac{\langle g(\theta - \eta c_0 u) - g(\theta),\, u \rangle}{-\eta c_0}, \qquad
      \bar k = \int_0^1 u^\intercal \nabla^2 L(\theta - s \eta c_0 u)\, u \; ds$$

    For a smooth loss the secant curvature k equals the mean curvature; where gradients jump
    between the two points, the Hessians miss what the jumps add.

    Args:
        model: the network at the first iterate; it ends with the last weights.
        data: inputs and labels, or targets.
        step_size: eta.
        steps: how many.
        points: of the midpoint rule for the integral.

    Returns:
        "S", the sharpness at the start; "components", (steps + 1,) float64, c; "secant", k; and
        "mean curvature".

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> seen = oscillation(model, (torch.tensor([[2.0]]), torch.tensor([[0.0]])), 0.4, 2)
        >>> round(seen["S"], 5), round(seen["secant"], 5), round(seen["mean curvature"], 5)
        (4.0, 4.0, 4.0)
    """
    problem = training_problem(model, "square", data)
    loss, parameters = problem.closures(), problem.parameters
    found = sharpness(loss, parameters)
    top, place = found.vectors[0], problem.flat()

    def slope(at: Tensor | None = None) -> tuple[float, list[Tensor]]:
        if at is not None:
            nn.utils.vector_to_parameters(at.to(parameters[0].dtype), parameters)
        pieces = problem.value_and_gradient()[1]
        return float(flatten(pieces).double() @ top), pieces

    first = slope()[0]
    move = -step_size * first
    secant, curvatures = (slope(place + move * top)[0] - first) / move, []
    for share in (torch.arange(points) + 0.5) / points:
        slope(place + float(share) * move * top)
        curvatures.append(
            hessian_vector_product(loss, parameters, top.to(parameters[0].dtype)).double() @ top
        )
    components, pieces = slope(place)
    components = [components]
    for _ in range(steps):
        with torch.no_grad():
            for weights, piece in zip(parameters, pieces, strict=True):
                weights -= step_size * piece
        value, pieces = slope()
        components.append(value)
    return {
        "S": float(found.values[0]),
        "components": torch.tensor(components, dtype=torch.float64),
        "secant": secant,
        "mean curvature": float(torch.stack(curvatures).mean()),
    }


def run_row(name: str, run: Descent) -> dict[str, float | str | int | None]:
    """Return what the chapter's table says about a run.

    Args:
        name: of the run.
        run: its records.

    Returns:
        Step size, threshold, first sharpness, crossing; mean and quantiles of 10 and 90 % of the
        ratio over the last third.

    Example:
        >>> data = torch.ones(1, 1), torch.zeros(1, 1)
        >>> run = descend(nn.Linear(1, 1, bias=False), "square", data, 1.0, 9, every=3)
        >>> run_row("one weight", run)["mean"]
        0.5
    """
    ratios = plateau(run)
    low, high = torch.quantile(ratios, torch.tensor([0.1, 0.9], dtype=ratios.dtype)).tolist()
    return {
        "run": name,
        "η": run.step_size,
        "edge": run.threshold,
        "S at start": float(run.sharpness[0, 0]),
        "crossing": run.crossing,
        "10 %": low,
        "mean": float(ratios.mean()),
        "90 %": high,
    }
