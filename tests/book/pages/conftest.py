"""What tests of the pages' helpers share: no data noted by another file, a cache of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lib.book.data_used import forget_data


@pytest.fixture(scope="module", autouse=True)
def no_data_noted() -> None:
    """Forgets what other files noted, before this one begins."""
    forget_data()


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache that holds what this file trains, and nothing else."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOOK_CACHE", str(folder))
        yield folder
