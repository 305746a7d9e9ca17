"""The safe-cone projection against a QP solver, exact fractions, subsets and Moreau's theorem."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import clarabel
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from lib.tpkd import project_onto_safe_cone, projection

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    ),
]


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_labels(seed, classes, *shape):
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


def fractions(vector, label):
    """Eq. B.1 in exact arithmetic: the rounded entries of the projection."""
    x = [Fraction(float(entry)) for entry in vector]
    others = sorted(x[:label] + x[label + 1 :])
    sums = itertools.accumulate(others, initial=x[label])
    level = min(total / (k + 1) for k, total in enumerate(sums))
    exact = [max(entry, level) for entry in x]
    exact[label] = level
    return torch.tensor([float(entry) for entry in exact], dtype=torch.float64)


def quadratic_program(vector, label):
    """The projection by an interior-point solver: minimise |x - v|^2 / 2, x_y <= x_j."""
    classes = len(vector)
    rows = np.delete(-np.eye(classes), label, axis=0)
    rows[:, label] += 1.0
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    solver = clarabel.DefaultSolver(
        sparse.identity(classes, format="csc"),
        -vector.numpy(),
        sparse.csc_matrix(rows),
        np.zeros(classes - 1),
        [clarabel.NonnegativeConeT(classes - 1)],
        settings,
    )
    return torch.tensor(solver.solve().x, dtype=torch.float64)


def states(seed, classes, count=20):
    """Vectors of several kinds: Gaussian, differences of softmaxes, heavy tails, many ties."""
    x = gaussian(seed, 4, count, classes)
    x[1] = (3 * x[1]).softmax(-1) - (3 * gaussian(seed + 1, count, classes)).softmax(-1)
    x[2] = x[2] ** 7
    x[3] = x[3].round()
    return x, draw_labels(seed, classes, 4, count)


@pytest.mark.parametrize("classes", [3, 4, 10, 100])
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_the_formula_in_fractions(seed, classes):
    x, labels = states(seed, classes, 5)
    found = project_onto_safe_cone(x, labels)
    for row, label, result in zip(
        x.flatten(0, 1), labels.flatten(), found.flatten(0, 1), strict=True
    ):
        expected = fractions(row, int(label))
        assert torch.allclose(result, expected, rtol=1e-14, atol=1e-15 * float(row.abs().max()))


@pytest.mark.parametrize("classes", [3, 4, 10, 60])
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_the_quadratic_program(seed, classes):
    x, labels = gaussian(seed, 5, classes), draw_labels(seed, classes, 5)
    found = project_onto_safe_cone(x, labels)
    for row, label, result in zip(x, labels, found, strict=True):
        assert torch.allclose(result, quadratic_program(row, int(label)), atol=1e-6)


@pytest.mark.parametrize("classes", [3, 4, 6])
def test_is_the_nearest_of_all_subsets(classes):
    """Raise any subset to its mean with the label: of what lies in the cone, none is nearer."""
    x, labels = gaussian(7, 30, classes), draw_labels(7, classes, 30)
    found = project_onto_safe_cone(x, labels)
    for row, label, result in zip(x, labels.tolist(), found, strict=True):
        others = [j for j in range(classes) if j != label]
        best = math.inf
        for size in range(classes):
            for subset in itertools.combinations(others, size):
                candidate = row.clone()
                chosen = [label, *subset]
                candidate[chosen] = row[chosen].mean()
                if bool((candidate >= candidate[label] - 1e-12).all()):
                    best = min(best, float((candidate - row).norm()))
        assert float((result - row).norm()) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("classes", [3, 4, 10, 100, 1000, 3001])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_moreau_decomposition_certifies_the_projection(seed, classes):
    """d in the cone, e = x - d in its polar, d e = 0: these three characterise d."""
    x, labels = states(seed, classes)
    index = labels.unsqueeze(-1)
    d = project_onto_safe_cone(x, labels)
    assert bool((d >= d.gather(-1, index)).all())
    e = x - d
    removed = -e.scatter(-1, index, 0.0)
    scale = x.abs().amax(-1)
    assert bool((removed >= 0).all())
    gained = e.gather(-1, index).squeeze(-1)
    assert bool(((gained - removed.sum(-1)).abs() <= 1e-13 * classes * scale).all())
    assert bool(((d * e).sum(-1).abs() <= 1e-13 * classes * scale**2).all())


PATHS = {
    "few": {"_SMALL": 10**9},
    "entries": {"_SMALL": 0, "_LONG": 10**9, "_DENSE": 1.0},
    "blocks": {"_SMALL": 0, "_LONG": 17, "_DENSE": 2.0},
    "sorted": {"_SMALL": 0, "_DENSE": -1.0},
    "sorted after sweeps": {"_SMALL": 0, "_DENSE": 1.0, "_SWEEPS": 1},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("classes", [3, 17, 100, 601])
def test_every_method_gives_the_same(path, classes, monkeypatch):
    x, labels = states(11, classes)
    monkeypatch.setattr(projection, "_SMALL", 0)
    monkeypatch.setattr(projection, "_DENSE", -1.0)
    expected = project_onto_safe_cone(x, labels)
    for name, value in PATHS[path].items():
        monkeypatch.setattr(projection, name, value)
    scale = x.abs().amax(-1, keepdim=True)
    found = project_onto_safe_cone(x, labels)
    assert bool(((found - expected).abs() <= 1e-14 * scale).all())
    assert torch.equal(project_onto_safe_cone(found, labels), found)


def test_methods_hand_over_when_they_do_not_fit(monkeypatch):
    """Too many small entries for the few, too many steps for the sweeps: the sort takes over."""
    rows = -torch.ones(2, 100, dtype=torch.float64)
    target = torch.tensor([5.0, 5.0], dtype=torch.float64)
    assert projection._smallest_few(rows, target.unsqueeze(-1)) is None
    assert projection._search(rows, target) is None
    steep = -(2.0 ** torch.arange(60, dtype=torch.float64)).expand(1, 60)
    zero = torch.zeros(1, dtype=torch.float64)
    monkeypatch.setattr(projection, "_SWEEPS", 0)
    assert projection._search(steep, zero) is None


def test_worked_values():
    """The tight case of Appendix B.3, ties, a polar vector and the vertex of the cone."""
    a, n = 0.3, 5
    x = torch.tensor([0.0, -a, *[a / (n - 1)] * (n - 1)], dtype=torch.float64)
    expected = x.clone()
    expected[:2] = -a / 2
    assert torch.equal(project_onto_safe_cone(x, torch.tensor(0)), expected)
    tied = torch.tensor([2.0, -1.0, -1.0, 5.0], dtype=torch.float64)
    assert project_onto_safe_cone(tied, torch.tensor(0)).tolist() == [0, 0, 0, 5]
    polar = torch.tensor([-1.0, -2.0, 3.0], dtype=torch.float64)
    assert project_onto_safe_cone(polar, torch.tensor(2)).tolist() == [0, 0, 0]
    zero = torch.zeros(4)
    assert torch.equal(project_onto_safe_cone(zero, torch.tensor(1)), zero)


def test_blocked_full_gradient_is_removed():
    """p <= t off the label puts p - t into the polar cone (Appendix A.5)."""
    p = torch.tensor([0.9, 0.07, 0.03], dtype=torch.float64)
    t = torch.tensor([0.4, 0.25, 0.35], dtype=torch.float64)
    assert float(project_onto_safe_cone(p - t, torch.tensor(0)).abs().max()) < 1e-16


cases = st.tuples(st.integers(0, 2**32), st.sampled_from([3, 4, 10, 100, 700]))


@given(case=cases)
def test_idempotent_to_the_last_bit(case):
    x, labels = states(*case, 3)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        once = project_onto_safe_cone(x.clamp(-6e4, 6e4).to(dtype), labels)
        assert torch.equal(project_onto_safe_cone(once, labels), once)
        assert bool((once >= once.gather(-1, labels.unsqueeze(-1))).all())


@given(case=cases)
def test_not_expansive(case):
    x, labels = states(*case, 3)
    other = x.roll(1, dims=0) * x.abs().amax(-1, keepdim=True)
    gap = project_onto_safe_cone(x, labels) - project_onto_safe_cone(other, labels)
    assert bool((gap.norm(dim=-1) <= (x - other).norm(dim=-1) * (1 + 1e-12)).all())


@given(case=cases, power=st.integers(-200, 200), factor=st.floats(1e-3, 1e3))
def test_positively_homogeneous(case, power, factor):
    """Exactly so for powers of two, which round nothing."""
    x, labels = states(*case, 3)
    d = project_onto_safe_cone(x, labels)
    assert torch.equal(project_onto_safe_cone(x * 2.0**power, labels), d * 2.0**power)
    scaled = project_onto_safe_cone(x * factor, labels)
    assert bool(((scaled - factor * d).abs() <= 1e-14 * factor * x.abs().amax(-1, True)).all())


@given(case=cases)
def test_permutation_equivariant(case):
    x, labels = states(*case, 3)
    classes = x.shape[-1]
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(case[0]))
    moved = project_onto_safe_cone(x[..., order], order.argsort()[labels])
    expected = project_onto_safe_cone(x, labels)[..., order]
    assert bool(((moved - expected).abs() <= 1e-14 * x.abs().amax(-1, keepdim=True)).all())


@given(case=cases, shift=st.floats(-10, 10))
def test_commutes_with_shifts_of_the_logits(case, shift):
    """The line of constant vectors lies in the cone and in its negative."""
    x, labels = states(*case, 3)
    moved = project_onto_safe_cone(x + shift, labels) - shift
    scale = x.abs().amax(-1, keepdim=True) + abs(shift)
    assert bool(((moved - project_onto_safe_cone(x, labels)).abs() <= 1e-14 * scale).all())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", [3, 50, 2100])
def test_dtypes_and_devices(device, classes):
    x, labels = states(3, classes)
    expected = project_onto_safe_cone(x, labels)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        rounded = x.clamp(-1e4, 1e4).to(dtype)
        found = project_onto_safe_cone(rounded.to(device), labels.to(device))
        assert found.dtype == dtype
        assert found.device.type == device
        precise = project_onto_safe_cone(rounded.double(), labels)
        scale = rounded.abs().amax(-1, keepdim=True).double()
        error = (found.cpu().double() - precise).abs()
        assert bool((error <= torch.finfo(dtype).eps * scale).all())
    assert torch.allclose(expected[3], project_onto_safe_cone(x[3].long(), labels[3]).double())


def test_long_float32_rows_lose_nothing_to_summation():
    """100,000 entries, half of them raised: float32 sums would be off in the fourth digit."""
    x = gaussian(0, 2, 100_000).float()
    labels = torch.tensor([0, 99_999])
    x[torch.arange(2), labels] = 1e5
    exact = project_onto_safe_cone(x.double(), labels)
    assert torch.equal(project_onto_safe_cone(x, labels), exact.float())


def test_shapes_broadcast_and_empty_batches_pass():
    x = gaussian(1, 4, 1, 6)
    labels = draw_labels(1, 6, 3)
    found = project_onto_safe_cone(x, labels)
    assert found.shape == (4, 3, 6)
    for i, j in itertools.product(range(4), range(3)):
        assert torch.equal(found[i, j], project_onto_safe_cone(x[i, 0], labels[j]))
    one = project_onto_safe_cone(x[0, 0], labels)
    assert one.shape == (3, 6)
    strided = gaussian(2, 6, 4).mT
    same = project_onto_safe_cone(strided, torch.tensor(2))
    assert torch.equal(same, project_onto_safe_cone(strided.contiguous(), torch.tensor(2)))
    assert project_onto_safe_cone(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)).shape == (
        0,
        5,
    )


def test_argument_is_left_alone():
    x, labels = states(0, 20)
    before = x.clone()
    project_onto_safe_cone(x, labels).add_(1.0)
    assert torch.equal(x, before)


@pytest.mark.parametrize("classes", [3, 7, 600])
def test_derivative_is_a_mean_over_the_raised(classes):
    x, labels = gaussian(5, 2, classes), draw_labels(5, classes, 2)
    x.requires_grad_()
    plain = project_onto_safe_cone(x.detach(), labels)
    with_graph = project_onto_safe_cone(x, labels)
    assert torch.equal(with_graph, plain)
    if classes < 10:
        assert torch.autograd.gradcheck(lambda v: project_onto_safe_cone(v, labels), x)
    direction = gaussian(6, 2, classes)
    (slope,) = torch.autograd.grad((with_graph * direction).sum(), x)
    level = plain.gather(-1, labels.unsqueeze(-1))
    raised = plain == level
    mean = (direction * raised).sum(-1, keepdim=True) / raised.sum(-1, keepdim=True)
    assert torch.allclose(slope, torch.where(raised, mean, direction))
    with torch.no_grad():
        assert not project_onto_safe_cone(x, labels).requires_grad


BAD = [
    ((torch.zeros(2), torch.tensor(0)), "vector"),
    ((torch.zeros(3), torch.tensor(3)), "labels"),
    ((torch.zeros(3), torch.tensor(-1)), "labels"),
    ((torch.zeros(3), torch.tensor(0.0)), "labels"),
    ((torch.zeros(2, 3), torch.zeros(5, dtype=torch.long)), "broadcast"),
    ((torch.tensor([0.0, math.nan, 1.0]), torch.tensor(0)), "vector"),
    ((torch.tensor([0.0, math.inf, 1.0]), torch.tensor(0)), "vector"),
    ((torch.tensor([0.0, -math.inf, 1.0]), torch.tensor(0)), "vector"),
    ((torch.zeros(3, dtype=torch.complex64), torch.tensor(0)), "vector"),
    (([0.0, 1.0, 2.0], torch.tensor(0)), "vector"),
    ((torch.zeros(3), 0), "labels"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD)
def test_bad_input_is_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        project_onto_safe_cone(*arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("raised", [15, 16, 17, 40])
def test_many_raised_entries_in_a_small_array(raised, dtype):
    """About as many entries below the root as are selected first, and more."""
    x = torch.full((3, 50), 100.0, dtype=dtype)
    x[:, 1 : raised + 1] = -torch.linspace(1.0, 1.1, raised, dtype=dtype)
    x[:, 0] = 50.0
    found = project_onto_safe_cone(x, torch.tensor(0))
    expected = torch.stack([fractions(row, 0) for row in x.double()]).to(dtype)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=4 * eps, atol=4 * eps)
    assert int((found == found[:, :1]).sum()) == 3 * (raised + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [-100, 0, 100])
def test_target_one_unit_above_the_smallest(exponent, dtype):
    """Half a unit is between two numbers: the root must not fall outside the two entries."""
    low = (torch.rand(200, 1, generator=torch.Generator().manual_seed(0)) + 1).to(dtype)
    low = torch.cat((low, -low)) * 2.0**exponent
    high = torch.nextafter(low, torch.full_like(low, math.inf))
    x = torch.cat((high, low, high + 1, high + 2), -1)
    found = project_onto_safe_cone(x, torch.tensor(0))[:, 0]
    expected = torch.stack([fractions(row, 0)[0] for row in x.double()]).to(dtype)
    assert torch.equal(found, expected)
