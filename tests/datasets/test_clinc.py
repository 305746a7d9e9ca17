"""CLINC150 from a small file made here, and from the real one where it is."""

import json
import shutil

import pytest
import torch

from lib.datasets import ChecksumError, NotHereError, clinc
from lib.datasets.clinc import load_clinc150

SMALL = {
    "oos_val": [["what is love", "oos"]],
    "val": [["how late is it", "time"], ["café near me", "restaurant"]],
    "train": [["what time is it", "time"], ["say hi", "greeting"], ["where to eat", "restaurant"]],
    "oos_train": [["who won", "oos"]],
    "test": [["hello", "greeting"], ["the time please", "time"], ["food", "restaurant"]],
    "oos_test": [["sing", "oos"]],
}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The loader reads the small file, as if it were in the cache."""
    path = tmp_path / "data_full.json"
    path.write_text(json.dumps(SMALL), encoding="utf-8")
    monkeypatch.setattr(clinc, "fetch", lambda file, allow: ("cache", path))


@pytest.fixture
def official(monkeypatch, book_data):
    if not (book_data / "clinc150").is_dir():
        pytest.skip("needs CLINC150; set BOOK_DATA")
    monkeypatch.setenv("BOOK_DATA", str(book_data))
    return book_data / "clinc150" / "data_full.json"


def test_training_and_validation_texts_are_pooled_in_the_order_of_the_file(small):
    found = load_clinc150(quiet=True)
    assert found.texts == tuple(text for text, _ in SMALL["train"] + SMALL["val"])
    assert found.classes == ("greeting", "restaurant", "time")
    assert found.labels.tolist() == [2, 0, 1, 2, 1]
    assert found.labels.dtype == torch.int64


def test_test_texts_have_the_same_labels_and_none_is_out_of_scope(small):
    found = load_clinc150("test", quiet=True)
    assert found.texts == ("hello", "the time please", "food")
    assert found.labels.tolist() == [0, 2, 1]
    assert "oos" not in found.classes


def test_the_note(small, capsys):
    found = load_clinc150("test")
    assert capsys.readouterr().out == f"{found.note}\n"
    assert found.note == (
        "CLINC150 test: the test texts, 3 of 3 intents, from data_full.json (the cache)"
    )
    load_clinc150("test", quiet=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("split", ["val", "all", 3])
def test_unknown_splits_are_refused(split):
    with pytest.raises(ValueError, match="must be one of train, test"):
        load_clinc150(split)


def test_without_the_file_the_error_says_where_to_get_it():
    with pytest.raises(NotHereError, match=r"clinc150/data_full\.json is not here"):
        load_clinc150(allow_download=False)


def test_counts_of_the_official_file(official):
    train, test = load_clinc150("train", quiet=True), load_clinc150("test", quiet=True)
    assert (len(train.texts), len(test.texts)) == (18_000, 4_500)
    assert train.labels.bincount().tolist() == [120] * 150
    assert test.labels.bincount().tolist() == [30] * 150
    assert train.classes == test.classes
    assert list(train.classes) == sorted(set(train.classes))
    parts = json.loads(official.read_text())
    for found, pairs in ((train, parts["train"] + parts["val"]), (test, parts["test"])):
        names = [found.classes[label] for label in found.labels.tolist()]
        assert [list(pair) for pair in zip(found.texts, names, strict=True)] == pairs
    assert train.sha256["clinc150/data_full.json"].startswith("36923c37")
    assert "18,000 of 150 intents" in train.note
    assert "$BOOK_DATA" in train.note


@pytest.mark.parametrize("place", [0, 1_000_000, 2_495_389])
def test_one_wrong_byte_is_an_error(official, tmp_path, monkeypatch, flip, place):
    folder = tmp_path / "elsewhere"
    (folder / "clinc150").mkdir(parents=True)
    shutil.copy(official, folder / "clinc150")
    flip(folder / "clinc150" / "data_full.json", place)
    monkeypatch.setenv("BOOK_DATA", str(folder))
    with pytest.raises(ChecksumError, match=r"data_full\.json"):
        load_clinc150(quiet=True)
