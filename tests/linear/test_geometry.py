from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.linear import angle, project_onto_span
from lib.linear.geometry import data_span


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(seed, d):
    return torch.linalg.qr(gaussian(seed, d, d)).Q


def vector_at(theta, seed, d):
    """Two vectors of random length at a known angle, along random directions."""
    q = rotation(seed, d)
    return 3 * q[0], 0.2 * (math.cos(theta) * q[0] + math.sin(theta) * q[1])


@pytest.mark.parametrize("d", [2, 3, 50])
@pytest.mark.parametrize(
    "theta", [0.0, 1e-9, 1e-5, 0.3, math.pi / 4, 1.5, math.pi / 2, 2.0, math.pi - 1e-9, math.pi]
)
def test_known_angles(theta, d):
    a, b = vector_at(theta, d, d)
    assert float(angle(a, b, signed=True)) == pytest.approx(theta, abs=2e-15, rel=1e-6)
    assert abs(float(angle(a, b, signed=True)) - theta) < 2e-15 + 1e-15 * d
    assert abs(float(angle(a, b)) - min(theta, math.pi - theta)) < 2e-15 + 1e-15 * d


def test_parallel_vectors_are_at_angle_zero():
    a = gaussian(0, 6)
    assert angle(a, 4 * a) == 0
    assert angle(a, -0.5 * a) == 0
    assert angle(a, -a, signed=True) == math.pi


@given(seed=st.integers(0, 2**32), d=st.integers(1, 12), power=st.integers(-300, 300))
def test_angle_ignores_scale_rotation_and_order(seed, d, power):
    a, b = gaussian(seed, 2, d)
    q = rotation(seed + 1, d)
    for signed in (False, True):
        expected = angle(a, b, signed)
        assert torch.allclose(angle(10.0**power * a, b, signed), expected, atol=1e-14)
        assert torch.allclose(angle(a @ q, b @ q, signed), expected, atol=1e-13)
        assert torch.allclose(angle(b, a, signed), expected, atol=1e-14)
    both = angle(a, b, signed=True)
    assert torch.allclose(angle(a, b), torch.minimum(both, math.pi - both), atol=1e-15)
    assert torch.allclose(angle(-a, b, signed=True), math.pi - both, atol=1e-14)


@given(seed=st.integers(0, 2**32))
def test_angle_agrees_with_the_cosine(seed):
    a, b = gaussian(seed, 2, 5)
    cosine = a @ b / (a.norm() * b.norm())
    assert torch.allclose(torch.cos(angle(a, b, signed=True)), cosine, atol=1e-14)
    assert torch.allclose(torch.cos(angle(a, b)), cosine.abs(), atol=1e-14)


@given(seed=st.integers(0, 2**32))
def test_signed_angles_obey_the_triangle_inequality(seed):
    a, b, c = gaussian(seed, 3, 4)
    assert angle(a, c, True) <= angle(a, b, True) + angle(b, c, True) + 1e-14


def test_angle_broadcasts_and_keeps_the_dtype():
    assert angle(gaussian(0, 5, 1, 3), gaussian(1, 4, 3)).shape == (5, 4)
    assert angle(torch.ones(2), torch.tensor([1.0, 0.0])).dtype == torch.float32
    assert angle(torch.ones(2).half(), torch.tensor([1.0, 0.0]).half()).dtype == torch.float16
    assert angle(torch.tensor([1, 1]), torch.tensor([1, 0])).dtype == torch.float64


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (torch.zeros(2), torch.ones(2), "a must not be the zero vector"),
        (torch.ones(2), torch.zeros(2), "b must not be the zero vector"),
        (torch.ones(2), torch.ones(3), "same last dimension"),
        (torch.ones(2), torch.tensor(1.0), "same last dimension"),
        (torch.ones(2), torch.tensor([1.0, math.nan]), "b must be finite"),
        (torch.ones(3, 2), torch.ones(4, 2), r"a \(3, 2\) and b \(4, 2\) must broadcast"),
    ],
)
def test_angle_refuses(a, b, message):
    with pytest.raises(ValueError, match=message):
        angle(a, b)


@given(seed=st.integers(0, 2**32), n=st.integers(1, 6), extra=st.integers(1, 6))
def test_projection_solves_the_normal_equations(seed, n, extra):
    inputs, vector = gaussian(seed, n, n + extra), gaussian(seed + 1, n + extra)
    projected = project_onto_span(inputs, vector)
    coefficients = torch.linalg.lstsq(inputs.mT, vector[:, None], driver="gelsd").solution[:, 0]
    assert torch.allclose(projected, coefficients @ inputs, atol=1e-9)
    assert (inputs @ (vector - projected)).abs().max() < 1e-12 * vector.norm()
    assert torch.allclose(project_onto_span(inputs, projected), projected, atol=1e-13)


@pytest.mark.parametrize("n", [4, 5, 40])
def test_enough_examples_return_the_vector_itself(n):
    vector = gaussian(0, 4)
    assert torch.equal(project_onto_span(gaussian(1, n, 4), vector), vector)


@pytest.mark.parametrize("shape", [(6, 4), (4, 4), (3, 5), (2, 9)])
def test_deficient_inputs_are_projected_on_their_own_span(shape):
    n, d = shape
    basis = rotation(n, d)[:2]
    inputs = gaussian(d, n, 2) @ basis
    vector = gaussian(7, d)
    expected = vector @ basis.mT @ basis
    assert int(data_span(inputs).rank) == min(2, n)
    assert torch.allclose(project_onto_span(inputs, vector), expected, atol=1e-12)


def test_duplicates_and_zero_rows_change_nothing():
    inputs, vector = gaussian(0, 3, 5), gaussian(1, 5)
    more = torch.cat([inputs, inputs[:1], -2 * inputs[1:2], torch.zeros(1, 5)])
    expected = project_onto_span(inputs, vector)
    assert torch.allclose(project_onto_span(more, vector), expected, atol=1e-13)
    assert torch.equal(project_onto_span(torch.zeros(2, 5), vector), torch.zeros(5).double())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("n", "d"), [(5, 8), (20, 100)])
def test_condition_1e7_costs_no_more_than_seven_digits(seed, n, d):
    basis = rotation(seed, d)[:n]
    mixing = rotation(seed + 1, n) * torch.logspace(0, -7, n, dtype=torch.float64)
    inputs = mixing @ rotation(seed + 2, n) @ basis
    vector = gaussian(seed + 3, d)
    expected = vector @ basis.mT @ basis
    error = (project_onto_span(inputs, vector) - expected).norm() / expected.norm()
    assert error < 2e-8


@given(seed=st.integers(0, 2**32))
def test_row_lengths_do_not_matter(seed):
    inputs, vector = gaussian(seed, 4, 7), gaussian(seed + 1, 7)
    lengths = 10 ** (100 * gaussian(seed + 2, 4, 1).clamp(-2, 2))
    expected = project_onto_span(inputs, vector)
    assert torch.allclose(project_onto_span(lengths * inputs, vector), expected, atol=1e-10)


@given(seed=st.integers(0, 2**32))
def test_projection_turns_with_the_data(seed):
    inputs, vector, q = gaussian(seed, 3, 6), gaussian(seed + 1, 6), rotation(seed + 2, 6)
    turned = project_onto_span(inputs @ q, vector @ q)
    assert torch.allclose(turned, project_onto_span(inputs, vector) @ q, atol=1e-12)


def test_a_batch_may_mix_full_and_deficient_sets():
    full, deficient = gaussian(0, 3, 3), gaussian(1, 1, 3) * gaussian(2, 3, 1)
    vectors = gaussian(3, 5, 1, 3)
    both = project_onto_span(torch.stack([full, deficient]), vectors)
    assert torch.equal(both[:, 0], vectors[:, 0])
    assert torch.allclose(both[:, 1], project_onto_span(deficient, vectors[:, 0]), atol=1e-13)
    wide = torch.stack([gaussian(4, 2, 3), gaussian(5, 1, 3).expand(2, 3)])
    both = project_onto_span(wide, vectors)
    for i in range(2):
        single = project_onto_span(wide[i], vectors[:, 0])
        assert torch.allclose(both[:, i], single, atol=1e-13)


def test_projection_keeps_the_dtype_and_refuses_misfits():
    assert project_onto_span(torch.ones(1, 2), torch.ones(2)).dtype == torch.float32
    with pytest.raises(ValueError, match="vector must have shape"):
        project_onto_span(torch.ones(1, 2), torch.ones(3))
    with pytest.raises(ValueError, match="inputs must be finite"):
        project_onto_span(torch.tensor([[1.0, math.nan]]), torch.ones(2))
