"""Examples as inputs of a network: views, padding, images against torchvision, and their hashes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import InterpolationMode, functional

from lib.distill import ImageExamples, TensorExamples, TokenExamples, fixed_views
from lib.distill.examples import IMAGENET_MEAN, IMAGENET_STD
from tests.distill.test_views import one_by_one

ZERO = torch.tensor([0])


def tensors(views=None, n=5):
    shape = (n, 2, 3) if views is None else (views, n, 2, 3)
    values = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    return TensorExamples(values, torch.arange(n) % 3, views)


def texts(n=12, longest=9, seed=0, padded=None):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (n,), generator=generator)
    tokens = torch.randint(1, 50, (n, longest), generator=generator)  # no zeros after the end
    return TokenExamples(tokens, lengths, torch.zeros(n, dtype=torch.int64), padded)


def pictures(seed=0, n=4, views=3, edge=6, dtype=torch.float32, **options):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(n, 3, edge, edge, generator=generator).to(dtype)
    if dtype == torch.uint8:
        images = torch.randint(256, (n, 3, edge, edge), generator=generator, dtype=dtype)
    offsets, flips = fixed_views(n, views, options.get("padding", 4), generator)
    return ImageExamples(images, torch.arange(n), offsets, flips, **options)


def test_tensors_come_back_by_index_and_view():
    single, several = tensors(), tensors(4)
    index, view = torch.tensor([3, 0, 3]), torch.tensor([1, 3, 0])
    assert single.views == 1
    assert several.views == 4
    assert single.lengths is None
    (found,) = single.inputs(index, torch.zeros_like(index))
    assert torch.equal(found, torch.arange(30.0).reshape(5, 2, 3)[index])
    (found,) = several.inputs(index, view)
    expected = torch.stack([several.values[v, i] for i, v in zip(index, view, strict=True)])
    assert torch.equal(found, expected)


@settings(max_examples=40)
@given(st.integers(0, 99), st.lists(st.integers(0, 11), min_size=1, max_size=20))
def test_padding_to_the_longest_or_to_a_fixed_length_gives_the_same_real_tokens(seed, index):
    short, long = texts(seed=seed), texts(seed=seed, padded=128)
    index = torch.tensor(index)
    tokens, mask = short.inputs(index, torch.zeros_like(index))
    fixed, fixed_mask = long.inputs(index, torch.zeros_like(index))
    longest = int(short.lengths[index].max())
    assert tokens.shape == mask.shape == (len(index), longest)
    assert fixed.shape == fixed_mask.shape == (len(index), 128)
    assert torch.equal(tokens[mask], fixed[fixed_mask])
    assert torch.equal(tokens, fixed[:, :longest])
    for row, keep, i in zip(tokens, mask, index, strict=True):
        length = int(short.lengths[i])
        assert torch.equal(row[keep], short.tokens[i, :length])
        assert torch.equal(keep, torch.arange(longest) < length)
    assert not tokens[~mask].any()
    assert not fixed[~fixed_mask].any()


def test_fixed_length_may_be_shorter_than_the_table():
    examples = TokenExamples(torch.ones(1, 9).long(), torch.tensor([3]), ZERO, padded=4)
    tokens, mask = examples.inputs(ZERO, ZERO)
    assert tokens.tolist() == [[1, 1, 1, 0]]
    assert mask.sum() == 3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [None, 6, 9, 3])
def test_images_are_torchvisions_one_by_one(dtype, size):
    examples = pictures(dtype=dtype, size=size, padding=2)
    index, view = torch.tensor([0, 3, 3, 1, 2]), torch.tensor([2, 0, 1, 1, 0])
    (found,) = examples.inputs(index, view)
    plain = examples.images[index]
    plain = plain.float() / 255 if dtype == torch.uint8 else plain
    expected = one_by_one(plain, examples.offsets[view, index], examples.flips[view, index], 2)
    if size is not None:
        expected = torch.stack(
            [
                functional.resize(x, [size, size], InterpolationMode.BICUBIC, antialias=True)
                for x in expected
            ]
        )
    expected = functional.normalize(expected.clamp(0, 1), IMAGENET_MEAN, IMAGENET_STD)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_bicubic_overshoot_is_cut_off():
    edge = torch.zeros(1, 3, 4, 4)
    edge[..., 2:] = 1
    plain = ImageExamples(edge, ZERO, size=16, mean=(0.0,) * 3, std=(1.0,) * 3)
    (found,) = plain.inputs(ZERO, ZERO)
    free = torch.nn.functional.interpolate(edge, (16, 16), mode="bicubic", antialias=True)
    assert float(free.max()) > 1.01
    assert float(found.max()) == 1
    assert float(found.min()) == 0


def test_without_views_an_image_is_itself():
    images = torch.rand(2, 3, 5, 5)
    examples = ImageExamples(images, torch.tensor([0, 1]), mean=(0.0,) * 3, std=(1.0,) * 3)
    assert examples.views == 1
    assert torch.equal(examples.inputs(torch.tensor([1]), ZERO)[0], images[1:])


def test_views_are_fixed():
    examples = pictures(size=8)
    index, view = torch.tensor([1, 2]), torch.tensor([0, 2])
    torch.manual_seed(0)
    (first,) = examples.inputs(index, view)
    torch.manual_seed(1)
    (second,) = examples.inputs(index.flip(0), view.flip(0))
    torch.testing.assert_close(first, second.flip(0), rtol=0, atol=0)


CHANGES = [
    (tensors(), {"values": lambda v: v + torch.eye(3)[:2]}),
    (tensors(), {"labels": lambda y: y.flip(0)}),
    (tensors(3), {"values": lambda v: v.flip(0)}),
    (texts(), {"tokens": lambda t: t + 1}),
    (texts(), {"lengths": lambda x: x.clamp(max=5)}),
    (texts(), {"padded": lambda p: 20}),
    (pictures(), {"images": lambda x: 1 - x}),
    (pictures(), {"offsets": lambda x: x.flip(0)}),
    (pictures(), {"flips": lambda x: ~x}),
    (pictures(), {"size": lambda s: 8}),
    (pictures(), {"padding": lambda p: 5}),
    (pictures(), {"mean": lambda m: (0.5, 0.5, 0.5)}),
    (pictures(), {"std": lambda m: (0.5, 0.5, 0.5)}),
    (pictures(), {"labels": lambda y: y.flip(0)}),
]


@pytest.mark.parametrize(
    ("examples", "change"), CHANGES, ids=[f"{type(e).__name__}-{next(iter(c))}" for e, c in CHANGES]
)
def test_everything_that_counts_changes_the_hash(examples, change):
    ((name, new),) = change.items()
    other = dataclasses.replace(examples, **{name: new(getattr(examples, name))})
    assert other.digest() != examples.digest()
    assert dataclasses.replace(examples).digest() == examples.digest()


def test_the_kind_of_the_examples_counts_in_the_hash():
    n = 3
    labels = torch.zeros(n, dtype=torch.int64)
    images = torch.rand(n, 3, 4, 4)
    assert ImageExamples(images, labels).digest() != TensorExamples(images, labels).digest()


@pytest.mark.parametrize(
    "examples", [tensors(), texts(), pictures()], ids=lambda e: type(e).__name__
)
def test_index_and_view_out_of_range_are_refused(examples):
    n, views = len(examples.labels), examples.views
    for index, view, message in (
        ([n], [0], rf"index must lie in \[0, {n}\), got values from {n} to {n}"),
        ([-1], [0], r"index must lie in .* got values from -1 to -1"),
        ([0], [views], rf"view must lie in \[0, {views}\)"),
        ([0], [-1], "view must lie in"),
        ([0, 1], [0], r"view must be int64 of shape \(b,\)"),
        ([[0]], [[0]], r"index must be int64 of shape \(b,\)"),
        ([0.0], [0], r"index must be int64 .* got torch.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            examples.inputs(torch.tensor(index), torch.tensor(view))
    with pytest.raises(ValueError, match="b >= 1"):
        examples.inputs(ZERO[:0], ZERO[:0])


LABELS = torch.arange(4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TensorExamples(torch.ones(4, 2), LABELS.float()), "labels must be int64"),
        (lambda: TensorExamples(torch.ones(0, 2), LABELS[:0]), "n >= 1"),
        (lambda: TensorExamples(torch.ones(4, 2), -LABELS), "labels must be >= 0, got -3"),
        (
            lambda: TensorExamples(torch.ones(3, 2), LABELS),
            r"shape \(4, \.\.\.\) for 4 labels, got",
        ),
        (lambda: TensorExamples(torch.ones(4, 4), LABELS, 2), r"\(2, 4, \.\.\.\) .*2 views, got"),
        (lambda: TensorExamples(torch.ones(4, 4), LABELS, 0), "views must be an integer >= 1"),
        (lambda: TokenExamples(torch.ones(4, 3), LABELS + 1, LABELS), "tokens must be int64"),
        (lambda: TokenExamples(torch.ones(4).long(), LABELS, LABELS), r"tokens .* \(n, L\)"),
        (lambda: TokenExamples(torch.ones(4, 3).long(), LABELS[:3], LABELS), "lengths must be"),
        (lambda: TokenExamples(torch.ones(4, 3).long(), LABELS, LABELS), r"lengths .*from 0 to 3"),
        (lambda: TokenExamples(torch.ones(4, 3).long(), LABELS + 1, LABELS), r"\[1, 3\].* to 4"),
        (
            lambda: TokenExamples(-torch.ones(4, 4).long(), LABELS + 1, LABELS),
            "tokens must be >= 0",
        ),
        (
            lambda: TokenExamples(torch.ones(4, 4).long(), LABELS + 1, LABELS, padded=3),
            "padded must be None or an integer >= 4, .* got 3",
        ),
        (lambda: ImageExamples(torch.ones(4, 1, 2, 2), LABELS), r"shape \(n, 3, H, W\)"),
        (lambda: ImageExamples(torch.ones(4, 3, 2, 2).long(), LABELS), "uint8 or floating"),
        (lambda: ImageExamples(2 * torch.ones(4, 3, 2, 2), LABELS), r"in \[0, 1\], .* to 2"),
        (lambda: ImageExamples(torch.nan * torch.ones(4, 3, 2, 2), LABELS), r"in \[0, 1\]"),
        (lambda: pictures(size=0), "size must be an integer >= 1, got 0"),
        (lambda: dataclasses.replace(pictures(), padding=-1), "padding must be an integer >= 0"),
        (lambda: dataclasses.replace(pictures(), padding=1), r"offsets must lie in \[0, 2\]"),
        (lambda: dataclasses.replace(pictures(), flips=None), "offsets and flips .* together"),
        (
            lambda: dataclasses.replace(pictures(), offsets=torch.ones(3, 4)),
            "offsets must be int64",
        ),
        (lambda: dataclasses.replace(pictures(), flips=torch.ones(3, 4)), "flips must be bool"),
        (lambda: pictures(std=(1.0, 0.0, 1.0)), "std > 0"),
        (lambda: pictures(mean=(1.0,)), "mean and std must have three"),
        (lambda: pictures(mean=(0.5, torch.nan, 0.5)), "three finite numbers"),
        (lambda: pictures(mean=None), "mean and std must have three"),
        (lambda: TensorExamples(torch.ones(4, 4), [0, 1, 2, 0]), "labels must be a torch.Tensor"),
        (lambda: TensorExamples([[1.0]] * 4, LABELS), "values must be a torch.Tensor, got list"),
        (lambda: TokenExamples([[1]] * 4, LABELS + 1, LABELS), "tokens must be a torch.Tensor"),
        (lambda: ImageExamples([1] * 4, LABELS), "images must be a torch.Tensor, got list"),
        (lambda: TensorExamples(torch.nan * torch.ones(4, 4), LABELS), "values must be finite"),
        (
            lambda: TensorExamples(-torch.ones(4, 4).div(torch.tensor([1, 0, 1, 1])), LABELS),
            "values must be finite, got values from -inf to -1",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_examples_on_a_gpu_give_inputs_there():
    here = pictures(size=12)
    moved = {name: getattr(here, name).cuda() for name in ("images", "labels", "offsets", "flips")}
    there = dataclasses.replace(here, **moved)
    index, view = torch.tensor([2, 0]), torch.tensor([1, 1])
    found = there.inputs(index, view)[0]
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), here.inputs(index, view)[0], rtol=1e-4, atol=1e-5)
    assert there.digest() == here.digest()
