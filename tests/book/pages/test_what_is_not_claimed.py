"""What the chapter "What is not claimed" computes, against dense Hessians and closed forms."""

import pytest
import torch

from lib.book.pages import what_is_not_claimed as page
from lib.book.pages.stability_runs import digits_network
from lib.models import fully_connected
from lib.stability import dense_hessian
from lib.stability.training import training_problem


def relu_network(seed: int = 0):
    """A small ReLU network in float64 with data that hit no kink."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    options = {"generator": generator, "dtype": torch.float64}
    network = fully_connected(5, (4, 3), 10, "relu", **options)
    return network, (inputs, torch.arange(12) % 10)


def hessian(network, data):
    problem = training_problem(network, "square", data)
    return dense_hessian(problem.closures(), problem.parameters)


@pytest.mark.parametrize("factor", [0.1, 0.5, 7.0])
def test_rescaling_keeps_the_function(factor):
    network, data = relu_network()
    with torch.no_grad():
        gap = page.rescaled(network, factor)(data[0]) - network(data[0])
    assert float(gap.abs().max()) < 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_rescaling_transforms_the_hessian(seed):
    network, data = relu_network(seed)
    factor, before = 3.0, hessian(network, data)
    sizes = [weights.numel() for weights in network.parameters()]
    scale = [factor, factor, 1 / factor, 1, 1, 1]
    inverse = torch.cat(
        [torch.full((n,), 1 / c, dtype=torch.float64) for n, c in zip(sizes, scale, strict=True)]
    )
    expected = inverse[:, None] * before * inverse
    assert torch.allclose(hessian(page.rescaled(network, factor), data), expected, atol=1e-10)


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_sharpness_is_at_least_both_bounds(factor):
    network, data = relu_network()
    sizes = [weights.numel() for weights in network.parameters()]
    first, second = sizes[0] + sizes[1], sizes[2]
    whole = hessian(network, data)
    one = torch.linalg.eigvalsh(whole[:first, :first])[-1]
    two = torch.linalg.eigvalsh(whole[first : first + second, first : first + second])[-1]
    row = page.rescaling_row(network, data, factor)
    assert row["sharpness"] >= max(one / factor**2, two * factor**2) * (1 - 1e-6)
    dense = torch.linalg.eigvalsh(hessian(page.rescaled(network, factor), data))[-1]
    assert row["sharpness"] == pytest.approx(float(dense), rel=1e-6)


@pytest.mark.parametrize("factor", [0.0, -1.0])
def test_rescaling_refuses(factor):
    with pytest.raises(ValueError, match="factor"):
        page.rescaled(relu_network()[0], factor)
    with pytest.raises(ValueError, match="two linear layers"):
        page.rescaled(digits_network(()), 2.0)


def test_exponential_descent_against_autograd():
    rows = torch.tensor([[1.0, 2.0], [2.0, -0.5], [1.5, 1.0]], dtype=torch.float64)
    loss, sharp = page.exponential_descent(rows, 0.3, 2)
    beta = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    def value(b):
        return (-rows @ b).exp().mean()

    for step in range(3):
        curvature = torch.autograd.functional.hessian(value, beta)
        assert loss[step] == pytest.approx(float(value(beta).detach()))
        assert sharp[step] == pytest.approx(float(torch.linalg.eigvalsh(curvature)[-1]))
        (slope,) = torch.autograd.grad(value(beta), beta)
        beta = (beta - 0.3 * slope).detach().requires_grad_()


def test_split_digits_leaves_nothing_out_and_nothing_in_twice():
    (inside, labels), (outside, others) = page.split_digits(500)
    assert len(inside) == len(labels) == 500
    assert len(outside) == len(others) == 1297
    assert float(inside.mean(0).abs().max()) < 1e-5
    assert float(outside.mean(0).abs().max()) > 1e-3


def test_final_accuracies_share_seeds_and_reach_the_goal():
    splits = page.split_digits(30)
    accuracy, ratio = page.final_accuracies(splits, [0.2, 0.4], [0], 0.35, width=3)
    assert accuracy.shape == ratio.shape == (1, 2)
    assert bool((accuracy > 0.15).all())
    assert bool((accuracy <= 1).all())
    with pytest.raises(RuntimeError, match="seed 0"):
        page.final_accuracies(splits, [0.1], [0], 1e-3, width=3, most_steps=2)
