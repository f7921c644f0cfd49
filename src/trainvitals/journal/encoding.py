"""One line of the journal as bytes, and back.

A line is a JSON object with `timestamp` (ISO-8601 UTC, microseconds, `Z`). JSON has no NaN or infinity, and orjson
would write them as null, so they are the strings "NaN", "Infinity" and "-Infinity", which DuckDB and pandas read as
numbers. A missing value is a missing key.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Annotated, Any

import orjson

Real = Annotated[float, "May be NaN or infinite, which JSON has as texts"]
NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

_OPTIONS = orjson.OPT_APPEND_NEWLINE

# The line of a flat dict of finite numbers, joined from bytes that are mostly made in advance:
#
#     start_lines(second) + MILLISECONDS[ms] + dumps(step) + b"," + dumps(metrics, None, OPT_APPEND_NEWLINE)[1:]
#
# `Run.log` has the join inline: a function call would cost a tenth of the whole.
LINE_START = b'{"timestamp":"'
"""The first bytes of every line, whoever encoded it: `timestamp` is the first key."""
MILLISECONDS = tuple(b'%03dZ","step":' % number for number in range(1000))


def start_lines(second: int) -> bytes:
    """How a line with a step begins in that second since 1970, up to the milliseconds."""
    return LINE_START + time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(second)).encode()


def is_complete(line: bytes) -> bool:
    """Whether it begins and ends as our lines do: enough to count it, without parsing it."""
    return line.startswith(LINE_START) and line.endswith(b"}")


def spell(value: float) -> float | str:
    """A float as written in a line."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def spell_all(value: Any) -> Any:
    """`value` with every NaN and infinity in it spelled out, at any depth."""
    if isinstance(value, float):
        return spell(value)
    if isinstance(value, Mapping):
        return {str(key): spell_all(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [spell_all(item) for item in value]
    return value


def encode_line(row: Mapping[str, Any]) -> bytes:
    """One JSON object and a newline; keys that are not valid UTF-8 are kept readable."""
    try:
        line = orjson.dumps(row, option=_OPTIONS)
    except TypeError:  # a lone surrogate in a key or string, an integer beyond 64 bits, a key that is not a string
        return dump_json(spell_all(row), _OPTIONS)
    if b"null" in line:
        line = orjson.dumps(spell_all(row), option=_OPTIONS)
    return line


def dump_json(value: Any, option: int = 0) -> bytes:
    """JSON of anything, NaN and infinity spelled before: what another program put into a document may be a lone
    surrogate or an integer that no JSON reader holds."""
    try:
        return orjson.dumps(value, default=str, option=option)
    except TypeError:
        return orjson.dumps(_repair(value), default=str, option=option)


def _repair(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_repair(str(key)): _repair(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_repair(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return spell(_as_float(value))
    return value


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def format_time(seconds: float | None = None, digits: int = 6) -> str:
    """`2026-11-15T22:36:01.123456Z`; now by default. `digits` of the second, 3 or 6."""
    micros = time.time_ns() // 1000 if seconds is None else round(seconds * 1e6)
    whole, rest = divmod(micros, 1_000_000)
    fraction = f"{rest:06d}"[:digits]
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{fraction}Z"


class TimeParser:
    """ISO-8601 UTC to microseconds since 1970; remembers the last minute, for lines come in order."""

    def __init__(self) -> None:
        self._minute = ""
        self._micros = 0

    def parse(self, text: str) -> int | None:
        """None if `text` is not a time."""
        if text[:17] == self._minute:
            second, fraction = text[17:19], text[20:-1]
            if fraction.isdecimal() and second.isdecimal() and second < "60" and text[-1] == "Z" and text[19] == ".":
                if len(fraction) == 3:
                    return self._micros + int(second) * 1_000_000 + int(fraction) * 1000
                if len(fraction) == 6:
                    return self._micros + int(second) * 1_000_000 + int(fraction)
        micros = _parse_micros(text)
        if micros is not None and text.endswith("Z") and text[16:17] == ":":
            self._minute, self._micros = text[:17], micros - micros % 60_000_000
        return micros


def parse_time(text: object) -> float | None:
    """Seconds since 1970; None if `text` is not a time. For the lines of a file there is `TimeParser`."""
    micros = _parse_micros(text) if isinstance(text, str) else None
    return micros / 1e6 if micros is not None else None


def _parse_micros(text: str) -> int | None:
    """UTC where no time zone is named."""
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(moment.replace(microsecond=0).timestamp()) * 1_000_000 + moment.microsecond


def number(value: object) -> float | None:
    """A JSON value as a number, or None: true and false count as 1 and 0, "NaN" and the infinities as themselves."""
    if type(value) is float:
        return value
    if isinstance(value, int):
        return _as_float(value)
    if isinstance(value, str):
        return NONFINITE.get(value)
    return None
