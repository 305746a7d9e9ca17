"""Parts of the GPU check that ask how fast things are, the tests for GPUs, and a short Table 4."""

import os
import re
import subprocess
import sys
import tempfile
import time

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate, kl_div

from benchmarks import distill_teacher_cache
from benchmarks.distill_cases import generator
from benchmarks.gpu_parts import pace
from benchmarks.gpu_record import Place
from benchmarks.rounds import quartiles, ratios
from lib.datasets.files import NotHereError
from lib.distill import OBJECTIVES, ImageExamples, fixed_views
from lib.distill.frozen import cifar100_file
from lib.distill.recipes import Materials, find_setting, resolve_table, training_settings
from lib.distill.runs import prepare
from lib.distill.teachers import teacher_outputs
from lib.distill.training import train_student
from lib.models.residual import residual
from lib.tpkd import directions, project_onto_safe_cone, surrogate_loss
from lib.tpkd.projection import project

SHAPES = [(4096, 100), (4096, 1000), (256, 32000)]
TINY_SHAPES = [(64, 10), (16, 2100)]
DRAWS = 4  # different inputs, so that none stays in the cache of the GPU
TEMPERATURE = 4.0
PROJECTION_BOUND = 1e-5  # of the entries, which are at most 1

SETTING = "cifar100-resnet"
FIRST = ("ce", "kd", "tpkd")  # of the methods, should time run out
SHORT = {
    "views": 2,
    "iterations": 400,
    "snapshots": [],
    "checkpoint_every": 100_000,
    "teacher_iterations": 1000,
    "teacher_warmup": 50,
}
TINY = SHORT | {
    "train": 256,
    "test": 128,
    "iterations": 2,
    "teacher_iterations": 2,
    "teacher_warmup": 1,
    "teacher_depth": 8,
    "teacher_width": 4,
    "depth": 8,
    "width": 4,
}
SIZES = [{"train": 50_000, "test": 10_000}, {"train": 20_000, "test": 5_000}]  # all, the subset


def projection(place: Place) -> None:
    """The projection and what is made of it, in times of a softmax of the same array."""
    table = {}
    for count, classes in TINY_SHAPES if place.tiny else SHAPES:
        drawn = [draw(seed, count, classes, place.device) for seed in range(DRAWS)]
        found = times(drawn, place)
        _, _, labels, vector = drawn[0]
        exact = project_onto_safe_cone(vector.double().cpu(), labels.cpu())
        error = float((project_onto_safe_cone(vector, labels).cpu() - exact).abs().max())
        shape = f"{count} x {classes}"
        place.record.check(f"{shape}: differs from float64 on the CPU", error, PROJECTION_BOUND)
        table[shape] = found | {"error": error}
        place.record.put("table", table)
        ours, softmax = found["in a row"]["projection"], found["in a row"]["softmax"]
        surrogate, plain = found["in a row"]["surrogate"], found["in a row"]["KL + CE"]
        place.record.say(
            f"projection {shape}: {1e6 * ours:.0f} us, {ours / softmax:.1f} softmaxes; surrogate / "
            f"(KL + CE) {surrogate / plain:.2f}"
        )


def draw(seed: int, count: int, classes: int, device: str) -> tuple[Tensor, ...]:
    """Logits of student and teacher, labels, and r - q."""
    source = generator(seed)
    student, teacher = (3 * torch.randn(count, classes, generator=source) for _ in range(2))
    labels = torch.randint(classes, (count,), generator=source)
    index = labels.unsqueeze(-1)
    r, q = (z.scatter(-1, index, -torch.inf).softmax(-1) for z in (student, teacher))
    return tuple(tensor.to(device) for tensor in (student, teacher, labels, r - q))


def times(drawn: list[tuple[Tensor, ...]], place: Place) -> dict[str, dict[str, float]]:
    """Seconds of each call, alone with a wait after it, and as one of many in a row."""
    calls = {
        "softmax": lambda z, t, y, x: x.softmax(-1),
        "projection": lambda z, t, y, x: project_onto_safe_cone(x, y),
        "projection, no checks": lambda z, t, y, x: project(x, y),
        "sort": lambda z, t, y, x: x.sort(-1),
        "directions": lambda z, t, y, x: directions(z, t, y),
        "surrogate": lambda z, t, y, x: our_step(z, t, y),
        "KL + CE": lambda z, t, y, x: plain_step(z, t, y),
    }
    repeats = 2 if place.tiny else 15
    found: dict[str, dict[str, float]] = {"alone": {}, "in a row": {}}
    for name, call in calls.items():
        bound = [lambda call=call, one=one: call(*one) for one in drawn]
        found["alone"][name] = pace(bound, place.device, repeats)
        found["in a row"][name] = pace(bound, place.device, repeats, 2 * DRAWS)
    return found


def our_step(student: Tensor, teacher: Tensor, labels: Tensor) -> None:
    """Forward and backward of the surrogate."""
    surrogate_loss(student.detach().requires_grad_(), teacher, labels).backward()


def plain_step(student: Tensor, teacher: Tensor, labels: Tensor) -> None:
    """Forward and backward of the plain distillation loss with the cross-entropy."""
    leaf = student.detach().requires_grad_()
    soft, target = (z.div(TEMPERATURE).log_softmax(-1) for z in (leaf, teacher))
    loss = TEMPERATURE**2 * kl_div(soft, target, log_target=True, reduction="batchmean")
    (loss + cross_entropy(leaf, labels)).backward()


def cache(place: Place) -> None:
    """The teacher in every step against its cached logits."""
    n, views, widths = (64, 2, (8, 4)) if place.tiny else (4096, 8, (128, 16))
    pair = distill_teacher_cache.residuals(n, views, widths)
    with tempfile.TemporaryDirectory() as folder:
        factor = 0.3 if place.tiny else 5.0
        found = distill_teacher_cache.time_ways("residual", pair, folder, place.device, factor)
    seconds = found["seconds"]
    gain = quartiles(ratios(seconds, "forward", "mapped"))
    place.record.put("pair", pair.says)
    place.record.put("found", found)
    place.record.say(
        f"cache: {pair.says}: {1e3 * quartiles(seconds['forward'])[1]:.1f} ms with the teacher, "
        f"{1e3 * quartiles(seconds['mapped'])[1]:.1f} ms with its cached logits, gain "
        f"{gain[1]:.2f}; filled in {found['fill_s']:.1f} s"
    )


def tests(place: Place) -> None:
    """The tests that need CUDA; test files that cannot be imported here are counted apart."""
    paths = ["tests/stability/test_quadratic.py"] if place.tiny else ["tests"]
    command = [sys.executable, "-m", "pytest", "-k", "cuda", "-p", "no:cacheprovider", "-rfE"]
    command += ["--continue-on-collection-errors", *paths]
    with tempfile.TemporaryFile("w+") as output:
        try:
            limit = max(place.left() - 5, 1)
            subprocess.run(command, stdout=output, stderr=output, timeout=limit)
        finally:
            output.seek(0)
            text = output.read().strip()
            print(text, flush=True)
            place.record.put("tail", text.splitlines()[-30:])
    summary = text.splitlines()[-1] if text else ""
    counts = {
        what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|skipped|error)", summary)
    }
    place.record.put("counts", counts)
    place.record.check("failed tests", float(counts.get("failed", 0)), 0.0)
    ran = counts.get("passed", 0) if place.device == "cuda" else counts.get("skipped", 0)
    place.record.check("no test ran", float(ran == 0), 0.0)
    place.record.say(f"pytest -k cuda: {summary}")


def table4(place: Place) -> None:
    """Every method once, from one start, with one teacher; accuracies of so few steps are low."""
    setting, wanted = find_setting(SETTING), TINY if place.tiny else SHORT
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BOOK_CACHE"] = folder
        began = time.monotonic()
        source, table, materials = find_materials(wanted, place)
        place.record.put("data", source)
        place.record.put("teacher", dict(materials.facts))
        place.record.put("teacher_s", round(time.monotonic() - began, 1))
        overrides = {name: table[name] for name in {*wanted, "train", "test"}}
        rows, slowest = {}, 0.0
        for method in [*FIRST, *(name for name in OBJECTIVES if name not in FIRST)]:
            if place.left() < 1.5 * slowest + 2:
                place.record.put("not run", [name for name in OBJECTIVES if name not in rows])
                break
            student = setting.student(table, materials, 42)
            result = train_student(
                student,
                materials.examples,
                training_settings(setting, method, 42, overrides),
                teacher=materials.teacher,
                test=materials.test,
                test_teacher=materials.test_teacher,
                device=place.device,
            )
            slowest = max(slowest, result.seconds)
            rows[method] = result.measures | {"seconds": round(result.seconds, 2)}
            place.record.put("rows", rows)
    found = ", ".join(f"{name} {100 * row['accuracy']:.1f}" for name, row in rows.items())
    teacher = 100 * materials.facts["accuracy"]
    place.record.say(
        f"table4: {source}, {table['iterations']} steps; teacher {teacher:.1f} %: {found}"
    )


def find_materials(wanted: dict, place: Place) -> tuple[str, dict, Materials]:
    """CIFAR-100, else its subset, else random images; and the table of numbers."""
    setting, device = find_setting(SETTING), torch.device(place.device)
    for sizes in SIZES:
        overrides = sizes | wanted
        table = resolve_table(setting, overrides)
        try:
            source = cifar100_file(table["train"], table["test"]).name
        except NotHereError as error:
            print(error, flush=True)
            continue
        return source, table, prepare(SETTING, "smooth", overrides, device=device)
    return "random images", table, random_materials(table, device)


def random_materials(table: dict, device: torch.device) -> Materials:
    """Noise around a smooth image of each of 100 classes, which stand in 20 families."""
    source, parts = generator(), []
    family = torch.randn(20, 3, 4, 4, generator=source).repeat_interleave(5, 0)
    own = family + 0.7 * torch.randn(100, 3, 4, 4, generator=source)
    smooth = interpolate(own, (32, 32), mode="bilinear")
    for n in (table["train"], table["test"]):
        labels = torch.randint(100, (n,), generator=source)
        noise = 2 * torch.randn(n, 3, 32, 32, generator=source)
        parts.append(((smooth[labels] + noise).sigmoid(), labels))
    views = fixed_views(table["train"], table["views"], table["padding"], generator())
    examples = ImageExamples(*parts[0], *views, padding=table["padding"])
    test = ImageExamples(*parts[1])
    network = residual(table["teacher_depth"], 100, table["teacher_width"], generator=generator())
    outputs = teacher_outputs(network, examples, test, table, "smooth", device=device)
    return Materials(examples, test, *outputs)
