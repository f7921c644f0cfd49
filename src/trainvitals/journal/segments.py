"""Sealed segments: a closed JSONL file as Parquet, and how to read many of them at once.

A segment is a long table, one row per value: (name, label, row, step, time, value, text), sorted by name, label and
row, one row group per 65,536 values. Long rather than wide because a run may log 100,000 names or names that differ
only in case, and because one metric is then one stretch of the file. `label` says of what (a GPU, a process) as
canonical JSON, empty for training lines; `row` is the line's number in the JSONL file; `step` is null where there is
none; `time` is microseconds since 1970. `text` holds what is not a number, such as throttle reasons.

Beside it stands a side table with the extremes of every 1,000 consecutive values, from which a chart of ten million
steps is drawn without touching the segment.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from trainvitals.errors import JournalError
from trainvitals.journal import layout
from trainvitals.journal.cursor import Cursor, Damage, parse_line
from trainvitals.journal.encoding import NONFINITE, TimeParser, number
from trainvitals.journal.layout import FileName

BUCKET = 1000
ROW_GROUP = 65_536
NO_STEP = -(2**63)


def split_labels(table: str, row: dict[str, Any]) -> str:
    """Take the labels out of `row`: canonical JSON, empty where the table has none."""
    keys: Iterable[str] = layout.LABEL_KEYS.get(table, ())
    if table in layout.TEXT_IS_LABEL:
        keys = [key for key, item in row.items() if isinstance(item, str) and item not in NONFINITE]
    labels = {key: row.pop(key) for key in keys if key in row}
    return orjson.dumps(labels, option=orjson.OPT_SORT_KEYS).decode() if labels else ""


def parse_labels(text: str) -> dict[str, Any]:
    """The labels again."""
    return dict(orjson.loads(text)) if text else {}


def labels_of(name: FileName, text: str) -> dict[str, Any]:
    """Of what a series speaks: its labels, and what the name of its file says."""
    labels = {**({"host": name.host} if name.host else {}), **parse_labels(text)}
    if name.pid is not None:
        labels["pid"] = name.pid
    return labels


@dataclass(slots=True)
class Column:
    """The values of one name and label: for each its line number and the value."""

    rows: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


class Lines:
    """JSONL lines as columns, growing as lines are added. Serves sealing and the live tail alike."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.damage = Damage()
        self.times = array("q")
        self.steps = array("q")
        self.columns: dict[tuple[str, str], Column] = {}
        self.texts: list[tuple[int, str, str, str]] = []  # row, name, label, text
        self._clock = TimeParser()
        self._has_labels = table in layout.LABEL_KEYS or table in layout.TEXT_IS_LABEL

    def __len__(self) -> int:
        return len(self.times)

    def add(self, line: bytes) -> None:
        """Take one line in; what cannot be understood is counted in `damage`."""
        row = parse_line(line, self.damage)
        if row is None:
            return
        time = self._clock.parse(row.pop("timestamp"))
        if time is None:
            self.damage.foreign += 1
            return
        step = row.pop("step", None)
        place = len(self.times)
        self.times.append(time)
        whole_step = isinstance(step, int) and not isinstance(step, bool) and abs(step) < 2**62
        self.steps.append(step if whole_step else NO_STEP)
        if step is not None and not whole_step:
            row["step"] = step  # not one of ours, but nothing is dropped
        label = split_labels(self.table, row) if self._has_labels else ""
        columns = self.columns
        for name, item in row.items():
            value = item if type(item) is float else number(item)
            if value is None:
                self.texts.append((place, name, label, item if isinstance(item, str) else orjson.dumps(item).decode()))
                continue
            column = columns.get((name, label))
            if column is None:
                column = columns[(name, label)] = Column()
            column.rows.append(place)
            column.values.append(value)

    @property
    def count(self) -> int:
        """Values in all, texts included."""
        return sum(len(column.rows) for column in self.columns.values()) + len(self.texts)


@dataclass(frozen=True, slots=True)
class Sealed:
    """What sealing made."""

    path: Path
    lines: int
    values: int
    damage: Damage


def seal(path: Path, *, keep: bool = False, mode: int = 0o600) -> Sealed:
    """Turn a closed JSONL file into a segment and its side table, then remove the file unless `keep`.

    Atomic: the segment appears whole or not at all, its rows are counted again from the file written, and the JSONL
    file is removed only if it did not grow meanwhile. Lines that could not be understood are kept beside the segment
    in `<stem>.rejected`.
    """
    parsed = layout.parse_name(path.name)
    if parsed is None or parsed[1] != ".jsonl":
        raise JournalError(f"{path.name} is not a journal file")
    name = parsed[0]
    lines = Lines(name.table)
    rejected: list[bytes] = []

    def take(line: bytes) -> None:
        before = lines.damage.torn + lines.damage.foreign
        lines.add(line)
        if lines.damage.torn + lines.damage.foreign > before:
            rejected.append(line)

    cursor = Cursor(path)
    cursor.feed(take)
    size_read = cursor.offset
    tail = path.read_bytes()[size_read:]
    if tail.strip():  # the writer died inside its last line
        take(tail)
    folder = path.parent / layout.SEGMENTS
    folder.mkdir(mode=0o700, exist_ok=True)
    target = folder / f"{name.stem}.parquet"
    with tempfile.TemporaryDirectory(prefix=".sealing-", dir=folder) as workshop:
        new, new_side = Path(workshop) / target.name, Path(workshop) / f"{name.stem}.minmax.parquet"
        _write_parquet(lines, new, new_side)
        written = _count_rows(new)
        if written != lines.count:
            raise JournalError(f"sealing {path.name}: {written} of {lines.count} values arrived; the file is kept")
        if path.stat().st_size != size_read + len(tail):
            raise JournalError(f"{path.name} grew while it was sealed: it is not closed yet")
        for file in (new_side, new):  # the segment last: where it is, its side table is
            file.chmod(mode)
            file.replace(folder / file.name)
    if rejected:
        (folder / f"{name.stem}.rejected").write_bytes(b"\n".join(rejected) + b"\n")
    if not keep:
        path.unlink()
    return Sealed(target, len(lines), written, lines.damage)


def connect() -> Any:
    """An in-memory DuckDB connection that leaves most of the machine to the training."""
    import duckdb

    return duckdb.connect(config={"threads": 2, "memory_limit": "2GB"})


def _write_parquet(lines: Lines, target: Path, side: Path) -> None:
    keys = sorted(lines.columns)
    times = np.frombuffer(lines.times, dtype=np.int64) if len(lines) else np.empty(0, np.int64)
    steps = np.frombuffer(lines.steps, dtype=np.int64) if len(lines) else np.empty(0, np.int64)
    rows = [np.frombuffer(lines.columns[key].rows, dtype=np.int64) for key in keys]
    values = [np.frombuffer(lines.columns[key].values, dtype=np.float64) for key in keys]
    lengths = [len(item) for item in rows]
    row = np.concatenate(rows) if rows else np.empty(0, np.int64)
    value = np.concatenate(values) if values else np.empty(0, np.float64)
    data = {
        "key": np.repeat(np.arange(len(keys), dtype=np.int32), lengths),
        "row": row,
        "step": steps[row],
        "time": times[row],
        "value": value,
        "nan": np.isnan(value),  # DuckDB takes a NaN in an array for NULL, so it is said apart
    }
    keyed = {
        "key": np.arange(len(keys), dtype=np.int32),
        "name": _strings(name for name, _ in keys),
        "label": _strings(label for _, label in keys),
    }
    texts = {
        "row": np.array([item[0] for item in lines.texts], dtype=np.int64),
        "name": _strings(item[1] for item in lines.texts),
        "label": _strings(item[2] for item in lines.texts),
        "text": _strings(item[3] for item in lines.texts),
    }
    lookup = {"row": np.arange(len(lines), dtype=np.int64), "step": steps, "time": times}
    connection = connect()
    query = f"""
        SELECT name::VARCHAR AS name, label::VARCHAR AS label, row, nullif(step, {NO_STEP}) AS step, time,
               CASE WHEN nan THEN 'NaN'::DOUBLE ELSE value END AS value, NULL::VARCHAR AS text
        FROM data JOIN keyed USING (key)
        UNION ALL
        SELECT name::VARCHAR, label::VARCHAR, row, nullif(step, {NO_STEP}), time, NULL, text::VARCHAR
        FROM texts JOIN lookup USING (row)
        ORDER BY name, label, row
    """
    try:
        _copy(connection, query, target, data=data, keyed=keyed, texts=texts, lookup=lookup)
        _copy(connection, _side_query(target), side)
    finally:
        connection.close()


def _side_query(segment: Path) -> str:
    finite = "FILTER (WHERE isfinite(value))"
    broken = "FILTER (WHERE NOT isfinite(value))"
    return f"""
        WITH numbered AS (
            SELECT *, (row_number() OVER (PARTITION BY name, label ORDER BY row) - 1) // {BUCKET} AS bucket
            FROM read_parquet({_literal(segment)}) WHERE value IS NOT NULL
        )
        SELECT name, label, bucket, count(*) AS count,
               min(value) {finite} AS low, arg_min(row, value) {finite} AS low_row,
               arg_min(coalesce(step, {NO_STEP}), value) {finite} AS low_step,
               arg_min(time, value) {finite} AS low_time,
               max(value) {finite} AS high, arg_max(row, value) {finite} AS high_row,
               arg_max(coalesce(step, {NO_STEP}), value) {finite} AS high_step,
               arg_max(time, value) {finite} AS high_time,
               count(*) {broken} AS broken, arg_min(value, row) {broken} AS broken_value,
               min(row) {broken} AS broken_row, arg_min(coalesce(step, {NO_STEP}), row) {broken} AS broken_step,
               arg_min(time, row) {broken} AS broken_time,
               arg_max(value, row) AS last, max(row) AS last_row,
               arg_max(coalesce(step, {NO_STEP}), row) AS last_step, arg_max(time, row) AS last_time,
               min(step) AS step_from, max(step) AS step_to, min(time) AS time_from, max(time) AS time_to
        FROM numbered GROUP BY name, label, bucket ORDER BY name, label, bucket
    """


def _copy(connection: Any, query: str, target: Path, **arrays: dict[str, Any]) -> None:
    for name, columns in arrays.items():
        connection.register(name, columns)
    connection.execute(
        f"COPY ({query}) TO {_literal(target)} (FORMAT parquet, COMPRESSION zstd, "
        f"ROW_GROUP_SIZE {ROW_GROUP}, PARQUET_VERSION v2)"
    )


def _strings(items: Iterable[str]) -> NDArray[np.object_]:
    # A lone surrogate cannot be stored as UTF-8; it stays readable as an escape.
    found = [item.encode("utf-8", "backslashreplace").decode() for item in items]
    return np.array(found, dtype=object) if found else np.empty(0, dtype=object)


def _literal(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _count_rows(path: Path) -> int:
    connection = connect()
    try:
        return int(connection.execute(f"SELECT count(*) FROM read_parquet({_literal(path)})").fetchone()[0])
    finally:
        connection.close()


def paths_literal(paths: Iterable[Path]) -> str:
    """A DuckDB list of file names."""
    return "[" + ", ".join(_literal(path) for path in paths) + "]"
