"""What the chapters on the edge of stability share."""

import numpy as np
import pytest
import torch

from lib.book.pages.stability_runs import digits_data, digits_network, run_path, train


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOK_CACHE", str(tmp_path))


def test_digits_are_standardised_over_the_first_n():
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    inputs, ours = digits_data(300, torch.float64)
    first = pixels[:300]
    scale = first.std(0)
    expected = np.divide(first - first.mean(0), scale, where=scale > 0, out=np.zeros_like(first))
    assert np.allclose(inputs.numpy(), expected, atol=1e-5)
    assert (ours.numpy() == labels[:300]).all()


def test_a_seed_decides_the_network_and_nothing_else_does():
    torch.manual_seed(1)
    first = digits_network((7,), "relu", seed=5, dtype=torch.float64)
    torch.manual_seed(2)
    again = digits_network((7,), "relu", seed=5, dtype=torch.float64)
    other = digits_network((7,), "relu", seed=6, dtype=torch.float64)
    for name, weights in first.state_dict().items():
        assert torch.equal(weights, again.state_dict()[name])
        assert not torch.equal(weights, other.state_dict()[name])


def test_training_follows_torch_sgd():
    data = digits_data(30, torch.float64)
    ours, theirs = (digits_network((6,), seed=1, dtype=torch.float64) for _ in range(2))
    run = train("a test", ours, data, 0.3, 4, every=10)
    targets = torch.nn.functional.one_hot(data[1], 10).double()
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.3)
    for step in range(5):
        loss = 0.5 * (theirs(data[0]) - targets).square().sum(1).mean()
        assert float(run.losses[step]) == pytest.approx(loss.item(), rel=1e-12)
        if step < 4:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert torch.allclose(ours[1].weight, theirs[1].weight, atol=1e-14)


def test_a_kept_run_goes_on_where_it_was(tmp_path):
    data, options = digits_data(30), {"every": 2, "keep_runs": True}
    train("kept", digits_network((6,)), data, 0.2, 4, **options)
    files = list((tmp_path / "runs").iterdir())
    assert len(files) == 1
    longer, whole = digits_network((6,)), digits_network((6,))
    resumed = train("kept", longer, data, 0.2, 8, **options)
    straight = train("kept", whole, data, 0.2, 8, every=2)
    assert torch.equal(resumed.losses, straight.losses)
    assert torch.equal(resumed.sharpness, straight.sharpness)
    assert torch.equal(longer[1].weight, whole[1].weight)
    assert list((tmp_path / "runs").iterdir()) == files


def test_nothing_is_written_unless_asked(tmp_path):
    train("not kept", digits_network((6,)), digits_data(30), 0.2, 2)
    assert list(tmp_path.iterdir()) == []


def test_runs_that_differ_have_files_of_their_own():
    data, other = digits_data(30), digits_data(31)
    paths = [
        run_path("a", digits_network((6,), seed=0), data, 0.1, "square", {}),
        run_path("a", digits_network((6,), seed=1), data, 0.1, "square", {}),
        run_path("a", digits_network((6,), seed=0), other, 0.1, "square", {}),
        run_path("a", digits_network((6,), seed=0), data, 0.2, "square", {}),
        run_path("a", digits_network((6,), seed=0), data, 0.1, "cross-entropy", {}),
        run_path("a", digits_network((6,), seed=0), data, 0.1, "square", {"every": 5}),
        run_path("b", digits_network((6,), seed=0), data, 0.1, "square", {}),
        run_path("a", digits_network((6,), "relu", seed=0), data, 0.1, "square", {}),
    ]
    assert len(set(paths)) == len(paths)
