"""Options: defaults, checks and the messages that name what is allowed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lib.distill import OBJECTIVES, objective_loss
from lib.distill.options import Choice, Flag, Number, check_step, resolve_options
from tests.distill.cases import arguments

RULES = {"alpha": Number(1.0, 0.0, 2.0), "align": Flag(True), "variant": Choice("a", ("a", "b"))}


def test_given_values_replace_defaults():
    assert resolve_options("x", RULES, {}) == {"alpha": 1.0, "align": True, "variant": "a"}
    given = {"variant": "b", "alpha": 2}
    assert resolve_options("x", RULES, given) == {"alpha": 2.0, "align": True, "variant": "b"}
    assert resolve_options("x", RULES, {"alpha": torch.tensor(0.5)})["alpha"] == 0.5
    assert resolve_options("x", RULES, {"alpha": np.float32(0.5)})["alpha"] == 0.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beta": 1.0}, "options of 'x' must be one of alpha, align, variant; got 'beta'"),
        ({"alpha": 2.5}, r"alpha must lie in \[0, 2\], got 2.5"),
        ({"alpha": True}, "alpha must be a real number"),
        ({"align": 1}, "align must be True or False, got 1"),
        ({"variant": "c"}, "variant must be one of a, b, got 'c'"),
        ({"variant": None}, "variant must be one of a, b, got None"),
    ],
)
def test_wrong_options(given, message):
    with pytest.raises(ValueError, match=message):
        resolve_options("x", RULES, given)


def test_steps():
    assert check_step(None) is None
    assert check_step(np.int64(4)) == 4


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_defaults_pass_their_own_checks_and_change_nothing(name):
    spec, values = OBJECTIVES[name], arguments(0, 3, 4)
    assert torch.equal(
        objective_loss(name, **values), objective_loss(name, **values, **spec.options)
    )
    objective_loss(name, **values, step=300, **{**spec.options, **spec.text_options})
    assert resolve_options(name, spec.rules, spec.options) == spec.options
