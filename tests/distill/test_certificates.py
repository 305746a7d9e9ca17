"""The geometric tests of Table 3: against dense Jacobians and gradients of the losses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lib.distill import objective_loss
from lib.distill.certificates import (
    Certificate,
    batch_signals,
    batch_vjp,
    certify,
    certify_batch,
)
from lib.models import fully_connected
from lib.tpkd import alignment_bound, conditional_kl, distortion_limits, potential, retention_bound
from tests.tpkd.states import DEVICES, random_states


def problem(classes, seed=0, count=7, dtype=torch.float64):
    options = {"generator": torch.Generator().manual_seed(seed), "dtype": dtype}
    network = fully_connected(5, (9,), classes, "tanh", **options)
    _, teacher, labels = random_states(seed, count, classes)
    return network, (torch.randn(count, 5, **options),), teacher, labels


def gradient(loss, network):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])


@pytest.mark.parametrize(("classes", "seed"), [(3, 0), (4, 1), (10, 2), (10, 3)])
def test_inner_products_are_those_of_the_losses(classes, seed):
    """Both slopes of Theorem 5 from gradients of the mean losses, by back-propagation alone."""
    network, inputs, teacher, labels = problem(classes, seed)
    found = certify_batch(network, inputs, teacher, labels)
    z = network(*inputs)
    ways = {
        name: gradient(objective_loss(name, network(*inputs), teacher, labels), network)
        for name in ("tpkd", "compensation-only")
    }
    error = gradient(conditional_kl(z, teacher, labels).mean(), network)
    joint = gradient(potential(network(*inputs), teacher, labels).mean(), network)
    slope = error @ (ways["tpkd"] - ways["compensation-only"])
    assert found.conditional.product / 2 == pytest.approx(float(slope), rel=1e-9)
    assert found.joint.product == pytest.approx(float(joint @ ways["tpkd"]), rel=1e-9)
    assert found.conditional.norms[0] == pytest.approx(float(error.norm()), rel=1e-9)
    assert found.joint.norms[1] == pytest.approx(float(ways["tpkd"].norm()), rel=1e-9)


@pytest.mark.parametrize(("classes", "seed"), [(4, 0), (6, 1), (10, 2)])
def test_spectra_are_those_of_the_dense_jacobian(classes, seed):
    network, inputs, teacher, labels = problem(classes, seed)
    parameters = dict(network.named_parameters())

    def outputs(values):
        return torch.func.functional_call(network, values, inputs).flatten()

    blocks = torch.func.jacrev(outputs)(parameters)
    dense = torch.cat([b.flatten(1) for b in blocks.values()], 1).detach() / 7**0.5
    signals = batch_signals(network(*inputs), teacher, labels)
    found = certify_batch(network, inputs, teacher, labels)
    for ours, a, b in (
        (found.conditional, signals.conditional, signals.component),
        (found.joint, signals.joint, signals.update),
    ):
        basis, _ = torch.linalg.qr(torch.stack([a.flatten(), b.flatten()], 1))
        low, high = torch.linalg.eigvalsh(basis.T @ dense @ dense.T @ basis).tolist()
        assert (ours.smallest, ours.largest) == pytest.approx((low, high), rel=1e-8)
        cosine = torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0)
        assert ours.cosine == pytest.approx(float(cosine), rel=1e-12)
    kappas = tuple(float(kappa) for kappa in distortion_limits(classes))
    assert (found.conditional.limit, found.joint.limit) == kappas
    assert found.conditional.cosine >= float(alignment_bound(classes)) - 1e-12
    assert found.joint.cosine >= float(retention_bound(classes).sqrt()) - 1e-12


@pytest.mark.parametrize("size", [1, 2, 5, 8, None])
def test_micro_batches_change_nothing(size):
    network, inputs, teacher, labels = problem(5)
    whole = certify_batch(network, inputs, teacher, labels, micro_batch=7)
    parts = certify_batch(network, inputs, teacher, labels, micro_batch=size)
    for a, b in ((whole.conditional, parts.conditional), (whole.joint, parts.joint)):
        assert (a.smallest, a.largest, a.product) == pytest.approx(
            (b.smallest, b.largest, b.product), rel=1e-10
        )


@pytest.mark.parametrize("device", DEVICES)
def test_a_single_precision_network_is_close_to_a_double_one(device):
    network, inputs, teacher, labels = problem(10, dtype=torch.float32)
    double = fully_connected(
        5, (9,), 10, "tanh", generator=torch.Generator(), dtype=torch.float64
    ).to(device)
    network.to(device)
    double.load_state_dict(network.state_dict())
    arguments = (x.to(device) for x in (*inputs, teacher, labels))
    x, teacher, labels = arguments
    single = certify_batch(network, (x,), teacher, labels)
    exact = certify_batch(double, (x.double(),), teacher, labels)
    assert single.conditional.ratio == pytest.approx(exact.conditional.ratio, rel=1e-3)
    assert single.joint.product == pytest.approx(exact.joint.product, rel=1e-4)


def test_networks_are_measured_in_evaluation_mode_and_left_alone():
    network, inputs, teacher, labels = problem(4)
    noisy = nn.Sequential(network, nn.Dropout(0.9)).train()
    before = {name: value.clone() for name, value in noisy.state_dict().items()}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    found = certify_batch(noisy, inputs, teacher, labels)
    assert noisy.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in noisy.state_dict().items())
    assert all(p.grad is None for p in noisy.parameters())
    plain = certify_batch(network, inputs, teacher, labels)
    assert found.joint.product == pytest.approx(plain.joint.product, rel=1e-12)


def test_frozen_parameters_do_not_count():
    network, inputs, teacher, labels = problem(4)
    network[1].requires_grad_(False)
    found = certify_batch(network, inputs, teacher, labels)
    hidden = torch.tanh(network[1](*inputs)).detach()
    head = certify_batch(network[-1], (hidden,), teacher, labels)
    assert found.conditional.ratio == pytest.approx(head.conditional.ratio, rel=1e-9)
    with pytest.raises(ValueError, match="0 parameters"):
        batch_vjp(network.requires_grad_(False), inputs)


def test_parallel_signals_are_one_direction():
    """Three classes: U and R are parallel, so that nothing can turn one against the other."""
    network, inputs, teacher, labels = problem(3)
    found = certify_batch(network, inputs, teacher, labels).conditional
    assert found.cosine == pytest.approx(1.0, abs=1e-14)
    assert found.ratio == pytest.approx(1.0, rel=1e-12)
    assert found.parameter_cosine == pytest.approx(1.0, rel=1e-12)


def test_the_three_tests_come_in_order():
    """Cosine 1/2: the limit is 3. A stretch across the bisector makes the angle right there."""
    one, two = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.75**0.5]])
    bisector = (one + two) / (one + two).norm()
    for ratio, measured, direct in ((2.9, True, True), (3.1, False, False)):
        across = torch.eye(2) - bisector.T @ bisector
        root = (bisector.T @ bisector + ratio**0.5 * across).double()
        found = certify(lambda xi, root=root: [xi @ root], one, two, 2.0)
        assert found.ratio == pytest.approx(ratio, rel=1e-6)
        assert found.measured_limit == pytest.approx(3.0, rel=1e-6)
        verdict = (found.holds, found.holds_measured, found.holds_directly)
        assert verdict == (False, measured, direct)
    along = certify(lambda xi: [xi @ (9 * bisector.T @ bisector).double()], one, two, 2.0)
    assert along.ratio == torch.inf
    assert not along.holds
    assert along.holds_directly


def test_limits_of_the_properties():
    found = Certificate(1.0, 4.0, 1.0, 0.0, (0.0, 1.0), 5.0)
    assert found.measured_limit == torch.inf
    assert found.parameter_cosine != found.parameter_cosine
    assert found.holds
    assert not found.holds_directly


def test_bad_input_is_refused_by_name():
    network, inputs, _, labels = problem(4)
    _, vjp = batch_vjp(network, inputs)
    with pytest.raises(ValueError, match=r"direction must have the shape \(7, 4\)"):
        vjp(torch.zeros(7, 3))
    with pytest.raises(ValueError, match="micro_batch"):
        batch_vjp(network, inputs, 0)
    with pytest.raises(ValueError, match="0 examples"):
        batch_vjp(network, (inputs[0][:0],))
    with pytest.raises(ValueError, match="must not be zero"):
        certify(vjp, torch.zeros(7, 4), torch.ones(7, 4), 2.0)
    with pytest.raises(ValueError, match=r"\(N, K\)"):
        batch_signals(torch.zeros(4), torch.zeros(4), labels[0])
    with pytest.raises(ValueError, match="must not be zero"):  # the teacher says nothing new
        certify_batch(network, inputs, network(*inputs).detach(), labels)
