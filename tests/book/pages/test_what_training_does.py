"""What the chapter "What training does" computes, on a run of a few steps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from lib.book.data_used import data_used, forget_data
from lib.book.pages import what_training_does as page
from lib.book.pages import what_training_does_tables as shown
from lib.distill.examples import TensorExamples
from lib.distill.native import continue_run
from lib.distill.settings import TrainingSettings
from lib.distill.states import RunState
from lib.distill.training import train_student
from lib.models.perceptron import perceptron
from lib.tpkd import conditional_kl, directions, is_blocked, run_output_steps

N, K, VIEWS, WIDTH = 48, 4, 2, 20


@pytest.fixture(scope="module")
def run() -> page.Study:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(VIEWS, N, 6, generator=generator)
    labels = torch.randint(K, (N,), generator=generator)
    teacher = torch.randn(VIEWS, N, K, generator=generator)
    teacher.scatter_add_(-1, labels[:, None].expand(VIEWS, N, 1), torch.ones(VIEWS, N, 1))
    examples = TensorExamples(values, labels, VIEWS)
    settings = TrainingSettings("ce", 40, 1, 0.1, batch_size=12, micro_batch=12)
    student = perceptron(6, (WIDTH,), K, generator=generator)
    kept = train_student(student, examples, settings, snapshots=(8, 40)).snapshots
    states = {k: RunState(student, kept[k], settings, k, examples, teacher) for k in (8, 40)}
    networks = {k: state.network() for k, state in states.items()}
    return page.Study("random; numbers", {8: 2.0, 40: 10.0}, states, networks)


def test_names_ends_and_batches(run):
    assert run.ends == (8, 40)
    assert [run.name(step) for step in run.states] == ["CE2", "CE10"]
    index, view = run.batches(4, seed=3, size=12)
    assert torch.equal(index.flatten().sort().values, torch.arange(N))
    assert view.shape == (4, 12)
    with pytest.raises(ValueError, match="at most 4 batches of 12, got 5"):
        run.batches(5, seed=3, size=12)


def test_fixed_images_come_in_all_views(run):
    index, view = page.fixed_images(run, 10, seed=1)
    assert index.shape == view.shape == (VIEWS, 10)
    assert torch.equal(index[0], index[1])
    assert view[:, 0].tolist() == [0, 1]
    assert page.fixed_images(run, 10**6, seed=1)[0].shape == (VIEWS, N)


def test_blocking_is_the_share_beyond_the_limit(run):
    seen = page.fixed_images(run, N, seed=1)
    table = page.blocking(run, *seen)
    for step, row in table.items():
        student, teacher, labels = page.triple(run, step, *seen)
        state = run.states[step]
        values = state.examples.values[seen[1], seen[0]]
        by_hand = torch.stack([run.networks[step](view).detach() for view in values])
        torch.testing.assert_close(student, by_hand.double(), rtol=0, atol=1e-5)
        assert torch.equal(labels, state.examples.labels[seen[0]])
        blocked = is_blocked(student, teacher, labels)
        assert row.blocked == int(blocked.sum())
        assert torch.equal(page.excess(run, step, *seen) >= 0, blocked)
        assert page.tempered_shares(run, step, *seen, [1.0]) == [row.share]
    assert 0 < table[40].blocked < table[40].examples == VIEWS * N
    cold, hot = page.tempered_shares(run, 40, *seen, [0.05, 50.0])
    assert cold < hot


def test_rows_of_table_1(run):
    table = page.blocking(run, *page.fixed_images(run, N, seed=1))
    kept = {"cpu": {"share": [0.1, 0.2], "conditional_kl": [1.0, 2.0], "cost": [3.0, 4.0]}}
    rows = shown.blocking_rows(run, table, kept)
    names = ["CE2, ours", "CE10, ours", "state 1, profile cpu", "state 2, profile cpu"]
    assert [row["state"] for row in rows] == [*names, "CE20, paper", "CE40, paper", "CE60, paper"]
    assert rows[1]["share"] == table[40].share
    assert rows[3] == {"state": names[3], "share": 0.2, "conditional KL": 2.0, "cost": 4.0}
    assert rows[-1]["cost"] == 7.569
    assert shown.blocking_columns(table)["share"] == [row.share for row in table.values()]


def test_rows_of_table_1_where_nothing_is_blocked(run):
    table = page.blocking(run, *page.fixed_images(run, N, seed=1))
    empty = replace(table[8], blocked=0, conditional_kl=math.nan, cost=math.nan)
    columns = shown.blocking_columns({8: empty, 40: table[40]})
    assert columns == {"share": [0.0, table[40].share]}
    rows = shown.blocking_rows(run, {8: empty, 40: table[40]}, {"cpu": columns})
    assert rows[0] == {"state": "CE2, ours", "share": 0.0, "conditional KL": None, "cost": None}
    assert [row["cost"] for row in rows[1:4]] == [table[40].cost, None, None]
    assert shown.growth(columns["share"]) == math.inf
    assert math.isnan(shown.growth([0.0, 0.0]))


def test_another_teacher_keeps_the_run(run, monkeypatch):
    class Materials:
        teacher, facts = torch.zeros(VIEWS, N, K), {"label_probability": 0.25}

    monkeypatch.setattr(page, "prepare", lambda *args, **options: Materials)
    other = page.taught_by(run, "any", "sharp")
    assert other.facts == {"label_probability": 0.25}
    assert other.networks is run.networks
    assert not bool(other.states[40].teacher.any())
    assert bool(run.states[40].teacher.any())


def test_head_steps_are_output_steps(run):
    where = run.batches(4, seed=3, size=12)
    steps, problem = page.head_steps(run, 40, *where, 0.01)
    start, teacher, labels = problem[0] @ problem[1], problem[2], problem[3]
    path = run_output_steps(start, teacher, labels, 0.01, 1)
    torch.testing.assert_close(steps.kl["tpkd"], path.conditional_kl[1], rtol=0, atol=1e-12)
    rows = shown.head_rows(run, {8: steps, 40: steps})
    assert [row["state"] for row in rows] == [
        "CE2, ours",
        "CE10, ours",
        "CE20, paper",
        "CE60, paper",
    ]
    assert float(rows[0]["gain"]) == pytest.approx(1e3 * float(steps.gain.mean()))
    assert rows[2]["least retained"] == pytest.approx(52.13)
    rules = shown.rule_rows(steps)
    assert rules[2]["loses a margin of CE's"] == "100.0 %"
    assert rules[3]["loses a margin of CE's"] == rules[0]["loses a margin of CE's"] == "0.0 %"


@pytest.mark.parametrize("step_size", [0.01, 0.5, 4.0])
def test_a_certain_gain_is_a_gain(run, step_size):
    """Random states near the edge of the condition: it never promises too much, and is needed."""
    generator = torch.Generator().manual_seed(7)
    features = torch.eye(20, dtype=torch.float64).expand(300, 20, 20)
    draw = {"generator": generator, "dtype": torch.float64}
    head = 2 * torch.randn(300, 20, K, **draw)
    near = 10 ** (-4 * torch.rand(300, 1, 1, **draw))
    teacher = head + near * torch.randn(300, 20, K, **draw)
    labels = torch.randint(K, (300, 20), generator=generator)
    sure = page.certainly_gains((features, head, teacher, labels), step_size)
    found = directions(head, teacher, labels)
    label, ours = (
        conditional_kl(head - step_size * v, teacher, labels) for v in (found.label, found.update)
    )
    gains = label - ours
    assert 0 < int(sure.sum()) < sure.numel()
    assert float(gains[sure].min()) > 0
    assert bool((gains[~sure] < 0).any())


def test_certificates_and_their_rows(run):
    where = run.batches(3, seed=5, size=8)
    found = page.certify_all(run, 40, *where)
    rows = shown.certificate_rows({"CE10": found})
    assert [row["pair"] for row in rows] == ["conditional", "joint"]
    assert rows[0]["largest ratio"] == max(test.conditional.ratio for test in found)
    by_limit, measured, direct = shown.passed([test.joint for test in found])
    assert by_limit <= measured <= direct <= 3
    assert rows[1]["product > 0"] == f"{direct}/3"


def test_ends_of_a_continuation(run):
    watched, index = torch.arange(8), torch.arange(8, 48).reshape(4, 10)
    arms = tuple(shown.ARMS)
    path = continue_run(run.states[40], arms, index, torch.zeros_like(index), watched, (4,))
    columns = shown.end_columns(run, path, watched)
    rows = shown.end_rows(columns | {"step": [4]})
    names = ["start", "CE", "compensation only", "TPKD", "no projection"]
    assert [row["arm"] for row in rows] == names
    assert rows[3]["conditional KL"] == pytest.approx(path.conditional_kl("tpkd")[-1])
    assert rows[1]["right, %"] == 100 * path.measures["ce"][-1]["accuracy"]
    student, _, labels = page.triple(run, 40, watched, torch.zeros_like(watched))
    odds, spreads = [], []
    for z, y in zip(student.tolist(), labels.tolist(), strict=True):
        rest = [x for j, x in enumerate(z) if j != y]
        odds.append(z[y] - math.log(sum(math.exp(x) for x in rest)))
        centre = sum(rest) / len(rest)
        spreads.append((sum((x - centre) ** 2 for x in rest) / (len(rest) - 1)) ** 0.5)
    assert rows[0]["log-odds"] == pytest.approx(sum(odds) / 8)
    assert rows[0]["spread of wrong logits"] == pytest.approx(sum(spreads) / 8)


def test_a_study_of_a_setting(monkeypatch, tmp_path):
    monkeypatch.setenv("BOOK_CACHE", str(tmp_path))
    short = {"iterations": 20, "snapshots": [10, 20], "teacher_iterations": 60}
    table = page.resolve_table
    monkeypatch.setattr(page, "resolve_table", lambda setting, _: table(setting, short))
    config = page.TrainingConfig
    monkeypatch.setattr(page, "TrainingConfig", lambda *args: config(*args, overrides=short))
    prepared = page.prepare
    monkeypatch.setattr(page, "prepare", lambda *args, **more: prepared(*args, short, **more))
    forget_data()
    found = page.study.__wrapped__("digits-wide")
    assert list(found.states) == [10, 20]
    assert found.epochs == {10: 0.5, 20: 1.0}
    assert found.states[20].saved["student.head.weight"].shape == (10, 128)
    assert [entry["name"] for entry in data_used()] == ["digits-8x8"]
    monkeypatch.setattr(page, "resolve_table", lambda *_: {"snapshots": []})
    with pytest.raises(ValueError, match="snapshots"):
        page.study.__wrapped__("digits-wide")
    forget_data()
