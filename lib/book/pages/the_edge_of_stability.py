"""What the chapter "The edge of stability" computes beside its runs: windows, kicks, subsets."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lib.book.data_used import use_data
from lib.book.pages.stability_runs import digits_data
from lib.datasets import load_cifar10, standardise
from lib.models.networks import fully_connected
from lib.stability import Descent, descend, sharpness
from lib.stability.training import flatten, training_problem

Data = tuple[Tensor, Tensor]
Progress = Callable[[range], Iterable[int]]


def training_set(name: str, n: int) -> Data:
    """Return the first n images of a data set, every pixel standardised over these n.

    Args:
        name: "digits" or "cifar10".
        n: how many.

    Returns:
        Inputs (n, d) float32 and labels (n,) int64.

    Raises:
        ValueError: for another name.
        NotHereError: if CIFAR-10 is asked for and is not there.

    Example:
        >>> inputs, labels = training_set("digits", 20)
        >>> inputs.shape, len(labels)
        (torch.Size([20, 64]), 20)
    """
    if name == "digits":
        return digits_data(n)
    if name != "cifar10":
        raise ValueError(f"name must be 'digits' or 'cifar10', got {name!r}")
    found = load_cifar10(n, quiet=True)
    use_data(name, f"the first {n:,}, {found.source}", next(iter(found.sha256.values())))
    return standardise(found.images).flatten(1), found.labels


def tanh_network(data: Data, widths: Sequence[int], seed: int) -> nn.Sequential:
    """Return a fully connected tanh network with ten outputs for a training set.

    Args:
        data: inputs (n, d) and labels.
        widths: of the hidden layers.
        seed: of the weights.

    Returns:
        The network, on the device of the inputs.

    Example:
        >>> tanh_network((torch.zeros(3, 5), torch.zeros(3).long()), (4,), 0)[-1].out_features
        10
    """
    generator = torch.Generator().manual_seed(seed)
    model = fully_connected(data[0].shape[1], tuple(widths), 10, "tanh", generator=generator)
    return model.to(data[0].device)


def snapshots(
    model: nn.Module, data: Data, step_size: float, stops: Iterable[int]
) -> dict[int, nn.Module]:
    """Return copies of a network at some steps of gradient descent on the square loss.

    Args:
        model: the network at step 0; it is left as it is.
        data: inputs and labels, or targets.
        step_size: eta.
        stops: the steps.

    Returns:
        Networks by step, in increasing order.

    Example:
        >>> data = training_set("digits", 20)
        >>> list(snapshots(tanh_network(data, (4,), 0), data, 0.1, (3, 0)))
        [0, 3]
    """
    walker, now, found = copy.deepcopy(model), 0, {}
    for stop in sorted(set(stops)):
        descend(walker, "square", data, step_size, stop - now, every=())
        found[stop], now = copy.deepcopy(walker), stop
    return found


def top_eigenpair(
    model: nn.Module, data: Data, start: Tensor | None = None
) -> tuple[float, Tensor]:
    """Return the sharpness of the square loss at a network, and its eigenvector.

    Args:
        model: the network.
        data: inputs and labels, or targets.
        start: (P,) a vector near the eigenvector, or None.

    Returns:
        The sharpness, and a unit vector (P,) in float64.

    Example:
        >>> data = torch.tensor([[2.0]]), torch.tensor([[0.0]])
        >>> round(top_eigenpair(nn.Linear(1, 1, bias=False), data)[0], 5)
        4.0
    """
    problem = training_problem(model, "square", data)
    found = sharpness(problem.closures(), problem.parameters, start=start)
    return float(found.values[0]), found.vectors[0]


def lowest_curvature(model: nn.Module, data: Data) -> float:
    """Return the smallest eigenvalue of the Hessian of the square loss at a network.

    Args:
        model: the network.
        data: inputs and labels, or targets.

    Returns:
        The eigenvalue.

    Example:
        >>> data = torch.tensor([[2.0]]), torch.tensor([[0.0]])
        >>> round(lowest_curvature(nn.Linear(1, 1, bias=False), data), 5)
        4.0
    """
    problem = training_problem(model, "square", data)
    found = sharpness(lambda: -problem.part(0), problem.parameters)
    return -float(found.values[0])


def kicked(model: nn.Module, direction: Tensor, size: float) -> nn.Module:
    """Return a copy of a network whose weights are moved along a direction.

    Args:
        model: the network; it is left as it is.
        direction: (P,) a vector.
        size: how many times the direction is added.

    Returns:
        The copy.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> moved = kicked(model, torch.ones(1), 0.5)
        >>> round(float((moved.weight - model.weight).detach()), 6)
        0.5
    """
    moved = copy.deepcopy(model)
    parameters = list(moved.parameters())
    place = flatten(parameters).double() + size * direction
    nn.utils.vector_to_parameters(place.to(parameters[0].dtype), parameters)
    return moved


@dataclass(frozen=True)
class Window:
    r"""Gradient descent in a short window, looked at at every step.

    Attributes:
        losses: (T,) the loss at every iterate.
        sharpness: (T,) the sharpness there.
        moves: (T,) the step's component along the top eigenvector of its own iterate,
            $\langle \theta_{t+1} - \theta_t, u_t \rangle$, with $u_t$ turned so that
            $\langle u_t, u_{t-1} \rangle > 0$.
    """

    losses: Tensor
    sharpness: Tensor
    moves: Tensor

    @property
    def flips(self) -> Tensor:
        """(T - 1,) whether a component has another sign than the one before."""
        return self.moves[1:] * self.moves[:-1] < 0


def window(
    model: nn.Module, data: Data, step_size: float, steps: int, progress: Progress | None = None
) -> Window:
    """Follow gradient descent on the square loss for some steps, the eigenvector at every one.

    `lib.stability.onset` keeps the eigenvector of the first iterate. This one follows it: while
    the oscillation is tiny, a fixed vector sees the drift of the weights and nothing else.

    Args:
        model: the network where the window starts; it is left as it is.
        data: inputs and labels, or targets.
        step_size: eta.
        steps: T, how many.
        progress: wraps the range of steps.

    Returns:
        The window.

    Example:
        >>> model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        >>> data = torch.tensor([[2.0]]).double(), torch.tensor([[0.0]]).double()
        >>> seen = window(model, data, 0.75, 3)
        >>> [round(value, 9) for value in seen.sharpness.tolist()], seen.flips.tolist()
        ([4.0, 4.0, 4.0], [True, True])
    """
    walker, top, rows = copy.deepcopy(model), None, []
    problem, walk = training_problem(walker, "square", data), range(steps)
    for _ in walk if progress is None else progress(walk):
        value, vector = top_eigenpair(walker, data, top)
        top = vector if top is None or float(vector @ top) > 0 else -vector
        loss, gradient, _ = problem.value_and_gradient()
        rows.append((loss, value, -step_size * float(flatten(gradient).double() @ top)))
        with torch.no_grad():
            for parameter, piece in zip(problem.parameters, gradient, strict=True):
                parameter.sub_(piece, alpha=step_size)
    return Window(*torch.tensor(rows, dtype=torch.float64).T)


def slope_at_crossing(run: Descent) -> float:
    """Return how fast the sharpness rises when it crosses the threshold, per unit of time.

    Args:
        run: records with a crossing after the first measurement.

    Returns:
        The difference quotient of the last measurement below and the first above.

    Raises:
        ValueError: if the run has no crossing, or begins above the threshold.

    Example:
        >>> data = torch.tensor([[2.0]]), torch.tensor([[0.0]])
        >>> slope_at_crossing(descend(nn.Linear(1, 1, bias=False), "square", data, 0.1, 3))
        Traceback (most recent call last):
        ValueError: run must cross its threshold after the first measurement, got crossing None
    """
    above = (run.ratio > 1).nonzero()
    if not len(above) or not int(above[0, 0]):
        raise ValueError(
            f"run must cross its threshold after the first measurement, got crossing {run.crossing}"
        )
    here = int(above[0, 0])
    rise = run.sharpness[here, 0] - run.sharpness[here - 1, 0]
    return float(rise / (run.times[here] - run.times[here - 1]))


def first_peak(ratios: Tensor) -> float:
    """Return the first local maximum above 1, or the last value where there is none.

    Args:
        ratios: (m,) in order.

    Returns:
        The value.

    Example:
        >>> first_peak(torch.tensor([0.5, 0.9, 0.8, 1.2, 1.1, 1.3]))
        1.2000000476837158
    """
    falls = (ratios[:-1] > 1) & (ratios[1:] < ratios[:-1])
    return float(ratios[int(falls.nonzero()[0, 0])] if falls.any() else ratios[-1])


def falling_share(losses: Tensor, lengths: Sequence[int]) -> list[float]:
    r"""Return the share of windows of some lengths over which a loss falls.

    $$\frac{1}{T - w + 1}\, \#\{ t : L_{t + w} < L_t \}$$

    Args:
        losses: (T + 1,) in order.
        lengths: w, each between 1 and T.

    Returns:
        One share for each length.

    Example:
        >>> falling_share(torch.tensor([4.0, 5.0, 3.0, 4.0]), (1, 2))
        [0.3333333333333333, 1.0]
    """
    return [float((losses[w:] < losses[:-w]).double().mean()) for w in lengths]


def subset_ratios(
    model: nn.Module, data: Data, size: int, draws: int, generator: torch.Generator
) -> Tensor:
    """Return sharpness on random subsets of the training set over sharpness on all of it.

    Args:
        model: the network.
        data: inputs (n, d) and labels.
        size: examples in a subset, drawn without replacement.
        draws: how many subsets.
        generator: draws them.

    Returns:
        (draws,) float64.

    Example:
        >>> data = torch.ones(4, 1), torch.zeros(4).long()
        >>> ratios = subset_ratios(nn.Linear(1, 1), data, 2, 3, torch.Generator())
        >>> bool((ratios - 1).abs().max() < 1e-5)
        True
    """
    whole, top = top_eigenpair(model, data)
    found = []
    for _ in range(draws):
        chosen = torch.randperm(len(data[0]), generator=generator)[:size]
        found.append(top_eigenpair(model, (data[0][chosen], data[1][chosen]), top)[0] / whole)
    return torch.tensor(found, dtype=torch.float64)


def thinned(values: Tensor, most: int = 200) -> list[float]:
    """Return at most that many values, evenly spaced, the first and the last among them.

    Args:
        values: (T,).
        most: at least 2.

    Returns:
        A list.

    Example:
        >>> thinned(torch.arange(7.0), 3)
        [0.0, 3.0, 6.0]
    """
    places = torch.linspace(0, len(values) - 1, min(most, len(values)), dtype=torch.float64)
    return values[places.round().long()].tolist()


def draw_shares(ax, values: Tensor, label: str, **look) -> None:
    """Draw the share of values at or below each value, as a staircase from 0 to 1.

    Args:
        ax: where to draw.
        values: (m,).
        label: the legend's text.
        **look: handed to `ax.step`.
    """
    ordered = values.sort().values
    shares = torch.arange(len(ordered) + 1) / len(ordered)
    ax.step(torch.cat([ordered[:1], ordered]), shares, where="post", label=label, **look)
