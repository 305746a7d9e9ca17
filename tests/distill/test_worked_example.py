"""Every row of the worked example, in float64, to the digits that it has."""

from __future__ import annotations

import pytest
import torch

from lib.distill import (
    align_gradients,
    combine_gradients,
    dto_weights,
    objective_losses,
)
from lib.distill.gradients import inner_product
from lib.tpkd import (
    bernoulli_kl,
    conditional_component,
    conditional_kl,
    directions,
    log_odds,
    margins,
    minimum_confidence,
    potential,
    potential_gradient,
    project_onto_safe_cone,
    transfer_cost,
    update_direction,
)
from tests.distill import worked_example as row
from tests.distill.cases import evaluate, split

VALUES = {
    "student_logits": row.STUDENT,
    "teacher_logits": row.TEACHER,
    "labels": row.LABEL,
    "frozen_logits": row.FROZEN,
    "auxiliary_logits": row.STUDENT,
}
PAIR = (row.STUDENT, row.TEACHER, row.LABEL)


def agrees(ours, printed):
    """To 1e-9 relative; zeros to the rounding of their terms."""
    printed = torch.as_tensor(printed, dtype=torch.float64)
    torch.testing.assert_close(ours.squeeze(), printed, rtol=1e-9, atol=1e-15)


def test_basic_quantities():
    at, soft = split(VALUES), split(VALUES, 4.0)
    for name in ("p", "t", "p0"):
        agrees(at[name], row.SOFTMAX[name])
    for name in ("r", "q"):
        agrees(at[name][:, 1:], row.SOFTMAX[name])
    for name in ("p", "t"):
        agrees(soft[name], row.SOFTMAX[f"{name}4"])


@pytest.mark.parametrize(("name", "options", "loss", "gradient"), row.OBJECTIVE_ROWS)
def test_losses_and_gradients(name, options, loss, gradient):
    ours, in_logits, _ = evaluate(name, VALUES, **options)
    agrees(in_logits, gradient)
    if loss is not None:
        agrees(ours, loss)


@pytest.mark.parametrize(("options", "loss", "gradient"), row.AUXILIARY_ROWS)
def test_dual_head(options, loss, gradient):
    ours, main, auxiliary = evaluate("dhkd", VALUES, **options)
    agrees(ours, loss)
    agrees(auxiliary, gradient)
    agrees(main, [options.get("gamma", 1.0) * h for h in row.H])


def test_data_partition_switches_with_the_label():
    switched = {**VALUES, "labels": torch.tensor([1])}
    loss, gradient, _ = evaluate("dp-s", switched)
    agrees(loss, 0.3181480630)
    agrees(gradient, row.KL_DIST)
    agrees(evaluate("dp-u", switched)[1], row.PARTITION)


def test_alignment_toy():
    task = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    distil = torch.tensor([-1.0, 1.0, 2.0], dtype=torch.float64)
    agrees(align_gradients(task, distil), row.ALIGNED)
    agrees(combine_gradients("dhkd", (task, distil), (1.0, 1.0)), row.ALIGNED_SUM)


def test_dto_quantities():
    expected = row.DTO_QUANTITIES
    student = row.STUDENT.clone().requires_grad_()
    losses = objective_losses("dto-kd", student, row.TEACHER, row.LABEL)
    task, distil = (torch.autograd.grad(loss, student)[0].flatten() for loss in losses)
    losses = [loss.detach() for loss in losses]
    first, second = distil / losses[1], task / losses[0]
    agrees(first, expected["g1"])
    agrees(second, expected["g2"])
    agrees(inner_product(first, first), expected["g11"])
    agrees(inner_product(first, second), expected["g12"])
    agrees(inner_product(second, second), expected["g22"])
    found = dto_weights(task, distil, *losses)
    agrees(torch.stack([found.distil_share, found.task_share]), expected["pi"])
    agrees(torch.stack([found.distil, found.task]), expected["weights"])
    scaled = dto_weights(task, distil, *losses, scale="normalised")
    agrees(torch.stack([scaled.distil, scaled.task]), expected["normalised"])
    best = combine_gradients("dto-kd", (task, distil), losses)
    agrees(best, row.DTO)
    for other in (first, second, best):
        agrees(inner_product(best, other), expected["inner"])
    normalised = combine_gradients("dto-kd", (task, distil), losses, scale="normalised")
    agrees(normalised, row.DTO_NORMALISED)
    agrees(combine_gradients("dto-kd", (task, distil), losses, balance="equal"), row.DTO_EQUAL)


def test_tpkd_quantities():
    expected = row.TPKD_QUANTITIES
    found = directions(*PAIR)
    u, d, ell = found.conditional, found.corrected, found.compensation
    component = conditional_component(d, row.LABEL)
    agrees(u, expected["u"])
    agrees(d, expected["d"])
    agrees(ell, expected["ell"])
    agrees(found.clipped_teacher, expected["clipped"])
    agrees(component, expected["component"])
    agrees(conditional_kl(*PAIR), expected["conditional_kl"])
    agrees(bernoulli_kl(*PAIR), expected["bernoulli_kl"])
    agrees(potential(*PAIR, 4.0), expected["potential"])
    agrees((u * d).sum() / u.square().sum(), expected["retention"])
    cosine = torch.nn.functional.cosine_similarity
    joint = potential_gradient(found.label, u)
    agrees(cosine(joint, found.update), expected["cos_potential"])
    agrees(cosine(u, component), expected["cos_component"])
    agrees(transfer_cost(*PAIR), expected["transfer_cost"])
    agrees(transfer_cost(*PAIR).exp(), expected["largest_ratio"])
    agrees(minimum_confidence(*PAIR), expected["minimum_confidence"])
    agrees(update_direction("ce-plus-kl", *PAIR), expected["ce_plus_kl"])


def test_prefix_candidates_and_local_loss():
    expected = row.TPKD_QUANTITIES
    found, at = directions(*PAIR), split(VALUES)
    ascending = found.conditional[0, 1:].sort().values
    sums = torch.cat([torch.zeros(1, dtype=torch.float64), ascending.cumsum(0)])
    torch.testing.assert_close(
        sums / torch.arange(1, 5),
        torch.tensor(row.CANDIDATES, dtype=torch.float64),
        rtol=1e-9,
        atol=1e-15,
    )
    ell = found.compensation
    q, r = found.clipped_teacher[:, 1:] / (1 - ell), at["r"][:, 1:]
    local = (1 - ell) * (q * (q / r).log()).sum() - ell * log_odds(row.STUDENT, row.LABEL)
    agrees(local, expected["local_loss"])
    agrees(project_onto_safe_cone(at["p"] - at["t"], row.LABEL), expected["safe_gap"])


def test_margins_after_one_output_step():
    agrees(margins(row.STUDENT, row.LABEL), (0.0, 1.0, 1.9, 3.0))
    for name, expected in row.MARGINS.items():
        gradient = evaluate(name, VALUES)[1]
        stepped = margins(row.STUDENT - 0.5 * gradient, row.LABEL)
        agrees(stepped[:, 1:], expected)


def test_blocked_example():
    """Figure 1 of the paper: safe full imitation has nothing to give, TPKD does."""
    values = {
        "student_logits": torch.tensor([[0.9, 0.07, 0.03]], dtype=torch.float64).log(),
        "teacher_logits": torch.tensor([[0.4, 0.25, 0.35]], dtype=torch.float64).log(),
        "labels": torch.tensor([0]),
        "frozen_logits": None,
        "auxiliary_logits": torch.zeros(3),
    }
    agrees(evaluate("tpkd-full-kl", values)[1], (-0.1, 0.07, 0.03))
    d = (-17 / 120, 17 / 60, -17 / 120)
    agrees(evaluate("tpkd-no-label", values, weight=1.0)[1], d)
    exact = (-0.1 - 17 / 240, 0.07 + 17 / 120, 0.03 - 17 / 240)
    agrees(evaluate("tpkd", values)[1], exact)
