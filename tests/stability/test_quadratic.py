import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.stability import growth_factor, quadratic_descent, stability_threshold

METHODS = [("gd", 0.0), ("polyak", 0.5), ("polyak", 0.9), ("nesterov", 0.5), ("nesterov", 0.9)]
methods = st.one_of(
    st.just(("gd", 0.0)),
    st.tuples(st.sampled_from(["polyak", "nesterov"]), st.floats(0, 0.99)),
)


def companion(curvature, step_size, optimiser, momentum):
    """The map of (iterate, velocity) to the next pair, from the update rules of torch's SGD."""
    a, eta, b = curvature, step_size, momentum
    if optimiser == "nesterov":
        return np.array([[1 - eta * a * (1 + b), -eta * b * b], [a, b]])
    return np.array([[1 - eta * a, -eta * b], [a, b]])


def torch_descent(curvatures, start, step_size, steps, optimiser, momentum):
    """The same iterates by torch's own optimiser and automatic differentiation."""
    place = start.clone().requires_grad_()
    method = torch.optim.SGD([place], step_size, momentum, nesterov=optimiser == "nesterov")
    places = [start]
    for _ in range(steps):
        method.zero_grad()
        ((curvatures * place.square()).sum() / 2).backward()
        method.step()
        places.append(place.detach().clone())
    return torch.stack(places)


@given(a=st.floats(-3, 12), eta=st.floats(0.05, 2), method=methods)
def test_growth_is_the_spectral_radius(a, eta, method):
    roots = np.linalg.eigvals(companion(a, eta, *method))
    assert float(growth_factor(a, eta, *method)) == pytest.approx(max(abs(roots)), abs=2e-7)


@given(eta=st.floats(1e-3, 10), method=methods)
def test_growth_reaches_one_at_the_threshold(eta, method):
    threshold = stability_threshold(eta, *method)
    factors = growth_factor(torch.tensor([0.99, 1, 1.01]).double() * threshold, eta, *method)
    assert float(factors[1]) == pytest.approx(1.0, abs=1e-6)
    assert float(factors[0]) < 1 < float(factors[2])
    assert float(growth_factor(0.01 * threshold, eta, *method)) < 1
    assert float(growth_factor(-0.01 * threshold, eta, *method)) > 1


@pytest.mark.parametrize(("optimiser", "momentum"), METHODS)
def test_iterates_equal_those_of_torch(optimiser, momentum):
    curvatures = torch.linspace(-1, 12, 14, dtype=torch.float64)
    start = torch.linspace(-2, 1, 14, dtype=torch.float64)
    ours = quadratic_descent(curvatures, start, 0.3, 25, optimiser, momentum)
    theirs = torch_descent(curvatures, start, 0.3, 25, optimiser, momentum)
    assert ours.shape == (26, 14)
    assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("optimiser", "momentum"), METHODS)
def test_long_runs_grow_by_the_factor_and_flip_signs(optimiser, momentum):
    curvature = 1.1 * stability_threshold(0.2, optimiser, momentum)
    path = quadratic_descent(
        torch.tensor([curvature]), torch.ones(1), 0.2, 400, optimiser, momentum
    )
    late = path[300:, 0]
    factor = float(growth_factor(torch.tensor(curvature), 0.2, optimiser, momentum))
    assert (late[1:] / late[:-1]).tolist() == pytest.approx([-factor] * 100, rel=1e-6)


def test_gradient_descent_has_its_closed_form():
    curvatures = torch.tensor([[1.0, 4.0], [9.9, 10.1]], dtype=torch.float64)
    path = quadratic_descent(curvatures, torch.tensor([1.0, 2.0]), 0.2, 30)
    exponents = torch.arange(31.0, dtype=torch.float64)[:, None, None]
    start = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert torch.allclose(path, (1 - 0.2 * curvatures) ** exponents * start, rtol=1e-12)


def test_thresholds_of_the_measured_runs():
    assert stability_threshold(0.2) == pytest.approx(10)
    assert stability_threshold(0.4, "polyak", 0.5) == pytest.approx(7.5)
    assert stability_threshold(0.2, "nesterov", 0.5) == pytest.approx(7.5)
    assert stability_threshold(0.02, "polyak", 0.9) == pytest.approx(190)
    sizes = torch.tensor([0.1, 0.5])
    assert stability_threshold(sizes).tolist() == pytest.approx([20, 4], rel=1e-7)
    assert stability_threshold(sizes).dtype == torch.float64


@given(eta=st.floats(1e-3, 10))
def test_no_momentum_makes_all_methods_equal(eta):
    assert stability_threshold(eta, "polyak") == stability_threshold(eta)
    assert stability_threshold(eta, "nesterov") == stability_threshold(eta)
    curvature = torch.linspace(-1, 5, 20)
    plain = growth_factor(curvature, eta)
    assert torch.allclose(growth_factor(curvature, eta, "polyak"), plain)
    assert torch.allclose(growth_factor(curvature, eta, "nesterov"), plain)


def test_shapes_broadcast():
    factors = growth_factor(torch.ones(3, 1), torch.full((4,), 0.5))
    assert factors.shape == (3, 4)
    path = quadratic_descent(torch.ones(3, 1), torch.ones(2), torch.full((4, 1, 1), 0.5), 2)
    assert path.shape == (3, 4, 3, 2)
    assert quadratic_descent(torch.ones(2), torch.ones(2), 0.1, 0).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "0.1", torch.tensor([0.1, 0.0])])
def test_bad_step_sizes(bad):
    for call in (
        lambda: stability_threshold(bad),
        lambda: growth_factor(1.0, bad),
        lambda: quadratic_descent(torch.ones(2), torch.ones(2), bad, 1),
    ):
        with pytest.raises(ValueError, match="step_size must be"):
            call()


def test_other_bad_arguments():
    ones = torch.ones(2)
    with pytest.raises(ValueError, match=r"curvatures \(2,\), start \(3,\).* must broadcast"):
        quadratic_descent(ones, torch.ones(3), 0.1, 1)
    with pytest.raises(ValueError, match="steps must be an integer >= 0, got -1"):
        quadratic_descent(ones, ones, 0.1, -1)
    with pytest.raises(ValueError, match="curvature must be finite"):
        growth_factor(math.nan, 0.1)
    for call in (stability_threshold, lambda *a: growth_factor(1.0, *a)):
        with pytest.raises(ValueError, match="momentum must be 0 for optimiser='gd'"):
            call(0.1, "gd", 0.5)
        with pytest.raises(ValueError, match="optimiser must be one of"):
            call(0.1, "adam")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_agrees():
    curvatures = torch.linspace(-1, 12, 14).cuda()
    path = quadratic_descent(curvatures, torch.ones(14).cuda(), 0.3, 10, "polyak", 0.5)
    assert path.is_cuda
    here = quadratic_descent(curvatures.cpu(), torch.ones(14), 0.3, 10, "polyak", 0.5)
    assert torch.allclose(path.cpu(), here, rtol=1e-12)
    assert growth_factor(curvatures, 0.3).is_cuda
