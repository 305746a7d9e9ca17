"""What every test of a page's helpers shares: no data noted by another test file."""

from __future__ import annotations

import pytest

from lib.book.data_used import forget_data


@pytest.fixture(scope="module", autouse=True)
def no_data_noted() -> None:
    """Forgets what other files noted, before this one begins."""
    forget_data()
