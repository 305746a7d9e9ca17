"""CLINC150: short requests and their intents, as texts and labels."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lib.datasets.files import fetch
from lib.datasets.images import check_choice
from lib.datasets.official import place_in_words
from lib.datasets.registry import load_registry

PARTS = {"train": ("train", "val"), "test": ("test",)}
SAYS = {"train": "the official training and validation texts together", "test": "the test texts"}


@dataclass(frozen=True)
class TextSet:
    """Labelled texts, and where they come from.

    Attributes:
        name: Data set: ``"clinc150"``.
        split: ``"train"`` or ``"test"``.
        source: ``"official"``.
        note: One sentence for the page: what was loaded, and from where.
        sha256: File -> verified SHA-256.
        texts: n texts.
        labels: ``(n,)``, int64.
        classes: Names of the labels.
    """

    name: str
    split: str
    source: str
    note: str
    sha256: dict[str, str]
    texts: tuple[str, ...] = field(repr=False)
    labels: torch.Tensor = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)


def load_clinc150(
    split: str = "train", allow_download: bool = True, quiet: bool = False
) -> TextSet:
    """The in-scope texts of CLINC150, with 150 intents.

    ``"train"`` is the official training set followed by the official validation set, 18,000 texts,
    120 of each intent; ``"test"`` the official test set, 4,500 texts, 30 of each. Texts out of
    scope are left out. Labels number the intents in the order of their names. The file is looked
    for in ``$BOOK_DATA``, then in the cache, then at the mirrors.

    **Source**: Larson et al. (2019); the pooling is that of Yuan & Tao, Appendix E.1.

    Args:
        split: ``"train"`` or ``"test"``.
        allow_download: Whether a missing file (2.5 MB) may be downloaded. ``BOOK_OFFLINE=1``
            overrules it.
        quiet: Do not print the note.

    Returns:
        The texts, in the order of the file.

    Raises:
        ValueError: Unknown split.
        NotHereError: The file is not to be had; says where to get it.
        ChecksumError: The file is not the registered one; nothing else is tried.

    Example:
        >>> from lib.datasets import locate
        >>> if locate("clinc150"):
        ...     texts = load_clinc150("test", quiet=True)
        ...     assert texts.labels.bincount().tolist() == [30] * 150
    """
    check_choice("split", split, tuple(PARTS))
    (file,) = load_registry().datasets["clinc150"].files
    where, path = fetch(file, allow_download)
    pairs = _read(path, split)
    classes = tuple(sorted({intent for _, intent in pairs}))
    place = {intent: label for label, intent in enumerate(classes)}
    note = (
        f"CLINC150 {split}: {SAYS[split]}, {len(pairs):,} of {len(classes)} intents, from "
        f"{path.name} ({place_in_words([where])})"
    )
    if not quiet:
        print(note)
    return TextSet(
        name="clinc150",
        split=split,
        source="official",
        note=note,
        sha256={file.file: file.sha256},
        texts=tuple(text for text, _ in pairs),
        labels=torch.tensor([place[intent] for _, intent in pairs]),
        classes=classes,
    )


def _read(path: Path, split: str) -> list[list[str]]:
    """The pairs of text and intent of a split, in the order of the file."""
    parts = json.loads(path.read_text(encoding="utf-8"))
    return [pair for part in PARTS[split] for pair in parts[part]]
