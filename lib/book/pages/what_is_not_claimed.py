"""What the chapter "What is not claimed" computes: rescaled layers, a linear model, many runs."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lib.book.data_used import use_data
from lib.book.pages.stability_runs import Data, digits_network
from lib.book.progress import track
from lib.datasets import load_digits, standardise
from lib.stability import descend, sharpness
from lib.stability.training import training_problem


def rescaled(model: nn.Sequential, factor: float) -> nn.Sequential:
    r"""Return a copy with the first linear layer multiplied and the second one divided.

    $$W_1 \to c W_1, \quad b_1 \to c b_1, \quad W_2 \to W_2 / c$$

    A ReLU between the two passes a factor $c > 0$ on, so that the copy computes the same function.

    Args:
        model: with two linear layers or more; it is left as it is.
        factor: c > 0.

    Returns:
        The copy.

    Raises:
        ValueError: if the factor is not above 0, or the model has fewer linear layers.

    Example:
        >>> model = digits_network((5,), "relu", dtype=torch.float64)
        >>> x = torch.ones(1, 64, dtype=torch.float64)
        >>> bool((rescaled(model, 8.0)(x) == model(x)).all())
        True
    """
    if not factor > 0:
        raise ValueError(f"factor must be above 0, got {factor!r}")
    copied = copy.deepcopy(model)
    linear = [layer for layer in copied if isinstance(layer, nn.Linear)]
    if len(linear) < 2:
        raise ValueError(f"model must have two linear layers or more, got {len(linear)}")
    with torch.no_grad():
        linear[0].weight *= factor
        linear[0].bias *= factor
        linear[1].weight /= factor
    return copied


def rescaling_row(model: nn.Sequential, data: Data, factor: float) -> dict[str, float]:
    """Return what changes and what does not when two layers are rescaled.

    Args:
        model: a ReLU network.
        data: inputs and labels.
        factor: c > 0.

    Returns:
        The factor, the sharpness of the square loss, the loss, and the largest change of an output.

    Example:
        >>> model = digits_network((5,), "relu", dtype=torch.float64)
        >>> data = torch.ones(2, 64, dtype=torch.float64), torch.tensor([0, 1])
        >>> rescaling_row(model, data, 1.0)["largest change"]
        0.0
    """
    moved = rescaled(model, factor)
    problem = training_problem(moved, "square", data)
    with torch.no_grad():
        change = (moved(data[0]) - model(data[0])).abs().max()
    return {
        "factor c": factor,
        "sharpness": float(sharpness(problem.closures(), problem.parameters).values[0]),
        "loss": problem.value_and_gradient()[0],
        "largest change": float(change),
    }


def exponential_descent(signed: Tensor, step_size: float, steps: int) -> tuple[Tensor, Tensor]:
    r"""Run gradient descent on a linear predictor with exponential loss, from zero.

    $$L(\beta) = \frac1N \sum_n e^{-\langle a_n, \beta \rangle}, \qquad S = \lambda_{\max}\Big(
      \frac1N \sum_n e^{-\langle a_n, \beta \rangle} a_n a_n^\intercal \Big)$$

    Args:
        signed: (N, D) signed rows, float64.
        step_size: eta > 0.
        steps: how many.

    Returns:
        Losses and sharpness, each (steps + 1,).

    Example:
        >>> loss, sharp = exponential_descent(torch.tensor([[2.0]], dtype=torch.float64), 0.1, 0)
        >>> loss.tolist(), sharp.tolist()
        ([1.0], [4.0])
    """
    predictor, losses, found = torch.zeros_like(signed[0]), [], []
    for _ in range(steps + 1):
        weights = (-signed @ predictor).exp() / len(signed)
        losses.append(weights.sum())
        found.append(torch.linalg.eigvalsh(signed.T @ (weights[:, None] * signed))[-1])
        predictor = predictor + step_size * signed.T @ weights
    return torch.stack(losses), torch.stack(found)


def split_digits(n: int) -> tuple[Data, Data]:
    """Return the first n digits for training and all others for testing.

    Every pixel is standardised over the first n, the other digits' pixels by the same numbers.

    Args:
        n: how many to train on, 2 to 1,796.

    Returns:
        Inputs and labels for training, and for testing.

    Example:
        >>> train, test = split_digits(500)
        >>> len(train[1]), len(test[1])
        (500, 1297)
    """
    found = load_digits(quiet=True)
    use_data("digits", f"all 1,797, {found.source}", next(iter(found.sha256.values())))
    inputs, labels = standardise(found.images, found.images[:n]).flatten(1), found.labels
    return (inputs[:n], labels[:n]), (inputs[n:], labels[n:])


def final_accuracies(
    data: tuple[Data, Data],
    step_sizes: Sequence[float],
    seeds: Sequence[int],
    goal_loss: float,
    width: int = 30,
    most_steps: int = 20000,
) -> tuple[Tensor, Tensor]:
    """Train tanh networks to one loss with several steps and seeds, and test them.

    Args:
        data: for training and for testing.
        step_sizes: eta.
        seeds: of the weights; the same ones for each step size.
        goal_loss: the training loss at which a run ends.
        width: units in each of the two hidden layers.
        most_steps: a run that has not ended by then is an error.

    Returns:
        Test accuracies and ratios of sharpness to 2/eta at the end, each (seeds, step sizes).

    Raises:
        RuntimeError: if a run does not reach the goal.
    """
    accuracies, ratios = [], []
    grid = [(seed, eta) for seed in seeds for eta in step_sizes]
    (inside, outside) = data
    for seed, eta in track(grid, "networks"):
        model = digits_network((width, width), seed=seed)
        run = descend(model, "square", inside, eta, most_steps, every=(), goal_loss=goal_loss)
        if run.ended != "goal":
            raise RuntimeError(f"seed {seed}, step size {eta}: loss {float(run.losses[-1]):g}")
        with torch.no_grad():
            right = model(outside[0]).argmax(1) == outside[1]
        accuracies.append(float(right.double().mean()))
        ratios.append(float(run.ratio[-1]))
    shape = (len(seeds), len(step_sizes))
    return torch.tensor(accuracies).reshape(shape), torch.tensor(ratios).reshape(shape)
