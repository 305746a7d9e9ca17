"""Rounds, quartiles, intervals and memory, against other routes."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

from benchmarks import rounds


def test_every_call_is_made_once_a_round_in_changing_orders():
    made = []
    calls = {name: lambda name=name: made.append(name) for name in "abcd"}
    seconds = rounds.interleave(calls, 6, warm=2)
    assert {name: len(found) for name, found in seconds.items()} == dict.fromkeys("abcd", 6)
    orders = [tuple(made[k : k + 4]) for k in range(0, len(made), 4)]
    assert len(orders) == 8
    assert all(sorted(order) == list("abcd") for order in orders)
    assert len(set(orders)) > 1


def test_what_warms_up_does_not_count(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(rounds, "clock", lambda device: float(next(ticks) ** 2))
    seconds = rounds.interleave({"one": lambda: None}, 2, warm=1)
    assert seconds == {"one": [2**2 - 1**2, 4**2 - 3**2]}


@pytest.mark.parametrize("n", [1, 2, 5, 60, 101])
def test_quartiles_are_those_of_numpy(n):
    values = np.random.default_rng(n).normal(size=n).tolist()
    assert rounds.quartiles(values) == pytest.approx(np.quantile(values, [0.25, 0.5, 0.75]))


@pytest.mark.parametrize("n", [1, 4, 6, 9, 20, 101, 300])
def test_interval_of_the_median_covers_it_as_often_as_it_says(n):
    """The interval from the (c+1)st of n values misses with twice P[binomial <= c]."""
    low, high = rounds.median_interval(range(n))
    assert low + high == n - 1
    missed = 2 * binom.cdf(low, n, 0.5)
    narrower = 2 * binom.cdf(low + 1, n, 0.5)
    assert narrower > 0.05
    assert missed <= 0.05 or low == 0


def test_ratios_are_those_of_one_round():
    seconds = {"a": [2.0, 9.0], "b": [1.0, 3.0]}
    assert rounds.ratios(seconds, "a", "b") == [2.0, 3.0]
    assert rounds.spread([2.0, 3.0]) == "2.50 [2.25, 2.75]"


@pytest.mark.skipif(not rounds.STATUS.is_file(), reason="the system does not tell")
def test_peak_is_that_of_the_block():
    earlier = torch.ones(192, 2**18)
    del earlier  # a higher peak before the block
    found = {}
    with rounds.peak_of(found):
        block = torch.ones(96, 2**18)
        del block
    assert 90 < found["peak_mib"] - found["before_mib"] < 140
    assert found["own_mib"] < found["peak_mib"] - 60


def test_a_failing_process_says_why():
    with pytest.raises(RuntimeError, match="No module named"):
        rounds.own_process("benchmarks.there_is_no_such")


def test_table_lines_up(capsys):
    rounds.print_table(["", "ms"], [["one", 1], ["three", 22]])
    assert capsys.readouterr().out.splitlines() == ["       ms", "one     1", "three  22", ""]


def test_machine_names_torch():
    assert torch.__version__ in rounds.machine()
