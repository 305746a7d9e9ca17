"""What the loaders return, and how images are standardised before training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True)
class ImageSet:
    """Labelled images, and where they come from.

    Attributes:
        name: Data set: ``"mnist"``, ``"digits"``, ``"cifar10"`` or ``"cifar100"``.
        split: ``"train"``, ``"test"`` or ``"all"``.
        source: ``"official"``, ``"subset"`` or ``"embedded"``.
        note: One sentence for the page: what was loaded, and from where.
        sha256: File (or embedded set) -> verified SHA-256.
        shape: Height and width of a grey image; channels, height and width of a colour image.
        images: Grey: ``(n, height * width)``, float64 in [0, 1], rows of pixels one after the
            other. Colour: ``(n, 3, height, width)``, float32 in [0, 1].
        labels: ``(n,)``, int64.
    """

    name: str
    split: str
    source: str
    note: str
    sha256: dict[str, str]
    shape: tuple[int, ...]
    images: torch.Tensor = field(repr=False)
    labels: torch.Tensor = field(repr=False)


def standardise(images: torch.Tensor, reference: torch.Tensor | None = None) -> torch.Tensor:
    r"""Centre every pixel and divide it by its standard deviation over the reference images.

    $$\tilde x_{ij} = \frac{x_{ij} - \mu_j}{\sigma_j}, \qquad
    \mu_j = \frac1m \sum_{k=1}^m r_{kj}, \qquad
    \sigma_j^2 = \frac1m \sum_{k=1}^m (r_{kj} - \mu_j)^2$$

    for images $x$ and reference images $r$. A pixel that is the same in all reference images
    becomes 0.

    **Source**: Cohen et al., whose reference are all 50,000 training images of CIFAR-10, also
    where fewer are trained on.

    Args:
        images: ``(n, ...)``, any number type, finite.
        reference: ``(m, ...)`` with the same pixels, m >= 1; the images themselves when None.

    Returns:
        float32, with the images' shape, on their device.

    Raises:
        TypeError: An argument is no tensor.
        ValueError: No reference image, pixels of another shape, or a value that is not finite.

    Example:
        >>> standardise(torch.tensor([[0.0, 7.0], [4.0, 7.0]]))
        tensor([[-1.,  0.],
                [ 1.,  0.]])
    """
    reference = images if reference is None else reference
    images, reference = _as_floats("images", images), _as_floats("reference", reference)
    if len(reference) == 0 or reference.shape[1:] != images.shape[1:]:
        raise ValueError(
            f"reference has shape {tuple(reference.shape)}, must be one or more images of shape "
            f"{tuple(images.shape[1:])}"
        )
    variance, mean = torch.var_mean(reference, dim=0, correction=0)
    constant = (reference.amax(0) == reference.amin(0)) | (variance == 0)
    scale = torch.where(constant, 0, torch.where(constant, 1, variance).rsqrt())
    return ((images - mean) * scale).float()


def _as_floats(argument: str, images: torch.Tensor) -> torch.Tensor:
    """The images in float64 if they are, else in float32; refuses what cannot be standardised."""
    if not isinstance(images, torch.Tensor):
        raise TypeError(f"{argument} is a {type(images).__name__}, must be a tensor (n, ...)")
    if images.ndim < 1 or images.is_complex():
        raise ValueError(
            f"{argument} has shape {tuple(images.shape)} and dtype {images.dtype}, must be real "
            "images (n, ...)"
        )
    images = images if images.dtype == torch.float64 else images.float()
    if not images.isfinite().all():
        raise ValueError(f"{argument} holds NaN or infinity, must be finite")
    return images


def check_choice(argument: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a value that is not one of ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{argument} is {value!r}, must be one of {', '.join(allowed)}")


def check_count(argument: str, value: int, most: int) -> None:
    """Refuse anything but a whole number from 1 to ``most``."""
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{argument} is {value!r}, must be a whole number from 1 to {most:,}")
