"""Parameters grouped into layers that a person can name."""

from __future__ import annotations

import weakref
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


class LayerPlan:
    """The layers of what an optimizer trains, remembered until it trains something else: walking through a model takes
    about as long as looking at it."""

    KEPT = 8

    def __init__(self, patterns: Sequence[str], most: int) -> None:
        self._patterns = patterns
        self._most = most
        self._found: dict[tuple[int, ...], dict[str, list[weakref.ref[Any]]]] = {}

    def layers(self, optimizer: Any, models: Sequence[Any]) -> dict[str, list[Any]]:
        """Parameters by layer: those of `models` that this optimizer trains. Another one's gradients may be of another
        moment."""
        own = [
            id(parameter)
            for members in optimizer.param_groups
            for parameter in members["params"]
            if parameter.requires_grad
        ]
        key = (*own, *map(id, models))
        layers = self._recall(key)
        if layers is None:
            trained = set(own)
            parameters = [pair for pair in _name_parameters(models) if id(pair[1]) in trained]
            layers = group(parameters, self._patterns, self._most)
            if len(self._found) >= self.KEPT:
                self._found.clear()
            self._found[key] = {name: [weakref.ref(p) for p in members] for name, members in layers.items()}
        return layers

    def _recall(self, key: tuple[int, ...]) -> dict[str, list[Any]] | None:
        if key not in self._found:
            return None
        layers = {name: [reference() for reference in members] for name, members in self._found[key].items()}
        # An id is somebody else's once its owner is gone.
        return None if any(parameter is None for members in layers.values() for parameter in members) else layers


def _name_parameters(models: Sequence[Any]) -> list[tuple[str, Any]]:
    """(name, parameter) of every parameter; with several models, their place comes first."""
    found = []
    for index, model in enumerate(models):
        prefix = f"{type(model).__name__}{index}." if len(models) > 1 else ""
        found += [(prefix + _unwrapped(name), parameter) for name, parameter in model.named_parameters()]
    return found


def _unwrapped(name: str) -> str:
    """The name without what wrappers add, so that it is the same with and without them."""
    parts = [
        part
        for part in name.split(".")
        if part not in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
    ]
    return ".".join(parts[1:] if parts[:1] == ["module"] and len(parts) > 2 else parts)
