"""CIFAR from tiny archives and subsets made here, and from the real subset where it is."""

import hashlib
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torchvision.datasets import CIFAR10, CIFAR100

from lib.datasets import (
    ChecksumError,
    NotHereError,
    load_cifar10,
    load_cifar100,
    load_registry,
    locate,
    registry,
)
from lib.datasets.registry import cache_folder

CLASSES = {"cifar10": CIFAR10, "cifar100": CIFAR100}
LOADERS = {"cifar10": load_cifar10, "cifar100": load_cifar100}
FIRST_LABELS = [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]  # frog, truck, truck, deer, two cars, bird, ...


def noise(n: int, seed: int) -> dict[str, np.ndarray]:
    """Images ``(n, 3072)``, channel after channel, with fine and coarse labels."""
    draw = np.random.default_rng(seed)
    fine = draw.integers(0, 10, n)
    return {
        "data": draw.integers(0, 256, (n, 3072), dtype=np.uint8),
        "fine": fine,
        "coarse": fine // 5,
    }


def official(dataset: str) -> dict[str, dict[str, np.ndarray]]:
    """What the tiny archive of a data set holds: split -> images and labels, in official order."""
    return {"train": noise(20, seed=1), "test": noise(6, seed=2)}


def members(dataset: str) -> dict[str, bytes]:
    """The files of the tiny archive, as the authors pickle them."""
    whole = official(dataset)
    if dataset == "cifar10":
        parts = {f"data_batch_{k + 1}": ("train", slice(4 * k, 4 * k + 4)) for k in range(5)}
        parts["test_batch"], names = ("test", slice(None)), ("labels",)
        meta = {"batches.meta": pickle.dumps({"label_names": list("abcdefghij")})}
    else:
        parts = {"train": ("train", slice(None)), "test": ("test", slice(None))}
        names = ("fine_labels", "coarse_labels")
        meta = {"meta": pickle.dumps({"fine_label_names": list("abcdefghij")})}
    files = {}
    for file, (split, rows) in parts.items():
        labels = {
            name: whole[split]["coarse" if "coarse" in name else "fine"][rows].tolist()
            for name in names
        }
        files[file] = pickle.dumps({"data": whole[split]["data"][rows], **labels})
    return files | meta


def archive_of(dataset: str) -> bytes:
    """The tiny ``.tar.gz``."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members(dataset).items():
            entry = tarfile.TarInfo(f"{CLASSES[dataset].base_folder}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def to_hwc(rows: np.ndarray) -> np.ndarray:
    """Height, width, channel: the order of the subsets."""
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def subset_of(dataset: str) -> bytes:
    """A tiny subset: of CIFAR-10 the first 12 and 4 images in pieces, of CIFAR-100 some, mixed."""
    train, test = official(dataset)["train"], official(dataset)["test"]
    arrays = {}
    if dataset == "cifar10":
        # 13 is the gap: 14 and 15 are here, but the first n end at 13
        pieces = {
            "train": (train, [0, 2, 3, 6, 7, 8, 10, 14]),
            "extra_train": (train, [1, 4, 5, 9, 11, 12, 15]),
            "test": (test, [0, 1, 2, 3, 5]),
        }
        for piece, (whole, rows) in pieces.items():
            arrays[f"{piece}_images"] = to_hwc(whole["data"][rows])
            arrays[f"{piece}_labels"] = whole["fine"][rows]
            arrays[f"{piece}_official_index"] = np.array(rows)
        arrays["test_official_index"][-1] = -1
    else:
        for split, whole, rows in (("train", train, [7, 3, 9]), ("test", test, [5, 0])):
            arrays[f"{split}_images"] = to_hwc(whole["data"][rows])
            arrays[f"{split}_fine_labels"] = whole["fine"][rows]
            arrays[f"{split}_coarse_labels"] = whole["coarse"][rows]
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


@pytest.fixture
def tiny(monkeypatch, tmp_path, serve):
    """A registry, and a torchvision, that know the tiny files; returns contents and mirrors."""
    raw = yaml.safe_load(registry.REGISTRY.read_text(encoding="utf-8"))
    contents, mirrors = {}, {}
    for dataset, reader in CLASSES.items():
        for file in raw["datasets"][dataset]["files"]:
            whole = file["name"].endswith("archive")
            content = archive_of(dataset) if whole else subset_of(dataset)
            file |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            if whole:
                mirrors[dataset] = serve(content)
                file["mirrors"] = [mirrors[dataset].url]
            contents[file["file"]] = content
        md5 = {name: hashlib.md5(c).hexdigest() for name, c in members(dataset).items()}
        for listed in ("train_list", "test_list"):
            names = [name for name, _ in getattr(reader, listed)]
            monkeypatch.setattr(reader, listed, [[name, md5[name]] for name in names])
        monkeypatch.setattr(reader, "meta", reader.meta | {"md5": md5[reader.meta["filename"]]})
    path = tmp_path / "registry.yml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    monkeypatch.setattr(registry, "REGISTRY", path)
    monkeypatch.setenv("BOOK_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return contents, mirrors


@pytest.fixture
def put(tiny, tmp_path):
    """``put(place, name)`` lays a tiny file where the registry expects it."""

    def lay(place: str, name: str) -> Path:
        (file,) = registry.select([name])
        path = (tmp_path / "data" if place == "$BOOK_DATA" else cache_folder()) / file.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tiny[0][file.file])
        return path

    return lay


def as_rows(images: torch.Tensor) -> np.ndarray:
    """Pixels as they are in the archive; exact, or the test fails."""
    assert images.dtype == torch.float32
    bytes_ = (images * 255).round()
    assert torch.equal(bytes_ / 255, images)
    return bytes_.flatten(1).to(torch.uint8).numpy()


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("dataset", CLASSES)
@pytest.mark.parametrize("place", ["$BOOK_DATA", "cache"])
def test_archive_gives_the_first_official_images(put, dataset, split, place):
    path, whole = put(place, f"{dataset}-archive"), official(dataset)[split]
    for n in (1, 5, 6):
        images = LOADERS[dataset](n, split, quiet=True)
        assert images.images.shape == (n, 3, 32, 32)
        assert images.shape == (3, 32, 32)
        assert np.array_equal(as_rows(images.images), whole["data"][:n])
        assert images.labels.dtype == torch.int64
        assert images.labels.tolist() == whole["fine"][:n].tolist()
        assert images.source == "official"
        assert (images.name, images.split) == (dataset, split)
        assert ("$BOOK_DATA" if place == "$BOOK_DATA" else "the cache") in images.note
        assert f"first {n} official" in images.note
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert images.sha256 == {f"{dataset}/{path.name}": digest}


@pytest.mark.parametrize("source", ["official", "subset"])
def test_labels_may_be_coarse(put, source):
    put("cache", "cifar100-archive" if source == "official" else "cifar100-subset")
    whole = official("cifar100")["train"]
    rows = [0, 1, 2] if source == "official" else [7, 3, 9]
    images = load_cifar100(3, source=source, labels="coarse", quiet=True)
    assert images.labels.tolist() == whole["coarse"][rows].tolist()
    assert "coarse" in images.note


@pytest.mark.parametrize(("split", "most"), [("train", 13), ("test", 4)])
def test_subset_of_cifar10_gives_the_same_tensors_as_the_archive(put, split, most):
    put("$BOOK_DATA", "cifar10-subset")
    put("cache", "cifar10-archive")
    for n in range(1, most + 1):
        subset, whole = (
            load_cifar10(n, split, source=s, quiet=True) for s in ("subset", "official")
        )
        assert torch.equal(subset.images, whole.images)
        assert torch.equal(subset.labels, whole.labels)
        assert (subset.source, whole.source) == ("subset", "official")
        assert load_cifar10(n, split, quiet=True).source == "subset"  # it lies in the first place
    assert load_cifar10(most + 1, split, quiet=True).source == "official"


def test_subset_of_cifar100_keeps_its_own_order_and_says_so(put, capsys):
    put("$BOOK_DATA", "cifar100-subset")
    images = load_cifar100(2, "test")
    whole = official("cifar100")["test"]
    assert np.array_equal(as_rows(images.images), whole["data"][[5, 0]])
    assert images.labels.tolist() == whole["fine"][[5, 0]].tolist()
    assert images.source == "subset"
    assert "order is not the official one" in images.note
    assert capsys.readouterr().out == images.note + "\n"


@pytest.mark.parametrize("dataset", CLASSES)
def test_archive_comes_before_the_subset_in_the_same_place(put, dataset):
    put("cache", f"{dataset}-archive")
    put("cache", f"{dataset}-subset")
    assert LOADERS[dataset](2, quiet=True).source == "official"


@pytest.mark.parametrize("source", ["auto", "subset"])
@pytest.mark.parametrize(
    ("dataset", "split", "n", "held"),
    [
        ("cifar10", "train", 14, "the first 13 official training images"),
        ("cifar10", "test", 5, "the first 4 official test images"),
        ("cifar100", "train", 4, "3 training images"),
        ("cifar100", "test", 3, "2 test images"),
    ],
)
def test_more_than_the_subset_holds_is_an_error_that_says_what_it_holds(
    put, tiny, dataset, split, n, held, source
):
    put("$BOOK_DATA", f"{dataset}-subset")
    with pytest.raises(NotHereError) as error:
        LOADERS[dataset](n, split, source=source)
    for part in (f"{n} images", f"{dataset}_subset.npz", held, "official archive", "make data"):
        assert part in str(error.value)
    assert tiny[1][dataset].asked == []


@pytest.mark.parametrize("place", ["$BOOK_DATA", "cache"])
@pytest.mark.parametrize("kind", ["archive", "subset"])
@pytest.mark.parametrize("dataset", CLASSES)
def test_flipped_byte_is_refused_and_nothing_else_is_tried(put, tiny, flip, dataset, kind, place):
    put("cache", f"{dataset}-{'subset' if kind == 'archive' else 'archive'}")
    path = put(place, f"{dataset}-{kind}")
    if place == "cache" and kind == "subset":
        (cache_folder() / f"{dataset}/{CLASSES[dataset].filename}").unlink()
    good = hashlib.sha256(path.read_bytes()).hexdigest()
    flip(path, len(path.read_bytes()) // 2)
    bad = hashlib.sha256(path.read_bytes()).hexdigest()
    for source in ("auto", "official" if kind == "archive" else "subset"):
        with pytest.raises(ChecksumError) as error:
            LOADERS[dataset](2, source=source, allow_download=True)
        for part in (str(path), good, bad):
            assert part in str(error.value)
    assert tiny[1][dataset].asked == []
    assert not (cache_folder() / "torchvision").exists()


@pytest.mark.parametrize(
    ("dataset", "member"),
    [("cifar10", "data_batch_2"), ("cifar10", "batches.meta"), ("cifar100", "train")],
)
@pytest.mark.parametrize("gone", [False, True])
def test_damage_to_what_was_unpacked_is_refused(put, flip, dataset, member, gone):
    put("cache", f"{dataset}-archive")
    LOADERS[dataset](2, quiet=True)
    path = cache_folder() / "torchvision" / CLASSES[dataset].base_folder / member
    good = hashlib.md5(path.read_bytes()).hexdigest()
    if gone:
        path.unlink()
    else:
        flip(path, 20)
    actual = "no file" if gone else hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(ChecksumError) as error:
        LOADERS[dataset](2, quiet=True)
    for part in (str(path), good, actual, "unpacked again"):
        assert part in str(error.value)


def test_rest_of_a_killed_unpacking_is_cleared(put):
    put("cache", "cifar10-archive")
    rest = cache_folder() / "torchvision/.unpacking/cifar-10-batches-py"
    rest.mkdir(parents=True)
    (rest / "data_batch_1").write_bytes(b"half")
    assert len(load_cifar10(20, quiet=True).labels) == 20
    assert not rest.parent.exists()


@pytest.mark.parametrize("dataset", CLASSES)
def test_archive_is_downloaded_only_when_that_is_allowed(tiny, put, dataset, monkeypatch):
    load, mirror = LOADERS[dataset], tiny[1][dataset]
    for bad in ({}, {"source": "official", "allow_download": False}):
        with pytest.raises(NotHereError, match="downloads are not allowed"):
            load(2, **bad)
    monkeypatch.setenv("BOOK_OFFLINE", "1")
    with pytest.raises(NotHereError, match="BOOK_OFFLINE"):
        load(2, source="official")
    assert mirror.asked == []
    monkeypatch.delenv("BOOK_OFFLINE")
    put("$BOOK_DATA", f"{dataset}-subset")
    assert load(18, allow_download=True, quiet=True).note.endswith(
        "(downloaded from 127.0.0.1:" + mirror.url.split(":")[2].split("/")[0] + ")"
    )
    assert load(18, quiet=True).note.endswith("(the cache)")
    assert len(mirror.asked) == 1


@pytest.mark.parametrize("dataset", CLASSES)
def test_absent_subset_names_the_archive(tiny, dataset):
    with pytest.raises(NotHereError, match=rf"no mirror.*{dataset}-archive"):
        LOADERS[dataset](2, source="subset", allow_download=True)
    assert tiny[1][dataset].asked == []


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: load_cifar10(0), "n is 0"),
        (lambda: load_cifar10(50_001), "n is 50001"),
        (lambda: load_cifar10(10_001, "test"), "n is 10001"),
        (lambda: load_cifar10(2.0), r"n is 2\.0"),
        (lambda: load_cifar10(True), "n is True"),
        (lambda: load_cifar10(None), "n is None"),
        (lambda: load_cifar10(split="all"), "split is 'all'"),
        (lambda: load_cifar10(source="embedded"), "source is 'embedded'"),
        (lambda: load_cifar100(-1), "n is -1"),
        (lambda: load_cifar100(split="validation"), "split is 'validation'"),
        (lambda: load_cifar100(labels="coarsest"), "labels is 'coarsest'"),
    ],
)
def test_bad_argument_is_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize("dataset", CLASSES)
def test_registered_archive_is_torchvisions(dataset):
    reader, archive = CLASSES[dataset], load_registry().datasets[dataset].files[0]
    assert archive.md5 == reader.tgz_md5
    assert archive.mirrors[0] == reader.url
    assert archive.file == f"{dataset}/{reader.filename}"


@pytest.fixture
def real(monkeypatch, book_data):
    """The real subsets at hand."""
    monkeypatch.setenv("BOOK_DATA", str(book_data))
    for dataset in CLASSES:
        if f"{dataset}-subset" not in locate(dataset):
            pytest.skip(f"needs {dataset}/{dataset}_subset.npz in {book_data}; set BOOK_DATA")
    return book_data


def test_real_cifar10_begins_as_published(real):
    images = load_cifar10(source="subset", quiet=True)
    assert images.images.shape == (5000, 3, 32, 32)
    assert images.labels[:10].tolist() == FIRST_LABELS
    assert images.labels.bincount(minlength=10).min() >= 450
    assert as_rows(images.images)[0, :3].tolist() == [59, 43, 50]  # the frog's first red pixels
    test = load_cifar10(1000, "test", source="subset", quiet=True)
    assert test.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


def test_real_cifar10_against_a_loop_over_official_places(real):
    images = load_cifar10(300, source="subset", quiet=True)
    rows = as_rows(images.images)
    seen = set()
    with np.load(real / "cifar10/cifar10_subset.npz") as arrays:
        for piece in ("train", "extra_train"):
            pixels, labels = arrays[f"{piece}_images"], arrays[f"{piece}_labels"]
            for k, place in enumerate(arrays[f"{piece}_official_index"].tolist()):
                if place < 300:
                    assert np.array_equal(rows[place], pixels[k].transpose(2, 0, 1).ravel())
                    assert images.labels[place] == labels[k]
                    seen.add(place)
    assert seen == set(range(300))


def test_real_cifar10_lacks_what_the_errors_say(real):
    for n, split, held in ((6000, "train", "5,000"), (2000, "test", "1,000")):
        with pytest.raises(NotHereError, match=f"first {held} official"):
            load_cifar10(n, split, source="subset")


def test_real_cifar100_is_balanced_and_its_groups_hold_five_classes(real):
    fine = load_cifar100(5000, "test", source="subset", quiet=True)
    coarse = load_cifar100(5000, "test", source="subset", labels="coarse", quiet=True)
    assert fine.labels.bincount().tolist() == [50] * 100
    assert coarse.labels.bincount().tolist() == [250] * 20
    groups = dict(zip(fine.labels.tolist(), coarse.labels.tolist(), strict=True))
    assert [groups[label] for label in fine.labels.tolist()] == coarse.labels.tolist()
    assert np.bincount(list(groups.values())).tolist() == [5] * 20
    assert len(fine.labels[:500].unique()) > 90  # classes are mixed
    assert torch.equal(fine.images, coarse.images)


@pytest.mark.slow
def test_real_cifar100_has_200_training_images_of_each_class(real):
    train = load_cifar100(20_000, source="subset", quiet=True)
    assert train.labels.bincount().tolist() == [200] * 100
