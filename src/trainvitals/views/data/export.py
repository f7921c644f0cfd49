"""Tables of a run for other programs, as they were written: JSON, JSONL, CSV, Parquet.

NaN and infinity keep their values: the strings of the journal in JSON, nan and inf in CSV, themselves in Parquet.
Tested in tests/views/cli/test_export.py.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from trainvitals.journal import layout
from trainvitals.journal.contracts import Reader
from trainvitals.journal.documents.fields import Document
from trainvitals.journal.encoding import encode_line
from trainvitals.views.data.parquet import CSV_SPELLING, find_types, write_parquet
from trainvitals.views.data.safe_text import csv_cell

FORMATS = ("json", "jsonl", "csv", "parquet")
TABLES = (*layout.METRIC_TABLES, *layout.LINE_TABLES)
Row = dict[str, Any]


class Rows:
    """The rows to write; can be gone through more than once, as CSV must know all columns first. `count` is called for
    each row that is written."""

    def __init__(self, reader: Reader, tables: Sequence[str], count: Callable[[], None] | None = None) -> None:
        self._reader = reader
        self._tables = tables
        self._count = count
        # A live run goes on while it is exported: every pass is over what there was when the first began.
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
