"""The logits of a teacher, computed once for all views of all examples and kept in a file."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor, nn

from lib.distill.checkpoints import read_checkpoint, write_checkpoint
from lib.distill.digests import tensor_digest
from lib.distill.evaluation import Progress, predict
from lib.distill.examples import Examples
from lib.distill.precision import exact_float32

_DIGITS = 32  # of the key, in the name of the file
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # where a function lies, which changes by process


def model_digest(model: nn.Module) -> str:
    """Return the SHA-256 of a network: of its modules as they print, its weights and its buffers.

    Mode and device do not count. What a module neither prints nor stores does not either: a number
    that changes its outputs belongs into its `extra_repr`.

    **Source**: ours.

    Args:
        model: a network.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> first, second = nn.Linear(2, 3), nn.Linear(2, 3)
        >>> model_digest(first) == model_digest(second)
        False
        >>> second.load_state_dict(first.state_dict())
        <All keys matched successfully>
        >>> model_digest(first) == model_digest(second)
        True
    """
    weights = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    return tensor_digest([*weights, *buffers], _ADDRESS.sub("", repr(model)))


def cached_logits(
    model: nn.Module,
    examples: Examples,
    folder: Path | str,
    batch_size: int = 256,
    progress: Progress | None = None,
) -> Tensor:
    """Return the logits of a teacher for all views of all examples, from a file if they are there.

    The file's name is a hash of network, examples and number of views, so that another teacher or
    other data have another file. Its content is checked before every use. Of several processes that
    ask at once, one computes and the others wait.

    **Source**: ours.

    Args:
        model: the teacher, from `examples.inputs` to (b, K).
        examples: n of them, with V views.
        folder: of the files; made if missing.
        batch_size: of the computation.
        progress: called with the batches of a view and a label; as `lib.book.progress.track`.

    Returns:
        (V, n, K) float32 on the CPU, mapped from the file, which stays as it is if one writes to
        them.

    Raises:
        CheckpointError: if the file is damaged; it names the file.
        ValueError: as `predict`, or if a logit is NaN.

    Example:
        >>> import tempfile
        >>> from lib.distill.examples import TensorExamples
        >>> examples = TensorExamples(torch.eye(2), torch.tensor([0, 1]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cached_logits(nn.Identity(), examples, folder)
        tensor([[[1., 0.],
                 [0., 1.]]])
    """
    facts = {"model": model_digest(model), "examples": examples.digest(), "views": examples.views}
    path = Path(folder) / f"logits-{tensor_digest([], facts)[:_DIGITS]}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock")):
        found = read_checkpoint(path, facts, mapped=True)
        if found is None:
            views = range(examples.views)
            with exact_float32(next(model.parameters(), torch.empty(0)).device):
                parts = [predict(model, examples, view, batch_size, progress) for view in views]
            logits = torch.stack(parts).float()
            if bool(logits.isnan().any()):
                raise ValueError("model must give logits that are numbers, got NaN for an example")
            write_checkpoint(path, {"logits": logits}, facts)
            found = read_checkpoint(path, facts, mapped=True)
    return found[0]["logits"]
