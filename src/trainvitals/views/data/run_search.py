"""The search for runs: the same in `trainvitals runs`, in the API and, as web/src/logic/search.ts, on the page.

The two are held together by one table of cases, tests/data/run_search.json. Regular expressions are matched by the RE2
within DuckDB, whose time grows with the text alone: nobody can stop a server with a pattern.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainvitals.errors import TrainvitalsError, nearest
from trainvitals.journal.documents.run import ENDED, RUNNING, UNREADABLE

if TYPE_CHECKING:  # with all that the API answers, which a list of runs does not wait for
    from trainvitals.views.data.shapes import RowJson

STATUSES = (RUNNING, "stalled", "hung", *ENDED, UNREADABLE)
TEXTS = ("name", "id", "project", "tag", "status", "host", "kind", "slurm", "pod")
NUMBERS = ("step", "seconds", "attempt")
ORDERS = ("<", "<=", ">", ">=")
MAX_COMPARED = 20
"""Runs that are compared at once."""
MAX_TEXT = 500
"""Characters of a text that an expression sees."""

_TOKEN = re.compile(r'(-?)(?:/((?:[^/]|/(?!\s|$))+)/(?=\s|$)|((?:"[^"]*"|[^\s"])+))')
_CONDITION = re.compile(r'((?:"[^"]*"|[^"\s:=<>!~])+)(<=|>=|!=|[=<>~:])(.*)', re.DOTALL)
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf(inity)?)", re.IGNORECASE | re.ASCII)


class SearchError(TrainvitalsError):
    """A search that cannot be understood; names the part."""


@dataclass(frozen=True, slots=True)
class SearchPart:
    """One thing that must be so, or with `negated` not be so."""

    text: str
    """As it was typed."""
    value: str
    field: str = ""
    """Empty: name, id, project or a tag."""
    operator: str = ""
    """Empty: contains; `~`: matches the expression; `=`, `!=` or one of `ORDERS`."""
    negated: bool = False

    @property
    def number(self) -> float | None:
        return _to_number(self.value)


def parse_search(text: str) -> list[SearchPart]:
    """The parts of a search; raises SearchError."""
    if text.count('"') % 2:
        raise SearchError("missing closing quote", hint='close it: "two words"')
    return [_parse_part(found) for found in _TOKEN.finditer(text)]


def _parse_part(found: re.Match[str]) -> SearchPart:
    typed, negated, expression, word = found[0], bool(found[1]), found[2], found[3]
    if expression is not None:
        part = SearchPart(typed, expression, "", "~", negated)
    elif (condition := _CONDITION.fullmatch(word)) is None:
        return SearchPart(typed, word.replace('"', ""), negated=negated)
    else:
        field, operator, value = (item.replace('"', "") for item in condition.groups())
        field = "tag" if field == "tags" else field
        part = SearchPart(typed, value, field, "=" if operator == ":" else operator, negated)
    _check(part)
    return part


def _check(part: SearchPart) -> None:
    if not part.value:
        raise SearchError(f"'{part.text}' has no value", hint="such as lr>0.01, status:failed or name~regex")
    if part.operator == "~" and not is_expression(part.value):
        raise SearchError(
            f"'{part.text}' is not a valid regular expression", hint="to search for this text, put it in quotes"
        )
    if part.operator in ORDERS and part.field in TEXTS:
        raise SearchError(
            f"'{part.text}' compares text as a number", hint=f"type {part.field}:TEXT or {part.field}~REGEX"
        )
    if part.operator in ORDERS and part.number is None:
        raise SearchError(f"'{part.value}' in '{part.text}' is not a number", hint="type a number, such as lr>0.01")
    if part.field == "status" and part.operator != "~" and part.value.lower() not in STATUSES:
        raise SearchError(f"'{part.value}' in '{part.text}' is not a status", hint=f"one of {', '.join(STATUSES)}")


def search_rows(rows: Sequence[RowJson], parts: Sequence[SearchPart]) -> list[RowJson]:
    """The rows for which every part holds, in their order."""
    found = list(rows)
    for part in parts:
        is_right = _make_test(part, found)
        found = [row for row in found if is_right(_read(row, part.field)) != part.negated]
    return found


def find_compared(rows: Sequence[RowJson], text: str) -> list[RowJson]:
    """The rows that are searched for, to be compared; raises SearchError if there are none or too many."""
    parts = parse_search(text)
    found = search_rows(rows, parts)
    if not found:
        unknown = find_unknown(rows, parts)
        raise SearchError(
            f"no run matches '{text}'{f': {unknown}' if unknown else ''}", hint="list them: trainvitals runs"
        )
    if len(found) > MAX_COMPARED:
        raise SearchError(
            f"'{text}' matches {len(found):,} runs, cannot compare more than {MAX_COMPARED}", hint="narrow the search"
        )
    return found


def is_search(text: str) -> bool:
    """Whether it says more than words, which may be a name; raises SearchError."""
    return any(part.operator or part.negated for part in parse_search(text))


def find_unknown(rows: Iterable[RowJson], parts: Sequence[SearchPart]) -> str:
    """`no run has 'lrr', did you mean 'lr'?` for the first field that no run has, else an empty string."""
    rows = list(rows)
    for part in parts:
        if part.field and part.field not in (*TEXTS, *NUMBERS) and not any(_read(row, part.field) for row in rows):
            known = {name for row in rows for name in (*row["config"], *row["summary"])}
            return f"no run has '{part.field}'{nearest(part.field, known)}"
    return ""


def _make_test(part: SearchPart, rows: Sequence[RowJson]) -> Any:
    """From the values that a run has there, which may be none, to whether the part holds."""
    if part.operator == "~":
        matching = match_texts(part.value, {_to_text(value) for row in rows for value in _read(row, part.field)})
        return lambda values: any(_to_text(value) in matching for value in values)
    if not part.operator:
        wanted = part.value.lower()
        return lambda values: any(wanted in value.lower() for value in values)
    text, operator, number = part.value.lower(), part.operator, part.number
    if operator == "=":
        return lambda values: any(_is_equal(value, text, number) for value in values)
    if operator == "!=":  # what is missing is neither; a run without tags is without this one
        return lambda values: (
            (values or part.field == "tag") and not any(_is_equal(value, text, number) for value in values)
        )
    return lambda values: any(_is_ordered(_to_number(value), operator, number) for value in values)


def _read(row: RowJson, field: str) -> list[Any]:
    """What a run has under this name; nothing if it is missing."""
    if not field:
        return [row["name"], row["id"], row["project"], *row["tags"]]
    if field == "tag":
        return list(row["tags"])
    if field in ("slurm", "pod"):
        return _read_job(row["job"], field)
    if field in TEXTS or field in NUMBERS:
        value = row[field]  # type: ignore[literal-required]
    elif field.startswith("job."):
        value = row["job"].get(field.removeprefix("job."))
    elif field.startswith("config."):
        value = row["config"].get(field.removeprefix("config."))
    elif field.startswith("summary."):
        value = row["summary"].get(field.removeprefix("summary."))
    else:
        value = row["config"].get(field)
        value = row["summary"].get(field) if value is None else value
    return [value] if value is not None else []


def _read_job(job: Mapping[str, Any], field: str) -> list[Any]:
    """A Slurm job by its id, as a task of an array (4700_3) or by the array's; a pod with its namespace or without."""
    if field == "slurm":
        array = str(job.get("array", ""))
        names = (job.get("slurm"), array, array.partition("_")[0])
    else:
        names = (job.get("pod"), f"{job.get('namespace', '')}/{job.get('pod', '')}" if job.get("pod") else "", "")
    return [name for name in names if name]


def _is_equal(value: Any, text: str, right: float | None) -> bool:
    """To `text`, or to the number that it is."""
    left = _to_number(value) if right is not None else None
    if left is None or right is None:
        return _to_text(value).lower() == text
    return left == right or (math.isnan(left) and math.isnan(right))


def _is_ordered(left: float | None, operator: str, right: float | None) -> bool:
    if left is None or right is None:
        return False
    if operator.startswith("<"):
        return left < right or (operator == "<=" and left == right)
    return left > right or (operator == ">=" and left == right)


def _to_number(value: Any) -> float | None:
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _to_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
    return text[:MAX_TEXT]


def is_expression(pattern: str) -> bool:
    import duckdb

    try:
        match_texts(pattern, {""})
    except duckdb.Error:
        return False
    return True


def match_texts(pattern: str, texts: set[str]) -> set[str]:
    """Those that match somewhere, in upper or lower case."""
    from trainvitals.journal.parquet import connect

    asked = "SELECT text FROM (SELECT unnest(?::VARCHAR[]) AS text) WHERE regexp_matches(text, ?, 'i')"
    # Half a character, which a hostile name may have, is no text for a database.
    listed = {text.encode(errors="replace").decode(): text for text in texts}
    with connect() as connection:
        return {listed[text] for (text,) in connection.execute(asked, [list(listed), pattern]).fetchall()}
