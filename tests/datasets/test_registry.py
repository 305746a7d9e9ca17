"""The registry: what it accepts, what it says, and that reading it is cheap."""

import hashlib
import subprocess
import sys

import pytest
import yaml

from lib.datasets import registry
from lib.datasets.registry import (
    REGISTRY,
    ROOT,
    available,
    cache_folder,
    data_folder,
    load_registry,
    locate,
    select,
)


@pytest.fixture
def raw() -> dict:
    """The real registry, to be damaged."""
    return yaml.safe_load(REGISTRY.read_text(encoding="utf-8"))


@pytest.fixture
def load(tmp_path):
    """Write a registry and load it."""

    def write_and_load(content: dict):
        path = tmp_path / "registry.yml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return load_registry(path)

    return write_and_load


def first_file(raw: dict) -> dict:
    return raw["datasets"]["mnist"]["files"][0]


def test_undamaged_registry_loads_equal(raw, load):
    assert load(raw) == load_registry()


FILE_DAMAGE = {
    "unknown key": {"sha265": "0" * 64},
    "short sha256": {"sha256": "0" * 63},
    "long sha256": {"sha256": "0" * 65},
    "capital sha256": {"sha256": "A" * 64},
    "sha256 read as a number": {"sha256": int("1" * 64)},
    "short md5": {"md5": "0" * 31},
    "short unpacked": {"unpacked_sha256": "0" * 32},
    "no mirrors": {"mirrors": []},
    "mirrors no list": {"mirrors": "https://example.org/file"},
    "mirror no address": {"mirrors": ["example.org/file"]},
    "mirror on the disk": {"mirrors": ["file:///etc/passwd"]},
    "mirror twice": {"mirrors": ["https://example.org/file"] * 2},
    "no bytes": {"bytes": 0},
    "bytes as text": {"bytes": "12"},
    "bytes as truth": {"bytes": True},
    "absolute": {"file": "/mnist/file.gz"},
    "leaves the folder": {"file": "mnist/../../file.gz"},
    "backslash": {"file": "..\\file.gz"},
    "empty text": {"says": " "},
    "other file's place": {"file": "mnist/t10k-labels-idx1-ubyte.gz"},
}


@pytest.mark.parametrize("damage", FILE_DAMAGE.values(), ids=FILE_DAMAGE)
def test_damaged_file_entry_is_named(raw, load, damage):
    first_file(raw).update(damage)
    with pytest.raises(ValueError, match="mnist-t"):
        load(raw)


@pytest.mark.parametrize(
    "damage",
    [
        {"part_of": "cifar100-archive"},
        {"part_of": "cifar10-subset"},
        {"part_of": "nothing"},
        {"part_of": None},
        {"mirrors": []},
        {"mirrors": ["example.org/file"]},
    ],
    ids=str,
)
def test_part_of_no_downloadable_file_is_refused(raw, load, damage):
    raw["datasets"]["cifar10"]["files"][1].update(damage)
    with pytest.raises(ValueError, match="cifar10-subset"):
        load(raw)


def test_part_may_have_mirrors(raw, load):
    raw["datasets"]["cifar10"]["files"][1]["mirrors"] = ["https://example.org/file"]
    assert load(raw).datasets["cifar10"].files[1].mirrors == ("https://example.org/file",)


def test_part_needs_its_whole(raw, load):
    del raw["datasets"]["cifar10"]["files"][1]["part_of"]
    with pytest.raises(ValueError, match=r"cifar10-subset.*missing"):
        load(raw)


@pytest.mark.parametrize("key", ["says", "file", "bytes", "sha256", "mirrors"])
def test_missing_key_is_named_with_its_entry(raw, load, key):
    del first_file(raw)[key]
    with pytest.raises(ValueError, match=rf"mnist-train-images.*missing keys \['{key}'\]"):
        load(raw)


def test_name_given_twice_is_refused(raw, load):
    first_file(raw)["name"] = "clinc150-full"
    with pytest.raises(ValueError, match=r"clinc150-full.*twice"):
        load(raw)


@pytest.mark.parametrize("key", ["title", "licence", "citation", "files"])
def test_data_set_needs_its_keys(raw, load, key):
    raw["datasets"]["clinc150"].pop(key)
    with pytest.raises(ValueError, match=f"'clinc150'.*{key}"):
        load(raw)


@pytest.mark.parametrize("value", [None, [], "text", 3])
@pytest.mark.parametrize("part", ["datasets", "embedded"])
def test_part_that_is_no_mapping_is_refused(raw, load, part, value):
    raw[part] = value
    with pytest.raises(ValueError, match=part):
        load(raw)


def test_embedded_hash_of_the_wrong_length_is_refused(raw, load):
    raw["embedded"]["mnist-5k"]["content_sha256"] = "0" * 32
    with pytest.raises(ValueError, match=r"mnist-5k.*64"):
        load(raw)


def test_every_file_that_is_no_part_has_two_mirrors_by_https():
    files = [file for file in load_registry().files() if not file.part_of]
    assert len(files) >= 7
    for file in files:
        assert len({mirror.split("/")[2] for mirror in file.mirrors}) >= 2, file.name
        assert all(mirror.startswith("https://") for mirror in file.mirrors)


def test_md5_and_first_mirror_are_torchvisions():
    from torchvision.datasets import MNIST

    files = load_registry().datasets["mnist"].files
    ours = {file.file.removeprefix("mnist/"): file.md5 for file in files}
    assert ours == dict(MNIST.resources)
    assert all(file.mirrors[0].startswith(MNIST.mirrors[0]) for file in files)


def test_registered_hashes_and_lengths_are_those_of_the_real_files(book_data):
    for file in load_registry().files():
        if file.dataset.startswith("cifar") and not (book_data / file.file).is_file():
            continue  # the archives are large; the other files are all here
        content = (book_data / file.file).read_bytes()
        assert len(content) == file.bytes
        assert hashlib.sha256(content).hexdigest() == file.sha256
        if file.md5:
            assert hashlib.md5(content).hexdigest() == file.md5


def test_edited_registry_is_read_again(raw, load):
    load(raw)
    raw["datasets"]["mnist"]["title"] = "another title"
    assert load(raw).datasets["mnist"].title == "another title"


def test_reading_the_registry_loads_neither_numpy_nor_torch():
    code = (
        "import sys, lib.datasets.registry as r; r.available(); r.locate('mnist'); "
        "print([m for m in ('numpy', 'torch', 'tqdm', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_search_goes_through_the_data_folder_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOK_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    assert available() == {}
    assert locate("clinc150") == {}
    for folder, where in ((cache_folder(), "cache"), (tmp_path / "data", "$BOOK_DATA")):
        path = folder / "clinc150" / "data_full.json"
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        assert available() == {"clinc150-full": where}
        assert locate("clinc150") == locate("clinc150-full") == {"clinc150-full": path}


@pytest.mark.parametrize("name", ["cifar", "", "MNIST"])
def test_unknown_name_lists_what_is_allowed(name):
    with pytest.raises(ValueError, match="clinc150, clinc150-full, mnist"):
        locate(name)


def test_selection_keeps_the_registrys_order():
    everything = [file.name for file in load_registry().files()]
    assert [file.name for file in select()] == everything
    assert [
        file.name for file in select(["clinc150", "cifar100", "mnist", "cifar10"])
    ] == everything
    assert [file.name for file in select(["mnist-test-labels"])] == ["mnist-test-labels"]


def test_data_folder_that_is_none_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOK_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"BOOK_DATA.*nowhere"):
        data_folder()


def test_relative_folders_count_from_the_repository(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "ROOT", tmp_path / "house")
    (tmp_path / "house").mkdir()
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("BOOK_DATA", "../shared")
    monkeypatch.setenv("BOOK_CACHE", "my/cache")
    assert data_folder() == (tmp_path / "shared").resolve()
    assert cache_folder() == (tmp_path / "house" / "my" / "cache").resolve()


def test_unset_folders(monkeypatch):
    monkeypatch.setenv("BOOK_DATA", "  ")
    monkeypatch.delenv("BOOK_CACHE")
    assert data_folder() is None
    assert cache_folder() == ROOT / "data" / "cache"
