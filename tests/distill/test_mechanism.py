"""Table 1 and Table 2: against literal loops, automatic differentiation, and a QP solver."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from lib.distill import mechanism
from lib.distill.mechanism import HEAD_STEPS, blocking_summary, exact_head_steps, repeats_agree
from lib.tpkd import conditional_kl, margins, potential, retention_bound
from tests.tpkd.states import DEVICES, LABEL, STUDENT, TEACHER, random_states

ETA = 0.01


def problem(seed, examples, dimension, classes, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    double = {"generator": generator, "dtype": torch.float64}
    features = torch.randn(examples, dimension, **double)
    features[:, -1] = 1.0  # the bias
    head = scale * torch.randn(dimension, classes, **double) / dimension**0.5
    _, teacher, labels = random_states(seed, examples, classes)
    return features, head, teacher, labels


def solved(features, head, teacher, labels, step_size):
    """Start and endpoints of the five rules from gradients, a QP solver and their definitions."""
    start = (features @ head).requires_grad_()
    loss = torch.nn.functional.cross_entropy(start, labels, reduction="sum")
    (h,) = torch.autograd.grad(loss, start)
    (u,) = torch.autograd.grad(conditional_kl(start, teacher, labels).sum(), start)
    d, push = torch.zeros_like(u), torch.full_like(u, 1 / (u.shape[-1] - 1))
    for i, y in enumerate(labels.tolist()):
        rows = np.delete(np.eye(u.shape[-1]), y, 0)
        rows[:, y] = -1.0  # x_j - x_y >= 0
        multipliers, _ = nnls(rows.T, -u[i].numpy())
        d[i] = u[i] + torch.as_tensor(rows.T @ multipliers)
        push[i, y] = -1.0
    taken = -d.gather(-1, labels[:, None])
    start = start.detach()
    directions = {
        "ce": h,
        "compensation-only": h + taken * push / 2,
        "tpkd-no-projection": h + u / 2,
        "tpkd": h + d / 2,
        "ce-plus-kl": h + start.softmax(-1) - teacher.softmax(-1),
    }
    return start, {rule: start - step_size * v for rule, v in directions.items()}, h, u, d


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_blocking_against_a_loop_over_probabilities(seed):
    student, teacher, labels = random_states(seed, 400, 4)
    student[:200].scatter_add_(1, labels[:200, None], torch.full((200, 1), 9.0).double())
    p, t = student.softmax(-1).numpy(), teacher.softmax(-1).numpy()
    kls, costs = [], []
    for one, other, y in zip(p, t, labels.tolist(), strict=True):
        a, b = np.delete(one, y), np.delete(other, y)
        if (a <= b).all():
            r, q = a / a.sum(), b / b.sum()
            kls.append((q * np.log(q / r)).sum())
            costs.append(np.log(q / r).max())
    found = blocking_summary(student, teacher, labels)
    assert 0 < found.blocked == len(kls) < found.examples == 400
    assert found.share == len(kls) / 400
    assert found.conditional_kl == pytest.approx(np.mean(kls), rel=1e-9)
    assert found.cost == pytest.approx(np.mean(costs), rel=1e-9)
    assert found.smallest_kl == pytest.approx(min(kls), rel=1e-7)


def test_blocking_of_the_worked_example_and_of_views():
    """35/18 is the price of Figure 1; a second view, the teacher itself, is blocked for free."""
    views = torch.stack([STUDENT, TEACHER])[:, None]
    found = blocking_summary(views, TEACHER, LABEL)
    price = math.log(35 / 18)
    assert (found.examples, found.blocked) == (2, 2)
    assert found.cost == pytest.approx(price / 2, rel=1e-12)
    assert found.smallest_kl == pytest.approx(0.0, abs=1e-15)


def test_blocking_where_nothing_is_blocked():
    found = blocking_summary(TEACHER, STUDENT, LABEL)
    assert found.blocked == found.share == 0
    assert all(math.isnan(x) for x in (found.conditional_kl, found.cost, found.smallest_kl))
    with pytest.raises(ValueError, match="at least one example"):
        blocking_summary(torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0).long())


def test_blocking_is_decided_where_probabilities_round_to_one():
    """The student's wrong classes have 1e-30 and less: only log-probabilities tell them apart."""
    student = torch.tensor([70.0, 0.0, 1.0], dtype=torch.float64)
    teacher = torch.tensor([69.5, 0.0, 1.0], dtype=torch.float64)
    assert blocking_summary(student, teacher, LABEL).blocked == 1
    assert blocking_summary(teacher, student, LABEL).blocked == 0


@pytest.mark.parametrize(("seed", "classes"), [(0, 3), (1, 4), (2, 10), (3, 25)])
def test_head_steps_against_gradients_and_a_solver(seed, classes):
    arguments = problem(seed, 12, 20, classes)
    found = exact_head_steps(*arguments, ETA)
    features, head, teacher, labels = arguments
    start, ends, h, u, d = solved(*arguments, ETA)
    lowest = margins(ends["ce"], labels)
    for rule in HEAD_STEPS:
        error = conditional_kl(ends[rule], teacher, labels)
        torch.testing.assert_close(found.kl[rule], error, rtol=0, atol=1e-12)
        ce = torch.nn.functional.cross_entropy(ends[rule], labels, reduction="none")
        torch.testing.assert_close(found.label_loss[rule], ce, rtol=0, atol=1e-12)
        gap = (margins(ends[rule], labels) - lowest).masked_fill(
            torch.nn.functional.one_hot(labels, classes).bool(), torch.inf
        )
        torch.testing.assert_close(found.margin_change[rule], gap.amin(-1), rtol=0, atol=1e-12)
    kl = {rule: conditional_kl(end, teacher, labels) for rule, end in ends.items()}
    before = conditional_kl(start, teacher, labels)
    for ours, theirs in (
        (found.start_kl, before),
        (found.gain, kl["ce"] - kl["tpkd"]),
        (found.kl_change, kl["tpkd"] - before),
        (found.compensation_gap, kl["compensation-only"] - kl["ce"]),
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    v, joint, gamma = h + d / 2, 4 * h + u, classes / (2 * (classes - 1))
    cosine = torch.nn.functional.cosine_similarity(v, joint, dim=-1)
    residual = (joint * v).sum(-1) - (v**2).sum(-1) - gamma * (joint**2).sum(-1) / 4
    change = potential(ends["tpkd"], teacher, labels) - potential(start, teacher, labels)
    promised = ETA * gamma / 4 * (joint**2).sum(-1) + ETA * (1 - 1.25 * ETA) * (v**2).sum(-1)
    for ours, theirs in (
        (found.retention, (u * d).sum(-1) / (u**2).sum(-1)),
        (found.cosine, cosine),
        (found.residual, residual),
        (found.potential_change, change),
        (found.descent_slack, -change - promised),
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)
    assert int(found.rank) == 12
    assert float(found.condition) == pytest.approx(float(torch.linalg.cond(features)), rel=1e-9)
    torch.testing.assert_close(features @ head, start)


@given(
    seed=st.integers(0, 2**32),
    classes=st.integers(3, 30),
    scale=st.floats(0.0, 20.0),
    step=st.floats(1e-3, 0.8),
)
def test_what_the_paper_promises_at_any_state(seed, classes, scale, step):
    found = exact_head_steps(*problem(seed, 6, 16, classes, scale), step)
    rounding = 1e-12 * (1 + scale)
    assert float(found.margin_change["tpkd"].min()) >= -rounding
    assert float(found.margin_change["compensation-only"].min()) >= -rounding
    assert float(found.compensation_gap.abs().max()) <= 1e-11 * (1 + scale)
    assert float(found.retention.min() - retention_bound(classes)) >= -1e-12
    assert float(found.cosine.min() - retention_bound(classes).sqrt()) >= -1e-12
    assert float(found.residual.min()) >= -1e-12
    assert float(found.descent_slack.min()) >= -1e-11 * (1 + scale)
    assert bool(found.loses_margin("tpkd-no-projection").all())
    assert float(found.execution_error.max()) <= 1e-11 * (1 + scale)


def test_three_classes_retain_three_quarters_and_no_signal_retains_everything():
    features, head, teacher, labels = problem(5, 4, 9, 3)
    assert exact_head_steps(features, head, teacher, labels).retention == pytest.approx([0.75] * 4)
    same = exact_head_steps(features, head, features @ head, labels)
    assert same.retention.tolist() == [1.0] * 4
    for rule in ("tpkd", "tpkd-no-projection", "compensation-only", "ce-plus-kl"):
        torch.testing.assert_close(same.kl[rule], same.kl["ce"], rtol=0, atol=1e-14)
        assert not bool(same.loses_margin(rule).any())


def test_no_step_changes_nothing():
    found = exact_head_steps(*problem(6, 5, 9, 4), 0.0)
    for change in (found.gain, found.kl_change, found.potential_change, found.compensation_gap):
        assert not bool(change.any())


@pytest.mark.parametrize("device", DEVICES)
def test_batches_at_once_are_batches_one_by_one(device):
    parts = [problem(seed, 8, 12, 5) for seed in range(3)]
    features, _, teacher, labels = (torch.stack(x).to(device) for x in zip(*parts, strict=True))
    head = parts[0][1].to(device)
    whole = exact_head_steps(features, head, teacher, labels, ETA)
    for k in range(3):
        alone = exact_head_steps(features[k], head, teacher[k], labels[k], ETA)
        for rule in HEAD_STEPS:
            torch.testing.assert_close(whole.kl[rule][k], alone.kl[rule], rtol=0, atol=1e-12)
        torch.testing.assert_close(whole.gain[k], alone.gain, rtol=0, atol=1e-12)
        assert whole.rank[k] == alone.rank == 8
    assert repeats_agree(features, head, teacher, labels, ETA)


def test_repeats_that_differ_in_the_last_bit_are_noticed(monkeypatch):
    arguments, calls = problem(7, 4, 6, 3), itertools.count()
    exact = mechanism.exact_head_step

    def noisy(*given):
        head = exact(*given)
        return head if next(calls) < 5 else torch.nextafter(head, head + 1)

    monkeypatch.setattr(mechanism, "exact_head_step", noisy)
    assert not repeats_agree(*arguments)
    assert repeats_agree(*arguments)  # the same noise each time


def test_bad_input_is_refused_by_name():
    features, head, teacher, labels = problem(8, 4, 6, 3)
    twice = features.clone()
    twice[1] = twice[0]
    with pytest.raises(ValueError, match="full row rank 4"):
        exact_head_steps(twice, head, teacher, labels)
    with pytest.raises(ValueError, match="labels"):
        exact_head_steps(features, head, teacher, labels + 3)
    with pytest.raises(ValueError, match="step_size"):
        exact_head_steps(features, head, teacher, labels, -1.0)
    with pytest.raises(ValueError, match="repeats"):
        repeats_agree(features, head, teacher, labels, repeats=0)
