"""The functions of the chapter on blocked imitation, against closed forms and each other."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from lib.book.pages import when_imitation_is_blocked as page
from lib.book.pages.task_preserving_states import random_states
from lib.tpkd import full_kl, is_blocked, label_only_optimum, margins
from lib.tpkd.imitation import safe_imitation

TEACHER = torch.tensor([0.4, 0.25, 0.35], dtype=torch.float64)


@pytest.mark.parametrize("classes", [3, 10, 100])
@pytest.mark.parametrize("seed", [0, 1])
def test_safe_moves_are_safe_and_keep_some_margins(classes, seed):
    generator = torch.Generator().manual_seed(seed)
    z, _, labels = random_states(classes, 100, generator)
    gains = margins(page.safe_moves(z, labels, generator), labels) - margins(z, labels)
    assert gains.min() >= -1e-12
    assert (gains.amax(-1) > 1e-3).double().mean() > 0.5
    assert (gains.abs() < 1e-12).sum() > 100


@pytest.mark.parametrize("classes", [3, 10, 100])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_single_move_helps_exactly_where_the_student_is_not_blocked(classes, seed):
    states = random_states(classes, 300, torch.Generator().manual_seed(seed))
    assert torch.equal(page.best_single_move(*states) >= 0, is_blocked(*states))


def test_a_tiny_excess_over_the_teacher_is_found():
    p = TEACHER * torch.tensor([1.0, 1.0, 1 + 1e-8], dtype=torch.float64)
    assert page.best_single_move(p.log()[None], TEACHER.log()[None], torch.tensor([0])) < 0
    p = TEACHER * torch.tensor([1.0, 1.0, 1 - 1e-8], dtype=torch.float64)
    p = p + torch.tensor([1e-7, 0, 0], dtype=torch.float64)
    assert page.best_single_move(p.log()[None], TEACHER.log()[None], torch.tensor([0])) > 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_descent_and_solver_agree_with_the_closed_forms(seed):
    z, t, labels = random_states(4, 6, torch.Generator().manual_seed(seed), "mild")
    own, target = (page.label_first(v.softmax(-1), labels) for v in (z, t))
    safe = page.label_first(safe_imitation(z, t, labels).exp(), labels)
    label_only = page.label_first(label_only_optimum(z, t, labels).exp(), labels)
    for p, q, best, loose in zip(own, target, safe, label_only, strict=True):
        found = page.descend_margins(p, q, [True] * 3, 3000)
        torch.testing.assert_close(found, best, atol=1e-6, rtol=0)
        solved = page.solve_imitation(p.numpy(), q.numpy(), "margins")
        assert np.abs(solved - best.numpy()).max() < 1e-5
        solved = page.solve_imitation(p.numpy(), q.numpy(), "label")
        assert np.abs(solved - loose.numpy()).max() < 1e-5


def test_an_unprotected_class_gets_what_the_teacher_gives_it():
    p = torch.tensor([0.9, 0.07, 0.03], dtype=torch.float64)
    found = page.descend_margins(p, TEACHER, [True, False], 2000)
    expected = torch.tensor([0.65 * 90 / 97, 0.65 * 7 / 97, 0.35], dtype=torch.float64)
    torch.testing.assert_close(found, expected)
    assert float(full_kl(found.log(), TEACHER.log())) < float(full_kl(p.log(), TEACHER.log()))


def test_solver_refuses_an_unknown_word():
    with pytest.raises(ValueError, match="keep must be 'margins' or 'label', got 'all'"):
        page.solve_imitation(np.ones(3) / 3, np.ones(3) / 3, "all")


def test_label_first_keeps_the_order_of_the_others():
    rows = torch.arange(8.0).reshape(2, 4)
    expected = torch.tensor([[2.0, 0.0, 1.0, 3.0], [4.0, 5.0, 6.0, 7.0]])
    assert torch.equal(page.label_first(rows, torch.tensor([2, 0])), expected)


def test_lead_curve_rises_and_full_agreement_needs_no_lead():
    generator = torch.Generator().manual_seed(1)
    leads = torch.tensor([-0.1, 0.0, 1.0, 3.0, 20.0])
    shares = page.lead_curve(5, leads, 0.0, 500, generator)
    assert shares[:2].tolist() == [0.0, 0.0]
    assert (shares.diff() >= 0).all()
    assert page.lead_curve(5, leads, 1.0, 50, generator)[2:].tolist() == [1.0, 1.0, 1.0]


def test_lead_curve_of_three_classes_has_a_closed_form_at_one_lead():
    """D_inf(r || q) <= g for two wrong classes, by counting with the criterion itself."""
    lead, count = 1.0, 40_000
    generator = torch.Generator().manual_seed(3)
    share = page.lead_curve(3, torch.tensor([lead]), 0.0, count, generator)
    q, r = torch.randn(2, count, 2, generator=generator, dtype=torch.float64).softmax(-1)
    rho = 1 / (1 + math.exp(-(lead + math.log(7 / 3))))
    counted = ((1 - rho) * r <= 0.3 * q).all(-1).double().mean()
    assert float(share) == pytest.approx(float(counted), abs=0.015)


def test_training_fits_separable_labels_with_growing_confidence():
    inputs = torch.eye(3, dtype=torch.float64).repeat(4, 1)
    labels = torch.arange(3).repeat(4)
    early, late = page.train_student(inputs, labels, [10, 200], ridge=0.0)
    assert torch.equal(late.argmax(-1), labels)
    confidence = [z.softmax(-1).gather(-1, labels[:, None]).min() for z in (early, late)]
    assert 1 / 3 < confidence[0] < confidence[1] < 1


def test_picture_marks_student_teacher_and_best():
    figure, axes = plt.subplots(1, 2)
    page.draw_imitation(axes[0], torch.tensor([0.5, 0.35, 0.15], dtype=torch.float64), TEACHER)
    assert [text.get_text() for text in axes[0].texts][-3:] == ["$t$", "best", "$p$"]
    blocked = torch.tensor([0.9, 0.07, 0.03], dtype=torch.float64)
    page.draw_imitation(axes[1], blocked, TEACHER, 0.7)
    assert [text.get_text() for text in axes[1].texts][3:] == ["$p$"]
    plt.close(figure)
