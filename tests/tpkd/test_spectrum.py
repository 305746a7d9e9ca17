"""The restricted spectrum against dense Jacobians, and what Theorem 5 promises a network."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lib.tpkd import (
    alignment_bound,
    angle_spectrum_bound,
    conditional_component,
    conditional_kl,
    confidence_direction,
    directions,
    distortion_limits,
    output_vjp,
    potential,
    potential_gradient,
    restricted_spectrum,
    retention_bound,
)


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(
    seed=st.integers(0, 2**32),
    outputs=st.integers(2, 12),
    inputs=st.integers(1, 30),
    nearness=st.sampled_from([1.0, 1e-3, 1e-7]),
)
def test_equals_the_dense_spectrum(seed, outputs, inputs, nearness):
    jacobian = gaussian(seed, outputs, inputs)
    first = gaussian(seed + 1, outputs)
    second = first + nearness * gaussian(seed + 2, outputs)
    smallest, largest = restricted_spectrum(lambda xi: xi @ jacobian, first, second)
    basis = torch.linalg.qr(torch.stack([first, (second - first) / nearness], dim=1)).Q
    values = torch.linalg.eigvalsh(basis.T @ jacobian @ jacobian.T @ basis)
    scale = float(values[-1]) * (1e-15 / nearness + 1e-12)
    assert float(smallest) == pytest.approx(float(values[0]), abs=10 * scale)
    assert float(largest) == pytest.approx(float(values[-1]), abs=10 * scale)


def test_dependent_signals_need_one_product():
    jacobian, first = gaussian(0, 4, 6), gaussian(1, 4)
    expected = float((first @ jacobian).square().sum() / first.square().sum())
    for second in (3 * first, -first, 0 * first, (1 + 1e-12) * first):
        calls = []

        def vjp(xi, calls=calls):
            calls.append(xi)
            return xi @ jacobian

        for pair in ((first, second), (second, first)):
            calls.clear()
            smallest, largest = restricted_spectrum(vjp, *pair)
            assert len(calls) == 1
            assert float(smallest) == pytest.approx(expected, rel=1e-12)
            assert float(largest) == pytest.approx(expected, rel=1e-12)


def test_scale_of_the_signals_does_not_matter():
    jacobian, first, second = gaussian(2, 4, 6), gaussian(3, 4), gaussian(4, 4)
    expected = restricted_spectrum(lambda xi: xi @ jacobian, first, second)
    scaled = restricted_spectrum(lambda xi: xi @ jacobian, 1e-200 * first, -1e100 * second)
    torch.testing.assert_close(scaled, expected)
    parts = restricted_spectrum(
        lambda xi: (xi @ jacobian[:, :2], None, xi @ jacobian[:, 2:]), first, second
    )
    torch.testing.assert_close(parts, expected)
    blind = restricted_spectrum(lambda xi: 0 * xi, first, second)
    assert [float(value) for value in blind] == [0.0, 0.0]


@pytest.mark.parametrize("nearness", [1.0, 1e-4, 1e-9])
def test_nearly_parallel_signals_get_an_orthonormal_basis(nearness):
    """With J = 1 both stretches are 1, however close the signals are."""
    first = gaussian(0, 50)
    second = first + nearness * gaussian(1, 50)
    for value in restricted_spectrum(lambda xi: xi, first, second):
        assert float(value) == pytest.approx(1.0, abs=1e-13)


def network(seed, classes, hidden=20):
    torch.manual_seed(seed)
    layers = nn.Linear(8, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(hidden, classes)).double()


def measured(seed, classes, examples=4):
    """A network, a batch, its normalised signals, and their spectra."""
    model = network(seed, classes)
    inputs = gaussian(seed + 10, examples, 8)
    teacher = 2 * gaussian(seed + 20, examples, classes)
    labels = torch.randint(classes, (examples,), generator=torch.Generator().manual_seed(seed))
    logits = model(inputs)
    found = directions(logits.detach(), teacher, labels)
    component = conditional_component(found.corrected, labels)
    joint = potential_gradient(found.label, found.conditional)
    root = examples**0.5
    pairs = (found.conditional / root, component / root), (joint / root, found.update / root)
    vjp = output_vjp(logits / root, model.parameters())
    spectra = [restricted_spectrum(vjp, *pair) for pair in pairs]
    return model, inputs, teacher, labels, found, pairs, vjp, spectra


def inner(first, second):
    return float(sum((a * b).sum() for a, b in zip(first, second, strict=True)))


def moved(model, inputs, gradient, step):
    """The logits after a parameter step."""
    parameters = {
        name: value.detach() - step * part
        for (name, value), part in zip(model.named_parameters(), gradient, strict=True)
    }
    return torch.func.functional_call(model, parameters, inputs)


@pytest.mark.parametrize("classes", [3, 4, 10])
@pytest.mark.parametrize("seed", range(4))
def test_theorem_5_on_a_network(seed, classes):
    model, inputs, teacher, labels, found, pairs, vjp, spectra = measured(seed, classes)
    (U, R), (W, V) = pairs
    (m_c, M_c), (m_phi, M_phi) = spectra
    kappa_c, kappa_phi = distortion_limits(classes)
    gamma = retention_bound(classes)
    increment = [part / 2 for part in vjp(R)]
    inner_c, inner_phi = inner(vjp(U), increment), inner(vjp(W), vjp(V))
    bound_c = angle_spectrum_bound(alignment_bound(classes), m_c, M_c)
    assert inner_c >= float(bound_c / 2 * U.norm() * R.norm()) - 1e-12
    bound_phi = angle_spectrum_bound(gamma.sqrt(), m_phi, M_phi)
    assert inner_phi >= float(bound_phi * W.norm() * V.norm()) - 1e-12
    assert inner(increment, increment) >= float(m_c * gamma**2 / 4 * U.norm() ** 2) * (1 - 1e-9)
    root = len(labels) ** 0.5
    push = confidence_direction(labels, classes) * found.compensation.unsqueeze(-1) / 2
    ours, plain = vjp(V), vjp((found.label + push) / root)
    step = 1e-5
    ends = [moved(model, inputs, gradient, step) for gradient in (ours, plain)]
    errors = [conditional_kl(z, teacher, labels).mean() for z in ends]
    assert float((errors[0] - errors[1]).detach()) == pytest.approx(-step * inner_c, rel=0.02)
    start = potential(model(inputs), teacher, labels).mean()
    drop = float((potential(ends[0], teacher, labels).mean() - start).detach())
    assert drop == pytest.approx(-step * inner_phi, rel=0.02)
    if M_c < kappa_c * m_c:
        assert errors[0] < errors[1]
    if M_phi < kappa_phi * m_phi:
        assert drop < 0


def test_the_certificates_hold_for_some_networks():
    """Otherwise the test above would check nothing of the theorem's conclusions."""
    certified = [0, 0]
    for classes in (3, 4, 10):
        for seed in range(4):
            *_, spectra = measured(seed, classes)
            limits = distortion_limits(classes)
            for part, ((smallest, largest), limit) in enumerate(zip(spectra, limits, strict=True)):
                certified[part] += int(largest < limit * smallest)
    assert min(certified) >= 4


def test_output_vjp_is_the_transposed_jacobian():
    model, inputs = network(0, 5), gaussian(1, 3, 8)
    logits, direction = model(inputs), gaussian(2, 3, 5)
    vjp = output_vjp(logits, model.parameters())
    expected = torch.autograd.grad(
        (logits * direction).sum(), list(model.parameters()), retain_graph=True
    )
    for _ in range(2):
        torch.testing.assert_close(vjp(direction), expected)
    unused = torch.zeros(2, requires_grad=True)
    assert torch.equal(output_vjp(logits, [unused])(direction)[0], torch.zeros(2))


def test_narrow_signals_reach_the_vjp_in_their_dtype():
    seen = []

    def vjp(xi):
        seen.append(xi.dtype)
        return xi

    first, second = torch.eye(3)[0], torch.eye(3)[1]
    assert [float(x) for x in restricted_spectrum(vjp, first, second)] == [1.0, 1.0]
    assert seen == [torch.float32, torch.float32]


ONE = torch.tensor([1.0, 0.0])
BAD = [
    ((lambda xi: xi, ONE, torch.ones(3)), "first and second"),
    ((lambda xi: xi, 0 * ONE, 0 * ONE), "first and second"),
    ((lambda xi: xi, ONE * float("nan"), ONE), "first"),
    ((lambda xi: xi, ONE, ONE * float("inf")), "second"),
    ((lambda xi: xi, [1.0, 0.0], ONE), "first"),
    ((lambda xi: xi, ONE, torch.tensor([1, 0])), "second"),
    ((lambda xi: xi * float("nan"), ONE, ONE), "vjp"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD)
def test_bad_input_is_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        restricted_spectrum(*arguments)
