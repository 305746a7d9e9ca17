"""The command line: what it prints and how it ends."""

import hashlib

import pytest
import yaml

from lib.datasets import registry
from lib.datasets.__main__ import main
from lib.datasets.registry import cache_folder


@pytest.fixture
def two_files(monkeypatch, tmp_path, serve):
    """A registry of two small files, each with a mirror of its own."""
    contents = {"first": b"one" * 100, "second": b"two" * 100}
    mirrors = {name: serve(content) for name, content in contents.items()}
    files = [
        {
            "name": name,
            "says": "a test",
            "file": f"pair/{name}",
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "mirrors": [mirrors[name].url],
        }
        for name, content in contents.items()
    ]
    dataset = {"title": "A pair", "licence": "free", "citation": "none", "files": files}
    path = tmp_path / "registry.yml"
    path.write_text(yaml.safe_dump({"datasets": {"pair": dataset}, "embedded": {}}))
    monkeypatch.setattr(registry, "REGISTRY", path)
    return mirrors


def test_list_shows_title_licence_size_and_place(two_files, capsys):
    assert main(["list"]) == 0
    before = capsys.readouterr().out
    assert "A pair" in before
    assert "free" in before
    assert before.count("300 bytes  not here") == 2
    assert main(["download", "first"]) == 0
    assert main(["list"]) == 0
    after = capsys.readouterr().out
    assert after.count("300 bytes  cache") == 1
    assert after.count("300 bytes  not here") == 1


def test_download_fetches_what_is_missing_and_verify_hashes_it(two_files, capsys):
    assert main(["download", "second"]) == 0
    assert main(["download"]) == 0
    assert [len(mirror.asked) for mirror in two_files.values()] == [1, 1]
    capsys.readouterr()
    assert main(["verify"]) == 0
    assert capsys.readouterr().out.count("verified, in cache") == 2


def test_failed_download_ends_with_1_and_the_others_are_still_fetched(two_files, capsys):
    two_files["first"].status = 404
    assert main(["download"]) == 1
    shown = capsys.readouterr()
    assert "first" in shown.err
    assert "404" in shown.err
    assert "verified, downloaded from" in shown.out
    assert [path.name for path in cache_folder().glob("pair/[!.]*")] == ["second"]


def test_verify_ends_with_1_for_a_wrong_file_with_both_hashes(two_files, capsys):
    assert main(["download"]) == 0
    path = cache_folder() / "pair" / "second"
    path.write_bytes(b"two" * 99 + b"twp")
    assert main(["verify"]) == 1
    shown = capsys.readouterr()
    assert "first                verified" in shown.out
    for content in (b"two" * 100, path.read_bytes()):
        assert hashlib.sha256(content).hexdigest() in shown.err


def test_verify_sees_a_change_that_keeps_size_and_time(two_files):
    import os

    assert main(["download"]) == 0
    path = cache_folder() / "pair" / "second"
    stat = path.stat()
    path.write_bytes(b"two" * 99 + b"twp")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert main(["verify"]) == 1


def test_verify_names_what_is_not_here(two_files, capsys):
    assert main(["verify"]) == 0
    assert capsys.readouterr().out.count("not here") == 2


def test_part_without_a_mirror_fails_no_download_and_is_verified_where_it_lies(two_files, capsys):
    raw = yaml.safe_load(registry.REGISTRY.read_text())
    del raw["datasets"]["pair"]["files"][1]["mirrors"]
    raw["datasets"]["pair"]["files"][1]["part_of"] = "first"
    registry.REGISTRY.write_text(yaml.safe_dump(raw))
    assert main(["download"]) == 0
    assert "second               not here, and no mirror has it: first" in capsys.readouterr().out
    assert two_files["second"].asked == []
    (cache_folder() / "pair" / "second").write_bytes(b"two" * 100)
    for command in ("download", "verify"):
        assert main([command, "second"]) == 0
        assert "second               verified, in cache" in capsys.readouterr().out
    assert main(["list"]) == 0
    assert capsys.readouterr().out.count("300 bytes  cache") == 2


@pytest.mark.parametrize("command", ["list", "download", "verify"])
def test_real_registry_knows_cifar(command, capsys, monkeypatch):
    monkeypatch.setenv("BOOK_OFFLINE", "1")
    assert main([command, "cifar10", "cifar100-subset"]) == (command == "download")
    shown = capsys.readouterr()
    for name in ("cifar10-archive", "cifar10-subset", "cifar100-subset"):
        assert name in shown.out + shown.err
    assert "mnist" not in shown.out


@pytest.mark.parametrize("command", ["list", "download", "verify"])
def test_unknown_name_ends_with_2_and_lists_the_names(two_files, capsys, command):
    assert main([command, "third"]) == 2
    assert "first, pair, second" in capsys.readouterr().err


@pytest.mark.parametrize("line", [[], ["upload"]])
def test_bad_command_line_ends_with_2(line):
    with pytest.raises(SystemExit) as end:
        main(line)
    assert end.value.code == 2
