"""Comparisons of two methods agree with closed forms, other libraries and simulation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lib.book.data_used import data_used, forget_data
from lib.book.pages import distillation_runs as runs
from lib.distill.config import TrainingConfig
from lib.distill.runs import train


def generator(seed):
    return torch.Generator().manual_seed(seed)


def test_the_factor_of_three_seeds_has_a_closed_form():
    p = 0.975
    closed = (2 * p - 1) / math.sqrt(2 * p * (1 - p)) / math.sqrt(3)
    assert runs.interval_factor(3) == pytest.approx(closed, rel=1e-12)
    assert runs.interval_factor(2) == pytest.approx(math.tan(math.pi * 0.475) / math.sqrt(2))
    assert runs.interval_factor(10**6) * 10**3 == pytest.approx(1.959964, rel=1e-5)


@pytest.mark.parametrize("seeds", [1, 0, -3, 2.0, True, None])
def test_the_factor_needs_two_seeds(seeds):
    with pytest.raises(ValueError, match="seeds must be an integer >= 2"):
        runs.interval_factor(seeds)


@pytest.mark.parametrize("level", [0.0, 1.0, -1, 95])
def test_a_level_is_a_share(level):
    with pytest.raises(ValueError, match="level must lie in"):
        runs.interval_factor(3, level)


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_is_that_of_a_paired_t_test(seed):
    first, second = torch.randn(2, 5, dtype=torch.float64, generator=generator(seed)) + 90
    found = runs.paired_difference(first, second)
    interval = stats.ttest_rel(first.numpy(), second.numpy()).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.mean == pytest.approx(float((first - second).mean()))
    back = runs.paired_difference(second, first)
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))


def test_the_interval_covers_the_truth_as_often_as_it_says():
    draws = torch.randn(1500, 2, 3, dtype=torch.float64, generator=generator(0))
    inside = [
        (found := runs.paired_difference(a + 0.3, b)).low <= 0.3 <= found.high for a, b in draws
    ]
    assert abs(sum(inside) / len(inside) - 0.95) < 0.02


@given(st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_what_both_methods_share_at_a_seed_cancels(seed):
    first, second, shared = torch.randn(3, 4, dtype=torch.float64, generator=generator(seed))
    plain = runs.paired_difference(first, second)
    found = runs.paired_difference(first + 100 * shared, second + 100 * shared)
    assert found.half == pytest.approx(plain.half, abs=1e-9)
    assert found.mean == pytest.approx(plain.mean, abs=1e-9)


@pytest.mark.parametrize("shapes", [((3,), (4,)), ((3, 2), (3, 2)), ((), ())])
def test_accuracies_must_pair_up(shapes):
    with pytest.raises(ValueError, match="one shape"):
        runs.paired_difference(*(torch.zeros(shape) for shape in shapes))


@pytest.mark.parametrize("seed", range(3))
def test_discordant_counts_and_p_values_agree_with_counting_and_scipy(seed):
    first, second = torch.rand(2, 4, 60, generator=generator(seed)) < 0.7
    found = runs.discordant(first, second)
    for row in range(4):
        pairs = list(zip(first[row].tolist(), second[row].tolist(), strict=True))
        b, c = pairs.count((True, False)), pairs.count((False, True))
        assert (int(found.first[row]), int(found.second[row])) == (b, c)
        assert float(found.p_value[row]) == pytest.approx(stats.binomtest(b, b + c).pvalue)
        gap = float(first[row].double().mean() - second[row].double().mean())
        assert (b - c) / 60 == pytest.approx(gap)


def test_two_equal_students_have_nothing_to_test():
    right = torch.rand(7, generator=generator(1)) < 0.5
    found = runs.discordant(right, right)
    assert (int(found.first), int(found.second), float(found.p_value)) == (0, 0, 1.0)


def test_students_must_answer_the_same_examples():
    right = torch.ones(5, dtype=torch.bool)
    with pytest.raises(ValueError, match="second must be bool of shape"):
        runs.discordant(right, right[:4])
    with pytest.raises(ValueError, match="first must be bool"):
        runs.discordant(right.float(), right.float())


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_over_examples_is_that_of_a_mean(seed):
    first, second = torch.rand(2, 3, 400, generator=generator(seed)) < 0.8
    mean, half = runs.over_examples(first, second)
    scores = 100 * (first.double() - second.double()).mean(0)
    low, high = stats.norm.interval(0.95, scores.mean(), stats.sem(scores.numpy()))
    assert (mean - half, mean + half) == pytest.approx((low, high))
    gap = 100 * (first.double().mean() - second.double().mean())
    assert mean == pytest.approx(float(gap), abs=1e-9)


def test_the_interval_over_examples_needs_students_and_examples():
    with pytest.raises(ValueError, match="n >= 2"):
        runs.over_examples(torch.ones(3, 1, dtype=torch.bool), torch.ones(3, 1, dtype=torch.bool))


SHORT = {"iterations": 12, "snapshots": [], "widths": [8], "teacher_iterations": 60}


@pytest.fixture(scope="module", autouse=True)
def cache(own_cache):
    """Every test here trains into a cache of its own."""


@pytest.fixture(scope="module")
def table():
    return runs.run_methods("digits", ["ce", "kd"], [42, 43], changes=SHORT)


def test_rows_hold_what_single_runs_measure(table):
    assert list(table) == ["ce", "kd"]
    for method, row in table.items():
        for place, seed in enumerate(row.seeds):
            config = TrainingConfig("vision", method, seed, "digits", overrides=SHORT)
            result = train(config, keep=False)
            assert torch.equal(result.test_logits, row.results[place].test_logits)
            assert float(row.accuracy[place]) == pytest.approx(100 * result.measures["accuracy"])
            assert int(row.correct[place].sum()) == result.measures["correct"]
            assert float(row.blocked[place]) == result.measures["blocked"]
            assert float(row.conditional_kl[place]) == result.measures["conditional_kl"]
    assert row.title == "KD"
    assert row.counts == ", ".join(str(r.measures["correct"]) for r in row.results)
    assert row.text == runs.spread_text(row.accuracy)


def test_a_run_is_made_once(table, monkeypatch):
    def fail(*args, **options):
        raise AssertionError("trained again")

    monkeypatch.setattr(runs, "train", fail)
    again = runs.run_methods("digits", ["kd"], [43], changes=SHORT)["kd"]
    assert torch.equal(again.results[0].test_logits, table["kd"].results[1].test_logits)
    with pytest.raises(AssertionError, match="trained again"):
        runs.run_methods("digits", ["kd"], [44], changes=SHORT)


def test_the_data_are_noted():
    forget_data()
    runs.note_data("digits")
    runs.note_data("phrases")
    found = {entry["name"]: entry for entry in data_used()}
    assert found["digits-8x8"]["sha256"]
    assert found["phrases"]["source"].startswith("synthetic")
    forget_data()


def test_without_seeds_there_is_nothing_to_run():
    with pytest.raises(ValueError, match="at least one seed"):
        runs.run_methods("digits", ["ce"], [])


def test_one_value_has_no_spread():
    assert runs.spread_text(torch.tensor([93.456])) == "93.46"
