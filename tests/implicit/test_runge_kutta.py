from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from lib.implicit.runge_kutta import DIAGONAL, EMBEDDED, STAGES, runge_kutta_step

MATRIX = [
    [*row, *([DIAGONAL] if i else [Fraction(0)]), *[Fraction(0)] * (5 - i)]
    for i, row in enumerate(STAGES)
]


def apply(matrix, vector):
    return [sum(a * v for a, v in zip(row, vector, strict=True)) for row in matrix]


def dot(weights, vector):
    return sum(w * v for w, v in zip(weights, vector, strict=True))


def test_order_conditions_hold_exactly():
    c = [sum(row) for row in MATRIX]
    square, cube = [x**2 for x in c], [x**3 for x in c]
    inner = apply(MATRIX, c)
    for weights, order in ((MATRIX[-1], 4), (EMBEDDED, 3)):
        assert sum(weights) == 1
        assert dot(weights, c) == Fraction(1, 2)
        assert dot(weights, square) == Fraction(1, 3)
        assert dot(weights, inner) == Fraction(1, 6)
        fourth = [
            dot(weights, cube) == Fraction(1, 4),
            dot(weights, [x * y for x, y in zip(c, inner, strict=True)]) == Fraction(1, 8),
            dot(weights, apply(MATRIX, square)) == Fraction(1, 12),
            dot(weights, apply(MATRIX, inner)) == Fraction(1, 24),
        ]
        assert all(fourth) == (order == 4)


def linear(rate):
    """Stages of w' = rate w, exactly."""

    def solve_stage(known, length, guess, memory):
        return known / (1 - length.unsqueeze(-1) * rate), memory, length > 0

    return solve_stage


def test_convergence_is_of_order_four():
    errors = []
    for n in (8, 16, 32):
        state = torch.ones(1, 1, dtype=torch.float64)
        slope, step = -state, torch.full((1,), 1 / n, dtype=torch.float64)
        for _ in range(n):
            state, slope, _, _ = runge_kutta_step(linear(-1.0), state, slope, state, step)
        errors.append(abs(float(state) - float(torch.tensor(-1.0).double().exp())))
    assert errors[0] / errors[1] == pytest.approx(16, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(16, rel=0.1)


def test_very_stiff_parts_are_damped_and_unsolved_stages_reported():
    one, step = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    state, *_ = runge_kutta_step(linear(-1e9), one, -1e9 * one, one, step)
    assert abs(float(state)) < 1e-8

    def failing(known, length, guess, memory):
        return known, memory, length < 0

    assert float(runge_kutta_step(failing, one, one, one, step)[3]) == float("inf")
