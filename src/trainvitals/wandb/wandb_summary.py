"""`wandb.summary`: the last value of everything that was logged, and what the program sets itself.
Tested in tests/wandb_drop_in/test_surface.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from trainvitals.trainer.scalars import Refused, convert

KEPT = ("min", "max", "mean", "first", "last")
"""What `define_metric(summary=...)` may ask for."""


class Summary(MutableMapping[str, Any]):
    """The summary of a run."""

    def __init__(self, changed: Callable[[], None]) -> None:
        object.__setattr__(self, "_values", {})
        object.__setattr__(self, "_changed", changed)
        object.__setattr__(self, "_wanted", {})
        object.__setattr__(self, "_counts", {})
        object.__setattr__(self, "_own", set())

    _values: dict[str, Any]
    _changed: Callable[[], None]
    _wanted: dict[str, tuple[str, ...]]
    _counts: dict[str, int]
    _own: set[str]

    def define(self, name: str, wanted: str) -> None:
        """Keep these, such as `min,max`, of a metric instead of its last value; `none` keeps nothing."""
        self._wanted[name] = tuple(word for word in wanted.split(",") if word in KEPT)

    def note(self, values: Mapping[str, Any]) -> None:
        """Values were logged; mappings among them stay mappings. Tensors are read when somebody asks for them."""
        for name, value in values.items():
            wanted = self._wanted.get(name)
            if name in self._own:
                continue  # what the program sets counts more
            if isinstance(value, Mapping):
                self._values[name] = _merge(self._values.get(name), value)
            elif wanted is None:
                self._values[name] = value
            elif wanted:
                self._aggregate(name, wanted, float(value))

    def _aggregate(self, name: str, wanted: tuple[str, ...], value: float) -> None:
        known = self._values.get(name)
        found: dict[str, float] = known if isinstance(known, dict) else {}
        count = self._counts[name] = self._counts.get(name, 0) + 1
        made: dict[str, Callable[[float], float]] = {
            "min": lambda before: min(before, value),
            "max": lambda before: max(before, value),
            "mean": lambda before: before + (value - before) / count,
            "first": lambda before: before,
            "last": lambda before: value,
        }
        self._values[name] = {word: made[word](found.get(word, value)) for word in wanted}

    def update(self, values: Any = (), /, **more: Any) -> None:
        found = {**dict(values), **more}
        self._own.update(found)
        self._values.update(found)
        self._changed()

    def as_dict(self) -> dict[str, Any]:
        return dict(self.items())

    def own_values(self) -> dict[str, Any]:
        """What is not simply the last value that was logged."""
        return {name: value for name, value in self.items() if name in self._own or name in self._wanted}

    def __getitem__(self, name: str) -> Any:
        return _plain(self._values[name])

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        del self._values[name]
        self._own.discard(name)
        self._changed()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the summary has no '{name}'") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __repr__(self) -> str:
        return repr(self._values)


def _merge(known: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(known) if isinstance(known, dict) else {}
    for name, value in values.items():
        found[str(name)] = _merge(found.get(str(name)), value) if isinstance(value, Mapping) else value
    return found


def _plain(value: Any) -> Any:
    """As JSON has it: numbers of arrays and tensors are Python's own."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str, list)):
        return value
    found = convert(value)
    if isinstance(found, (int, float)):
        return found
    return str(value)[:1000] if isinstance(found, Refused) or found is None else found.value()
