"""JSON that anybody may have written, parsed within bounds: what is read here can be written again.

orjson reads lists within lists to a depth of 1,024 and writes them to 254, and functions that call themselves give up
in between: what is nested deeper than anything of ours is refused where it comes in, not where it is shown.
"""

from __future__ import annotations

import json
from typing import Any

MOST_DEPTH = 100
"""Lists and objects within each other. A configuration is cut at 20, what is redacted at 50."""
LONGEST_INT = 300
"""Digits of an integer in a document; one with more is taken for a float, and so for infinity."""


class TooDeep(ValueError):
    """Lists and objects within each other, more than can be written again."""


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object that it is. ValueError if it is none."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def parse_json(data: str | bytes, most_depth: int = MOST_DEPTH) -> Any:
    """With what is not JSON and is found nevertheless: NaN, infinity, lone surrogates. ValueError if it is neither."""
    import orjson  # who reads no document does without

    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        value = _load_leniently(data)
    if is_too_deep(data, value, most_depth):
        raise TooDeep("nested too deeply")
    return value


def is_too_deep(data: str | bytes, value: Any, most_depth: int = MOST_DEPTH) -> bool:
    """Whether `value`, parsed from `data`, is nested deeper than that. Of nearly every line, its length or a look for
    brackets tells."""
    if len(data) <= 2 * most_depth:
        return False
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if data.find(b"{", 1) < 0 and data.find(b"[") < 0:  # takes a tenth of the time that counting takes
        return False
    if data.count(b"[") + data.count(b"{") <= most_depth:
        return False
    level = [value]
    for _ in range(most_depth):
        level = [item for outer in level for item in _items(outer) if isinstance(item, (dict, list))]
        if not level:
            return False
    return True


def _items(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _load_leniently(data: str | bytes) -> Any:
    try:
        return json.loads(data, parse_int=_parse_int)
    except RecursionError:
        raise TooDeep("nested too deeply") from None


def _parse_int(text: str) -> int | float:
    return int(text) if len(text) < LONGEST_INT else float(text)
