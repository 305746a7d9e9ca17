"""Batched gradient flows against one scipy Radau call a problem, in one run.

    python -m benchmarks.linear_flows [--problems 200] [--compared 20] [--device cuda]

Both sides get the same reduced coordinates, exact Jacobians and relative tolerance, and solve to
the same times; scipy runs on numpy alone and solves only the first `--compared` problems, its time
is scaled up. One JSON line for each depth.
"""

import argparse
import json
import time

import numpy as np
import torch
from scipy.integrate import solve_ivp

from lib.linear.flows import end_to_end_flow, gradient_flow
from lib.linear.geometry import data_span

TOLERANCE = 1e-10


def draw(problems: int, examples: int, dimension: int) -> tuple[torch.Tensor, ...]:
    """Gaussian inputs, teachers and small starts."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(problems, examples, dimension), (problems, dimension), (problems, dimension)]
    inputs, teacher, start = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    return inputs, teacher, 0.1 * start / start.norm(dim=-1, keepdim=True)


def numpy_flow(depth: int, design: np.ndarray, labels: np.ndarray):
    """Lemma 12 for one problem: right-hand side and Jacobian on (span, outside) coordinates."""
    n, power = len(design), 2.0 - 2.0 / depth

    def parts(w):
        residual = 1.0 / (1.0 + np.exp(-design @ w)) - labels
        norm = np.linalg.norm(w)
        unit = w / norm if norm > 0 else w
        return design.T @ residual / n, norm, unit

    def right(_, w):
        gradient, norm, unit = parts(w)
        return -(norm**power) * (gradient + (depth - 1) * (unit @ gradient) * unit)

    def slope(_, w):
        gradient, norm, unit = parts(w)
        sigma = 1.0 / (1.0 + np.exp(-design @ w))
        hessian = design.T @ ((sigma * (1.0 - sigma))[:, None] * design) / n
        if depth == 1:
            return -hessian
        turn = (power - 2.0) * np.outer(unit, unit) + np.eye(len(w))
        turn = (unit @ gradient) * turn + np.outer(unit, gradient)
        first = power * np.outer(gradient, unit) + (depth - 1) * turn
        second = hessian + (depth - 1) * np.outer(unit, unit @ hessian)
        return -(norm ** (power - 1.0)) * first - norm**power * second

    return right, slope


def radau_loop(depth: int, inputs, teacher, start, times: np.ndarray) -> np.ndarray:
    """Final coordinates in the data spans, one scipy call after the other."""
    ends = []
    for x, target, begin in zip(inputs, teacher, start, strict=True):
        basis = data_span(x).basis
        inside = begin @ basis
        height = (begin - basis @ inside).norm()[None]
        state = torch.cat([inside, height]).numpy() if depth > 1 else 0 * inside.numpy()
        design = (x @ basis).numpy()
        if depth > 1:
            design = np.pad(design, [(0, 0), (0, 1)])
        right, slope = numpy_flow(depth, design, torch.sigmoid(x @ target).numpy())
        options = {"rtol": TOLERANCE, "atol": TOLERANCE, "jac": slope, "t_eval": times}
        solution = solve_ivp(right, (0.0, times[-1]), state, "Radau", **options)
        ends.append(solution.y[: basis.shape[1], -1])
    return np.stack(ends)


def timed(call, device: str):
    """The result of a call and the seconds it took, after one call to warm up."""
    for _ in range(2):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        result = call()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    return result, seconds


def compare(depth: int, arguments: argparse.Namespace) -> dict:
    """Time both sides for one depth; depth 1 is the plain flow."""
    inputs, teacher, start = draw(arguments.problems, arguments.examples, arguments.dimension)
    times = torch.cat([torch.zeros(1), torch.logspace(-1, 5, 13)]).double()
    here = [tensor.to(arguments.device) for tensor in (inputs, teacher, start, times)]
    if depth == 1:
        path, seconds = timed(lambda: gradient_flow(here[0], here[1], here[3]), arguments.device)
    else:
        path, seconds = timed(
            lambda: end_to_end_flow(here[2], depth, *here[:2], here[3]), arguments.device
        )
    first = slice(arguments.compared)
    begin = time.perf_counter()
    ends = radau_loop(depth, inputs[first], teacher[first], start[first], times.numpy())
    loop = (time.perf_counter() - begin) / arguments.compared * arguments.problems
    found = (path[first, -1].cpu()[:, None] @ data_span(inputs[first]).basis)[:, 0].numpy()
    return {
        "depth": depth,
        "problems": arguments.problems,
        "examples": arguments.examples,
        "dimension": arguments.dimension,
        "device": arguments.device,
        "threads": torch.get_num_threads(),
        "batched_s": round(seconds, 3),
        "radau_s": round(loop, 3),
        "ratio": round(loop / seconds, 1),
        "largest_difference": float(np.abs(found - ends).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--compared", type=int, default=20)
    parser.add_argument("--examples", type=int, default=10)
    parser.add_argument("--dimension", type=int, default=100)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    arguments.compared = min(arguments.compared, arguments.problems)
    for depth in (1, 2, 3):
        print(json.dumps(compare(depth, arguments)), flush=True)


if __name__ == "__main__":
    main()
