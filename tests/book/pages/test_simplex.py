"""The triangle puts predictions, regions and level lines where closed forms say."""

import matplotlib.pyplot as plt
import pytest
import torch

from lib.book.pages import simplex


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def draws(count, seed):
    noise = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed)).to(torch.float64)
    return noise.softmax(-1)


def inside(polygon, points):
    """Whether points of the plane lie in a convex polygon: on one side of all its edges."""
    start, end = polygon, polygon.roll(-1, 0)
    along, to = end - start, points[:, None] - start
    turns = along[:, 0] * to[..., 1] - along[:, 1] * to[..., 0]
    return (turns >= 0).all(-1) | (turns <= 0).all(-1)


def test_the_map_to_the_plane_keeps_distances_up_to_a_factor():
    p, other = draws(50, 0), draws(50, 1)
    flat = (simplex.to_plane(p) - simplex.to_plane(other)).norm(dim=-1)
    torch.testing.assert_close(flat, (p - other).norm(dim=-1) / 2**0.5)
    corners = simplex.to_plane(torch.eye(3))
    torch.testing.assert_close(torch.pdist(corners), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_safe_polygon_holds_exactly_the_predictions_with_no_smaller_margin(seed):
    p, others = draws(1, seed)[0], draws(4000, seed + 10)
    margins = (others[:, :1] / others[:, 1:]).log() - (p[0] / p[1:]).log()
    found = inside(simplex.to_plane(simplex.safe_polygon(p)), simplex.to_plane(others))
    assert torch.equal(found, (margins >= 0).all(-1))
    assert found.any()
    assert not found.all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_blocked_polygon_holds_exactly_the_students_below_the_teacher(seed):
    t, students = draws(1, seed)[0], draws(4000, seed + 10)
    found = inside(simplex.to_plane(simplex.blocked_polygon(t)), simplex.to_plane(students))
    assert torch.equal(found, (students[:, 1:] <= t[1:]).all(-1))
    assert found.any()


def test_polygons_take_batches():
    p = draws(5, 3)
    for polygon in (simplex.safe_polygon, simplex.blocked_polygon):
        assert torch.equal(polygon(p)[2], polygon(p[2]))
        torch.testing.assert_close(polygon(p).sum(-1), torch.ones(5, 4, dtype=torch.float64))


@pytest.mark.parametrize("steps", [2, 3, 17])
def test_lattice_triangles_cover_the_triangle_once(steps):
    points, triangles = simplex.lattice(steps)
    assert points.shape == (steps * (steps + 1) // 2, 3)
    assert points.min() > 0
    a, b, c = simplex.to_plane(points)[triangles].unbind(1)
    ab, ac = b - a, c - a
    areas = (ab[:, 0] * ac[:, 1] - ab[:, 1] * ac[:, 0]) / 2
    assert len(areas) == (steps - 1) ** 2
    assert areas.min() > 0
    assert float(areas.sum()) == pytest.approx(3**0.5 / 4, rel=1e-4)


def test_contour_of_the_first_probability_is_horizontal(ax):
    lines = simplex.contours(ax, lambda p: p[:, 0], levels=[0.4], steps=20)
    heights = lines.get_paths()[0].vertices[:, 1]
    assert heights == pytest.approx(0.4 * simplex.HEIGHT, abs=1e-5)
    finer = simplex.contours(ax, lambda p: p[:, 0], levels=[0.9], steps=20, least=0.8)
    assert finer.get_paths()[0].vertices[:, 1] == pytest.approx(0.9 * simplex.HEIGHT, abs=1e-5)
    simplex.contours(ax, lambda p: p[:, 0] > 0.5, levels=[0.5, 1.5], filled=True)
    with pytest.raises(ValueError, match="function must return shape"):
        simplex.contours(ax, lambda p: p, levels=[0.5])


@pytest.mark.parametrize("least", [0.0, 0.8])
def test_everything_drawn_lies_inside_the_limits(ax, least):
    simplex.draw(ax, ("right", "left", "far"), least)
    top = 1 - (1 - least) / 4
    p = torch.tensor([top, (1 - top) / 2, (1 - top) / 2], dtype=torch.float64)
    simplex.point(ax, p, "p")
    simplex.region(ax, simplex.safe_polygon(p), "blue", "safe")
    simplex.path(ax, torch.stack([p, p]))
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    for line in ax.lines:
        xs, ys = line.get_data()
        assert min(xs) >= left
        assert max(xs) <= right
        assert min(ys) >= low
        assert max(ys) <= high
    assert [text.get_text()[:4] for text in ax.texts] == [
        "righ",
        "left",
        "far" + " ↓"[: least > 0],
        "p",
    ]


def test_bad_input_is_refused(ax):
    with pytest.raises(ValueError, match=r"shape \(..., 3\), got \(2,\)"):
        simplex.to_plane(torch.tensor([0.5, 0.5]))
    with pytest.raises(ValueError, match="sum to one"):
        simplex.to_plane(torch.tensor([0.5, 0.5, 0.5]))
    with pytest.raises(ValueError, match="steps must be"):
        simplex.lattice(1)
    with pytest.raises(ValueError, match="least must lie"):
        simplex.draw(ax, least=1.0)
