"""Full-batch descent: against torch.optim.SGD, closed forms, dense Hessians; its records."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from lib.models import convolutional, fully_connected
from lib.stability import descend, stability_threshold, training

CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
)
METHODS = [("gd", 0.0), ("polyak", 0.5), ("polyak", 0.9), ("nesterov", 0.5), ("nesterov", 0.9)]
LOSSES = ["square", "cross-entropy"]


def task(n=40, inputs=6, classes=3, seed=0, dtype=torch.float64, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, inputs, generator=generator, dtype=dtype)
    y = torch.randint(classes, (n,), generator=generator)
    return x.to(device), y.to(device)


def network(seed=0, dtype=torch.float64, device="cpu", **options):
    generator = torch.Generator().manual_seed(seed)
    return fully_connected(6, (8,), 3, generator=generator, dtype=dtype, **options).to(device)


def by_hand(outputs, labels, loss):
    """The losses as the docstring writes them, example by example."""
    if loss == "square":
        target = torch.zeros_like(outputs)
        target[range(len(labels)), labels] = 1
        return ((outputs - target) ** 2).sum(1).mul(0.5).mean()
    return -(outputs.softmax(1)[range(len(labels)), labels]).log().mean()


def by_sgd(model, loss, data, step_size, steps, optimiser, momentum):
    sgd = torch.optim.SGD(
        model.parameters(), lr=step_size, momentum=momentum, nesterov=optimiser == "nesterov"
    )
    losses = []
    for _ in range(steps):
        sgd.zero_grad()
        value = by_hand(model(data[0]), data[1], loss)
        value.backward()
        sgd.step()
        losses.append(float(value.detach()))
    return [*losses, float(by_hand(model(data[0]), data[1], loss).detach())]


def weights(model):
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("optimiser", "momentum"), METHODS)
def test_descent_agrees_with_torch_sgd(optimiser, momentum, loss, device):
    data, model = task(device=device), network(device=device)
    other = copy.deepcopy(model)
    run = descend(model, loss, data, 0.2, 30, optimiser=optimiser, momentum=momentum, every=10)
    losses = by_sgd(other, loss, data, 0.2, 30, optimiser, momentum)
    torch.testing.assert_close(
        run.losses, torch.tensor(losses, dtype=torch.float64), rtol=1e-12, atol=0
    )
    torch.testing.assert_close(weights(model), weights(other), rtol=1e-11, atol=1e-13)


@given(
    step_size=st.floats(1e-3, 0.5),
    momentum=st.floats(0.01, 0.95),
    optimiser=st.sampled_from(["polyak", "nesterov"]),
    loss=st.sampled_from(LOSSES),
    seed=st.integers(0, 1000),
)
@hypothesis_settings(max_examples=15)
def test_descent_agrees_with_torch_sgd_for_any_setting(step_size, momentum, optimiser, loss, seed):
    data, model = task(seed=seed), network(seed)
    other = copy.deepcopy(model)
    options = {"optimiser": optimiser, "momentum": momentum, "every": [1000]}
    run = descend(model, loss, data, step_size, 12, **options)
    losses = by_sgd(other, loss, data, step_size, 12, optimiser, momentum)
    torch.testing.assert_close(
        run.losses, torch.tensor(losses, dtype=torch.float64), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("k", [1, 3])
def test_sharpness_is_that_of_the_iterate_before_its_step(loss, k):
    data, model = task(), network()
    walker = copy.deepcopy(model)
    run = descend(model, loss, data, 0.3, 9, every=3, k=k, tol=1e-6)
    assert run.steps.tolist() == [0, 3, 6, 9]
    for index, step in enumerate(run.steps.tolist()):
        at = copy.deepcopy(walker)
        by_sgd(at, loss, data, 0.3, step, "gd", 0.0)
        names = [name for name, _ in at.named_parameters()]

        def value(*parameters, at=at, names=names):
            outputs = torch.func.functional_call(
                at, dict(zip(names, parameters, strict=True)), data[0]
            )
            return by_hand(outputs, data[1], loss)

        blocks = torch.autograd.functional.hessian(value, tuple(at.parameters()))
        sizes = [parameter.numel() for parameter in at.parameters()]
        dense = torch.cat(
            [
                torch.cat([block.reshape(m, n) for block, n in zip(row, sizes, strict=True)], 1)
                for row, m in zip(blocks, sizes, strict=True)
            ]
        )
        top = torch.linalg.eigvalsh(dense).flip(0)[:k]
        torch.testing.assert_close(run.sharpness[index], top, rtol=1e-9, atol=1e-12)
        share = float((at(data[0]).argmax(1) == data[1]).double().mean())
        assert run.accuracies[index] == pytest.approx(share)
    assert float(run.residuals.max()) < 1e-5


def least_squares(curvatures):
    """A linear map whose loss has given curvatures, and a start with one unit along each."""
    size = len(curvatures)
    model = nn.Linear(size, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    inputs = torch.diag((size * torch.tensor(curvatures, dtype=torch.float64)).sqrt())
    return model, (inputs, torch.zeros(size, 1, dtype=torch.float64))


@pytest.mark.parametrize("step_size", [0.1, 0.49, 0.51])
def test_a_quadratic_follows_its_closed_form(step_size):
    curvatures = [4.0, 1.0, 0.5]
    model, data = least_squares(curvatures)
    run = descend(model, "square", data, step_size, 20, every=4)
    a = torch.tensor(curvatures, dtype=torch.float64)
    t = torch.arange(21, dtype=torch.float64)
    expected = (0.5 * a * (1 - step_size * a) ** (2 * t[:, None])).sum(1)
    torch.testing.assert_close(run.losses, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(run.sharpness[:, 0], torch.full((6,), 4.0).double())
    torch.testing.assert_close(run.times, step_size * torch.arange(0, 21, 4).double())
    assert run.threshold == 2 / step_size
    assert run.crossing == (0 if step_size > 0.5 else None)
    assert run.accuracies is None
    assert run.ended == "steps"


def test_divergence_ends_the_run_before_a_measurement(monkeypatch):
    measured = []

    def spy(loss, parameters, *rest, **options):
        measured.append(float(loss().detach()))
        return real_sharpness(loss, parameters, *rest, **options)

    real_sharpness = training.sharpness
    monkeypatch.setattr(training, "sharpness", spy)
    model, data = least_squares([4.0, 1.0])
    run = descend(model, "square", data, 1.0, 1000, every=1)
    assert run.diverged
    assert run.losses[-1] > 1e3 * run.losses[0]
    assert bool((run.losses[:-1] <= 1e3 * run.losses[0]).all())
    assert len(run.losses) == len(run.steps) + 1 == len(measured) + 1 < 20
    assert max(measured) <= 1e3 * measured[0]
    model, data = least_squares([4.0, 1.0])
    overflow = descend(model, "square", data, 1e200, 10, every=1)
    assert overflow.diverged
    assert overflow.steps.tolist() == [0]


@pytest.mark.parametrize(("optimiser", "momentum"), METHODS)
def test_threshold_is_that_of_the_method(optimiser, momentum):
    for factor, falls in ((0.98, True), (1.02, False)):
        step_size = factor * stability_threshold(1.0, optimiser, momentum) / 4
        model, data = least_squares([4.0])
        options = {"optimiser": optimiser, "momentum": momentum, "every": 500}
        run = descend(model, "square", data, step_size, 500, **options)
        assert run.threshold == pytest.approx(4 / factor)
        assert bool(run.losses[-1] < run.losses[0]) == falls


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("micro_batch", [7, 100])
def test_micro_batches_change_nothing(loss, micro_batch):
    data = task()
    runs, models = [], []
    for size in (None, micro_batch):
        model = network()
        runs.append(descend(model, loss, data, 0.3, 20, every=5, micro_batch=size, tol=1e-6))
        models.append(weights(model))
    torch.testing.assert_close(runs[0].losses, runs[1].losses, rtol=1e-12, atol=0)
    torch.testing.assert_close(runs[0].sharpness, runs[1].sharpness, rtol=1e-9, atol=0)
    assert torch.equal(runs[0].accuracies, runs[1].accuracies)
    torch.testing.assert_close(models[0], models[1], rtol=1e-11, atol=1e-13)


def test_measuring_does_not_touch_the_run():
    """Batch normalisation keeps running statistics, which a measurement must leave alone."""
    ends = []
    for every in (1, [5], [100]):
        model = network(batch_norm=True)
        run = descend(model, "square", task(), 0.1, 10, every=every, optimiser="gd")
        ends.append((weights(model), run.losses))
    for end, losses in ends[1:]:
        assert torch.equal(end, ends[0][0])
        assert torch.equal(losses, ends[0][1])
    assert int(model[3].num_batches_tracked) == 11


def test_grid_of_measurements():
    run = descend(network(), "square", task(), 0.1, 10, every=[2, 3, 10, 50])
    assert run.steps.tolist() == [2, 3, 10]
    assert run.sharpness.shape == run.residuals.shape == (3, 1)
    assert run.products.shape == run.accuracies.shape == run.ratio.shape == (3,)
    assert run.losses.shape == (11,)
    none = descend(network(), "square", task(), 0.1, 0, every=[7])
    assert none.sharpness.shape == (0, 1)
    assert none.losses.shape == (1,)
    assert none.crossing is None


def test_warm_start_saves_products():
    run = descend(network(), "square", task(), 0.01, 4, every=1)
    assert int(run.products[1:].max()) < int(run.products[0])


@pytest.mark.parametrize("goal", [{"goal_accuracy": 0.9}, {"goal_loss": 0.1}])
def test_a_goal_ends_the_run_and_is_measured(goal):
    run = descend(network(), "square", task(), 0.5, 5000, every=7, **goal)
    assert run.ended == "goal"
    assert run.steps[-1] == len(run.losses) - 1 < 5000
    if "goal_loss" in goal:
        assert run.losses[-1] <= 0.1 < run.losses[-2]
    else:
        assert run.accuracies[-1] >= 0.9
        assert bool((run.accuracies[:-1] < 0.9).all())


def test_progress_wraps_the_steps():
    seen = []

    def wrap(steps):
        for step in steps:
            seen.append(step)
            yield step

    descend(network(), "square", task(), 0.1, 5, progress=wrap)
    assert seen == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("pooling", ["max", "average"])
def test_a_convolutional_network_trains(pooling):
    generator = torch.Generator().manual_seed(0)
    model = convolutional((1, 6, 6), (4,), 3, "tanh", generator=generator, pooling=pooling)
    data = task(inputs=36, dtype=torch.float32)
    run = descend(model, "square", data, 0.1, 60, every=20)
    assert run.losses[-1] < 0.9 * run.losses[0]


def test_float32_and_labels_of_any_shape_of_target():
    x, y = task(dtype=torch.float32)
    target = functional.one_hot(y, 3).float()
    ends = []
    for goal in (y, target):
        model = network(dtype=torch.float32)
        ends.append((descend(model, "square", (x, goal), 0.2, 10).losses, weights(model)))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])


X, Y = task()
REFUSED = [
    ({"model": 3}, "model must be a torch.nn.Module"),
    ({"model": nn.Flatten()}, "model must have parameters"),
    ({"model": nn.Sequential(nn.Linear(6, 3).double(), nn.Linear(3, 3))}, "share dtype"),
    ({"model": nn.Sequential(nn.Linear(6, 3).double(), nn.Flatten(0))}, "outputs of shape"),
    ({"loss": "mse"}, "loss must be one of 'square', 'cross-entropy', got 'mse'"),
    ({"data": X}, "data must be a pair"),
    ({"data": (X, Y.tolist())}, r"data\[1\] must be a tensor"),
    ({"data": (X.float(), Y)}, "dtype torch.float64, got torch.float32"),
    ({"data": (X.long(), Y)}, "torch.int64"),
    ({"data": (X / 0, Y)}, "finite"),
    ({"data": (X[:0], Y[:0])}, "n >= 1"),
    ({"data": (X, Y[1:])}, "40 inputs"),
    ({"data": (X, Y + 1)}, "labels from 0 to 2, the model's outputs, got 3"),
    ({"data": (X, Y.int())}, "int64 labels"),
    ({"data": (X, X[:, :2])}, r"targets \(n, 3\)"),
    ({"data": (X, X[:, :3]), "loss": "cross-entropy"}, "int64 labels for loss 'cross-entropy'"),
    ({"step_size": 0.0}, "step_size must be a finite number > 0, got 0.0"),
    ({"step_size": float("nan")}, "step_size"),
    ({"steps": -1}, "steps must be an integer >= 0, got -1"),
    ({"steps": 2.5}, "steps must be an integer"),
    ({"optimiser": "adam"}, "optimiser must be one of"),
    ({"momentum": 0.5}, "momentum must be 0 for optimiser='gd'"),
    ({"optimiser": "polyak", "momentum": 1.0}, r"momentum must be a number in \[0, 1\)"),
    ({"every": 0}, "every must be an integer >= 1, got 0"),
    ({"every": [3, 3]}, r"increasing steps, got \[3, 3\]"),
    ({"every": [-1]}, r"every\[0\]"),
    ({"k": 0}, "k must be an integer >= 1"),
    ({"k": 1000}, "k must be"),
    ({"tol": -1.0}, "tol must be"),
    ({"micro_batch": 0}, "micro_batch must be an integer >= 1, got 0"),
    ({"goal_accuracy": 1.5}, "goal_accuracy must be a finite number > 0 and <= 1"),
    ({"goal_loss": 0.0}, "goal_loss must be"),
    ({"data": (X, X[:, :3]), "goal_accuracy": 0.5}, "goal_accuracy must be None"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_bad_input_is_refused(change, message):
    arguments = {"model": network(), "loss": "square", "data": (X, Y), "step_size": 0.1, "steps": 3}
    with pytest.raises(ValueError, match=message):
        descend(**(arguments | change))
