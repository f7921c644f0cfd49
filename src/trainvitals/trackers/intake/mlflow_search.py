"""MLflow's search: `metrics.loss < 0.1 and params.model = 'tiny'`, `attributes.start_time DESC`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainvitals.trackers.intake.answers import BadFilter

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<key>(?:\w+\.)?(?:`[^`]*`|"[^"]*"(?=\s*(?:[<>=!]|(?:NOT\s|I?LIKE\b|IN\b|IS\b)))|[\w./-]+))\s*
      (?P<operator><=|>=|!=|=|<|>|NOT\s+LIKE\b|NOT\s+ILIKE\b|NOT\s+IN\b|I?LIKE\b|IN\b|IS\s+NOT\s+NULL\b|IS\s+NULL\b)\s*
      (?P<value>'[^']*'|"[^"]*"|\([^)]*\)|[-+\w.]+)?
    )\s*""",
    re.VERBOSE | re.IGNORECASE,
)
_TEXTS = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_KINDS = {
    "metric": "metrics",
    "metrics": "metrics",
    "param": "params",
    "params": "params",
    "parameter": "params",
    "parameters": "params",
    "tag": "tags",
    "tags": "tags",
    "attribute": "attributes",
    "attributes": "attributes",
    "attr": "attributes",
    "run": "attributes",
    "dataset": "datasets",
    "datasets": "datasets",
}
DATASET_FACTS = ("name", "digest", "context")
_ATTRIBUTES = {"run name": "run_name", "Run name": "run_name", "Created": "start_time", "created": "start_time"}

Found = Mapping[str, Mapping[str, Any]]
"""Of a run: `metrics`, `params`, `tags` and `attributes` by name; of its `datasets` all names, digests, contexts."""


@dataclass(frozen=True, slots=True)
class SearchCondition:
    kind: str
    name: str
    operator: str
    value: Any

    def holds(self, found: Found) -> bool:
        """Whether it is true of a run. What the run does not have compares with nothing."""
        actual = found.get(self.kind, {}).get(self.name)
        if isinstance(actual, (list, tuple)):
            return any(self._holds_of(item) for item in actual)
        return self._holds_of(actual)

    def _holds_of(self, actual: Any) -> bool:
        if self.operator == "IS NULL":
            return actual is None
        if actual is None:
            return False
        if self.operator == "IS NOT NULL":
            return True
        if self.operator in ("IN", "NOT IN"):
            return (str(actual) in self.value) == (self.operator == "IN")
        if self.operator.endswith("LIKE"):
            flags = re.IGNORECASE if self.operator.endswith("ILIKE") else 0
            matches = re.fullmatch(_make_pattern(str(self.value)), str(actual), flags | re.DOTALL) is not None
            return matches != self.operator.startswith("NOT")
        wanted = self.value
        if isinstance(actual, (int, float)) and not isinstance(wanted, str):
            return _COMPARE[self.operator](actual, wanted)
        return _COMPARE[self.operator](str(actual), str(wanted))


def _make_pattern(like: str) -> str:
    """SQL's LIKE as an expression. Each part between `%` is taken where it comes first, for good: with another try at
    every place, a few parts and a long text take for ever."""
    first, *rest = (".".join(map(re.escape, part.split("_"))) for part in like.split("%"))
    return first + "".join(f"(?>.*?{part})" for part in rest[:-1]) + (f".*{rest[-1]}" if rest else "")


_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: bool(a == b), "!=": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b), "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b), ">=": lambda a, b: bool(a >= b),
}  # fmt: skip


def parse_filter(text: str) -> list[SearchCondition]:
    """All conditions, each of which must hold. Raises BadFilter."""
    conditions = []
    place = 0
    while place < len(text.rstrip()):
        match = _TOKEN.match(text, place)
        if match is None:
            raise BadFilter(f"cannot read the filter from '{text[place : place + 60]}' on")
        kind, name = _split_key(match["key"])
        operator = " ".join(match["operator"].upper().split())
        value = match["value"]
        if value is None and not operator.endswith("NULL"):
            raise BadFilter(f"'{match['key']}' is compared with nothing")
        conditions.append(SearchCondition(kind, name, operator, _read_value(value) if value is not None else None))
        place = match.end()
        rest = text[place:]
        if rest.strip():
            joined = re.match(r"and\s+", rest, re.IGNORECASE)
            if joined is None:
                raise BadFilter(f"only 'and' joins conditions, not '{rest[:40]}'")
            place += joined.end()
    return conditions


def _split_key(text: str) -> tuple[str, str]:
    head, dot, rest = text.partition(".")
    kind = _KINDS.get(head.lower()) if dot else None
    name = (rest if kind is not None else text).strip('`"')
    kind = kind or "attributes"
    if kind == "datasets" and name not in DATASET_FACTS:
        raise BadFilter(f"a dataset has no '{name}': {', '.join(DATASET_FACTS)}")
    return kind, _ATTRIBUTES.get(name, name) if kind == "attributes" else name


def _read_value(text: str) -> Any:
    if text.startswith("("):
        return frozenset(one or other for one, other in _TEXTS.findall(text))
    if text[0] in "'\"":
        return text[1:-1]
    try:
        return float(text)
    except ValueError:
        raise BadFilter(f"'{text}' is neither a number nor a quoted text") from None


def sort_runs(runs: Sequence[Any], order_by: Iterable[str], describe: Callable[[Any], Found]) -> list[Any]:
    """By MLflow's `order_by`; runs that do not have what is asked for come last."""
    ordered = list(runs)
    for text in reversed(list(order_by)):
        words = text.rsplit(None, 1)
        descends = len(words) == 2 and words[1].upper() == "DESC"
        key = words[0] if len(words) == 2 and words[1].upper() in ("ASC", "DESC") else text
        kind, name = _split_key(key.strip())

        def value_of(run: Any, kind: str = kind, name: str = name) -> Any:
            value = describe(run).get(kind, {}).get(name)
            return None if isinstance(value, float) and math.isnan(value) else value

        have = [run for run in ordered if value_of(run) is not None]
        numbers = all(isinstance(value_of(run), (int, float)) for run in have)
        have.sort(key=lambda run: value_of(run) if numbers else str(value_of(run)), reverse=descends)
        ordered = [*have, *(run for run in ordered if value_of(run) is None)]
    return ordered
