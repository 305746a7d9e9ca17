"""The outputs of a network for all examples, and what is measured of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lib.distill.examples import Examples
from lib.tpkd import conditional_kl, is_blocked
from lib.tpkd.checks import prepare

Progress = Callable[[Iterable, str], Iterable]


def predict(
    model: nn.Module,
    examples: Examples,
    view: int = 0,
    batch_size: int = 256,
    progress: Progress | None = None,
) -> Tensor:
    """Return the logits of all examples, as the network gives them when it is not trained.

    Examples with lengths are taken in the order of their length, which saves padding. Every module
    is in evaluation mode meanwhile and back in its own mode afterwards.

    **Source**: ours.

    Args:
        model: from `examples.inputs` to (b, K).
        examples: n of them.
        view: in which they are seen, in [0, V).
        batch_size: b >= 1; the last batch may be smaller.
        progress: called with the batches and a label, returns them; as `lib.book.progress.track`.

    Returns:
        (n, K) on the CPU, in the network's dtype, without gradient.

    Raises:
        ValueError: if view or batch_size is outside its range, or the network's output is not
            (b, K).

    Example:
        >>> from lib.distill.examples import TensorExamples
        >>> examples = TensorExamples(torch.eye(2), torch.tensor([0, 1]))
        >>> predict(nn.Identity(), examples)
        tensor([[1., 0.],
                [0., 1.]])
    """
    n = len(examples.labels)
    for name, value, low, high in (
        ("view", view, 0, examples.views),
        ("batch_size", batch_size, 1, float("inf")),
    ):
        if not isinstance(value, int) or not low <= value < high:
            raise ValueError(f"{name} must be an integer in [{low}, {high}), got {value!r}")
    lengths = examples.lengths
    order = torch.arange(n) if lengths is None else lengths.argsort(stable=True).cpu()
    batches = order.split(batch_size)
    parts = []
    with evaluation_mode(model), torch.no_grad():
        for index in batches if progress is None else progress(batches, "batches"):
            parts.append(_outputs(model, examples, index, view))
    logits = torch.empty(n, parts[0].shape[1], dtype=parts[0].dtype)
    logits[order] = torch.cat(parts)
    return logits


def measure(
    logits: Tensor, teacher_logits: Tensor | None, labels: Tensor
) -> dict[str, float | int | None]:
    r"""Return accuracy and loss, and how far the student is from the teacher.

    $$\text{loss} = -\frac1N \sum_i \log p_{y_i}, \qquad
      \text{conditional KL} = \frac1N \sum_i \operatorname{KL}(q_i \| r_i), \qquad
      \text{blocked} = \frac{\#\{i : p_j \le t_j \text{ for all } j \ne y_i\}}{N}$$

    All from logits in float64, never from probabilities.

    **Source**: Yuan & Tao, Section 6 and Appendix E.2.

    Args:
        logits: (..., K) real and finite, of the student.
        teacher_logits: (..., K) real, -inf for a probability of zero; None without a teacher.
        labels: (...) integer, in [0, K). All leading dimensions broadcast.

    Returns:
        `loss`, `accuracy` in [0, 1], `correct` and `count` as integers, `conditional_kl` and
        `blocked` in [0, 1]; the last two are None without a teacher.

    Raises:
        ValueError: if an argument does not fit, or there is no example.

    Example:
        >>> logits, labels = torch.tensor([[0.0, 0.0, 0.0], [0.0, 9.0, 0.0]]), torch.tensor([1, 1])
        >>> found = measure(logits, logits, labels)
        >>> found["correct"], found["accuracy"], found["conditional_kl"], found["blocked"]
        (1, 0.5, 0.0, 1.0)
    """
    named = {"logits": logits}
    if teacher_logits is not None:
        named["teacher_logits"] = teacher_logits
    checked = prepare(labels, zeros=("teacher_logits",), **named)
    student, labels = checked.logits[0], checked.labels
    count = labels.numel()
    if count == 0:
        raise ValueError(f"logits must hold at least one example, got {tuple(logits.shape)}")
    own = student.log_softmax(-1).gather(-1, labels.unsqueeze(-1))
    correct = int((student.argmax(-1) == labels).sum())
    found = {
        "loss": -float(own.mean()),
        "accuracy": correct / count,
        "correct": correct,
        "count": count,
        "conditional_kl": None,
        "blocked": None,
    }
    if teacher_logits is not None:
        outputs = (student, checked.logits[1], labels)
        found["conditional_kl"] = float(conditional_kl(*outputs).mean())
        found["blocked"] = float(is_blocked(*outputs).double().mean())
    return found


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every module of a network into evaluation mode, and each back into its own afterwards.

    **Source**: ours.

    Args:
        model: a network, some modules of which may be in evaluation mode already.

    Yields:
        Nothing.

    Example:
        >>> model = nn.Dropout()
        >>> with evaluation_mode(model):
        ...     model.training
        False
        >>> model.training
        True
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _outputs(model: nn.Module, examples: Examples, index: Tensor, view: int) -> Tensor:
    """The logits of one batch, on the CPU."""
    inputs = examples.inputs(index, torch.full_like(index, view))
    first = next(model.parameters(), None)
    if first is not None:
        inputs = tuple(tensor.to(first.device) for tensor in inputs)
    logits = model(*inputs)
    if logits.ndim != 2 or len(logits) != len(index):
        raise ValueError(
            f"model must return logits (b, K) for a batch of {len(index)}, got "
            f"{tuple(logits.shape)}"
        )
    return logits.cpu()
