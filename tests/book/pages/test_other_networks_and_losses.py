"""What the chapter "Other networks and losses" computes, against dense matrices and formulas."""

import pytest
import torch

from lib.book.pages import other_networks_and_losses as page
from lib.book.pages.stability_runs import digits_network
from lib.stability import dense_hessian, descend
from lib.stability.training import training_problem


def small(outputs: int = 3, seed: int = 0):
    """A tanh network with few weights in float64, with inputs and labels."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(outputs, (7,), generator=generator)
    network = page.fully_connected(
        4, (5,), outputs, "tanh", generator=generator, dtype=torch.float64
    )
    return network, (inputs, labels)


def jacobians(network, inputs):
    """(n, K, P), row by row by automatic differentiation."""
    parameters = list(network.parameters())
    rows = []
    for output in network(inputs).flatten():
        pieces = torch.autograd.grad(output, parameters, retain_graph=True)
        rows.append(torch.cat([piece.flatten() for piece in pieces]))
    return torch.stack(rows).reshape(len(inputs), -1, rows[0].numel())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss", ["square", "cross-entropy"])
def test_gauss_newton_equals_the_dense_matrix(loss, seed):
    network, data = small(seed=seed)
    rows, p = jacobians(network, data[0]), network(data[0]).detach().softmax(-1)
    middle = torch.eye(3, dtype=torch.float64).expand(7, 3, 3)
    if loss == "cross-entropy":
        middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    matrix = (rows.mT @ middle @ rows).mean(0)
    expected = float(torch.linalg.eigvalsh(matrix)[-1])
    assert page.gauss_newton(network, data, loss) == pytest.approx(expected, rel=1e-5)


def test_gauss_newton_is_the_sharpness_of_a_linear_network():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    data = inputs, torch.tensor([0, 1, 0, 1, 1, 0])
    network = torch.nn.Linear(3, 2, dtype=torch.float64)
    problem = training_problem(network, "cross-entropy", data)
    exact = torch.linalg.eigvalsh(dense_hessian(problem.closures(), problem.parameters))[-1]
    assert page.gauss_newton(network, data, "cross-entropy") == pytest.approx(float(exact))


def test_the_factor_lies_below_both_bounds():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(2000, 5, generator=generator, dtype=torch.float64)
    logits *= torch.logspace(-2, 2, 2000, dtype=torch.float64)[:, None]
    factor, loss = page.softmax_factor(logits), -logits.log_softmax(-1)[:, 0]
    assert bool((factor <= 0.5 + 1e-12).all())
    assert bool((factor <= 2 * loss + 1e-12).all())
    assert float(page.softmax_factor(torch.tensor([0.0, 0.0, -60.0]))) == pytest.approx(0.5)


def test_the_factor_of_two_logits():
    margin = torch.linspace(-4, 4, 9, dtype=torch.float64)
    logits = torch.stack([margin, torch.zeros_like(margin)], -1)
    expected = 2 * margin.sigmoid() * (-margin).sigmoid()
    assert torch.allclose(page.softmax_factor(logits), expected)


def test_chebyshev_data_are_the_polynomial():
    x, y = page.chebyshev_data(4)
    assert x.shape == y.shape == (20, 1)
    assert torch.allclose(y, 8 * x**4 - 8 * x**2 + 1)


def test_shuffled_keeps_the_inputs_and_moves_the_labels():
    data = torch.arange(50.0)[:, None], torch.arange(50)
    inputs, labels = page.shuffled(data, 3)
    assert bool((inputs == data[0]).all())
    assert sorted(labels.tolist()) == list(range(50))
    assert bool((labels != data[1]).any())
    assert bool((labels == page.shuffled(data, 3)[1]).all())


@pytest.mark.parametrize(("pixels", "weights"), [(64, 207), (784, 1557), (3072, 2043)])
def test_convolutional_network_finds_the_shape(pixels, weights):
    data = torch.zeros(1, pixels), torch.zeros(1).long()
    network = page.convolutional_network(data, (2, 3))
    assert network(data[0]).shape == (1, 10)
    assert sum(p.numel() for p in network.parameters()) == weights


def test_convolutional_network_refuses_other_sizes():
    with pytest.raises(ValueError, match="65"):
        page.convolutional_network((torch.zeros(1, 65), torch.zeros(1).long()), (2,))


def test_curvature_parts_follow_one_run():
    data = torch.randn(9, 64, generator=torch.Generator().manual_seed(0)), torch.arange(9)
    rows = page.curvature_parts(digits_network((6,)), data, 0.3, (4, 0))
    walker = digits_network((6,))
    run = descend(walker, "cross-entropy", data, 0.3, 4, every=())
    assert [row["step"] for row in rows] == [0, 4]
    assert rows[1]["loss"] == pytest.approx(float(run.losses[4]))
    assert rows[1]["Gauss-Newton"] == pytest.approx(
        page.gauss_newton(walker, data, "cross-entropy"), rel=1e-4
    )


def test_secant_of_a_smooth_network_is_the_mean_curvature():
    network, data = small()
    before = [weights.detach().clone() for weights in network.parameters()]
    seen = page.oscillation(network, data, 1.5, 3)
    assert seen["secant"] == pytest.approx(seen["mean curvature"], rel=1e-4)
    again, _ = small()
    assert all(torch.equal(a, b) for a, b in zip(before, again.parameters(), strict=True))
    problem = training_problem(again, "square", data)
    exact = torch.linalg.eigh(dense_hessian(problem.closures(), problem.parameters))
    assert seen["S"] == pytest.approx(float(exact.eigenvalues[-1]))
    descend(again, "square", data, 1.5, 3, every=())
    for ours, theirs in zip(network.parameters(), again.parameters(), strict=True):
        assert torch.allclose(ours, theirs)


def test_secant_sees_a_kink_that_the_hessian_misses():
    network = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.ReLU()).double()
    torch.nn.init.constant_(network[0].weight, 0.1)
    data = torch.ones(1, 1, dtype=torch.float64), -torch.ones(1, 1, dtype=torch.float64)
    seen = page.oscillation(network, data, 1.0, 1, points=1100)
    # Slope 1.1 at 0.1, 0 at 0.1 - 1.1; curvature 1 on a share 0.1 / 1.1 of the way.
    assert seen["secant"] == pytest.approx(1.0)
    assert seen["mean curvature"] == pytest.approx(0.1 / 1.1, abs=1e-3)
    assert seen["components"].abs().tolist() == pytest.approx([1.1, 0.0])


def test_run_row_reads_the_last_third():
    data = torch.ones(1, 1), torch.zeros(1, 1)
    run = descend(torch.nn.Linear(1, 1, bias=False), "square", data, 1.0, 9, every=1)
    row = page.run_row("x", run)
    assert row["10 %"] == row["mean"] == row["90 %"] == 0.5
    assert row["crossing"] is None
