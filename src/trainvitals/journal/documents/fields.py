"""Fields of a JSON document, read one by one: what is missing or damaged has its default and harms no other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self, TypeGuard, TypeVar

from trainvitals.journal.encoding import number

T = TypeVar("T")
D = TypeVar("D", bound="Document")

Read = Callable[[object], T | None]
"""A JSON value as a Python one; None if it is something else."""


# -- readers


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return type(value) is dict or isinstance(value, Mapping)  # the second question takes ten times as long


def text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def whole(value: object) -> int | None:
    return value if type(value) is int else None


def real(value: object) -> float | None:
    """A number, NaN and infinity included; true and false are none."""
    return None if isinstance(value, bool) else number(value)


def finite(value: object) -> float | None:
    found = real(value)
    return found if found is not None and math.isfinite(found) else None


def scalar(value: object) -> float | str | None:
    """A number or a text."""
    found = real(value)
    return found if found is not None else text(value)


def flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def texts(value: object) -> tuple[str, ...] | None:
    """The texts of a list; what else is in it is left out."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, (list, tuple)) else None


def mapping(value: object) -> Mapping[str, Any] | None:
    return value if is_mapping(value) else None


def mapping_of(read: Read[T]) -> Read[Mapping[str, T]]:
    """An object whose values are all of one kind; those that are not are left out."""

    def parse(value: object) -> Mapping[str, T] | None:
        if not is_mapping(value):
            return None
        return {str(key): found for key, item in value.items() if (found := read(item)) is not None}

    return parse


def list_of(read: Read[T]) -> Read[tuple[T, ...]]:
    """A list whose items are all of one kind; those that are not are left out."""

    def parse(value: object) -> tuple[T, ...] | None:
        if not isinstance(value, (list, tuple)):
            return None
        return tuple(found for item in value if (found := read(item)) is not None)

    return parse


def document(kind: type[D]) -> Read[D]:
    """A document within another."""
    return lambda value: kind.parse(value) if is_mapping(value) else None


def entry(read: Read[Any], default: Any, *, always: bool = False, implied: bool = False) -> Any:
    """A field of a document: how it is read, and what it is when it is missing. With `always` it is written even if it
    is empty, with `implied` only if it is not the default."""
    metadata = {"read": read, "default": default, "always": always, "implied": implied}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


# -- documents


class _Field(NamedTuple):
    name: str
    read: Read[Any]
    default: Any
    is_implied: bool
    """The default is not written: it is empty, or goes without saying."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A JSON object with known fields. What is missing is not written: None, and a default that is empty or False
    or goes without saying."""

    rest: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """What is not understood here or equals the default, and is kept."""

    @classmethod
    def parse(cls, data: object) -> Self:
        """Never fails: anything but an object is an empty document."""
        known: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        fields = _fields(cls)
        for name, item in data.items() if is_mapping(data) else ():
            field = fields.get(name)
            value = field.read(item) if field is not None else None
            if field is None or value is None or value == field.default:
                rest[name] = item
            else:
                known[name] = value
        return cls(**known, rest=rest)

    @property
    def damaged(self) -> frozenset[str]:
        """The known fields whose values could not be understood."""
        fields = _fields(type(self))
        return frozenset(name for name, item in self.rest.items() if name in fields and fields[name].read(item) is None)

    def as_json(self) -> dict[str, Any]:
        """Plain values, as `parse` takes them."""
        found: dict[str, Any] = {}
        for name, _, default, is_implied in _fields(type(self)).values():
            value = getattr(self, name)
            if name in self.rest and value == default:
                found[name] = self.rest[name]
            elif value is not None and not (is_implied and value == default):
                found[name] = _plain(value)
        return found | {key: value for key, value in self.rest.items() if key not in found}


def written_fields(kind: type[Document]) -> Iterator[tuple[str, bool]]:
    """The fields of a document, and whether `as_json` always has them."""
    return ((name, default is not None and not is_empty) for name, _, default, is_empty in _fields(kind).values())


_known_fields: dict[type[Document], Mapping[str, _Field]] = {}


def _fields(kind: type[Document]) -> Mapping[str, _Field]:
    known = _known_fields.get(kind)
    if known is None:
        known = _known_fields[kind] = {field.name: field for field in _list_fields(kind)}
    return known


def _list_fields(kind: type[Document]) -> Iterator[_Field]:
    for item in dataclasses.fields(kind):
        if "read" in item.metadata:
            default = item.metadata["default"]
            is_empty = isinstance(default, Document) or (not default and type(default) is not int)
            is_implied = item.metadata["implied"] or (is_empty and not item.metadata["always"])
            yield _Field(item.name, item.metadata["read"], default, is_implied)


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float)):
        return value
    as_json = getattr(value, "as_json", None)
    if as_json is not None:
        return as_json()
    if is_mapping(value):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
