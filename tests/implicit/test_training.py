from __future__ import annotations

import math

import pytest
import torch

from lib.implicit import (
    ConvolutionalNetwork,
    DenseNetwork,
    DiagonalNetwork,
    HomogeneousNetwork,
    bridge_penalty,
    cosine_weights,
    descend,
    direction_angle,
    duality_gap,
    example_weights,
    log_loss,
    log_time_flow,
    max_margin,
    misalignment,
    norm_value,
    random_separable,
    slackness,
    spectrum,
    stationarity,
    worked_example,
)

CONVEX = [
    (DenseNetwork(2), "l2"),
    (DenseNetwork(3), "l2"),
    (ConvolutionalNetwork(2), "fourier-l1"),
    (DiagonalNetwork(2), "l1"),
]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def generator(seed):
    return torch.Generator().manual_seed(seed)


# --- losses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["exponential", "logistic"])
def test_losses_agree_with_the_plain_formulas_and_do_not_underflow(loss):
    margins = torch.linspace(-20, 40, 31, dtype=torch.float64, requires_grad=True)
    each = torch.exp(-margins) if loss == "exponential" else torch.log1p(torch.exp(-margins))
    assert torch.allclose(log_loss(margins, loss), each.sum().log(), rtol=1e-12)
    (slopes,) = torch.autograd.grad(each.sum(), margins)
    assert torch.allclose(example_weights(margins, loss), slopes / slopes.sum(), atol=1e-15)
    far = torch.tensor([1e5, 1e5 + math.log(3)], dtype=torch.float64)
    assert float(log_loss(far, loss)) == pytest.approx(-1e5 + math.log(4 / 3))
    assert float(example_weights(far, loss)[0]) == pytest.approx(0.75, abs=1e-10)


# --- one step ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["exponential", "logistic"])
@pytest.mark.parametrize("rule", ["plain", "normalised"])
def test_one_step_is_the_gradient_step(rule, loss):
    inputs, labels = worked_example("E3")
    network = DenseNetwork(3, width=2)
    start = cosine_weights(network, 5, scale=0.5)
    run = descend(network, inputs, labels, 1, loss=loss, rule=rule, weights=start, step_size=0.1)
    leaves = [layer.clone().requires_grad_() for layer in start]
    margins = labels * (inputs @ network.predictor(leaves))
    each = torch.exp(-margins) if loss == "exponential" else torch.log1p(torch.exp(-margins))
    gradients = torch.autograd.grad(each.sum(), leaves, retain_graph=True)
    size = 0.1
    if rule == "normalised":
        (slopes,) = torch.autograd.grad(each.sum(), margins, retain_graph=True)
        steepest = max(
            sum(float((g**2).sum()) for g in torch.autograd.grad(m, leaves, retain_graph=True))
            for m in margins
        )
        square = sum(float((layer**2).sum()) for layer in start)
        bound = steepest + 2 * square**0.5 * float(inputs.norm(dim=1).max())
        size = 1 / (bound * -float(slopes.sum()))
    for new, old, gradient in zip(run.weights, start, gradients, strict=True):
        assert torch.allclose(new, old - size * gradient, atol=1e-14)


# --- descent -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("network", "norm"), CONVEX, ids=str)
def test_normalised_descent_never_raises_the_loss_and_reaches_the_optimum(network, norm):
    inputs, labels, beta = random_separable(8, 4, generator(0), norm, batch=(3,))
    calls = []
    run = descend(
        network,
        inputs,
        labels,
        3000,
        generator(1),
        0.01,
        batch=(2,),
        records=200,
        on_record=lambda *at: calls.append(at),
    )
    assert bool((run.log_loss.diff() < 0).all())
    angles = direction_angle(run.direction, beta.unsqueeze(-2))
    assert angles.shape == (2, 3, len(run.step))
    assert float(angles[..., -1].max()) < 6e-2
    assert bool((angles[..., -1] < angles[..., len(run.step) // 2]).all())
    assert calls[-1] == (3000, 3000)
    assert int(run.step[0]) == 1


def test_records_are_consistent():
    inputs, labels = worked_example("E4")
    network = ConvolutionalNetwork(2)
    run = descend(network, inputs, labels, 50, generator(0), 0.1)
    predictor = network.predictor(run.weights)
    margins = labels * (inputs @ predictor)
    assert torch.allclose(run.predictor, predictor)
    assert torch.allclose(run.direction.norm(dim=-1), torch.ones(len(run.step)).double())
    assert float(run.loss[-1]) == pytest.approx(float(torch.exp(-margins).sum()))
    assert float(run.margin[-1]) == pytest.approx(float(margins.min() / predictor.norm()))
    square = sum(float((layer**2).sum()) for layer in run.weights)
    assert float(run.growth[-1]) == pytest.approx(math.log(square))
    assert torch.allclose(run.example_weights[-1], torch.softmax(-margins, -1))


def test_the_error_of_a_dense_network_falls_like_one_over_the_root_of_the_steps():
    inputs, labels = worked_example("E2")
    best = max_margin(inputs, labels, "l2")
    run = descend(
        DenseNetwork(2), inputs, labels, 10_000, weights=cosine_weights(DenseNetwork(2), 4)
    )
    angles = direction_angle(run.direction, best)
    late = run.step >= 300
    slope = torch.linalg.lstsq(
        torch.stack([run.step[late].double().log(), torch.ones(int(late.sum()))], 1).double(),
        angles[late].log()[:, None],
    ).solution[0]
    assert float(slope) == pytest.approx(-0.5, abs=0.02)


@pytest.mark.parametrize(
    ("name", "network", "norm", "angle"),
    [
        ("E1", DiagonalNetwork(2), "l1", 5.2e-6),
        ("E3", DenseNetwork(3), "l2", 2.8e-3),
        ("E3", ConvolutionalNetwork(2), "fourier-l1", 9.4e-4),
        ("E4", DiagonalNetwork(2), "l1", 1.7e-3),
    ],
)
def test_ten_thousand_steps_end_at_the_known_angle(name, network, norm, angle):
    inputs, labels = worked_example(name)
    start = cosine_weights(network, inputs.shape[1])
    run = descend(network, inputs, labels, 10_000, weights=start)
    found = direction_angle(run.predictor, max_margin(inputs, labels, norm))
    assert float(found) == pytest.approx(angle, rel=0.03)


def test_plain_descent_is_slow():
    inputs, labels = worked_example("E2")
    network = ConvolutionalNetwork(2)
    start, best = cosine_weights(network, 4), max_margin(inputs, labels, "fourier-l1")
    fast = descend(network, inputs, labels, 2000, weights=start)
    slow = descend(network, inputs, labels, 2000, weights=start, rule="plain")
    assert float(direction_angle(slow.predictor, best)) > 1e-2
    assert float(direction_angle(fast.predictor, best)) < 1e-3


# --- the log-time flow -------------------------------------------------------------------------

FLOW_AT_20 = [
    ("E1", ConvolutionalNetwork(2), "fourier-l1", 1.8e-7),
    ("E2", ConvolutionalNetwork(2), "fourier-l1", 3.9e-9),
    ("E4", ConvolutionalNetwork(2), "fourier-l1", 4.0e-7),
    ("E1", DiagonalNetwork(2), "l1", 6e-11),
    ("E4", DiagonalNetwork(2), "l1", 1.5e-7),
    ("E1", DenseNetwork(2), "l2", 2.5e-6),
    ("E4", DenseNetwork(4), "l2", 2.0e-3),
]


@pytest.mark.parametrize(("name", "network", "norm", "angle"), FLOW_AT_20, ids=str)
def test_the_flow_reaches_the_optimum_to_many_digits(name, network, norm, angle):
    inputs, labels = worked_example(name)
    start = cosine_weights(network, inputs.shape[1])
    run = log_time_flow(network, inputs, labels, 20, weights=start)
    found = float(direction_angle(run.predictor, max_margin(inputs, labels, norm)))
    assert angle / 3 < found < 2 * angle
    assert float(run.growth[-1]) == pytest.approx(20, abs=1)
    assert float(misalignment(network, run.weights, inputs, labels)) < 1e-4
    assert float(slackness(run.predictor, inputs, labels)) < 1e-6
    middle = run.direction[9]
    gap = duality_gap(middle, inputs, labels, norm, run.example_weights[9])
    assert 1e-7 < float(gap) < 1e-3


@pytest.mark.parametrize("loss", ["exponential", "logistic"])
def test_the_flow_is_the_limit_of_small_descent_steps(loss):
    inputs, labels = worked_example("E2")
    network = DiagonalNetwork(3)
    start = cosine_weights(network, 4, scale=1.0)
    flow = log_time_flow(network, inputs, labels, 4, weights=start, loss=loss, tolerance=1e-9)
    target = float(flow.growth[-1])
    errors = []
    for step_size in (0.02, 0.01):
        run = descend(
            network,
            inputs,
            labels,
            int(40 / step_size),
            weights=start,
            loss=loss,
            rule="plain",
            step_size=step_size,
            records=300,
        )
        after = int((run.growth > target).nonzero()[0])
        low, high = run.growth[after - 1], run.growth[after]
        share = (target - low) / (high - low)
        there = torch.lerp(run.direction[after - 1], run.direction[after], share)
        errors.append(float(direction_angle(there, flow.direction[-1])))
    assert errors[1] / errors[0] == pytest.approx(0.5, abs=0.1)
    assert errors[0] < 1e-2


def test_twenty_random_sets_in_sixty_four_dimensions():
    for network, norm in (*CONVEX[:1], *CONVEX[2:]):
        inputs, labels, beta = random_separable(64, 12, generator(3), norm, batch=(20,))
        run = log_time_flow(network, inputs, labels, 24, generator(4), records=2)
        assert float(direction_angle(run.predictor, beta).max()) < 1e-4


DEPTH_THREE = {
    ("E1", "fourier"): {1.4422: 17, 3.8259: 7},
    ("E1", "signal"): {1.8865: 17, 2.2174: 5, 3.4294: 2},
    ("E2", "fourier"): {1.4614: 1, 1.5874: 15, 2.5771: 7, 3.5422: 1},
    ("E2", "signal"): {1.3663: 15, 1.9859: 6, 2.0: 3},
}


@pytest.mark.parametrize(("name", "domain"), DEPTH_THREE)
def test_depth_three_limits_depend_on_the_start(name, domain):
    inputs, labels = worked_example(name)
    network = ConvolutionalNetwork(3) if domain == "fourier" else DiagonalNetwork(3)
    start = cosine_weights(network, inputs.shape[1], offset=100 * torch.arange(24))
    run = log_time_flow(network, inputs, labels, 24, weights=start, records=1)
    assert float(stationarity(run.predictor, inputs, labels, 2 / 3, domain).max()) < 1e-4
    smallest = (labels * (run.predictor @ inputs.T)).amin(-1, keepdim=True)
    found = bridge_penalty(run.predictor / smallest, 2 / 3, domain)
    counts = {
        limit: int(((found - limit).abs() < 1e-3).sum()) for limit in DEPTH_THREE[name, domain]
    }
    assert counts == DEPTH_THREE[name, domain]


# --- starts outside the theorems ---------------------------------------------------------------


def test_constant_kernels_never_leave_the_mean():
    inputs, labels = worked_example("E2")
    network, start = ConvolutionalNetwork(2), torch.full((2, 4), 0.1)
    run = log_time_flow(network, inputs, labels, 15, weights=start)
    assert float(spectrum(run.direction[-1])[1:].abs().max()) < 1e-12
    unit = run.predictor / (labels * (inputs @ run.predictor)).min()
    assert float(norm_value(unit, "fourier-l1")) == pytest.approx(2, abs=1e-6)
    angle = direction_angle(unit, max_margin(inputs, labels, "fourier-l1"))
    assert float(angle) == pytest.approx(0.2037, abs=1e-4)


def test_positive_equal_layers_cannot_reach_a_separator_with_a_negative_entry():
    inputs, labels = worked_example("E3")
    start = torch.full((2, 5), 0.5)
    run = descend(DiagonalNetwork(2), inputs, labels, 3000, weights=start, rule="plain")
    assert bool((run.direction >= 0).all())
    assert float(run.loss[-1]) == pytest.approx(2.61, abs=0.01)
    with pytest.raises(RuntimeError, match="1 of 1 starts did not reach"):
        log_time_flow(DiagonalNetwork(2), inputs, labels, 20, weights=start, most_steps=200)


def test_zero_weights_stay_where_they_are():
    inputs, labels = worked_example("E2")
    run = descend(DiagonalNetwork(2), inputs, labels, 10, weights=torch.zeros(2, 4))
    assert bool((run.weights[0] == 0).all())
    assert bool(run.direction.isnan().all())


# --- homogeneous maps beyond the three ---------------------------------------------------------


def test_difference_of_squares_finds_l1_without_a_sign_in_the_start():
    for name, angle in (("E2", 3.3e-5), ("E3", 9.0e-5)):
        inputs, labels = worked_example(name)
        d = inputs.shape[1]
        network = HomogeneousNetwork(
            lambda w, d=d: w[:d] ** 2 - w[d:] ** 2,
            2,
            hessian_bound=lambda w: 2 * torch.ones_like(w[..., 0]),
        )
        start = torch.full((2 * d,), 0.01)
        flow = log_time_flow(network, inputs, labels, 20, weights=start)
        best = max_margin(inputs, labels, "l1")
        assert float(direction_angle(flow.predictor, best)) < 1e-6
        run = descend(network, inputs, labels, 1000, weights=start)
        found = float(direction_angle(run.predictor, best))
        assert angle < found < 12 * angle  # angles at ten times as many steps


def test_the_cyclic_quadratic_ends_at_the_least_weights():
    inputs, labels = worked_example("E1")
    network = HomogeneousNetwork(lambda w: w * w.roll(-1), 2)
    run = log_time_flow(network, inputs, labels, 15, generator(0), 0.1, batch=(5,))
    expected = torch.tensor([0.75594201, 0.83729467, 1.16270533], dtype=torch.float64)
    assert float(direction_angle(run.predictor, expected).max()) < 1e-4
    smallest = (labels * (run.predictor @ inputs.T)).amin(-1)
    assert torch.allclose((run.weights**2).sum(-1) / smallest, torch.tensor(2.88194193).double())


# --- symmetries and refusals -------------------------------------------------------------------


def test_training_commutes_with_the_symmetries_of_the_network():
    inputs, labels = worked_example("E4")
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=generator(0), dtype=torch.float64)).Q
    order = torch.randperm(8, generator=generator(1))
    dense, diagonal, conv = DenseNetwork(2), DiagonalNetwork(2), ConvolutionalNetwork(2)
    first, last = cosine_weights(dense, 8)
    layers, kernels = cosine_weights(diagonal, 8), cosine_weights(conv, 8)
    pairs = [
        (dense, (first, last), inputs @ rotation, (rotation.T @ first, last), rotation.T),
        (
            diagonal,
            layers,
            inputs[:, order],
            [layer[order] for layer in layers],
            torch.eye(8, dtype=torch.float64)[order],
        ),
        (
            conv,
            kernels,
            inputs.roll(3, 1),
            (kernels[0].roll(3), kernels[1]),
            torch.eye(8, dtype=torch.float64).roll(3, 0),
        ),
    ]
    for network, start, moved, moved_start, matrix in pairs:
        plain = descend(network, inputs, labels, 100, weights=start).predictor
        changed = descend(network, moved, labels, 100, weights=moved_start).predictor
        assert torch.allclose(matrix @ plain, changed, atol=1e-10)


def test_seeds_decide():
    inputs, labels = worked_example("E2")
    runs = [descend(DiagonalNetwork(2), inputs, labels, 5, generator(s)).norm for s in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_errors():
    inputs, labels = worked_example("E2")
    network = DiagonalNetwork(2)
    with pytest.raises(ValueError, match="rule must be one of 'normalised', 'plain', got 'flow'"):
        descend(network, inputs, labels, 5, generator(0), rule="flow")
    with pytest.raises(ValueError, match="loss must be one of"):
        descend(network, inputs, labels, 5, generator(0), loss="hinge")
    with pytest.raises(ValueError, match="steps must be an integer >= 1"):
        descend(network, inputs, labels, 0, generator(0))
    with pytest.raises(ValueError, match="generator must be given"):
        descend(network, inputs, labels, 5)
    with pytest.raises(ValueError, match="labels must be -1 or"):
        descend(network, inputs, torch.tensor([0, 1]), 5, generator(0))
    with pytest.raises(ValueError, match=r"weights\[0\] must have shape"):
        descend(network, inputs, labels, 5, weights=torch.ones(2, 3))
    with pytest.raises(ValueError, match="growth must be a finite number > 0 and <= 40"):
        log_time_flow(network, inputs, labels, 50, generator(0))
    with pytest.raises(FloatingPointError, match="use a step_size below 1e\\+06"):
        descend(network, inputs, labels, 50, generator(0), 1.0, rule="plain", step_size=1e6)
    with pytest.raises(ValueError, match="predictor must give every example a positive margin"):
        slackness(torch.zeros(4), inputs, labels)
