"""Table 5 as printed, the bounds of the page, and its small helpers."""

import types

import matplotlib.pyplot as plt
import pytest
import torch

from lib.book.pages import student_stacks as stacks
from lib.book.pages import which_part_matters as page
from lib.book.pages.distillation_runs import MethodRuns
from lib.book.pages.task_preserving_states import random_states
from lib.distill import OBJECTIVES
from lib.tpkd import directions, log_odds, project_onto_safe_cone, run_output_steps, transfer_cost


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def some_runs(offset=0.0):
    log = [
        {"iteration": k, "conditional_kl": 1.0 / (k + 1), "cross_entropy": 1.0, "blocked": 0.1}
        for k in (0, 10, 19)
    ]
    found = {}
    for i, m in enumerate(page.ROWS):
        accuracy = torch.tensor([90.0, 91.0, 92.5], dtype=torch.float64) + offset + i
        correct = torch.ones(3, 10, dtype=torch.bool)
        results = tuple(types.SimpleNamespace(log=log) for _ in range(3))
        found[m] = MethodRuns(m, (42, 43, 44), accuracy, correct, accuracy, accuracy, results)
    return found


def test_the_printed_table_gives_the_differences_of_the_text():
    assert set(page.PUBLISHED) == set(page.LOOKS) == set(page.ROWS) == set(stacks.TABLE_5)
    said = {
        "tpkd-no-label": (-2.72, -2.21),
        "tpkd-full-kl": (-0.84, -0.48),
        "tpkd-no-projection": (-0.22, 0.02),
    }
    for method, gaps in said.items():
        found = [page.published_gap(method, text) for text in (False, True)]
        assert found == pytest.approx(gaps, abs=1e-9)
    for method in page.ROWS[:-1]:
        least, most = page.published_interval(method, False)
        s_a, s_b = page.PUBLISHED[method][0][1], page.PUBLISHED["tpkd"][0][1]
        assert (most + least) / 2 == pytest.approx(2.4841 * max(s_a, s_b), rel=1e-4)
        assert (most - least) / 2 == pytest.approx(2.4841 * min(s_a, s_b), rel=1e-4)


@pytest.mark.parametrize("classes", [3, 4, 10, 100])
@pytest.mark.parametrize("seed", [0, 1])
def test_full_kl_is_a_sum_of_both_gradients_and_adds_no_more_than_the_bound(classes, seed):
    z, teacher, labels = random_states(classes, 600, generator(seed))
    found = directions(z, teacher, labels)
    gap = z.softmax(-1) - teacher.softmax(-1)
    on_h, on_u = page.full_kl_weights(z, teacher, labels)
    split = on_h[:, None] * found.label + on_u[:, None] * found.conditional
    torch.testing.assert_close(split, gap, atol=1e-12, rtol=0)
    added = project_onto_safe_cone(gap, labels)
    sure = on_h <= 0
    bound = on_u * found.corrected.norm(dim=-1)
    assert float((added.norm(dim=-1) - bound)[sure].max()) < 1e-12
    rest = (added - on_h[:, None] * found.label).norm(dim=-1) - on_u * found.conditional.norm(
        dim=-1
    )
    assert float(rest[~sure].max()) < 1e-12
    assert bool(sure.any())
    assert bool((~sure).any())


@pytest.mark.parametrize("classes", [3, 5, 20])
def test_without_the_label_the_price_is_paid_and_for_three_classes_exactly(classes):
    z, teacher, labels = random_states(classes, 40, generator(3), "mild")
    last = run_output_steps(z, teacher, labels, 5.0 if classes == 3 else 0.8, 60, "tpkd-no-label")
    for k in (1, 7, 60):
        now = last.logits[k]
        excess = log_odds(now, labels) - log_odds(z, labels) - transfer_cost(z, now, labels)
        assert float(excess.min()) > -1e-12
        if classes == 3:
            assert float(excess.max()) < 1e-10


def test_three_classes_overshoot_beyond_the_limit_of_the_proposition():
    even = torch.zeros(1, 3, dtype=torch.float64)
    teacher = torch.tensor([[0.0, 0.01, 0.0]], dtype=torch.float64)
    labels = torch.zeros(1, dtype=torch.int64)
    excess = []
    for eta in (16 / 3, 20.0):
        now = run_output_steps(even, teacher, labels, eta, 2, "tpkd-no-label").logits[-1]
        gain = log_odds(now, labels) - log_odds(even, labels)
        excess.append(float(gain - transfer_cost(even, now, labels)))
    assert abs(excess[0]) < 1e-12
    assert excess[1] > 1e-4


@pytest.mark.parametrize("method", page.ROWS)
def test_gradients_are_sums_of_the_parts(method):
    z, teacher, labels = random_states(5, 20, generator(6), "mild")
    for student, target, label in zip(z, teacher, labels, strict=True):
        expected = stacks.TABLE_5[method](stacks.split(student, target, label))
        found = page.objective_gradient(method, student, target, label)
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-9)


def test_the_favourite_is_the_most_likely_wrong_class():
    z, teacher, labels = random_states(7, 50, generator(4), "mild")
    found = page.favourite_margin(z, teacher, labels)
    for i, label in enumerate(labels.tolist()):
        wrong = [j for j in range(7) if j != label]
        best = max(wrong, key=lambda j: float(teacher[i, j]))
        assert float(found[i]) == float(z[i, label] - z[i, best])


def test_spoilt_labels_are_wrong_uniform_and_nested():
    labels = torch.arange(6000) % 5
    few, many = (page.spoil_labels(labels, share, 5, generator(5)) for share in (0.2, 0.4))
    changed = [spoilt != labels for spoilt in (few, many)]
    assert bool((changed[0] <= changed[1]).all())
    for share, mask in zip((0.2, 0.4), changed, strict=True):
        assert float(mask.double().mean()) == pytest.approx(share, abs=0.03)
    shift = ((many - labels) % 5)[changed[1]].bincount(minlength=5)
    assert int(shift[0]) == 0
    assert int(shift[1:].min()) > 0.8 * len(labels) * 0.4 / 4
    assert torch.equal(page.spoil_labels(labels, 0.0, 5, generator(5)), labels)


def test_the_wrong_label_gains_what_the_page_predicts():
    z = torch.zeros(3, dtype=torch.float64)
    teacher = torch.tensor([0.05, 0.90, 0.05], dtype=torch.float64).log()
    parts = stacks.split(z, teacher, torch.tensor(0))
    gains = {m: float(rule(parts)[1] - rule(parts)[0]) for m, rule in stacks.TABLE_5.items()}
    expected = dict(zip(page.ROWS, (1.0, 0.0, 1.0, 59 / 76, 1.0), strict=True))
    assert gains == pytest.approx(expected, abs=1e-12)


def test_tables_hold_every_row_and_what_was_recorded():
    images, text = some_runs(), some_runs(-5.0)
    recorded = {"cpu": page.kept_series(images, text)}
    keys = {f"{d} {m}" for d in page.DOMAINS for m in page.ROWS}
    assert set(recorded["cpu"]) == keys | {f"{key} blocked" for key in keys}
    first, second = page.fallback_rows(recorded["cpu"], "here")
    assert (first["runs"], second["runs"]) == ("images, here", "text, here")
    assert first["TPKD - CE"] == pytest.approx(4)
    assert second["safe full KL - CE"] == pytest.approx(2)
    assert second["blocked under CE"] == pytest.approx(float(text["ce"].blocked.mean()))
    rows = page.table_rows(text, True, recorded)
    assert [row["condition"] for row in rows] == [OBJECTIVES[m].title for m in page.ROWS]
    assert rows[0]["paper"] == "93.24 ± 0.28"
    assert rows[0]["cpu"] == rows[0]["this run"]
    assert page.gaps(images) == pytest.approx(dict(zip(page.ROWS, (-4, -3, -2, -1), strict=False)))


def test_figures_show_every_row():
    fig, axes = plt.subplots(1, 5)
    runs = some_runs()
    z = torch.tensor([0.2, 0.5, 0.3]).log()
    page.draw_parts(axes[0], stacks.split(z, torch.zeros(3), torch.tensor(0)))
    page.draw_gaps(axes[1], runs, False, {"cpu": page.kept_series(runs, runs)})
    page.draw_logs(axes[2:], runs)
    assert len(axes[0].patches) == 12
    assert [label.get_text() for label in axes[1].get_yticklabels()] == [
        OBJECTIVES[m].title for m in page.ROWS[:-1]
    ]
    assert len(axes[2].lines) == len(page.ROWS)
    assert axes[2].lines[0].get_ydata().tolist() == pytest.approx([1.0, 1 / 11, 1 / 20])
    plt.close(fig)
