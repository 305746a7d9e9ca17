"""The batched log-time flow against one scipy BDF call for every start, in one run.

    python -m benchmarks.implicit_flow [--sets 20] [--compared 2] [--dimension 32]

Both sides follow the same flow from the same starts to log |w|^L = 20, the batch at its default
tolerance of 1e-7 and BDF at a relative tolerance of 1e-9, each relative to the weights; scipy
solves only the first `--compared` problems. One JSON line for each network.
"""

import argparse
import json
import time

import numpy as np
import torch
from scipy.integrate import solve_ivp

from lib.implicit import (
    ConvolutionalNetwork,
    DenseNetwork,
    DiagonalNetwork,
    direction_angle,
    log_time_flow,
    random_separable,
)
from lib.implicit.packing import pack, unpacker

GROWTH = 20.0
CASES = [
    (DenseNetwork(3, width=4), "l2"),
    (DiagonalNetwork(2), "l1"),
    (ConvolutionalNetwork(2), "fourier-l1"),
]


def bdf(network, rows: torch.Tensor, weights, tolerance: float) -> torch.Tensor:
    """The predictor at the end of one scipy call, in directions and log norm as two unknowns."""
    unpack, start = unpacker(weights), pack(weights)
    depth = network.degree

    def field(_, state):
        theta = torch.from_numpy(state[:-1])
        local = network.linearise(unpack(theta))
        margins = rows @ local.predictor
        shares = torch.softmax(-np.exp(depth * state[-1]) * margins, -1)
        pull = pack(local.adjoint(shares @ rows))
        along = pull @ theta
        return np.append((pull - along * theta).numpy(), float(along))

    def arrived(_, state):
        return depth * state[-1] - GROWTH

    arrived.terminal = True
    begin = np.append((start / start.norm()).numpy(), float(start.norm().log()))
    options = {"rtol": tolerance, "atol": tolerance / 1000, "events": arrived}
    solution = solve_ivp(field, (0, 1e4), begin, "BDF", **options)
    return network.predictor(unpack(torch.from_numpy(solution.y[:-1, -1])))


def compare(network, norm: str, arguments: argparse.Namespace) -> dict:
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.sets,)
    inputs, labels, beta = random_separable(arguments.dimension, 8, generator, norm, batch=shape)
    weights = network.initialise(arguments.dimension, generator, 0.1, shape)
    begin = time.perf_counter()
    run = log_time_flow(network, inputs, labels, GROWTH, weights=weights, records=1)
    batched = time.perf_counter() - begin
    begin, ends = time.perf_counter(), []
    for i in range(arguments.compared):
        start = [layer[i] for layer in weights]
        ends.append(bdf(network, labels[i, :, None] * inputs[i], start, arguments.tolerance))
    loop = (time.perf_counter() - begin) / arguments.compared * arguments.sets
    first = slice(arguments.compared)
    return {
        "network": str(network),
        "sets": arguments.sets,
        "dimension": arguments.dimension,
        "batched_s": round(batched, 2),
        "bdf_s": round(loop, 1),
        "ratio": round(loop / batched, 1),
        "angle_batched": float(direction_angle(run.predictor, beta)[first].max()),
        "angle_bdf": float(direction_angle(torch.stack(ends), beta[first]).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--compared", type=int, default=2)
    parser.add_argument("--dimension", type=int, default=32)
    parser.add_argument("--tolerance", type=float, default=1e-9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for case in CASES:
        print(json.dumps(compare(*case, arguments)), flush=True)


if __name__ == "__main__":
    main()
