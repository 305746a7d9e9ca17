"""The functions of the chapter "Both at once", against closed forms and second routes."""

import matplotlib.pyplot as plt
import pytest
import torch

from lib.book.pages import both_at_once as page
from lib.book.pages.task_preserving_states import random_states, state_logits
from lib.tpkd import conditional_kl, potential, run_output_steps

LABEL = torch.tensor(0)


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("classes", [3, 4, 10])
def test_joint_gradient_is_that_of_autograd(classes):
    z, teacher, labels = random_states(classes, 30, generator(1))
    found = page.case(z, teacher, labels)
    free = z.clone().requires_grad_()
    potential(free, teacher, labels).sum().backward()
    torch.testing.assert_close(found.g, free.grad, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("classes", [3, 10, 100])
def test_alignment_slack_is_the_sum_of_the_terms_of_c1(classes):
    found = page.case(*random_states(classes, 60, generator(2)))
    gamma = classes / (2 * (classes - 1))
    e = found.u - found.d
    hh, hd, he = ((found.h * x).sum(-1) for x in (found.h, found.d, e))
    rest = (1 - gamma) * found.d.square().sum(-1) - gamma * e.square().sum(-1)
    expected = (3 - 4 * gamma) * hh + 2 * (1 - gamma) * hd + (1 - 2 * gamma) * he + rest / 4
    slack, cosine = page.alignment(found)
    torch.testing.assert_close(slack, expected, atol=1e-12, rtol=1e-9)
    assert float(cosine.min()) >= gamma**0.5 - 1e-12


@pytest.mark.parametrize("classes", [3, 4, 10, 1000])
def test_extremal_case_attains_the_angle(classes):
    cosine = float(page.alignment(page.extremal_case(classes, 1e-10))[1])
    assert cosine == pytest.approx((classes / (2 * (classes - 1))) ** 0.5, abs=1e-5)


def test_descent_keeps_its_promise_and_not_three_times_of_it():
    found = page.case(*random_states(3, 200, generator(3)))
    fall, promised = page.descent(found, [0.1, 0.8])
    assert fall.shape == (2, 200)
    assert float((fall - promised).min()) >= -1e-12
    assert bool((fall < 3 * promised).any())


def test_variation_of_two_shares():
    shares = torch.tensor([[0.7, 0.3], [0.4, 0.6]], dtype=torch.float64)
    z = state_logits(torch.zeros(2), shares, LABEL.expand(2))
    assert float(page.variation(z[0], z[1], LABEL)) == pytest.approx(0.3)


def test_conditional_kl_falls_inside_the_condition_only():
    sure = page.sure_states(4, 400, generator(7))
    meets, limit = page.small_label_gradient(sure)
    assert 20 < int(meets.sum()) < 380
    assert bool((page.conditional_fall(sure, 0.99 * limit) > 0)[meets].all())
    mild = page.case(*random_states(4, 400, generator(8)))
    outside = ~page.small_label_gradient(mild)[0]
    assert bool((page.conditional_fall(mild, 0.1) < 0)[outside].any())


@pytest.mark.parametrize(("w", "beta"), [(4.0, 0.5), (1.0, 2.0)])
def test_weighted_slacks_are_not_negative(w, beta):
    found = page.case(*random_states(10, 200, generator(9)))
    assert min(page.weighted_slacks(found, w, beta)) >= -1e-12


@pytest.mark.parametrize("classes", [3, 4, 10])
def test_label_and_teacher_never_conflict_more_than_the_bound(classes):
    bound = ((classes - 2) / (2 * (classes - 1))) ** 0.5
    found = page.case(*random_states(classes, 2000, generator(10)))
    cosine = (found.u * found.h).sum(-1) / (found.u.norm(dim=-1) * found.h.norm(dim=-1))
    assert float(cosine.nan_to_num().min()) >= -bound - 1e-12
    tug = page.steepest_tug(classes, 1e-5, 0.3)
    size = tug.u.norm() * tug.h.norm()
    assert float((tug.u * tug.h).sum() / size) == pytest.approx(-bound, abs=1e-4)
    assert float(tug.h.norm() / tug.u.norm()) == pytest.approx(0.3)


def test_one_target_in_the_cycle_is_the_plain_iteration():
    z, teacher, labels = random_states(3, 5, generator(11), "mild")
    last = page.cycle_targets(z, teacher[None], labels, torch.full((5,), 0.5), 20, 1)
    run = run_output_steps(z, teacher, labels, 0.5, 20, record=[20])
    torch.testing.assert_close(last, run.logits)


@pytest.mark.parametrize(("eta", "still"), [(10.4, True), (10.9, False)])
def test_three_classes_fork_at_thirty_two_thirds(eta, still):
    start = torch.tensor([[1.0, 0.6, 0.4]], dtype=torch.float64).log()
    even = torch.zeros(1, 1, 3, dtype=torch.float64)
    last = page.cycle_targets(start, even, LABEL[None], torch.tensor([eta]), 600, 2)
    error = conditional_kl(last, even[0], LABEL.expand(2, 1))
    assert (float(error.max()) < 1e-5) == still


def test_portrait_draws_one_path_for_each_student():
    z = torch.zeros(5, 2, 3)
    z[:, :, 0] = torch.arange(5.0)[:, None]
    figure, ax = plt.subplots()
    page.portrait(ax, z, 0.5, "blue", "target")
    assert len(ax.lines) == 2 + 1 + 1  # paths, dots, target
    plt.close(figure)
