"""Tables: both forms of input, what is refused, and markup that cannot break out of a cell."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.book import tables
from lib.book.html import Markup, table_html, table_text


def test_rows_and_columns_show_the_same_table(capsys):
    tables.show([{"n": 1, "risk": np.float64(0.25)}, {"n": 2, "risk": None}], digits=2)
    first = capsys.readouterr().out
    tables.show({"n": [1, 2], "risk": [0.25, None]}, digits=2)
    assert capsys.readouterr().out == first == "n  risk\n1  0.25\n2     —\n"


def test_columns_choose_and_order(capsys):
    tables.show([{"a": 1, "b": 2, "c": 3}], columns=["c", "a"])
    assert capsys.readouterr().out == "c  a\n3  1\n"


@pytest.mark.parametrize(
    ("rows", "options", "reason"),
    [
        ([], {}, "rows is empty"),
        ({}, {}, "rows is empty"),
        ({"a": [1], "b": [1, 2]}, {}, "different lengths: {'a': 1, 'b': 2}"),
        ([{"a": 1}, {"b": 1}], {}, "row 1 has no a; it has b"),
        ([{"a": 1}], {"columns": ["z"]}, "row 0 has no z"),
        ([{"a": 1}], {"digits": 0}, "digits is 0"),
    ],
)
def test_tables_that_make_no_sense_are_refused(rows, options, reason):
    with pytest.raises(ValueError, match=reason):
        tables.show(rows, **options)


@given(st.text(), st.text())
def test_no_text_can_leave_its_cell(head, cell):
    whole = table_html([head], [[cell]])
    plain = table_html(["x"], [["y"]])
    assert whole.count("<") == plain.count("<")


def test_markup_is_kept_in_html_and_gone_in_text():
    cell = Markup("<b>x</b>", "x")
    assert "<b>x</b>" in table_html(["a"], [[cell]])
    assert table_text(["a"], [[cell]]) == "a\nx"


def test_a_sentence_under_a_short_label_may_break():
    label = Markup("spearman<br><small>rank correlation of index and risk</small>", "spearman")
    assert "nowrap" not in table_html(["check"], [[label]]).split("<tbody>")[1]
    assert "nowrap" in table_html(["target"], [["≤ -0.9"]]).split("<tbody>")[1]
    assert "nowrap" in table_html(["verdict"], [[Markup("<b>✓</b> passes", "✓ passes")]])
