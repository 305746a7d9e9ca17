import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator, eigsh

from lib.stability.lanczos import ConvergenceError, largest_eigenpairs

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]


def symmetric(eigenvalues, generator):
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    eigenvalues = torch.as_tensor(eigenvalues, dtype=torch.float64)
    size = len(eigenvalues)
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    matrix = basis * eigenvalues @ basis.T
    return (matrix + matrix.T) / 2


def normal(size, generator):
    return torch.randn(size, generator=generator, dtype=torch.float64)


class Counted:
    """A matrix as an operator that counts how often it is applied."""

    def __init__(self, matrix):
        self.matrix, self.calls = matrix, 0

    def __call__(self, vector):
        self.calls += 1
        return self.matrix @ vector


def check(pairs, matrix, k, tol):
    """Against numpy's dense eigenvalues; vectors orthonormal, residuals within the tolerance."""
    exact = np.linalg.eigvalsh(matrix.cpu().numpy())[::-1]
    norm = max(abs(exact[0]), abs(exact[-1]))
    assert pairs.values.tolist() == pytest.approx(exact[:k].tolist(), abs=tol * norm)
    unit = pairs.vectors @ pairs.vectors.T
    assert float((unit - torch.eye(k).to(unit)).abs().max()) < 1e-9
    residuals = (pairs.vectors @ matrix - pairs.values[:, None] * pairs.vectors).norm(dim=1)
    allowed = torch.clamp(tol * pairs.values.abs(), min=32 * 2.3e-16 * norm)
    assert bool((residuals <= 1.1 * allowed).all())
    assert pairs.norm <= norm * (1 + 1e-12)


whole = st.integers(-3, 3).map(float)
broken = st.floats(-5, 5).filter(lambda value: value == 0 or abs(value) > 1e-3)


@given(
    eigenvalues=st.lists(st.one_of(whole, broken), min_size=1, max_size=25),
    k=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    small=st.booleans(),
)
def test_random_symmetric_matrices_with_repeated_eigenvalues(eigenvalues, k, seed, small):
    generator = torch.Generator().manual_seed(seed)
    k = min(k, len(eigenvalues))
    operator = Counted(symmetric(eigenvalues, generator))
    start = normal(len(eigenvalues), generator)
    pairs = largest_eigenpairs(operator, start, k, 1e-8, basis_size=k + 4 if small else None)
    check(pairs, operator.matrix, k, 1e-8)
    assert pairs.products == operator.calls


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("basis_size", [8, 40, None])
@pytest.mark.parametrize("seed", range(3))
def test_restarts_agree_with_arpack(k, basis_size, seed):
    """Top eigenvalues crowd: 400 in [-1, 1] without a gap."""
    generator = torch.Generator().manual_seed(seed)
    matrix = symmetric(torch.linspace(-1, 1, 400), generator)
    start = normal(400, generator)
    pairs = largest_eigenpairs(lambda v: matrix @ v, start, k, 1e-6, 5000, basis_size=basis_size)
    check(pairs, matrix, k, 1e-6)
    arpack = eigsh(LinearOperator((400, 400), matvec=matrix.numpy().dot), k, which="LA")[0]
    assert pairs.values.tolist() == pytest.approx(sorted(arpack, reverse=True), abs=1e-10)


def test_orthogonality_survives_a_hundred_restarts():
    generator = torch.Generator().manual_seed(6)
    matrix = symmetric(-torch.rand(137, generator=generator, dtype=torch.float64), generator)
    operator = Counted(matrix)
    pairs = largest_eigenpairs(operator, normal(137, generator), 3, 1e-7, 20_000, basis_size=6)
    assert operator.calls > 200
    check(pairs, matrix, 3, 1e-7)


def test_largest_is_algebraic_not_by_modulus():
    matrix = symmetric([-100.0, -50.0, 1.0, 2.0, *[0.0] * 60], torch.Generator().manual_seed(0))
    start = normal(64, torch.Generator().manual_seed(1))
    assert largest_eigenpairs(lambda v: matrix @ v, start).values.tolist() == pytest.approx([2.0])


@pytest.mark.parametrize("copies", [2, 3])
def test_every_copy_of_a_repeated_eigenvalue_among_many(copies):
    """A Krylov space holds one copy; the others need a second look."""
    generator = torch.Generator().manual_seed(0)
    eigenvalues = torch.cat([torch.full((copies,), 5.0), torch.linspace(0, 4, 150)])
    matrix = symmetric(eigenvalues, generator)
    pairs = largest_eigenpairs(lambda v: matrix @ v, normal(len(matrix), generator), 3)
    assert pairs.values.tolist() == pytest.approx(([5.0] * copies + [4.0])[:3], abs=1e-6)


def test_identity_zero_and_one_dimension():
    start = torch.ones(5, dtype=torch.float64)
    assert largest_eigenpairs(lambda v: v, start, 5).values.tolist() == [1.0] * 5
    assert largest_eigenpairs(lambda v: 0 * v, start, 2).values.tolist() == [0.0, 0.0]
    assert largest_eigenpairs(lambda v: -3 * v, start[:1]).values.tolist() == [-3.0]


@pytest.mark.parametrize("k", [1, 2])
def test_products_run_out(k):
    matrix = symmetric(torch.linspace(-1, 1, 300), torch.Generator().manual_seed(0))
    operator = Counted(matrix)
    with pytest.raises(ConvergenceError, match=r"max_products.*raise max_products or tol"):
        largest_eigenpairs(operator, torch.ones(300, dtype=torch.float64), k, 1e-8, 20)
    assert operator.calls == 20


def test_products_run_out_in_the_second_look():
    matrix = symmetric(torch.linspace(-1, 1, 300), torch.Generator().manual_seed(0))
    start = torch.ones(300, dtype=torch.float64)
    needed = largest_eigenpairs(lambda v: matrix @ v, start, 2).products
    with pytest.raises(ConvergenceError):
        largest_eigenpairs(lambda v: matrix @ v, start, 2, max_products=needed - 1)
    assert largest_eigenpairs(lambda v: matrix @ v, start, 2, max_products=needed)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_products_are_refused(bad):
    with pytest.raises(ConvergenceError, match="NaN or infinity"):
        largest_eigenpairs(lambda v: bad * v, torch.ones(4, dtype=torch.float64))


def test_noise_of_single_precision_is_no_new_direction():
    """Products rounded to float32 close a space of three eigenvalues up to noise."""
    curvatures = torch.tensor([3.0, 2.0, 1.0]).repeat(100)
    eps = torch.finfo(torch.float32).eps
    pairs = largest_eigenpairs(
        lambda v: (curvatures * v.float()).double(),
        normal(300, torch.Generator().manual_seed(0)),
        4,
        1e-5,
        precision=eps,
    )
    assert pairs.values.tolist() == pytest.approx([3.0] * 4, rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_devices_and_repetition(device):
    matrix = symmetric(torch.linspace(-1, 1, 100), torch.Generator().manual_seed(0)).to(device)
    start = torch.ones(100, dtype=torch.float64, device=device)
    first = largest_eigenpairs(lambda v: matrix @ v, start, 2)
    again = largest_eigenpairs(lambda v: matrix @ v, start, 2)
    assert first.values.device == start.device
    assert torch.equal(first.values, again.values)
    assert torch.equal(first.vectors, again.vectors)
    check(first, matrix, 2, 1e-4)
