"""Configs: checked when they are made, plain JSON, and keys that change for what matters only."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.distill import OBJECTIVES
from lib.distill import config as module
from lib.distill.config import TrainingConfig, digest_of
from tests.distill.tiny_setting import TINY

ONE = TrainingConfig("vision", "tpkd", 42, "tiny")


@given(
    st.sampled_from(list(OBJECTIVES)),
    st.integers(0, 2**40),
    st.sampled_from(["smooth", "sharp"]),
    st.dictionaries(st.sampled_from(["iterations", "train"]), st.integers(1, 99), max_size=2),
)
def test_json_brings_a_config_back(method, seed, teacher, overrides):
    config = TrainingConfig("vision", method, seed, "tiny", teacher, overrides)
    again = TrainingConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert again == config
    assert again.key() == config.key()
    assert hash(again) == hash(config)


def test_the_key_is_what_it_always_was():
    """A change of this key means that every run that anyone has kept is trained again."""
    assert ONE.key() == "tiny-smooth-tpkd-42-d1dd122a8ee03e88"


@pytest.mark.parametrize(
    "change",
    [
        {"method": "kd"},
        {"seed": 43},
        {"teacher": "sharp"},
        {"overrides": {"iterations": 13}},
        {"overrides": {"teacher_iterations": 16}},
        {"overrides": {"options": {"tpkd": {"weight": 0.25}}}},
    ],
    ids=str,
)
def test_what_decides_the_result_changes_the_key(change):
    assert replace(ONE, **change).key() != ONE.key()


def test_what_decides_nothing_keeps_the_key():
    assert replace(ONE, overrides={"checkpoint_every": 3}).key() == ONE.key()
    assert replace(ONE, overrides={"options": {"kd": {"temperature": 2.0}}}).key() != ONE.key()


def test_data_version_and_table_change_the_key(monkeypatch):
    kept = ONE.key()
    for change in (
        {"data": lambda table: {"nothing": "1" * 64}},
        {"table": {**TINY.table, "a": 1}},
    ):
        monkeypatch.setitem(
            module.find_setting.__globals__["SETTINGS"], "tiny", replace(TINY, **change)
        )
        assert ONE.key() != kept
    monkeypatch.setitem(module.find_setting.__globals__["SETTINGS"], "tiny", TINY)
    monkeypatch.setattr(module, "RECIPE_VERSION", module.RECIPE_VERSION + 1)
    assert ONE.key() != kept


def test_tuples_are_lists_and_the_caller_keeps_his_dictionary():
    overrides = {"snapshots": (3, 6)}
    config = replace(ONE, overrides=overrides)
    overrides["snapshots"] = ()
    assert config.overrides == {"snapshots": [3, 6]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"domain": "sound"}, "domain must be one of vision, text, got 'sound'"),
        ({"domain": "text"}, "'tiny' is of the domain 'vision', got 'text'"),
        ({"method": "magic"}, "method must be one of ce, .*, got 'magic'"),
        ({"method": None}, "method must be one of"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        ({"seed": True}, "seed must be"),
        ({"seed": 1.0}, "seed must be"),
        ({"teacher": "wise"}, "teacher must be one of smooth, sharp, got 'wise'"),
        ({"setting": "nowhere"}, "setting must be one of .*digits.*, got 'nowhere'"),
        ({"overrides": {"speed": 1}}, "overrides of 'tiny' must be among .*iterations.*'speed'"),
        ({"overrides": {"iterations": "many"}}, r"overrides\['iterations'\] must be of the type"),
        ({"overrides": {"iterations": 1.5}}, r"overrides\['iterations'\] must be of the type"),
        ({"overrides": {"missing": 1}}, r"overrides\['missing'\] must be of the type"),
        ({"overrides": [("iterations", 3)]}, "overrides must be a mapping"),
        ({"overrides": {"learning_rate": float("nan")}}, "overrides must be plain JSON"),
    ],
)
def test_bad_fields_are_named(change, says):
    with pytest.raises(ValueError, match=says):
        replace(ONE, **change)


def test_unknown_and_missing_fields_are_named():
    with pytest.raises(ValueError, match="fields must have domain"):
        TrainingConfig.from_json({**ONE.to_json(), "colour": "red"})


def test_a_digest_depends_on_content_and_not_on_order():
    assert digest_of({"a": 1, "b": [1, 2]}) == digest_of({"b": [1, 2], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 1.0})
    assert len(digest_of([])) == 16
