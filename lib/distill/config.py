"""What names a training run: method, seed, setting, teacher, and what differs from the setting."""

from __future__ import annotations

import hashlib
import json
import numbers
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lib.distill.methods import OBJECTIVES
from lib.distill.recipes import find_setting, identity, resolve_table

DOMAINS = ("vision", "text")
PROFILES = ("quick", "cpu", "gpu", "paper")
TEACHERS = ("smooth", "sharp")
RECIPE_VERSION = 1  # raised by hand when the same numbers would give other results
_DIGITS = 16  # of the hash, in a key


@dataclass(frozen=True)
class TrainingConfig:
    """One run of one method.

    **Source**: ours; methods and seeds are those of Yuan & Tao, Tables 4 and 5.

    Attributes:
        domain: "vision" or "text".
        method: one of `OBJECTIVES`.
        seed: integer >= 0.
        setting: name of a setting, see `lib.distill.recipes.SETTINGS`.
        teacher: "smooth", trained with smoothed labels, or "sharp", trained with the labels.
        overrides: entries of the setting's table that differ, as plain JSON; tuples become lists.

    Raises:
        ValueError: if a field does not fit, or the setting is unknown, of another domain, or has no
            such entry.

    Example:
        >>> config = TrainingConfig("vision", "tpkd", 42, "digits", overrides={"iterations": 40})
        >>> TrainingConfig.from_json(config.to_json()) == config
        True
    """

    domain: str
    method: str
    seed: int
    setting: str
    teacher: str = "smooth"
    overrides: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, allowed in (
            ("domain", DOMAINS),
            ("method", tuple(OBJECTIVES)),
            ("teacher", TEACHERS),
        ):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        whole = isinstance(self.seed, numbers.Integral) and not isinstance(self.seed, bool)
        if not whole or self.seed < 0:
            raise ValueError(f"seed must be an integer >= 0, got {self.seed!r}")
        object.__setattr__(self, "seed", int(self.seed))
        object.__setattr__(self, "overrides", _plain(self.overrides))
        _check_setting(self)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON.

        Example:
            >>> TrainingConfig("vision", "ce", 42, "digits").to_json()["method"]
            'ce'
        """
        return asdict(self) | {"overrides": dict(self.overrides)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> TrainingConfig:
        """Return the config whose `to_json` this is.

        Args:
            fields: name -> value, no others than the fields.

        Returns:
            The config.

        Raises:
            ValueError: if a field is unknown or missing, or does not fit.

        Example:
            >>> TrainingConfig.from_json({"method": "ce"})
            Traceback (most recent call last):
            ValueError: fields must have domain, method, seed, setting; got method
        """
        known, needed = cls.__dataclass_fields__, ("domain", "method", "seed", "setting")
        if not set(needed) <= set(fields) <= set(known):
            raise ValueError(
                f"fields must have {', '.join(needed)}; got {', '.join(map(str, fields))}"
            )
        return cls(**fields)

    def key(self) -> str:
        """Return the name under which the run is kept.

        It says setting, teacher, method and seed, and ends in a hash of all that decides the
        result: the setting's numbers, the data's hashes, `RECIPE_VERSION`. No source code counts.

        Raises:
            NotHereError: if data that the setting reads are not here.

        Example:
            >>> TrainingConfig("vision", "tpkd", 42, "digits").key()[:22]
            'digits-smooth-tpkd-42-'
        """
        return f"{self.label()}-{digest_of({'version': RECIPE_VERSION} | identity(self))}"

    def label(self) -> str:
        """Return setting, teacher, method and seed, as a reader names the run.

        Example:
            >>> TrainingConfig("vision", "tpkd", 42, "digits").label()
            'digits-smooth-tpkd-42'
        """
        return f"{self.setting}-{self.teacher}-{self.method}-{self.seed}"


def digest_of(facts: object) -> str:
    """Return a short hash of plain JSON.

    Args:
        facts: anything that JSON can hold; the order of keys does not count.

    Returns:
        16 hexadecimal digits of the SHA-256.

    Example:
        >>> digest_of({"a": 1, "b": [2.0]}) == digest_of({"b": [2.0], "a": 1})
        True
    """
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _plain(overrides: object) -> dict[str, Any]:
    """The overrides as JSON returns them."""
    if not isinstance(overrides, Mapping) or not all(isinstance(name, str) for name in overrides):
        raise ValueError(f"overrides must be a mapping from names to values, got {overrides!r}")
    try:
        return json.loads(json.dumps(dict(overrides), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"overrides must be plain JSON, got {overrides!r}: {error}") from None


def _check_setting(config: TrainingConfig) -> None:
    setting = find_setting(config.setting)
    if setting.domain != config.domain:
        raise ValueError(
            f"setting {setting.name!r} is of the domain {setting.domain!r}, got {config.domain!r}"
        )
    resolve_table(setting, config.overrides)
