"""Tables of numbers: CSV, JSON lines and Parquet, whoever wrote them. Lightning's and Keras' CSVLogger, Ultralytics'
results.csv, LLaMA-Factory's trainer_log.jsonl, verl's files and exports of other trackers are such tables.

*Wide*: a row per step and a column per metric. *Long*: a row per value, with a column for the metric's name and one for
the value. Either may have a column for the run. Which column is what is told by its name (`Columns`); a table without
times has none, and none is made up.
"""

from __future__ import annotations

import csv
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from trainvitals.journal import parquet
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.segment_writer import Lines
from trainvitals.plain_json import parse_json
from trainvitals.trackers.cells import find_separator, is_missing, read_number
from trainvitals.trackers.foreign import read_yaml
from trainvitals.trackers.importing import ImportFailed, Piece, SourceEnd
from trainvitals.trackers.run_writing import NO_TIME, About

PIECE_ROWS = 200_000
MOST_LINE = 16 << 20
MOST_HEADER = 1 << 20
MOST_ROW = 1 << 20
"""Of lines that a quotation mark joins."""
SETTLED_SECONDS = 5.0
"""A last line without a newline counts as whole once the file has not changed for so long."""

STEPS = ("step", "_step", "global_step", "trainer/global_step", "current_steps", "iteration", "iter", "epoch")
"""Names of the column that counts, the best first."""
TIMES = ("timestamp", "_timestamp", "time", "wall_time", "datetime", "date", "created_at")
RUNS = ("run", "run_id", "run_name", "experiment")
METRICS = ("metric", "metric_name", "tag", "key", "name", "attribute_path")
VALUES = ("value", "float_value")
_EARLIEST, _LATEST = 3e8, 1e11
"""Seconds since 1970 that can be a time; more are milliseconds, fewer are seconds since the start."""

Row = Mapping[str, Any]
UNREADABLE = "lines that cannot be read"
_UNREADABLE_ROW: Row = {UNREADABLE: "x"}


def open_source(target: str) -> TableSource:
    path = Path(target)
    if path.is_dir():
        found = [
            file
            for pattern in ("metrics.csv", "version_*/metrics.csv")
            for file in sorted(path.glob(pattern))
            if file.is_file()
        ]
        found = [file for file in found if file.parent == path] or found
        if not found:
            raise ImportFailed(f"{target} is a folder without a metrics.csv", hint="name the file itself")
        path = max(found, key=lambda file: file.stat().st_mtime)
    if not path.exists():
        raise ImportFailed(f"{target} does not exist")
    if not path.is_file():
        raise ImportFailed(
            f"{target} is not a regular file", hint="it is read more than once: write it to a file first"
        )
    return TableSource(_open_table(path.resolve()))


def _open_table(path: Path) -> TableFile:
    with open(path, "rb") as file:
        start = file.read(4096)
    if start.startswith(b"PAR1"):
        return ParquetTable(path)
    return JsonTable(path) if start.lstrip().startswith(b"{") else CsvTable(path)


# -- columns


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column is what; None for those that there are not."""

    step: str | None = None
    time: str | None = None
    run: str | None = None
    metric: str | None = None
    value: str | None = None

    @classmethod
    def of(cls, names: Sequence[str]) -> Columns:
        by_word = {name.strip().lower(): name for name in reversed(names)}

        def find(words: Sequence[str]) -> str | None:
            return next((by_word[word] for word in words if word in by_word), None)

        metric, value = find(METRICS), find(VALUES)
        is_long = metric is not None and value is not None
        return cls(find(STEPS), find(TIMES), find(RUNS), metric if is_long else None, value if is_long else None)


def read_row(row: Row, columns: Columns, left_out: Counter[str]) -> tuple[int, Any, dict[str, float]]:
    """(microseconds or NO_TIME, step, numbers)."""
    step = read_number(row.get(columns.step)) if columns.step is not None else None
    micros = read_micros(row.get(columns.time)) if columns.time is not None else NO_TIME
    if columns.metric is not None and columns.value is not None:
        value = read_number(row.get(columns.value))
        values = {} if value is None else {str(row.get(columns.metric)): value}
        if value is None and not is_missing(row.get(columns.value)):
            left_out["values that are not numbers"] += 1
    else:
        taken = {columns.step, columns.run, columns.time if micros != NO_TIME else None}
        values = {}
        for name, item in row.items():
            if name in taken:
                continue
            number = read_number(item)
            if number is not None:
                values[name.strip()] = number
            elif not is_missing(item):
                left_out[f"values of '{name.strip()}' that are not numbers"] += 1
    whole = step is not None and math.isfinite(step) and step == int(step)
    if step is not None and not whole and columns.step is not None:
        values[columns.step.strip()] = step  # half an epoch is no step
    return micros, int(step) if step is not None and whole else None, values


def read_micros(item: object) -> int:
    """Microseconds since 1970; NO_TIME for what is no time, such as seconds since the start."""
    seconds = read_number(item)
    if seconds is None and isinstance(item, str):
        seconds = parse_time(item.strip())
    if seconds is None and hasattr(item, "timestamp"):
        seconds = float(item.timestamp())
    if seconds is None or not math.isfinite(seconds) or seconds < _EARLIEST:
        return NO_TIME
    while seconds > _LATEST:
        seconds /= 1000
    return round(seconds * 1e6) if seconds >= _EARLIEST else NO_TIME


# -- kinds of files


class TablePosition(NamedTuple):
    """Behind a row."""

    rows: int
    offset: int = 0


class TableFile(Protocol):
    """A file of rows."""

    path: Path

    def columns(self) -> Sequence[str]:
        """Of the first rows."""
        ...

    def rows(self, after: TablePosition, mark: str) -> Iterator[tuple[TablePosition, Row]]:
        """Those behind a place of a file whose `mark` was this."""
        ...

    def mark(self) -> str:
        """Another one when a place of before means nothing any more."""
        ...


def _read_lines(path: Path, after: TablePosition) -> Iterator[tuple[TablePosition, bytes | None]]:
    """Whole lines, each with the place behind it; None for one that is too long."""
    with open(path, "rb") as file:
        file.seek(after.offset)
        rows, offset = after
        while piece := file.readline(MOST_LINE):
            size, line = len(piece), piece if len(piece) < MOST_LINE else None
            while not piece.endswith(b"\n") and (more := file.readline(MOST_LINE)):
                piece, size, line = more, size + len(more), None
            if not piece.endswith(b"\n") and not _is_settled(path):
                return
            rows, offset = rows + 1, offset + size
            yield TablePosition(rows, offset), line


def _is_settled(path: Path) -> bool:
    return time.time() - path.stat().st_mtime >= SETTLED_SECONDS


class CsvTable:
    """Separated by commas or otherwise. Lightning writes the whole file again when there is a new column: the rows are
    then the same, with more cells."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> str:
        with open(self.path, "rb") as file:
            header = file.readline(MOST_HEADER)
        if len(header) == MOST_HEADER:
            raise ImportFailed(f"{self.path.name} is not a table: its first line is longer than {MOST_HEADER >> 20} MB")
        return header.decode("utf-8-sig", "backslashreplace").rstrip("\r\n")

    def columns(self) -> Sequence[str]:
        header = self.mark()
        return _split_cells(header, find_separator(header)) or []

    def rows(self, after: TablePosition, mark: str) -> Iterator[tuple[TablePosition, Row]]:
        header = self.mark()
        separator = find_separator(header)
        names = _split_cells(header, separator) or []
        skip = 0
        if mark != header or not after.offset:
            skip, after = after.rows, TablePosition(-1)  # the header is a line, too
        for place, text in _join_lines(_read_lines(self.path, after), self.path):
            if place.rows <= max(skip, 0) and (skip or place.rows == 0):
                continue
            cells = _split_cells(text.decode("utf-8", "backslashreplace"), separator) if text is not None else None
            if cells is None:
                yield place, _UNREADABLE_ROW
            elif cells:
                yield place, dict(zip(names, cells, strict=False))


def _split_cells(line: str, separator: str) -> list[str] | None:
    """None for what csv does not take, such as a cell of more than 128 KB."""
    try:
        return next(csv.reader([line.rstrip("\r\n")], delimiter=separator), [])
    except csv.Error:
        return None


def _join_lines(
    lines: Iterator[tuple[TablePosition, bytes | None]], path: Path
) -> Iterator[tuple[TablePosition, bytes | None]]:
    """Rows, for a cell may have newlines in it. A quotation mark that is never closed costs the line in which it is,
    and not those behind it."""
    held: list[tuple[TablePosition, bytes]] = []
    size = 0
    for place, line in lines:
        if line is None:
            yield from _give_up(held)
            held, size = [], 0
            yield place, None
            continue
        is_odd = line.count(b'"') % 2 == 1
        if not held and not is_odd:
            yield place, line
            continue
        held.append((place, line))
        size += len(line)
        if is_odd and len(held) > 1:
            yield place, b"".join(part for _, part in held)
            held, size = [], 0
        elif size > MOST_ROW:
            yield from _give_up(held)
            held, size = [], 0
    if held and _is_settled(path):
        yield from _give_up(held)


def _give_up(held: list[tuple[TablePosition, bytes]]) -> Iterator[tuple[TablePosition, bytes | None]]:
    """The first of these lines has a quotation mark too many."""
    for number, (place, line) in enumerate(held):
        yield place, line if number else None


class JsonTable:
    """One object per line; what is nested is joined with `/`, as `log` does it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> str:
        return ""

    def columns(self) -> Sequence[str]:
        names: dict[str, None] = {}
        for number, (_, row) in enumerate(self.rows(TablePosition(0), "")):
            names.update(dict.fromkeys(row))
            if number >= 100:
                break
        return list(names)

    def rows(self, after: TablePosition, mark: str) -> Iterator[tuple[TablePosition, Row]]:
        if after.offset > self.path.stat().st_size:  # it was begun again
            after = TablePosition(0)
        for place, line in _read_lines(self.path, after):
            if line is None:
                yield place, _UNREADABLE_ROW
                continue
            if not line.strip():
                continue
            try:
                found = parse_json(line)
                row: Row = dict(_flatten(found)) if isinstance(found, dict) else _UNREADABLE_ROW
            except (ValueError, RecursionError):
                row = _UNREADABLE_ROW
            yield place, row


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not prefix and values.keys() == {"step", "data"} and isinstance(values["data"], dict):  # verl
        values = {"step": values["step"], **values["data"]}
    for name, item in values.items():
        if isinstance(item, dict):
            yield from _flatten(item, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", item


class ParquetTable:
    """Read with DuckDB, which is not shown the path: it would read meaning into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = parquet.OpenFolder(path.parent)
        self._table = parquet.scan([self._folder.locate(path.name)])

    def mark(self) -> str:
        return ""

    def _ask(self, query: str) -> Any:
        import duckdb

        try:
            return parquet.connect().execute(query)
        except duckdb.Error as error:
            reason = str(error).splitlines()[0].replace(self._folder.locate(""), "")
            raise ImportFailed(f"cannot read {self.path.name}: {reason}") from None

    def columns(self) -> Sequence[str]:
        return [column[0] for column in self._ask(f"SELECT * FROM {self._table} LIMIT 0").description]

    def rows(self, after: TablePosition, mark: str) -> Iterator[tuple[TablePosition, Row]]:
        result = self._ask(f"SELECT * FROM {self._table} OFFSET {after.rows}")
        names = [column[0] for column in result.description]
        number = after.rows
        while batch := result.fetchmany(10_000):
            for cells in batch:
                number += 1
                yield TablePosition(number), dict(zip(names, cells, strict=True))


# -- runs


class TableSource:
    """The runs of one file: one, or those that its column of runs names."""

    unended = SourceEnd("finished")

    def __init__(self, table: TableFile) -> None:
        self._table = table
        self._known: dict[str, TableRun] = {}

    def runs(self) -> list[TableRun]:
        columns = Columns.of(self._table.columns())
        for key in self._list_keys(columns):
            if key not in self._known:
                self._known[key] = TableRun(self._table, key)
        return list(self._known.values())

    def _list_keys(self, columns: Columns) -> Sequence[str]:
        if columns.run is None:
            return [""]
        name = columns.run
        return list(dict.fromkeys(str(row.get(name)) for _, row in self._table.rows(TablePosition(0), "")))


class TableRun:
    """One run of a table. `key` is the text in the column of runs, empty if there is none."""

    def __init__(self, table: TableFile, key: str) -> None:
        self.key = key
        self._table = table
        self._seen: tuple[int, int] | None = None

    @property
    def place(self) -> str:
        return str(self._table.path)

    @property
    def title(self) -> str:
        path = self._table.path
        if self.key:
            return self.key
        if re.fullmatch(r"metrics|results|log|training|trainer_log", path.stem) and path.parent.name:
            return path.parent.name if not path.parent.name.startswith("version_") else _join_version(path.parent)
        return path.stem

    def about(self) -> About:
        columns = Columns.of(self._table.columns())
        first: int = NO_TIME
        if columns.time is not None:
            for _, row in self._table.rows(TablePosition(0), ""):
                if columns.run is None or str(row.get(columns.run)) == self.key:
                    first = read_micros(row.get(columns.time))
                    break
        has_times = first != NO_TIME
        return About(
            name=self.title,
            config=read_yaml(self._table.path.with_name("hparams.yaml")) or None,  # Lightning leaves it there
            started=first / 1e6 if has_times else None,
            has_times=has_times,
        )

    def end(self) -> SourceEnd | None:
        return None

    def read(self, position: Mapping[str, Any]) -> Iterator[Piece]:
        try:
            status = self._table.path.stat()
        except FileNotFoundError:
            return  # removed while it is followed
        if (status.st_mtime_ns, status.st_size) == self._seen:
            return
        names = self._table.columns()
        columns, mark = Columns.of(names), self._table.mark()
        after = TablePosition(int(position.get("rows", 0)), int(position.get("offset", 0)))
        make = partial(self._make_piece, mark=mark)
        piece = make(after)
        for place, row in self._table.rows(after, str(position.get("mark", mark))):
            if columns.run is None or str(row.get(columns.run)) == self.key:
                if UNREADABLE in row:
                    piece.left_out[UNREADABLE] += 1
                else:
                    _add_row(piece, row, columns)
            piece.position = make(place).position
            if piece.lines is not None and len(piece.lines) >= PIECE_ROWS:
                yield piece
                piece = make(place)
        if piece.position != position:
            yield piece
        # A last line that may still be being written is looked at again, changed or not.
        self._seen = (status.st_mtime_ns, status.st_size) if piece.position.get("offset") == status.st_size else None

    @staticmethod
    def _make_piece(place: TablePosition, *, mark: str) -> Piece:
        return Piece(position={"rows": place.rows, "offset": place.offset, "mark": mark}, lines=Lines("training"))


def _add_row(piece: Piece, row: Row, columns: Columns) -> None:
    micros, step, values = read_row(row, columns, piece.left_out)
    if values and piece.lines is not None:
        piece.lines.add_row(micros, step, dict(values))


def _join_version(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"
