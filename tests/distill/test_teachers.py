"""Teachers: smoothed labels are what they say, weights and frozen features are kept and checked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from lib.distill import objective_loss
from lib.distill.assets import asset_path, cached_rows, cached_tensors
from lib.distill.checkpoints import CheckpointError
from lib.distill.evaluation import predict
from lib.distill.examples import TensorExamples
from lib.distill.frozen import logistic_head
from lib.distill.teachers import fit_teacher, smoothed_logits, teacher_outputs
from lib.models.perceptron import perceptron
from tests.distill.tiny_setting import TABLE

HOW = {"iterations": 30, "seed": 3, "learning_rate": 0.05, "batch_size": 20, "micro_batch": 20}


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    """An empty cache."""
    monkeypatch.setenv("BOOK_CACHE", str(tmp_path))


def examples(seed: int = 0, n: int = 60) -> TensorExamples:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    return TensorExamples(torch.eye(3)[labels] + torch.randn(n, 3, generator=draw), labels)


def network(seed: int = 0):
    return perceptron(3, (8,), 3, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_imitating_smoothed_labels_is_label_smoothing(smoothing):
    """The gradient is that of torch's own cross-entropy with smoothed labels."""
    logits = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(7) % 5
    target = smoothed_logits(labels, 5, smoothing)
    torch.testing.assert_close(target.exp().sum(-1), torch.ones(7))
    first, second = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    objective_loss("kl-dist", first, target, labels).backward()
    cross_entropy(second, labels, label_smoothing=smoothing).backward()
    torch.testing.assert_close(first.grad, second.grad, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("smoothing", [0.0, 1.0, -0.1])
def test_smoothing_outside_its_range_is_named(smoothing):
    with pytest.raises(ValueError, match="smoothing must be in"):
        smoothed_logits(torch.tensor([0]), 3, smoothing)


def test_labels_without_a_class_are_named():
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\) for 3 classes"):
        smoothed_logits(torch.tensor([0, 3]), 3, 0.1)


def test_a_teacher_is_trained_once(monkeypatch):
    data = examples()
    first = predict(fit_teacher(network(), data, HOW, 0.1, 3), data)
    monkeypatch.setattr("lib.distill.training.Trainer.step", None)  # would fail if it were called
    again = network()
    assert torch.equal(predict(fit_teacher(again, data, HOW, 0.1, 3), data), first)
    assert not again.training


def test_an_interrupted_teacher_goes_on(monkeypatch):
    """Broken off after a checkpoint, the weights end as without the break."""
    data, how = examples(), HOW | {"checkpoint_every": 5}
    plain = predict(fit_teacher(network(), data, how | {"log_every": 7}, 0.1, 3), data)
    from lib.distill.training import Trainer

    real = Trainer.step

    def breaks(self, iteration, measured=False):
        if iteration == 17:
            raise KeyboardInterrupt
        return real(self, iteration, measured)

    monkeypatch.setattr(Trainer, "step", breaks)
    with pytest.raises(KeyboardInterrupt):
        fit_teacher(network(), data, how, 0.1, 3)
    monkeypatch.setattr(Trainer, "step", real)
    assert torch.equal(predict(fit_teacher(network(), data, how, 0.1, 3), data), plain)


def test_start_examples_numbers_and_smoothing_make_another_teacher():
    data = examples()
    plain = predict(fit_teacher(network(), data, HOW, 0.1, 3), data)
    others = [
        fit_teacher(network(1), data, HOW, 0.1, 3),
        fit_teacher(network(), examples(1), HOW, 0.1, 3),
        fit_teacher(network(), data, HOW | {"learning_rate": 0.01}, 0.1, 3),
        fit_teacher(network(), data, HOW, 0.0, 3),
    ]
    for other in others:
        assert not torch.equal(predict(other, data), plain)


def test_a_smooth_teacher_is_less_sure_than_a_sharp_one():
    data, test = examples(n=300), examples(5)
    table = TABLE | {"teacher_iterations": 300}
    facts = {
        kind: teacher_outputs(network(), data, test, table, kind)[2] for kind in ("smooth", "sharp")
    }
    assert facts["smooth"]["label_probability"] < facts["sharp"]["label_probability"]
    logits, test_logits, found = teacher_outputs(network(), data, test, table, "smooth")
    assert logits.shape == (1, 300, 3)
    assert found["accuracy"] == float((test_logits[0].argmax(-1) == test.labels).double().mean())
    own = logits[0].softmax(-1)[torch.arange(300), data.labels].mean()
    assert found["label_probability"] == pytest.approx(float(own))


def test_tensors_are_made_once_and_named_when_damaged():
    calls = []

    def make():
        calls.append(1)
        return {"x": torch.arange(6.0)}

    facts = {"size": 6}
    first, again = (cached_tensors("six", facts, make)["x"] for _ in range(2))
    assert torch.equal(first, again)
    assert len(calls) == 1
    cached_tensors("six", {"size": 7}, make)
    assert len(calls) == 2
    path = asset_path("six", facts)
    content = bytearray(path.read_bytes())
    content[-2] ^= 4
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{path.name} is damaged"):
        cached_tensors("six", facts, make)


def test_rows_that_were_broken_off_go_on_after_the_last_part():
    values, made = torch.randn(10, 2), []

    def make(part):
        if len(made) == 2 and part.start == 6:
            made.append("break")
            raise KeyboardInterrupt
        made.append(part.start)
        return {"x": values[part]}

    with pytest.raises(KeyboardInterrupt):
        cached_rows("ten", {"n": 10}, 10, make, rows=3)
    found = cached_rows("ten", {"n": 10}, 10, make, rows=3)["x"]
    assert torch.equal(found, values)
    assert made == [0, 3, "break", 6, 9]
    folder = asset_path("ten", {"n": 10}).parent
    assert not list(folder.glob("*.rows-*"))
    cached_rows("ten", {"n": 10}, 10, None, rows=3)


def test_parts_that_another_process_has_removed_are_no_error(monkeypatch):
    """Two that asked at once both tidy up."""
    values = torch.randn(4, 2)
    rows = {"rows": 2, "make": lambda part: {"x": values[part]}}
    listed = Path.glob

    def removed(folder, pattern):
        found = list(listed(folder, pattern))
        if "rows-" in pattern:
            for path in found:
                path.unlink()
        return found

    monkeypatch.setattr(Path, "glob", removed)
    assert torch.equal(cached_rows("four", {"n": 4}, 4, **rows)["x"], values)


def test_the_logistic_head_solves_its_problem():
    """On raw features, the gradient of the objective in the standardised weights is zero."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 4
    features = torch.randn(120, 6, generator=draw) * torch.tensor([1.0, 5, 0.1, 2, 1, 3]) + 7
    features[:, 0] += labels
    features[:, 4] = 2.0  # does not vary
    c = 0.3
    head = logistic_head(features, labels, c, {"of": "test"})
    mean, std = features.double().mean(0), features.double().std(0, correction=0)
    std = torch.where(std > 1e-6, std, 1.0)
    weight = (head["weight"].double() * std).requires_grad_()
    bias = (head["bias"].double() + head["weight"].double() @ mean).requires_grad_()
    logits = (features.double() - mean) / std @ weight.T + bias
    raw = features @ head["weight"].T + head["bias"]
    torch.testing.assert_close(logits.float(), raw, rtol=1e-3, atol=1e-3)
    loss = c * cross_entropy(logits, labels, reduction="sum") + weight.square().sum() / 2
    slopes = torch.autograd.grad(loss, (weight, bias))
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-2
