"""Progress: quiet when quick, and never on a built page."""

from __future__ import annotations

import pytest

from lib.book import progress


@pytest.fixture
def clock(monkeypatch):
    """Replaces the clock by one that tests move."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def steps(clock, seconds):
    for value in progress.track([1, 2, 3], "fits"):
        clock[0] += seconds
        yield value


def test_quick_loops_say_nothing(clock, capsys):
    assert list(steps(clock, 0.5)) == [1, 2, 3]
    assert capsys.readouterr().out == ""


def test_slow_loops_say_how_far_they_are(clock, capsys):
    assert list(steps(clock, 3)) == [1, 2, 3]
    told = capsys.readouterr().out.split("\r")
    assert told == [
        "",
        "fits: 1 of 3, 3 s",
        "fits: 2 of 3, 6 s",
        "fits: 3 of 3, 9 s",
        "fits: 3 of 3, 9 s\n",
    ]


def test_under_the_runner_the_page_stays_clean(clock, capsys, monkeypatch, tmp_path):
    channel = tmp_path / "progress.txt"
    monkeypatch.setenv("BOOK_PROGRESS", str(channel))
    loop = steps(clock, 3)
    next(loop)
    next(loop)
    assert channel.read_text() == "fits: 1 of 3, 3 s"
    list(loop)
    assert (channel.read_text(), capsys.readouterr().out) == ("", "")
