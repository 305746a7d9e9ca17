"""DHKD: its two distances against the definitions, and the alignment of gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.distill import align_gradients, combine_gradients, objective_loss, objective_losses
from lib.distill.dual_head import binary_kl, binary_kl_norm
from lib.distill.gradients import inner_product
from tests.distill.cases import arguments, evaluate
from tests.tpkd.states import DEVICES

seeds = st.integers(0, 2**32)


def bernoulli(first, second):
    """KL(Ber(a) || Ber(b)) of probabilities."""
    return first * (first / second).log() + (1 - first) * ((1 - first) / (1 - second)).log()


@settings(max_examples=15)
@given(seeds, st.floats(0.5, 10))
def test_distances_are_their_definitions(seed, temperature):
    values = arguments(seed, 5, 6)
    a, teacher = values["auxiliary_logits"].requires_grad_(), values["teacher_logits"]
    half = torch.full_like(a, 0.5).detach()
    norm = bernoulli(half, ((a - teacher) / temperature).sigmoid())
    plain = bernoulli((teacher / temperature).sigmoid(), (a / temperature).sigmoid())
    slopes = (
        ((a - teacher) / temperature).sigmoid() - 0.5,
        (a / temperature).sigmoid() - (teacher / temperature).sigmoid(),
    )
    for function, terms, slope in zip(
        (binary_kl_norm, binary_kl), (norm, plain), slopes, strict=True
    ):
        ours = function(a, teacher, temperature)
        torch.testing.assert_close(ours, temperature**2 * terms.sum(-1), rtol=1e-8, atol=1e-10)
        (gradient,) = torch.autograd.grad(ours.sum(), a, retain_graph=True)
        torch.testing.assert_close(gradient, temperature * slope, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("delta", [0.0, 1e-12, 1e-3, 1.9, 2.1, 17.0, 1e3, 1e6])
@pytest.mark.parametrize("sign", [-1, 1])
def test_norm_is_accurate_near_and_far(delta, sign):
    """In float32, where the clamp of the released code has no effect from 17 on."""
    a = torch.full((3,), sign * delta, requires_grad=True)
    loss = binary_kl_norm(a, torch.zeros(3), 1.0)
    loss.backward()
    x = delta / 2
    exact = x * x / 2 - x**4 / 12 if x < 0.01 else x + math.log1p(math.exp(-2 * x)) - math.log(2)
    torch.testing.assert_close(loss.item(), 3 * exact, rtol=1e-6, atol=0)
    slope = torch.full((3,), sign * math.tanh(x) / 2)
    torch.testing.assert_close(a.grad, slope, rtol=1e-6, atol=0)


def test_auxiliary_gradient_is_bounded_and_feels_a_common_shift():
    values = arguments(0, 4, 5, 1e3)
    _, _, gradient = evaluate("dhkd", values)
    assert float(gradient.abs().max()) <= 1.0 / 4  # T / 2, over 4 examples
    shifted = values | {"auxiliary_logits": values["teacher_logits"] + 1.0}
    found = evaluate("dhkd", shifted, gamma=0.0)
    expected = torch.full((4, 5), math.tanh(1 / 4) / 4, dtype=torch.float64)
    torch.testing.assert_close(found[2], expected)
    same = values | {"auxiliary_logits": values["teacher_logits"]}
    assert evaluate("dhkd", same, gamma=0.0)[0] == 0


def test_losses_are_task_then_distillation():
    values = arguments(1, 4, 5)
    task, distil = objective_losses("dhkd", **values, gamma=2.0, alpha=0.1)
    torch.testing.assert_close(task, 2 * objective_loss("ce", **values))
    direct = binary_kl_norm(values["auxiliary_logits"], values["teacher_logits"], 2.0).mean()
    torch.testing.assert_close(distil, 0.1 * direct)
    both = objective_loss("dhkd", **values, gamma=2.0, alpha=0.1)
    torch.testing.assert_close(both, task + distil)


@settings(max_examples=40)
@given(seeds, st.floats(-150, 150), st.floats(-150, 150))
def test_alignment_takes_out_a_conflict_and_nothing_else(seed, first, second):
    generator = torch.Generator().manual_seed(seed)
    task, distil = torch.randn(2, 30, generator=generator, dtype=torch.float64)
    task, distil = task * 10.0**first, distil * 10.0**second
    found = align_gradients(task, distil)
    unit = [x / x.abs().max() for x in (task, distil, found)]
    if inner_product(unit[0], unit[1]) >= 0:
        assert torch.equal(found, distil)
        return
    scale = unit[0].norm() * unit[2].norm()
    assert abs(inner_product(unit[0], unit[2])) <= 1e-13 * scale
    part = unit[1] - inner_product(unit[1], unit[0]) / unit[0].square().sum() * unit[0]
    torch.testing.assert_close(found / distil.abs().max(), part, rtol=1e-9, atol=1e-12)


def test_alignment_with_no_task_gradient():
    distil = torch.tensor([1.0, -2.0])
    assert torch.equal(align_gradients(torch.zeros(2), distil), distil)
    assert torch.equal(align_gradients(distil, torch.zeros(2)), torch.zeros(2))
    empty = torch.zeros(0)
    assert align_gradients(empty, empty).shape == (0,)


def test_alignment_can_be_left_out_and_adds_to_the_main_head():
    """Where the distillation gradient is zero a conflict adds a multiple of the task gradient."""
    task, distil = torch.tensor([2.0, 1.0]), torch.tensor([-3.0, 0.0])
    plain = combine_gradients("dhkd", (task, distil), (1.0, 1.0), align=False)
    assert torch.equal(plain, task + distil)
    aligned = combine_gradients("dhkd", [task, distil], [1.0, 1.0])
    torch.testing.assert_close(aligned, torch.tensor([2 - 3 + 2.4, 1 + 1.2]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("device", DEVICES)
def test_alignment_keeps_shape_dtype_and_device(dtype, device):
    task = torch.tensor([[1.0, 1.0]], dtype=dtype, device=device)
    found = align_gradients(task, -task)
    assert torch.equal(found, torch.zeros_like(task))
    assert found.dtype == dtype


@pytest.mark.parametrize(
    ("task", "distil", "named"),
    [
        (torch.zeros(3), torch.zeros(4), "task and distil"),
        (torch.zeros(3), torch.zeros(3, dtype=torch.float64), "task and distil"),
        (torch.zeros(3, dtype=torch.int64), torch.zeros(3), "task"),
        (torch.zeros(3), [0.0], "distil"),
        (torch.tensor([math.nan]), torch.zeros(1), "task"),
        (torch.zeros(1), torch.tensor([math.inf]), "distil"),
    ],
)
def test_gradients_that_do_not_fit(task, distil, named):
    with pytest.raises(ValueError, match=named):
        align_gradients(task, distil)
    with pytest.raises(ValueError, match=named):
        combine_gradients("dto-kd", (task, distil), (1.0, 1.0))
