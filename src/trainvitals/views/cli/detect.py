"""`trainvitals detect`: the unusual rows of any table of numbers, each as soon as it is read."""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from trainvitals.errors import nearest
from trainvitals.safe_text import csv_cell, one_line
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import Parser, UsageError
from trainvitals.views.cli.terminal import is_terminal, print_json
from trainvitals.views.data.csv_rows import open_table, parse_number, read_rows

DESCRIPTION = (
    "Find anomalies in a column of a CSV file. Prints the rows where one begins as CSV, with the kind of anomaly and a "
    "score. Every row is judged by the rows before it only, so the result is the same for a file and for a live stream."
)

EXAMPLES = """
trainvitals detect --csv metrics.csv --time timestamp --value loss
tail -f -n +1 metrics.csv | trainvitals detect --csv - --value latency_ms
trainvitals export latest --format csv -o - | trainvitals detect --csv - --value loss --json
"""
KIND = "anomaly"
SCORE = "score"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--csv", metavar="FILE", required=True, help="table with a header; - for standard input")
    parser.add_argument("--value", metavar="COLUMN", help="column to check (default: the only numeric one)")
    parser.add_argument("--time", metavar="COLUMN", help="column with the time or step, printed first")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row instead of CSV")


def execute(arguments: argparse.Namespace) -> int:
    with open_table(arguments.csv) as (file, name):
        _detect(file, name, arguments)
    return 0


def _detect(file: TextIO, name: str, arguments: argparse.Namespace) -> None:
    from trainvitals.analysis.anomalies import AnomalyDetector

    # A line at a time: reading ahead would hold back what a stream already has.
    rows = read_rows(iter(file.readline, ""), name)
    header = next(rows)
    row = next(rows, None)
    value = _find_column(header, arguments.value, "--value") if arguments.value else _only_numbers(header, row)
    time = _find_column(header, arguments.time, "--time") if arguments.time else None
    order = (
        [time, *(place for place in range(len(header)) if place != time)] if time is not None else range(len(header))
    )
    write = _writer([header[place] for place in order], as_json=arguments.json)
    detector = AnomalyDetector()
    unreadable = 0
    while row is not None:
        number = parse_number(row[value]) if value < len(row) else math.nan
        unreadable += number is None
        found = detector.add(math.nan if number is None else number)
        if found is not None:
            cells = [row[place] if place < len(row) else "" for place in order]
            write([*cells, found.kind, found.score])
        row = next(rows, None)
    if unreadable:
        print_line(f"{unreadable:,} of {detector.seen:,} values of '{header[value]}' are not numbers: skipped")


def _find_column(header: Sequence[str], wanted: str, flag: str) -> int:
    if wanted not in header:
        raise UsageError(
            f"no column '{wanted}' for {flag}{nearest(wanted, header)}", hint=f"columns: {', '.join(header)}"
        )
    return header.index(wanted)


def _only_numbers(header: Sequence[str], row: Sequence[str] | None) -> int:
    found = [place for place, cell in enumerate(row or ()) if parse_number(cell) is not None and place < len(header)]
    if len(found) != 1:
        raise UsageError(f"{len(found)} columns have numbers: choose one", hint=f"such as: --value '{header[-1]}'")
    return found[0]


def _quote_formula(cell: Any) -> str:
    text = str(cell)
    return text if parse_number(text) is not None else csv_cell(text)


def _writer(header: Sequence[str], as_json: bool) -> Callable[[Sequence[Any]], None]:
    """Writes a row as soon as it is given."""
    columns = [*header, KIND, SCORE]
    if as_json:

        def write_json(cells: Sequence[Any]) -> None:
            print_json(dict(zip(columns, cells, strict=True)), indent=False)
            sys.stdout.flush()

        return write_json
    # A file gets the cells as they were, but no formula.
    clean = one_line if is_terminal(sys.stdout) else _quote_formula
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")

    def write(cells: Sequence[Any]) -> None:
        table.writerow([f"{cell:.3g}" if isinstance(cell, float) else clean(cell) for cell in cells])
        sys.stdout.write(buffer.getvalue())
        sys.stdout.flush()
        buffer.seek(0)
        buffer.truncate()

    write(columns)
    return write
