"""Many small students at once: one for each update rule and seed, trained side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lib.book.progress import track
from lib.distill.order import batch_at
from lib.tpkd import conditional_kl, directions, is_blocked, margins, project_onto_safe_cone

Weights = list[Tensor]


@dataclass(frozen=True)
class Parts:
    r"""What the update rules of Table 5 are made of, at one or many outputs.

    Attributes:
        label: (..., K), h.
        conditional: (..., K), u.
        corrected: (..., K), d.
        full: (..., K), the projection of p - t on the safe cone.
        teacher_doubt: (..., 1), $1 - \tau$.
        free: (..., 1), 0 where the output is blocked, else 1.
    """

    label: Tensor
    conditional: Tensor
    corrected: Tensor
    full: Tensor
    teacher_doubt: Tensor
    free: Tensor


Rule = Callable[[Parts], Tensor]
TABLE_5: dict[str, Rule] = {
    "ce": lambda part: part.label,
    "tpkd-no-label": lambda part: part.corrected / 2,
    "tpkd-full-kl": lambda part: part.label + part.full / 2,
    "tpkd-no-projection": lambda part: part.label + part.conditional / 2,
    "tpkd": lambda part: part.label + part.corrected / 2,
}
STEPPED = ("ce", "tpkd-no-projection", "tpkd")  # what `lowered_margins` compares
WEAKENED: dict[str, Rule] = {
    "blocked off": lambda part: part.label + part.free * part.corrected / 2,
    "doubt": lambda part: part.label + part.teacher_doubt * part.corrected / 2,
    "both": lambda part: part.label + part.free * part.teacher_doubt * part.corrected / 2,
}  # TPKD without its increment in blocked states, with the factor 1 - tau, with both


@dataclass(frozen=True)
class Stack:
    """Students of R rules and S seeds, recorded at T numbers of steps.

    Attributes:
        rules: names.
        steps: (T,) int64.
        accuracy: (T, R, S), percent of the test examples.
        label_loss: (T, R, S), mean over the training examples, in nats.
        conditional_kl: (T, R, S), likewise.
        blocked: (T, R, S), share of the training examples.
        logits: (T, R, S, n, K), of the training examples.
        weights: T lists of tensors (R, S, ...).
    """

    rules: tuple[str, ...]
    steps: Tensor
    accuracy: Tensor
    label_loss: Tensor
    conditional_kl: Tensor
    blocked: Tensor
    logits: Tensor
    weights: list[Weights]

    def at(self, rule: str) -> int:
        """Return the place of a rule in the second dimension."""
        return self.rules.index(rule)


def split(student: Tensor, teacher: Tensor, labels: Tensor) -> Parts:
    """Return the parts of all update rules.

    Args:
        student: (..., K) logits.
        teacher: (..., K) logits, of the same shape.
        labels: (...).

    Returns:
        The parts.

    Example:
        >>> p, t = torch.tensor([0.9, 0.07, 0.03]), torch.tensor([0.4, 0.25, 0.35])
        >>> found = split(p.log(), t.log(), torch.tensor(0))
        >>> found.full.abs().max().item(), found.free.item()
        (0.0, 0.0)
    """
    found = directions(student, teacher, labels)
    t = teacher.softmax(-1)
    full = project_onto_safe_cone(student.softmax(-1) - t, labels)
    doubt = 1 - t.gather(-1, labels.unsqueeze(-1))
    free = (~is_blocked(student, teacher, labels)).to(t).unsqueeze(-1)
    return Parts(found.label, found.conditional, found.corrected, full, doubt, free)


def stack_students(students: Sequence[nn.Module], rules: int) -> Weights:
    """Copy perceptrons with ReLU, one a seed, for every rule.

    Args:
        students: S networks of the same sizes, of linear layers with ReLU between them.
        rules: R.

    Returns:
        Weight (R, S, in, out) and bias (R, S, 1, out) of every layer, in turn.

    Example:
        >>> [w.shape for w in stack_students([nn.Linear(4, 3), nn.Linear(4, 3)], 5)]
        [torch.Size([5, 2, 4, 3]), torch.Size([5, 2, 1, 3])]
    """
    layers = [[x for x in net.modules() if isinstance(x, nn.Linear)] for net in students]
    weights = []
    for alike in zip(*layers, strict=True):
        weights.append(torch.stack([layer.weight.detach().T for layer in alike]))
        weights.append(torch.stack([layer.bias.detach()[None] for layer in alike]))
    return [w.expand(rules, *w.shape).clone() for w in weights]


def outputs(weights: Weights, inputs: Tensor) -> Tensor:
    """Pass inputs through all students.

    Args:
        weights: as from `stack_students`.
        inputs: (..., B, in), broadcast against (R, S).

    Returns:
        (R, S, B, K) logits.

    Example:
        >>> weights = stack_students([nn.Linear(4, 3), nn.Linear(4, 3)], 5)
        >>> outputs(weights, torch.zeros(7, 4)).shape
        torch.Size([5, 2, 7, 3])
    """
    for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        inputs = torch.relu(inputs @ weight + bias)
    return inputs @ weights[-2] + weights[-1]


def train_stack(
    rules: Mapping[str, Rule],
    students: Sequence[nn.Module],
    seeds: Sequence[int],
    examples: tuple[Tensor, Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    steps: int,
    *,
    learning_rate: float = 0.02,
    record: Sequence[int] = (),
) -> Stack:
    """Train a student for every rule and seed: SGD with momentum 0.9, batches of 64, decay 1e-4.

    Start and order of the data are those of `lib.distill.train` for the same seeds.

    Args:
        rules: name -> update direction of the logits.
        students: S networks, one a seed, before training; they stay as they are.
        seeds: S.
        examples: inputs (n, D), the teacher's logits (n, K), labels (n,) int64.
        test: inputs (m, D), labels (m,).
        steps: number of steps.
        learning_rate: constant.
        record: numbers of steps at which to measure; the last one always is.

    Returns:
        What was measured.
    """
    inputs, teacher, labels = examples
    weights = [w.requires_grad_() for w in stack_students(students, len(rules))]
    optimiser = torch.optim.SGD(weights, learning_rate, momentum=0.9, weight_decay=1e-4)
    times = sorted({*record, steps})
    rows = [_measure(weights, examples, test)] if 0 in times else []
    for step in track(range(steps), f"steps of {len(rules)} x {len(seeds)} students"):
        index = torch.stack([batch_at(len(labels), 1, 64, step, seed).index for seed in seeds])
        _step(rules, optimiser, weights, (inputs[index], teacher[index], labels[index]))
        if step + 1 in times:
            rows.append(_measure(weights, examples, test))
    *measured, kept = zip(*rows, strict=True)
    return Stack(tuple(rules), torch.tensor(times), *map(torch.stack, measured), list(kept))


def lowered_margins(
    weights: Weights, batch: tuple[Tensor, Tensor, Tensor], learning_rate: float
) -> tuple[Tensor, Tensor]:
    """Take one plain gradient step by each of `STEPPED` from the same weights; compare margins.

    Args:
        weights: (R, S, ...) of the students, as from `stack_students`; they stay as they are.
        batch: inputs (B, D), the teacher's logits (B, K), labels (B,).
        learning_rate: of the step.

    Returns:
        Shares of all margins of the batch, each (3, R, S), one for each of `STEPPED`: of those
        lower than after the label step, and of those lower than before the step. Differences
        below 1e-6 do not count.
    """
    inputs, teacher, labels = batch
    z = outputs(weights, inputs)
    t, y = teacher.expand_as(z), labels.expand(z.shape[:-1])
    wrong = torch.ones_like(z, dtype=torch.bool).scatter(-1, y.unsqueeze(-1), False)
    before, after = margins(z, y), []
    for name in STEPPED:
        leaves = [w.clone().requires_grad_() for w in weights]
        z = outputs(leaves, inputs)
        direction = TABLE_5[name](split(z.detach(), t, y))
        gradients = torch.autograd.grad((direction * z).sum() / len(labels), leaves)
        moved = [w - learning_rate * g for w, g in zip(weights, gradients, strict=True)]
        after.append(margins(outputs(moved, inputs), y))
    below = [torch.stack([m < mark - 1e-6 for m in after]) for mark in (after[0], before)]
    return tuple((low & wrong).double().sum((-1, -2)) / wrong[0, 0].sum() for low in below)


def _step(
    rules: Mapping[str, Rule],
    optimiser: torch.optim.Optimizer,
    weights: Weights,
    batch: tuple[Tensor, Tensor, Tensor],
) -> None:
    """One step of every student, its direction held fixed."""
    inputs, teacher, labels = batch
    z = outputs(weights, inputs)
    with torch.no_grad():
        parts = split(z, teacher.expand_as(z), labels.expand(z.shape[:-1]))
        own = [Parts(*(part[i] for part in vars(parts).values())) for i in range(len(rules))]
        each = [rule(part) for rule, part in zip(rules.values(), own, strict=True)]
        direction = torch.stack(each)
    optimiser.zero_grad()
    (direction * z).sum().div(z.shape[-2]).backward()
    optimiser.step()


@torch.no_grad()
def _measure(
    weights: Weights, examples: tuple[Tensor, Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> tuple:
    """Accuracy, label loss, conditional KL, blocked share, logits, and a copy of the weights."""
    inputs, teacher, labels = examples
    z = outputs(weights, inputs)
    t, y = teacher.expand_as(z), labels.expand(z.shape[:-1])
    accuracy = 100 * (outputs(weights, test[0]).argmax(-1) == test[1]).double().mean(-1)
    label_loss = z.logsumexp(-1) - z.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    found = (label_loss, conditional_kl(z, t, y), is_blocked(z, t, y).double())
    kept = [w.detach().clone() for w in weights]
    return accuracy, *(values.double().mean(-1) for values in found), z, kept
