"""Filters of `wandb.Api().runs(filters=…)`: MongoDB's words, as W&B documents them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from trainvitals.plain_json import parse_json
from trainvitals.trackers.intake.answers import BadFilter

_FIELDS = {
    "display_name": "displayName",
    "displayname": "displayName",
    "created_at": "createdAt",
    "createdat": "createdAt",
    "heartbeat_at": "heartbeatAt",
    "summary_metrics": "summaryMetrics",
    "summary": "summaryMetrics",
}
"""As a filter spells it: as an answer does."""
LONGEST_PATTERN = 200
DEEPEST = 20
"""Filters within filters."""

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda found, wanted: _equals(found, wanted),
    "$ne": lambda found, wanted: not _equals(found, wanted),
    "$gt": lambda found, wanted: found > wanted,
    "$gte": lambda found, wanted: found >= wanted,
    "$lt": lambda found, wanted: found < wanted,
    "$lte": lambda found, wanted: found <= wanted,
    "$in": lambda found, wanted: any(_equals(found, item) for item in wanted),
    "$nin": lambda found, wanted: not any(_equals(found, item) for item in wanted),
    "$exists": lambda found, wanted: (found is not None) == bool(wanted),
}


def holds(filters: Mapping[str, Any], run: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether a run, as it is answered, is one of those. Raises BadFilter."""
    if depth > DEEPEST:
        raise BadFilter(f"filters: nested more than {DEEPEST} deep")
    for key, wanted in filters.items():
        if key in ("$and", "$or", "$nor"):
            if not isinstance(wanted, list) or not all(isinstance(item, dict) for item in wanted):
                raise BadFilter(f"filters: {key} takes a list of filters")
            found = [holds(item, run, depth + 1) for item in wanted]
            if not {"$and": all(found), "$or": any(found), "$nor": not any(found)}[key]:
                return False
        elif key.startswith("$"):
            raise BadFilter(f"filters: {key[:40]} is not supported; $and, $or and $nor are")
        elif not _holds_one(find_value(run, key), wanted):
            return False
    return True


def _holds_one(found: Any, wanted: Any) -> bool:
    if not isinstance(wanted, dict):
        return _equals(found, wanted)
    for word, operand in wanted.items():
        compare = _COMPARE.get(word)
        if word == "$regex":
            compare = _matches
        elif compare is None:
            raise BadFilter(f"filters: {word[:40]} is not supported; $regex and {', '.join(_COMPARE)} are")
        try:
            if not compare(found, operand):
                return False
        except TypeError:  # values that cannot be compared, as where one is missing
            return False
    return True


def _equals(found: Any, wanted: Any) -> bool:
    """A list, such as the tags, equals each of its items."""
    return bool(found == wanted or (isinstance(found, list) and wanted in found))


def _matches(found: Any, pattern: Any) -> bool:
    """Only plain text, `.` and `.*`: patterns that take for ever are nobody's to send."""
    plain = str(pattern)
    if len(plain) > LONGEST_PATTERN or re.search(r"[()\[\]{}|+?\\]|\*(?<!\.\*)", plain):
        raise BadFilter("filters: of $regex only ^, $, . and .* are supported")
    start, end = plain.startswith("^"), plain.endswith("$")
    parts = plain[start : len(plain) - end].split(".*")
    text, place = str(found or ""), 0
    for index, part in enumerate(parts):
        # Without repetitions it is found as fast as plain text.
        search = re.compile(re.escape(part).replace(r"\.", "."), re.DOTALL)
        if index == 0 and start:
            at = search.match(text)
        elif index == len(parts) - 1 and end:
            at = search.match(text, max(len(text) - len(part), place))
        else:
            at = search.search(text, place)
        if at is None:
            return False
        place = at.end()
    return not end or place == len(text)


def find_value(run: Mapping[str, Any], key: str) -> Any:
    """What a run has under a key of W&B's, such as `config.lr`, `summary_metrics.loss` or `tags`; None if nothing."""
    top, _, rest = key.partition(".")
    found = run.get(_FIELDS.get(top.lower(), top))
    if not rest:
        return found
    if top == "config":
        rest = rest.removesuffix(".value")
    try:
        found = parse_json(found) if isinstance(found, str) else found
    except ValueError:
        return None
    if isinstance(found, dict) and rest in found:
        return _plain(found[rest])
    for part in rest.split("."):
        found = _plain(found.get(part)) if isinstance(found, dict) else None
    return found


def _plain(value: Any) -> Any:
    return value["value"] if isinstance(value, dict) and set(value) == {"value"} else value
