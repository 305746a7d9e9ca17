"""The second head of DHKD, and the hidden states that DTO-KD compares on text."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from lib.distill.auxiliary import FeatureLoss, LayerFeatures, auxiliary_head, split_head
from lib.distill.order import batch_at
from lib.distill.settings import TrainingSettings
from lib.distill.trainer import Trainer
from lib.models.networks import fully_connected
from lib.models.text import text_encoder
from tests.distill.small_runs import network, settings, task, texts
from tests.tpkd.states import DEVICES

TARGET = 6  # width of the teacher's states


def encoder(dtype=torch.float64, dropout=0.0):
    return text_encoder(
        20, 4, 8, 2, 2, generator=torch.Generator().manual_seed(1), dropout=dropout
    ).to(dtype)


def teacher_states(tokens, mask):
    """States that depend on token and place, and hold anything at padding."""
    place = torch.arange(tokens.shape[1], dtype=torch.float64)
    base = (tokens.double() / 3).unsqueeze(-1) + torch.arange(TARGET).double()
    states = torch.stack([base.sin() + place.unsqueeze(-1), base.cos()])
    return states.masked_fill(~mask[None, :, :, None], 77.0)


def test_parts_of_a_network():
    for model, inputs in (
        (network(), torch.randn(3, 5).double()),
        (fully_connected(5, (7,), 4, generator=torch.Generator()), torch.randn(3, 5)),
    ):
        features, head = split_head(model)
        assert head is model[-1]
        assert torch.equal(head(features(inputs)), model(inputs))
    model = encoder().eval()
    features, head = split_head(model)
    inputs = torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool)
    assert torch.equal(head(features(*inputs)), model(*inputs))
    for wrong in (nn.Linear(5, 4), nn.Sequential(nn.Linear(5, 4), nn.ReLU()), nn.Sequential()):
        with pytest.raises(ValueError, match=f"student must have .* got {type(wrong).__name__}"):
            split_head(wrong)


def test_heads_are_those_of_the_released_code():
    head = auxiliary_head(7, 4, "nonlinear", 3)
    assert [type(layer) for layer in head] == [
        nn.Linear,
        nn.Dropout,
        nn.BatchNorm1d,
        nn.ReLU,
        nn.Linear,
    ]
    assert (head[0].in_features, head[0].out_features, head[4].out_features) == (7, 200, 4)
    assert head[1].p == 0.1
    assert head[0].weight.abs().max() <= 7**-0.5  # the framework's default
    linear = auxiliary_head(7, 4, "linear", 3)
    assert (linear.in_features, linear.out_features) == (7, 4)
    with pytest.raises(ValueError, match="kind must be one of nonlinear, linear, got 'deep'"):
        auxiliary_head(7, 4, "deep", 3)


@pytest.mark.parametrize("kind", ["nonlinear", "linear"])
def test_heads_draw_from_a_stream_of_their_own(kind):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one, two, three = (auxiliary_head(7, 4, kind, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    first = [next(iter(head.parameters())) for head in (one, two, three)]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


def test_the_head_reads_the_features_and_is_dropped():
    examples, teacher = task(1, dtype=torch.float32)
    model = network(dtype=torch.float32)
    values = settings("dhkd", 3, precision="float32", auxiliary_head="nonlinear")
    trainer = Trainer(model, examples, values, teacher=teacher)
    before = trainer.parts.auxiliary[4].weight.clone()
    trainer.step(0)
    assert not torch.equal(trainer.parts.auxiliary[4].weight, before)
    assert set(model.state_dict()) == set(network().state_dict())
    named = {name.split(".")[0] for name in trainer.state()}
    assert named == {"student", "auxiliary", "optimiser"}


def test_a_head_can_be_given():
    examples, teacher = task(1)
    head = nn.Linear(8, 4)
    trainer = Trainer(network(), examples, settings("dhkd"), teacher=teacher, auxiliary=head)
    before = head.weight.clone()
    trainer.step(0)
    assert trainer.parts.auxiliary is head
    assert not torch.equal(head.weight, before)


def featured(model, weight=1.0, size=20, iterations=1, **changes):
    examples, teacher = texts()
    features = LayerFeatures(list(model.body.blocks), teacher_states)
    values = settings(
        "dto-kd", iterations, feature_weight=weight, micro_batch=size, weight_decay=0.0, **changes
    )
    return Trainer(model, examples, values, teacher=teacher, features=features), examples, teacher


def test_the_distance_is_that_of_normalised_projections():
    """Against a loop over texts and tokens; what padding holds does not count."""
    model = encoder()
    examples, _ = texts()
    index = torch.arange(5)
    inputs = examples.inputs(index, torch.zeros_like(index))
    found = FeatureLoss(model, LayerFeatures(list(model.body.blocks), teacher_states), inputs, 3)
    logits, distance = found(model, inputs)
    torch.testing.assert_close(logits, model(*inputs))
    states, target, total = model.body.states(*inputs)[1:], teacher_states(*inputs), 0.0
    for layer in range(2):
        for text in range(5):
            for place in range(int(examples.lengths[text])):
                projected = states[layer][text, place] @ found.projections.weight[layer]
                rows = (projected, target[layer, text, place])
                one, two = (functional.layer_norm(row, (TARGET,)) for row in rows)
                total += (one - two).square().mean().item()
    wanted = total / 2 / int(examples.lengths[:5].sum())
    assert distance.item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("size", [20, 6])
def test_a_step_with_hidden_states_by_hand(size):
    """The shares come from the student's parameters alone; projections get theirs of one loss."""
    model = encoder()
    trainer, examples, teacher = featured(model, 0.7, size, momentum=0.0)
    projections = trainer.parts.auxiliary
    batch = batch_at(40, 1, 20, 0, 42)
    inputs = examples.inputs(batch.index, batch.view)
    labels, target = examples.labels[batch.index], teacher[0, batch.index].double()
    logits = model(*inputs)
    distance = trainer.parts.feature_loss(model, inputs)[1]
    kl = functional.kl_div(logits.log_softmax(-1), target.softmax(-1), reduction="batchmean")
    first, second = kl + 0.7 * distance, functional.cross_entropy(logits, labels)
    own = list(model.parameters())
    g1 = torch.autograd.grad(first.log(), [*own, projections.weight], retain_graph=True)
    g2 = torch.autograd.grad(second.log(), own)
    dot = [
        sum(float((x * y).sum()) for x, y in zip(one, two, strict=False))
        for one, two in ((g1[:-1], g1), (g1, g2), (g2, g2))
    ]
    share = min(1.0, max(0.0, (dot[2] - dot[1]) / (dot[0] + dot[2] - 2 * dot[1])))
    assert 0.01 < share < 0.99
    before = [p.detach().clone() for p in [*own, projections.weight]]
    found = trainer.step(0)
    for old, new, one, two in zip(before, own, g1, g2, strict=False):
        wanted = 0.1 * (share * one + (1 - share) * two)
        torch.testing.assert_close(old - new, wanted, rtol=1e-7, atol=1e-11)
    moved = before[-1] - projections.weight
    torch.testing.assert_close(moved, 0.1 * share * g1[-1], rtol=1e-7, atol=1e-11)
    assert found["loss"] == pytest.approx((first + second).item(), rel=1e-10)


def test_hidden_states_change_the_run_and_come_back_from_a_state():
    ends = []
    for weight in (0.0, 1.0):
        trainer, *_ = featured(encoder(dropout=0.1), weight, 8, 6)
        for k in range(3):
            trainer.step(k)
        saved = trainer.state()
        for _ in range(2):
            trainer.load_state(saved)
            trainer.step(3)
            ends.append(trainer.state())
    for one, two in ((0, 1), (2, 3)):
        assert all(torch.equal(ends[one][name], ends[two][name]) for name in ends[one])
    assert "auxiliary.weight" in ends[2]
    assert "auxiliary.weight" not in ends[0]
    assert not torch.equal(ends[0]["student.head.weight"], ends[2]["student.head.weight"])


def test_a_trained_student_comes_nearer_to_the_states():
    trainer, *_ = featured(encoder(), 5.0, 20, 40, learning_rate=0.02)
    examples = trainer.examples
    index = torch.arange(40)
    inputs = examples.inputs(index, torch.zeros_like(index))
    distances = []
    for k in range(41):
        if k in (0, 40):
            distances.append(float(trainer.parts.feature_loss(trainer.student, inputs)[1]))
        if k < 40:
            trainer.step(k)
    assert distances[1] < 0.8 * distances[0]


def test_what_hidden_states_need_is_named():
    examples, teacher = texts()
    with pytest.raises(ValueError, match="feature_weight must be 0 unless features and examples"):
        Trainer(encoder(), examples, settings("dto-kd", feature_weight=1.0), teacher=teacher)
    features = LayerFeatures([], teacher_states)
    values = settings("dto-kd", feature_weight=1.0)
    with pytest.raises(ValueError, match="at least one layer of the student"):
        Trainer(encoder(), examples, values, teacher=teacher, features=features)
    with pytest.raises(ValueError, match="feature_weight"):
        settings("kd", feature_weight=1.0)


def test_hooks_do_not_stay():
    trainer, *_ = featured(encoder())
    trainer.step(0)
    assert not any(block._forward_hooks for block in trainer.student.body.blocks)


@pytest.mark.parametrize("device", DEVICES)
def test_hidden_states_on_every_device(device):
    model = encoder(torch.float32)
    examples, teacher = texts()
    features = LayerFeatures(
        list(model.body.blocks),
        lambda *inputs: teacher_states(*(x.cpu() for x in inputs)).to(device),
    )
    values = TrainingSettings("dto-kd", 2, 0, 0.1, batch_size=20, feature_weight=1.0)
    trainer = Trainer(model, examples, values, teacher=teacher, features=features, device=device)
    trainer.step(0)
    assert trainer.parts.auxiliary.weight.device.type == device
