"""What every test shares: no page's identity leaks in, property tests take their time."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("MPLBACKEND", "Agg")
settings.register_profile(
    "book", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# The check of a submission draws the same examples each time, so that it fails for what changed;
# every other run, and the weekly one (HYPOTHESIS_PROFILE=book), draws new ones.
settings.register_profile("ci", parent=settings.get_profile("book"), derandomize=True)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "book")
)


@pytest.fixture(autouse=True)
def no_page_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clears what the runner hands to a kernel, so that tests behave alike in and out of it."""
    for name in [name for name in os.environ if name.startswith("BOOK_") and name != "BOOK_DATA"]:
        monkeypatch.delenv(name)
