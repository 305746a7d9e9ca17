"""AdamWeightDecay against a loop in NumPy, closed forms and torch's Adam; the schedule."""

from __future__ import annotations

import copy
import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lib.distill import AdamWeightDecay, learning_rate, parameter_groups
from lib.distill.settings import TrainingSettings

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
PAPER = TrainingSettings("tpkd", 1_125, 42, 3e-4, schedule="warmup-linear", warmup=112)


def google_loop(weight, gradients, rates, first, second, eps, decay):
    """The released rule, number by number, in NumPy."""
    weight = weight.astype(np.float64).copy()
    mean, square = np.zeros_like(weight), np.zeros_like(weight)
    for gradient, rate in zip(gradients, rates, strict=True):
        for i in np.ndindex(weight.shape):
            mean[i] = first * mean[i] + (1.0 - first) * gradient[i]
            square[i] = second * square[i] + (1.0 - second) * gradient[i] * gradient[i]
            update = mean[i] / (np.sqrt(square[i]) + eps) + decay * weight[i]
            weight[i] = weight[i] - rate * update
    return weight, mean, square


def optimise(weight, gradients, rates, **options):
    leaf = torch.tensor(weight, requires_grad=True)
    optimiser = AdamWeightDecay([leaf], lr=0.0, **options)
    for gradient, rate in zip(gradients, rates, strict=True):
        leaf.grad = torch.tensor(gradient)
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
    return leaf, optimiser


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    first=st.floats(0, 0.99),
    second=st.floats(0, 0.9999),
    eps=st.floats(1e-8, 1e-2),
    decay=st.floats(0, 0.5),
)
def test_steps_are_those_of_a_loop(seed, steps, first, second, eps, decay):
    random = np.random.default_rng(seed)
    weight, rates = random.normal(size=(2, 3)), random.uniform(0, 0.1, steps)
    gradients = random.normal(size=(steps, 2, 3)) * 10.0 ** random.integers(-6, 3, (steps, 1, 1))
    options = {"betas": (first, second), "eps": eps, "weight_decay": decay}
    found, optimiser = optimise(weight, gradients, rates, **options)
    expected, mean, square = google_loop(weight, gradients, rates, first, second, eps, decay)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12, atol=1e-14)
    state = optimiser.state[found]
    np.testing.assert_allclose(state["mean"].numpy(), mean, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(state["square"].numpy(), square, rtol=1e-12, atol=1e-300)


def test_defaults_are_the_papers():
    group = AdamWeightDecay([torch.ones(1, requires_grad=True)], lr=3e-4).param_groups[0]
    assert group["betas"] == (0.9, 0.999)
    assert group["eps"] == 1e-6
    assert group["weight_decay"] == 0.01


@pytest.mark.parametrize("gradient", [3.0, -0.2])
def test_constant_gradient_has_a_closed_form(gradient):
    """m_t = (1 - b1^t) g and v_t = (1 - b2^t) g^2."""
    steps, rate = 50, 0.01
    found, _ = optimise(
        np.zeros(1), np.full((steps, 1), gradient), [rate] * steps, eps=1e-300, weight_decay=0.0
    )
    t = np.arange(1, steps + 1)
    walked = (rate * (1 - 0.9**t) / np.sqrt(1 - 0.999**t)).sum()
    assert found.item() == pytest.approx(-np.sign(gradient) * walked, rel=1e-11)


def test_first_step_is_not_corrected():
    found, _ = optimise(np.zeros(1), np.ones((1, 1)), [1.0], eps=1e-300, weight_decay=0.0)
    assert found.item() == pytest.approx(-0.1 / np.sqrt(0.001), rel=1e-12)  # 3.16, not 1


def test_without_a_gradient_only_the_decay_is_left():
    """w_t = w_0 (1 - lr lambda)^t, whatever the moments: the decay does not pass through them."""
    found, optimiser = optimise(np.full(1, 5.0), np.zeros((20, 1)), [0.5] * 20, weight_decay=0.1)
    assert found.item() == pytest.approx(5 * 0.95**20, rel=1e-13)
    assert not optimiser.state[found]["mean"].any()


def test_torchs_adam_takes_the_same_steps_with_its_correction_in_the_rate():
    random = np.random.default_rng(0)
    gradients, start = random.normal(size=(30, 4)), random.normal(size=4)
    theirs = torch.tensor(start, requires_grad=True)
    adam = torch.optim.Adam([theirs], lr=0.01, eps=1e-300)
    for gradient in gradients:
        theirs.grad = torch.tensor(gradient)
        adam.step()
    t = np.arange(1, 31)
    rates = 0.01 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    found, _ = optimise(start, gradients, rates, eps=1e-300, weight_decay=0.0)
    torch.testing.assert_close(found, theirs, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_tensors_at_once_are_each_by_itself(device, dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (), (5,), (1, 1, 2)]
    start = [torch.randn(s, generator=generator, dtype=dtype).to(device) for s in shapes]
    together = [w.clone().requires_grad_() for w in start]
    alone = [w.clone().requires_grad_() for w in start]
    whole = AdamWeightDecay(together, lr=0.1)
    parts = [AdamWeightDecay([w], lr=0.1) for w in alone]
    for _ in range(5):
        for one, two in zip(together, alone, strict=True):
            one.grad = torch.randn(one.shape, generator=generator, dtype=dtype).to(device)
            two.grad = one.grad.clone()
        whole.step()
        for part in parts:
            part.step()
    for one, two in zip(together, alone, strict=True):
        assert one.device.type == device
        assert one.dtype == dtype
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)


def test_groups_decay_as_they_say_and_the_gradientless_stay():
    decayed, free, unused = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in "abc")
    optimiser = AdamWeightDecay(
        [
            {"params": [decayed, unused], "weight_decay": 0.5},
            {"params": [free], "weight_decay": 0.0},
        ],
        lr=0.1,
    )
    decayed.grad, free.grad = torch.zeros_like(decayed), torch.zeros_like(free)
    optimiser.step()
    assert decayed.tolist() == [0.95, 0.95]
    assert free.tolist() == unused.tolist() == [1.0, 1.0]
    assert unused not in optimiser.state


def test_a_restored_optimiser_goes_on_bit_by_bit():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimiser = AdamWeightDecay(model.parameters(), lr=0.01)
    inputs = torch.randn(20, 8, 4)

    def train(model, optimiser, batches):
        for batch in batches:
            optimiser.zero_grad()
            model(batch).square().sum().backward()
            optimiser.step()

    train(model, optimiser, inputs[:10])
    other = copy.deepcopy(model)
    restored = AdamWeightDecay(other.parameters(), lr=99.0)
    restored.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    train(model, optimiser, inputs[10:])
    train(other, restored, inputs[10:])
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_closure_is_called_with_gradients_on():
    weight = torch.ones(1, requires_grad=True)
    optimiser = AdamWeightDecay([weight], lr=0.1)

    def closure():
        loss = (3 * weight).sum()
        loss.backward()
        return loss

    assert optimiser.step(closure).item() == 3
    assert weight.item() < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, r"lr must lie in \[0, inf\), got -1.0"),
        ({"lr": float("nan")}, "lr must lie in"),
        ({"lr": "fast"}, "lr must lie in"),
        ({"betas": (0.9,)}, "betas must be two numbers"),
        ({"betas": (1.0, 0.9)}, r"betas\[0\] must lie in \[0, 1\), got 1.0"),
        ({"betas": (0.9, -0.1)}, r"betas\[1\] must lie in"),
        ({"eps": 0.0}, r"eps must lie in \(0, inf\), got 0.0"),
        ({"weight_decay": -0.1}, "weight_decay must lie in"),
    ],
)
def test_numbers_out_of_range_are_named(options, message):
    weight = torch.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match=message):
        AdamWeightDecay([weight], **{"lr": 0.1, **options})
    with pytest.raises(ValueError, match=message):
        AdamWeightDecay([{"params": [weight], **options}], lr=0.1)


def test_sparse_gradients_are_refused():
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="must be dense"):
        AdamWeightDecay(table.parameters(), lr=0.1).step()


class OwnLayerNorm(nn.Module):
    """Named as a normalisation, but not torch's."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))


class Disguised(nn.BatchNorm1d):
    """Comes from a normalisation and hides it."""


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.norms = nn.ModuleList(
            [nn.LayerNorm(4), nn.BatchNorm2d(4), Disguised(4), OwnLayerNorm()]
        )
        self.head = nn.Linear(4, 7)
        self.head.weight = self.table.weight
        self.position = nn.Parameter(torch.zeros(4))
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def test_biases_and_normalisations_have_no_decay():
    model = Everything()
    decayed, free = parameter_groups(model, 0.01, exclude_bias_and_norm=True)
    names = {id(weight): name for name, weight in model.named_parameters()}
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.01, 0.0)
    assert {names[id(w)] for w in decayed["params"]} == {
        "position",
        "table.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
    }
    norms = {f"norms.{i}.{kind}" for i in range(3) for kind in ("weight", "bias")}
    assert {names[id(w)] for w in free["params"]} == norms | {
        "norms.3.scale",
        "attention.in_proj_bias",
        "attention.out_proj.bias",
        "head.bias",
    }


def test_without_exclusion_there_is_one_group():
    model = Everything()
    (group,) = parameter_groups(model, 1e-3, exclude_bias_and_norm=False)
    trained = {id(weight) for weight in model.parameters() if weight.requires_grad}
    assert group["weight_decay"] == 1e-3
    assert len(group["params"]) == len(trained)
    assert {id(weight) for weight in group["params"]} == trained


def test_groups_are_never_empty():
    (group,) = parameter_groups(nn.LayerNorm(3), 0.01, exclude_bias_and_norm=True)
    assert group["weight_decay"] == 0
    with pytest.raises(ValueError, match="a parameter that requires a gradient"):
        parameter_groups(nn.ReLU(), 0.01, exclude_bias_and_norm=True)
    with pytest.raises(ValueError, match="weight_decay must lie in"):
        parameter_groups(nn.LayerNorm(3), -0.01, exclude_bias_and_norm=True)


@pytest.mark.parametrize(
    ("iteration", "share"),
    [(0, 0), (111, Fraction(111, 112)), (112, Fraction(1_013, 1_125)), (1_124, Fraction(1, 1_125))],
)
def test_rate_of_the_papers_schedule(iteration, share):
    expected = 3e-4 * float(share)
    assert learning_rate(PAPER, iteration) == pytest.approx(expected, rel=1e-13, abs=0)


def test_rate_rises_once_falls_once_and_is_never_the_base_rate():
    rates = [learning_rate(PAPER, k) for k in range(1_125)]
    rises = [after > before for before, after in itertools.pairwise(rates)]
    assert rises == [True] * 111 + [False] * 1_013
    assert max(rates) == rates[111] < 3e-4
    assert sum(r == 0 for r in rates) == 1


def test_constant_rate_and_no_warmup():
    constant = TrainingSettings("ce", 10, 0, 0.5)
    assert {learning_rate(constant, k) for k in range(10)} == {0.5}
    falling = TrainingSettings("ce", 4, 0, 1.0, schedule="warmup-linear")
    assert [learning_rate(falling, k) for k in range(4)] == [1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize("iteration", [-1, 1_125, 3.0])
def test_iteration_out_of_range_is_named(iteration):
    with pytest.raises(ValueError, match=r"iteration must be an integer in \[0, 1125\), got"):
        learning_rate(PAPER, iteration)
