"""Growth and thresholds that the first chapter on stability measures, against closed forms."""

import matplotlib.pyplot as plt
import pytest
import torch

from lib.book.pages import a_quadratic_first as page
from lib.stability import quadratic_descent, stability_threshold


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rotated_descent_is_the_descent_along_eigenvectors(seed):
    generator = torch.Generator().manual_seed(seed)
    curvatures = 4 * torch.rand(7, generator=generator, dtype=torch.float64) - 0.5
    found = page.rotated_descent(curvatures, 0.7, 6, generator)
    expected = quadratic_descent(curvatures, torch.ones(7), 0.7, 6)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("step_size", [0.02, 3.0])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.5, False), (0.5, True)])
def test_threshold_on_runs_is_the_formula(step_size, momentum, nesterov):
    name = "gd" if momentum == 0 else "nesterov" if nesterov else "polyak"
    found = page.threshold_on_runs(step_size, momentum, nesterov)
    assert found == pytest.approx(stability_threshold(step_size, name, momentum), rel=1e-8)


@pytest.mark.parametrize("always", [True, False])
def test_no_threshold_in_reach_is_refused(always, monkeypatch):
    monkeypatch.setattr(page, "_grows", lambda curvatures, *_: torch.full((64,), always))
    with pytest.raises(ValueError, match=r"momentum=0\.5.*no threshold"):
        page.threshold_on_runs(1.0, 0.5)


def test_the_minima_are_dotted_where_they_are_too_sharp():
    fig, ax = plt.subplots()
    page.draw_product_plane(ax, edge=8.0)
    flat, sharp = (line.get_xydata() for line in ax.lines)
    assert (flat.prod(1) - 1).max() < 1e-12
    assert ((flat**2).sum(1) < 8).all()
    assert ((sharp**2).sum(1) >= 8).all()
    plt.close(fig)


def test_iterates_are_drawn_with_their_signs():
    fig, ax = plt.subplots()
    page.draw_iterates(ax, 0.5, (0.25, 2.5), 3, [("red", "o"), ("blue", "s")])
    assert ax.lines[0].get_ydata().tolist() == pytest.approx([1, 0.75, 0.5625, 0.421875])
    assert ax.lines[1].get_ydata().tolist() == pytest.approx([1, -1.5, 2.25, -3.375])
    plt.close(fig)
