"""What a part of the GPU check works with: where it runs, and the record that survives it."""

import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Record:
    """What a part has found so far, on disk after every entry.

    A check is a number and the bound that it must not exceed; NaN exceeds every bound.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {"status": "running", "checks": {}, "says": []}
        self._save()

    def put(self, name: str, value: Any) -> None:
        """Keep a value, which JSON can hold."""
        self.facts[name] = value
        self._save()

    def say(self, line: str) -> None:
        """Keep a line for the summary."""
        self.facts["says"].append(line)
        self._save()

    def check(self, name: str, value: float, bound: float) -> None:
        """Keep a number that must not exceed a bound."""
        holds = value <= bound
        kept = value if math.isfinite(value) else str(value)
        self.facts["checks"][name] = {"value": kept, "bound": bound, "holds": holds}
        self._save()

    def finish(self) -> None:
        """The part came to its end."""
        holds = all(row["holds"] for row in self.facts["checks"].values())
        self.put("status", "passed" if holds else "differs")

    def fail(self, error: BaseException) -> None:
        """The part broke off."""
        self.facts["error"] = f"{type(error).__name__}: {error}"
        self.put("status", "failed")

    def _save(self) -> None:
        part = self.path.with_name(f"{self.path.name}.part")
        part.write_text(json.dumps(self.facts))
        os.replace(part, self.path)


def read_record(path: Path) -> dict[str, Any]:
    """The record of a part, whatever became of it."""
    if not path.is_file():
        return {"status": "running", "checks": {}, "says": []}
    return json.loads(path.read_text())


@dataclass(frozen=True)
class Place:
    """Where a part runs.

    Attributes:
        device: "cuda" or "cpu".
        tiny: whether only the script is tried.
        deadline: when it will be stopped, on the clock of `time.monotonic`.
        record: what it has found.
    """

    device: str
    tiny: bool
    deadline: float
    record: Record

    def left(self) -> float:
        """Seconds until it will be stopped."""
        return self.deadline - time.monotonic()
