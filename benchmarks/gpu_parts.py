"""Parts of the GPU check that ask whether the GPU computes what the CPU does."""

import os
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.distill_cases import drawn_teacher, generator
from benchmarks.gpu_record import Place
from lib.datasets.phrases import synthetic_phrases
from lib.distill import (
    OBJECTIVES,
    Examples,
    TensorExamples,
    TokenExamples,
    combine_gradients,
    objective_losses,
)
from lib.distill.settings import TrainingSettings
from lib.distill.training import Trainer
from lib.models.perceptron import perceptron
from lib.models.residual import residual
from lib.models.text import text_encoder

DTYPES = {"float32": torch.float32, "float64": torch.float64}
OBJECTIVE_BOUNDS = {"float32": 2e-5, "float64": 1e-12}  # relative, of losses and gradients
RUN_BOUNDS = {"float32": 1e-2, "float64": 1e-8}  # relative, of the way the weights went
SHAPES = [(64, 10), (256, 100), (32, 1000)]
SHORT = ("ce", "kd", "tpkd")
PATHS = ("ce", "kd", "tpkd", "dkd", "dhkd", "dto-kd")
LOSS_BOUND = 0.3  # nats between the cross-entropies of two precisions after the same steps


def machine(place: Place) -> None:
    """What the GPU is, and the bytes a second that a copy moves."""
    facts: dict = {"cpus": os.cpu_count(), "torch": torch.__version__, "device": place.device}
    size = 2**24 if place.tiny else 2**30
    if place.device == "cuda":
        found = torch.cuda.get_device_properties(0)
        facts |= {
            "name": found.name,
            "memory_gib": round(found.total_memory / 2**30, 1),
            "capability": f"{found.major}.{found.minor}",
            "cuda": torch.version.cuda,
            "bfloat16": torch.cuda.is_bf16_supported(),
        }
    place.record.put("facts", facts)
    source = torch.ones(size // 4, device=place.device)
    target = torch.empty_like(source)
    seconds = pace([lambda: target.copy_(source)], place.device, 10)
    place.record.put("copy_gb_s", round(2 * size / seconds / 1e9, 1))
    place.record.say(
        f"{facts.get('name', 'CPU')}: a copy moves {2 * size / seconds / 1e9:.0f} GB/s"
    )


def pace(calls: list, device: str, repeats: int, inner: int = 1) -> float:
    """Seconds of a call: the median of the repeats, each `inner` calls in a row, taking turns."""
    for call in calls:
        call()
    found = []
    for _ in range(repeats):
        wait(device)
        begin = time.perf_counter()
        for number in range(inner):
            calls[number % len(calls)]()
        wait(device)
        found.append((time.perf_counter() - begin) / inner)
    return statistics.median(found)


def wait(device: str) -> None:
    """Until the GPU has done its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def objectives(place: Place) -> None:
    """Losses and gradients of every method against float64 on the CPU, from the same numbers."""
    shapes = SHAPES[:1] if place.tiny else SHAPES
    table: dict[str, dict[str, float]] = {}
    for name in OBJECTIVES:
        for kind, dtype in DTYPES.items():
            errors = {"cpu": 0.0, place.device: 0.0}
            for seed, shape in enumerate(shapes):
                exact = evaluate(name, *draw(seed, *shape, dtype), torch.float64, "cpu")
                for device in errors:
                    found = evaluate(name, *draw(seed, *shape, dtype), dtype, device)
                    errors[device] = max(errors[device], furthest(found, exact))
            table[f"{name}, {kind}"] = errors
            bound = OBJECTIVE_BOUNDS[kind]
            place.record.check(f"{name}, {kind}", errors[place.device], bound)
    place.record.put("relative errors", table)
    worst = {
        kind: max((row[place.device], at) for at, row in table.items() if kind in at)
        for kind in DTYPES
    }
    place.record.say(
        "objectives: largest relative error "
        + "; ".join(f"{error:.1e} ({at})" for error, at in worst.values())
    )


def draw(seed: int, count: int, classes: int, dtype: torch.dtype) -> tuple[dict, Tensor]:
    """Logits that the dtype holds exactly, as float64, and labels."""
    source = generator(seed)
    labels = torch.randint(classes, (count,), generator=source)
    names = ("student_logits", "teacher_logits", "frozen_logits", "auxiliary_logits")
    logits = {
        name: (3 * torch.randn(count, classes, generator=source)).to(dtype).double()
        for name in names
    }
    return logits, labels


def evaluate(
    name: str, logits: dict, labels: Tensor, dtype: torch.dtype, device: str
) -> list[Tensor]:
    """Every loss, every gradient in the student's two heads, and what a method makes of them."""
    given = {key: z.to(device, dtype) for key, z in logits.items()}
    leaves = [given[key].requires_grad_() for key in ("student_logits", "auxiliary_logits")]
    student, teacher = given.pop("student_logits"), given.pop("teacher_logits")
    losses = objective_losses(name, student, teacher, labels.to(device), step=3, **given)
    gradients = []
    for loss in losses:
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        found = torch.autograd.grad(loss, leaves, **options)
        gradients.append(torch.cat([part.flatten() for part in found]))
    combined = combine_gradients(name, tuple(gradients), tuple(loss.detach() for loss in losses))
    surrogate = OBJECTIVES[name].surrogate  # whose value means nothing
    values = [] if surrogate else [loss.detach() for loss in losses]
    return [one.double().cpu() for one in (*values, *gradients, combined)]


def furthest(found: list[Tensor], exact: list[Tensor]) -> float:
    """The largest of the relative distances."""
    errors = [(a - b).norm() / b.norm() for a, b in zip(found, exact, strict=True)]
    return float(torch.stack(errors).max())


@dataclass(frozen=True)
class Small:
    """A small network and what it learns from, on every device the same.

    Attributes:
        student: the network, before training.
        examples: on the CPU.
        teacher: (1, n, K).
        settings: but for method, iterations, seed and precision.
    """

    student: nn.Module
    examples: Examples
    teacher: Tensor
    settings: dict


def small_network(name: str) -> Small:
    """A perceptron, a residual network or a text encoder; none has dropout."""
    settings = {"learning_rate": 0.02, "batch_size": 32, "auxiliary_head": "linear"}
    labels = torch.randint(10, (256,), generator=generator(2))
    teacher = drawn_teacher(labels, 10)
    if name == "perceptron":
        inputs = torch.randn(256, 64, generator=generator(3))
        student = perceptron(64, [64], 10, generator=generator())
        return Small(student, TensorExamples(inputs, labels), teacher, settings)
    if name == "residual":
        inputs = torch.randn(256, 3, 8, 8, generator=generator(3))
        student = residual(8, 10, 4, generator=generator())
        return Small(student, TensorExamples(inputs, labels), teacher, settings)
    tokens, lengths, _ = synthetic_phrases(20, 256, 600, 5, generator=generator(3))
    student = text_encoder(600, 10, 32, 1, 2, generator=generator(), dropout=0.0)
    adam = {"optimiser": "adam-weight-decay", "learning_rate": 1e-3, "micro_batch": 16}
    return Small(student, TokenExamples(tokens, lengths, labels), teacher, settings | adam)


def runs(place: Place) -> None:
    """Twenty steps from one start on both devices: how far apart they end, of the way they went."""
    wanted = [(name, m) for name in ("residual", "encoder") for m in SHORT]
    wanted += [("perceptron", m) for m in OBJECTIVES]
    for name, method in [("residual", "tpkd"), ("perceptron", "dto-kd")] if place.tiny else wanted:
        for kind in DTYPES:
            start, here = travelled(name, method, kind, "cpu")
            _, there = travelled(name, method, kind, place.device)
            apart = float((there - here).norm() / (here - start).norm())
            place.record.check(f"{name}, {method}, {kind}", apart, RUN_BOUNDS[kind])
    checks = place.record.facts["checks"]
    worst = {kind: max(r["value"] for at, r in checks.items() if kind in at) for kind in DTYPES}
    place.record.say(f"runs: after 20 steps apart by {worst} of the way")


def travelled(name: str, method: str, kind: str, device: str) -> tuple[Tensor, Tensor]:
    """All weights before and after twenty steps, in float64 on the CPU."""
    small = small_network(name)
    settings = TrainingSettings(method, 20, 0, precision=kind, **small.settings)
    start = flat(small.student)
    trainer = Trainer(small.student, small.examples, settings, teacher=small.teacher, device=device)
    for k in range(20):
        trainer.step(k)
    return start, flat(trainer.student)


def flat(network: nn.Module) -> Tensor:
    """All weights as one vector."""
    return torch.cat([p.detach().double().cpu().flatten() for p in network.parameters()])


def precision(place: Place) -> None:
    """The trainer's step in every precision: milliseconds, memory, and the loss at the end."""
    networks = {"residual": big_residual, "encoder": big_encoder}
    kinds = ["float32", "amp-bfloat16", "amp-float16"]
    if place.device == "cpu":
        place.record.check("amp-float16 is refused on a CPU", float(not refused()), 0.0)
        kinds.pop()
    table = {}
    for name, make in networks.items():
        for method in ("tpkd", "dhkd") if place.tiny else PATHS:
            rows = {kind: one_precision(make, method, kind, place) for kind in kinds}
            for kind, row in rows.items():
                row["speed"] = round(rows["float32"]["ms"] / row["ms"], 2)
                apart = abs(row["cross_entropy"] - rows["float32"]["cross_entropy"])
                place.record.check(f"{name}, {method}, {kind}: loss", apart, LOSS_BOUND)
                fell = row["cross_entropy"] - row["first"]
                place.record.check(f"{name}, {method}, {kind}: fell", fell, 0.0)
            table[f"{name}, {method}"] = rows
            place.record.put("table", table)
    for name in networks:
        found = table[f"{name}, tpkd"]
        place.record.say(
            f"{name}, TPKD: "
            + ", ".join(f"{k} {r['ms']} ms ({r['speed']}x)" for k, r in found.items())
        )


def refused() -> bool:
    """Whether a CPU refuses float16."""
    small = small_network("perceptron")
    settings = TrainingSettings("ce", 1, 0, precision="amp-float16", **small.settings)
    try:
        Trainer(small.student, small.examples, settings, device="cpu")
    except ValueError:
        return True
    return False


def big_residual(tiny: bool) -> Small:
    """A residual network of 20 layers on images of which each class has its own mean."""
    count, side, width = (128, 8, 4) if tiny else (2048, 32, 32)
    labels = torch.randint(100, (count,), generator=generator(2))
    means = torch.randn(100, 3, side, side, generator=generator(4))
    images = means[labels] + torch.randn(count, 3, side, side, generator=generator(3))
    student = residual(8 if tiny else 20, 100, width, generator=generator())
    settings = {"learning_rate": 0.01, "batch_size": count // 8, "micro_batch": count // 8}
    return Small(student, TensorExamples(images, labels), drawn_teacher(labels, 100), settings)


def big_encoder(tiny: bool) -> Small:
    """A text encoder of four layers on synthetic phrases of 100 classes."""
    count, width, layers = (128, 16, 1) if tiny else (2048, 256, 4)
    tokens, lengths, labels = synthetic_phrases(100, count, 2000, 5, generator=generator(3))
    student = text_encoder(2000, 100, width, layers, 4, generator=generator())
    settings = {"optimiser": "adam-weight-decay", "learning_rate": 1e-3, "clip": 1.0}
    settings |= {"batch_size": count // 8, "micro_batch": count // 8, "auxiliary_head": "linear"}
    examples = TokenExamples(tokens, lengths, labels)
    return Small(student, examples, drawn_teacher(labels, 100), settings)


def one_precision(make, method: str, kind: str, place: Place) -> dict:
    """Some steps of one method in one precision."""
    small, steps = make(place.tiny), 4 if place.tiny else 60
    settings = TrainingSettings(method, steps, 0, precision=kind, **small.settings)
    if place.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(
        small.student, small.examples, settings, teacher=small.teacher, device=place.device
    )
    first = mean_loss(trainer, small)
    seconds, skipped = [], 0
    for k in range(steps):
        wait(place.device)
        begin = time.perf_counter()
        found = trainer.step(k)
        wait(place.device)
        seconds.append(time.perf_counter() - begin)
        skipped += found["gradient_norm"] is None
    row = {"ms": round(1e3 * statistics.median(seconds[steps // 4 :]), 3), "skipped": skipped}
    if place.device == "cuda":
        row["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    return row | {"first": first, "cross_entropy": mean_loss(trainer, small)}


def mean_loss(trainer: Trainer, small: Small) -> float:
    """The cross-entropy of all examples, for the network as it is trained, in float32."""
    logits = trainer.predict(small.examples)
    return float(nn.functional.cross_entropy(logits.double(), small.examples.labels))
