"""The functions of the chapter "From outputs to parameters", against autograd and closed forms."""

import math

import pytest
import torch

from lib.book.pages import from_outputs_to_parameters as page
from lib.book.pages import stretch
from lib.book.pages.task_preserving_states import random_states
from lib.models import fully_connected
from lib.tpkd import conditional_kl, potential, surrogate_loss


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def small(classes, seed=0, count=6):
    options = {"generator": generator(seed), "dtype": torch.float64}
    network = fully_connected(5, (7,), classes, "tanh", **options)
    images = torch.randn(count, 5, **options)
    _, teacher, labels = random_states(classes, count, generator(seed), "mild")
    return network, images, teacher, labels


@pytest.mark.parametrize("classes", [3, 6])
def test_signals_are_gradients_of_the_batch_losses(classes):
    network, images, teacher, labels = small(classes)
    outputs = network(images)
    found = page.signals(outputs, teacher, labels)
    root = len(images) ** 0.5
    for loss, signal in (
        (conditional_kl(outputs, teacher, labels).mean(), found.conditional),
        (potential(outputs, teacher, labels).mean(), found.joint),
        (surrogate_loss(outputs, teacher, labels), found.update),
    ):
        (gradient,) = torch.autograd.grad(loss, outputs, retain_graph=True)
        torch.testing.assert_close(gradient, signal / root, atol=1e-12, rtol=1e-9)
    gap = found.update - found.compensation
    torch.testing.assert_close(gap, found.component / 2, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("seed", [0, 1])
def test_certificate_agrees_with_the_dense_jacobian(seed):
    network, images, teacher, labels = small(4, seed)
    outputs = network(images)
    found = page.signals(outputs, teacher, labels)
    pair = found.joint, found.update
    ours = page.certificate(outputs, list(network.parameters()), *pair)
    m, largest = page.dense_spectrum(network, images, *pair)
    assert ours.smallest == pytest.approx(float(m), rel=1e-9)
    assert ours.largest == pytest.approx(float(largest), rel=1e-9)
    low = stretch.wielandt(ours.cosine, ours.ratio)
    assert low - 1e-12 <= ours.parameter_cosine <= 1 + 1e-12
    assert m - 1e-12 <= ours.stretched[0] / ours.norms[0] ** 2 <= largest + 1e-12


def test_slacks_of_all_bounds_are_not_negative():
    for seed in range(6):
        network, images, teacher, labels = small(3 + seed, seed)
        outputs, weights = network(images), list(network.parameters())
        found = page.signals(outputs, teacher, labels)
        first = page.certificate(outputs, weights, found.conditional, found.component)
        second = page.certificate(outputs, weights, found.joint, found.update)
        assert min(page.conditional_slacks(first)) >= -1e-10
        assert min(page.joint_slacks(second, float(found.energy))) >= -1e-10


def test_small_parameter_steps_follow_the_inner_products():
    network, images, teacher, labels = small(5)
    outputs, weights = network(images), list(network.parameters())
    found = page.signals(outputs, teacher, labels)
    first = page.certificate(outputs, weights, found.conditional, found.component)
    second = page.certificate(outputs, weights, found.joint, found.update)
    gain, fall = page.step_falls(network, images, teacher, labels, [1e-5])
    assert gain == pytest.approx(1e-5 * first.product / 2, rel=1e-2)
    assert fall == pytest.approx(1e-5 * second.product, rel=1e-2)


def test_explicit_steps_of_a_linear_model():
    draw = {"generator": generator(3), "dtype": torch.float64}
    features = torch.nn.functional.normalize(torch.randn(8, 300, **draw), dim=1)
    head, teacher = torch.randn(300, 4, **draw), torch.randn(8, 4, **draw)
    slacks = page.linear_step_slacks(features, head, teacher, torch.arange(8) % 4)
    assert all(math.isfinite(slack) and slack >= 0 for slack in slacks)
