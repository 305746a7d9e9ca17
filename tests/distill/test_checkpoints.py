"""Checkpoints: back as they were, refused when one byte is not, whole after a kill."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import safetensors
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.distill import CheckpointError, checkpoints, read_checkpoint, write_checkpoint
from tests.distill.forks import kill_inside, needs_fork

FACTS = {"seed": 42, "settings": {"method": "tpkd", "clip": None, "rate": 3e-4}, "log": [1, "a"]}
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def content():
    generator = torch.Generator().manual_seed(0)
    return {
        "weight": torch.randn(3, 4, generator=generator),
        "count": torch.tensor(7),
        "mask": torch.tensor([True, False]),
        "half": torch.randn(3, generator=generator).bfloat16(),
    }


def same(one, two):
    assert one.keys() == two.keys()
    for name in one:
        assert one[name].dtype == two[name].dtype
        assert one[name].shape == two[name].shape
        bits = (x[name].reshape(-1).view(torch.uint8) for x in (one, two) if x[name].numel())
        assert len({tuple(x.tolist()) for x in bits}) <= 1


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_comes_back(tmp_path, dtype, mapped):
    generator = torch.Generator().manual_seed(0)
    shapes = {"matrix": (2, 3), "number": (), "none": (0, 3), "odd": (7,)}
    tensors = {
        name: torch.randint(2**7, shape, generator=generator).to(dtype)
        for name, shape in shapes.items()
    }
    write_checkpoint(tmp_path / "a", tensors, FACTS)
    found, facts = read_checkpoint(tmp_path / "a", mapped=mapped)
    same(found, tensors)
    assert facts == FACTS


def test_every_bit_of_a_float_comes_back(tmp_path):
    bits = torch.tensor([0x7FC00001, -0x00400001, -0x80000000, 1, 0x7F800000], dtype=torch.int32)
    write_checkpoint(tmp_path / "a", {"x": bits.view(torch.float32)}, {})
    assert torch.equal(read_checkpoint(tmp_path / "a")[0]["x"].view(torch.int32), bits)


def test_views_parts_and_transposes_come_back(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {"all": base, "tied": base, "row": base[1], "turned": base.t(), "step": base[:, ::2]}
    write_checkpoint(tmp_path / "a", tensors | {"leaf": base.clone().requires_grad_()}, {})
    found, _ = read_checkpoint(tmp_path / "a")
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
    assert not found["leaf"].requires_grad


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('ab"\\é0{}', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=30)
@given(st.dictionaries(st.text("abc", max_size=3), JSON, max_size=4))
def test_any_plain_facts_come_back(tmp_path_factory, facts):
    path = tmp_path_factory.getbasetemp() / "facts"
    write_checkpoint(path, {}, facts)
    assert read_checkpoint(path, facts) == ({}, facts)


def test_equal_content_has_equal_bytes(tmp_path):
    write_checkpoint(tmp_path / "a", content(), FACTS)
    turned = dict(reversed(content().items()))
    write_checkpoint(tmp_path / "b", turned, dict(reversed(FACTS.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_other_tools_can_open_a_file(tmp_path):
    write_checkpoint(tmp_path / "a", content(), FACTS)
    with safetensors.safe_open(tmp_path / "a", framework="pt") as found:
        assert torch.equal(found.get_tensor("weight"), content()["weight"])


def test_a_new_file_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "deep" / "er" / "a"
    write_checkpoint(path, content(), FACTS)
    kept, _ = read_checkpoint(path, mapped=True)
    write_checkpoint(str(path), {"weight": torch.zeros(3, 4)}, {})
    assert torch.equal(kept["weight"], content()["weight"])
    assert not read_checkpoint(path)[0]["weight"].any()
    assert [p.name for p in path.parent.iterdir()] == ["a"]


def test_what_was_read_may_be_changed_and_the_file_stays(tmp_path):
    path = tmp_path / "a"
    write_checkpoint(path, content(), FACTS)
    before = path.read_bytes()
    for mapped in (False, True):
        found, _ = read_checkpoint(path, mapped=mapped)
        found["weight"].zero_()
        assert path.read_bytes() == before
        assert torch.equal(read_checkpoint(path, mapped=mapped)[0]["weight"], content()["weight"])


def test_no_file_is_no_checkpoint(tmp_path):
    assert read_checkpoint(tmp_path / "a", FACTS) is None
    assert read_checkpoint(tmp_path / "a" / "b", mapped=True) is None


def test_any_flipped_byte_is_refused(tmp_path):
    """At every position of the file: length, header, hash, facts, tensors."""
    path, random_bits = tmp_path / "a.safetensors", random.Random(0)
    write_checkpoint(path, content(), FACTS)
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= random_bits.choice((0x20, 1, 0xFF))  # 0x20: capitals for small letters
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"a\.safetensors is damaged or no checkpoint"):
            read_checkpoint(path, mapped=bool(position % 2))
    path.write_bytes(whole)
    same(read_checkpoint(path)[0], content())


def test_a_file_that_is_too_short_or_too_long_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, content(), FACTS)
    whole = path.read_bytes()
    for damaged in (
        *(whole[:n] for n in range(len(whole))),
        whole + b"\0",
        whole + whole,
        b"x" * 999,
    ):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"a\.safetensors is damaged or no checkpoint"):
            read_checkpoint(path)


def test_another_run_is_refused_with_what_differs(tmp_path):
    path = tmp_path / "a.safetensors"
    write_checkpoint(path, content(), FACTS)
    for expected in ({}, {"seed": 42}, {"settings": {"method": "tpkd"}}, FACTS, None):
        assert read_checkpoint(path, expected) is not None
    wanted = {"seed": 43, "settings": {"method": "kd", "clip": None, "decay": 0.0}, "log": [1, "a"]}
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path, wanted)
    assert str(caught.value) == (
        f"{path} is of another run: seed is 42 there, 43 here; settings.decay is missing there, "
        "0.0 here; settings.method is 'tpkd' there, 'kd' here; delete it or choose another folder"
    )


@pytest.mark.parametrize(
    "expected", [{"seed": 42.0}, {"seed": "42"}, {"log": [1]}, {"settings": 1}]
)
def test_facts_of_another_type_are_another_run(tmp_path, expected):
    write_checkpoint(tmp_path / "a", {}, FACTS)
    with pytest.raises(CheckpointError, match="another run"):
        read_checkpoint(tmp_path / "a", expected)


def test_tuples_are_expected_as_lists(tmp_path):
    write_checkpoint(tmp_path / "a", {}, {"betas": (0.9, 0.999)})
    assert read_checkpoint(tmp_path / "a", {"betas": (0.9, 0.999)})[1] == {"betas": [0.9, 0.999]}


@pytest.mark.parametrize("facts", [{"x": torch.ones(1)}, {"x": float("nan")}, {"x": {1}}, [1], 3])
def test_facts_must_be_plain(tmp_path, facts):
    with pytest.raises(ValueError, match="facts must"):
        write_checkpoint(tmp_path / "a", {}, facts)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"lr": 0.1}, "tensors must map text to tensors, got 'lr' -> float"),
        ({3: torch.ones(1)}, "got 3 -> Tensor"),
        ({"x": torch.ones(1, dtype=torch.complex128)}, "cannot be stored.*torch.complex128"),
        ({"x": torch.eye(3).to_sparse()}, "cannot be stored.*torch.sparse_coo"),
    ],
)
def test_what_cannot_be_stored_is_refused(tmp_path, tensors, message):
    write_checkpoint(tmp_path / "a", content(), FACTS)
    with pytest.raises(ValueError, match=message):
        write_checkpoint(tmp_path / "a", tensors, FACTS)
    same(read_checkpoint(tmp_path / "a", FACTS)[0], content())


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_checkpoint(path, content(), FACTS)

    def full(descriptor):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.os, "fsync", full)
        with pytest.raises(OSError, match="no space left"):
            write_checkpoint(path, {}, {})
    same(read_checkpoint(path, FACTS)[0], content())
    assert [found.name for found in tmp_path.iterdir()] == ["a"]  # a full disk needs the room


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a folder that is opened is forbidden")
def test_a_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="is damaged or no checkpoint: it is a folder"):
        read_checkpoint(tmp_path)


def test_content_reaches_the_disk_before_its_name(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor):
        calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def noted_replace(source, target):
        calls.append(("replace", Path(source).name, Path(target).name))
        replace(source, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    monkeypatch.setattr(checkpoints.os, "fsync", noted_fsync)
    monkeypatch.setattr(checkpoints.os, "replace", noted_replace)
    write_checkpoint(tmp_path / "a", content(), FACTS)
    assert calls == ["a.part", ("replace", "a.part", "a"), tmp_path.name]


class HalfWritten:
    """A file that stops in the middle of what is written to it."""

    def __init__(self, stream, stop):
        self.stream, self.stop = stream, stop

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def write(self, piece):
        self.stream.write(bytes(piece)[: len(piece) // 2 + 1])
        self.stream.flush()
        if len(piece) > 100:
            self.stop()


def write_until(stop, path, where):
    """Writes a checkpoint and stops within its content, or in a call of the system."""
    if where == "content":
        opened = checkpoints.Path.open
        checkpoints.Path.open = lambda path, mode: HalfWritten(opened(path, mode), stop)
    else:
        setattr(checkpoints.os, where, stop)
    write_checkpoint(path, {"weight": torch.zeros(3, 4)}, {"seed": 43})


@needs_fork
@pytest.mark.parametrize("where", ["content", "fsync", "replace"])
def test_who_is_killed_while_writing_leaves_the_old_file(tmp_path, where):
    old, new = tmp_path / "old", tmp_path / "new"
    write_checkpoint(old, content(), FACTS)
    for path in (old, new):
        kill_inside(write_until, path, where)
        assert path.with_name(f"{path.name}.part").stat().st_size > 0
    same(read_checkpoint(old, FACTS)[0], content())
    assert read_checkpoint(new) is None
    write_checkpoint(new, {}, {})
    write_checkpoint(old, {"weight": torch.ones(1)}, FACTS)
    same(read_checkpoint(old, FACTS)[0], {"weight": torch.ones(1)})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_of_a_gpu_come_back_on_the_cpu(tmp_path):
    write_checkpoint(tmp_path / "a", {"x": torch.arange(5).cuda()}, {})
    assert torch.equal(read_checkpoint(tmp_path / "a")[0]["x"], torch.arange(5))
