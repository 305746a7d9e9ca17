"""The page's pieces agree with closed forms, with the paper's inequalities and with simulation."""

import matplotlib.pyplot as plt
import pytest
import torch
from scipy import stats

from lib.book.pages import full_training_pictures as pictures
from lib.book.pages import full_training_tables as sheets
from lib.distill import OBJECTIVES
from lib.tpkd import directions, is_blocked, margins


def states(count, classes, seed, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(3, count, classes, dtype=torch.float64, generator=generator)
    return *logits, torch.randint(classes, (count,), generator=generator)


def test_the_printed_table_has_the_methods_and_numbers_of_the_text():
    assert set(sheets.PUBLISHED) == set(sheets.METHODS) == set(pictures.LOOKS) <= set(OBJECTIVES)
    gain = [[sheets.published_difference("tpkd", other, text)[0] for text in (False, True)]
            for other in ("kd", "ce")]  # fmt: skip
    torch.testing.assert_close(
        torch.tensor(gain), torch.tensor([[0.47, 0.35], [0.68, 0.56]]), atol=0.011, rtol=0
    )
    assert len(set(pictures.LOOKS.values())) == 10


@pytest.mark.parametrize("seed", range(3))
def test_no_pairing_of_two_samples_leaves_the_bounds_on_the_interval(seed):
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, 3, dtype=torch.float64, generator=generator)
    for name, sample in (("ce", first), ("kd", second)):
        sheets.PUBLISHED[f"test-{name}"] = ((float(sample.mean()), float(sample.std())),) * 2
    try:
        gap, least, most = sheets.published_difference("test-ce", "test-kd", text=True)
    finally:
        for name in ("ce", "kd"):
            del sheets.PUBLISHED[f"test-{name}"]
    widths = []
    for order in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]):
        found = stats.ttest_rel(first.numpy(), second[order].numpy()).confidence_interval(0.95)
        assert (found.low + found.high) / 2 == pytest.approx(gap)
        widths.append((found.high - found.low) / 2)
    assert least - 1e-9 <= min(widths) <= max(widths) <= most + 1e-9
    assert max(widths) > min(widths)


@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_the_formulas(seed):
    student, teacher, frozen, labels = (x[0] for x in states(1, 6, seed))
    found = pictures.logit_gradients(student, teacher, labels, frozen)
    p, t = student.softmax(-1), teacher.softmax(-1)
    h = p - torch.nn.functional.one_hot(labels, 6)
    softened = (student / 4).softmax(-1) - (teacher / 4).softmax(-1)
    expected = {
        "ce": h,
        "kd": h + 4 * softened,
        "kl-dist": p - t,
        "xe-kl": (h + p - t) / 2,
        "dhkd": h,
        "tpkd": directions(student, teacher, labels).update,
    }
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-9, rtol=1e-9)
    for gradient in found.values():
        assert abs(float(gradient.sum())) < 1e-9


def test_options_and_methods_can_be_chosen():
    student, teacher, frozen, labels = (x[0] for x in states(1, 4, 7))
    plain = pictures.logit_gradients(student, teacher, labels, frozen, ["kd"])
    options = {"kd": {"temperature": 1.0}}
    sharp = pictures.logit_gradients(student, teacher, labels, frozen, ["kd"], options)
    assert list(plain) == ["kd"]
    gap = student.softmax(-1) - teacher.softmax(-1)
    h = student.softmax(-1) - torch.nn.functional.one_hot(labels, 4)
    torch.testing.assert_close(sharp["kd"], h + gap)


@pytest.mark.parametrize("label", [0, 2, 3])
def test_a_small_step_changes_the_margins_as_said(label):
    student, _, gradient, _ = (x[0] for x in states(1, 4, label))
    step = 1e-3
    before, after = (margins(z, torch.tensor(label)) for z in (student, student - step * gradient))
    rest = [j for j in range(4) if j != label]
    torch.testing.assert_close(
        (after - before)[rest] / step, pictures.margin_change(gradient, label)
    )


def test_tpkd_never_gains_less_than_the_label_step_and_imitation_loses_when_blocked():
    student, teacher, frozen, labels = states(200, 3, 5)
    blocked = is_blocked(student, teacher, labels)
    assert 10 < int(blocked.sum()) < 190
    for z, zt, z0, y, stuck in zip(student, teacher, frozen, labels, blocked, strict=True):
        found = pictures.logit_gradients(z, zt, y, z0, ["ce", "tpkd", "kl-dist"])
        gains = {name: pictures.margin_change(g, int(y)) for name, g in found.items()}
        assert (gains["tpkd"] >= gains["ce"] - 1e-12).all()
        if stuck:
            assert (gains["kl-dist"] < 0).all()


def test_the_picture_shows_every_method_and_cuts_long_steps():
    changes = {"ce": torch.tensor([0.5, 0.25]), "dkd": torch.tensor([4.0, -2.0])}
    fig, ax = plt.subplots()
    pictures.draw_directions(ax, changes, 1.0)
    ends = [line.get_xydata()[-1].tolist() for line in ax.lines if line.get_linestyle() != "None"]
    assert [0.5, 0.25] in ends
    assert [1.0, -0.5] in ends
    assert [text.get_text() for text in ax.texts] == ["× 4.0"]
    plt.close(fig)
