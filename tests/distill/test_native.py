"""States of a run and steps from them: against the plain optimiser and an unbroken run."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from lib.distill import objective_loss
from lib.distill.certificates import certify_batch
from lib.distill.examples import TensorExamples
from lib.distill.native import continue_run, native_pairs
from lib.distill.order import batch_at
from lib.distill.settings import TrainingSettings
from lib.distill.states import RunState, fixed_batches, head_problem, outputs, split_pool
from lib.distill.training import train_student
from lib.models.perceptron import perceptron
from lib.tpkd import conditional_kl

N, K, STEPS = 40, 4, 6
METHODS = ("ce", "compensation-only", "tpkd")


def student(seed=0, dropout=0.0):
    generator = torch.Generator().manual_seed(seed)
    options = {"dropout": dropout, "dtype": torch.float64}
    return perceptron(5, (12,), K, "tanh", generator=generator, **options)


@cache
def run(dropout=0.0, iterations=STEPS, snapshot=STEPS, **changes):
    """A short run on labels, and its state after some steps."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(N, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(K, (N,), generator=generator)
    teacher = 2 * torch.randn(1, N, K, generator=generator)
    examples = TensorExamples(values, labels)
    known = {"batch_size": 8, "micro_batch": 4, "precision": "float64"}
    settings = TrainingSettings("ce", iterations, 3, 0.1, **known | changes)
    network = student(dropout=dropout)
    found = train_student(network, examples, settings, teacher=teacher, snapshots=(snapshot,))
    saved = found.snapshots[snapshot]
    return RunState(student(9, dropout), saved, settings, snapshot, examples, teacher), network


def all_in_order():
    return torch.arange(N).reshape(5, 8), torch.zeros(5, 8).long()


def test_a_state_is_the_network_of_the_run():
    state, network = run()
    ours = state.network()
    assert not ours.training
    for name, value in network.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
    assert not torch.equal(state.student.head.weight, network.head.weight)


@pytest.mark.parametrize("method", METHODS)
def test_pairs_are_steps_of_the_plain_optimiser(method):
    """SGD of torch, with the momentum of the run, on the gradient of the whole batch."""
    state, _ = run()
    index, view = all_in_order()
    found = native_pairs(state, index, view, (method,))
    for b in range(5):
        network = state.network()
        parameters = list(network.parameters())
        optimiser = torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=1e-3)
        for place, parameter in enumerate(parameters):
            key = f"optimiser.{place}.momentum_buffer"
            optimiser.state[parameter]["momentum_buffer"] = state.saved[key].clone()
        x, y = state.examples.values[0, index[b]], state.examples.labels[index[b]]
        t = state.teacher[0, index[b]].double()
        before = conditional_kl(network(x), t, y).mean().detach()
        objective_loss(method, network(x), t, y).backward()
        optimiser.step()
        after = conditional_kl(network(x), t, y).mean().detach()
        assert float(found.start[b]) == pytest.approx(float(before), rel=1e-12)
        assert float(found.ends[method][b]) == pytest.approx(float(after), rel=1e-10)


def test_the_gain_of_a_small_step_is_the_slope_of_the_certificate():
    """Both arms share momentum and decay, so that they differ by the conditional increment."""
    state, _ = run()
    index, view = all_in_order()
    rate = 1e-5
    gain = native_pairs(state, index, view, learning_rate=rate).gain
    network = state.network()
    for b in range(5):
        rows = index[b]
        inputs = state.examples.inputs(rows, view[b])
        labels = state.examples.labels[rows]
        slope = certify_batch(network, inputs, state.teacher[0, rows], labels).conditional.product
        assert float(gain[b]) == pytest.approx(rate * slope / 2, rel=1e-2)


def test_every_pair_starts_afresh_and_draws_the_same_dropout():
    state, _ = run(dropout=0.5)
    saved = {name: tensor.clone() for name, tensor in state.saved.items()}
    index, view = all_in_order()
    trainer = state.trainer("ce")
    trainer.step_on(index[0], view[0], state.iteration)
    logits = outputs(trainer.student, state.examples, index[0], view[0])
    error = conditional_kl(logits, state.teacher[0, index[0]], state.examples.labels[index[0]])
    ends = native_pairs(state, index, view, ("ce",)).ends["ce"]
    assert float(ends[0]) == pytest.approx(float(error.mean()), rel=1e-12)
    first = native_pairs(state, index, view, ("compensation-only", "tpkd"))
    again = native_pairs(state, index.flip(0), view, ("tpkd", "ce", "compensation-only"))
    for name in ("tpkd", "compensation-only"):
        assert torch.equal(first.ends[name], again.ends[name].flip(0))
    assert torch.equal(first.gain, first.ends["compensation-only"] - first.ends["tpkd"])
    assert all(torch.equal(tensor, saved[name]) for name, tensor in state.saved.items())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_continuation_on_the_runs_own_batches_is_the_longer_run(dropout):
    state, _ = run(dropout, iterations=STEPS, snapshot=2)
    _, whole = run(dropout, iterations=STEPS)
    batches = [batch_at(N, 1, 8, k, 3) for k in range(2, STEPS)]
    index = torch.stack([batch.index for batch in batches])
    observed = torch.arange(N)
    unseen = observed[~torch.isin(observed, index)]
    found = continue_run(state, ("ce",), index, torch.zeros_like(index), unseen, at=(0, 4))
    logits = whole.eval()(state.examples.values[0, unseen]).detach()
    error = conditional_kl(logits, state.teacher[0, unseen], state.examples.labels[unseen]).mean()
    assert found.iterations == (0, 4)
    assert found.conditional_kl("ce")[1] == pytest.approx(float(error), rel=1e-12)
    start = state.network()(state.examples.values[0, unseen]).detach()
    error = conditional_kl(start, state.teacher[0, unseen], state.examples.labels[unseen]).mean()
    assert found.conditional_kl("ce")[0] == pytest.approx(float(error), rel=1e-12)


def test_methods_go_on_without_each_other():
    state, _ = run()
    observed, pool = split_pool(N, 10, seed=4)
    index, view = fixed_batches(pool, 1, 8, 5, seed=5)
    at = (5, 1, 0, 3)
    whole = continue_run(state, METHODS, index, view, observed, at)
    assert whole.iterations == (0, 1, 3, 5)
    for name in METHODS:
        alone = continue_run(state, (name,), index, view, observed, (0, 1, 3, 5))
        assert alone.measures[name] == whole.measures[name]
        assert len(whole.conditional_kl(name)) == 4
        truth = state.teacher[0, observed], state.examples.labels[observed]
        error = conditional_kl(whole.logits[name], *truth).mean()
        assert whole.conditional_kl(name)[-1] == pytest.approx(float(error), rel=1e-12)
    starts = {whole.conditional_kl(name)[0] for name in METHODS}
    ends = {whole.conditional_kl(name)[-1] for name in METHODS}
    assert (len(starts), len(ends)) == (1, 3)


def test_the_rate_is_the_schedules_or_a_constant():
    changes = {"schedule": "warmup-linear", "warmup": 2}
    state, _ = run(iterations=STEPS, snapshot=3, **changes)
    assert state.trainer("tpkd").step(3)["learning_rate"] == pytest.approx(0.1 * (1 - 3 / STEPS))
    trainer = state.trainer("tpkd", steps=100, learning_rate=0.02)
    assert trainer.step(90)["learning_rate"] == 0.02


def test_head_and_features_give_the_logits():
    state, network = run()
    index, view = all_in_order()
    X, A = head_problem(network, state.examples, index, view)
    logits = network(state.examples.values[0])[index]
    assert X.shape == (5, 8, 13)
    torch.testing.assert_close(X @ A, logits.detach(), rtol=0, atol=1e-14)
    torch.testing.assert_close(outputs(network, state.examples, index, view), logits.detach())
    plain = nn.Sequential(nn.Tanh(), nn.Linear(5, K, bias=False)).double()
    X, A = head_problem(plain, state.examples, index[0], view[0])
    expected = plain(state.examples.values[0, index[0]]).detach()
    torch.testing.assert_close(X @ A, expected, rtol=0, atol=1e-14)


def test_many_examples_are_the_same_as_few_at_a_time(monkeypatch):
    state, network = run()
    index, view = all_in_order()
    whole = outputs(network, state.examples, index, view)
    monkeypatch.setattr("lib.distill.states._AT_ONCE", 7)
    torch.testing.assert_close(outputs(network, state.examples, index, view), whole)


def test_batches_use_every_example_before_one_comes_again():
    pool = torch.tensor([3, 5, 8, 13, 21, 34])
    index, view = fixed_batches(pool, 3, 4, 3, seed=0)
    assert index.shape == view.shape == (3, 4)
    assert torch.equal(index.flatten().bincount(minlength=35)[pool], torch.full((6,), 2))
    assert int(view.max()) <= 2
    again, _ = fixed_batches(pool, 3, 4, 3, seed=0)
    other, _ = fixed_batches(pool, 3, 4, 3, seed=1)
    assert torch.equal(index, again)
    assert not torch.equal(index, other)


def test_parts_of_a_pool_are_disjoint_and_whole():
    first, second = split_pool(20, 7, seed=2)
    assert torch.equal(torch.cat([first, second]).sort().values, torch.arange(20))
    assert len(first) == 7
    assert len(split_pool(5, 0, seed=0)[0]) == 0


def test_bad_input_is_refused_by_name():
    state, _ = run()
    index, view = all_in_order()
    with pytest.raises(ValueError, match="count"):
        fixed_batches(torch.arange(4), 1, 2, 0, 0)
    for first in (6, 2.5):
        with pytest.raises(ValueError, match=r"first must be an integer in \[0, 5\]"):
            split_pool(5, first, 0)
    for rows in (index[:0], index[0]):
        with pytest.raises(ValueError, match=r"index must have shape \(B, N\) with B >= 1"):
            native_pairs(state, rows, rows)
    with pytest.raises(ValueError, match=r"index must lie in \[0, 40\), .* to 99"):
        continue_run(state, ("ce",), index[:4], view[:4], torch.tensor([99]), (1,))
    with pytest.raises(ValueError, match=r"at must hold numbers of steps in \[0, 4\]"):
        continue_run(state, ("ce",), index[:4], view[:4], torch.tensor([39]), (0.5,))
    with pytest.raises(ValueError, match="disjoint from the batches, got 2"):
        continue_run(state, ("ce",), index, view, torch.arange(2), (0,))
    with pytest.raises(ValueError, match=r"in \[0, 4\]"):
        continue_run(state, ("ce",), index[:4], view[:4], torch.tensor([39]), (5,))
    with pytest.raises(ValueError, match="student"):
        head_problem(nn.Sequential(nn.Tanh()), state.examples, index, view)
