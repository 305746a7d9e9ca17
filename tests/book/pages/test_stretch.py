"""Stretches of two vectors, against a search over orientations."""

import math

import matplotlib.pyplot as plt
import pytest
import torch

from lib.book.pages import stretch


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_bisector_matrix_is_worst_and_reaches_the_bound():
    a, b = torch.randn(2, 6, generator=generator(1), dtype=torch.float64)
    cosine = float(a @ b / (a.norm() * b.norm()))
    worst = stretch.bisector_gram(a, b, 0.5, 3.0)
    product = float(a @ worst @ b / (a.norm() * b.norm()))
    assert product == pytest.approx(((1 + cosine) * 0.5 - (1 - cosine) * 3.0) / 2)
    values = torch.linalg.eigvalsh(worst)
    assert float(values[0]) == pytest.approx(0.5)
    assert float(values[-1]) == pytest.approx(3.0)


def test_least_cosine_after_a_stretch_by_search():
    angle = torch.linspace(0, math.pi, 2001, dtype=torch.float64)
    half, ratio = 0.4, 6.0
    one, two = (torch.stack([(s * half - angle).cos(), (s * half - angle).sin()]) for s in (1, -1))
    scale = torch.tensor([ratio**0.5, 1.0], dtype=torch.float64)[:, None]
    x, y = one * scale, two * scale
    least = ((x * y).sum(0) / (x.norm(dim=0) * y.norm(dim=0))).min()
    assert float(least) == pytest.approx(stretch.wielandt(math.cos(2 * half), ratio), abs=1e-5)


def test_stretch_is_drawn_with_its_angle():
    figure, ax = plt.subplots()
    stretch.draw_stretch(ax, 0.6, 4.0)
    assert "90°" in ax.get_title(loc="left") + ax.get_title()
    plt.close(figure)
