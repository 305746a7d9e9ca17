"""Repeated output steps: Theorem 4 at every step, the rates, the limits, and all the rules."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from lib.tpkd import (
    RULES,
    conditional_kl,
    confidence_direction,
    directions,
    project_onto_safe_cone,
    retention_bound,
    run_output_steps,
    update_direction,
    weighted_descent_constant,
    weighted_step_limit,
)
from tests.tpkd.states import random_states


def formulas(student, teacher, labels, weight):
    """Every rule, written out."""
    found = directions(student, teacher, labels)
    h, u, d = found.label, found.conditional, found.corrected
    gap = student.softmax(-1) - teacher.softmax(-1)
    push = found.compensation.unsqueeze(-1) * confidence_direction(labels, student.shape[-1])
    return {
        "ce": h,
        "tpkd": h + weight * d,
        "compensation-only": h + weight * push,
        "tpkd-no-label": weight * d,
        "tpkd-no-projection": h + weight * u,
        "tpkd-full-kl": h + weight * project_onto_safe_cone(gap, labels),
        "ce-plus-kl": h + gap,
    }


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("weight", [0.5, 1.5])
def test_rules_are_the_tables_directions(classes, weight):
    state = random_states(0, 6, classes)
    expected = formulas(*state, weight)
    assert set(expected) == set(RULES)
    for rule, direction in expected.items():
        torch.testing.assert_close(update_direction(rule, *state, weight), direction)
        path = run_output_steps(*state, 0.3, 1, rule, weight)
        torch.testing.assert_close(path.logits[1], state[0] - 0.3 * direction)
        torch.testing.assert_close(path.update_norm[0], direction.square().sum(-1))


def test_plain_rules_are_gradient_descent():
    """Of cross-entropy, of CE + KL(t || p), and of CE + w L_cond."""
    student, teacher, labels = random_states(1, 4, 5)
    objectives = {
        "ce": lambda z: cross_entropy(z, labels, reduction="sum"),
        "ce-plus-kl": lambda z: (
            cross_entropy(z, labels, reduction="sum")
            + cross_entropy(z, teacher.softmax(-1), reduction="sum")
        ),
        "tpkd-no-projection": lambda z: (
            cross_entropy(z, labels, reduction="sum")
            + 0.5 * conditional_kl(z, teacher, labels).sum()
        ),
    }
    for rule, objective in objectives.items():
        z = student.clone()
        for _ in range(20):
            z.requires_grad_()
            (slope,) = torch.autograd.grad(objective(z), z)
            z = z.detach() - 0.7 * slope
        path = run_output_steps(student, teacher, labels, 0.7, 20, rule, record=[20])
        torch.testing.assert_close(path.logits[-1], z, rtol=1e-10, atol=1e-10)


def test_compensation_only_ends_where_cross_entropy_does():
    """A step along a_0 leaves the conditional distribution alone."""
    state = random_states(2, 8, 10)
    ends = [run_output_steps(*state, 0.5, 1, rule) for rule in ("ce", "compensation-only")]
    torch.testing.assert_close(ends[0].conditional_kl, ends[1].conditional_kl)
    assert bool((ends[1].doubt[1] <= ends[0].doubt[1]).all())


def test_blocked_states_give_full_imitation_nothing():
    """Table 5's safe full KL is cross-entropy where every p_j <= t_j."""
    student = torch.tensor([0.90, 0.07, 0.03], dtype=torch.float64).log()
    teacher = torch.tensor([0.40, 0.25, 0.35], dtype=torch.float64).log()
    label = torch.tensor(0)
    label_step = update_direction("ce", student, teacher, label)
    safe_step = update_direction("tpkd-full-kl", student, teacher, label)
    torch.testing.assert_close(safe_step, label_step, rtol=0, atol=1e-16)
    assert float((update_direction("tpkd", student, teacher, label) - label_step).norm()) > 0.1


@pytest.mark.parametrize("classes", [3, 4, 10, 100])
@pytest.mark.parametrize("step", [0.8, 0.1])
def test_theorem_4_at_every_step(classes, step):
    student, teacher, labels = random_states(3, 10, classes, 2.0)
    path = run_output_steps(student, teacher, labels, step, 200)
    gamma, value = retention_bound(classes), path.potential
    promised = step * gamma / 4 * path.joint_norm + step * (1 - 1.25 * step) * path.update_norm
    assert bool((value[1:] <= value[:-1] - promised[:-1] + 1e-13 * value[:-1]).all())
    limit = 4 * value[0] / (step * gamma)
    assert bool((path.joint_sum <= limit * (1 + 1e-12)).all())
    both = path.label_sum + path.conditional_sum / 12
    assert bool((both <= 5 / 8 * limit * (1 + 1e-12)).all())
    assert bool((8 * path.label_norm <= path.joint_norm * (1 + 1e-12)).all())
    assert bool((path.conditional_norm <= 6 * path.joint_norm * (1 + 1e-12)).all())


@pytest.mark.parametrize("classes", [3, 4, 10])
def test_both_objectives_are_completed(classes):
    student, teacher, labels = random_states(4, 6, classes, 1.0)
    path = run_output_steps(student, teacher, labels, 0.8, 1500, record=[0, 15, 150, 1500])
    assert path.step.tolist() == [0, 15, 150, 1500]
    for quantity in (path.doubt, path.conditional_kl, path.update_norm):
        assert bool((quantity[2:] < quantity[1:-1]).all())
        assert bool((quantity[-1] < 0.1 * quantity[0]).all())
    assert float(path.doubt[-1].max()) < 1e-3
    assert float(path.conditional_kl[-1].max()) < 1e-4
    assert float(path.update_norm[-1].max()) < 1e-6


@pytest.mark.parametrize("classes", [3, 10])
def test_cross_entropy_forgets_the_teacher(classes):
    """Appendix C.3: r goes to the uniform vector, slowly, for the label's signal dies out."""
    student, teacher, labels = random_states(5, 4, classes, 1.0)
    path = run_output_steps(student, teacher, labels, 1.0, 1500, "ce", record=[0, 15, 150, 1500])
    assert bool((path.uniform_kl[1:] < path.uniform_kl[:-1]).all())
    assert float(path.uniform_kl[-1].max()) < 0.3 * float(path.uniform_kl[0].max())
    assert float(path.doubt[-1].max()) < 1e-3
    assert bool((path.conditional_kl[-1] > 1e-3).all())


def test_general_weights_complete_both_too():
    """Appendix C.5 with w = 1, beta = 2, at the largest step it allows."""
    state = random_states(6, 5, 4, 1.0)
    constant = weighted_descent_constant(1.0, 2.0, 4)
    step = float(weighted_step_limit(1.0, 2.0, 4))
    path = run_output_steps(*state, step, 400, weight=2.0)
    value = path.label_loss + path.conditional_kl
    promised = step * constant / 2 * (path.label_norm + path.conditional_norm)
    assert bool((value[1:] <= value[:-1] - promised[:-1] + 1e-13).all())
    sums = path.label_sum + path.conditional_sum
    assert bool((sums <= 2 * value[0] / (step * constant) * (1 + 1e-12)).all())
    assert bool((path.conditional_kl[-1] < 0.1 * path.conditional_kl[0]).all())
    assert bool((path.doubt[-1] < 0.1).all())


def test_records_sums_and_shapes():
    student, teacher, labels = random_states(7, 6, 4)
    batch = student.reshape(2, 3, 4), teacher.reshape(2, 3, 4), labels.reshape(2, 3)
    path = run_output_steps(*batch, 0.5, 10)
    found = directions(*batch)
    joint = 4 * found.label + found.conditional
    torch.testing.assert_close(path.label_norm[0], found.label.square().sum(-1))
    torch.testing.assert_close(path.conditional_norm[0], found.conditional.square().sum(-1))
    torch.testing.assert_close(path.joint_norm[0], joint.square().sum(-1))
    assert path.logits.shape == (11, 2, 3, 4)
    assert path.doubt.shape == path.joint_sum.shape == (11, 2, 3)
    for norm, total in (
        (path.label_norm, path.label_sum),
        (path.conditional_norm, path.conditional_sum),
        (path.joint_norm, path.joint_sum),
    ):
        assert bool((total[0] == 0).all())
        torch.testing.assert_close(total[1:], norm.cumsum(0)[:-1])
    some = run_output_steps(*batch, 0.5, 10, record=[7, 3])
    assert some.step.tolist() == [3, 7]
    torch.testing.assert_close(some.joint_sum, path.joint_sum[[3, 7]])
    torch.testing.assert_close(some.logits, path.logits[[3, 7]])
    still = run_output_steps(*batch, 0.5, 0)
    assert torch.equal(still.logits[0], batch[0])
    torch.testing.assert_close(
        still.doubt[0], 1 - student.softmax(-1).gather(-1, labels[:, None]).reshape(2, 3)
    )


def test_a_teacher_with_zeros_is_learned_too():
    """Theorem 4 asks for positive q; its proof does not need it."""
    teacher = torch.tensor([0.0, -math.inf, 1.0, 0.0], dtype=torch.float64)
    path = run_output_steps(torch.zeros(4), teacher, torch.tensor(0), 0.8, 1500, record=[0, 1500])
    assert bool(torch.isfinite(path.potential).all())
    assert float(path.conditional_kl[-1]) < 0.01 < float(path.conditional_kl[0])


@pytest.mark.parametrize("rule", RULES)
def test_a_weight_may_have_more_dimensions_than_the_outputs(rule):
    z, t, labels = random_states(3, 4, 5)
    weights = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64).unsqueeze(-1)
    together = run_output_steps(z, t, labels, 0.8, 3, rule, weights)
    assert together.logits.shape == (4, 3, 4, 5)
    for place, weight in enumerate((0.1, 0.5, 2.0)):
        alone = run_output_steps(z, t, labels, 0.8, 3, rule, weight)
        torch.testing.assert_close(together.logits[:, place], alone.logits)
        torch.testing.assert_close(together.joint_sum[:, place], alone.joint_sum)


@pytest.mark.parametrize("weight", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_speed_of_label_fitting_near_the_end_for_three_classes(share, weight):
    steps, q = 2000, torch.tensor([1.0, share, 1 - share], dtype=torch.float64)
    path = run_output_steps(q.log(), q.log(), zero, 0.8, steps, weight=weight, record=[steps])
    predicted = 2 / (0.8 * (3 + abs(2 * share - 1)) * steps)
    assert float(path.doubt) == pytest.approx(predicted, rel=0.01)


three, zero = torch.zeros(3), torch.tensor(0)
BAD = [
    ({"rule": "kd"}, "rule"),
    ({"steps": -1}, "steps"),
    ({"steps": 1.5}, "steps"),
    ({"steps": True}, "steps"),
    ({"step_size": -0.1}, "step_size"),
    ({"step_size": math.nan}, "step_size"),
    ({"weight": -1.0}, "weight"),
    ({"record": [3]}, "record"),
    ({"record": []}, "record"),
    ({"labels": torch.tensor(5)}, "labels"),
    ({"student_logits": torch.zeros(2)}, "student_logits"),
]


@pytest.mark.parametrize(("change", "named"), BAD)
def test_bad_input_is_named(change, named):
    arguments = {"student_logits": three, "teacher_logits": three, "labels": zero}
    with pytest.raises(ValueError, match=named):
        run_output_steps(**{**arguments, "step_size": 0.1, "steps": 2, **change})


def test_unknown_rules_are_named():
    with pytest.raises(ValueError, match="rule must be one of ce, tpkd"):
        update_direction("kd", three, three, zero)
