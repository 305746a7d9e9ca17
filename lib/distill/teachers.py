"""Teachers: networks trained once with the book's own trainer, with smoothed labels or without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lib.distill.assets import Progress, distill_folder, work_lock
from lib.distill.config import digest_of
from lib.distill.evaluation import measure
from lib.distill.examples import Examples
from lib.distill.settings import TrainingSettings
from lib.distill.teacher_cache import cached_logits, model_digest
from lib.distill.training import train_student
from lib.tpkd.checks import check_labels

_PREFIX = "teacher_"  # of a table's entries about the teacher
_STUDENT = "student."  # before the names of weights in a state


def smoothed_logits(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    r"""Return the logits of smoothed labels.

    $$t_j = (1 - \epsilon)\, [j = y] + \frac{\epsilon}{K}$$

    Imitating them with unit temperature and nothing else is training with smoothed labels:
    $\nabla \operatorname{KL}(t \| p) = p - t$.

    **Source**: Szegedy et al. (2016).

    Args:
        labels: (...) int64, in [0, K).
        classes: K >= 2.
        smoothing: $\epsilon$ in (0, 1).

    Returns:
        (..., K) float32, logarithms of t.

    Raises:
        ValueError: if the smoothing or a label is outside its range.

    Example:
        >>> smoothed_logits(torch.tensor([1]), 4, 0.4).exp()
        tensor([[0.1000, 0.7000, 0.1000, 0.1000]])
    """
    if not 0 < smoothing < 1:
        raise ValueError(f"smoothing must be in (0, 1), got {smoothing!r}")
    check_labels(labels, classes)
    found = torch.full((*labels.shape, classes), smoothing / classes)
    found.scatter_(-1, labels.unsqueeze(-1), 1 - smoothing + smoothing / classes)
    return found.log()


def table_teacher(
    network: nn.Module,
    examples: Examples,
    table: Mapping[str, Any],
    teacher: str,
    progress: Progress | None = None,
    device: torch.device | None = None,
) -> nn.Module:
    """Train a teacher as a setting's table says, or read its weights.

    Args:
        network: the teacher before training.
        examples: what it learns from.
        table: as for `teacher_outputs`, like the rest.
        teacher: "smooth" or "sharp".
        progress: called with an iterable and a label.
        device: where to train.

    Returns:
        The network in evaluation mode, on the device.

    Raises:
        CheckpointError: if a file is damaged; it names the file.
        TrainingError: if the training diverges.
    """
    fields = set(TrainingSettings.__dataclass_fields__)
    settings = {
        name.removeprefix(_PREFIX): value
        for name, value in table.items()
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) in fields
    }
    return fit_teacher(
        network,
        examples,
        settings,
        table[teacher],
        table["classes"],
        progress=progress,
        device=device,
    ).to(device or "cpu")


def teacher_outputs(
    network: nn.Module,
    examples: Examples,
    test: Examples,
    table: Mapping[str, Any],
    teacher: str,
    progress: Progress | None = None,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Train a teacher and let it look at everything, or read what is kept.

    Args:
        network: the teacher before training.
        examples: what it learns from, and what its logits are wanted for.
        test: what its logits are wanted for too.
        table: of a setting: "classes", "smooth", "sharp", and fields of `TrainingSettings` with
            "teacher_" before their names.
        teacher: "smooth" or "sharp".
        progress: called with an iterable and a label.
        device: where to train.

    Returns:
        Logits (V, n, K) and (1, m, K), and numbers about the teacher: accuracy on both sets, and
        the mean probability that it gives to the label of a training example.

    Raises:
        CheckpointError: if a file is damaged; it names the file.
        TrainingError: if the training diverges.
    """
    fitted = table_teacher(network, examples, table, teacher, progress, device)
    folder = distill_folder() / "teachers" / "logits"
    seen, unseen = (
        cached_logits(fitted, part, folder, progress=progress) for part in (examples, test)
    )
    return seen, unseen, _describe(seen, unseen, examples.labels, test.labels)


def fit_teacher(
    network: nn.Module,
    examples: Examples,
    settings: Mapping[str, Any],
    smoothing: float,
    classes: int,
    *,
    progress: Progress | None = None,
    device: torch.device | None = None,
) -> nn.Module:
    """Train a teacher, or read its weights if it was trained before.

    **Source**: ours; the paper's teachers are given.

    Args:
        network: before training; it gets the trained weights.
        examples: what it learns from.
        settings: fields of `TrainingSettings` but for the method.
        smoothing: of the labels, in [0, 1); 0 for the labels as they are.
        classes: K.
        progress: called with the steps and a label.
        device: where to train; None for where the network is.

    Returns:
        The network in evaluation mode.

    Raises:
        CheckpointError: if a file is damaged; it names the file.
        TrainingError: if the training diverges.
    """
    wanted = TrainingSettings(method="kl-dist" if smoothing else "ce", **settings)
    target = None
    if smoothing:
        target = smoothed_logits(examples.labels, classes, smoothing)
        target = target.expand(examples.views, *target.shape)
    facts = {
        "start": model_digest(network),
        "examples": examples.digest(),
        "smoothing": float(smoothing),
        "settings": wanted.fingerprint(),
    }
    folder = distill_folder() / "teachers" / digest_of(facts)
    with work_lock(folder):
        result = train_student(
            network,
            examples,
            wanted,
            teacher=target,
            folder=folder,
            snapshots=[wanted.iterations],
            progress=progress and (lambda steps, label: progress(steps, "teacher")),
            device=device,
        )
    trained = result.snapshots[wanted.iterations]
    own = {name: x for name, x in trained.items() if name.startswith(_STUDENT)}
    network.load_state_dict({name.removeprefix(_STUDENT): x for name, x in own.items()})
    return network.eval()


def _describe(seen: Tensor, unseen: Tensor, labels: Tensor, test_labels: Tensor) -> dict:
    own = seen[0].softmax(-1).gather(-1, labels.unsqueeze(-1))
    return {
        "accuracy": measure(unseen[0], None, test_labels)["accuracy"],
        "train_accuracy": measure(seen[0], None, labels)["accuracy"],
        "label_probability": float(own.mean()),
    }
