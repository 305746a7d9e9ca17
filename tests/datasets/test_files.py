"""Finding, checking and downloading files, with real mirrors on loopback."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from lib.datasets import files
from lib.datasets.files import ChecksumError, NotHereError, check_hash, fetch, find, sha256_of
from lib.datasets.registry import ROOT, cache_folder

FETCH = (
    "import json, sys; from lib.datasets.files import fetch; "
    "from lib.datasets.registry import OutsideFile; "
    "print(fetch(OutsideFile(**json.loads(sys.argv[1])))[0])"
)


def fetch_elsewhere(entry) -> subprocess.Popen:
    """Fetch a file in another process."""
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, json.dumps(asdict(entry))],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def visible(folder: Path) -> list[str]:
    """The files of a folder that are not hidden."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def put(folder: Path, entry, content: bytes) -> Path:
    """Write a file where the registry expects it."""
    path = folder / entry.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("size", [0, 1, 65_536, 300_000])
def test_hash_agrees_with_hashing_the_bytes(tmp_path, content, size):
    path = tmp_path / "file"
    path.write_bytes(content[:size])
    assert sha256_of(path) == hashlib.sha256(content[:size]).hexdigest()


def test_download_is_checked_renamed_and_not_repeated(serve, entry, content):
    mirror = serve(content)
    file = entry(mirror.url)
    where, path = fetch(file)
    assert (where, path) == (mirror.url, cache_folder() / file.file)
    assert path.read_bytes() == content
    assert visible(path.parent) == ["file.bin"]
    assert not list(path.parent.glob(".*.part"))
    assert fetch(file) == ("cache", path)
    assert len(mirror.asked) == 1


def test_download_shows_progress(serve, entry, content, capsys):
    fetch(entry(serve(content).url))
    shown = capsys.readouterr().err
    assert "some-file" in shown
    assert "300k/300k" in shown


@pytest.mark.parametrize("place", ["$BOOK_DATA", "cache"])
@pytest.mark.parametrize("at", [0, 150_000, 299_999])
def test_flipped_bit_here_is_refused_and_nothing_else_is_tried(
    place, at, serve, entry, content, flip, monkeypatch, tmp_path
):
    mirror = serve(content)
    file = entry(mirror.url)
    monkeypatch.setenv("BOOK_DATA", str(tmp_path))
    path = put(tmp_path if place == "$BOOK_DATA" else cache_folder(), file, content)
    if place == "$BOOK_DATA":
        put(cache_folder(), file, content)  # a good copy further down the search
    assert find(file) == (place, path)
    flip(path, at)
    with pytest.raises(ChecksumError) as error:
        fetch(file)
    for part in (str(path), file.sha256, sha256_of(path)):
        assert part in str(error.value)
    assert mirror.asked == []


def test_corrupt_mirror_is_an_error_and_leaves_nothing(serve, entry, content):
    wrong = content[:1000] + bytes([content[1000] ^ 1]) + content[1001:]
    bad, good = serve(wrong), serve(content)
    file = entry(bad.url, good.url)
    with pytest.raises(ChecksumError) as error:
        fetch(file)
    for part in (file.file, bad.url, file.sha256, hashlib.sha256(wrong).hexdigest()):
        assert part in str(error.value)
    assert good.asked == []
    assert visible((cache_folder() / file.file).parent) == []
    assert fetch(entry(good.url))[1].read_bytes() == content


@pytest.mark.parametrize("length", [1, 200_000, 300_001, 900_000])
def test_mirror_with_a_file_of_another_length_is_an_error(serve, entry, content, length):
    mirror = serve((content * 3)[:length])
    with pytest.raises(ChecksumError, match="expected 300000"):
        fetch(entry(mirror.url))


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_failing_mirror_is_named_and_the_next_one_used(serve, entry, content, capsys, status):
    first, second = serve(b"", status=status), serve(content)
    where, path = fetch(entry(first.url, second.url))
    assert where == second.url
    assert path.read_bytes() == content
    shown = capsys.readouterr().err
    assert first.url in shown
    assert str(status) in shown


def test_dead_mirror_is_named_and_the_next_one_used(serve, entry, content, dead_url, capsys):
    second = serve(content)
    assert fetch(entry(dead_url, second.url))[0] == second.url
    assert dead_url in capsys.readouterr().err


def test_silent_mirror_times_out(serve, entry, content, monkeypatch):
    monkeypatch.setattr(files, "TIMEOUT", 0.3)
    silent, second = serve(content, pause=30.0), serve(content)
    started = time.monotonic()
    assert fetch(entry(silent.url, second.url))[0] == second.url
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("ranges", [True, False])
def test_broken_connection_is_continued_by_the_next_mirror(serve, entry, content, ranges):
    first = serve(content[:100_000], announce=len(content))
    second = serve(content, ranges=ranges)
    where, path = fetch(entry(first.url, second.url))
    assert where == second.url
    assert path.read_bytes() == content
    assert second.asked == ["bytes=100000-"]


def test_all_mirrors_dead_says_what_to_do(entry, dead_url, serve):
    second = serve(b"", status=404)
    with pytest.raises(NotHereError) as error:
        fetch(entry(dead_url, second.url))
    for part in ("some/file.bin", dead_url, second.url, "404", "BOOK_DATA", "make data"):
        assert part in str(error.value)


@pytest.mark.parametrize("size", [100_000, 300_000, 400_000])
def test_part_that_is_no_beginning_is_fetched_again(serve, entry, content, size):
    file = entry(serve(content).url)
    part = put(cache_folder(), replace(file, file="some/.file.bin.part"), b"\0" * size)
    assert fetch(file)[1].read_bytes() == content
    assert not part.exists()


def test_part_longer_than_the_mirrors_file_does_not_block_the_download(serve, entry, content):
    short, good = serve(content[:50_000]), serve(content)
    file = entry(short.url)
    put(cache_folder(), replace(file, file="some/.file.bin.part"), content[:80_000])
    with pytest.raises(ChecksumError):
        fetch(file)
    assert short.asked == ["bytes=80000-", None]
    assert fetch(entry(good.url))[1].read_bytes() == content


def test_killed_download_shows_nothing_and_is_continued(serve, entry, content):
    mirror = serve(content, pause=0.1)
    file = entry(mirror.url)
    target = cache_folder() / file.file
    part = target.with_name(".file.bin.part")
    process = fetch_elsewhere(file)
    deadline = time.monotonic() + 20
    while not (part.exists() and part.stat().st_size > 50_000):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    kept = part.stat().st_size
    assert 0 < kept < len(content)
    assert visible(target.parent) == []
    assert find(file) is None
    mirror.pause = 0.0
    assert fetch(file) == (mirror.url, target)
    assert target.read_bytes() == content
    assert mirror.asked == [None, f"bytes={kept}-"]
    assert not part.exists()


def test_racing_processes_all_get_the_file_and_one_downloads_it(serve, entry, content):
    mirror = serve(content, pause=0.02)
    file = entry(mirror.url)
    racers = [fetch_elsewhere(file) for _ in range(4)]
    answers = [racer.communicate(timeout=30) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 4, answers
    assert sorted(out.strip() for out, _ in answers) == ["cache"] * 3 + [mirror.url]
    assert mirror.asked == [None]
    assert (cache_folder() / file.file).read_bytes() == content


@pytest.mark.parametrize("value", ["1", "yes"])
def test_offline_never_asks(serve, entry, content, monkeypatch, value):
    monkeypatch.setenv("BOOK_OFFLINE", value)
    mirror = serve(content)
    with pytest.raises(NotHereError, match="BOOK_OFFLINE"):
        fetch(entry(mirror.url))
    assert mirror.asked == []


def test_forbidden_download_never_asks(serve, entry, content, monkeypatch):
    monkeypatch.setenv("BOOK_OFFLINE", "0")
    mirror = serve(content)
    with pytest.raises(NotHereError, match="not allowed"):
        fetch(entry(mirror.url), allow_download=False)
    assert mirror.asked == []
    assert not cache_folder().exists()


def test_cache_that_cannot_be_written_says_so(serve, entry, content, monkeypatch, tmp_path):
    (tmp_path / "occupied").write_text("a file, not a folder")
    monkeypatch.setenv("BOOK_CACHE", str(tmp_path / "occupied"))
    with pytest.raises(NotHereError, match="BOOK_CACHE"):
        fetch(entry(serve(content).url))


def test_a_file_is_hashed_once_until_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    expected = sha256_of(path)
    hashed = []
    monkeypatch.setattr(files, "sha256_of", lambda p: hashed.append(p) or sha256_of(p))
    check_hash(path, expected, "")
    check_hash(path, expected, "")
    assert len(hashed) == 1
    check_hash(path, expected, "", again=True)
    assert len(hashed) == 2
    path.write_bytes(b"abd")
    os.utime(path, ns=(0, 1))
    with pytest.raises(ChecksumError):
        check_hash(path, expected, "")


def test_a_passed_file_is_still_held_against_another_hash(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    check_hash(path, sha256_of(path), "")
    with pytest.raises(ChecksumError):
        check_hash(path, "0" * 64, "")
