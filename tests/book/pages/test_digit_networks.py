"""The small networks of the chapter "From outputs to parameters"."""

import torch

from lib.book.pages import digit_networks as page
from lib.models import fully_connected


def generator(seed):
    return torch.Generator().manual_seed(seed)


def test_population_has_every_number_of_classes_and_training_helps():
    draw = {"generator": generator(2), "dtype": torch.float64}
    images, labels = torch.randn(120, 6, **draw), torch.arange(120) % 10
    members = list(page.population(images, labels, torch.randn(120, 10, **draw), generator(4)))
    assert len(members) == 8 * len(page.SHAPES) * 2 * 2
    assert {targets.shape[-1] for _, _, targets, _ in members} == set(range(3, 11))
    assert {len(batch) for _, batch, _, _ in members} == {4, 32}
    network = fully_connected(6, (8,), 10, "tanh", **draw)
    before = torch.nn.functional.cross_entropy(network(images), labels)
    page.train(network, images, labels, 20)
    assert bool(torch.nn.functional.cross_entropy(network(images), labels) < before)


def test_the_uneven_layer_stays_as_it_is():
    draw = {"generator": generator(5), "dtype": torch.float64}
    network = fully_connected(6, (8,), 4, "tanh", **draw).append(page.uneven_layer(4, 0.125))
    assert len(page.trainable(network)) == 4
    page.train(network, torch.randn(20, 6, **draw), torch.arange(20) % 4, 3)
    scales = torch.tensor([1.0, 0.5, 0.25, 0.125], dtype=torch.float64)
    torch.testing.assert_close(network[-1].weight.detach(), torch.diag(scales))
