"""Plateau and loss rises, counted by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.stability import Descent, loss_rises, plateau


def run(losses, every=1, ratios=None):
    steps = torch.arange(0, len(losses), every)
    ratios = torch.arange(1.0, len(steps) + 1).double() if ratios is None else ratios
    return Descent(
        losses=torch.tensor(losses, dtype=torch.float64),
        steps=steps,
        sharpness=10 * ratios[:, None],
        residuals=torch.zeros(len(steps), 1),
        products=torch.ones(len(steps)).long(),
        accuracies=None,
        step_size=0.2,
        threshold=10.0,
        ended="steps",
    )


def test_plateau_is_the_last_part():
    whole = run([0.0] * 31, every=5)
    assert plateau(whole).tolist() == [5, 6, 7]
    assert plateau(whole, 0.5).tolist() == [4, 5, 6, 7]
    assert plateau(whole, 1).tolist() == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(ValueError, match=r"fraction must cover a measured step, got 0\.01"):
        plateau(run([0.0] * 33, every=5), 0.01)
    with pytest.raises(ValueError, match="fraction must be"):
        plateau(whole, 1.5)


def test_crossing_is_the_first_measurement_above():
    ratios = torch.tensor([0.5, 1.0, 1.1, 0.9, 1.2]).double()
    whole = run([0.0] * 21, every=5, ratios=ratios)
    assert whole.crossing == 10
    assert whole.times.tolist() == [0, 1, 2, 3, 4]
    assert run([0.0] * 6, 5, torch.tensor([0.5, 1.0]).double()).crossing is None


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=30), st.data())
def test_rises_are_counted(losses, data):
    stop = data.draw(st.integers(1, len(losses) - 1))
    start = data.draw(st.integers(0, stop - 1))
    rises = sum(losses[t + 1] > losses[t] for t in range(start, stop))
    assert loss_rises(run(losses), start, stop) == pytest.approx(rises / (stop - start))


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (3, 3), (-1, 2), (2, 1), (0, 0)])
def test_steps_outside_the_run_are_refused(start, stop):
    with pytest.raises(ValueError, match="must be an integer"):
        loss_rises(run([3.0, 2.0, 1.0, 0.0]), start, stop)


def test_no_rises_without_a_step():
    with pytest.raises(ValueError, match="run must have at least one step"):
        loss_rises(run([1.0]))
