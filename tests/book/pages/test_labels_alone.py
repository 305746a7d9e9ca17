"""Label steps and the label flow, against each other and closed forms."""

import math

import pytest
import torch

from lib.book.pages import labels_alone
from lib.book.pages.task_preserving_states import random_states
from lib.tpkd import conditional_log_probs, run_output_steps

LABEL = torch.tensor(0)


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("classes", [3, 5])
def test_label_flow_agrees_with_small_steps(classes):
    z = torch.randn(4, classes, generator=generator(4), dtype=torch.float64)
    _, time, path = labels_alone.label_flow(z, LABEL.expand(4), 2.0, 50)
    size = 1e-3
    steps = int(float(time[-1, 0]) / size)
    r = conditional_log_probs(z[:1], LABEL[None]).exp()[:, 1:]
    odds = r * (-(z[:1, :1] - z[:1, 1:].logsumexp(-1, keepdim=True))).exp()
    _, stepped = labels_alone.label_steps(odds, size, steps)
    ended = conditional_log_probs(path[-1, :1], LABEL[None]).exp()[:, 1:]
    torch.testing.assert_close(stepped, ended, atol=2e-3, rtol=0)


def test_time_of_the_flow_at_an_even_student():
    # r stays uniform: logit rho = c + s K / (K - 1), dt = (1 + exp(logit rho)) ds
    _, time, _ = labels_alone.label_flow(torch.zeros(3), LABEL, 3.0, 60)
    exact = 3 + 0.5 * (math.exp(4.5) - 1) / 1.5
    assert float(time[-1]) == pytest.approx(exact, rel=1e-6)


def test_label_steps_are_output_steps():
    z = torch.randn(6, 4, generator=generator(5), dtype=torch.float64)
    run = run_output_steps(z, torch.zeros(4), LABEL.expand(6), 0.3, 40, "ce", record=[40])
    doubt, r = labels_alone.label_steps((z[:, 1:] - z[:, :1]).exp(), 0.3, 40)
    torch.testing.assert_close(doubt, run.doubt[0])
    torch.testing.assert_close(
        r, conditional_log_probs(run.logits[0], LABEL.expand(6)).exp()[:, 1:]
    )


def test_a_class_that_is_not_there_changes_nothing():
    start = torch.tensor([[2.0, 0.5]])
    padded = torch.tensor([[2.0, 0.5, 0.0]])
    for one, two in zip(
        labels_alone.label_steps(start, 0.1, 30),
        labels_alone.label_steps(padded, 0.1, 30),
        strict=True,
    ):
        torch.testing.assert_close(one, two[..., : one.shape[-1]])


def test_flow_slopes_agree():
    z, _, labels = random_states(5, 30, generator(6))
    torch.testing.assert_close(*labels_alone.flow_slopes(z, labels), atol=1e-12, rtol=1e-9)
