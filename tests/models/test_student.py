"""The form of a student: its two parts, its head, borrowed randomness, means over real tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, truncnorm
from torch import nn

from lib.models.student import Student, drawn_from, masked_mean, new_head


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_logits_are_the_heads_of_the_features():
    student = Student(nn.Sequential(nn.Flatten(), nn.Tanh()), nn.Linear(6, 4)).double()
    x = torch.randn(5, 2, 3, dtype=torch.float64, generator=generator())
    expected = x.flatten(1).tanh() @ student.head.weight.T + student.head.bias
    torch.testing.assert_close(student(x), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(student.features(x), x.flatten(1).tanh(), rtol=0, atol=0)


def test_body_may_read_several_inputs():
    class Difference(nn.Module):
        def forward(self, first, second):
            return first - second

    student = Student(Difference(), nn.Linear(3, 2, bias=False))
    x = torch.eye(3)
    assert torch.equal(student(x, x), torch.zeros(3, 2))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_weights_of_a_head_are_truncated_normal(seed):
    head = new_head(200, 150, generator(seed), torch.float64)
    weights = head.weight.detach().flatten()
    assert weights.abs().max() <= 0.04
    assert kstest(weights.numpy() / 0.02, truncnorm(-2, 2).cdf).pvalue > 1e-3
    assert torch.equal(head.bias, torch.zeros(150, dtype=torch.float64))
    again = new_head(200, 150, generator(seed), torch.float64)
    assert torch.equal(head.weight, again.weight)
    assert not torch.equal(head.weight, new_head(200, 150, generator(9), torch.float64).weight)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [((0, 3, generator()), "width"), ((3, 1.5, generator()), "classes"), ((3, 3, None), "gener")],
)
def test_a_head_refuses(arguments, word):
    with pytest.raises(ValueError, match=word):
        new_head(*arguments)


def test_borrowed_randomness_leaves_the_global_one_alone():
    torch.manual_seed(7)
    state = torch.get_rng_state()
    source = generator(3)
    with drawn_from(source):
        first = torch.rand(4)
    with drawn_from(source):
        second = torch.rand(4)
    with pytest.raises(RuntimeError), drawn_from(generator(3)):
        torch.rand(-1)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, second)
    with drawn_from(generator(3)):
        assert torch.equal(torch.rand(4), first)


def test_borrowed_randomness_needs_a_generator():
    with pytest.raises(ValueError, match="generator"), drawn_from(3):
        pass


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 1000))
def test_mean_over_real_tokens(lengths, seed):
    """Text by text, whatever the padding holds."""
    states = torch.randn(len(lengths), 6, 3, dtype=torch.float64, generator=generator(seed))
    mask = torch.arange(6) < torch.tensor(lengths)[:, None]
    expected = torch.stack([h[:k].sum(0) / k for h, k in zip(states, lengths, strict=True)])
    torch.testing.assert_close(masked_mean(states, mask), expected, rtol=1e-13, atol=1e-14)
    garbage = states.where(mask[..., None], 1e6)
    torch.testing.assert_close(masked_mean(garbage, mask), expected, rtol=1e-13, atol=1e-14)
