"""Frozen features of small pretrained networks, and the head that Appendix E.1 fits on them."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from lib.datasets.cifar import load_cifar100
from lib.datasets.clinc import load_clinc150
from lib.datasets.files import NotHereError
from lib.datasets.registry import OutsideFile, load_registry, places
from lib.distill.assets import Progress, Tensors, cached_rows, cached_tensors
from lib.models.pretrained import image_features, minilm, text_features, tokenise
from lib.models.weights import WEIGHTS

SPLITS = ("train", "test")
SUBSET = {"train": 20_000, "test": 5_000}  # images in the subset of CIFAR-100
_CLASSES = 150  # of a head that is not used


def cifar100_file(train: int, test: int) -> OutsideFile:
    """Return the file from which so many images of CIFAR-100 come: the archive or the subset.

    Args:
        train: number of training images.
        test: number of test images.

    Returns:
        The first that is here, in `$BOOK_DATA`, then in the cache.

    Raises:
        NotHereError: if neither is here, or only the subset, which holds fewer images.
    """
    files = {file.name: file for file in load_registry().datasets["cifar100"].files}
    fits = train <= SUBSET["train"] and test <= SUBSET["test"]
    names = ["cifar100-archive", *(["cifar100-subset"] if fits else [])]
    for folder in places().values():
        for name in names:
            if (folder / files[name].file).is_file():
                return files[name]
    raise NotHereError(
        f"CIFAR-100 with {train:,} training and {test:,} test images is not here; run "
        "`python -m lib.datasets download cifar100-archive`, or set BOOK_DATA to a folder with it"
    )


@lru_cache(maxsize=2)
def cifar100(split: str, train: int, test: int) -> tuple[Tensor, Tensor]:
    """Return images (n, 3, 32, 32) in [0, 1] and labels (n,) of CIFAR-100.

    Args:
        split: "train" or "test".
        train: number of training images.
        test: number of test images.

    Returns:
        Images float32, labels int64.

    Raises:
        NotHereError: as `cifar100_file`.
    """
    source = "subset" if "subset" in cifar100_file(train, test).name else "official"
    n = train if split == "train" else test
    found = load_cifar100(n, split, source=source, allow_download=False, quiet=True)
    return found.images, found.labels


def frozen_images(
    size: int,
    train: int,
    test: int,
    *,
    maps: bool = False,
    progress: Progress | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Tensors]:
    """Return what EfficientNet-Lite0 makes of the images of CIFAR-100, computed once and kept.

    Args:
        size: pixels a side, a multiple of 32.
        train: number of training images.
        test: number of test images.
        maps: whether the maps before the last stage are wanted too.
        progress: as of `cached_rows`.
        device: where to compute.

    Returns:
        "train" and "test" -> "features" (n, 1280), "labels" (n,), and "maps" (n, 192, h, w).

    Raises:
        NotHereError: as `cifar100_file`.
        ImportError: if the weights or timm are not installed.
    """
    facts = {
        "data": cifar100_file(train, test).sha256,
        "weights": WEIGHTS["efficientnet-lite0"].sha256,
        "size": size,
        "maps": maps,
    }
    found = {}
    for split in SPLITS:
        images, labels = cifar100(split, train, test)

        def rows(part: slice, images: Tensor = images) -> Tensors:
            features, middle = image_features(
                images[part], size, maps=maps, progress=progress, device=device
            )
            return {"features": features} | ({"maps": middle} if maps else {})

        own = facts | {"split": split, "n": len(labels)}
        kept = cached_rows(f"lite0-{size}-{split}", own, len(labels), rows, progress=progress)
        found[split] = kept | {"labels": labels}
    return found


@lru_cache(maxsize=1)
def clinc150_tokens() -> dict[str, Tensor]:
    """Return the word pieces of CLINC150, computed once and kept.

    Returns:
        For "train" and "test": "..._tokens" (n, L), "..._lengths" (n,), "..._labels" (n,), int64.

    Raises:
        NotHereError: if the data are not to be had.
        ImportError: if the tokenizer is not installed.
    """
    facts = {"data": clinc150_sha256(), "tokenizer": WEIGHTS["minilm-tokenizer"].sha256}

    def make() -> Tensors:
        found = {}
        for split in SPLITS:
            texts = load_clinc150(split, quiet=True)
            tokens, lengths = tokenise(texts.texts)
            found |= {f"{split}_tokens": tokens, f"{split}_lengths": lengths}
            found[f"{split}_labels"] = texts.labels
        return found

    return cached_tensors("clinc150-tokens", facts, make)


def clinc150_sha256() -> str:
    """Return the registered hash of the file of CLINC150."""
    (file,) = load_registry().datasets["clinc150"].files
    return file.sha256


def frozen_texts(layers: int, progress: Progress | None = None) -> dict[str, Tensor]:
    """Return the mean of the last states of MiniLM for all texts of CLINC150, kept.

    Args:
        layers: of MiniLM, 0 to 6.
        progress: as of `cached_rows`.

    Returns:
        "train" (18000, 384) and "test" (4500, 384), float32.

    Raises:
        NotHereError: if the data are not to be had.
        ImportError: if the weights or transformers are not installed.
    """
    tokens = clinc150_tokens()
    facts = {
        "data": clinc150_sha256(),
        "tokenizer": WEIGHTS["minilm-tokenizer"].sha256,
        "weights": WEIGHTS["minilm"].sha256,
        "layers": layers,
    }
    made = []

    def rows(split: str, part: slice) -> Tensors:
        if not made:
            made.append(minilm(layers, _CLASSES, generator=torch.Generator().manual_seed(0)))
        of_split = (tokens[f"{split}_{what}"][part] for what in ("tokens", "lengths"))
        return {"features": text_features(made[0], *of_split, progress=progress)}

    found = {}
    for split in SPLITS:
        n = len(tokens[f"{split}_labels"])
        name = f"minilm-{layers}-{split}"
        kept = cached_rows(
            name, facts | {"split": split}, n, lambda part, s=split: rows(s, part), 4500, progress
        )
        found[split] = kept["features"]
    return found


def logistic_head(features: Tensor, labels: Tensor, c: float, facts: dict) -> Tensors:
    r"""Return the head of a logistic regression on standardised features, kept.

    $$\min_{W, b}\ C \sum_i \operatorname{CE}\Bigl(W \frac{x_i - \mu}{\sigma} + b,\ y_i\Bigr)
      + \tfrac12 \|W\|^2$$

    The standardisation is folded in, so that the head reads raw features. K is one more than the
    largest label; a class without examples gets zeros.

    **Source**: Yuan & Tao, Appendix E.1, with C = 0.01.

    Args:
        features: (n, d), finite.
        labels: (n,) int64.
        c: C > 0.
        facts: what decides the features, as plain JSON.

    Returns:
        "weight" (K, d) and "bias" (K,), float32.

    Raises:
        CheckpointError: if the file is damaged; it names the file.
    """
    facts = {"features": facts, "c": c, "n": len(labels)}
    return cached_tensors("logistic-head", facts, lambda: _regress(features, labels, c))


def _regress(features: Tensor, labels: Tensor, c: float) -> Tensors:
    from sklearn.linear_model import LogisticRegression

    from lib.models.pretrained import fold_standardisation

    variance, mean = torch.var_mean(features.double(), 0, correction=0)
    std = torch.where(variance > 0, variance, 1.0).sqrt()
    model = LogisticRegression(C=c, max_iter=1000)
    model.fit(((features.double() - mean) / std).float().numpy(), labels.numpy())
    head, present = torch.nn.Linear(features.shape[1], int(labels.max()) + 1), model.classes_
    with torch.no_grad():
        for parameter, found in ((head.weight, model.coef_), (head.bias, model.intercept_)):
            parameter.zero_()
            parameter[present] = torch.from_numpy(found)
    folded = fold_standardisation(head, mean, std)
    return {"weight": folded.weight.detach(), "bias": folded.bias.detach()}
