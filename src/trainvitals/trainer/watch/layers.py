"""Parameters grouped into layers that a person can name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any


def matches(name: str, patterns: Sequence[str]) -> bool:
    """`name` is meant by one of the patterns: a shell pattern (`encoder.*.attention`), or a part of the dotted name
    (`encoder`, `layers.0`). No pattern means every name."""
    if not patterns:
        return True
    dotted = f".{name}."
    return any(f".{pattern}." in dotted or fnmatchcase(name, pattern) for pattern in patterns)


def group(parameters: Iterable[tuple[str, Any]], patterns: Sequence[str] = (), most: int = 200) -> dict[str, list[Any]]:
    """Parameters by layer, in the model's order. A layer is the module that owns the parameters; where that makes
    more than `most`, modules are put together by the beginning of their names until it does not."""
    owners: dict[str, list[Any]] = {}
    for name, parameter in parameters:
        owner = name.rpartition(".")[0] or name
        if matches(owner, patterns) or matches(name, patterns):
            owners.setdefault(owner, []).append(parameter)
    depth = max((name.count(".") + 1 for name in owners), default=0)
    grouped = owners
    while len(grouped) > most and depth > 1:
        depth -= 1
        grouped = _cut(owners, depth)
    if len(grouped) > most:  # thousands side by side: the rest is one layer
        names = list(grouped)
        rest = [parameter for name in names[most - 1 :] for parameter in grouped[name]]
        grouped = {**{name: grouped[name] for name in names[: most - 1]}, "(rest)": rest}
    return grouped


def _cut(owners: Mapping[str, list[Any]], depth: int) -> dict[str, list[Any]]:
    shorter: dict[str, list[Any]] = {}
    for name, parameters in owners.items():
        shorter.setdefault(".".join(name.split(".")[:depth]), []).extend(parameters)
    return shorter
