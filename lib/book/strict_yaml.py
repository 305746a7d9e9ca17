"""YAML that says no: repeated keys are errors, and ``1e-3`` is a number as in YAML 1.2."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the two changes this module is for."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    seen: dict = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            line = key_node.start_mark.line + 1
            raise ValueError(f"line {line}: the key {key!r} stands there twice; keep one.")
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str, name: str) -> Any:
    """Returns the value of a YAML text.

    Args:
        text: the YAML.
        name: what to call it in errors, usually the path.

    Returns:
        Dictionaries, lists and plain values.

    Raises:
        ValueError: on bad syntax or a repeated key; it starts with ``name``.

    Example:
        >>> parse_yaml("a: 1e-3", "x.yml")
        {'a': 0.001}
        >>> parse_yaml("a: 1\\na: 2", "x.yml")
        Traceback (most recent call last):
        ValueError: x.yml: line 2: the key 'a' stands there twice; keep one.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None


def load_yaml(path: Path, root: Path) -> Any:
    """Returns the value of a YAML file; errors name it relative to ``root``.

    Args:
        path: the file.
        root: the checkout it belongs to.

    Returns:
        Dictionaries, lists and plain values.

    Raises:
        ValueError: where the file is missing, malformed, or repeats a key.
    """
    name = path.relative_to(root).as_posix()
    if not path.exists():
        raise ValueError(f"{name} does not exist under {root}; restore it from the repository.")
    return parse_yaml(path.read_text(encoding="utf-8"), name)
