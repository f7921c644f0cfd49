"""`trainvitals export`: a run for other programs, as it was written."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.views.cli.arguments import Parser, UsageError, one_of, resolve_settings
from trainvitals.views.cli.files import check_target, write_file, write_whole
from trainvitals.views.cli.terminal import clean, is_terminal, say
from trainvitals.views.data import quantities
from trainvitals.views.data.safe_text import defuse

DESCRIPTION = (
    "Write the lines of a run as JSON, JSONL, CSV or Parquet, live or ended, sealed or not; or the run as a page "
    "(html) or its charts as a picture (png, svg), drawn without a browser. NaN and infinity keep their values: "
    "the strings NaN, Infinity and -Infinity in JSON, nan and inf in CSV, themselves in Parquet. "
    "CSV and Parquet have a column for every name that occurs; a missing value is an empty cell or a null."
)
EXAMPLES = """
trainvitals export latest --format csv -o loss.csv
trainvitals export latest --format png --panel loss -o loss.png
trainvitals export latest --format jsonl --table gpu | jq .utilization_percent
trainvitals export 20261115-2236 --format parquet --table all -o run.parquet
"""

FORMATS = ("json", "jsonl", "csv", "parquet")
DRAWN = ("html", "png", "svg")
TABLES = (*layout.METRIC_TABLES, *layout.LINE_TABLES)
Row = dict[str, Any]


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="run id or its beginning, name, folder, or 'latest'")
    parser.add_argument(
        "--format",
        type=one_of(*FORMATS, *DRAWN),
        required=True,
        metavar="FORMAT",
        help=f"one of {', '.join((*FORMATS, *DRAWN))}",
    )
    parser.add_argument(
        "--table",
        type=one_of(*TABLES, "all"),
        default="training",
        metavar="TABLE",
        help=f"one of {', '.join(TABLES)}, or all, each row then says its table (default: training)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="-", help="file to write; - is standard output (default)"
    )
    parser.add_argument(
        "--panel",
        action="append",
        metavar="NAME",
        help="for png and svg: a panel such as loss or gpu_power, or a metric; may be repeated (default: all)",
    )
    parser.add_argument(
        "--theme",
        type=one_of("light", "dark"),
        default="light",
        metavar="THEME",
        help="for png and svg: light or dark (default: light)",
    )
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    parser.add_settings("dir")


def execute(arguments: argparse.Namespace) -> int:
    folder = run_folder.find(arguments.run, Path(resolve_settings(arguments).dir))
    to_stdout = arguments.output == "-"
    if to_stdout and arguments.format == "parquet" and is_terminal(sys.stdout):
        raise UsageError("Parquet is not for a terminal", hint="name a file: -o run.parquet")
    target = Path(arguments.output)
    check_target(arguments.output, arguments.force)
    if arguments.format in DRAWN:
        return _draw(arguments, folder)
    progress = Progress(to_stdout)
    rows = Rows(folder, TABLES if arguments.table == "all" else (arguments.table,), progress)
    writer = _WRITERS[arguments.format]
    try:
        if to_stdout and is_terminal(sys.stdout):
            with tempfile.TemporaryFile() as exact:
                writer(rows, exact)
                exact.seek(0)
                for line in exact:  # a file gets every byte, a terminal nothing that it would obey
                    print(clean(line.decode("utf-8", "replace").rstrip("\n")))
        elif to_stdout:
            writer(rows, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            write_whole(target, lambda file: writer(rows, file))
    finally:
        progress.clear()
    if progress.count == 0:
        say(f"run {folder.name} has no lines in table '{arguments.table}'")
    elif not to_stdout:
        say(f"{progress.count:,} lines, {quantities.format_bytes(target.stat().st_size)}: {target}")
    return 0


def _draw(arguments: argparse.Namespace, folder: Path) -> int:
    """A page or a picture instead of lines."""
    from trainvitals.views.report import document

    if arguments.format == "html":
        content = document.draw_document([folder], "html", resolve_settings(arguments))
    else:
        content = document.draw_picture([folder], arguments.format, names=arguments.panel or (), theme=arguments.theme)
    write_file(arguments.output, content, force=arguments.force)
    if arguments.output != "-":
        say(f"{quantities.format_bytes(len(content))}: {arguments.output}")
    return 0


class Progress:
    """A counter on the terminal, for exports that take a while."""

    def __init__(self, quiet: bool) -> None:
        self.count = 0
        self._shown = is_terminal(sys.stderr) and not (quiet and is_terminal(sys.stdout))

    def step(self) -> None:
        self.count += 1
        if self._shown and self.count % 50_000 == 0:
            print(f"\r\x1b[K{self.count:,} lines", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown and self.count >= 50_000:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Rows:
    """The rows to write; can be gone through more than once, as CSV must know all columns first."""

    def __init__(self, folder: Path, tables: tuple[str, ...], progress: Progress) -> None:
        from trainvitals.journal.reader import RunReader

        reader = RunReader(folder)
        self._reader = reader
        self._tables = tables
        self._progress = progress
        # A live run goes on while it is exported: every pass is over what there was when the first began.
        lines = {"events": reader.events, "alerts": reader.alerts}
        self._lines = {table: lines[table]() for table in tables if table in lines}
        self._extents = {table: reader.extent(table) for table in tables if table not in lines}

    def __iter__(self) -> Iterator[Row]:
        for row in self.quietly():
            self._progress.step()
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


def _write_jsonl(rows: Rows, file: BinaryIO) -> None:
    from trainvitals.journal.encoding import encode_line

    for row in rows:
        file.write(encode_line(row))


def _write_json(rows: Rows, file: BinaryIO) -> None:
    from trainvitals.journal.encoding import encode_line

    before = b"[\n"
    for row in rows:
        file.write(before + encode_line(row).rstrip(b"\n"))
        before = b",\n"
    file.write(b"[]\n" if before == b"[\n" else b"\n]\n")


_CSV_SPELLING = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}


def _write_csv(rows: Rows, file: BinaryIO) -> None:
    import csv
    import io
    import json

    columns = rows.columns()

    def cell(value: object) -> object:
        if isinstance(value, str):
            return _CSV_SPELLING.get(value) or defuse(value)
        return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, bool)) else value

    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    if columns:
        table.writerow({name: defuse(name) for name in columns})
    for row in rows:
        table.writerow({name: cell(value) for name, value in row.items()})
    text.detach()


def _write_parquet(rows: Rows, file: BinaryIO) -> None:
    from trainvitals.views.data.parquet import find_types, write_parquet

    write_parquet(find_types(rows.quietly()), rows, file)


_WRITERS: dict[str, Callable[[Rows, BinaryIO], None]] = {
    "json": _write_json,
    "jsonl": _write_jsonl,
    "csv": _write_csv,
    "parquet": _write_parquet,
}


class _Silence(Progress):
    """No counter: nobody waits at this terminal."""

    def __init__(self) -> None:
        self.count = 0
        self._shown = False


def write_table(folder: Path, table: str, format: str, file: BinaryIO) -> None:
    """One table of a run in one of FORMATS, for others than the command."""
    _WRITERS[format](Rows(folder, (table,), _Silence()), file)
