"""The mathematics of the interactive picture of the safe region.

Node runs the scripts' pure functions; without it these tests are skipped. Python's side is written
in log-odds, the scripts' in probabilities.
"""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from lib import tpkd

ASSETS = Path(__file__).resolve().parents[2] / "book" / "assets"
SCRIPTS = ASSETS / "js"
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
FIGURE_1 = ([0.90, 0.07, 0.03], [0.40, 0.25, 0.35])


def node(expression: str, given: object = None) -> object:
    """What an expression of the scripts is; ``given`` is at hand in it."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not installed")
    code = (
        f"const maths = require({json.dumps(str(SCRIPTS / 'safe-region-maths.js'))});"
        f"const show = require({json.dumps(str(SCRIPTS / 'safe-region-picture.js'))});"
        'const given = JSON.parse(require("fs").readFileSync(0, "utf8"));'
        f"process.stdout.write(JSON.stringify({expression}));"
    )
    done = subprocess.run(
        [program, "-e", code], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def random_states(classes: int, seed: int, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Students from undecided to sure within 1e-9, and teachers of all kinds."""
    generator = np.random.default_rng(seed)
    odds = np.linspace(-4, 20, count)
    confidence = 1 / (1 + np.exp(-odds))
    r = generator.dirichlet(np.ones(classes - 1), count).clip(1e-4)
    r /= r.sum(axis=1, keepdims=True)
    wrong = 1 / (1 + np.exp(odds))
    students = np.concatenate([confidence[:, None], wrong[:, None] * r], axis=1)
    teachers = generator.dirichlet(np.ones(classes), count).clip(1e-4)
    return students, teachers / teachers.sum(axis=1, keepdims=True)


STATES = [(3, 0), (3, 1), (4, 2), (7, 3)]
EXPRESSION = """given.map(([p, t]) => ({
  margins: maths.margins(p), blocked: maths.isBlocked(p, t), cost: maths.transferCost(p, t),
  least: maths.minimumConfidence(p, t), labelOnly: maths.labelOnlyOptimum(p, t),
  losses: Object.values(maths.losses(p, t)),
  path: [0, 0.13, 0.5, 0.97, 1].map((s) => maths.safePath(p, t, s)),
}))"""
ALONG = [0, 0.13, 0.5, 0.97, 1]


@pytest.fixture(scope="module", params=STATES, ids=lambda state: f"{state[0]}-classes")
def compared(request):
    students, teachers = random_states(*request.param)
    found = node(EXPRESSION, np.stack([students, teachers], axis=1).tolist())
    return students, teachers, found


def values(found: list[dict], name: str) -> np.ndarray:
    return np.array([state[name] for state in found])


def path_in_log_odds(p: np.ndarray, t: np.ndarray, s: float) -> np.ndarray:
    """Eq. A.3 by logits: the wrong classes get log r(s), the right one the log-odds."""
    r, q = p[:, 1:] / p[:, 1:].sum(axis=1, keepdims=True), t[:, 1:] / (t[:, 1:].sum(1)[:, None])
    ratio = np.exp((np.log(q) - np.log(r)).max(axis=1))
    logits = np.concatenate(
        [
            (np.log(p[:, 0]) - np.log(p[:, 1:].sum(axis=1)) + np.log1p(s * (ratio - 1)))[:, None],
            np.log((1 - s) * r + s * q),
        ],
        axis=1,
    )
    return np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))


def test_path_and_price_are_the_closed_forms(compared):
    p, t, found = compared
    path = values(found, "path")
    for i, s in enumerate(ALONG):
        np.testing.assert_allclose(path[:, i], path_in_log_odds(p, t, s), **CLOSE)
    np.testing.assert_allclose(path[:, 0], p, **CLOSE)
    np.testing.assert_allclose(values(found, "least"), path[:, -1, 0], **CLOSE)
    gained = np.log(path[:, -1, 0] / path[:, -1, 1:].sum(axis=1)) - np.log(
        p[:, 0] / p[:, 1:].sum(axis=1)
    )
    np.testing.assert_allclose(values(found, "cost"), gained, **CLOSE)


def test_losses_decompose_as_equation_1(compared):
    p, t, found = compared
    label, conditional, full = values(found, "losses").T
    rho, tau = p[:, 0], t[:, 0]
    right, wrong = p[:, 1:].sum(axis=1), t[:, 1:].sum(axis=1)
    bernoulli = tau * np.log(tau / rho) + wrong * np.log(wrong / right)
    np.testing.assert_allclose(label, -np.log(rho), **CLOSE)
    np.testing.assert_allclose(full, bernoulli + wrong * conditional, **CLOSE)


def test_scripts_and_library_agree(compared):
    p, t, found = compared
    student, teacher = (torch.from_numpy(np.log(array)) for array in (p, t))
    labels = torch.zeros(len(p), dtype=torch.int64)
    of_library = {
        "margins": tpkd.margins(student, labels)[:, 1:],
        "cost": tpkd.transfer_cost(student, teacher, labels),
        "least": tpkd.minimum_confidence(student, teacher, labels),
    }
    for name, expected in of_library.items():
        np.testing.assert_allclose(values(found, name), expected.numpy(), **CLOSE)
    conditional = tpkd.conditional_kl(student, teacher, labels)
    np.testing.assert_allclose(values(found, "losses")[:, 1], conditional.numpy(), **CLOSE)
    blocked = tpkd.is_blocked(student, teacher, labels).tolist()
    assert values(found, "blocked").tolist() == blocked
    assert 0 < sum(blocked) < len(blocked)
    for i, s in enumerate(ALONG):
        path = tpkd.safe_path(student, teacher, labels, s).exp()
        np.testing.assert_allclose(values(found, "path")[:, i], path.numpy(), **CLOSE)


def test_a_tie_is_blocked():
    p, t = FIGURE_1[0], [0.90, 0.06, 0.04]
    assert node("maths.comparisons(...given)", [p, p]) == [True, True]
    assert node("maths.comparisons(...given)", [p, t]) == [False, True]


@pytest.mark.parametrize("seed", range(3))
def test_no_feasible_prediction_beats_the_label_only_optimum(seed):
    students, teachers = random_states(3, seed, count=40)
    optima = np.array(
        node(
            "given.map(([p, t]) => maths.labelOnlyOptimum(p, t))",
            np.stack([students, teachers], axis=1).tolist(),
        )
    )
    assert (optima[:, 0] >= students[:, 0] - 1e-15).all()
    np.testing.assert_allclose(optima.sum(axis=1), 1, **CLOSE)
    generator = np.random.default_rng(seed)
    for p, t, best in zip(students, teachers, optima, strict=True):
        a = p[0] + (1 - p[0]) * generator.uniform(0, 1, 500) ** 3
        others = (1 - a)[:, None] * generator.dirichlet([1, 1], 500)
        tried = np.concatenate([a[:, None], others], axis=1).clip(1e-300)
        assert (t * np.log(t / best)).sum() <= (t * np.log(t / tried)).sum(axis=1).min() + 1e-12


def test_worked_example_of_the_paper():
    p, t = FIGURE_1
    cost, end, label_only, before, after = node(
        """[maths.transferCost(...given), maths.transferEnd(...given),
        maths.labelOnlyOptimum(...given), maths.losses(...given),
        maths.losses(maths.transferEnd(...given), given[1])]""",
        [p, t],
    )
    assert cost == pytest.approx(np.log(35 / 18), abs=1e-14)
    assert end == pytest.approx([35 / 37, 5 / 222, 7 / 222], abs=1e-14)
    assert label_only == pytest.approx([0.9, 1 / 24, 7 / 120], abs=1e-14)
    assert before == pytest.approx(
        {"label": 0.105361, "conditional": 0.171739, "full": 0.853727}, abs=5e-7
    )
    assert after == pytest.approx({"label": 0.055570, "conditional": 0, "full": 1.099879}, abs=5e-7)


def test_with_three_classes_the_path_is_the_frontier():
    p, t = (torch.tensor(row, dtype=torch.float64) for row in FIGURE_1)
    path = node("[0, 0.2, 0.7, 0.95].map((s) => maths.safePath(...given, s))", list(FIGURE_1))
    errors = node(
        "given[0].map((now) => maths.losses(now, given[1]).conditional)", [path, FIGURE_1[1]]
    )
    spent = [np.log(now[0] / (now[1] + now[2])) - np.log(9) for now in path]
    least = [tpkd.transfer_frontier(p.log(), t.log(), torch.tensor(0), budget) for budget in spent]
    assert errors == pytest.approx([float(value) for value in least], abs=1e-12)


# ---- the triangle --------------------------------------------------------------------------------


def inside(polygon: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Which points lie in a convex polygon, given in order."""
    edges = np.roll(polygon, -1, axis=0) - polygon
    offsets = points[:, None] - polygon
    turns = edges[:, 0] * offsets[..., 1] - edges[:, 1] * offsets[..., 0]
    return (turns >= 0).all(axis=1) | (turns <= 0).all(axis=1)


@pytest.mark.parametrize("p", [FIGURE_1[0], [0.2, 0.5, 0.3], [0.6, 0.01, 0.39]])
def test_shaded_corners_enclose_exactly_the_safe_predictions(p):
    generator = np.random.default_rng(5)
    points = np.concatenate(
        [generator.dirichlet([1, 1, 1], 2000), generator.dirichlet([30, 2, 1], 2000)]
    )
    polygon, drawn, safe = node(
        """[maths.safeCorners(given[0]).map(show.toPoint), given[1].map(show.toPoint),
        given[1].map((x) => maths.isSafe(x, given[0]))]""",
        [p, points.tolist()],
    )
    assert (inside(np.array(polygon), np.array(drawn)) == np.array(safe)).all()
    assert 50 < sum(safe) < 3950


def test_coordinates_return_and_the_corner_magnifies():
    points = np.random.default_rng(6).dirichlet([1, 1, 1], 50)
    there, corner = node(
        """[given.map((p) => show.fromPoint(show.toPoint(p))),
        given.map((p) => maths.outOfCorner(maths.intoCorner(p, 0.02), 0.02))]""",
        points.tolist(),
    )
    np.testing.assert_allclose(there, points, **CLOSE)
    np.testing.assert_allclose(corner, points, **CLOSE)
    assert node("maths.intoCorner([0.99, 0.01, 0], 0.02)") == pytest.approx([0.5, 0.5, 0])


def test_clipping_keeps_what_is_above_the_base():
    clipped = node("maths.clipBelow([[1, 0, 0], [-1, 2, 0], [-1, 0, 2]])")
    assert clipped == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_dragging_never_leaves_the_triangle():
    wild = np.random.default_rng(7).normal(0.3, 1.0, (300, 3))
    wild[:, 0] = 1 - wild[:, 1] - wild[:, 2]
    kept = np.array(node("given.map((p) => maths.intoTriangle(p, 0.001, 0.001))", wild.tolist()))
    assert kept.min() >= 0.001 - 1e-12
    np.testing.assert_allclose(kept.sum(axis=1), 1, **CLOSE)
    inner = [0.9, 0.07, 0.03]
    assert node("maths.intoTriangle(given, 0.001, 0.001)", inner) == pytest.approx(inner, abs=1e-12)


def test_keys_move_log_odds_and_return():
    p = FIGURE_1[0]
    up, back, right = node(
        "[maths.nudge(given, 0.1, 0), maths.nudge(maths.nudge(given, 0.1, 0), -0.1, 0),"
        " maths.nudge(given, 0, 0.1)]",
        p,
    )
    assert np.log(up[0] / (1 - up[0])) == pytest.approx(np.log(9) + 0.1)
    assert up[1] / up[2] == pytest.approx(7 / 3)
    assert back == pytest.approx(p, abs=1e-12)
    assert right[0] == pytest.approx(0.9)
    assert np.log(right[2] / right[1]) == pytest.approx(np.log(3 / 7) + 0.1)
