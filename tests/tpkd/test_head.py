"""The exact head step: realised to rounding, of least norm, and what it inherits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.tpkd import directions, exact_head_step, margins, run_output_steps
from tests.tpkd.states import DEVICES


def problem(seed, examples, dimension, classes, *batch):
    generator = torch.Generator().manual_seed(seed)
    shapes = (examples, dimension), (dimension, classes), (examples, classes)
    features, head, teacher = (
        torch.randn(*batch, *shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    features[..., -1] = 1.0  # the bias
    labels = torch.randint(classes, (*batch, examples), generator=generator)
    return features, head, teacher, labels


sizes = st.tuples(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 8), st.integers(3, 12))


@given(size=sizes, step=st.floats(0, 10))
def test_realises_the_step_with_the_least_norm(size, step):
    seed, examples, more, classes = size
    features, head, teacher, labels = problem(seed, examples, examples + more + 1, classes)
    logits = features @ head
    update = directions(logits, teacher, labels).update
    moved = exact_head_step(features, head, update, step)
    condition = float(torch.linalg.cond(features))
    error = (features @ moved - (logits - step * update)).abs().max()
    assert float(error) <= 1e-13 * (1 + step) * condition
    change = moved - head
    expected = -step * torch.linalg.pinv(features) @ update
    torch.testing.assert_close(change, expected, rtol=0, atol=1e-13 * (1 + step) * condition**2)
    # Orthogonal to every change that moves no logit: by Pythagoras no other is smaller.
    kernel = torch.linalg.svd(features).Vh[examples:]
    assert float((kernel @ change).abs().max()) <= 1e-13 * (1 + step) * condition


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_inherits_the_margins_of_the_label_step(seed, device):
    """Proposition 1: 64 examples, 100 classes; discrepancies stay at rounding, as in Table 2."""
    features, head, teacher, labels = (x.to(device) for x in problem(seed, 64, 129, 100))
    logits = features @ head
    found = directions(logits, teacher, labels)
    ours, label = (
        features @ exact_head_step(features, head, direction, 0.01)
        for direction in (found.update, found.label)
    )
    assert float((ours - (logits - 0.01 * found.update)).abs().max()) < 1e-12
    assert bool((margins(ours, labels) >= margins(label, labels) - 1e-12).all())
    assert bool((margins(label, labels) >= margins(logits, labels) - 1e-12).all())


def test_repeated_steps_follow_the_output_iteration():
    features, head, teacher, labels = problem(4, 5, 12, 6)
    path = run_output_steps(features @ head, teacher, labels, 0.8, 30)
    start = head
    for _ in range(30):
        update = directions(features @ head, teacher, labels).update
        head = exact_head_step(features, head, update, 0.8)
    torch.testing.assert_close(features @ head, path.logits[-1], rtol=0, atol=1e-11)
    kernel = torch.linalg.svd(features).Vh[5:]
    assert float((kernel @ (head - start)).abs().max()) < 1e-11


def test_batches_dtypes_and_square_features():
    features, head, teacher, labels = problem(5, 4, 4, 7, 3)
    update = directions(features @ head, teacher, labels).update
    moved = exact_head_step(features, head, update, 0.5)
    assert moved.shape == (3, 4, 7)
    for one in range(3):
        alone = exact_head_step(features[one], head[one], update[one], 0.5)
        torch.testing.assert_close(moved[one], alone)
    narrow = exact_head_step(features.float(), head.float(), update.float(), 0.5)
    assert narrow.dtype == torch.float32
    assert exact_head_step(features.float(), head, update, 0.5).dtype == torch.float64
    assert torch.equal(exact_head_step(features, head, update, 0.0), head)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rank_deficient_batches_are_refused(dtype):
    features, head, teacher, _ = problem(6, 5, 9, 4)
    features = features.to(dtype)
    features[3] = features[1] + features[0]
    with pytest.raises(ValueError, match="full row rank 5, one for each example, got rank 4"):
        exact_head_step(features, head, teacher, 0.1)
    features[3] = features[1]
    features[2] = 0.0
    with pytest.raises(ValueError, match="got rank 3 with 9 columns"):
        exact_head_step(features, head, teacher, 0.1)


def test_more_examples_than_features_are_refused():
    features, head, teacher, _ = problem(6, 5, 4, 4)
    with pytest.raises(ValueError, match="full row rank 5, one for each example, got rank 4"):
        exact_head_step(features, head, teacher, 0.1)
    with pytest.raises(ValueError, match="got rank 0"):
        exact_head_step(0 * features[:2], head, teacher[:2], 0.1)


X, A, V = torch.eye(2, 3), torch.zeros(3, 4), torch.zeros(2, 4)
BAD = [
    ((X, A, V[:1], 0.1), "update"),
    ((X, A[:2], V, 0.1), "head"),
    ((X, A, V[:, :3], 0.1), "update"),
    ((X[0], A, V, 0.1), "features"),
    ((X.expand(2, 2, 3), A, V.expand(3, 2, 4), 0.1), "features"),
    ((X[:0], A, V[:0], 0.1), "features"),
    ((X * float("nan"), A, V, 0.1), "features"),
    ((X, A, V - float("inf"), 0.1), "update"),
    ((X, A + 1j, V, 0.1), "head"),
    ((X.tolist(), A, V, 0.1), "features"),
    ((X, A, V, -0.1), "step_size"),
    ((X, A, V, float("nan")), "step_size"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD)
def test_bad_input_is_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        exact_head_step(*arguments)
