"""Outputs for all examples, in order and without a trace; measures against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from lib.distill import TensorExamples, TokenExamples, measure, predict
from lib.distill.evaluation import evaluation_mode

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


class Bag(nn.Module):
    """Mean of embeddings, and a head; counts what it is given."""

    def __init__(self, classes=4):
        super().__init__()
        self.table, self.drop, self.head = nn.Embedding(50, 6), nn.Dropout(), nn.Linear(6, classes)
        self.widths = []

    def forward(self, tokens, mask):
        self.widths.append(tokens.shape)
        values = self.table(tokens) * mask.unsqueeze(-1)
        return self.head(self.drop(values.sum(1) / mask.sum(1, keepdim=True)))


def network(features=5, classes=4):
    torch.manual_seed(0)
    layers = (
        nn.Linear(features, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(8, classes),
    )
    model = nn.Sequential(*layers)
    model[1].running_mean.uniform_()
    return model


def points(n=23, views=None, features=5):
    generator = torch.Generator().manual_seed(1)
    shape = (n, features) if views is None else (views, n, features)
    labels = torch.randint(4, (n,), generator=generator)
    return TensorExamples(torch.randn(shape, generator=generator), labels, views)


@pytest.mark.parametrize("batch_size", [1, 7, 23, 100])
def test_logits_are_the_networks(batch_size):
    model, examples = network(), points(views=3)
    found = predict(model, examples, 2, batch_size)
    expected = model.eval()(examples.values[2])
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)
    assert not found.requires_grad


def test_texts_are_taken_by_length_and_given_back_in_order():
    torch.manual_seed(0)
    lengths = torch.randint(1, 21, (40,))
    examples = TokenExamples(torch.randint(1, 50, (40, 20)), lengths, torch.zeros(40).long())
    model = Bag()
    found = predict(model, examples, batch_size=8)
    assert model.widths == [(8, int(part.max())) for part in lengths.sort().values.split(8)]
    one_by_one = torch.cat(
        [model.eval()(*examples.inputs(torch.tensor([i]), torch.tensor([0]))) for i in range(40)]
    )
    torch.testing.assert_close(found, one_by_one.detach(), rtol=1e-5, atol=1e-6)


def test_nothing_of_the_network_changes():
    model = network().train()
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    predict(model, points())
    assert [module.training for module in model.modules()] == modes
    assert modes == [True, True, False, True, True, True]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_modes_come_back_after_an_error():
    model = network().train()
    model[3].eval()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        predict(model, points(features=6))
    assert [module.training for module in model] == [True, True, True, False, True]


def test_gradients_may_flow_through_what_was_predicted():
    """A tensor of inference mode would forbid it."""
    logits = predict(network(), points())
    weight = torch.ones(4, requires_grad=True)
    (logits * weight).sum().backward()
    torch.testing.assert_close(weight.grad, logits.sum(0))


def test_every_module_is_in_evaluation_mode_inside():
    model = network().train()
    with evaluation_mode(model):
        assert not any(module.training for module in model.modules())


def test_progress_sees_every_batch():
    seen = []

    def progress(batches, label):
        assert isinstance(label, str)
        for batch in batches:
            seen.append(len(batch))
            yield batch

    predict(network(), points(), batch_size=10, progress=progress)
    assert seen == [10, 10, 3]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_inputs_go_to_the_networks_device(device, dtype):
    model = nn.Linear(5, 4).to(device, dtype)
    examples = points()
    moved = TensorExamples(examples.values[0].to(dtype), examples.labels)
    found = predict(model, moved)
    assert found.dtype == dtype
    assert found.device.type == "cpu"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": 1}, r"view must be an integer in \[0, 1\), got 1"),
        ({"view": -1}, "view must be"),
        ({"batch_size": 0}, r"batch_size must be an integer in \[1, inf\), got 0"),
        ({"batch_size": 2.0}, "batch_size must be"),
    ],
)
def test_numbers_out_of_range_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        predict(network(), points(), **options)


def test_a_network_without_logits_is_refused():
    with pytest.raises(
        ValueError, match=r"must return logits \(b, K\) for a batch of 23, got \(23, 5, 1\)"
    ):
        predict(nn.Unflatten(1, (5, 1)), points())


def by_hand(student, teacher, labels):
    """Definitions in probabilities, one example after the other."""
    loss = kl = 0.0
    correct = blocked = 0
    for z, w, y in zip(student.double(), teacher.double(), labels.tolist(), strict=True):
        p, t = z.softmax(0), w.softmax(0)
        rest = [j for j in range(len(z)) if j != y]
        r, q = p[rest] / p[rest].sum(), t[rest] / t[rest].sum()
        loss -= float(p[y].log())
        kl += float((q * (q / r).log()).sum())
        correct += int(p.argmax()) == y
        blocked += bool((p[rest] <= t[rest]).all())
    n = len(labels)
    return loss / n, correct, kl / n, blocked / n


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(3, 8), st.integers(1, 20))
def test_measures_are_their_definitions(seed, classes, n):
    generator = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, n, classes, generator=generator)
    labels = torch.randint(classes, (n,), generator=generator)
    student[torch.arange(n), labels] += 3 * torch.rand(n, generator=generator)
    found = measure(student, teacher, labels)
    loss, correct, kl, blocked = by_hand(student, teacher, labels)
    assert found["loss"] == pytest.approx(loss, rel=1e-12)
    assert found["conditional_kl"] == pytest.approx(kl, rel=1e-9)
    assert (found["correct"], found["count"]) == (correct, n)
    assert (found["accuracy"], found["blocked"]) == (correct / n, blocked)


def test_uniform_outputs_have_closed_forms():
    labels = torch.tensor([0, 1, 2, 0])
    found = measure(torch.zeros(4, 5), None, labels)
    assert found == {
        "loss": pytest.approx(math.log(5)),
        "accuracy": 0.5,
        "correct": 2,
        "count": 4,
        "conditional_kl": None,
        "blocked": None,
    }
    half = torch.tensor([-math.inf, 0.0, 0.0, -math.inf, -math.inf])
    found = measure(torch.zeros(1, 5), half, torch.tensor([0]))
    assert found["conditional_kl"] == pytest.approx(math.log(2))  # two classes of four
    assert found["blocked"] == 0


def test_probabilities_that_vanish_are_measured_in_log_space():
    student = torch.tensor([[0.0, -2_000.0, -2_001.0]])
    teacher = torch.tensor([[0.0, -1_000.0, -1_000.0]])
    found = measure(student, teacher, torch.tensor([0]))
    r = 1 / (1 + math.exp(-1))
    assert found["conditional_kl"] == pytest.approx(-math.log(4 * r * (1 - r)) / 2)
    assert found["blocked"] == 1
    assert found["loss"] == 0
    assert measure(student, teacher, torch.tensor([1]))["loss"] == 2_000


def test_leading_dimensions_broadcast():
    generator = torch.Generator().manual_seed(0)
    student = torch.randn(3, 6, 4, generator=generator)
    teacher, labels = (
        torch.randn(6, 4, generator=generator),
        torch.randint(4, (6,), generator=generator),
    )
    found = measure(student, teacher, labels)
    flat = measure(student.flatten(0, 1), teacher.repeat(3, 1), labels.repeat(3))
    assert found == pytest.approx(flat)
    assert found["count"] == 18
    assert found["loss"] == pytest.approx(
        float(cross_entropy(student.flatten(0, 1), labels.repeat(3)))
    )


def test_measures_can_be_written_as_json():
    found = measure(torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))
    assert [type(value) for value in found.values()] == [float, float, int, int, float, float]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 2)}, "logits must have shape .* K >= 3"),
        ({"logits": torch.full((2, 3), math.nan)}, "logits must be finite"),
        ({"teacher_logits": torch.full((2, 3), math.inf)}, "teacher_logits must be finite"),
        ({"teacher_logits": torch.zeros(2, 4)}, "teacher_logits must have as many classes"),
        ({"labels": torch.tensor([0, 3])}, r"labels must lie in \[0, 3\)"),
        ({"labels": torch.zeros(3).long()}, "do not broadcast"),
        ({"logits": torch.zeros(0, 3), "labels": torch.zeros(0).long()}, "at least one example"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    values = {"logits": torch.zeros(2, 3), "teacher_logits": None, "labels": torch.tensor([0, 1])}
    with pytest.raises(ValueError, match=message):
        measure(**values | change)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_measures_on_a_gpu_are_those_here():
    values = (torch.randn(50, 7), torch.randn(50, 7), torch.randint(7, (50,)))
    assert measure(*(x.cuda() for x in values)) == pytest.approx(measure(*values))
