"""Anything a training calls its config, as plain JSON: a copy, bounded in size, made without ever raising."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import Enum
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

from trainvitals.redaction import free_key, redact_text

MAX_DEPTH = 20
MAX_VALUES = 50_000
MAX_TEXT = 10_000
MAX_TEXT_IN_ALL = 2_000_000
MAX_ARRAY = 100
CUT = "… (cut)"

# What classes of settings call "give me a dict": pydantic, transformers, named tuples, absl flags.
_AS_MAPPING = ("model_dump", "to_dict", "_asdict", "as_dict", "flag_values_dict")


def make_jsonable(value: object) -> Any:
    """`value` as None, bool, number, text, list or dict with text keys.

    Numbers that JSON does not have are text (`NaN`, `Infinity`). Objects become their fields, arrays their
    numbers if there are few and reading them waits for no device, and the rest its repr. Texts over 10 kB, and
    what is too deep or too long, are cut and marked. What looks like a secret in a text is redacted: after a
    cut it might not look like one any more.
    """
    return _Copy().convert(value, 0)


class _Copy:
    """One copy of one value, with what is left of its limits."""

    def __init__(self) -> None:
        self.values_left = MAX_VALUES
        self.text_left = MAX_TEXT_IN_ALL
        self.around: set[int] = set()  # ids of the containers we are in

    def convert(self, value: Any, depth: int) -> Any:
        kind = type(value)  # not isinstance: a proxy may raise when its class is read
        self.values_left -= 1
        if value is None or kind is bool:
            return value
        if kind is str:
            return self.text(value)
        if self.values_left < 0 or depth > MAX_DEPTH or id(value) in self.around:
            return CUT
        self.around.add(id(value))
        try:
            return self.convert_object(value, kind, depth)
        except Exception:  # noqa: BLE001 - a boundary: these are the user's objects, and any of them may raise
            return f"<{kind.__module__}.{kind.__qualname__}>"
        finally:
            self.around.discard(id(value))

    def convert_object(self, value: Any, kind: type, depth: int) -> Any:
        if issubclass(kind, Enum):
            inner = value.value
            return self.convert(inner if type(inner) in (str, int, float, bool) else value.name, depth)
        if issubclass(kind, int):
            return _whole_number(int.__int__(value))
        if issubclass(kind, float):
            return _number(float.__float__(value))
        if issubclass(kind, str):
            return self.text(str.__str__(value))
        if issubclass(kind, (bytes, bytearray)):
            return self.text(bytes(value[: 2 * MAX_TEXT]).decode("utf-8", "replace"))
        if issubclass(kind, os.PathLike):
            return self.convert(os.fspath(value), depth)
        if hasattr(kind, "shape") and hasattr(kind, "tolist"):
            return self.array(value, kind, depth)
        fields = _fields(value, kind, depth)
        if fields is not None:
            return self.mapping(fields, depth)
        if issubclass(kind, Set):
            return sorted(self.items(value, depth), key=repr)
        if issubclass(kind, Sequence) and not issubclass(kind, range):
            return self.items(value, depth)
        return self.text(_describe(value, kind))

    def mapping(self, fields: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, item in fields.items():
            if self.values_left < 0 or self.text_left <= 0:  # the next key would be cut to nothing
                plain["…"] = f"{len(fields) - len(plain)} more (cut)"
                break
            name = self.text(key) if type(key) is str else str(self.convert(key, depth + 1))
            plain[free_key(name, plain)] = self.convert(item, depth + 1)
        return plain

    def items(self, values: Iterable[Any], depth: int) -> list[Any]:
        plain = []
        for item in values:
            if self.values_left < 0:
                plain.append(CUT)
                break
            plain.append(self.convert(item, depth + 1))
        return plain

    def array(self, value: Any, kind: type, depth: int) -> Any:
        library = kind.__module__.partition(".")[0]
        # Reading a tensor on a device would make the training wait for that device.
        in_memory = library == "numpy" or (library == "torch" and str(value.device) == "cpu")
        if in_memory and math.prod(value.shape) <= MAX_ARRAY:
            return self.convert(value.tolist(), depth + 1)
        return f"<{kind.__name__} shape={tuple(value.shape)} dtype={getattr(value, 'dtype', 'unknown')}>"

    def text(self, text: str) -> str:
        """At most MAX_TEXT of it, in characters that UTF-8 has."""
        limit = min(MAX_TEXT, max(self.text_left, 0))
        # Twice the limit is enough to recognize a secret that the cut would split.
        whole = redact_text(text[: 2 * MAX_TEXT])
        text = whole if len(text) <= limit else whole[:limit] + CUT
        self.text_left -= len(text)
        return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _whole_number(value: int) -> int | str:
    # JSON writers stop at 64 bits, and Python refuses to write thousands of digits.
    return value if -(2**63) <= value < 2**64 else hex(value)[:MAX_TEXT]


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _fields(value: Any, kind: type, depth: int) -> Mapping[Any, Any] | None:
    """The fields of whatever holds named values; None if it does not."""
    if issubclass(kind, Mapping):
        return dict.copy(value) if issubclass(kind, dict) else _read(value, value.__getitem__)
    names = getattr(kind, "__dataclass_fields__", ()) or [field.name for field in getattr(kind, "__attrs_attrs__", ())]
    if names:
        return _read(names, partial(getattr, value))
    if issubclass(kind, SimpleNamespace) or kind.__module__ == "argparse":
        return dict(vars(value))
    for name in _AS_MAPPING:
        # Looked up on the class, for an object may pretend to have any attribute. An array or a
        # table has fields of another kind.
        method: Callable[[Any], Any] | None = getattr(kind, name, None)
        if method is not None and not hasattr(kind, "shape"):
            fields = method(value)
            return fields if issubclass(type(fields), Mapping) else None
    if kind is type and depth == 0:  # class Config: lr = 1e-3
        return {name: item for name, item in vars(value).items() if not name.startswith("__")}
    if not _has_own_repr(kind) and hasattr(value, "__dict__"):  # self.lr = 1e-3
        return dict(vars(value))
    return None


def _read(names: Iterable[Any], get: Callable[[Any], Any]) -> dict[Any, Any]:
    """Each value separately: one that is missing or dangling must not cost the others."""
    fields = {}
    for name in names:
        try:
            fields[name] = get(name)
        except Exception as error:  # noqa: BLE001 - a boundary: a lazy config runs the user's code here
            fields[name] = f"<{type(error).__name__}>"
    return fields


def _describe(value: Any, kind: type) -> str:
    """A text for what has no fields."""
    if kind in (type, FunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(kind, "isoformat"):
        return str(value.isoformat())
    # The repr of a model is pages long.
    if not _has_own_repr(kind) or hasattr(kind, "named_parameters"):
        return f"<{kind.__module__}.{kind.__qualname__}>"
    return repr(value)


def _has_own_repr(kind: type) -> bool:
    inherited: object = object.__repr__
    return kind.__repr__ is not inherited
