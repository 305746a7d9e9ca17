"""The rules and verdicts: every rule at its edge, and properties that no values may break."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.book.rules import RULES, VERDICTS, Check, describe, meets, passes, rule_hash, verdict

NAN = float("nan")
whole = st.integers(-50, 50).map(float)
values = st.one_of(whole, st.just(NAN), st.sampled_from([math.inf, -math.inf]))


@pytest.mark.parametrize(
    ("rule", "bound", "good", "bad"),
    [
        ("at-most", 1.0, [1.0, 0.5, -math.inf], [1.0000001, math.inf, NAN]),
        ("at-least", 1.0, [1.0, math.inf], [0.9999999, -math.inf, NAN]),
        ("below", 1.0, [0.9999999], [1.0, NAN]),
        ("above", 1.0, [1.0000001], [1.0, NAN]),
        ("within", (1.0, 0.5), [0.5, 1.0, 1.5], [0.4999, 1.5001, NAN, math.inf]),
        ("between", (0.0, 1.0), [0.0, 0.5, 1.0], [-0.0001, 1.0001, NAN]),
        ("holds", None, [True], [False, 1.0, NAN]),
    ],
)
def test_every_rule_at_its_edge(rule, bound, good, bad):
    check = Check("x", rule, bound)
    assert [passes(check, value) for value in good] == [True] * len(good)
    assert [passes(check, value) for value in bad] == [False] * len(bad)
    assert describe(check)


def test_the_table_above_leaves_no_rule_out():
    assert set(RULES) == {"at-most", "at-least", "below", "above", "within", "between", "holds"}


@given(whole, values)
def test_opposite_rules_split_the_numbers_and_neither_takes_nan(bound, value):
    for one, other in (("at-most", "above"), ("at-least", "below")):
        taken = [passes(Check("x", rule, bound), value) for rule in (one, other)]
        assert sum(taken) == (0 if math.isnan(value) else 1)


@given(whole, st.integers(0, 20), values)
def test_within_is_between_target_minus_and_plus_tolerance(target, tolerance, value):
    interval = (target - tolerance, target + tolerance)
    one = passes(Check("x", "within", (target, float(tolerance))), value)
    assert one == passes(Check("x", "between", interval), value)


@st.composite
def claims(draw):
    count = draw(st.integers(1, 5))
    checks = [
        Check(
            f"c{i}",
            draw(st.sampled_from(["at-most", "at-least", "below", "above"])),
            draw(whole),
            draw(st.booleans()),
        )
        for i in range(count)
    ]
    return checks, {check.name: draw(values) for check in checks}


@given(claims(), st.booleans())
def test_verdict_agrees_with_a_second_way_to_say_it(claim, paper_scale):
    checks, seen = claim
    good = {"at-most": "<=", "at-least": ">=", "below": "<", "above": ">"}
    compare = {
        "<=": float.__le__,
        ">=": float.__ge__,
        "<": float.__lt__,
        ">": float.__gt__,
    }
    results = [compare[good[c.rule]](seen[c.name], c.bound) for c in checks]
    trends = [ok for ok, check in zip(results, checks, strict=True) if check.trend]
    if False not in results:
        expected = "reproduced" if paper_scale else "reproduced at smaller scale"
    else:
        expected = "trend only" if trends and False not in trends else "not reproduced"
    assert verdict(checks, seen, paper_scale) == expected


@given(claims(), st.data())
def test_a_value_that_turns_to_nan_never_improves_the_verdict(claim, data):
    checks, seen = claim
    name = data.draw(st.sampled_from(sorted(seen)))
    before = VERDICTS.index(verdict(checks, seen, True))
    after = VERDICTS.index(verdict(checks, seen | {name: NAN}, True))
    assert after >= max(before, VERDICTS.index("trend only"))


@given(claims())
def test_the_hash_sees_each_part_that_decides_and_no_other(claim):
    checks, _ = claim
    first = checks[0]
    told = Check(first.name, first.rule, first.bound, first.trend, "another description")
    assert rule_hash([told, *checks[1:]]) == rule_hash(checks)
    others = [
        Check("other", first.rule, first.bound, first.trend),
        Check(first.name, "holds", first.bound, first.trend),
        Check(first.name, first.rule, first.bound + 1, first.trend),
        Check(first.name, first.rule, first.bound, not first.trend),
    ]
    assert all(rule_hash([other, *checks[1:]]) != rule_hash(checks) for other in others)


@pytest.mark.parametrize("found", VERDICTS)
@pytest.mark.parametrize("expected", VERDICTS)
def test_only_reproduced_is_met_by_a_smaller_scale_too(expected, found):
    pair = (expected, found) == ("reproduced", "reproduced at smaller scale")
    assert meets(expected, found) == (expected == found or pair)
