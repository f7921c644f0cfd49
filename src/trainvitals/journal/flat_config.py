"""A configuration as names and values, for lists and comparisons. Imports nothing heavy.
Tested in tests/exporters/test_mirroring.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found.update(flatten(value, f"{name}."))
        else:
            found[name] = value
    return found
