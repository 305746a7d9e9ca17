"""Gradient descent to the limit direction, with steps that grow as the loss vanishes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lib.implicit.checks import choice, count, positive
from lib.implicit.losses import log_slopes
from lib.implicit.networks import Linearisation
from lib.implicit.packing import Weights, pack
from lib.implicit.training import TrainingProblem, Trajectory, training_problem

RULES = ("normalised", "plain")


def descend(
    network: object,
    inputs: Tensor,
    labels: Tensor,
    steps: int,
    generator: torch.Generator | None = None,
    scale: float = 0.01,
    loss: str = "exponential",
    rule: str = "normalised",
    *,
    step_size: float = 0.02,
    weights: Weights | None = None,
    batch: tuple[int, ...] = (),
    records: int = 60,
    on_record: Callable[[int, int], None] | None = None,
) -> Trajectory:
    r"""Train a network on separable data by gradient descent and record where its predictor points.

    $$w \leftarrow w - \eta\, \nabla_w \mathcal L(w), \qquad
      -\nabla_w \mathcal L = P'(w)^\top \sum_n (-\ell'(m_n))\, a_n$$

    With the rule "plain" $\eta$ is `step_size`; the direction then converges like 1 / log t. With
    "normalised" it is the reciprocal of a bound on the curvature of the loss,

    $$\eta = \frac{1}{S(w) \sum_n (-\ell'(m_n))}, \qquad S(w) = \max_n \|P'(w)^\top a_n\|^2 +
      \text{curvature}(w) \max_n \|x_n\|,$$

    so the steps grow as the loss vanishes, and $\|w\|^L$ grows linearly in their number. Sums of
    exponentials are never formed.

    **Source**: Gunasekar et al. (2018), Section 2, Eq. 7, whose theorems ask for bounded steps
    (dense) or steps below a local Lipschitz constant (convolutional); normalising by the loss
    follows Nacson et al. (2019). The bound S is derived from |l''| <= |l'|.

    Args:
        network: `DenseNetwork`, `ConvolutionalNetwork`, `DiagonalNetwork` or `HomogeneousNetwork`.
        inputs: (..., N, D), rows are examples; leading dimensions are data sets.
        labels: (..., N), -1 or +1.
        steps: number of gradient steps, >= 1.
        generator: draws the initial weights; may be None when `weights` is given.
        scale: standard deviation of the initial weights.
        loss: "exponential" or "logistic", summed over the examples.
        rule: "normalised" or "plain".
        step_size: $\eta$ of the rule "plain".
        weights: initial weights; None to draw them.
        batch: shape of a batch of independent starts for every data set.
        records: about how many log-spaced steps to record; the first and last step always are.
        on_record: called with the step and the number of steps at every record, to show progress.

    Returns:
        A `Trajectory`; its leading dimensions are (*batch, ...).

    Raises:
        ValueError: if an argument does not fit.
        FloatingPointError: if the weights become infinite or NaN (rule "plain", step too large).

    Example:
        >>> from lib.implicit.networks import DenseNetwork
        >>> inputs, labels = torch.tensor([[3.0, 4.0]]), torch.tensor([-1])
        >>> run = descend(DenseNetwork(1), inputs, labels, 1000, torch.Generator())
        >>> run.direction[-1]  # -x / |x|
        tensor([-0.6000, -0.8000], dtype=torch.float64)
    """
    steps, records = count("steps", steps), count("records", records)
    choice("rule", rule, RULES)
    step_size = positive("step_size", step_size)
    problem = training_problem(network, inputs, labels, loss, weights, generator, scale, batch)
    size = _step_rule(problem, rule, step_size)
    wanted = torch.logspace(0, 1, records, base=float(steps)).round().long().unique().tolist()
    flat, done, kept = problem.start, 0, []
    for stop in wanted:
        with torch.no_grad():
            for _ in range(stop - done):
                flat = _one_step(problem, flat, size)
        done = stop
        if not bool(torch.isfinite(flat).all()):
            raise FloatingPointError(
                f"the weights became infinite or NaN within {stop} steps; use a step_size below "
                f'{step_size:g} or rule="normalised"'
            )
        kept.append(problem.snapshot(flat))
        if on_record is not None:
            on_record(stop, steps)
    fields = {
        name: torch.stack([moment[name] for moment in kept], problem.start.ndim - 1)
        for name in kept[0]
    }
    return Trajectory(step=torch.tensor(wanted), weights=problem.unpack(flat), **fields)


def _one_step(problem: TrainingProblem, flat: Tensor, size: Callable) -> Tensor:
    """Weights after one gradient step whose length `size` says."""
    weights = problem.unpack(flat)
    network = problem.network.linearise(weights)
    margins = (problem.rows @ network.predictor.unsqueeze(-1)).squeeze(-1)
    slopes = log_slopes(margins, problem.loss)
    pull = (torch.softmax(slopes, -1).unsqueeze(-2) @ problem.rows).squeeze(-2)
    gradient = pack(network.adjoint(pull))
    return flat + size(network, weights, slopes).unsqueeze(-1) * gradient


def _step_rule(problem: TrainingProblem, rule: str, step_size: float) -> Callable:
    """The factor on the gradient whose example weights sum to one."""
    if rule == "plain":
        return lambda network, weights, slopes: step_size * torch.logsumexp(slopes, -1).exp()
    longest = torch.linalg.vector_norm(problem.rows, dim=-1).amax(-1)

    def normalised(network: Linearisation, weights: Weights, slopes: Tensor) -> Tensor:
        gram = network.gram(problem.rows)
        steepest = torch.diagonal(gram, dim1=-2, dim2=-1).amax(-1)
        bound = steepest + problem.network.curvature(weights) * longest
        return torch.where(bound > 0, 1 / bound, 0.0)

    return normalised
