"""Teacher logits: computed once, under a key of everything they depend on, checked before use."""

from __future__ import annotations

import copy
import os
import random
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from lib.distill import (
    CheckpointError,
    ImageExamples,
    TensorExamples,
    TokenExamples,
    cached_logits,
    checkpoints,
    fixed_views,
    model_digest,
    predict,
    teacher_cache,
)
from tests.distill.forks import kill_inside, needs_fork, run_together


class Counted(nn.Module):
    """A network that counts its calls, which do not show in its print."""

    def __init__(self, classes=4):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.LazyLinear(classes), nn.Dropout())
        self.calls = 0

    def forward(self, *inputs):
        self.calls += 1
        return self.body(inputs[0].float())


def teacher(seed=0, features=6):
    torch.manual_seed(seed)
    model = Counted()
    model(torch.zeros(2, features))
    model.calls = 0
    return model


def points(views=3, n=10, features=6):
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(views, n, features, generator=generator)
    return TensorExamples(values, torch.arange(n) % 4, views)


def stored(folder):
    return sorted(Path(folder).glob("*.safetensors"))


def test_logits_are_the_networks_for_every_view(tmp_path):
    model, examples = teacher(), points()
    found = cached_logits(model, examples, tmp_path)
    assert found.shape == (3, 10, 4)
    assert found.dtype == torch.float32
    for view in range(3):
        assert torch.equal(found[view], predict(model, examples, view))


def test_a_teacher_on_a_gpu_computes_in_float32_itself(tmp_path, monkeypatch):
    """Convolutions of a GPU take TF32 unless they are told not to; this needs no GPU."""
    inside = []

    @contextmanager
    def watched(device):
        inside.append(device.type)
        yield
        inside.append("left")

    model = teacher()
    monkeypatch.setattr(teacher_cache, "exact_float32", watched)
    model.register_forward_hook(lambda *arguments: inside.append("forward"))
    cached_logits(model, points(views=1), tmp_path)
    assert inside == ["cpu", "forward", "left"]


def test_logits_are_computed_once(tmp_path):
    model = teacher()
    first = cached_logits(model, points(), tmp_path / "new" / "folder", batch_size=4)
    assert model.calls == 9  # three views of three batches
    again = cached_logits(model, points(), tmp_path / "new" / "folder", batch_size=4)
    other = copy.deepcopy(model).train()
    third = cached_logits(other, points(), tmp_path / "new" / "folder")
    assert model.calls == other.calls == 9
    assert torch.equal(first, again)
    assert torch.equal(first, third)
    assert len(stored(tmp_path / "new" / "folder")) == 1


def changed_weights():
    model = teacher()
    with torch.no_grad():
        model.body[1].weight[0, 0].mul_(-1)
    return model, points()


def changed_structure():
    model = teacher()
    model.body.append(nn.ReLU())
    return model, points()


def changed_data():
    examples = points()
    examples.values[1, 2, 3] += 1e-6
    return teacher(), examples


@pytest.mark.parametrize(
    "change",
    [
        changed_weights,
        changed_structure,
        changed_data,
        lambda: (teacher(), points(views=2)),
        lambda: (teacher().double(), points()),
    ],
    ids=["weights", "structure", "data", "views", "precision"],
)
def test_another_teacher_or_other_data_have_another_file(tmp_path, change):
    kept = cached_logits(teacher(), points(), tmp_path).clone()
    model, examples = change()
    if next(model.parameters()).dtype == torch.float64:
        model.forward = lambda x: model.body(x.double())
        found = cached_logits(model, examples, tmp_path)
        assert found.dtype == torch.float32
    else:
        found = cached_logits(model, examples, tmp_path)
        assert torch.equal(found[0], predict(model, examples, 0))
    assert len(stored(tmp_path)) == 2
    assert torch.equal(cached_logits(teacher(), points(), tmp_path), kept)


def test_a_buffer_counts_and_the_mode_does_not():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = model_digest(model)
    model.eval()
    assert model_digest(model) == before
    model[1].running_mean[0] = 0.5
    assert model_digest(model) != before


def test_a_buffer_that_is_not_saved_counts():
    model = nn.Linear(2, 3)
    model.register_buffer("scale", torch.ones(1), persistent=False)
    before = model_digest(model)
    model.scale += 1
    assert model_digest(model) != before


class Printing(nn.Module):
    """Prints where a function lies, as some networks do."""

    def __init__(self):
        super().__init__()
        self.function = lambda x: x

    def extra_repr(self):
        return repr(self.function)


def test_addresses_do_not_count():
    kept = [Printing() for _ in range(3)]
    assert len({repr(model) for model in kept}) == 3
    assert len({model_digest(model) for model in kept}) == 1


def test_texts_and_images_have_logits_too(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 9, (5, 6), generator=generator)
    texts = TokenExamples(tokens, torch.full((5,), 6), torch.arange(5))
    assert cached_logits(teacher(), texts, tmp_path).shape == (1, 5, 4)
    views = fixed_views(5, 2, 1, generator)
    images = torch.rand(5, 3, 4, 4, generator=generator)
    examples = ImageExamples(images, torch.arange(5), *views, padding=1)
    assert cached_logits(teacher(features=48), examples, tmp_path).shape == (2, 5, 4)
    assert len(stored(tmp_path)) == 2


def test_a_flipped_byte_anywhere_is_refused_by_name(tmp_path):
    model, examples = teacher(), points()
    cached_logits(model, examples, tmp_path)
    (path,) = stored(tmp_path)
    whole, chance = path.read_bytes(), random.Random(1)
    for position in [*range(0, len(whole), 7), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[position] ^= chance.randrange(1, 256)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=f"{path.name} is damaged"):
            cached_logits(model, examples, tmp_path)
    assert model.calls == 3
    path.write_bytes(whole)
    cached_logits(model, examples, tmp_path)
    path.unlink()
    cached_logits(model, examples, tmp_path)
    assert model.calls == 6


def test_a_file_under_the_name_of_another_is_refused(tmp_path):
    cached_logits(teacher(0), points(), tmp_path)
    (first,) = stored(tmp_path)
    cached_logits(teacher(1), points(), tmp_path)
    (second,) = [path for path in stored(tmp_path) if path != first]
    os.replace(first, second)
    with pytest.raises(CheckpointError, match=f"{second.name} is of another run: model is"):
        cached_logits(teacher(1), points(), tmp_path)


def test_what_is_written_to_the_logits_stays_with_the_process(tmp_path):
    found = cached_logits(teacher(), points(), tmp_path)
    kept = found.clone()
    found.zero_()
    assert torch.equal(cached_logits(teacher(), points(), tmp_path), kept)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_the_memory_of_the_logits_is_the_files(tmp_path):
    found = cached_logits(teacher(), points(), tmp_path)
    (path,) = stored(tmp_path)
    ranges = [
        [int(end, 16) for end in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(path))
    ]
    assert any(low <= found.data_ptr() < high for low, high in ranges)


def test_logits_that_are_no_numbers_are_not_kept(tmp_path):
    model = teacher()
    with torch.no_grad():
        model.body[1].bias[0] = torch.nan
    with pytest.raises(ValueError, match="got NaN"):
        cached_logits(model, points(), tmp_path)
    assert not stored(tmp_path)


def write_until(stop, folder):
    checkpoints.os.fsync = stop
    cached_logits(teacher(), points(), folder)


def count_calls(report, meet, folder):
    model = teacher()
    model.register_forward_hook(lambda *ignored: time.sleep(0.2))  # time for the other to come
    meet()
    cached_logits(model, points(), folder)
    report(model.calls)


@needs_fork
def test_who_is_killed_while_writing_leaves_nothing_half_written(tmp_path):
    kill_inside(write_until, tmp_path)
    assert not stored(tmp_path)
    assert len(list(tmp_path.glob("*.part"))) == 1
    model = teacher()
    found = cached_logits(model, points(), tmp_path)
    assert model.calls == 3
    assert torch.equal(found[0], predict(model, points(), 0))
    assert not list(tmp_path.glob("*.part"))


@needs_fork
def test_of_two_processes_one_computes(tmp_path):
    assert sorted(run_together(count_calls, 2, tmp_path)) == [0, 3]
    assert len(stored(tmp_path)) == 1
