from __future__ import annotations

import math

import pytest
import torch

from lib.linear import (
    MarginAngleTask,
    PolynomialAngleTask,
    expected_risk,
    hard_target_limit,
    monotonicity,
    perturbed_student,
    student_limit,
)

TASK = PolynomialAngleTask(20, 1.0)


def generator(seed):
    return torch.Generator().manual_seed(seed)


class SampledTask:
    """A task that offers no more than its teacher and samples."""

    teacher = TASK.teacher

    def sample(self, n, generator):
        return TASK.sample(n, generator)


@pytest.mark.parametrize("task", [TASK, MarginAngleTask(9, 0.3), PolynomialAngleTask(30, 0.25)])
@pytest.mark.parametrize("seed", [0, 1])
def test_distillation_is_strongly_monotone(task, seed):
    result = monotonicity(student_limit, task, 4, 300, generator(seed))
    assert result.index == 1
    assert (result.worsened, result.unchanged, result.index_error) == (0, 0, 0)
    assert bool((result.angles_after < result.angles_before).all())


def test_shares_and_errors_belong_to_the_angles():
    noise = generator(5)
    result = monotonicity(
        lambda x, w: perturbed_student(x, w, 1.0, noise), TASK, 4, 400, generator(0)
    )
    change = result.angles_after - result.angles_before
    assert result.index == result.improved == float((change < 0).double().mean())
    assert result.improved + result.worsened + result.unchanged == pytest.approx(1)
    assert result.index_error == pytest.approx(math.sqrt(result.index * (1 - result.index) / 400))
    index, risk = result
    assert (index, risk) == (result.index, result.risk) == (result[0], result[1])


def test_risk_is_that_of_the_smaller_sets():
    result = monotonicity(student_limit, TASK, 4, 200, generator(3))
    inputs = TASK.sample((200, 5), generator(3))[:, :4]
    angles = torch.acos(student_limit(inputs, TASK.teacher).norm(dim=-1))  # |w_hat| = cos, |w*| = 1
    risks = expected_risk(angles, TASK)
    assert result.risk == pytest.approx(float(risks.mean()), rel=1e-9)
    assert result.risk_error == pytest.approx(float(risks.std(correction=0)) / math.sqrt(200))


def test_hard_targets_ignore_examples_outside_the_margin():
    """The weights stay as they are exactly when the new example is no support vector."""
    result = monotonicity(hard_target_limit, TASK, 5, 500, generator(1))
    inputs = TASK.sample((500, 6), generator(1))
    weights = hard_target_limit(inputs[:, :5], TASK.teacher)
    new = inputs[:, 5]
    margin = torch.sign(new @ TASK.teacher) * (new * weights).sum(-1)
    assert result.unchanged == float((margin >= 1).double().mean())
    assert result.unchanged > 0.3
    assert result.improved > result.worsened > 0


def test_constant_and_backward_learners():
    def constant(inputs, teacher):
        return torch.ones(len(inputs), inputs.shape[-1], dtype=inputs.dtype)

    def backward(inputs, teacher):
        other = torch.ones_like(teacher) - teacher
        return (teacher + inputs.shape[-2] * other).expand(len(inputs), -1)

    still = monotonicity(constant, TASK, 2, 10, generator(0))
    assert (still.improved, still.worsened, still.unchanged) == (0, 0, 1)
    worse = monotonicity(backward, TASK, 2, 10, generator(0))
    assert (worse.improved, worse.worsened, worse.unchanged) == (0, 1, 0)


def test_learner_is_called_twice_on_nested_batches():
    seen = []

    def learner(inputs, teacher):
        seen.append(inputs)
        return student_limit(inputs, teacher)

    monotonicity(learner, TASK, 3, 7, generator(0))
    assert [tuple(inputs.shape) for inputs in seen] == [(7, 3, 20), (7, 4, 20)]
    assert torch.equal(seen[0], seen[1][:, :3])


def test_a_task_without_symmetry_is_measured_on_held_out_inputs():
    exact = monotonicity(student_limit, TASK, 4, 200, generator(3))
    measured = monotonicity(student_limit, SampledTask(), 4, 200, generator(3))
    assert torch.equal(exact.angles_before, measured.angles_before)
    spread = math.sqrt(exact.risk * (1 - exact.risk) / 10_000)
    assert abs(measured.risk - exact.risk) < 6 * spread
    assert measured.risk != exact.risk


def test_risk_of_a_student_that_points_the_wrong_way_uses_the_signed_angle():
    result = monotonicity(lambda x, w: -student_limit(x, w), TASK, 4, 50, generator(3))
    mirrored = monotonicity(student_limit, TASK, 4, 50, generator(3))
    assert result.risk == pytest.approx(1 - mirrored.risk)
    assert result.index == 1


@pytest.mark.parametrize(
    ("learner", "n", "n_sets", "message"),
    [
        (student_limit, 0, 5, "n must be an integer >= 1"),
        (student_limit, 2, 0, "n_sets must be an integer >= 1"),
        (lambda x, w: w, 2, 5, r"weights of shape \(5, 20\)"),
        (lambda x, w: None, 2, 5, "NoneType"),
        (lambda x, w: torch.zeros(5, 20), 2, 5, "weights returned by learner must not be the zero"),
        (lambda x, w: torch.full((5, 20), math.nan), 2, 5, "learner must return finite weights"),
    ],
)
def test_bad_arguments_are_named(learner, n, n_sets, message):
    with pytest.raises(ValueError, match=message):
        monotonicity(learner, TASK, n, n_sets, generator(0))
