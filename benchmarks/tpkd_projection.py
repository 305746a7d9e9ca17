"""The safe-cone projection against softmax, a plain distillation step and a QP solver, in one run.

    python -m benchmarks.tpkd_projection [--threads 1] [--repeats 7] [--solved 8] [--device cuda]

The vectors are r - q of Gaussian logits with standard deviation 3, in float32. Softmax works on the
same array; the plain step is the loss of Hinton et al. at temperature 4 with its backward pass; the
solver, clarabel, gets one example a call and only the first `--solved` of them (one in each, where
K is large), its time is scaled up. `sort`, `sweeps` and `few` are the methods not chosen for a
shape: Eq. B.1 by sorting whole rows, Newton's method on whole rows, and the 16 smallest entries.
Times are the best of `--repeats`, ratios are to the projection's own.
"""

import argparse
import time
from collections.abc import Callable

import clarabel
import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import kl_div

from lib.tpkd import project_onto_safe_cone

SHAPES = [(64, 100), (4096, 100), (4096, 1000), (256, 32000)]
TEMPERATURE = 4.0


def draw(examples: int, classes: int, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits of student and teacher, labels, and r - q."""
    generator = torch.Generator().manual_seed(0)
    student, teacher = (3 * torch.randn(examples, classes, generator=generator) for _ in range(2))
    labels = torch.randint(classes, (examples,), generator=generator)
    index = labels.unsqueeze(-1)
    r, q = (z.scatter(-1, index, -torch.inf).softmax(-1) for z in (student, teacher))
    return tuple(tensor.to(device) for tensor in (student, teacher, labels, r - q))


def by_sorting(vector: Tensor, labels: Tensor) -> Tensor:
    """Eq. B.1 as it stands."""
    index = labels.unsqueeze(-1)
    target = vector.gather(-1, index)
    ascending = vector.scatter(-1, index, torch.inf).sort(-1).values[:, :-1]
    counts = torch.arange(2, vector.shape[-1] + 1, device=vector.device)
    means = (ascending.cumsum(-1) + target) / counts
    level = torch.minimum(means.amin(-1, keepdim=True), target)
    return torch.maximum(vector, level).scatter_(-1, index, level)


def by_sweeps(vector: Tensor, labels: Tensor) -> Tensor:
    """Newton's method over all entries at every step."""
    index = labels.unsqueeze(-1)
    target = vector.gather(-1, index)
    level, before = (target + vector.amin(-1, keepdim=True)) / 2, None
    while True:
        below = vector < level
        if before is not None and torch.equal(below, before):
            return torch.maximum(vector, level).scatter_(-1, index, level)
        counts = below.sum(-1, keepdim=True) + 1
        sums = (vector * below).sum(-1, keepdim=True) + target
        level, before = torch.minimum(sums / counts, level), below


def by_few(vector: Tensor, labels: Tensor) -> Tensor:
    """Eq. B.1 on the 16 smallest entries: right if no more are raised, which is not checked."""
    index = labels.unsqueeze(-1)
    target = vector.gather(-1, index)
    smallest = vector.topk(16, dim=-1, largest=False).values
    means = (smallest.cumsum(-1) + target) / torch.arange(2, 18, device=vector.device)
    level = torch.minimum(means.amin(-1, keepdim=True), target)
    return torch.maximum(vector, level).scatter_(-1, index, level)


def plain_step(student: Tensor, teacher: Tensor) -> None:
    """Forward and backward of temperature-squared KL of the softened outputs."""
    leaf = student.detach().requires_grad_()
    soft, target = (z.div(TEMPERATURE).log_softmax(-1) for z in (leaf, teacher))
    loss = kl_div(soft, target, log_target=True, reduction="batchmean")
    (TEMPERATURE**2 * loss).backward()


def quadratic_program(vector: np.ndarray, label: int) -> np.ndarray:
    """One projection by an interior-point method: x_y <= x_j for all j."""
    classes = len(vector)
    rows = np.arange(classes - 1)
    others = np.delete(np.arange(classes), label)
    entries = np.r_[np.ones(classes - 1), -np.ones(classes - 1)]
    places = np.r_[rows, rows], np.r_[np.full(classes - 1, label), others]
    constraint = sparse.csc_matrix((entries, places), shape=(classes - 1, classes))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cone = [clarabel.NonnegativeConeT(classes - 1)]
    identity = sparse.identity(classes, format="csc")
    zeros = np.zeros(classes - 1)
    solver = clarabel.DefaultSolver(identity, -vector, constraint, zeros, cone, settings)
    return np.array(solver.solve().x)


def best(call: Callable, repeats: int, device: str) -> float:
    """The least seconds of several calls, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def solver_seconds(vector: Tensor, labels: Tensor, solved: int) -> tuple[float, float]:
    """Seconds an example takes the solver, and its largest difference to the projection."""
    rows = vector[:solved].double().cpu()
    begin = time.perf_counter()
    found = [
        quadratic_program(row, label)
        for row, label in zip(rows.numpy(), labels.tolist(), strict=False)
    ]
    seconds = (time.perf_counter() - begin) / len(found)
    exact = project_onto_safe_cone(rows, labels[:solved].cpu())
    return seconds, float((torch.from_numpy(np.stack(found)) - exact).abs().max())


def compare(examples: int, classes: int, arguments: argparse.Namespace) -> str:
    """A line of the table."""
    device = arguments.device
    student, teacher, labels, vector = draw(examples, classes, device)
    repeats = max(arguments.repeats, int(20_000_000 / vector.numel() ** 1.1))
    calls = {
        "ours": lambda: project_onto_safe_cone(vector, labels),
        "softmax": lambda: vector.softmax(-1),
        "plain": lambda: plain_step(student, teacher),
        "sort": lambda: by_sorting(vector, labels),
        "sweeps": lambda: by_sweeps(vector, labels),
        "few": lambda: by_few(vector, labels),
    }
    seconds = {name: best(call, min(repeats, 500), device) for name, call in calls.items()}
    one, difference = solver_seconds(vector, labels, 1 if classes > 5000 else arguments.solved)
    seconds["clarabel"] = one * examples
    ours = seconds["ours"]
    others = (seconds[name] / ours for name in ("plain", "clarabel", "sort", "sweeps", "few"))
    columns = "".join(f"{ratio:>12,.2f}" for ratio in others)
    shape = f"{examples}, {classes}"
    front = f"{shape:>12}{ours * 1e3:>10.3f}{ours / seconds['softmax']:>14.2f}"
    return f"{front}{columns}{difference:>13.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--solved", type=int, default=8)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    heads = ["plain/ours", "QP/ours", "sort/ours", "sweeps/ours", "few/ours"]
    columns = "".join(f"{head:>12}" for head in heads)
    print(f"{'N, K':>12}{'ours ms':>10}{'ours/softmax':>14}{columns}{'QP differs':>13}")
    for examples, classes in SHAPES:
        print(compare(examples, classes, arguments), flush=True)


if __name__ == "__main__":
    main()
