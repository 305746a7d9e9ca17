"""Settings: every field is checked, and what decides a run is in its fingerprint."""

from __future__ import annotations

import dataclasses
import json

import pytest

from lib.distill.methods import OBJECTIVES
from lib.distill.settings import TrainingSettings

BASE = {"method": "kd", "iterations": 10, "seed": 1, "learning_rate": 0.1}

WRONG = [
    ("method", "KD"),
    ("method", None),
    ("iterations", 0),
    ("iterations", 2.0),
    ("iterations", True),
    ("seed", -1),
    ("seed", "42"),
    ("learning_rate", 0.0),
    ("learning_rate", float("nan")),
    ("learning_rate", float("inf")),
    ("batch_size", 0),
    ("micro_batch", -3),
    ("optimiser", "adam"),
    ("momentum", 1.0),
    ("momentum", -0.1),
    ("weight_decay", -1e-3),
    ("weight_decay", "none"),
    ("schedule", "cosine"),
    ("warmup", 11),
    ("warmup", -1),
    ("clip", 0.0),
    ("precision", "float16"),
    ("options", [("temperature", 2.0)]),
    ("auxiliary_head", "mlp"),
    ("feature_weight", -1.0),
    ("feature_weight", 1.0),
    ("log_every", 0),
    ("checkpoint_every", 0),
    ("observe_every", 0),
    ("observe_every", (0, 11)),
    ("observe_every", 2.5),
    ("largest_kl", 0.0),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_wrong_fields_are_named(field, value):
    with pytest.raises(ValueError, match=field) as caught:
        TrainingSettings(**(BASE | {field: value}))
    if not isinstance(value, tuple | list) and field != "feature_weight":
        assert repr(value) in str(caught.value)


def test_options_are_those_of_the_method():
    assert TrainingSettings(**BASE, options={"temperature": 2}).options == {"temperature": 2}
    with pytest.raises(ValueError, match="beta"):
        TrainingSettings(**BASE, options={"beta": 8.0})
    with pytest.raises(ValueError, match="temperature must lie in"):
        TrainingSettings(**BASE, options={"temperature": 0.0})


def test_the_options_given_cannot_be_changed_from_outside():
    given = {"temperature": 2.0}
    made = TrainingSettings(**BASE, options=given)
    given["temperature"] = 9.0
    assert made.options == {"temperature": 2.0}


@pytest.mark.parametrize("method", OBJECTIVES)
def test_weight_decay_of_the_method(method):
    own = TrainingSettings(method, 1, 0, 0.1, weight_decay=None)
    assert own.decay == (1e-4 if method in ("kl-dist", "xe-kl") else 1e-3)
    assert TrainingSettings(method, 1, 0, 0.1, weight_decay=0.0).decay == 0.0


def test_every_field_but_the_checkpoints_is_in_the_fingerprint():
    """A field that is added later must not be forgotten."""
    changes = {
        "method": "ce",
        "iterations": 11,
        "seed": 2,
        "learning_rate": 0.2,
        "batch_size": 3,
        "micro_batch": 3,
        "optimiser": "adam-weight-decay",
        "momentum": 0.5,
        "weight_decay": 0.5,
        "schedule": "warmup-linear",
        "warmup": 1,
        "clip": 1.0,
        "precision": "float64",
        "options": {"temperature": 2.0},
        "auxiliary_head": "linear",
        "log_every": 3,
        "observe_every": 3,
        "largest_kl": 5.0,
    }
    base = TrainingSettings(**BASE).fingerprint()
    names = {field.name for field in dataclasses.fields(TrainingSettings)}
    assert names - changes.keys() == {"checkpoint_every", "feature_weight"}
    for name, value in changes.items():
        assert TrainingSettings(**(BASE | {name: value})).fingerprint() != base, name
    assert TrainingSettings(**BASE, checkpoint_every=3).fingerprint() == base
    plain = TrainingSettings(**(BASE | {"method": "dto-kd"})).fingerprint()
    featured = TrainingSettings(**(BASE | {"method": "dto-kd"}), feature_weight=1.0).fingerprint()
    assert plain != featured


@pytest.mark.parametrize("method", OBJECTIVES)
def test_fingerprints_survive_json(method):
    found = TrainingSettings(method, 10, 1, 0.1, observe_every=(8, 1, 0)).fingerprint()
    assert json.loads(json.dumps(found)) == found
    assert found["observe_every"] == [0, 1, 8]


def test_defaults_and_their_values_have_one_fingerprint():
    spelt = TrainingSettings(**BASE, options={"temperature": 4, "kd_weight": 1.0})
    assert spelt.fingerprint() == TrainingSettings(**BASE).fingerprint()
    own = TrainingSettings("kl-dist", 1, 0, 0.1, weight_decay=None)
    assert (
        own.fingerprint() == TrainingSettings("kl-dist", 1, 0, 0.1, weight_decay=1e-4).fingerprint()
    )


def test_steps_per_epoch_come_from_the_examples_unless_given():
    made = TrainingSettings("dkd", 1, 0, 0.1, batch_size=64)
    assert made.resolved_options(18_000)["steps_per_epoch"] == 281.25
    given = TrainingSettings("dkd", 1, 0, 0.1, options={"steps_per_epoch": 7.0})
    assert given.resolved_options(18_000)["steps_per_epoch"] == 7.0
    assert given.fingerprint() != TrainingSettings("dkd", 1, 0, 0.1).fingerprint()


@pytest.mark.parametrize(
    ("every", "moments"), [(None, [10]), (4, [0, 4, 8, 10]), ((1, 8), [1, 8, 10])]
)
def test_moments_of_observation(every, moments):
    made = TrainingSettings(**BASE, observe_every=every)
    assert [k for k in range(11) if made.observes(k)] == moments
