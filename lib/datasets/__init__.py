"""Data: a registry of outside files with hashes and mirrors, and loaders that return tensors.

``python -m lib.datasets list | download | verify`` manages the files. Loading looks in
``$BOOK_DATA``, then in the cache, then at the mirrors, then at the digits embedded in packages, and
says which one it used. What needs torch is imported on first use, so that
``lib.datasets.registry`` stays light.
"""

from importlib import import_module

_HOME = {
    "ImageSet": "images",
    "standardise": "images",
    "load_cifar10": "cifar",
    "load_cifar100": "cifar",
    "digit_pair": "digits",
    "load_digits": "digits",
    "load_mnist": "digits",
    "load_mnist_5k": "digits",
    "split_indices": "splits",
    "ChecksumError": "files",
    "NotHereError": "files",
    "fetch": "files",
    "available": "registry",
    "load_registry": "registry",
    "locate": "registry",
}
__all__ = [
    "ChecksumError",
    "ImageSet",
    "NotHereError",
    "available",
    "digit_pair",
    "fetch",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_mnist",
    "load_mnist_5k",
    "load_registry",
    "locate",
    "split_indices",
    "standardise",
]


def __getattr__(name: str) -> object:
    """Import a public name from its module when it is first asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    """The public names."""
    return __all__
