"""Right-hand sides and Jacobians against automatic differentiation of the loss itself."""

import pytest
import torch

from lib.linear.fields import (
    direct_field,
    direct_jacobian,
    factor_field,
    factor_jacobian,
    hard_field,
    induced_field,
    induced_jacobian,
    unpack,
)
from lib.linear.loss import cross_entropy


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


DESIGN, TEACHER = normal(1, 2, 5, 3), normal(2, 2, 3)
SHAPES = {2: [(4, 3), (1, 4)], 4: [(2, 3), (3, 2), (2, 3), (1, 2)]}


def loss_of_vector(vector, member):
    return cross_entropy(vector, DESIGN[member], TEACHER[member])


def logistic(vector, member):
    signs = torch.where(DESIGN[member] @ TEACHER[member] >= 0, 1.0, -1.0)
    return torch.nn.functional.softplus(-signs * (DESIGN[member] @ vector)).mean()


def loss_of_factors(state, member, shapes):
    row = torch.ones(1, dtype=torch.float64)
    for matrix in reversed(unpack(state, shapes)):
        row = row @ matrix
    return loss_of_vector(row, member)


def minus_gradient(loss, state):
    state = state.detach().requires_grad_()
    return -torch.autograd.grad(loss(state), state)[0]


def numerical_jacobian(field, state, *arguments):
    def single(row, member):
        return field(row[None, None], *(a[member : member + 1] for a in arguments))[0, 0]

    rows = [
        torch.autograd.functional.jacobian(lambda row, m=m: single(row, m), state[m])
        for m in range(len(state))
    ]
    return torch.stack(rows)


def test_direct_field_is_minus_the_gradient():
    states = normal(3, 2, 4, 3)
    field = direct_field(states, DESIGN, TEACHER)
    for m in range(2):
        for s in range(4):
            expected = minus_gradient(lambda w, m=m: loss_of_vector(w, m), states[m, s])
            assert torch.allclose(field[m, s], expected, rtol=0, atol=1e-14)


def test_hard_field_is_minus_the_gradient_of_the_logistic_loss():
    states = normal(3, 2, 4, 3)
    signs = torch.where((DESIGN @ TEACHER[..., None])[..., 0] >= 0, 1.0, -1.0).double()
    field = hard_field(states, DESIGN, signs)
    for m in range(2):
        for s in range(4):
            expected = minus_gradient(lambda w, m=m: logistic(w, m), states[m, s])
            assert torch.allclose(field[m, s], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("depth", SHAPES)
def test_factor_field_is_minus_the_gradient_in_the_matrices(depth):
    shapes = SHAPES[depth]
    states = normal(3, 2, 3, sum(a * b for a, b in shapes))
    field = factor_field(shapes)(states, DESIGN, TEACHER)
    for m in range(2):
        for s in range(3):
            expected = minus_gradient(lambda y, m=m: loss_of_factors(y, m, shapes), states[m, s])
            assert torch.allclose(field[m, s], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_induced_field_is_the_formula_of_lemma_12(depth):
    state = normal(3, 2, 1, 4)
    w = state[:, 0]
    gradient = torch.cat([-direct_field(state[..., :3], DESIGN, TEACHER)[:, 0], 0 * w[:, :1]], -1)
    projector = w[:, :, None] * w[:, None] / (w * w).sum(-1)[:, None, None]
    along = (projector @ gradient[..., None])[..., 0]
    expected = -(w.norm(dim=-1) ** (2 * (depth - 1) / depth))[:, None]
    expected = expected * (gradient + (depth - 1) * along)
    field = induced_field(depth)(state, DESIGN, TEACHER)[:, 0]
    assert torch.allclose(field, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("field", "jacobian", "size"),
    [
        (direct_field, direct_jacobian, 3),
        (induced_field(2), induced_jacobian(2), 4),
        (induced_field(5), induced_jacobian(5), 4),
        (factor_field(SHAPES[2]), factor_jacobian(SHAPES[2]), 16),
        (factor_field(SHAPES[4]), factor_jacobian(SHAPES[4]), 20),
    ],
)
def test_jacobians_agree_with_automatic_differentiation(field, jacobian, size):
    state = normal(4, 2, size)
    exact = numerical_jacobian(field, state, DESIGN, TEACHER)
    assert torch.allclose(jacobian(state, DESIGN, TEACHER), exact, rtol=0, atol=1e-12)


def test_hard_jacobian_agrees_with_automatic_differentiation():
    state, signs = normal(4, 2, 3), torch.sign(normal(5, 2, 5))
    exact = numerical_jacobian(hard_field, state, DESIGN, signs)
    assert torch.allclose(direct_jacobian(state, DESIGN, signs), exact, rtol=0, atol=1e-13)


@pytest.mark.parametrize("depth", [2, 3, 7])
def test_the_origin_is_an_equilibrium_of_the_induced_flow(depth):
    zero = torch.zeros(2, 4, dtype=torch.float64)
    assert induced_field(depth)(zero[:, None], DESIGN, TEACHER).abs().max() == 0.0
    assert induced_jacobian(depth)(zero, DESIGN, TEACHER).abs().max() == 0.0
