"""Profiles: the book's own are valid; unknown names are refused with what is allowed."""

from __future__ import annotations

import pytest

from lib.book.profiles import load_profiles
from lib.book.session import PROFILES
from tests.book.conftest import CODE


def test_the_profiles_of_the_book_are_valid():
    assert tuple(load_profiles(CODE)) == PROFILES


def test_changes_and_minutes_are_kept_apart(book):
    book.write("book/profiles.yml", "quick:\n  part/sum: {n: 5, minutes: 0.5}\n")
    setting = load_profiles(book.root)["quick"]["part/sum"]
    assert (setting.changes, setting.minutes) == ({"n": 5}, 0.5)
    assert load_profiles(book.root)["gpu"] == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fast: {}", "saw 'fast'; allowed: quick, cpu, gpu, paper"),
        ("quick: {part/none: {n: 1}}", "unknown chapter; the notebooks of _toc.yml: part/sum"),
        ("quick: {part/sum: {m: 1}}", "unknown parameter 'm'; its parameters cell has: n"),
        ("quick: {part/sum: {n: ten}}", "n is 'ten', and 100 in the notebook; give it the same"),
        ("quick: {part/sum: {n: true}}", "n is True, and 100 in the notebook"),
        ("quick: {part/sum: {n: .nan}}", "use plain numbers"),
        ("quick: {part/sum: 3}", "must map parameters to values"),
        ("quick: {part/sum: {minutes: 0}}", "minutes is 0"),
        ("quick: {part/sum: {n: 1, n: 2}}", "the key 'n' stands there twice"),
        ("[]", "must be a mapping"),
    ],
)
def test_mistakes_are_named(book, text, reason):
    book.write("book/profiles.yml", text)
    with pytest.raises(ValueError, match=reason) as caught:
        load_profiles(book.root)
    assert "book/profiles.yml" in str(caught.value)


def test_values_take_the_type_of_the_notebook(book):
    own = "n = 1\nrate = 0.5\nsizes = (1, 2)\nname = 'a'\nlimit = None\nflag = True"
    book.notebook("part/sum", "1", parameters=own)
    good = "quick: {part/sum: {n: 2.5, rate: 1, sizes: [3], name: b, limit: 4, flag: false}}"
    book.write("book/profiles.yml", good)
    assert len(load_profiles(book.root)["quick"]["part/sum"].changes) == 6
