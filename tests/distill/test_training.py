"""Training against plain loops, against itself in other parts, and against its own promises."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from lib.distill.evaluation import predict
from lib.distill.examples import TensorExamples
from lib.distill.methods import OBJECTIVES
from lib.distill.order import batch_at
from lib.distill.precision import LossScale, exact_float32
from lib.distill.settings import TrainingSettings
from lib.distill.streams import stream_seed
from lib.distill.training import Trainer, TrainingError, train_student
from tests.distill.cases import closed_form
from tests.distill.small_runs import PlainLoop, network, settings, task, weights
from tests.tpkd.states import DEVICES

TWO_PASSES = ["dhkd", "dto-kd"]
LINEAR = [name for name in OBJECTIVES if name not in TWO_PASSES]  # in the examples


def trained(method, model, examples, teacher, **changes):
    """The weights after a run, and the trainer."""
    trainer = Trainer(model, examples, settings(method, **changes), teacher=teacher)
    for iteration in range(trainer.settings.iterations):
        trainer.step(iteration)
    return weights(model), trainer


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("method", ["ce", "kd", "kl-dist"])
def test_library_losses_in_a_plain_loop(method, momentum, seed):
    examples, teacher = task(seed)
    values = settings(method, 30, momentum=momentum)

    def backward(logits, target, labels, iteration):
        heat = {"ce": 1.0, "kd": 4.0, "kl-dist": 1.0}[method]
        logs, aims = (logits / heat).log_softmax(-1), (target / heat).softmax(-1)
        loss = heat**2 * functional.kl_div(logs, aims, reduction="batchmean")
        label = functional.cross_entropy(logits, labels)
        {"ce": label, "kd": label + loss, "kl-dist": loss}[method].backward()

    there = PlainLoop(network(), examples, teacher, values).run(backward)
    here, _ = trained(method, network(), examples, teacher, iterations=30, momentum=momentum)
    torch.testing.assert_close(here, there, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", LINEAR)
def test_closed_forms_in_a_plain_loop(method):
    """Backward from the prescribed gradient in the logits, with no loss at all."""
    examples, teacher = task(3)
    options = {"warmup_epochs": 0.0} if method == "dkd" else {}
    model, start = network(), network()
    values = settings(method, 15, options=options)

    def backward(logits, target, labels, iteration):
        index = batch_at(60, 1, 20, iteration, 42).index
        frozen = start(examples.values[0, index]).detach()
        outputs = {"student_logits": logits.detach(), "teacher_logits": target, "labels": labels}
        gradient = closed_form(method, outputs | {"frozen_logits": frozen})
        logits.backward(gradient / len(labels))

    there = PlainLoop(model, examples, teacher, values).run(backward)
    here, _ = trained(method, network(), examples, teacher, iterations=15, options=options)
    torch.testing.assert_close(here, there, rtol=1e-11, atol=1e-11)


def test_without_projection_is_an_ordinary_loss():
    """CE + KL(q || r) / 2, with the label's column cut out, by automatic differentiation."""
    examples, teacher = task(4)

    def backward(logits, target, labels, iteration):
        others = torch.ones_like(logits, dtype=torch.bool).scatter_(1, labels.unsqueeze(1), False)
        r, q = (x[others].view(len(labels), -1).log_softmax(-1) for x in (logits, target))
        kl = functional.kl_div(r, q, log_target=True, reduction="batchmean")
        (functional.cross_entropy(logits, labels) + kl / 2).backward()

    values = settings("tpkd-no-projection", 30)
    there = PlainLoop(network(), examples, teacher, values).run(backward)
    here, _ = trained("tpkd-no-projection", network(), examples, teacher, iterations=30)
    torch.testing.assert_close(here, there, rtol=1e-11, atol=1e-11)
    safe, _ = trained("tpkd", network(), examples, teacher, iterations=30)
    assert (safe - there).norm() > 1e-2


def test_google_adam_with_clipping_and_schedule_by_hand():
    """Whole batches, plain tensors, the formulas of the paper's protocol."""
    examples, teacher = task(5)
    changes = {
        "optimiser": "adam-weight-decay",
        "weight_decay": 0.01,
        "schedule": "warmup-linear",
        "warmup": 4,
        "clip": 0.05,
        "learning_rate": 0.01,
    }
    model = network()
    means = [torch.zeros_like(p) for p in model.parameters()]
    squares = [torch.zeros_like(p) for p in model.parameters()]
    clipped = 0
    for k in range(15):
        index = batch_at(60, 1, 20, k, 42).index
        loss = functional.cross_entropy(model(examples.values[0, index]), examples.labels[index])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        clipped += norm > 0.05
        rate = 0.01 * (k / 4 if k < 4 else 1 - k / 15)
        for p, g, m, s in zip(model.parameters(), gradients, means, squares, strict=True):
            g = g * min(1.0, 0.05 / norm)
            m.mul_(0.9).add_(0.1 * g)
            s.mul_(0.999).add_(0.001 * g * g)
            decay = 0.01 if p.ndim > 1 else 0.0
            p.data -= rate * (m / (s.sqrt() + 1e-6) + decay * p.data)
    here, trainer = trained("ce", network(), examples, teacher, iterations=15, **changes)
    assert clipped > 5
    torch.testing.assert_close(here, weights(model), rtol=1e-10, atol=1e-12)
    assert trainer.optimiser.param_groups[0]["lr"] == pytest.approx(0.01 / 15)


@pytest.mark.parametrize("method", OBJECTIVES)
def test_parts_of_any_size_give_the_whole_batch(method):
    examples, teacher = task(6)
    whole, _ = trained(method, network(), examples, teacher, iterations=3)
    for size in (1, 7, 19):
        found, _ = trained(method, network(), examples, teacher, iterations=3, micro_batch=size)
        torch.testing.assert_close(found, whole, rtol=1e-11, atol=1e-11)


def flat_gradients(losses, parameters):
    """Gradients of whole losses as vectors, zeros where a loss does not reach."""
    return [
        torch.cat(
            [
                (torch.zeros_like(p) if g is None else g).flatten()
                for g, p in zip(
                    torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True),
                    parameters,
                    strict=True,
                )
            ]
        )
        for loss in losses
    ]


@pytest.mark.parametrize("against", [False, True])
@pytest.mark.parametrize("size", [20, 6])
def test_dhkd_step_by_hand(size, against):
    """Both gradients of the whole batch in all parameters of body and both heads."""
    examples, teacher = task(8)
    model = network(2)
    values = settings("dhkd", 1, momentum=0.0, weight_decay=0.0, micro_batch=size)
    trainer = Trainer(model, examples, values, teacher=teacher)
    head = trainer.parts.auxiliary
    if against:  # a second head that wants the opposite of the first
        head.weight.data = -20 * model[3].weight.data
    parameters = [*model.parameters(), *head.parameters()]
    before = torch.cat([p.detach().flatten().clone() for p in parameters])
    index = batch_at(60, 1, 20, 0, 42).index
    body = model[:3](examples.values[0, index])
    gap = (head(body) - teacher[0, index]) / 4
    losses = (
        functional.cross_entropy(model[3](body), examples.labels[index]),
        4 * gap.cosh().log().sum(1).mean(),
    )
    task_gradient, distil = flat_gradients(losses, parameters)
    share = float(distil @ task_gradient / task_gradient.square().sum())
    assert (share < 0) == against
    wanted = task_gradient + distil - min(0.0, share) * task_gradient
    found = trainer.step(0)
    after = torch.cat([p.detach().flatten() for p in parameters])
    torch.testing.assert_close(before - after, 0.1 * wanted, rtol=1e-9, atol=1e-12)
    assert found["loss"] == pytest.approx(sum(losses).item(), rel=1e-12)
    assert found["gradient_norm"] == pytest.approx(float(wanted.norm()), rel=1e-9)


@pytest.mark.parametrize("size", [20, 6])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dto_kd_step_by_hand(size, seed):
    examples, teacher = task(seed)
    model = network(seed)
    values = settings("dto-kd", 1, momentum=0.0, weight_decay=0.0, micro_batch=size)
    index = batch_at(60, 1, 20, 0, 42).index
    logits, labels = model(examples.values[0, index]), examples.labels[index]
    first = functional.kl_div(
        logits.log_softmax(-1), teacher[0, index].softmax(-1), reduction="batchmean"
    )
    second = functional.cross_entropy(logits, labels)
    g1, g2 = flat_gradients((first.log(), second.log()), list(model.parameters()))
    gram = torch.stack([g1, g2]) @ torch.stack([g1, g2]).T
    share = (gram[1, 1] - gram[0, 1]) / (gram[0, 0] + gram[1, 1] - 2 * gram[0, 1])
    share = float(share.clamp(0, 1))
    before = weights(model)
    Trainer(model, examples, values, teacher=teacher).step(0)
    wanted = 0.1 * (share * g1 + (1 - share) * g2)
    torch.testing.assert_close(before - weights(model), wanted, rtol=1e-8, atol=1e-12)


def fitted_head(examples, model):
    """The network after some training, far from uniform."""
    trained("ce", model, examples, None, iterations=40)
    return model


@pytest.mark.parametrize("seed", [42, 43])
def test_dp_u_is_kl_dist_for_a_new_head_and_not_for_a_fitted_one(seed):
    examples, teacher = task(9, dtype=torch.float32)
    changes = {"precision": "float32", "seed": seed, "iterations": 10, "micro_batch": 8}

    def pair(start):
        found = []
        for method in ("dp-u", "kl-dist"):
            model = network(dropout=0.3, dtype=torch.float32)
            model.load_state_dict(start.state_dict())
            found.append(trained(method, model, examples, teacher, **changes)[0])
        return found

    fresh = network(dtype=torch.float32)
    with torch.no_grad():
        fresh[3].weight.mul_(1e-3)
        fresh[3].bias.zero_()
    assert torch.equal(*pair(fresh))
    assert not torch.equal(*pair(fitted_head(*task(9)[:1], network()).float()))


class Recorded(TensorExamples):
    """Examples that remember which of them were asked for."""

    def inputs(self, index, view):
        self.__dict__.setdefault("seen", []).append((index.tolist(), view.tolist()))
        return super().inputs(index, view)


class Noise(nn.Dropout):
    """Dropout that remembers its masks."""

    def __init__(self):
        super().__init__(0.5)
        self.masks = []

    def forward(self, x):
        mask = super().forward(torch.ones_like(x))
        self.masks += [mask] if self.training else []
        return x * mask


def test_every_method_sees_the_same_examples_views_and_dropout():
    reference = None
    for method in OBJECTIVES:
        examples, teacher = task(10, views=3)
        recorded = Recorded(examples.values, examples.labels, 3)
        model = network()
        model[2] = noise = Noise()
        recorded.__dict__["seen"] = []
        kind = {"auxiliary_head": "nonlinear"} if method == "dhkd" else {}
        values = settings(method, 4, micro_batch=8, **kind)
        trainer = Trainer(model, recorded, values, teacher=teacher)
        recorded.__dict__["seen"] = []
        torch.manual_seed(len(method))  # what the world draws does not matter
        for iteration in range(4):
            trainer.step(iteration)
        seen = recorded.__dict__["seen"], torch.cat(noise.masks)
        assert len(seen[0]) == 12
        assert len(noise.masks) == 12
        if reference is not None:
            assert seen[0] == reference[0], method
            assert torch.equal(seen[1], reference[1]), method
        reference = seen
    other = Trainer(model, recorded, settings("ce", 4, micro_batch=8, seed=43))
    recorded.__dict__["seen"] = []
    other.step(0)
    assert recorded.__dict__["seen"][0] != reference[0][0]


def test_dropout_is_that_of_its_stream():
    examples, _ = task(10)
    model = network()
    model[2] = noise = Noise()
    trainer = Trainer(model, examples, settings("ce", 4, micro_batch=8))
    trainer.step(3)
    torch.manual_seed(stream_seed(42, "dropout", 3, 1))
    wanted = functional.dropout(torch.ones(8, 8, dtype=torch.float64), 0.5)
    assert torch.equal(noise.masks[1], wanted)


@pytest.mark.parametrize("method", ["dp-s", "dhkd", "tpkd"])
def test_the_global_generator_is_left_alone(method):
    examples, teacher = task(11)
    torch.manual_seed(123)
    before = torch.get_rng_state()
    values = settings(method, 3, auxiliary_head="nonlinear")
    train_student(network(dropout=0.4), examples, values, teacher=teacher, test=examples)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_teacher_is_that_of_the_view():
    """With teachers that differ between views, only the right row explains the step."""
    examples, teacher = task(12, views=3)
    values = settings("kl-dist", 10)

    def backward(logits, target, labels, iteration):
        logits.backward((logits.softmax(-1) - target.softmax(-1)).detach() / len(labels))

    there = PlainLoop(network(), examples, teacher, values).run(backward)
    here, _ = trained("kl-dist", network(), examples, teacher, iterations=10)
    torch.testing.assert_close(here, there, rtol=1e-11, atol=1e-11)


def test_dkd_warms_up_by_the_epochs_of_the_examples():
    """60 examples in batches of 20: three steps an epoch; the factor of two epochs is 1/2, 1."""
    examples, teacher = task(13)
    options = {"warmup_epochs": 2.0, "ce_weight": 0.0}
    values = settings("dkd", 9, options=options, learning_rate=1e-12, momentum=0.0)
    cold = settings("dkd", 9, options=options | {"warmup_epochs": 0.0}, learning_rate=1e-12)
    trainers = [Trainer(network(), examples, one, teacher=teacher) for one in (values, cold)]
    ratios = [trainers[0].step(k)["loss"] / trainers[1].step(k)["loss"] for k in range(9)]
    assert ratios == pytest.approx([0.5] * 3 + [1.0] * 6, rel=1e-6)


def test_step_on_is_the_step_of_the_batch():
    examples, teacher = task(14)
    first, second = (
        Trainer(network(dropout=0.3), examples, settings("tpkd", 3), teacher=teacher)
        for _ in range(2)
    )
    batch = batch_at(60, 1, 20, 2, 42)
    one = first.step(2, measured=True)
    two = second.step_on(batch.index, batch.view, 2, measured=True)
    assert one == {"epoch": batch.epoch} | two
    assert torch.equal(weights(first.student), weights(second.student))


def test_measures_of_a_step_are_those_of_the_batch_before_it():
    examples, teacher = task(15)
    model = network()
    trainer = Trainer(model, examples, settings("kd", 3, micro_batch=7), teacher=teacher)
    trainer.step(0)
    index = batch_at(60, 1, 20, 1, 42).index
    logits = model(examples.values[0, index]).detach()
    labels, target = examples.labels[index], teacher[0, index]
    others = torch.ones_like(logits, dtype=torch.bool).scatter_(1, labels.unsqueeze(1), False)
    r, q = (x[others].view(20, -1).softmax(-1) for x in (logits, target))
    p, t = (x.softmax(-1)[others].view(20, -1) for x in (logits, target))
    found = trainer.step(1, measured=True)
    assert found["conditional_kl"] == pytest.approx(float((q * (q / r).log()).sum(1).mean()))
    assert found["blocked"] == pytest.approx(float((p <= t).all(1).double().mean()))
    assert found["cross_entropy"] == pytest.approx(float(functional.cross_entropy(logits, labels)))


@pytest.mark.parametrize("method", OBJECTIVES)
def test_a_state_brings_a_trainer_back(method):
    """Two steps, back, the same two steps: the same bits, history and buffers included."""
    examples, teacher = task(16)
    kind = {"auxiliary_head": "nonlinear"} if method == "dhkd" else {}
    values = settings(method, 9, micro_batch=8, **kind)
    trainer = Trainer(network(dropout=0.2), examples, values, teacher=teacher)
    for k in range(3):
        trainer.step(k)
    saved = trainer.state()
    copies = {name: tensor.clone() for name, tensor in saved.items()}
    ends = []
    for _ in range(2):
        trainer.load_state(saved)
        for k in (3, 4):
            trainer.step(k)
        ends.append(trainer.state())
    assert all(torch.equal(saved[name], copies[name]) for name in saved)
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert not torch.equal(ends[0]["student.0.weight"], saved["student.0.weight"])
    frozen = trainer.parts.frozen  # of the student before training: no step changes it
    other = Trainer(network(5, dropout=0.2), examples, values, teacher=teacher, frozen=frozen)
    other.load_state(saved)
    for k in (3, 4):
        other.step(k)
    assert all(torch.equal(other.state()[name], ends[0][name]) for name in ends[0])


def test_states_of_other_networks_are_refused():
    examples, teacher = task(16)
    trainer = Trainer(network(), examples, settings("kd"), teacher=teacher)
    state = trainer.state()
    for change, named in (
        ({"student.9.weight": torch.ones(1)}, "student.9.weight"),
        ({"student.0.weight": torch.ones(1)}, "student"),
        ({"optimiser.0.momentum_buffer": torch.ones(3)}, "momentum_buffer of parameter 0"),
        ({"optimiser.77.momentum_buffer": torch.ones(3)}, "77"),
    ):
        with pytest.raises(ValueError, match=named):
            trainer.load_state(state | change)
    del state["student.0.bias"]
    with pytest.raises(ValueError, match=r"must hold student\.0\.bias"):
        trainer.load_state(state)


@pytest.mark.parametrize("method", OBJECTIVES)
def test_a_nan_stops_the_run_before_it_reaches_the_weights(method, tmp_path):
    examples, teacher = task(17)
    values = settings(method, 20, checkpoint_every=1)
    spoilt = TensorExamples(examples.values[0].clone(), examples.labels)
    place = int(batch_at(60, 1, 20, 2, 42).index[5])
    frozen = torch.zeros(1, 60, 4) if OBJECTIVES[method].needs_frozen else None
    spoilt.values[0, place, 0] = math.nan
    model = network()
    trainer = Trainer(model, spoilt, values, teacher=teacher, frozen=frozen)
    for k in (0, 1):
        trainer.step(k)
    before = trainer.state()
    with pytest.raises(TrainingError, match=rf"^{method} cannot go on at step 2: the loss is nan"):
        trainer.step(2)
    after = trainer.state()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_run_that_fails_keeps_its_last_checkpoint_and_says_where(tmp_path):
    examples, teacher = task(17)
    spoilt = TensorExamples(examples.values[0].clone(), examples.labels)
    spoilt.values[0, int(batch_at(60, 1, 20, 2, 42).index[5]), 0] = math.inf
    values = settings("kd", 20, checkpoint_every=2)
    for _ in range(2):  # the second try goes on from the checkpoint and fails alike
        with pytest.raises(TrainingError, match=r"kd cannot go on at step 2.*is kept in .*run"):
            train_student(network(), spoilt, values, teacher=teacher, folder=tmp_path / "run")
        assert (tmp_path / "run" / "checkpoint.safetensors").is_file()


def test_an_infinite_gradient_behind_a_finite_loss_stops_the_run():
    """The label's logit at infinity has loss zero."""

    class Certain(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            return self.inner(x).exp().exp().exp() * 1e300

    examples, _ = task(17)
    trainer = Trainer(Certain(), examples, settings("ce", 3))
    with pytest.raises(TrainingError, match="ce cannot go on at step 0"):
        trainer.step(0)


def test_an_exploding_conditional_kl_stops_the_run():
    examples, teacher = task(18)
    values = settings("tpkd", 400, learning_rate=50.0, log_every=1, largest_kl=20.0)
    with pytest.raises(TrainingError, match=r"tpkd .* the conditional KL is .* largest_kl=20"):
        train_student(network(), examples, values, teacher=teacher)


def test_bfloat16_stays_close_to_float32():
    examples, teacher = task(19, dtype=torch.float32)
    ends = []
    for precision in ("float32", "amp-bfloat16"):
        model = network(dtype=torch.float32)
        start = weights(model)
        found, trainer = trained("kd", model, examples, teacher, precision=precision)
        assert trainer.state()["student.0.weight"].dtype == torch.float32
        ends.append(found - start)
    gap = float((ends[0] - ends[1]).norm() / ends[0].norm())
    assert 0 < gap < 0.03


def test_losses_are_computed_in_float32_outside_autocast():
    examples, teacher = task(19, dtype=torch.float32)
    values = settings("kd", 2, precision="amp-bfloat16")
    trainer = Trainer(network(dtype=torch.float32), examples, values, teacher=teacher)
    index = torch.arange(6)
    part = trainer.parts.evaluate(index, torch.zeros(6, dtype=torch.int64), 0)
    assert part.losses[0].dtype == part.logits.dtype == torch.float32
    assert torch.equal(part.logits, part.logits.bfloat16().float())  # the network ran in bfloat16


@pytest.mark.parametrize("method", ["kd", *TWO_PASSES])
def test_a_loss_scale_changes_no_bit(method):
    """A power of two cancels exactly while nothing overflows."""
    examples, teacher = task(20, dtype=torch.float32)
    ends = []
    for scale in (None, LossScale(1024.0)):
        model = network(dtype=torch.float32)
        values = settings(method, 5, precision="float32", micro_batch=7)
        trainer = Trainer(model, examples, values, teacher=teacher)
        trainer.scale = scale
        for k in range(5):
            trainer.step(k)
        ends.append(weights(model))
    assert torch.equal(*ends)
    assert scale.clean == 5


@pytest.mark.parametrize("method", ["kd", *TWO_PASSES])
def test_an_overflow_is_skipped_and_halves_the_scale(method):
    examples, teacher = task(20, dtype=torch.float32)
    model = network(dtype=torch.float32)
    trainer = Trainer(model, examples, settings(method, 3, precision="float32"), teacher=teacher)
    trainer.scale = LossScale(2.0**127)
    model[3].weight.data *= 100  # gradients of the first layer beyond 2, times 2^127
    before = trainer.state()
    found = trainer.step(0)
    assert found["gradient_norm"] is None
    assert math.isfinite(found["loss"])
    assert trainer.scale == LossScale(2.0**126, 0)
    assert torch.equal(before["student.0.weight"], model[0].weight)
    trainer.scale.value = 2.0**-30
    assert trainer.step(1)["gradient_norm"] > 0


def test_the_loss_scale_is_that_of_the_library():
    library = torch.amp.GradScaler("cpu")
    own = LossScale(65536.0)
    weight = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.SGD([weight], 0.0)
    for step in range(2300):
        finite = step not in (3, 100, 101)
        weight.grad = torch.full((1,), 1.0 if finite else math.inf)
        library.scale(torch.ones(1))
        library.step(optimiser)
        library.update()
        own.update(finite)
    assert own.value == library.get_scale() == 65536 / 8 * 2
    assert own.clean == library.state_dict()["_growth_tracker"]


def test_float32_means_float32_on_a_gpu():
    """Flags of this process, which need no GPU; nothing else may change, and all comes back."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32
    with exact_float32(torch.device("cuda")):
        assert (cudnn.allow_tf32, matmul.allow_tf32) == (False, False)
        assert (cudnn.enabled, cudnn.benchmark) == before[:2]
    assert (cudnn.enabled, cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32) == before
    assert cudnn.allow_tf32  # the library's default, which the block must not leave


def test_wrong_arguments_are_named():
    examples, teacher = task(21)
    cases = [
        ("kd", {"teacher": None}, "teacher must be given for 'kd'"),
        ("kd", {"teacher": teacher[:, :-1]}, r"teacher must have shape \(1, 60, K\)"),
        ("kd", {"teacher": teacher[..., :3]}, "labels must lie in"),
        ("kd", {"teacher": teacher * math.nan}, "teacher must be finite"),
        ("dhkd", {"teacher": teacher.masked_fill(teacher > 2, -math.inf)}, "teacher must be"),
        ("dp-u", {"teacher": teacher, "frozen": teacher[:, 1:]}, "frozen must have shape"),
        ("kd", {"teacher": teacher, "auxiliary": nn.Linear(8, 4)}, "auxiliary must be None"),
    ]
    for method, resources, message in cases:
        with pytest.raises(ValueError, match=message):
            Trainer(network(), examples, settings(method), **resources)
    wide = torch.cat([teacher, teacher], -1)
    with pytest.raises(ValueError, match="teacher must have the student's 4 classes, got 8"):
        Trainer(network(), examples, settings("kd"), teacher=wide).step(0)
    with pytest.raises(ValueError, match="precision"):
        Trainer(network(), examples, settings("ce", precision="amp-float16"))
    with pytest.raises(ValueError, match="snapshots"):
        train_student(network(), examples, settings("ce"), snapshots=[13])


def test_parameters_without_a_gradient_are_left_alone():
    """Frozen ones, and ones that no loss reaches: no weight decay, whatever the method."""
    for method in ("ce", *TWO_PASSES):
        examples, teacher = task(22)
        model = network()
        model[1] = nn.Sequential(nn.Tanh())
        model[1].unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
        model[0].weight.requires_grad_(False)
        before = model[0].weight.clone()
        trained(method, model, examples, teacher, iterations=3, weight_decay=0.5)
        assert torch.equal(model[1].unused, torch.ones(3, dtype=torch.float64)), method
        assert torch.equal(model[0].weight, before)


def test_a_run_measures_logs_observes_and_keeps(tmp_path):
    examples, teacher = task(23)
    seen = []

    def progress(steps, label):
        seen.append((len(steps), label))
        yield from steps

    model = network(dropout=0.1)
    values = settings("tpkd", 12, observe_every=(0, 1, 8), log_every=5)
    result = train_student(
        model,
        examples,
        values,
        teacher=teacher,
        test=examples,
        test_teacher=teacher,
        observation=examples,
        observation_teacher=teacher[0],
        snapshots=(0, 8, 12),
        progress=progress,
        folder=tmp_path,
    )
    assert seen == [(12, "tpkd, seed 42")]
    assert [row["iteration"] for row in result.log] == [0, 1, 5, 8, 10, 11, 12]
    assert [row["iteration"] for row in result.log if "observation" in row] == [0, 1, 8, 12]
    assert [row["iteration"] for row in result.log if "loss" in row] == [0, 5, 10, 11]
    assert result.log[-1]["observation"] == result.measures
    assert result.log[4]["epoch"] == 3
    torch.testing.assert_close(result.test_logits, predict(model, examples))
    accuracy = float((result.test_logits.argmax(1) == examples.labels).double().mean())
    assert result.measures["accuracy"] == pytest.approx(accuracy)
    assert model.training
    assert sorted(result.snapshots) == [0, 8, 12]
    again = network(dropout=0.1)
    assert torch.equal(result.snapshots[0]["student.0.weight"], again[0].weight)
    other = Trainer(network(9, dropout=0.1), examples, values, teacher=teacher)
    other.load_state(result.snapshots[8])
    for k in range(8, 12):
        other.step(k)
    assert torch.equal(weights(other.student), weights(model))


def test_the_teacher_changes_nothing_of_ce_but_its_log():
    examples, teacher = task(24)
    bare = train_student(network(), examples, settings("ce"))
    told = train_student(network(), examples, settings("ce"), teacher=teacher)
    assert bare.weights_digest == told.weights_digest
    assert "conditional_kl" not in bare.log[0]
    assert told.log[0]["conditional_kl"] > 0


def test_a_student_left_in_evaluation_mode_is_trained_with_dropout():
    examples, _ = task(25)
    ends = []
    for mode in (True, False):
        model = network(dropout=0.5)
        trainer = Trainer(model, examples, settings("ce", 2))
        trainer.step(0)
        model.train(mode)
        trainer.step(1)
        ends.append(weights(model))
    assert torch.equal(*ends)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", OBJECTIVES)
def test_every_method_learns_on_every_device(method, device):
    examples, teacher = task(26, dtype=torch.float32)
    values = TrainingSettings(method, 60, 42, 0.1, batch_size=20, micro_batch=10)
    model = network(dtype=torch.float32)
    before = predict(model, examples)
    result = train_student(model, examples, values, teacher=teacher, test=examples, device=device)
    labels = examples.labels
    start = float((before.argmax(1) == labels).double().mean())
    assert result.measures["accuracy"] > start + 0.2
    assert next(model.parameters()).device.type == device


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("precision", ["float32", "amp-float16", "amp-bfloat16"])
@pytest.mark.parametrize("method", ["tpkd", *TWO_PASSES])
def test_mixed_precision_on_cuda(method, precision):
    examples, teacher = task(27, dtype=torch.float32)
    ends = []
    for device, kind in (("cpu", "float32"), ("cuda", precision)):
        model = network(dtype=torch.float32)
        values = settings(method, 10, precision=kind, micro_batch=10)
        trainer = Trainer(model, examples, values, teacher=teacher, device=device)
        for k in range(10):
            trainer.step(k)
        ends.append(weights(model).cpu())
    assert (ends[0] - ends[1]).norm() < 0.05 * ends[0].norm()
