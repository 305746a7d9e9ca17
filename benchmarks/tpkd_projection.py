"""The safe-cone projection against softmax, a plain distillation step and a QP solver, in one run.

    python -m benchmarks.tpkd_projection [--threads 1] [--repeats 7] [--solved 8] [--device cuda]

The vectors are r - q of Gaussian logits with standard deviation 3, in float32. Softmax works on the
same array. The solver, clarabel, gets one example a call and only the first `--solved` of them (one
in each, where K is large); its time is scaled up. `sort`, `sweeps` and `few` are the methods not
chosen for a shape: Eq. B.1 by sorting whole rows, Newton's method on whole rows, and the 16
smallest entries, none of them with checks.
Ratios are to the projection's own time. The second table sets `directions` and the forward and
backward pass of `surrogate_loss` against those of the plain losses of Hinton et al. at temperature
4: the divergence alone, and with the cross-entropy.

A time is the mean over several draws of the best of `--repeats`: with one draw, the processor
learns the order of its entries by heart and sorting appears three times as fast. Calls on one CPU
thread that take milliseconds are timed by that thread's clock, which other programs do not disturb.
"""

import argparse
import time
from collections.abc import Callable

import clarabel
import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from lib.tpkd import directions, project_onto_safe_cone, surrogate_loss

SHAPES = [(64, 100), (4096, 100), (4096, 1000), (256, 32000)]
TEMPERATURE = 4.0
SMALL = 100_000  # entries up to which a call is short and many draws are taken


def draw(seed: int, examples: int, classes: int, device: str) -> tuple[Tensor, ...]:
    """Logits of student and teacher, labels, and r - q."""
    generator = torch.Generator().manual_seed(seed)
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


def plain_step(student: Tensor, teacher: Tensor, labels: Tensor | None = None) -> None:
    """Forward and backward of temperature-squared KL of the softened outputs, perhaps with CE."""
    leaf = student.detach().requires_grad_()
    soft, target = (z.div(TEMPERATURE).log_softmax(-1) for z in (leaf, teacher))
    loss = TEMPERATURE**2 * kl_div(soft, target, log_target=True, reduction="batchmean")
    if labels is not None:
        loss = loss + cross_entropy(leaf, labels)
    loss.backward()


def our_step(student: Tensor, teacher: Tensor, labels: Tensor) -> None:
    """Forward and backward of the surrogate."""
    surrogate_loss(student.detach().requires_grad_(), teacher, labels).backward()


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


def best(call: Callable, draws: list, repeats: int, clock: Callable[[], float]) -> float:
    """The mean over the draws of the least seconds of several calls, after one to warm up."""
    call(*draws[0])
    least = [float("inf")] * len(draws)
    for _ in range(repeats):
        for place, arguments in enumerate(draws):
            begin = clock()
            call(*arguments)
            least[place] = min(least[place], clock() - begin)
    return sum(least) / len(draws)


def synchronised() -> float:
    """Seconds, after the GPU has done its work."""
    torch.cuda.synchronize()
    return time.perf_counter()


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


def measure(examples: int, classes: int, arguments: argparse.Namespace) -> tuple[dict, list]:
    """Seconds of every call, by name, and the draws."""
    small = examples * classes <= SMALL
    draws = [draw(seed, examples, classes, arguments.device) for seed in range(40 if small else 2)]
    clock = time.perf_counter if small or arguments.threads > 1 else time.thread_time
    if arguments.device == "cuda":
        clock = synchronised
    calls = {
        "ours": lambda z, t, y, x: project_onto_safe_cone(x, y),
        "softmax": lambda z, t, y, x: x.softmax(-1),
        "directions": lambda z, t, y, x: directions(z, t, y),
        "surrogate": lambda z, t, y, x: our_step(z, t, y),
        "KL": lambda z, t, y, x: plain_step(z, t),
        "KL + CE": lambda z, t, y, x: plain_step(z, t, y),
        "sort": lambda z, t, y, x: by_sorting(x, y),
        "sweeps": lambda z, t, y, x: by_sweeps(x, y),
        "few": lambda z, t, y, x: by_few(x, y),
    }
    repeats = arguments.repeats * (5 if small else 1)
    return {name: best(call, draws, repeats, clock) for name, call in calls.items()}, draws


def projection_line(shape: str, seconds: dict) -> str:
    """A line of the first table."""
    ours = seconds["ours"]
    others = (seconds[name] / ours for name in ("clarabel", "sort", "sweeps", "few"))
    columns = "".join(f"{ratio:>12,.2f}" for ratio in others)
    return f"{shape:>12}{ours * 1e3:>10.3f}{ours / seconds['softmax']:>14.2f}{columns}"


def step_line(shape: str, seconds: dict) -> str:
    """A line of the second table."""
    names = ("directions", "surrogate", "KL", "KL + CE")
    times = "".join(f"{seconds[name] * 1e3:>12.3f}" for name in names)
    ratio = seconds["surrogate"] / seconds["KL + CE"]
    return f"{shape:>12}{times}{seconds['directions'] / seconds['softmax']:>14.2f}{ratio:>14.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--solved", type=int, default=8)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    heads = "".join(f"{head:>12}" for head in ("QP/ours", "sort/ours", "sweeps/ours", "few/ours"))
    print(f"{'N, K':>12}{'ours ms':>10}{'ours/softmax':>14}{heads}{'QP differs':>13}")
    lines = []
    for examples, classes in SHAPES:
        seconds, draws = measure(examples, classes, arguments)
        _, _, labels, vector = draws[0]
        one, difference = solver_seconds(vector, labels, 1 if classes > 5000 else arguments.solved)
        seconds["clarabel"] = one * examples
        shape = f"{examples}, {classes}"
        print(f"{projection_line(shape, seconds)}{difference:>13.1e}", flush=True)
        lines.append(step_line(shape, seconds))
    heads = "".join(f"{head:>12}" for head in ("directions", "surrogate", "KL", "KL + CE"))
    print(f"\n{'N, K':>12}{heads}{'dir/softmax':>14}{'ours/(KL+CE)':>14}", *lines, sep="\n")


if __name__ == "__main__":
    main()
