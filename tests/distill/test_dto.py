"""DTO-KD: the shortest combination against a search, its invariances, and its features."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.distill import (
    combine_gradients,
    dto_weights,
    layer_feature_loss,
    objective_loss,
    objective_losses,
)
from lib.distill.batch import prepare_batch
from lib.distill.dto import logit_gradients
from lib.distill.gradients import inner_product
from tests.distill.cases import arguments, evaluate

seeds = st.integers(0, 2**32)
TRIPLE = ("student_logits", "teacher_logits", "labels")


def gradients(seed, size=12, tilt=0.0):
    """Task and distillation gradients and losses; `tilt` makes the gradients similar."""
    generator = torch.Generator().manual_seed(seed)
    task, distil = torch.randn(2, size, generator=generator, dtype=torch.float64)
    losses = 0.1 + 3 * torch.rand(2, generator=generator, dtype=torch.float64)
    return (task, distil + tilt * task), tuple(losses)


@settings(max_examples=30)
@given(seeds, st.sampled_from([-1.0, 0.0, 0.5, 3.0]), st.booleans())
def test_shares_give_the_shortest_combination(seed, tilt, clip):
    """Against every share of a fine grid, on the simplex or on the whole line."""
    (task, distil), losses = gradients(seed, 3, tilt)
    first, second = distil / losses[1], task / losses[0]
    found = dto_weights(task, distil, *losses, clip=clip)
    grid = torch.linspace(0.0 if clip else -20.0, 1.0 if clip else 20.0, 4001).double()
    lengths = (grid.unsqueeze(-1) * first + (1 - grid).unsqueeze(-1) * second).norm(dim=-1)
    best = combine_gradients("dto-kd", (task, distil), losses, clip=clip)
    assert best.norm() <= lengths.min() * (1 + 1e-12)
    torch.testing.assert_close(found.task_share + found.distil_share, torch.ones(()).double())
    torch.testing.assert_close(found.distil, found.distil_share / losses[1])
    torch.testing.assert_close(found.task, found.task_share / losses[0])
    if not clip:
        inner = [inner_product(best, x) for x in (first, second, best)]
        scale = float(first.square().sum() + second.square().sum())
        torch.testing.assert_close(inner[0], inner[2], rtol=0, atol=1e-10 * scale)
        torch.testing.assert_close(inner[1], inner[2], rtol=0, atol=1e-10 * scale)


@settings(max_examples=20)
@given(seeds, st.sampled_from([1e-3, 10.0, 1e6]), st.sampled_from([0, 1]))
def test_scaling_a_loss_changes_nothing(seed, factor, which):
    pair, losses = gradients(seed)
    scaled = [x * factor if i == which else x for i, x in enumerate(pair)]
    values = [x * factor if i == which else x for i, x in enumerate(losses)]
    before, after = dto_weights(*pair, *losses), dto_weights(*scaled, *values)
    torch.testing.assert_close(after.distil_share, before.distil_share)
    torch.testing.assert_close(
        combine_gradients("dto-kd", scaled, values), combine_gradients("dto-kd", pair, losses)
    )


def test_clip_toy():
    """The paper's closed form leaves the simplex; the clip gives its exact solution."""
    distil, task = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 1.0])
    free = dto_weights(task, distil, 1.0, 1.0, clip=False)
    torch.testing.assert_close(free.distil_share.item(), 1.4)
    torch.testing.assert_close(free.task_share.item(), -0.4)
    combined = combine_gradients("dto-kd", (task, distil), (1.0, 1.0), clip=False)
    torch.testing.assert_close(combined, torch.tensor([0.2, -0.4]))
    clipped = dto_weights(task, distil, 1.0, 1.0)
    assert (clipped.distil_share, clipped.task_share) == (1, 0)
    assert torch.equal(combine_gradients("dto-kd", (task, distil), (1.0, 1.0)), distil)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_parallel_and_opposite_gradients(scale):
    one = torch.tensor([3.0, 4.0], dtype=torch.float64) * scale
    for other in (one, one * (1 + 1e-9)):
        found = dto_weights(one, other, 1.0, 1.0)
        assert found.distil_share == 0.5
    across = torch.tensor([4.0, -3.0], dtype=torch.float64) * (scale / 2)
    assert math.isclose(float(dto_weights(one, across, 1.0, 1.0).distil_share), 0.8)
    opposite = dto_weights(one, -one, 1.0, 1.0)
    assert opposite.distil_share == 0.5
    assert not combine_gradients("dto-kd", (one, -one), (1.0, 1.0)).any()
    nothing = torch.zeros(2)
    assert dto_weights(nothing, nothing, 1.0, 1.0).task_share == 0.5


def test_gradients_close_to_each_other_keep_their_share():
    base = torch.ones(4, dtype=torch.float64)
    small = torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    for size in (1e-2, 1e-4, 1e-5):
        found = dto_weights(base + size * small, base - 3 * size * small, 1.0, 1.0)
        assert math.isclose(float(found.distil_share), 0.25, rel_tol=1e-15 / size**2)


def test_normalised_weights_add_up_to_one():
    pair, losses = gradients(3)
    found = dto_weights(*pair, *losses, scale="normalised")
    plain = dto_weights(*pair, *losses)
    torch.testing.assert_close((found.task + found.distil).item(), 1.0)
    torch.testing.assert_close(found.task / found.distil, plain.task / plain.distil)
    with pytest.raises(ValueError, match="clip must be True"):
        dto_weights(*pair, *losses, scale="normalised", clip=False)


def test_losses_have_a_floor():
    task, distil = torch.tensor([0.0, 1.0]), torch.tensor([1e-9, 0.0])
    found = dto_weights(task, distil, 1.0, 0.0)
    torch.testing.assert_close(found.distil / found.distil_share, torch.tensor(1e8).double())
    coarse = dto_weights(task, distil, 1.0, 0.0, floor=0.5)
    torch.testing.assert_close(coarse.distil / coarse.distil_share, torch.tensor(2.0).double())
    same = arguments(0, 3, 4)
    same["teacher_logits"] = same["student_logits"]
    loss, gradient, _ = evaluate("dto-kd", same)
    assert loss.isfinite()
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize(
    "options", [{}, {"scale": "normalised"}, {"balance": "equal"}, {"clip": False}]
)
def test_loss_combines_the_gradients_of_the_logits(options):
    values = arguments(5, 6, 4)
    leaf = values["student_logits"].clone().requires_grad_()
    losses = objective_losses("dto-kd", **values | {"student_logits": leaf}, **options)
    pair = [torch.autograd.grad(loss, leaf)[0] for loss in losses]
    losses = [loss.detach() for loss in losses]
    loss, gradient, _ = evaluate("dto-kd", values, **options)
    combined = combine_gradients("dto-kd", pair, losses, **options)
    torch.testing.assert_close(gradient, combined, rtol=1e-9, atol=1e-15)
    checked = prepare_batch(*(values[key] for key in TRIPLE))
    for ours, auto in zip(logit_gradients(checked), pair, strict=True):
        torch.testing.assert_close(ours, auto, rtol=1e-9, atol=1e-15)
    found = dto_weights(*pair, *losses, **options)
    if options.get("scale") == "normalised":
        expected = found.task * losses[0] + found.distil * losses[1]
    else:
        expected = found.task_share * losses[0].log() + found.distil_share * losses[1].log()
    torch.testing.assert_close(loss, expected)
    single = values | {"student_logits": values["student_logits"][0]}
    one = evaluate("dto-kd", single, clip=False)[1]
    leaf = single["student_logits"].clone().requires_grad_()
    for part in objective_losses("dto-kd", **single | {"student_logits": leaf}):
        log_gradient = torch.autograd.grad(part, leaf)[0] / part.detach()
        torch.testing.assert_close((one * log_gradient).sum(), one.square().sum())


def test_losses_are_those_of_ce_and_kl_dist():
    values = arguments(6, 4, 5)
    task, distil = objective_losses("dto-kd", **values)
    assert torch.equal(task, objective_loss("ce", **values))
    torch.testing.assert_close(distil, objective_loss("kl-dist", **values))


@pytest.mark.parametrize("loss", [math.nan, math.inf, "1", None, torch.zeros(2)])
def test_losses_that_do_not_fit(loss):
    pair, _ = gradients(0)
    with pytest.raises(ValueError, match="task_loss"):
        dto_weights(*pair, loss, 1.0)
    with pytest.raises(ValueError, match="distil_loss"):
        dto_weights(*pair, 1.0, loss)


def test_unknown_option_of_the_weights():
    pair, losses = gradients(0)
    with pytest.raises(ValueError, match="clip, scale, balance, floor"):
        dto_weights(*pair, *losses, momentum=0.9)


def states(seed=0, pairs=2, texts=3, tokens=5, width=4, wide=6):
    generator = torch.Generator().manual_seed(seed)
    student = torch.randn(pairs, texts, tokens, width, generator=generator, dtype=torch.float64)
    teacher = torch.randn(pairs, texts, tokens, wide, generator=generator, dtype=torch.float64)
    projections = torch.randn(pairs, width, wide, generator=generator, dtype=torch.float64)
    mask = torch.rand(texts, tokens, generator=generator) < 0.6
    mask[0, 0] = True
    return student, teacher, projections, mask


def normalised(x):
    return (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt()


def test_feature_loss_is_the_mean_over_layers_of_the_mean_over_real_tokens():
    student, teacher, projections, mask = states()
    total = 0.0
    for m in range(2):
        layer = [
            (normalised(student[m, i, s] @ projections[m]) - normalised(teacher[m, i, s]))
            .square()
            .mean()
            for i in range(3)
            for s in range(5)
            if mask[i, s]
        ]
        total = total + torch.stack(layer).mean() / 2
    torch.testing.assert_close(layer_feature_loss(student, teacher, projections, mask), total)


def test_feature_loss_ignores_padding_teacher_gradients_and_autocast():
    student, teacher, projections, mask = states(1)
    teacher.requires_grad_()
    projections.requires_grad_()
    loss = layer_feature_loss(student, teacher, projections, mask.float())
    loss.backward()
    assert teacher.grad is None
    assert projections.grad.any()
    padded = student.masked_fill(~mask.unsqueeze(-1), 1e3)
    torch.testing.assert_close(layer_feature_loss(padded, teacher, projections, mask), loss)
    narrow = [x.detach().float() for x in (student, teacher, projections)]
    plain = layer_feature_loss(*narrow, mask)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer_feature_loss(*narrow, mask), plain)
    half = layer_feature_loss(*(x.half() for x in narrow), mask)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, plain, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("place", range(4))
def test_features_that_do_not_fit(place):
    good = list(states())
    names = ["student_states", "teacher_states", "projections", "mask"]
    for wrong in ([0.0], good[place][..., :1] if place != 3 else good[3][:, :1]):
        bad = [wrong if i == place else x for i, x in enumerate(good)]
        with pytest.raises(ValueError, match=f"{names[place]}|teacher_states|projections"):
            layer_feature_loss(*bad)
    with pytest.raises(ValueError, match="mask must mark at least one token"):
        layer_feature_loss(*good[:3], torch.zeros_like(good[3]))
