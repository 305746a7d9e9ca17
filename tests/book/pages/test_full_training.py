"""The page's pieces agree with closed forms, with the paper's inequalities and with simulation."""

import matplotlib.pyplot as plt
import pytest
import torch
from scipy import stats

from lib.book.pages import distillation_runs as runs
from lib.book.pages import full_training as page
from lib.book.pages import full_training_pictures as pictures
from lib.book.pages import full_training_tables as sheets
from lib.distill import OBJECTIVES, predict, prepare
from lib.distill.config import TrainingConfig
from lib.distill.runs import make_student
from lib.distill.training import TrainingError
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
    assert "× 4.0" in [text.get_text() for text in ax.texts]
    plt.close(fig)


SMALL = {"iterations": 6, "snapshots": [], "widths": [8], "teacher_iterations": 60}


@pytest.fixture(scope="module", autouse=True)
def cache(own_cache):
    """Every test here trains into a cache of its own."""


@pytest.fixture(scope="module")
def table():
    return runs.run_methods("digits", ["ce", "kd", "dp-u", "tpkd"], [42, 43], changes=SMALL)


def row(accuracy):
    values = torch.tensor(accuracy, dtype=torch.float64)
    correct = torch.ones(len(accuracy), 4, dtype=torch.bool)
    seeds = tuple(range(len(accuracy)))
    return runs.MethodRuns("kd", seeds, values, correct, 0 * values, 0 * values, ())


def test_all_methods_begin_alike_and_read_the_same():
    rows = page.compare_beginnings("digits", sheets.METHODS, 42, 3, changes=SMALL)
    assert [found["method"] for found in rows] == [OBJECTIVES[m].title for m in sheets.METHODS]
    for name in ("weights before", "examples in order"):
        assert len({found[name] for found in rows}) == 1
    after = {found["method"]: found["weights after 3 steps"] for found in rows}
    assert len(set(after.values())) > 6
    assert rows[0]["weights before"] not in after.values()
    other = page.compare_beginnings("digits", ["ce"], 43, 3, changes=SMALL)[0]
    assert other["examples in order"] != rows[0]["examples in order"]
    again = page.compare_beginnings("digits", ["ce"], 42, 3, changes=SMALL)[0]
    assert again == rows[0]


def test_the_share_of_the_teacher_is_counted_example_by_example():
    changes = SMALL | {"widths": [4]}
    share = float(page.teacher_share("digits", [42], changes=changes)[0])
    materials = prepare("digits", overrides=changes)
    config = TrainingConfig("vision", "dp-u", 42, "digits", overrides=changes)
    student = predict(make_student(config, materials), materials.examples).softmax(-1)
    teacher = materials.teacher[0].softmax(-1)
    wins = [float(t.max()) > float(p.max()) for t, p in zip(teacher, student, strict=True)]
    assert share == pytest.approx(sum(wins) / len(wins), abs=1e-3)


def test_the_gap_of_logits_is_zero_only_for_equal_runs(table):
    assert page.logit_gap(table["kd"], table["kd"]) == 0
    pairs = zip(table["kd"].results, table["ce"].results, strict=True)
    gaps = [(a.test_logits - b.test_logits).abs().max() for a, b in pairs]
    assert page.logit_gap(table["kd"], table["ce"]) == float(max(gaps)) > 0


def test_a_search_changes_what_it_says_and_nothing_else(monkeypatch):
    asked = []

    def note(setting, methods, seeds, changes, keep):
        asked.append((setting, tuple(methods), dict(changes)))
        return {m: (m, tuple(sorted(changes))) for m in methods}

    monkeypatch.setattr(page, "run_methods", note)
    for factor, (values, usual, touched) in page.FACTORS.items():
        found = page.search(factor, [42])
        assert list(found) == list(values)
        plain = tuple(sorted(page.SHORT))
        for value, rows in found.items():
            assert list(rows) == list(page.THREE)
            for method, (_, names) in rows.items():
                if value == usual or method not in touched:
                    assert names == plain
    assert {setting for setting, _, _ in asked} == {page.SEARCH}
    with pytest.raises(ValueError, match="factor must be one of"):
        page.search("weather", [42])


def test_every_change_of_the_search_fits_its_setting():
    for factor, (values, usual, touched) in page.FACTORS.items():
        assert usual in values
        for value in values:
            changes = page.SHORT | page.factor_changes(factor, value)
            for method in touched:
                TrainingConfig("vision", method, 42, page.SEARCH, overrides=changes)
    assert page.factor_changes("loudness of the teacher", 4.0)["options"]["tpkd"]["weight"] == 2


def test_a_run_that_is_stopped_is_told_and_not_measured(table, monkeypatch):
    def run(setting, methods, seeds, changes, keep):
        assert changes["learning_rate"] == 0.3
        if methods == ["compensation-only"]:
            raise TrainingError("it cannot go on")
        return {methods[0]: table["ce"]}

    monkeypatch.setattr(page, "run_methods", run)
    rows, messages = page.large_step_rows(0.3, [42, 43])
    assert messages == ["it cannot go on"]
    assert [found["method"] for found in rows] == [OBJECTIVES[m].title for m in page.STEPPING]
    assert rows[-1]["accuracy"] == rows[-1]["conditional KL"] == "stopped"
    logits = torch.stack([result.test_logits for result in table["ce"].results])
    spread = (logits.max(-1).values - logits.min(-1).values).mean()
    torch.testing.assert_close(rows[0]["range of the logits"], spread)


def test_a_rank_counts_who_is_better():
    rows = {"ce": row([90.0, 91.0]), "kd": row([92.0, 92.0]), "tpkd": row([90.5, 90.5])}
    assert [sheets.rank(rows, name) for name in ("kd", "ce", "tpkd")] == [1, 2, 2]


def test_recorded_accuracies_come_back_as_tables(table):
    series = sheets.accuracies(table, "digits sharp")
    assert series["digits sharp kd"] == table["kd"].accuracy.tolist()
    (found,) = sheets.contrast_rows({k: v for k, v in series.items() if "dp-u" not in k})
    assert (found["setting"], found["teacher"]) == ("digits", "sharp")
    assert found["KD"] == table["kd"].text
    gap = runs.paired_difference(table["tpkd"].accuracy, table["ce"].accuracy)
    assert found["TPKD - CE"] == f"{gap.mean:+.2f} ± {gap.half:.2f}"
    rows = sheets.recorded_rows({}, sheets.accuracies(table))
    assert [r["method"] for r in rows] == ["CE", "KD", "DP-U", "TPKD"]
    assert rows[-1]["text, ours"] == table["tpkd"].text
    assert rows[-1]["images, ours"] is None
    assert rows[-1]["CLINC150, paper"] == sheets.printed("tpkd", True) == "93.81 ± 0.27"


def test_pictures_show_means_intervals_and_seeds():
    rows = {m: row([90.0, 91.0, 92.5 + i]) for i, m in enumerate(sheets.METHODS)}
    fig, (left, right) = plt.subplots(1, 2)
    pictures.draw_differences(left, rows, text=True)
    assert next(t.get_text() for t in left.get_yticklabels()) == "CE"
    dots = [line for line in left.lines if line.get_marker() == "o"]
    gap = runs.paired_difference(rows["tpkd"].accuracy, rows["ce"].accuracy)
    assert float(dots[0].get_xdata()[0]) == pytest.approx(gap.mean)
    stars = [line for line in left.lines if line.get_marker() == "*"]
    assert float(stars[1].get_xdata()[0]) == pytest.approx(0.35)
    found = {0.1: {m: row([90.0, 91.0]) for m in page.THREE}}
    found[0.3] = {"ce": row([90.0, 91.0]), "kd": row([92.0, 92.0]), "tpkd": row([91.0, 91.0])}
    pictures.draw_search(right, found, 0.1)
    lines = {line.get_label(): line.get_ydata() for line in right.lines}
    assert lines["KD"].tolist() == [0.0, 1.5]
    assert lines["TPKD"].tolist() == [0.0, 0.5]
    pictures.add_legend(fig, left)
    assert len(fig.legends[0].get_texts()) == len(sheets.METHODS)
    plt.close(fig)
