"""How near do networks come to their predicted limits, on random data sets, and how fast?

    python -m benchmarks.implicit_limits [--sets 20] [--dimension 64] [--growth 24] [--data planted]

One JSON line for each architecture and depth: for dense networks and depth two, the angle to the
maximum-margin predictor; for the others, the residual of the first-order conditions. All data sets
of a line are one batch. "--data gaussian" takes Gaussian examples with a random linear labelling,
whose optima are far less well determined.
"""

import argparse
import json
import time

import torch

from lib.implicit import (
    ConvolutionalNetwork,
    DenseNetwork,
    DiagonalNetwork,
    descend,
    direction_angle,
    log_time_flow,
    misalignment,
    random_separable,
    solve_max_margin,
    stationarity,
)

CASES = [
    *((DenseNetwork(depth), "l2", "signal", 2.0) for depth in (1, 2, 3, 4)),
    *((DiagonalNetwork(depth), "l1", "signal", 2 / depth) for depth in (2, 3, 4)),
    *((ConvolutionalNetwork(depth), "fourier-l1", "fourier", 2 / depth) for depth in (2, 3, 4)),
]


def draw(arguments: argparse.Namespace, norm: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(arguments.seed)
    shape = (arguments.sets,)
    if arguments.data == "planted":
        return random_separable(
            arguments.dimension, arguments.examples, generator, norm, batch=shape
        )[:2]
    options = {"generator": generator, "dtype": torch.float64}
    inputs = torch.randn(*shape, arguments.examples, arguments.dimension, **options)
    teacher = torch.randn(*shape, arguments.dimension, 1, **options)
    return inputs, torch.sign(inputs @ teacher).squeeze(-1)


def measure(network, norm: str, domain: str, power: float, arguments: argparse.Namespace) -> dict:
    inputs, labels = draw(arguments, norm)
    generator = torch.Generator().manual_seed(arguments.seed + 1)
    begin = time.process_time()
    if arguments.steps:
        run = descend(network, inputs, labels, arguments.steps, generator, arguments.scale)
    else:
        run = log_time_flow(network, inputs, labels, arguments.growth, generator, arguments.scale)
    seconds = time.process_time() - begin
    optima = [solve_max_margin(x, y, norm) for x, y in zip(inputs, labels, strict=True)]
    angles = direction_angle(run.predictor, torch.stack([best.predictor for best in optima]))
    residuals = torch.stack(
        [
            stationarity(*one, power, domain)
            for one in zip(run.predictor, inputs, labels, strict=True)
        ]
    )
    return {
        "network": type(network).__name__,
        "depth": network.depth,
        "sets": arguments.sets,
        "shape": list(inputs.shape[1:]),
        "angle_max": float(angles.max()),
        "angle_median": float(angles.median()),
        "angles_above_1e-3": int((angles > 1e-3).sum()),
        "residual_max": float(residuals.max()),
        "residuals_above_1e-3": int((residuals > 1e-3).sum()),
        "misalignment_max": float(misalignment(network, run.weights, inputs, labels).max()),
        "inactive_max": max(best.inactive for best in optima),
        "steps": int(run.step.max()),
        "growth": float(run.growth[..., -1].min()),
        "cpu_s": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--dimension", type=int, default=64)
    parser.add_argument("--examples", type=int, default=12)
    parser.add_argument("--growth", type=float, default=24.0)
    parser.add_argument("--scale", type=float, default=0.001)
    parser.add_argument("--steps", type=int, default=0, help="normalised descent instead of flow")
    parser.add_argument("--data", choices=["planted", "gaussian"], default="planted")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for case in CASES:
        print(json.dumps(measure(*case, arguments)), flush=True)


if __name__ == "__main__":
    main()
