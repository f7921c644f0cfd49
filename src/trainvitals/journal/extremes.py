"""The side table of a segment: what every 1,000 consecutive values of a series come to.

A chart of ten million steps is drawn from it without touching the segment. It carries a mark: a side table without
one was made by a version that could get it wrong, is never read, and is made again from its segment. It also holds a
digest of the segment, by which bytes that changed on the disk can be noticed. Tested in
tests/journal/test_segment_writer.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainvitals.errors import JournalError
from trainvitals.journal import parquet
from trainvitals.journal.footer import check_size
from trainvitals.journal.parquet import OpenFolder

BUCKET = 1000
NO_STEP = -(2**63)
MARK = ("trainvitals_extremes", "1")
DIGEST = "trainvitals_segment"

# Columns and the value in an array where the table has NULL. `low` and `high` are of finite values only, `broken`
# counts the others.
_WHOLE = {
    "bucket": None, "count": None, "low_row": -1, "low_step": NO_STEP, "low_time": -1, "high_row": -1,
    "high_step": NO_STEP, "high_time": -1, "broken": None, "broken_row": -1, "broken_step": NO_STEP, "broken_time": -1,
    "last_row": None, "last_step": NO_STEP, "last_time": None, "step_from": NO_STEP, "step_to": NO_STEP,
    "time_from": None, "time_to": None,
}  # fmt: skip
_FLOATS = {"low": "low_row", "high": "high_row", "broken_value": "broken_row", "last": "last_row"}
COLUMNS = (*_WHOLE, *_FLOATS)
FLOAT_COLUMNS = frozenset(_FLOATS)
"""The columns of a side table beside name and label, and which of them are floats."""
_KEEPS_NO_STEP = frozenset({"low_step", "high_step", "broken_step", "last_step"})


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a segment as columns, ordered by series and row."""

    keys: list[tuple[str, str]]
    """(name, label) of each series, sorted."""
    key: NDArray[np.int32]
    row: NDArray[np.int64]
    step: NDArray[np.int64]
    """NO_STEP where there is none."""
    time: NDArray[np.int64]
    value: NDArray[np.float64]


def write_extremes(connection: Any, numbers: Numbers, segment: Path, folder: OpenFolder, file: str) -> None:
    """Make the side table of `numbers`, which are in `segment`, and read it again: it is right, or JournalError."""
    columns = find_extremes(numbers)
    register_keys(connection, numbers.keys)
    connection.register("columns", with_nan_apart(columns))
    selected = ", ".join(f"{_as_stored(name)} AS {name}" for name in COLUMNS)
    query = f"SELECT name, label, {selected} FROM columns JOIN keyed USING (key) ORDER BY name, label, bucket"
    parquet.copy(connection, query, folder.locate(file), [MARK, (DIGEST, digest(segment))])
    if not is_right(connection, numbers, folder.locate(file)):
        raise JournalError(f"{file} failed verification")


def is_right(connection: Any, numbers: Numbers, file: str) -> bool:
    """Whether a side table, named by `OpenFolder.locate`, has everything about `numbers`."""
    check_size(file)
    columns = find_extremes(numbers)
    register_keys(connection, numbers.keys)
    restored = ", ".join(f"{_as_array(name)} AS {name}" for name in COLUMNS)
    written = connection.execute(
        f"SELECT coalesce(key, -1) AS key, {restored} FROM {parquet.scan([file], 'file_row_number = true')} "
        "LEFT JOIN keyed USING (name, label) ORDER BY file_row_number"
    ).fetchnumpy()
    return all(same(columns[name], written[name]) for name in columns)


def digest(path: Path) -> str:
    """Of the bytes of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def read_digest(connection: Any, file: str) -> str | None:
    """The digest of its segment that a side table holds; None if it has no mark."""
    rows = connection.execute(f"SELECT key, value FROM parquet_kv_metadata([{parquet.literal(file)}])").fetchall()
    found = {key.decode(): value.decode() for key, value in rows}
    return found.get(DIGEST) if found.get(MARK[0]) == MARK[1] else None


def read_numbers(connection: Any, file: str) -> Numbers:
    """The numbers of a segment, named by `OpenFolder.locate`."""
    check_size(file)
    table = parquet.scan([file])
    keys = sorted(connection.execute(f"SELECT DISTINCT name, label FROM {table} WHERE value IS NOT NULL").fetchall())
    register_keys(connection, keys)
    columns = connection.execute(
        f"SELECT key, row, coalesce(step, {NO_STEP}) AS step, time, value FROM {table} JOIN keyed USING (name, label) "
        "WHERE value IS NOT NULL ORDER BY key, row"
    ).fetchnumpy()
    arrays = (np.ma.getdata(columns[name]) for name in ("key", "row", "step", "time", "value"))
    return Numbers(keys, *arrays)


def find_extremes(numbers: Numbers) -> dict[str, NDArray[Any]]:
    """One entry per bucket. `low_row`, `high_row` and `broken_row` are -1 where there is no such value."""
    key, value, step = numbers.key, numbers.value, numbers.step
    size = len(value)
    first = np.flatnonzero(np.diff(key, prepend=-1))  # of each series
    within = np.arange(size) - np.repeat(first, np.diff(first, append=size))
    start = np.flatnonzero(within % BUCKET == 0)
    count = np.diff(start, append=size)
    bucket = np.repeat(np.arange(len(start)), count)
    finite = np.isfinite(value)
    found: dict[str, NDArray[Any]] = {
        "key": key[start],
        "bucket": within[start] // BUCKET,
        "count": count,
        "broken": _reduce(np.add, (~finite).astype(np.int64), start),
    }
    lowest = _reduce(np.minimum, np.where(finite, value, np.inf), start)
    highest = _reduce(np.maximum, np.where(finite, value, -np.inf), start)
    places = {
        "low": _first_of_each(finite & (value == lowest[bucket]), bucket, len(start)),
        "high": _first_of_each(finite & (value == highest[bucket]), bucket, len(start)),
        "broken": _first_of_each(~finite, bucket, len(start)),
        "last": start + count - 1,
    }
    for kind, place in places.items():
        there = place >= 0
        found[f"{kind}_row"] = np.where(there, numbers.row[place], -1)
        found[f"{kind}_step"] = np.where(there, step[place], NO_STEP)
        found[f"{kind}_time"] = np.where(there, numbers.time[place], -1)
        found["broken_value" if kind == "broken" else kind] = np.where(there, value[place], 0.0)
    known = step != NO_STEP
    beyond = np.iinfo(np.int64).max
    earliest = _reduce(np.minimum, np.where(known, step, beyond), start)
    found["step_from"] = np.where(earliest == beyond, NO_STEP, earliest)
    found["step_to"] = _reduce(np.maximum, step, start)
    found["time_from"] = _reduce(np.minimum, numbers.time, start)
    found["time_to"] = _reduce(np.maximum, numbers.time, start)
    return found


def with_nan_apart(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """`columns` with a `<name>_is_nan` beside every column of floats: DuckDB takes a NaN in an array for NULL."""
    floats = {name: values for name, values in columns.items() if values.dtype.kind == "f"}
    return {**columns, **{f"{name}_is_nan": np.isnan(values) for name, values in floats.items()}}


def nan_restored(name: str) -> str:
    """SQL for a column of `with_nan_apart`."""
    return f"CASE WHEN {name}_is_nan THEN 'NaN'::DOUBLE ELSE {name} END"


def register_keys(connection: Any, keys: list[tuple[str, str]]) -> None:
    """The table `keyed`: a number for each (name, label)."""
    columns = {
        "key": np.arange(len(keys), dtype=np.int32),
        "name": text_array([name for name, _ in keys]),
        "label": text_array([label for _, label in keys]),
    }
    connection.register("keyed_columns", columns)
    connection.execute(
        "CREATE OR REPLACE TEMP VIEW keyed AS "
        "SELECT key, name::VARCHAR AS name, label::VARCHAR AS label FROM keyed_columns"
    )


def text_array(items: list[str]) -> NDArray[np.object_]:
    """Strings as DuckDB takes them."""
    return np.array(items, dtype=object) if items else np.empty(0, dtype=object)


def same(expected: NDArray[Any], written: NDArray[Any]) -> bool:
    """Whether two columns hold the same values, to the bit but for the kinds of NaN."""
    if expected.shape != written.shape or np.ma.is_masked(written):
        return False
    values = np.ma.getdata(written)
    equal = expected == values
    if expected.dtype.kind == "f":
        equal &= np.signbit(expected) == np.signbit(values)
        equal |= np.isnan(expected) & np.isnan(values)
    return bool(np.all(equal))


def _as_stored(name: str) -> str:
    if name in _FLOATS:
        return f"CASE WHEN {_FLOATS[name]} >= 0 THEN {nan_restored(name)} END"
    missing = _WHOLE[name]
    return name if missing is None or name in _KEEPS_NO_STEP else f"nullif({name}, {missing})"


def _as_array(name: str) -> str:
    missing = 0.0 if name in _FLOATS else _WHOLE[name]
    return name if missing is None else f"coalesce({name}, {missing})"


def _reduce(operation: np.ufunc, values: NDArray[Any], start: NDArray[np.int64]) -> NDArray[Any]:
    return operation.reduceat(values, start) if len(start) else values[:0]


def _first_of_each(wanted: NDArray[np.bool_], bucket: NDArray[np.int64], buckets: int) -> NDArray[np.int64]:
    """The place of the first wanted value in every bucket, -1 if there is none."""
    places = np.flatnonzero(wanted)
    which, first = np.unique(bucket[places], return_index=True)
    found = np.full(buckets, -1, dtype=np.int64)
    found[which] = places[first]
    return found
