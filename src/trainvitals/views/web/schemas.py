"""JSON Schema of Python types: the shapes of `views.data.shapes`, and the named tuples, dataclasses and documents that
they hold."""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from trainvitals.journal.documents.fields import Document, written_fields
from trainvitals.journal.encoding import Real
from trainvitals.views.data.shapes import Wire

Schema = dict[str, Any]

_SIMPLE = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class Schemas:
    """Schemas that refer to each other; `named` are those that have a name."""

    def __init__(self) -> None:
        self.named: dict[str, Schema] = {}
        self._types: dict[str, Any] = {}

    def describe(self, hint: Any) -> Schema:
        """The schema of a type, or a reference to it."""
        if hint == Real:
            return {"type": ["number", "string"]}
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._describe_annotated(arguments[0], arguments[1:])
        if origin in (Union, types.UnionType):
            return _join([self.describe(item) for item in arguments])
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin is tuple and arguments[-1] is not Ellipsis:
            items = [self.describe(item) for item in arguments]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if origin in (list, tuple, Sequence):
            return {"type": "array", "items": self.describe(arguments[0])}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.describe(arguments[1]) or True}
        if hint is Any:
            return {}
        if hint in _SIMPLE:
            return {"type": _SIMPLE[hint]}
        return self._refer(hint.__name__.removesuffix("Json"), hint)

    def _describe_annotated(self, hint: Any, notes: Sequence[Any]) -> Schema:
        wire = next((note for note in notes if isinstance(note, Wire)), None)
        if wire is None:
            return {**self.describe(hint), "description": notes[0]}
        if wire.and_type is not None:
            return {"allOf": [self.describe(wire.type), self.describe(wire.and_type)]}
        return self._refer(wire.name, wire.type) if wire.name else self.describe(wire.type)

    def _refer(self, name: str, hint: Any) -> Schema:
        if self._types.setdefault(name, hint) != hint:
            raise TypeError(f"two types are called {name}: {hint} and {self._types[name]}")
        if name not in self.named:
            self.named[name] = {}  # it may refer to itself
            self.named[name] = self._describe_class(hint) if isinstance(hint, type) else self.describe(hint)
        return {"$ref": f"#/components/schemas/{name}"}

    def _describe_class(self, kind: type) -> Schema:
        fields = list(_fields(kind))
        found: Schema = {"type": "object", "required": sorted(name for name, _, required in fields if required)}
        found["properties"] = {name: self.describe(hint) for name, hint, _ in fields}
        if issubclass(kind, Document):
            found["additionalProperties"] = True  # unknown fields are kept
        if kind.__doc__ and not kind.__doc__.startswith(("dict(", f"{kind.__name__}(")):
            found["description"] = " ".join(kind.__doc__.split())
        return found


def _fields(kind: type) -> Iterator[tuple[str, Any, bool]]:
    """Name, type and whether it is always there."""
    hints = get_type_hints(kind, include_extras=True)
    if issubclass(kind, Document):
        for name, always in written_fields(kind):
            yield name, _without_none(hints[name]), always
    elif is_typeddict(kind) or hasattr(kind, "_fields"):
        for name, hint in hints.items():
            optional = get_origin(hint) is NotRequired
            yield name, get_args(hint)[0] if optional else hint, not optional
    elif dataclasses.is_dataclass(kind):
        yield from ((field.name, hints[field.name], True) for field in dataclasses.fields(kind))
    else:
        raise TypeError(f"{kind} is neither a shape nor a type of values")


def _without_none(hint: Any) -> Any:
    """A document omits what is None."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    return functools.reduce(operator.or_, (item for item in get_args(hint) if item is not type(None)))


def _join(parts: Sequence[Schema]) -> Schema:
    if all(set(part) == {"type"} for part in parts):
        names = [name for part in parts for name in ([part["type"]] if isinstance(part["type"], str) else part["type"])]
        return {"type": list(dict.fromkeys(names))}
    return {"anyOf": list(parts)}
