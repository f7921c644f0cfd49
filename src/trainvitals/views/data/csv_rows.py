"""Rows and numbers of a CSV table that another program wrote. Tested in tests/views/cli/test_detect.py."""

from __future__ import annotations

import csv
import itertools
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from trainvitals.errors import TrainvitalsError
from trainvitals.trackers.cells import find_separator, is_missing, read_number


@contextmanager
def open_table(name: str) -> Iterator[tuple[TextIO, str]]:
    """The file, or standard input for `-`, and what to call it in an error."""
    if name == "-":
        yield sys.stdin, "standard input"
        return
    try:
        with Path(name).open(encoding="utf-8-sig", errors="replace", newline="") as file:
            yield file, name
    except OSError as error:
        raise TrainvitalsError(f"cannot read {name}: {error.strerror}") from error


def read_rows(lines: Iterable[str], name: str) -> Iterator[list[str]]:
    """The header, then every row that is not empty. Raises TrainvitalsError if there is no header."""
    empty = True
    try:
        rest = iter(lines)
        first = next((line for line in rest if line.strip()), "")
        for row in csv.reader(itertools.chain([first], rest), delimiter=find_separator(first)):
            if row:
                yield [cell.strip() for cell in row] if empty else row
                empty = False
    except csv.Error as error:
        raise TrainvitalsError(f"{name} is not CSV: {error}") from error
    if empty:
        raise TrainvitalsError(f"{name} is empty", hint="the first line must name the columns")


def parse_number(cell: str) -> float | None:
    """NaN for a missing value, None for what is not a number."""
    return math.nan if is_missing(cell) else read_number(cell)
