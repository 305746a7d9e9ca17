"""One example in the plane: starts, closed-form paths, drawings."""

import math

import matplotlib.pyplot as plt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.book.pages import why_one_minimiser as page
from lib.implicit.descent import descend
from lib.implicit.max_margin import max_margin
from lib.implicit.networks import ConvolutionalNetwork, DenseNetwork, DiagonalNetwork
from lib.implicit.spectrum import direction_angle, norm_value

NETWORKS = {
    "dense": DenseNetwork(2),
    "diagonal": DiagonalNetwork(2),
    "convolutional": ConvolutionalNetwork(2),
}


@given(st.floats(0.1, 0.9), st.floats(0.5, 4), st.floats(1e-3, 2))
def test_starts_write_the_example_at_the_least_price(ratio, first, size):
    example = torch.tensor([first, ratio * first], dtype=torch.float64)
    for name, layers in page.balanced_starts(example, size).items():
        predictor = NETWORKS[name].predictor(layers)
        assert torch.allclose(predictor, size * example, rtol=1e-12)
        price = sum((layer**2).sum() for layer in layers)
        norm = norm_value(predictor, page.LOOKS[name][-1])
        assert math.isclose(price, 2 * norm, rel_tol=1e-12)


@pytest.mark.parametrize("example", [[1.0, 2.0], [2.0, -1.0], [1.0, 1.0], [1.0, 0.5, 0.2]])
def test_other_examples_are_refused(example):
    with pytest.raises(ValueError, match="a1 > a2 > 0"):
        page.balanced_starts(torch.tensor(example), 0.1)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("example", [[2.0, 1.0], [1.0, 0.9]])
def test_small_steps_of_descent_follow_the_closed_form(name, example):
    a = torch.tensor(example, dtype=torch.float64)
    start = page.balanced_starts(a, 0.1)[name]
    run = descend(
        NETWORKS[name], a[None], torch.ones(1), 400, weights=start, rule="plain", step_size=1e-3
    )
    end = run.predictor
    clock = torch.linspace(0, 0.5, 5001, dtype=torch.float64)
    path = page.predicted_paths(a, 0.1, clock)[name]
    assert (end - 0.1 * a).norm() > 0.02
    assert (path - end).norm(dim=-1).min() < 2e-3 * end.norm()


def test_closed_form_paths_end_at_the_three_optima():
    a = torch.tensor([2.0, 1.0], dtype=torch.float64)
    paths = page.predicted_paths(a, 0.02, torch.tensor([0.0, 12.0], dtype=torch.float64))
    for name, path in paths.items():
        assert torch.allclose(path[0], 0.02 * a)
        optimum = max_margin(a[None], torch.ones(1), page.LOOKS[name][-1])
        assert direction_angle(path[1], optimum) < 1e-4


def test_balls_touch_the_line_and_do_not_cross_it():
    a = torch.tensor([2.0, 1.0], dtype=torch.float64)
    fig, axes = plt.subplots(1, 2)
    paths = page.predicted_paths(a, 0.02, torch.linspace(0, 2, 5, dtype=torch.float64))
    page.draw_paths(axes[0], a, paths, paths)
    page.draw_balls(axes[1], a)
    fig.canvas.draw()
    balls = [line.get_xydata() for line in axes[1].lines if len(line.get_xydata()) > 700]
    assert len(balls) == 3
    for ball in balls:
        assert 1 - 1e-3 < (ball @ a.numpy()).max() <= 1 + 1e-9
    plt.close(fig)
