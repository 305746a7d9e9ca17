"""A state of a training run, with everything that a step from there needs, and its examples.

What Tables 1 to 3 and Appendix E.4 measure starts from such states: the same weights, optimiser
history and random streams for every direction.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from lib.distill.auxiliary import split_head
from lib.distill.evaluation import evaluation_mode
from lib.distill.examples import Examples
from lib.distill.order import batch_at
from lib.distill.settings import TrainingSettings
from lib.distill.trainer import Trainer

_AT_ONCE = 256  # examples, where nothing is differentiated


@dataclass(frozen=True)
class RunState:
    """A point of a training run, with everything that a step from there needs.

    Attributes:
        student: a network of the run's form; its own weights do not matter.
        saved: weights, buffers, optimiser and scaler, as `Trainer.state` returns them.
        settings: of the run.
        iteration: steps taken before.
        examples: n of them, that the run trains on.
        teacher: (V, n, K), logits.
    """

    student: nn.Module = field(repr=False)
    saved: Mapping[str, Tensor] = field(repr=False)
    settings: TrainingSettings
    iteration: int
    examples: Examples = field(repr=False)
    teacher: Tensor = field(repr=False)

    def trainer(self, method: str, steps: int = 1, learning_rate: float | None = None) -> Trainer:
        """Return a trainer of a method that goes on from here.

        Args:
            method: one of `OBJECTIVES`, with its default options.
            steps: that it may take, >= 1.
            learning_rate: a constant rate from here on; None for the run's own schedule.

        Returns:
            The trainer; it shares nothing with this state that it changes.
        """
        changes = {"method": method, "options": {}, "iterations": self.iteration + steps}
        if learning_rate is None:
            changes["iterations"] = max(changes["iterations"], self.settings.iterations)
        else:
            changes |= {"learning_rate": learning_rate, "schedule": "constant", "warmup": 0}
        settings = replace(self.settings, observe_every=None, **changes)
        student = copy.deepcopy(self.student)
        trainer = Trainer(student, self.examples, settings, teacher=self.teacher)
        trainer.load_state(dict(self.saved))
        return trainer

    def network(self) -> nn.Module:
        """Return the student with the weights of this state, in evaluation mode."""
        return self.trainer("ce").student.eval()


def fixed_batches(
    pool: Tensor, views: int, size: int, count: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Return batches of examples in a fixed random order.

    No example comes twice before every one has come once.

    **Source**: ours; Yuan & Tao, Appendices E.2 to E.4 use fixed batches.

    Args:
        pool: (m,) int64, the numbers of the examples to draw from.
        views: V, of each example.
        size: N, examples of a batch.
        count: B, number of batches.
        seed: integer >= 0, of the order.

    Returns:
        Numbers and views of the examples, (B, N) int64 each.

    Raises:
        ValueError: if an argument is too small.

    Example:
        >>> index, view = fixed_batches(torch.tensor([5, 7, 9, 11]), 1, 2, 2, seed=0)
        >>> index.flatten().sort().values, view.unique()
        (tensor([ 5,  7,  9, 11]), tensor([0]))
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"count must be an integer >= 1, got {count!r}")
    drawn = [batch_at(len(pool), views, size, k, seed) for k in range(count)]
    return pool[torch.stack([b.index for b in drawn])], torch.stack([b.view for b in drawn])


def split_pool(n: int, first: int, seed: int) -> tuple[Tensor, Tensor]:
    """Split the numbers of n examples at random.

    **Source**: Yuan & Tao, Appendix E.4: observed images are disjoint from updates.

    Args:
        n: number of examples.
        first: how many go into the first part, in [0, n].
        seed: integer >= 0.

    Returns:
        Both parts, int64.

    Raises:
        ValueError: if `first` is no integer or outside its range.

    Example:
        >>> [len(part) for part in split_pool(10, 3, seed=0)]
        [3, 7]
    """
    if not isinstance(first, int) or not 0 <= first <= n:
        raise ValueError(f"first must be an integer in [0, {n}], got {first!r}")
    order = batch_at(n, 1, n, 0, seed).index
    return order[:first], order[first:]


def outputs(student: nn.Module, examples: Examples, index: Tensor, view: Tensor) -> Tensor:
    """Return the logits of some examples in evaluation mode, without gradient, on the CPU.

    **Source**: ours.

    Args:
        student: the network.
        examples: of which some are taken.
        index: (...) int64, which.
        view: (...) int64, in which views.

    Returns:
        (..., K).

    Example:
        >>> from lib.distill.examples import TensorExamples
        >>> examples = TensorExamples(torch.eye(2), torch.tensor([0, 1]))
        >>> outputs(nn.Identity(), examples, torch.tensor([[1]]), torch.tensor([[0]]))
        tensor([[[0., 1.]]])
    """
    return _in_parts(student, student, examples, index, view)


def head_problem(
    student: nn.Module, examples: Examples, index: Tensor, view: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return frozen features and the classification head of a student, for `exact_head_steps`.

    $$Z = X A$$

    The features are computed in the network's own precision; a last column of ones absorbs the
    bias.

    **Source**: Yuan & Tao, Appendices D.1 and E.2.

    Args:
        student: a network of features and a linear head.
        examples: of which some are taken.
        index: (..., N) int64, which.
        view: (..., N) int64, in which views.

    Returns:
        X (..., N, D) and A (D, K), float64, on the CPU.

    Raises:
        ValueError: if the network has no head of its own.

    Example:
        >>> from lib.distill.examples import TensorExamples
        >>> examples = TensorExamples(torch.eye(2), torch.tensor([0, 1]))
        >>> student = nn.Sequential(nn.Linear(2, 3))
        >>> X, A = head_problem(student, examples, torch.tensor([0]), torch.tensor([0]))
        >>> X, A.shape
        (tensor([[1., 0., 1.]], dtype=torch.float64), torch.Size([3, 3]))
    """
    features, head = split_head(student)
    found = _in_parts(student, features, examples, index, view).to(torch.float64)
    matrix = head.weight.detach().T.to("cpu", torch.float64)
    bias = matrix.new_zeros(1, matrix.shape[1])
    if head.bias is not None:
        bias = head.bias.detach().to("cpu", torch.float64)[None]
    return torch.cat([found, torch.ones_like(found[..., :1])], -1), torch.cat([matrix, bias])


def _in_parts(
    student: nn.Module,
    function: Callable[..., Tensor],
    examples: Examples,
    index: Tensor,
    view: Tensor,
) -> Tensor:
    """A function of the network's inputs for some examples, in evaluation mode, on the CPU."""
    first = next(student.parameters(), None)
    parts = []
    pairs = zip(index.flatten().split(_AT_ONCE), view.flatten().split(_AT_ONCE), strict=True)
    with evaluation_mode(student), torch.no_grad():
        for some, seen in pairs:
            parts.append(function(*_placed(examples.inputs(some, seen), first)).cpu())
    rows = torch.cat(parts)
    return rows.reshape(*index.shape, rows.shape[-1])


def _placed(inputs: tuple[Tensor, ...], like: Tensor | None) -> tuple[Tensor, ...]:
    """Inputs on the device of the weights, numbers with a point in their dtype."""
    if like is None:
        return inputs
    return tuple(x.to(like) if x.is_floating_point() else x.to(like.device) for x in inputs)
