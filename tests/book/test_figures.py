"""The figure style: intervals against NumPy, colours against seaborn, the stamp, the bytes."""

from __future__ import annotations

import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lib.book import figures


@pytest.fixture(autouse=True)
def style():
    with plt.rc_context():
        figures.set_style()
        yield
    plt.close("all")


def png(draw) -> bytes:
    fig, ax = figures.new()
    draw(fig, ax)
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png")
    plt.close(fig)
    return buffer.getvalue()


@given(arrays(float, st.tuples(st.integers(2, 9), st.integers(1, 5)), elements=st.floats(-9, 9)))
def test_the_band_is_the_mean_and_the_middle_95_percent(samples):
    fig, ax = figures.new()
    mean, low, high = figures.band(ax, np.arange(samples.shape[1]), samples, "x", "green")
    ordered = np.sort(samples, axis=0)
    place = 0.025 * (len(samples) - 1)
    below, share = int(place), place - int(place)
    expected = ordered[below] * (1 - share) + ordered[below + 1] * share
    np.testing.assert_allclose(low, expected, atol=1e-12)
    np.testing.assert_allclose(high, np.percentile(samples, 97.5, axis=0), atol=1e-12)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), samples.sum(axis=0) / len(samples))
    assert (low <= high + 1e-12).all()
    assert ax.lines[0].get_color() == figures.colours["green"]
    np.testing.assert_allclose(mean, ax.lines[0].get_ydata())
    plt.close(fig)


def test_colours_are_seaborns_colour_blind_palette():
    seaborn = pytest.importorskip("seaborn")
    palette = [str(colour) for colour in seaborn.color_palette("colorblind").as_hex()]
    assert list(figures.colours.values()) == palette


@pytest.mark.parametrize(
    ("x", "samples", "reason"),
    [
        ([0, 1], [[1.0, 2.0]], "2 or more repetitions"),
        ([0, 1], [1.0, 2.0], "samples has shape"),
        ([0], [[1.0, 2.0], [1.0, 2.0]], "samples has shape"),
        ([0, 1], [[1.0, np.nan], [1.0, np.inf]], "2 values that are not finite"),
    ],
)
def test_bad_samples_are_refused(x, samples, reason):
    _, ax = figures.new()
    with pytest.raises(ValueError, match=reason):
        figures.band(ax, x, samples, "x")


def test_a_figure_is_light_has_two_spines_and_keeps_its_size():
    fig, axes = figures.new(rows=2, columns=2, width=6)
    assert axes.shape == (2, 2)
    assert fig.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    visible = [name for name, spine in axes[0, 0].spines.items() if spine.get_visible()]
    assert sorted(visible) == ["bottom", "left"]
    assert fig.get_figwidth() == 6


@pytest.mark.parametrize(("name", "value"), [("rows", 0), ("columns", 1.5), ("height", -1)])
def test_impossible_sizes_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        figures.new(**{name: value})


@pytest.mark.parametrize(("axis", "get"), [("y", "get_ydata"), ("x", "get_xdata")])
def test_a_reference_stands_at_its_value(axis, get):
    _, ax = figures.new()
    figures.reference(ax, 0.3, "theory", axis=axis)
    assert list(getattr(ax.lines[0], get)()) == [0.3, 0.3]
    assert ax.lines[0].get_label() == "theory"


def test_bad_references_are_refused():
    _, ax = figures.new()
    with pytest.raises(ValueError, match="axis is 'z'"):
        figures.reference(ax, 1.0, "x", axis="z")
    with pytest.raises(ValueError, match="it must be finite"):
        figures.reference(ax, float("nan"), "x")


def test_the_stamp_names_data_and_profile_and_covers_nothing(monkeypatch):
    monkeypatch.setenv("BOOK_PROFILE", "cpu")
    fig, ax = figures.new()
    ax.set_xlabel("n")
    figures.stamp(fig, "digits 0 and 1")
    fig.canvas.draw()
    (note,) = fig.texts
    assert note.get_text() == "digits 0 and 1 · profile cpu"
    assert not note.get_window_extent().overlaps(ax.get_tightbbox())
    with pytest.raises(ValueError, match="name the data or task"):
        figures.stamp(fig, " ")


def test_the_same_figure_gives_the_same_bytes():
    def draw(fig, ax):
        figures.band(ax, [0, 1], [[0, 1], [1, 3]], "a")
        ax.legend()
        figures.stamp(fig, "data")

    assert png(draw) == png(draw)
