"""Records: what was written is what is read, and damage is named."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.book.files import digest
from lib.book.records import decode_number, encode_numbers, read_record, write_record

ENTRY = {
    "paper": "1",
    "values": {"gap": 0.25, "worst": math.inf, "ok": True},
    "targets": {"gap": "≤ 1"},
    "rules": {"gap": "at-most"},
    "rule_hash": "0" * 64,
    "verdict": "reproduced",
    "paper_scale": True,
    "note": "",
}
RECORD = {
    "format": 1,
    "chapter": "part/sum",
    "profile": "quick",
    "key": None,
    "parameters": {"n": 1},
    "data": [],
    "versions": {"numpy": "2"},
    "device": "cpu",
    "claims": {"toy.sum": ENTRY},
}


def test_a_record_comes_back_as_it_was(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_record(path, RECORD)
    assert read_record(path, tmp_path) == RECORD
    assert [entry.name for entry in path.parent.iterdir()] == ["b.json"]


def test_any_flipped_byte_is_refused_by_name(tmp_path):
    path = tmp_path / "b.json"
    write_record(path, RECORD)
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[position] ^= 1
        path.write_bytes(bytes(changed))
        refused = pytest.raises(ValueError, match=r"^b\.json.*run the chapter again")
        if is_the_same(bytes(changed)):
            assert read_record(path, tmp_path) == RECORD
        else:
            with refused:
                read_record(path, tmp_path)


def is_the_same(data: bytes) -> bool:
    """Returns whether a change of bytes left the meaning of the JSON as it was."""
    try:
        read = json.loads(data)
    except ValueError:
        return False
    return (
        {k: v for k, v in read.items() if k != "checksum"} == encode_numbers(RECORD)
        and len(read) == len(RECORD) + 1
        and read.get("checksum") == digest(encode_numbers(RECORD))
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1}'])
def test_what_is_no_record_is_refused_by_name(tmp_path, text):
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^b\.json"):
        read_record(path, tmp_path)


@pytest.mark.parametrize("field", ["claims", "versions", "chapter"])
def test_a_record_that_lacks_a_field_is_refused(tmp_path, field):
    path = tmp_path / "b.json"
    write_record(path, {key: value for key, value in RECORD.items() if key != field})
    with pytest.raises(ValueError, match=field):
        read_record(path, tmp_path)


@given(st.floats())
def test_every_float_survives_json(value):
    back = decode_number(json.loads(json.dumps(encode_numbers(value), allow_nan=False)))
    assert back == value or (math.isnan(back) and math.isnan(value))
