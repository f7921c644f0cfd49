"""Rows and numbers of a CSV table that another program wrote. Tested in tests/views/cli/test_detect.py."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import math
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from trainvitals.errors import TrainvitalsError
from trainvitals.trackers.cells import find_separator, is_missing, read_number

_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
_BYTE_ORDER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@contextmanager
def open_table(name: str) -> Iterator[tuple[TextIO, str]]:
    """The file, or standard input for `-`, and what to call it in an error."""
    if name == "-":
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8-sig", errors="replace", newline="")
        yield sys.stdin, "standard input"
        return
    try:
        with Path(name).open("rb") as start:
            encoding = "utf-16" if start.read(2) in _BYTE_ORDER_MARKS else "utf-8-sig"
        with Path(name).open(encoding=encoding, errors="replace", newline="") as file:
            yield file, name
    except OSError as error:
        raise TrainvitalsError(f"cannot read {name}: {error.strerror}") from error


def read_rows(lines: Iterable[str], name: str) -> Iterator[list[str]]:
    """The header, then every row that is not empty; a decimal comma, where no comma separates the cells, is a point.
    Comments before the header are skipped. Raises TrainvitalsError if there is no header."""
    empty = True
    try:
        rest = iter(lines)
        first, rest = _find_header(rest)
        separator = find_separator(first)
        for row in csv.reader(itertools.chain([first], rest), delimiter=separator):
            if not row:
                continue
            if empty:
                row = [cell.strip() for cell in row]
                if all(read_number(cell) is not None for cell in row):
                    raise TrainvitalsError(f"{name} has no header", hint="the first line must name the columns")
            elif separator != ",":
                row = [_point(cell) if "," in cell else cell for cell in row]
            yield row
            empty = False
    except csv.Error as error:
        raise TrainvitalsError(f"{name} is not CSV: {error}") from error
    if empty:
        raise TrainvitalsError(f"{name} is empty", hint="the first line must name the columns")


def _find_header(lines: Iterator[str]) -> tuple[str, Iterator[str]]:
    """The line that names the columns, and those behind it. What begins with # is a comment, or the header itself if
    numbers follow at once, as numpy.savetxt writes it."""
    first = _next_line(lines)
    while first.startswith("#"):
        following = _next_line(lines)
        cells = following.split(find_separator(first))
        if following and read_number(cells[0]) is not None:
            return first.lstrip("# "), itertools.chain([following], lines)
        first = following
    return first, lines


def _next_line(lines: Iterator[str]) -> str:
    """The next that is not empty."""
    return next((line for line in lines if line.strip()), "")


def _point(cell: str) -> str:
    return cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell.strip()) else cell


def parse_number(cell: str) -> float | None:
    """NaN for a missing value, None for what is not a number."""
    return math.nan if is_missing(cell) else read_number(cell)
