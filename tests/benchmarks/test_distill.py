"""The benchmarks of distillation at their smallest: what they compare is the same work."""

import pytest
import torch

from benchmarks import distill_cases, distill_padding, distill_steps, distill_teacher_cache
from lib.distill import OBJECTIVES, TokenExamples, cached_logits
from lib.distill.checkpoints import write_checkpoint


def test_steps_of_every_method(capsys):
    found = distill_steps.main(["--only", "perceptron", "--rounds", "0.015"])
    seconds = found["perceptron"]
    assert set(seconds) == {*OBJECTIVES, "ce again", "kd again"}
    assert all(len(row) == 3 and min(row) > 0 for row in seconds.values())
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in OBJECTIVES)


def test_a_repeated_step_is_the_same_step():
    case = distill_cases.small_perceptron(128)
    first, again = (distill_steps.Stepping(case, "tpkd", "cpu") for _ in range(2))
    for _ in range(3):
        first()
        again()
    weights = [run.trainer.student.head.weight for run in (first, again)]
    assert torch.equal(*weights)
    assert not torch.equal(weights[0], case.student().head.weight)


@pytest.mark.parametrize(
    ("ours", "noise", "says"),
    [(1.0, 1.0, "within noise"), (1.5, 1.0, "more"), (0.5, 1.0, "less")],
)
def test_verdict_on_tpkd_and_kd(ours, noise, says):
    wave = [0.99, 1.0, 1.01] * 9
    seconds = {
        "kd": [1.0] * 27,
        "kd again": [noise * x for x in wave],
        "tpkd": [ours * x for x in wave],
    }
    assert says in distill_steps.compare(distill_cases.small_perceptron(8), seconds)


def small_pair():
    return distill_teacher_cache.residuals(24, 2, (4, 2))


def test_all_ways_give_a_step_the_same_logits(tmp_path):
    pair = small_pair()
    table = cached_logits(pair.teacher(), pair.examples, tmp_path)
    index, view = torch.tensor([3, 20, 7]), torch.tensor([1, 0, 1])
    inputs = pair.examples.inputs(index, view)
    rows = {
        way: distill_teacher_cache.source(way, pair, table, "cpu")(inputs, index, view)
        for way in distill_teacher_cache.WAYS
    }
    assert torch.equal(rows["mapped"], rows["in memory"])
    assert rows["forward"] == pytest.approx(rows["mapped"], abs=1e-5)
    assert not rows["forward"].requires_grad
    assert distill_teacher_cache.source("no teacher", pair, table, "cpu") is None


def test_time_of_all_ways(tmp_path):
    found = distill_teacher_cache.time_ways("residual", small_pair(), tmp_path, "cpu", 0.3)
    assert {way: len(row) for way, row in found["seconds"].items()} == dict.fromkeys(
        distill_teacher_cache.WAYS, 2
    )
    found |= {"table": (1, 1000, 3), "memory": {}}
    assert len(distill_teacher_cache.time_line("residual", found)) == 8


@pytest.mark.parametrize("way", ["no teacher", "forward", "mapped", "in memory"])
def test_memory_of_every_way(way, tmp_path, monkeypatch):
    monkeypatch.setitem(distill_teacher_cache.PAIRS, "residual", (lambda n: small_pair(), 24))
    path = tmp_path / "table.safetensors"
    write_checkpoint(path, {"logits": torch.randn(2, 24, 100)}, {})
    found = distill_teacher_cache.memory("residual", way, 24, str(path))
    # the peak starts anew after the first reading, and the test process may give memory back
    assert found["peak_mib"] >= 0.8 * (found["before_mib"] or 0) > 0
    line = distill_teacher_cache.memory_line(
        "residual", {"table": (8, 2**15, 1), "memory": {way: found}}
    )
    assert line[1] == "1"


@pytest.fixture
def no_minilm(monkeypatch):
    monkeypatch.setattr(distill_padding, "minilm_layers", lambda *arguments: None)


@pytest.mark.parametrize("part", [16, 64])
@pytest.mark.parametrize("padded", [None, 40])
def test_tokens_per_batch_by_hand(padded, part):
    """The whole set is one batch, so that its parts are those of all lengths in order."""
    tokens, lengths, labels = distill_cases.random_texts(64)
    ordered = sorted(lengths.tolist())
    longest = [max(ordered[k : k + part]) for k in range(0, 64, part)]
    by_hand = sum(part * (padded or width) for width in longest)
    examples = TokenExamples(tokens, lengths, labels, padded)
    assert distill_padding.tokens_per_batch(examples, part) == by_hand


@pytest.mark.usefixtures("no_minilm")
def test_padding_changes_no_logit():
    difference, largest = distill_padding.logit_difference(1, 64)
    assert difference < 1e-5 < largest


@pytest.mark.usefixtures("no_minilm")
def test_padding_report(monkeypatch, capsys):
    memory = {"peak_mib": 9.0, "before_mib": 4.0}
    monkeypatch.setattr(distill_padding, "own_process", lambda *arguments: memory)
    found = distill_padding.main(["--quick"])[1]
    assert found["tokens"]["128"] == 64 * 128
    tokens = [found["tokens"][way] for way in ("128", "one of 64", "two of 32", "four of 16")]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[-1] >= found["real_tokens"]
    assert "logits differ by at most" in capsys.readouterr().out


@pytest.mark.usefixtures("no_minilm")
def test_padding_memory_is_measured():
    found = distill_padding.memory(1, 64, "two of 32")
    assert found["peak_mib"] > 0


def test_random_texts_are_as_long_as_those_of_clinc150():
    tokens, lengths, labels = distill_cases.random_texts(4000)
    assert lengths.double().mean() == pytest.approx(11.0, abs=0.3)
    assert ((tokens > 0).sum(1) == lengths).all()
    assert labels.max() == 149
