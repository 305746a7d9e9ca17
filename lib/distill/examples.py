"""What is trained on: examples with labels and views, and how a batch of them becomes inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from lib.distill.digests import tensor_digest
from lib.distill.example_checks import (
    check_finite,
    check_fixed_views,
    check_images,
    check_index,
    check_labels,
    check_standard,
    check_tensor,
    check_views,
    is_whole,
)
from lib.distill.views import crop_and_flip, fixed_views

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Examples",
    "ImageExamples",
    "TensorExamples",
    "TokenExamples",
    "fixed_views",
]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Examples(Protocol):
    """What a trainer needs to know of its examples.

    Attributes:
        labels: (n,) int64.
        views: number of views of each.
        lengths: (n,) int64 where examples have a length; None where all are alike.
    """

    labels: Tensor
    views: int
    lengths: Tensor | None

    def inputs(self, index: Tensor, view: Tensor) -> tuple[Tensor, ...]:
        """Return the arguments of the network for examples (b,) seen in views (b,)."""

    def digest(self) -> str:
        """Return the SHA-256 of the content."""


@dataclass(frozen=True, eq=False)
class TensorExamples:
    """Examples that are the network's input as they are.

    **Source**: ours.

    Attributes:
        values: (V, n, ...), finite; (n, ...) is one view of each.
        labels: (n,) int64, >= 0.
        views: V >= 1; None if the values are given without a dimension for views.
        lengths: None.

    Raises:
        ValueError: if a shape or a dtype does not fit, a value is not finite, or there is none.

    Example:
        >>> examples = TensorExamples(torch.eye(3), torch.tensor([0, 1, 2]))
        >>> examples.inputs(torch.tensor([2]), torch.tensor([0]))
        (tensor([[0., 0., 1.]]),)
    """

    values: Tensor
    labels: Tensor
    views: int | None = None

    lengths = None

    def __post_init__(self) -> None:
        check_labels(self.labels)
        n, lead = len(self.labels), (len(self.labels),)
        if self.views is not None:
            check_views(self.views)
            lead = (self.views, n)
        check_tensor("values", self.values)
        if self.values.shape[: len(lead)] != lead:
            raise ValueError(
                f"values must have shape {_shape(lead, '...')} for {n} labels"
                f"{'' if self.views is None else f' and {self.views} views'}, got "
                f"{tuple(self.values.shape)}"
            )
        check_finite(self.values)
        if self.views is None:
            object.__setattr__(self, "values", self.values.unsqueeze(0))
            object.__setattr__(self, "views", 1)

    def inputs(self, index: Tensor, view: Tensor) -> tuple[Tensor]:
        """Return the values (b, ...) of examples (b,) in views (b,)."""
        check_index(index, view, len(self.labels), self.views)
        return (self.values[view, index],)

    def digest(self) -> str:
        """Return the SHA-256 of values and labels."""
        named = [("values", self.values), ("labels", self.labels)]
        return tensor_digest(named, type(self).__name__)


@dataclass(frozen=True, eq=False)
class TokenExamples:
    """Texts as numbers of word pieces, padded to the longest of a batch or to a fixed length.

    **Source**: ours; the paper pads to 128 (Yuan & Tao, Appendix E.1). Without dropout the logits
    are the same, and padding to the longest text of a batch is several times faster.

    Attributes:
        tokens: (n, L) int64 >= 0; what follows the length of a text does not count.
        lengths: (n,) int64, in [1, L].
        labels: (n,) int64, >= 0.
        padded: the fixed length, at least that of the longest text; None for the longest of a
            batch.
        views: 1.

    Raises:
        ValueError: if a shape, a dtype or a length does not fit, or there is no example.

    Example:
        >>> tokens, lengths = torch.tensor([[7, 8, 9], [5, 0, 0]]), torch.tensor([3, 1])
        >>> examples = TokenExamples(tokens, lengths, torch.tensor([0, 1]), padded=2 + 2)
        >>> examples.inputs(torch.tensor([1]), torch.tensor([0]))
        (tensor([[5, 0, 0, 0]]), tensor([[ True, False, False, False]]))
    """

    tokens: Tensor
    lengths: Tensor
    labels: Tensor
    padded: int | None = None

    views = 1

    def __post_init__(self) -> None:
        check_labels(self.labels)
        n = len(self.labels)
        for name, tensor, dimensions in (("tokens", self.tokens, 2), ("lengths", self.lengths, 1)):
            check_tensor(name, tensor)
            if tensor.dtype != torch.int64 or tensor.ndim != dimensions or len(tensor) != n:
                shape = "(n, L)" if dimensions == 2 else "(n,)"
                raise ValueError(
                    f"{name} must be int64 of shape {shape} with n = {n}, got {tensor.dtype} of "
                    f"shape {tuple(tensor.shape)}"
                )
        low, high = (int(x) for x in self.lengths.aminmax())
        if low < 1 or high > self.tokens.shape[1]:
            raise ValueError(
                f"lengths must lie in [1, {self.tokens.shape[1]}], got values from {low} to {high}"
            )
        if bool((self.tokens < 0).any()):
            raise ValueError(f"tokens must be >= 0, got {int(self.tokens.min())}")
        if self.padded is not None and not (is_whole(self.padded) and self.padded >= high):
            raise ValueError(
                f"padded must be None or an integer >= {high}, the length of the longest text, "
                f"got {self.padded!r}"
            )

    def inputs(self, index: Tensor, view: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens (b, longest) and a mask (b, longest), True where a token is real."""
        check_index(index, view, len(self.labels), self.views)
        lengths = self.lengths[index]
        width = int(lengths.max()) if self.padded is None else self.padded
        tokens = self.tokens[index, :width]
        tokens = pad(tokens, (0, width - tokens.shape[1]))
        mask = torch.arange(width, device=tokens.device) < lengths.unsqueeze(-1)
        return tokens.masked_fill(~mask, 0), mask

    def digest(self) -> str:
        """Return the SHA-256 of tokens, lengths, labels and the fixed length."""
        named = [("tokens", self.tokens), ("lengths", self.lengths), ("labels", self.labels)]
        return tensor_digest(named, type(self).__name__, self.padded)


@dataclass(frozen=True, eq=False)
class ImageExamples:
    r"""Images in fixed views: padded, cropped, perhaps mirrored, enlarged and standardised.

    $$x \mapsto \frac{\operatorname{clamp}(\operatorname{resize}(\operatorname{flip}
      (\operatorname{crop}(\operatorname{pad}(x)))), 0, 1) - \mu}{\sigma}$$

    Views are made for a batch at a time and never stored.

    **Source**: Yuan & Tao, Appendix E.1: eight fixed views, 4 pixels of padding, bicubic to 224.

    Attributes:
        images: (n, 3, H, W), uint8, or floating point in [0, 1].
        labels: (n,) int64, >= 0.
        offsets: (V, n, 2) int64 in [0, 2 padding], row and column of a crop of the padded image,
            as `fixed_views` draws them; None for one view that is the image itself.
        flips: (V, n) bool, whether left and right change places; None if offsets are.
        padding: pixels of zeros on each side, >= 0.
        size: edge of the result; None for no resizing.
        mean: of each channel, subtracted at the end.
        std: of each channel, > 0.
        views: V.
        lengths: None.

    Raises:
        ValueError: if a shape, a dtype or a value does not fit, or there is no example.

    Example:
        >>> white = torch.ones(1, 3, 2, 2)
        >>> examples = ImageExamples(white, torch.tensor([0]), mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> examples.inputs(torch.tensor([0]), torch.tensor([0]))[0].unique()  # (1 - 1/2) / (1/2)
        tensor([1.])
    """

    images: Tensor
    labels: Tensor
    offsets: Tensor | None = None
    flips: Tensor | None = None
    padding: int = 4
    size: int | None = None
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    lengths = None

    def __post_init__(self) -> None:
        check_labels(self.labels)
        n = len(self.labels)
        check_images(self.images, n)
        for name, value, least in (("padding", self.padding, 0), ("size", self.size, 1)):
            if not (is_whole(value) and value >= least) and not (name == "size" and value is None):
                raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
        check_standard(self.mean, self.std)
        if (self.offsets is None) != (self.flips is None):
            raise ValueError("offsets and flips must be given together, got only one of them")
        if self.offsets is None:
            device = self.images.device
            centre = torch.full((1, n, 2), self.padding, dtype=torch.int64, device=device)
            object.__setattr__(self, "offsets", centre)
            object.__setattr__(self, "flips", torch.zeros((1, n), dtype=torch.bool, device=device))
        check_fixed_views(self.offsets, self.flips, n, self.padding)

    @property
    def views(self) -> int:
        """The number of views of each image."""
        return len(self.flips)

    def inputs(self, index: Tensor, view: Tensor) -> tuple[Tensor]:
        """Return images (b, 3, size, size) in float32, or float64 if the images are."""
        check_index(index, view, len(self.labels), self.views)
        offsets, flips = self.offsets[view, index], self.flips[view, index]
        images = crop_and_flip(self.images[index], offsets, flips, self.padding)
        if self.size is not None and images.shape[-2:] != (self.size, self.size):
            shape = (self.size, self.size)
            images = interpolate(images, shape, mode="bicubic", antialias=True).clamp(0, 1)
        mean, std = (images.new_tensor(x).view(3, 1, 1) for x in (self.mean, self.std))
        return ((images - mean) / std,)

    def digest(self) -> str:
        """Return the SHA-256 of images, labels and everything that makes a view."""
        named = [(name, getattr(self, name)) for name in ("images", "labels", "offsets", "flips")]
        facts = (type(self).__name__, self.padding, self.size, list(self.mean), list(self.std))
        return tensor_digest(named, *facts)


def _shape(lead: tuple[int, ...], rest: str) -> str:
    return f"({', '.join(map(str, lead))}, {rest})"
