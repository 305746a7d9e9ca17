"""What two processes under torchrun do: train, be interrupted, go on, say what they got."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

from lib.distill.checkpoints import write_checkpoint
from lib.distill.distributed import current_processes, joined_processes
from lib.distill.trainer import Trainer, TrainingError
from lib.distill.training import train_student
from tests.distill.small_runs import network, settings, task, weights

METHODS = ("ce", "tpkd", "dp-u", "dhkd", "dto-kd")


class Interrupted(Exception):
    """Raised in the middle of a run."""


def one_run(method: str, size: int, folder: Path | None = None, stop: int | None = None):
    """Eight steps in parts of a size; the result and the weights."""
    examples, teacher = task(6)
    model = network(2, dropout=0.2)
    values = settings(method, 8, micro_batch=size, checkpoint_every=2, log_every=3, clip=0.5)

    def progress(steps, label):
        for step in steps:
            if step == stop:
                raise Interrupted
            yield step

    resources = {"teacher": teacher, "test": examples, "test_teacher": teacher}
    result = train_student(model, examples, values, folder=folder, progress=progress, **resources)
    return result, weights(model)


def columns(result) -> torch.Tensor:
    """What a run logged of its batches, a row for every logged step."""
    names = ("loss", "gradient_norm", "cross_entropy", "conditional_kl", "blocked")
    return torch.tensor([[row[name] for name in names] for row in result.log], dtype=torch.float64)


def with_statistics():
    """Weights and buffers of a student with batch normalisation."""
    examples, teacher = task(6)
    model = network(2)
    model[1] = nn.BatchNorm1d(8).double()
    train_student(model, examples, settings("kd", 4, micro_batch=10), teacher=teacher)
    return torch.cat([x.flatten().double() for x in model.state_dict().values()])


def every_run(folder: Path, rank: int) -> dict[str, torch.Tensor]:
    """All runs, by name."""
    found = {}
    for method in METHODS:
        for size in (10, 4):
            result, found[f"{method}.{size}"] = one_run(method, size)
            found[f"{method}.{size}.log"] = columns(result)
    place = folder / "interrupted"
    try:
        one_run("tpkd", 10, place, stop=5)
    except Interrupted:
        found["interrupted"] = one_run("tpkd", 10, place)[1]
    found["read"] = one_run("tpkd", 10, place)[0].test_logits
    found["statistics"] = with_statistics()
    return found


def nan_everywhere() -> str:
    """What every process says where one of them sees a NaN."""
    examples, _ = task(6)
    examples.values[0, :, 0] = float("nan")
    try:
        Trainer(network(), examples, settings("ce", 3, micro_batch=10)).step(0)
    except TrainingError as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    with joined_processes() as device:
        group = current_processes()
        assert (group.size, device.type) == (2, "cpu"), (group, device)
        results = every_run(out, group.rank)
        try:
            one_run("ce", 20)
            refused = "nothing"
        except ValueError as error:
            refused = str(error)
        facts = {"rank": group.rank, "nan": nan_everywhere(), "refused": refused}
        write_checkpoint(out / f"rank-{group.rank}.safetensors", results, facts)
