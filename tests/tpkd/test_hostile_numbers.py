"""Hostile arguments for the public functions that take no states: constants, heads, spectra."""

import math
import random
from fractions import Fraction

import pytest
import scipy.linalg
import torch

import lib.tpkd as tpkd
from tests.tpkd import reference
from tests.tpkd.hostile import NO_TENSORS, draw_states
from tests.tpkd.test_hostile import DRAWS, TARGETS, batch_of, refuse, rows_of

NO_CLASSES = [2, 0, -3, 3.5, math.nan, True, "3", None, [3], 1j, *map(torch.tensor, (2, 3.0, True))]
NO_WEIGHTS = [-1.0, math.nan, math.inf, "1", None, [1.0], True, torch.tensor(1j)]
OTHERS = {
    "retention_bound",
    "alignment_bound",
    "alignment_extremal",
    "distortion_limits",
    "angle_spectrum_bound",
    "weighted_descent_constant",
    "weighted_step_limit",
    "potential_gradient",
    "confidence_direction",
    "surrogate_loss",
    "exact_head_step",
    "restricted_spectrum",
    "output_vjp",
}
RECORDS = {"Directions", "OutputPath", "RULES"}


def test_every_public_function_is_under_fire():
    assert set(tpkd.__all__) <= set(TARGETS) | OTHERS | RECORDS
    slow = sum(target.extra == "budget" for target in TARGETS.values())
    assert DRAWS * (len(TARGETS) - slow) + DRAWS // 2 * slow >= 5000


@pytest.mark.parametrize("classes", [3, 4, 10, 100, 100_000])
def test_constants_of_classes(classes):
    gamma = Fraction(classes, 2 * classes - 2)
    root = math.sqrt(gamma)
    assert float(tpkd.retention_bound(classes)) == pytest.approx(float(gamma), rel=1e-15)
    assert float(tpkd.alignment_bound(torch.tensor(classes))) == pytest.approx(
        2 * root / (1 + float(gamma)), rel=1e-14
    )
    kappa_c, kappa_phi = tpkd.distortion_limits(classes)
    assert float(kappa_phi) == pytest.approx((1 + root) / (1 - root), rel=1e-12)
    assert float(kappa_c) == pytest.approx(((1 + root) / (1 - root)) ** 2, rel=1e-12)
    if classes > 3:
        signal = tpkd.alignment_extremal(classes)
        d = tpkd.project_onto_safe_cone(signal, torch.tensor(0))
        w = tpkd.conditional_component(d, torch.tensor(0))
        cosine = torch.nn.functional.cosine_similarity(signal, w, dim=0)
        assert float(cosine) == pytest.approx(float(tpkd.alignment_bound(classes)), rel=1e-12)


@pytest.mark.parametrize("wrong", NO_CLASSES, ids=str)
def test_wrong_numbers_of_classes(wrong):
    for call in (
        tpkd.retention_bound,
        tpkd.alignment_bound,
        tpkd.distortion_limits,
        tpkd.alignment_extremal,
        lambda k: tpkd.weighted_descent_constant(1.0, 1.0, k),
        lambda k: tpkd.weighted_step_limit(1.0, 1.0, k),
        lambda k: tpkd.confidence_direction(torch.tensor(0), k),
    ):
        with pytest.raises(ValueError, match="classes must be"):
            call(wrong)
    for small in (3, torch.tensor([4, 5])):
        with pytest.raises(ValueError, match="classes must be an integer >= 4"):
            tpkd.alignment_extremal(small)


@pytest.mark.parametrize("seed", range(100))
def test_numbers(seed):
    rng = random.Random(seed)
    c, m = rng.uniform(-1, 1), rng.choice([0.0, rng.uniform(0, 1e3)])
    largest, k = m + rng.choice([0.0, rng.uniform(0, 1e6)]), rng.choice([3, 5, 1000])
    w, beta = 10 ** rng.uniform(-6, 6), 10 ** rng.uniform(-6, 6)
    found = float(tpkd.angle_spectrum_bound(c, torch.tensor(m, dtype=torch.float64), largest))
    assert found == pytest.approx(((1 + c) * m - (1 - c) * largest) / 2, rel=1e-12, abs=1e-9)
    form = [[w, -0.5], [-0.5, beta * k / (2 * k - 2)]]
    smallest = scipy.linalg.eigvalsh(form)[0]
    slack = 1e-13 * max(w, beta, 1)
    assert float(tpkd.weighted_descent_constant(w, beta, k)) == pytest.approx(smallest, abs=slack)
    scale = (w + 1) * max(1, beta**2)
    limit = float(tpkd.weighted_step_limit(w, beta, k))
    assert limit * scale == pytest.approx(smallest, abs=10 * slack)
    calls = {
        "cosine": lambda x: tpkd.angle_spectrum_bound(x, m, largest),
        "smallest": lambda x: tpkd.angle_spectrum_bound(c, x, largest),
        "largest": lambda x: tpkd.angle_spectrum_bound(c, m, x),
        "label_weight": lambda x: tpkd.weighted_descent_constant(x, beta, k),
        "weight": lambda x: tpkd.weighted_step_limit(w, x, k),
    }
    name = rng.choice(list(calls))
    wrong = rng.choice([-2.0, math.nan, "1", None, [1.0], True, torch.tensor(1j)])
    with pytest.raises(ValueError, match=f"{name} must"):
        calls[name](wrong)


def test_numbers_that_do_not_broadcast():
    two, three = torch.ones(2), torch.ones(3)
    with pytest.raises(ValueError, match="largest"):
        tpkd.angle_spectrum_bound(0.5, two, three)
    with pytest.raises(ValueError, match="weight"):
        tpkd.weighted_descent_constant(two, three, 3)
    with pytest.raises(ValueError, match="weight"):
        tpkd.weighted_step_limit(two, three, 3)
    with pytest.raises(ValueError, match="classes"):
        tpkd.weighted_step_limit(two, two, torch.tensor([3, 4, 5]))


@pytest.mark.parametrize("seed", range(250))
def test_surrogate_loss(seed):
    roles = ("student", "teacher", "labels")
    draw = draw_states(seed, roles, ("teacher",))
    if draw.fault:
        names = {"student": "student_logits", "teacher": "teacher_logits"}
        draw.fault = tuple(names.get(name, name) for name in draw.fault)
        refuse(draw, tpkd.surrogate_loss, *draw.values.values())
        return
    batch = batch_of(draw.values)
    if 0 in batch:
        with pytest.raises(ValueError, match="student_logits must hold at least one example"):
            tpkd.surrogate_loss(*draw.values.values())
        return
    rows = list(rows_of(draw.values, batch))
    products = []
    for z, w, y in rows:
        update = reference.directions(z, w, y)["update"]
        products.append([float(a) * b for a, b in zip(update, z, strict=True)])
    exact = sum(map(sum, products)) / len(rows)
    found = tpkd.surrogate_loss(*draw.values.values())
    if abs(exact) < torch.finfo(found.dtype).max / 16:
        size = sum(abs(x) for row in products for x in row) + 1e-300
        slack = 8 * torch.finfo(found.dtype).eps + (0 if found.dtype == torch.float64 else 4e-6)
        assert float(found) == pytest.approx(exact, abs=slack * (size + draw.scale))


@pytest.mark.parametrize("rule", ["", "TPKD", "kd", None, 3, ["tpkd"]])
def test_unknown_rules(rule):
    z, y = torch.zeros(3), torch.tensor(0)
    with pytest.raises(ValueError, match="rule must be one of"):
        tpkd.update_direction(rule, z, z, y)
    with pytest.raises(ValueError, match="rule must be one of"):
        tpkd.run_output_steps(z, z, y, 0.1, 1, rule=rule)


@pytest.mark.parametrize("steps", [-1, 1.5, "2", None, True, math.inf, torch.tensor([1, 2])])
def test_wrong_numbers_of_steps(steps):
    z, y = torch.zeros(3), torch.tensor(0)
    with pytest.raises(ValueError, match="steps must be an integer"):
        tpkd.run_output_steps(z, z, y, 0.1, steps)


@pytest.mark.parametrize("record", [[], [-1], [3], 1, "ab", [None], [0.5]])
def test_wrong_records(record):
    z, y = torch.zeros(3), torch.tensor(0)
    with pytest.raises(ValueError, match="record must"):
        tpkd.run_output_steps(z, z, y, 0.1, 2, record=record)


def test_potential_gradient():
    h, u = torch.tensor([-1.0, 0.5, 0.5]), torch.tensor([0.0, 0.25, -0.25])
    assert tpkd.potential_gradient(h, u).tolist() == [-4.0, 2.25, 1.75]
    for wrong in [*NO_WEIGHTS, torch.zeros(2)]:
        with pytest.raises(ValueError, match="weight must"):
            tpkd.potential_gradient(h, u, wrong)
    for wrong in [*NO_TENSORS, torch.tensor([0.0, math.nan, 0.0]), torch.zeros(4), h * 1j]:
        with pytest.raises(ValueError, match="label"):
            tpkd.potential_gradient(wrong, u)
        with pytest.raises(ValueError, match="signal"):
            tpkd.potential_gradient(h, wrong)


@pytest.mark.parametrize("classes", [3, 4, 9])
def test_confidence_direction(classes):
    for labels in (torch.tensor(1), torch.tensor([2, 0], dtype=torch.uint8), torch.zeros(0).long()):
        found = tpkd.confidence_direction(labels, classes)
        exact = torch.full((*labels.shape, classes), 1 / (classes - 1)).double()
        exact[torch.arange(classes) == labels.unsqueeze(-1)] = -1.0
        torch.testing.assert_close(found, exact, rtol=1e-7, atol=0)
    for wrong in [*NO_TENSORS, torch.tensor(classes), torch.tensor(-1), torch.tensor(0.0)]:
        with pytest.raises(ValueError, match="labels must"):
            tpkd.confidence_direction(wrong, classes)
    for dtype in (torch.int64, "float64", None):
        with pytest.raises(ValueError, match="dtype must"):
            tpkd.confidence_direction(torch.tensor(0), classes, dtype)


@pytest.mark.parametrize("seed", range(120))
def test_exact_head_step(seed):
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    n, width, classes = rng.choice([1, 2, 4]), rng.choice([4, 7]), rng.choice([1, 3, 5])
    dtype = rng.choice([torch.float64, torch.float32, torch.float16, torch.bfloat16])
    scale = 10 ** rng.uniform(-3, 3)
    shapes = {"features": (n, width), "head": (width, classes), "update": (n, classes)}
    named = {
        name: (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)
        for name, shape in shapes.items()
    }
    named["step_size"] = rng.choice([0.0, 0.01, 1.0])
    fault = rng.choice(["", "", "features", "head", "update", "step_size", "rank"])
    if fault in shapes:
        spoiled = named[fault].clone()
        spoiled.view(-1)[0] = rng.choice([math.nan, math.inf])
        wrong = [
            spoiled,
            named[fault][0],
            named[fault].to(torch.complex64),
            named[fault] > 0,
            *NO_TENSORS,
        ]
        named[fault] = rng.choice([*wrong, named[fault][:, :0], torch.cat([named[fault]] * 2)])
    elif fault == "step_size":
        named[fault] = rng.choice([*NO_WEIGHTS, torch.zeros(2), torch.zeros(0)])
    elif fault == "rank":
        rows = [named["features"]] * 2 if n > 1 else [named["features"] * 0]
        named["features"] = torch.cat(rows)[: max(n, 1)] if n == 1 else torch.cat(rows)
        named["update"] = torch.cat([named["update"]] * len(rows))
        fault = "features"
    if fault:
        with pytest.raises(ValueError, match=fault):
            tpkd.exact_head_step(**named)
        return
    x, a, v = (named[name].double() for name in shapes)
    exact = a - named["step_size"] * x.mT @ torch.linalg.solve(x @ x.mT, v)
    found = tpkd.exact_head_step(**named)
    assert found.dtype == dtype
    slack = 1e-9 * (1 + scale) * float(torch.linalg.cond(x @ x.mT))
    torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(dtype).eps, atol=slack)


@pytest.mark.parametrize("seed", range(120))
def test_restricted_spectrum(seed):
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    jacobian, first, second = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((6, 9), (2, 3), (2, 3))
    )
    second = rng.choice([second, second * 1e-6, first + 1e-3 * second, 1e9 * second])

    def vjp(direction):
        return jacobian.mT @ direction.flatten()

    fault = rng.choice(["", "", "first", "second", "both", "vjp"])
    if fault in ("first", "second"):
        bad = torch.full((2, 3), rng.choice([math.nan, math.inf])).double()
        wrong = rng.choice([bad, torch.zeros(2, 2).double(), torch.zeros(2, 3).long(), *NO_TENSORS])
        first, second = (wrong, second) if fault == "first" else (first, wrong)
    elif fault == "both":
        first = second = torch.zeros(2, 3).double()
        fault = "first and second"
    elif fault == "vjp":
        broken = rng.choice([lambda x: vjp(x) * math.nan, None, lambda x: None, lambda x: [1.0]])
        with pytest.raises(ValueError, match="vjp must"):
            tpkd.restricted_spectrum(broken, first, second)
        return
    if fault:
        with pytest.raises(ValueError, match=fault):
            tpkd.restricted_spectrum(vjp, first, second)
        return
    pair = torch.stack([x.flatten() / x.norm() for x in (first, second)])
    images = pair @ jacobian
    exact = scipy.linalg.eigh((images @ images.mT).numpy(), (pair @ pair.mT).numpy())[0]
    found = torch.stack(tpkd.restricted_spectrum(vjp, first, second))
    torch.testing.assert_close(found, torch.from_numpy(exact), rtol=1e-7, atol=0)


def test_output_vjp():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    theta = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    unused = torch.zeros(2, requires_grad=True)
    outputs, direction = matrix @ theta, torch.ones(4, dtype=torch.float64)
    vjp = tpkd.output_vjp(outputs, [theta, unused])
    found = vjp(direction)
    torch.testing.assert_close(found[0], matrix.sum(0), rtol=1e-14, atol=0)
    assert not bool(found[1].any())
    for wrong in [*NO_TENSORS, torch.ones(4)]:
        with pytest.raises(ValueError, match="outputs must"):
            tpkd.output_vjp(wrong, [theta])
    for wrong in (None, 1.0, [], [None], [torch.ones(2)]):
        with pytest.raises(ValueError, match="parameters must"):
            tpkd.output_vjp(outputs, wrong)
    for wrong in [*NO_TENSORS, torch.ones(3)]:
        with pytest.raises(ValueError, match="direction must"):
            vjp(wrong)
