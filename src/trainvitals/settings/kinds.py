"""Kinds of values: how each is read from text or an object, and written so that it reads back.

`parse` takes text (environment, YAML, flags) as well as objects (arguments, TOML). An invalid value is a
ValueError whose text is what was expected: "a duration such as 500ms ...".
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from trainvitals.plain_json import parse_json

T = TypeVar("T")


class Kind(Generic[T]):
    """A type of setting; `word` is its name in the docs."""

    __slots__ = ("format", "parse", "word")

    def __init__(self, word: str, parse: Callable[[object], T], format: Callable[[T], str] = str) -> None:
        self.word = word
        self.parse = parse
        self.format = format


# -- switches, names and paths

_SWITCHES = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def _parse_switch(value: object) -> bool:
    word = str(value).strip().lower() if isinstance(value, (int, str)) else ""
    if word not in _SWITCHES:
        raise ValueError("true or false")
    return _SWITCHES[word]


SWITCH = Kind("true or false", _parse_switch, lambda value: "true" if value else "false")

_NOT_IN_A_NAME = re.compile(r"[/\\\x00-\x1f\x7f]")


def _parse_name(value: object) -> str:
    plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    name = str(value).strip() if plain else ""
    if not name or name in (".", "..") or len(name) > 128 or _NOT_IN_A_NAME.search(name):
        raise ValueError("the name of one folder: 1 to 128 characters, no / and no \\")
    return name


NAME = Kind("name", _parse_name)


def _parse_path(value: object) -> Path:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else b""
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ValueError("a path")
    # os.path, not Path: without a home folder "~" is kept instead of raising.
    return Path(os.path.expanduser(text))  # noqa: PTH111


PATH = Kind("path", _parse_path)

IN_PLACE = "on"
"""In the place of a folder: where it belongs by itself."""


def _parse_folder(value: object) -> str | None:
    word = str(value).strip().lower() if isinstance(value, (str, bool)) else ""
    if word in _SWITCHES:
        return IN_PLACE if _SWITCHES[word] else None
    return str(_parse_path(value).absolute())  # who writes there may run elsewhere


FOLDER: Kind[str | None] = Kind("folder, on or off", _parse_folder, lambda value: value or "off")


# -- numbers


def _whole(value: object, expected: str) -> int:
    """A Python or numpy integer, or text."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return int(value) if isinstance(value, str) else operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(expected) from None


def _real(value: object, expected: str) -> float:
    """A Python or numpy number, or text."""
    try:
        if isinstance(value, (bool, bytes, bytearray)):
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(expected) from None


def _in_range(number: float, at_least: float, expected: str) -> float:
    """`number`, if it is that large and finite (and so never NaN)."""
    if not at_least <= number < float("inf"):
        raise ValueError(expected)
    return number


def _format_number(value: float) -> str:
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else repr(value)


def integer(at_least: int, at_most: int) -> Kind[int]:
    """An integer in a range."""
    expected = f"an integer from {at_least} to {at_most}"

    def parse(value: object) -> int:
        number = _whole(value, expected)
        if not at_least <= number <= at_most:
            raise ValueError(expected)
        return number

    return Kind("integer", parse)


def number(at_least: float) -> Kind[float]:
    """A number with a lower bound."""
    expected = f"a number of at least {at_least:g}"
    return Kind("number", lambda value: _in_range(_real(value, expected), at_least, expected), _format_number)


_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION_PART = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|[smhd])\s*", re.IGNORECASE)


def parse_duration(value: object) -> float:
    """Seconds, from a number of them or from text such as `500ms`, `10s`, `1h30m`, `30d`."""
    expected = "a duration such as 500ms, 10s, 5m, 2h or 30d, or a number of seconds"
    if not isinstance(value, str):
        return _real(value, expected)
    total, position = 0.0, 0
    while match := _DURATION_PART.match(value, position):
        amount, unit = float(match[1]), match[2].lower()
        # 1/1000 is not exact as a float: dividing gives the same 0.05 as writing 0.05.
        total += amount / 1000 if unit == "ms" else amount * _SECONDS[unit]
        position = match.end()
    if position == 0:
        return _real(value, expected)
    if position != len(value):
        raise ValueError(expected)
    return total


def format_duration(seconds: float) -> str:
    """Short text that `parse_duration` turns into exactly these seconds."""
    for unit, length in _SECONDS.items():
        count = seconds / length
        if 1 <= count < 1e6 and count == int(count) and count * length == seconds:
            return f"{int(count)}{unit}"
    thousandths = round(seconds * 1000) if seconds < 1e6 else 0
    return f"{thousandths}ms" if thousandths and thousandths / 1000 == seconds else _format_number(seconds)


def duration(at_least: float = 0.0) -> Kind[float]:
    """A duration, in seconds."""
    expected = f"a duration of at least {format_duration(at_least)}"
    return Kind("duration", lambda value: _in_range(parse_duration(value), at_least, expected), format_duration)


_BYTES = {"b": 1.0, "k": 1024.0, "m": 1024.0**2, "g": 1024.0**3, "t": 1024.0**4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgt])i?b?|b)\s*", re.IGNORECASE)


def size(unit: str, at_least: float = 0.0) -> Kind[float]:
    """A size in `unit` (MB or GB; 1 MB is 1,048,576 bytes): a number of them, or text such as `500MB`."""
    expected = f"a size of at least {at_least:g} {unit}, such as 500MB or 2GB, or a number of {unit}"

    def parse(value: object) -> float:
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return _in_range(_real(value, expected), at_least, expected)
        amount = float(match[1]) * _BYTES[(match[2] or "b").lower()] / _BYTES[unit[0].lower()]
        return _in_range(amount, at_least, expected)

    return Kind(f"size in {unit}", parse, _format_number)


# -- lists


def _items(value: object, expected: str) -> list[object]:
    """The members of a list, or of text with commas; `none` is the empty list."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        return [] if [part.lower() for part in parts] == ["none"] else [part for part in parts if part]
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    raise ValueError(expected)


def _format_items(value: tuple[object, ...]) -> str:
    return ",".join(map(str, value)) if value else "none"


def _parse_texts(value: object) -> tuple[str, ...]:
    expected = "a list of strings, or one string with commas"
    texts = []
    for item in _items(value, expected):
        if not isinstance(item, str) or not item.strip():
            raise ValueError(expected)
        texts.append(item.strip())
    return tuple(texts)


TEXTS: Kind[tuple[str, ...]] = Kind("list", _parse_texts, _format_items)


# GPU-…, MIG-… and what other vendors call theirs: a word, a hyphen, and more.
_GPU_UUID = re.compile(r"[A-Za-z]+-[0-9A-Za-z:/.-]+")


def _parse_gpus(value: object) -> tuple[int | str, ...]:
    expected = "a list of GPU indices or UUIDs, such as 0,1 or GPU-6f1c"
    gpus: list[int | str] = []
    for item in [value] if isinstance(value, int) else _items(value, expected):
        if isinstance(item, str) and _GPU_UUID.fullmatch(item.strip()):
            gpus.append(item.strip())
            continue
        index = _whole(item, expected)
        if index < 0:
            raise ValueError(expected)
        gpus.append(index)
    return tuple(gpus)


GPUS: Kind[tuple[int | str, ...]] = Kind("list of GPUs", _parse_gpus, _format_items)


# -- structures


def parse_structure(value: object, expected: str) -> object:
    """The object itself, or parsed from JSON text; `none` is empty."""
    if not isinstance(value, str):
        return value
    if value.strip().lower() == "none":
        return None
    try:
        return parse_json(value)
    except ValueError:
        raise ValueError(expected) from None


def format_structure(value: object) -> str:
    import json

    return json.dumps(value) if value else "none"


def _parse_objects(value: object) -> tuple[dict[str, object], ...]:
    expected = "a list of mappings (in a variable: JSON)"
    items = parse_structure(value, expected) or []
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, dict) for item in items):
        raise ValueError(expected)
    return tuple(items)


OBJECTS: Kind[tuple[dict[str, object], ...]] = Kind("list of mappings", _parse_objects, format_structure)


def _parse_numbers(value: object) -> dict[str, float]:
    expected = "a mapping of names to numbers (in a variable: JSON)"
    pairs = parse_structure(value, expected) or {}
    if not isinstance(pairs, dict):
        raise ValueError(expected)
    return {str(name): _real(number, f"{expected}: '{name}' is not a number") for name, number in pairs.items()}


NUMBERS: Kind[dict[str, float]] = Kind("mapping of numbers", _parse_numbers, format_structure)


def _parse_lists(value: object) -> dict[str, tuple[str, ...]]:
    expected = "a mapping of names to lists (in a variable: JSON)"
    pairs = parse_structure(value, expected) or {}
    if not isinstance(pairs, dict):
        raise ValueError(expected)
    return {str(name): _parse_texts(items) for name, items in pairs.items()}


def _parse_pairs(value: object) -> dict[str, str]:
    expected = "a mapping of names to texts (in a variable: JSON)"
    pairs = parse_structure(value, expected) or {}
    if not isinstance(pairs, dict) or any(isinstance(item, dict | list) for item in pairs.values()):
        raise ValueError(expected)
    return {str(name): str(text) for name, text in pairs.items()}


PAIRS: Kind[dict[str, str]] = Kind("mapping of texts", _parse_pairs, format_structure)


LISTS: Kind[dict[str, tuple[str, ...]]] = Kind("mapping of lists", _parse_lists, format_structure)


def choice(*words: str) -> Kind[str]:
    """One of these words."""
    expected = f"one of {', '.join(words)}"

    def parse(value: object) -> str:
        word = str(value).strip().lower()
        if word not in words:
            raise ValueError(expected)
        return word

    return Kind(expected, parse)


def choices(*words: str) -> Kind[tuple[str, ...]]:
    """Any of these words."""
    expected = f"a list of {', '.join(words)}"

    def parse(value: object) -> tuple[str, ...]:
        found = tuple(str(item).strip().lower() for item in _items(value, expected))
        if not set(found) <= set(words):
            raise ValueError(expected)
        return found

    return Kind(expected, parse, _format_items)


def _parse_text(value: object) -> str:
    if not isinstance(value, (str, int, float)) or not str(value).strip():
        raise ValueError("a text")
    return str(value).strip()


TEXT = Kind("text", _parse_text)
