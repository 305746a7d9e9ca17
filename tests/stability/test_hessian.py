import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator, eigsh
from torch.func import functional_call, hessian

from lib.stability import (
    Sharpness,
    SharpnessError,
    dense_hessian,
    hessian_vector_product,
    product_hessian,
    product_loss,
    product_sharpness,
    sharpness,
)

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]


def network(widths, activation, seed, dtype=torch.float64):
    """A fully connected network with weights from an explicit generator."""
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layer = torch.nn.Linear(fan_in, fan_out, dtype=dtype)
        with torch.no_grad():
            for leaf in layer.parameters():
                noise = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
                leaf.copy_(noise / math.sqrt(fan_in))
        layers += [layer, activation()]
    return torch.nn.Sequential(*layers[:-1])


def examples(count, inputs, classes, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(100 + seed)
    points = torch.randn(count, inputs, generator=generator, dtype=torch.float64).to(dtype)
    return points, torch.randint(classes, (count,), generator=generator)


def loss_of(outputs, labels, kind):
    if kind == "cross-entropy":
        return torch.nn.functional.cross_entropy(outputs, labels)
    targets = torch.nn.functional.one_hot(labels, outputs.shape[1]).to(outputs)
    return (outputs - targets).square().sum(1).mean() / 2


def functional_hessian(net, inputs, labels, kind):
    """The Hessian by forward over reverse differentiation: torch.func, not our double backward."""
    names = [name for name, _ in net.named_parameters()]
    shapes = [leaf.shape for leaf in net.parameters()]
    sizes = [leaf.numel() for leaf in net.parameters()]

    def flat_loss(flat):
        parts = [p.view(s) for p, s in zip(flat.split(sizes), shapes, strict=True)]
        return loss_of(
            functional_call(net, dict(zip(names, parts, strict=True)), inputs), labels, kind
        )

    return hessian(flat_loss)(torch.cat([leaf.detach().reshape(-1) for leaf in net.parameters()]))


def quadratic(curvatures):
    """The loss sum a_i theta_i^2 / 2 and its parameters."""
    curvatures = torch.as_tensor(curvatures, dtype=torch.float64)
    theta = torch.ones_like(curvatures, requires_grad=True)
    return lambda: (curvatures * theta.square()).sum() / 2, [theta]


@pytest.mark.parametrize("kind", ["square", "cross-entropy"])
@pytest.mark.parametrize("activation", [torch.nn.Tanh, torch.nn.Softplus, torch.nn.ReLU])
@pytest.mark.parametrize("seed", range(2))
def test_small_networks_against_the_dense_hessian_of_torch_func(kind, activation, seed):
    net = network([5, 12, 8, 3], activation, seed)
    inputs, labels = examples(30, 5, 3, seed)
    parameters = list(net.parameters())

    def loss():
        return loss_of(net(inputs), labels, kind)

    matrix = functional_hessian(net, inputs, labels, kind).detach()
    dense = dense_hessian(loss, parameters)
    assert float((dense - matrix).abs().max()) < 1e-12 * float(matrix.abs().max())
    exact = np.linalg.eigvalsh(matrix.numpy())[::-1]
    vector = torch.randn(len(matrix), generator=torch.Generator().manual_seed(seed)).double()
    image = hessian_vector_product(loss, parameters, vector)
    assert float((image - matrix @ vector).norm() / image.norm()) < 1e-12
    for k in (1, 4):
        found = sharpness(loss, parameters, k=k)
        assert found.values.tolist() == pytest.approx(exact[:k].tolist(), rel=1e-6)
        misses = (found.vectors @ matrix - found.values[:, None] * found.vectors).norm(dim=1)
        truth = misses / found.values.abs()
        assert found.residuals.tolist() == pytest.approx(truth.tolist(), rel=1e-6, abs=1e-13)
        assert float(found.residuals.max()) <= 2e-4
        tight = sharpness(loss, parameters, k=k, tol=1e-9)
        assert tight.values.tolist() == pytest.approx(exact[:k].tolist(), rel=1e-11)


@pytest.mark.parametrize("kind", ["square", "cross-entropy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_larger_networks_against_arpack(kind, dtype):
    net = network([30, 60, 60, 10], torch.nn.Tanh, 0, dtype)
    inputs, labels = examples(200, 30, 10, 0, dtype)
    parameters = list(net.parameters())
    size = sum(leaf.numel() for leaf in parameters)

    def loss():
        return loss_of(net(inputs), labels, kind)

    gradient = torch.autograd.grad(loss(), parameters, create_graph=True)
    flat = torch.cat([entry.reshape(-1) for entry in gradient])

    def product(vector):
        dot = flat @ torch.from_numpy(vector.ravel()).to(dtype)
        image = torch.autograd.grad(dot, parameters, retain_graph=True)
        return torch.cat([entry.reshape(-1) for entry in image]).double().numpy()

    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(size)
    arpack = np.sort(eigsh(operator, 3, which="LA", tol=1e-6, v0=start)[0])[::-1]
    found = sharpness(loss, parameters, k=3)
    assert found.values.tolist() == pytest.approx(arpack.tolist(), rel=1e-6)
    assert float(sharpness(loss, parameters).values[0]) == pytest.approx(arpack[0], rel=1e-6)
    assert found.values.dtype == found.vectors.dtype == found.residuals.dtype == torch.float64
    assert found.vectors.shape == (3, size)
    unit = found.vectors @ found.vectors.T
    assert float((unit - torch.eye(3, dtype=torch.float64)).abs().max()) < 1e-9


@given(a=st.floats(-4, 4), b=st.floats(-4, 4))
def test_product_function_has_its_closed_form(a, b):
    point = torch.tensor([a, b], dtype=torch.float64, requires_grad=True)
    found = sharpness(lambda: product_loss(point), [point], k=2, tol=1e-9)
    exact = torch.linalg.eigvalsh(product_hessian(point.detach())).flip(0)
    scale = float(exact.abs().max())
    assert found.values.tolist() == pytest.approx(exact.tolist(), abs=1e-9 * scale)
    assert float(found.values[0]) == pytest.approx(
        product_sharpness(point).item(), abs=1e-9 * scale
    )


def test_dominant_negative_curvature_does_not_count():
    loss, parameters = quadratic([-1000.0, *torch.linspace(0, 3, 200).tolist()])
    found = sharpness(loss, parameters)
    assert float(found.values[0]) == pytest.approx(3.0, rel=1e-6)
    assert sharpness(*quadratic([-5.0, -2.0, -1.0])).values.tolist() == pytest.approx([-1.0])


def test_flat_directions_have_curvature_zero():
    found = sharpness(*quadratic([2.0, 0.0, 0.0, -1.0]), k=3)
    assert found.values.tolist() == pytest.approx([2.0, 0.0, 0.0], abs=1e-12)
    theta = torch.ones(3, requires_grad=True)
    linear = sharpness(lambda: theta.sum(), [theta], k=2)
    assert linear.values.tolist() == linear.residuals.tolist() == [0.0, 0.0]


def test_parameters_the_loss_does_not_use():
    loss, parameters = quadratic([4.0, 1.0])
    unused = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    assert float(sharpness(loss, [unused, *parameters]).values[0]) == pytest.approx(4.0)


@pytest.mark.parametrize("k", [2, 4])
def test_repeated_and_crowded_eigenvalues(k):
    curvatures = [5.0, 5.0, 4.999, 4.99, *torch.linspace(-1, 4, 120).tolist()]
    loss, parameters = quadratic(curvatures)
    found = sharpness(loss, parameters, k=k, tol=1e-6)
    assert found.values.tolist() == pytest.approx(curvatures[:k], rel=1e-9)


def test_warm_start_needs_fewer_products():
    net = network([30, 60, 60, 10], torch.nn.Tanh, 1)
    inputs, labels = examples(200, 30, 10, 1)
    parameters = list(net.parameters())

    def loss():
        return loss_of(net(inputs), labels, "square")

    cold = sharpness(loss, parameters)
    gradient = torch.autograd.grad(loss(), parameters)
    with torch.no_grad():
        for leaf, slope in zip(parameters, gradient, strict=True):
            leaf -= 0.05 * slope
    moved = sharpness(loss, parameters)
    warm = sharpness(loss, parameters, start=cold.vectors[0].float())
    assert warm.products < 0.75 * moved.products
    assert float(warm.values[0]) == pytest.approx(float(moved.values[0]), rel=1e-6)
    rows = sharpness(loss, parameters, start=cold.vectors)
    assert (
        rows.values.tolist() == sharpness(loss, parameters, start=cold.vectors[0]).values.tolist()
    )


@pytest.mark.parametrize("second", [9.5, 9.0, 6.0])
def test_warm_start_sees_an_eigenvalue_that_overtook(second):
    """The start is an exact eigenvector, of the second largest eigenvalue."""
    bulk = 5 * torch.rand(5000, generator=torch.Generator().manual_seed(0)).double() ** 4
    loss, parameters = quadratic(torch.cat([torch.tensor([10.0, second]).double(), bulk]))
    start = torch.zeros(5002)
    start[1] = 1
    assert float(sharpness(loss, parameters, start=start).values[0]) == pytest.approx(10, rel=1e-6)


@pytest.mark.parametrize("parts", [2, 3])
def test_micro_batches_equal_the_full_batch(parts):
    net = network([6, 10, 3], torch.nn.Tanh, 2)
    inputs, labels = examples(40, 6, 3, 2)
    parameters = list(net.parameters())
    chunks = list(zip(inputs.chunk(parts), labels.chunk(parts), strict=True))
    pieces = [lambda x=x, y=y: len(x) / 40 * loss_of(net(x), y, "cross-entropy") for x, y in chunks]

    def whole():
        return loss_of(net(inputs), labels, "cross-entropy")

    full, split = sharpness(whole, parameters, 2), sharpness(pieces, parameters, 2)
    assert split.values.tolist() == pytest.approx(full.values.tolist(), rel=1e-12)
    assert torch.allclose(dense_hessian(pieces, parameters), dense_hessian(whole, parameters))


def test_one_forward_pass_for_one_function_and_one_a_product_for_micro_batches():
    calls = []
    loss, parameters = quadratic(torch.linspace(0, 1, 50))

    def counted():
        calls.append(1)
        return loss()

    single = sharpness(counted, parameters)
    assert len(calls) == 1
    calls.clear()
    split = sharpness([counted, counted], parameters)
    assert len(calls) == 2 * split.products
    assert float(split.values[0]) == pytest.approx(2 * float(single.values[0]), rel=1e-6)


def test_repetition_is_exact_and_leaves_the_world_alone():
    net = network([10, 20, 3], torch.nn.Tanh, 3)
    inputs, labels = examples(40, 10, 3, 3)
    parameters = list(net.parameters())
    before = [leaf.detach().clone() for leaf in parameters]
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with torch.no_grad():
        first = sharpness(lambda: loss_of(net(inputs), labels, "square"), parameters, 2)
    torch.randn(3)
    torch.manual_seed(2)
    np.random.default_rng(0)
    again = sharpness(lambda: loss_of(net(inputs), labels, "square"), parameters, 2)
    for name in ("values", "vectors", "residuals"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())
    assert all(leaf.grad is None for leaf in parameters)
    assert all(torch.equal(a, b) for a, b in zip(before, parameters, strict=True))


def test_too_few_products_give_no_value():
    loss, parameters = quadratic(torch.linspace(-1, 1, 400))
    with pytest.raises(SharpnessError, match="max_products"):
        sharpness(loss, parameters, tol=1e-8, max_products=15)
    assert isinstance(sharpness(loss, parameters, tol=1e-8), Sharpness)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_losses_without_a_value_give_none(bad):
    theta = torch.ones(3, requires_grad=True)
    with pytest.raises(SharpnessError, match=f"the loss is {bad}"):
        sharpness(lambda: bad * theta.sum(), [theta])
    with pytest.raises(SharpnessError, match="loss is"):
        sharpness([lambda: theta.sum(), lambda: bad * theta.sum()], [theta])


def test_a_product_without_a_value_gives_none():
    """The gradient of |x|^(3/2) at 0 is 0; its derivative is infinite."""
    theta = torch.zeros(3, requires_grad=True)
    with pytest.raises(SharpnessError, match="NaN or infinity"):
        sharpness(lambda: theta.abs().pow(1.5).sum(), [theta])


def test_a_loss_that_changes_between_products_is_refused():
    """The residual is measured by a product of its own, and does not fit what Lanczos saw."""
    loss, parameters = quadratic(torch.linspace(0, 1, 30))
    needed = sharpness(loss, parameters).products
    calls = []

    def drifting():
        calls.append(1)
        return loss() + (parameters[0].sum() ** 2 if len(calls) == needed else 0)

    with pytest.raises(SharpnessError, match="more than twice"):
        sharpness([drifting, lambda: 0 * loss()], parameters)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k must be an integer >= 1 and <= 4, got 0"),
        ({"k": 5}, "k must be an integer >= 1 and <= 4, got 5"),
        ({"k": 1.0}, "k must be an integer"),
        ({"tol": 0.0}, "tol must be a finite number > 0"),
        ({"tol": 1e-15}, "tol must be at least 7.1e-15 for torch.float64"),
        ({"max_products": 0}, "max_products must be an integer >= 1"),
        ({"start": torch.ones(3)}, r"start must have shape \(4,\)"),
        ({"start": torch.zeros(4)}, "start must not be the zero vector"),
        ({"start": torch.full((4,), float("nan"))}, "start must be finite"),
        ({"parameters": []}, "parameters must hold at least one"),
        ({"parameters": [torch.ones(4)]}, r"parameters\[0\] must be a leaf"),
        ({"loss": 3.0}, "loss must be a function"),
        ({"loss": []}, "loss must hold at least one"),
        ({"loss": lambda: torch.tensor(1.0)}, "loss must depend on the parameters"),
        ({"loss": lambda: torch.ones(2)}, r"loss must return a tensor with one number, got \(2,\)"),
        ({"loss": lambda: 1.0}, "loss must return a tensor with one number, got float"),
    ],
)
def test_bad_arguments(change, message):
    loss, parameters = quadratic([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match=message):
        sharpness(**({"loss": loss, "parameters": parameters} | change))


def test_too_tight_for_single_precision_and_too_large_for_a_matrix():
    theta = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match=r"tol must be at least 3.8e-06 for torch.float32"):
        sharpness(lambda: theta.square().sum(), [theta], tol=1e-6)
    large = torch.ones(10_001, requires_grad=True)
    with pytest.raises(ValueError, match="at most 10,000 entries, got 10001"):
        dense_hessian(lambda: large.sum(), [large])
    with pytest.raises(ValueError, match=r"vector must have shape \(3,\)"):
        hessian_vector_product(lambda: theta.sum(), [theta], torch.ones(2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_devices_and_dtypes(device, dtype):
    net = network([6, 10, 3], torch.nn.Tanh, 4, dtype).to(device)
    inputs, labels = (part.to(device) for part in examples(40, 6, 3, 4, dtype))
    parameters = list(net.parameters())

    def loss():
        return loss_of(net(inputs), labels, "square")

    found = sharpness(loss, parameters, 2)
    exact = torch.linalg.eigvalsh(dense_hessian(loss, parameters)).flip(0)[:2]
    assert found.values.tolist() == pytest.approx(exact.tolist(), rel=1e-6)
    assert found.values.device == found.vectors.device == parameters[0].device
    image = hessian_vector_product(loss, parameters, found.vectors[0])
    assert image.dtype == dtype
    assert image.device == parameters[0].device


def test_losses_that_have_no_sharpness():
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    other = torch.ones(1, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match="loss must depend on the parameters"):
        sharpness(lambda: x.square().sum(), [other])
    with pytest.raises(ValueError, match="loss must be real"):
        sharpness(lambda: x.sum() * (1 + 1j), [x])
