"""Sharpness by our Lanczos iteration against ARPACK, the authors' setting and a dense Hessian.

    python -m benchmarks.stability_sharpness [--steps 1200] [--every 50] [--device cuda]

A 64-100-100-10 tanh network learns 500 scikit-learn digits by full-batch gradient descent through
the edge of stability (step size 0.2). Every `--every` steps each way measures the sharpness of the
same weights. All ways but the dense one get the same Hessian-vector product, so that the counts
compare the iterations alone. One JSON line for each way: products a call, seconds a call, and the
largest relative difference from ours. A last line compares with a dense Hessian by torch.func, on a
network small enough for one.
"""

import argparse
import json
import time

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.datasets import load_digits
from torch.func import functional_call, grad, jvp, vmap

from lib.stability import sharpness
from lib.stability.hessian import HessianOperator

STEP_SIZE = 0.2


def digits(count: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The first standardised digits and their one-hot labels, float32."""
    data = load_digits()
    pixels = torch.tensor(data.data[:count], dtype=torch.float32)
    spread = pixels.std(0)
    pixels = (pixels - pixels.mean(0)) / torch.where(spread > 0, spread, 1.0)
    targets = torch.nn.functional.one_hot(torch.tensor(data.target[:count]), 10).float()
    return pixels.to(device), targets.to(device)


def network(width: int, device: str) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [(64, width), (width, width), (width, 10)]
    modules = [part for sizes in layers for part in (torch.nn.Linear(*sizes), torch.nn.Tanh())]
    return torch.nn.Sequential(*modules[:-1]).to(device)


def half_square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - targets).square().sum(1).mean() / 2


def seconds(call, device: str):
    """The result of a call and the processor time it took (wall time on a GPU)."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    if device == "cuda":
        torch.cuda.synchronize()
    begin = clock()
    result = call()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, clock() - begin


def arpack(loss, parameters, k: int, which: str, tol: float, ncv: int | None, start):
    """Largest value, its vector and the products, by scipy's eigsh."""
    operator = HessianOperator(loss, parameters)
    size, device = sum(operator.sizes), parameters[0].device

    def product(vector):
        return operator(torch.from_numpy(vector.ravel()).to(device)).cpu().numpy()

    linear = LinearOperator((size, size), matvec=product, dtype=np.float64)
    values, vectors = eigsh(linear, k, which=which, tol=tol, ncv=ncv, v0=start)
    return values.max(), vectors[:, values.argmax()], operator.products


def ours(loss, parameters, start):
    found = sharpness(loss, parameters, start=start)
    return float(found.values[0]), found.vectors[0], found.products


def compare(arguments: argparse.Namespace) -> None:
    """Train, and let every way measure the same weights."""
    inputs, targets = digits(500, arguments.device)
    net = network(100, arguments.device)
    parameters = list(net.parameters())

    def loss():
        return half_square(net(inputs), targets)

    size = sum(leaf.numel() for leaf in parameters)
    noise = np.random.default_rng(0).standard_normal(size)
    last = {}
    ways = {
        "ours, warm": lambda: ours(loss, parameters, last.get("ours, warm")),
        "ours, cold": lambda: ours(loss, parameters, None),
        "eigsh LA k=1 tol=1e-4 ncv=8, warm": lambda: arpack(
            loss, parameters, 1, "LA", 1e-4, 8, last.get("eigsh LA k=1 tol=1e-4 ncv=8, warm", noise)
        ),
        "eigsh LA k=1 tol=1e-4 ncv=8, cold": lambda: arpack(
            loss, parameters, 1, "LA", 1e-4, 8, noise
        ),
        "authors: eigsh LM k=2 tol=0": lambda: arpack(loss, parameters, 2, "LM", 0, None, noise),
    }
    rows = {name: [] for name in ways}
    for step in range(arguments.steps + 1):
        if step % arguments.every == 0:
            for name, way in ways.items():
                (value, last[name], products), spent = seconds(way, arguments.device)
                rows[name].append((value, products, spent))
        gradient = torch.autograd.grad(loss(), parameters)
        with torch.no_grad():
            for leaf, slope in zip(parameters, gradient, strict=True):
                leaf -= STEP_SIZE * slope
    report(rows)
    costs(loss, parameters, arguments.device)


def report(rows: dict) -> None:
    """One line for each way, ratios against ours with a warm start; the first call is left out."""
    tables = {name: np.array(row)[1:] for name, row in rows.items()}
    base = tables["ours, warm"]
    for name, table in tables.items():
        print(
            json.dumps(
                {
                    "way": name,
                    "products": round(table[:, 1].mean(), 1),
                    "ms": round(1e3 * table[:, 2].mean(), 1),
                    "products_ratio": round(table[:, 1].sum() / base[:, 1].sum(), 2),
                    "time_ratio": round(table[:, 2].sum() / base[:, 2].sum(), 2),
                    "difference": float(np.abs(table[:, 0] / base[:, 0] - 1).max()),
                }
            ),
            flush=True,
        )


def costs(loss, parameters, device: str, repeats: int = 100) -> None:
    """Cost of a product with the kept graph, and of building the graph, in gradients."""
    operator = HessianOperator(loss, parameters)
    vector = torch.ones(sum(operator.sizes), dtype=torch.float64, device=device)

    def many(call):
        return seconds(lambda: [call() for _ in range(repeats)], device)[1] / repeats

    gradient = many(lambda: torch.autograd.grad(loss(), parameters))
    graph = many(lambda: HessianOperator(loss, parameters))
    product = many(lambda: operator(vector))
    row = {"gradient_ms": 1e3 * gradient, "graph_gradients": graph / gradient}
    row |= {"product_gradients": product / gradient}
    print(json.dumps({name: round(value, 2) for name, value in row.items()}), flush=True)


def dense(width: int, device: str) -> None:
    """Our sharpness against all columns at once, by vmap over jvp of grad, and eigvalsh."""
    inputs, targets = digits(200, device)
    net = network(width, device)
    names = dict(net.named_parameters())
    sizes = [leaf.numel() for leaf in names.values()]

    def flat_loss(flat):
        parts = zip(names, flat.split(sizes), names.values(), strict=True)
        weights = {name: part.view_as(leaf) for name, part, leaf in parts}
        return half_square(functional_call(net, weights, inputs), targets)

    def matrix():
        flat = torch.cat([leaf.detach().reshape(-1) for leaf in names.values()])
        columns = torch.eye(len(flat), device=device)
        return vmap(lambda v: jvp(grad(flat_loss), (flat,), (v,))[1], chunk_size=64)(columns)

    def top():
        return float(torch.linalg.eigvalsh(matrix().double())[-1])

    def lanczos():
        return sharpness(lambda: half_square(net(inputs), targets), list(names.values()))

    lanczos(), top()
    found, short = seconds(lanczos, device)
    value, long = seconds(top, device)
    row = {
        "parameters": sum(sizes),
        "ours_ms": round(1e3 * short, 1),
        "dense_ms": round(1e3 * long, 1),
        "ratio": round(long / short, 1),
        "difference": abs(float(found.values[0]) / value - 1),
    }
    print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    compare(arguments)
    dense(10, arguments.device)


if __name__ == "__main__":
    main()
