"""Series that a check keeps with its record, and how a page at another profile gets them."""

from __future__ import annotations

import math

import pytest
import torch

from lib.book import claims
from lib.book.records import read_record, records_path, results_path, write_record

CURVE = {"x": [0.0, 10.0], "risk": [0.1 + 0.2, 1e-9]}


@pytest.fixture
def on_page(book, monkeypatch):
    """Returns a function that opens the page at a profile."""

    def open_page(profile: str) -> None:
        monkeypatch.setenv("BOOK_CHAPTER", "part/sum")
        monkeypatch.setenv("BOOK_PROFILE", profile)
        claims.start_chapter()

    return open_page


def _record_at_cpu(book, on_page, series):
    on_page("cpu")
    claims.check("toy.sum", 0.5, series=series)
    record = read_record(records_path(book.root, "cpu", "part/sum"), book.root)
    write_record(results_path(book.root, "cpu", "part/sum"), record)


@pytest.mark.parametrize("convert", [list, torch.tensor])
def test_a_series_comes_back_at_another_profile_digit_by_digit(book, on_page, convert):
    numbers = {k: convert(v) for k, v in CURVE.items()}
    _record_at_cpu(book, on_page, numbers)
    on_page("quick")
    expected = {k: [float(v) for v in values] for k, values in numbers.items()}
    assert claims.recorded_series("toy.sum") == {"cpu": expected}


def test_a_profile_does_not_see_its_own_series(book, on_page):
    _record_at_cpu(book, on_page, CURVE)
    assert claims.recorded_series("toy.sum") == {}


def test_a_check_without_series_leaves_the_record_as_it_was(book, on_page):
    _record_at_cpu(book, on_page, None)
    entry = read_record(results_path(book.root, "cpu", "part/sum"), book.root)["claims"]["toy.sum"]
    assert "series" not in entry
    on_page("quick")
    assert claims.recorded_series("toy.sum") == {}


@pytest.mark.parametrize("values", [[], [0.0, math.nan], [math.inf]])
def test_a_series_that_is_empty_or_not_finite_is_refused_and_leaves_no_record(
    book, on_page, values
):
    on_page("quick")
    with pytest.raises(ValueError, match="risk"):
        claims.check("toy.sum", 0.5, series={"risk": values})
    assert not records_path(book.root, "quick", "part/sum").exists()
