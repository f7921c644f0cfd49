"""Tables of a run for other programs: JSON, JSONL, CSV, Parquet.

Rows are as they were written, except that what the program logged and what was measured for the same step are one row.
NaN and infinity keep their values: the strings of the journal in JSON, nan and inf in CSV, themselves in Parquet.
Tested in tests/views/cli/test_export.py.
"""

from __future__ import annotations

import csv
import io
import json
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from trainvitals.journal import layout
from trainvitals.journal.contracts import Reader
from trainvitals.journal.documents.fields import Document
from trainvitals.journal.encoding import encode_line
from trainvitals.safe_text import csv_cell
from trainvitals.views.data.parquet import CSV_SPELLING, find_types, write_parquet

FORMATS = ("json", "jsonl", "csv", "parquet")
TABLES = (*layout.METRIC_TABLES, *layout.LINE_TABLES)
Row = dict[str, Any]
IDENTITY = ("role", "rank", "attempt")
COORDINATES = frozenset({"timestamp", "step", "epoch", "correlation_id", *IDENTITY})
"""What two rows of a step may both have."""
# A step's measurements follow its log() calls by as many steps as wait for their device, in a bounded queue.
_WINDOW_ROWS = 4096
_WINDOW_VALUES = 500_000
_CANDIDATES = 8


def join_steps(rows: Iterable[Row]) -> Iterator[Row]:
    """One row per step of a participant, in the order in which steps began, with the time of its first row. A name
    that comes again at the same step begins another row, and a row without a step stays one: nothing is lost."""
    order: deque[tuple[Hashable, Row]] = deque()
    open_rows: dict[Hashable, list[Row]] = {}
    values = 0
    for row in rows:
        step = row.get("step")
        key = (step, *(str(row.get(name)) for name in IDENTITY)) if isinstance(step, int) else None
        for other in open_rows.get(key, ())[-_CANDIDATES:]:
            if _fit(other, row):
                values -= len(other)
                other.update({**row, **other})
                values += len(other)
                break
        else:
            row = dict(row)
            values += len(row)
            order.append((key, row))
            if key is not None:
                open_rows.setdefault(key, []).append(row)
        while len(order) > _WINDOW_ROWS or (values > _WINDOW_VALUES and len(order) > 1):
            values -= len(order[0][1])
            yield _close(order, open_rows)
    while order:
        yield _close(order, open_rows)


def _fit(row: Row, other: Row) -> bool:
    """Whether two rows of a step have no value that would be lost in one."""
    return all(
        name == "timestamp" or (name in COORDINATES and row[name] == other[name]) for name in row.keys() & other.keys()
    )


def _close(order: deque[tuple[Hashable, Row]], open_rows: dict[Hashable, list[Row]]) -> Row:
    key, row = order.popleft()
    if key is not None:
        del open_rows[key][0]
        if not open_rows[key]:
            del open_rows[key]
    return row


class Rows:
    """The rows to write; can be gone through more than once, as CSV must know all columns first. `count` is called for
    each row that is written."""

    def __init__(self, reader: Reader, tables: Sequence[str], count: Callable[[], None] | None = None) -> None:
        self._reader = reader
        self._tables = tables
        self._count = count
        # A live run continues while it is exported: every pass is over what there was when the first began.
        lines: dict[str, Callable[[], Sequence[Document]]] = {"events": reader.events, "alerts": reader.alerts}
        self._lines = {table: [row.as_json() for row in lines[table]()] for table in tables if table in lines}
        self._extents = {table: reader.extent(table) for table in tables if table not in lines}

    def __iter__(self) -> Iterator[Row]:
        for row in self.quietly():
            if self._count is not None:
                self._count()
            yield row

    def quietly(self) -> Iterator[Row]:
        """The same rows, not counted."""
        for table in self._tables:
            lines: Iterable[Row] = self._lines.get(table) or ()
            if table in self._extents:
                lines = self._reader.rows(table, self._extents[table])
                if table == "training":
                    lines = join_steps(lines)
            for row in lines:
                yield row if len(self._tables) == 1 else {"table": table, **row}

    def columns(self) -> list[str]:
        """Every name that occurs, in order of appearance."""
        found: dict[str, None] = {}
        for row in self.quietly():
            found.update(dict.fromkeys(row))
        return list(found)


def write_rows(rows: Rows, format: str, file: BinaryIO) -> Mapping[str, str]:
    """In one of FORMATS. The names whose columns had to be called otherwise, and how."""
    if format == "parquet":
        return write_parquet(find_types(rows.quietly()), rows, file)
    {"json": _write_json, "jsonl": _write_jsonl, "csv": _write_csv}[format](rows, file)
    return {}


def _write_jsonl(rows: Rows, file: BinaryIO) -> None:
    for row in rows:
        file.write(encode_line(row))


def _write_json(rows: Rows, file: BinaryIO) -> None:
    before = b"[\n"
    for row in rows:
        file.write(before + encode_line(row).rstrip(b"\n"))
        before = b",\n"
    file.write(b"[]\n" if before == b"[\n" else b"\n]\n")


def _write_csv(rows: Rows, file: BinaryIO) -> None:
    columns = rows.columns()

    def cell(value: object) -> object:
        if isinstance(value, str):
            return CSV_SPELLING.get(value) or csv_cell(value)
        return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, bool)) else value

    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    if columns:
        table.writerow({name: csv_cell(name) for name in columns})
    for row in rows:
        table.writerow({name: cell(value) for name, value in row.items()})
    text.detach()
