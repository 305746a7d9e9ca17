"""EfficientNet-Lite0, a small pretrained image network: students of its stages, frozen features."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from lib.models.checks import check_generator, check_size, check_word
from lib.models.student import Student, new_head
from lib.models.weights import locate_weights, needed

WIDTH, IMAGENET_CLASSES = 1280, 1000
MAP_CHANNELS, STRIDE = 192, 32
STAGES = ("head", "last", "all")
TIMM = "timm==1.0.31"

Progress = Callable[[Iterable, str], Iterable]

_OUTER = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
_OUTER["_fc"] = "classifier"
_FIRST_BLOCK = {
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}
_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


class FrozenNormStudent(Student):
    """A student whose batch normalisations keep the statistics of the pretraining.

    They stay in evaluation mode; their scales and shifts are trained like other weights.

    Example:
        >>> student = FrozenNormStudent(nn.BatchNorm1d(3), nn.Linear(3, 2)).train()
        >>> student.training, student.body.training
        (True, False)
    """

    def train(self, mode: bool = True) -> FrozenNormStudent:
        """Set the mode of everything but the batch normalisations."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.eval()
        return self


def efficientnet_lite0(
    classes: int | None = None,
    stages: str = "all",
    *,
    generator: torch.Generator | None = None,
) -> Student:
    r"""Return a student that trains some stages of EfficientNet-Lite0.

    | stages | reads | trains |
    |---|---|---|
    | "head" | features (b, 1280) | the head, a linear map |
    | "last" | maps (b, 192, h, w) | the last stage, the last convolution and the head |
    | "all" | images (b, 3, H, W) from `prepare_images` | everything |

    Batch normalisations keep their statistics. The weights come from a package, not from a network.

    **Source**: EfficientNet-Lite0 (Apache-2.0), which stands in for PiT-B.

    Args:
        classes: number of outputs, >= 1, with a new head; None keeps ImageNet's 1,000 with theirs.
        stages: "head", "last" or "all".
        generator: source of randomness of a new head; the weights are on its device.

    Returns:
        The network in training mode, with `features` (b, 1280) and `head`.

    Raises:
        ValueError: if `stages` is unknown, `classes` is below 1 or comes without a generator.
        ImportError: if the weights or timm are not installed; says how to.
        WeightsError: if the weights are not the known ones.

    Example:
        >>> from lib.models.weights import weights_here
        >>> if weights_here("efficientnet-lite0"):
        ...     student = efficientnet_lite0(100, "last", generator=torch.Generator())
        ...     assert student(torch.zeros(2, 192, 3, 3)).shape == (2, 100)
    """
    check_word("stages", stages, STAGES)
    head = None if classes is None else new_head(WIDTH, classes, generator)
    network = _network()
    head = network.classifier if head is None else head
    last = [*network.blocks[6:], network.conv_head, network.bn2, network.global_pool]
    bodies = {
        "head": [nn.Flatten()],
        "last": last,
        "all": [network.conv_stem, network.bn1, *network.blocks[:6], *last],
    }
    student = FrozenNormStudent(nn.Sequential(*bodies[stages]), head)
    device = torch.device("cpu") if generator is None else check_generator(generator).device
    return student.to(device).train()


def prepare_images(images: Tensor, size: int) -> Tensor:
    r"""Return images as EfficientNet-Lite0 reads them.

    Bicubic interpolation with antialiasing to `size` pixels a side, cut off to [0, 1], then
    $x \mapsto 2 x - 1$.

    **Source**: timm, mean and standard deviation 0.5.

    Args:
        images: (b, 3, H, W), floating point, in [0, 1].
        size: pixels a side of the result, a multiple of 32.

    Returns:
        (b, 3, size, size), in [-1, 1].

    Raises:
        ValueError: if the shape or the size does not fit.

    Example:
        >>> prepare_images(torch.full((1, 3, 32, 32), 0.75), 32).unique()
        tensor([0.5000])
    """
    if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
        raise ValueError(
            f"images must be floating point (b, 3, H, W), got {images.dtype} of shape "
            f"{tuple(images.shape)}"
        )
    if check_size("size", size) % STRIDE:
        raise ValueError(f"size must be a multiple of {STRIDE}, got {size}")
    if images.shape[2:] != (size, size):
        images = interpolate(images, (size, size), mode="bicubic", antialias=True)
    return images.clamp(0, 1) * 2 - 1


def image_features(
    images: Tensor,
    size: int = 96,
    *,
    maps: bool = False,
    batch_size: int = 64,
    progress: Progress | None = None,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor | None]:
    """Return frozen features of EfficientNet-Lite0, and maps before its last stage, in one pass.

    Args:
        images: (n, 3, H, W), floating point, in [0, 1].
        size: pixels a side to which `prepare_images` brings them, a multiple of 32.
        maps: whether to return the maps too.
        batch_size: images at a time, >= 1.
        progress: `progress(iterable, label)` yields the items and may say how far it is.
        device: where to compute.

    Returns:
        Features (n, 1280) after the last convolution, averaged over pixels; maps
        (n, 192, size / 32, size / 32), or None. Both float32 on the CPU.

    Raises:
        ValueError: if the shape or a size does not fit.
        ImportError: if the weights or timm are not installed; says how to.
        WeightsError: if the weights are not the known ones.

    Example:
        >>> from lib.models.weights import weights_here
        >>> if weights_here("efficientnet-lite0"):
        ...     features, found = image_features(torch.zeros(2, 3, 32, 32), 64, maps=True)
        ...     assert features.shape == (2, 1280) and found.shape == (2, 192, 2, 2)
    """
    prepare_images(images[:0], size)
    check_size("batch_size", batch_size)
    body = efficientnet_lite0().eval().body.to(device, memory_format=torch.channels_last)
    before, last = body[:-4], body[-4:]
    side = size // STRIDE
    features = torch.empty(len(images), WIDTH)
    middle = torch.empty(len(images), MAP_CHANNELS, side, side) if maps else None
    places = range(0, len(images), batch_size)
    with torch.inference_mode():
        for start in progress(places, "batches of images") if progress else places:
            part = slice(start, start + batch_size)
            batch = prepare_images(images[part].to(device, torch.float32), size)
            found = before(batch.contiguous(memory_format=torch.channels_last))
            if middle is not None:
                middle[part] = found.cpu()
            features[part] = last(found).cpu()
    return features, middle


@torch.no_grad()
def fold_standardisation(head: nn.Linear, mean: Tensor, std: Tensor) -> nn.Linear:
    r"""Return the head that reads raw features as `head` reads standardised ones.

    $$W' = W \operatorname{diag}(\sigma)^{-1}, \qquad b' = b - W' \mu$$

    so that $W' x + b' = W \frac{x - \mu}{\sigma} + b$. It is computed in float64.

    **Source**: ours.

    Args:
        head: a linear layer of d features, with or without bias.
        mean: (d,), finite.
        std: (d,), finite and > 0.

    Returns:
        A new layer with bias, with the head's dtype, on its device.

    Raises:
        ValueError: if a shape does not fit, or `std` is not positive and finite.

    Example:
        >>> head = nn.Linear(2, 1)
        >>> head.load_state_dict({"weight": torch.tensor([[1.0, 1.0]]), "bias": torch.zeros(1)})
        <All keys matched successfully>
        >>> folded = fold_standardisation(head, torch.tensor([3.0, 4.0]), torch.tensor([2.0, 4.0]))
        >>> folded.weight.tolist(), folded.bias.tolist()
        ([[0.5, 0.25]], [-2.5])
    """
    for name, values in (("mean", mean), ("std", std)):
        if values.shape != (head.in_features,) or not values.isfinite().all():
            raise ValueError(
                f"{name} must be {head.in_features} finite numbers, got shape {tuple(values.shape)}"
            )
    if not (std > 0).all():
        raise ValueError(f"std must be > 0, got {std.min():g}: drop features that do not vary")
    weight = head.weight.double() / std.to(head.weight.device, torch.float64)
    bias = -weight @ mean.to(weight)
    if head.bias is not None:
        bias += head.bias.double()
    folded = nn.utils.skip_init(
        nn.Linear,
        head.in_features,
        head.out_features,
        device=head.weight.device,
        dtype=head.weight.dtype,
    )
    folded.weight.copy_(weight)
    folded.bias.copy_(bias)
    return folded


def _network() -> nn.Module:
    """The network of timm with all of its weights."""
    path = locate_weights("efficientnet-lite0")
    timm = needed("timm", TIMM)
    with torch.random.fork_rng(devices=[]):
        network = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    weights = torch.load(path, map_location="cpu", weights_only=True)
    blocks = [
        f"blocks.{stage}.{block}"
        for stage, part in enumerate(network.blocks)
        for block in range(len(part))
    ]
    network.load_state_dict({_renamed(k, blocks): w for k, w in weights.items()}, strict=True)
    return network


def _renamed(key: str, blocks: list[str]) -> str:
    """The name in timm of a weight of the package."""
    parts = key.split(".")
    if parts[0] != "_blocks":
        return ".".join([_OUTER[parts[0]], *parts[1:]])
    number = int(parts[1])
    names = _BLOCK if number else _FIRST_BLOCK
    return ".".join([blocks[number], names[parts[2]], *parts[3:]])
