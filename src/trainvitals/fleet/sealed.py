"""Sealed files that came over the wire: how large they are once they are read, and their rows.

A Parquet file of a kilobyte can have millions of rows that are alike, or name one long text in each of them. So its
rows are counted before anything of it is read, its texts before they are copied, and what they come to is what a quota
is charged. Tested in tests/fleet/test_sealed.py.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainvitals.errors import JournalError
from trainvitals.fleet.wire import FileRange, WireError
from trainvitals.journal import extremes, footer, parquet
from trainvitals.journal.extremes import NO_STEP, Numbers

Found = TypeVar("Found")

MOST_MEMORY = 320 << 20
"""Bytes that the rows of one file may come to: two million values."""
ROW_BYTES = 160
"""Of a value among the rows for the engine, beside its name and text."""
VALUE_BYTES = 3
"""Of a value in a file of ours: what is charged at least."""
_MEMORY = "512MB"
"""For DuckDB, whatever the pages of a file unfold to."""

Word = tuple[int, str, str, str, int, int]
"""Row, name, label, text, step, time."""


@dataclass(frozen=True, slots=True)
class SealedSize:
    """What a sealed file comes to."""

    memory: int
    """Bytes of its rows for the engine."""
    charged: int
    """Bytes that count for a quota: those of the file, or what a file of ours with such rows would have."""


def measure(frame: FileRange) -> SealedSize:
    """Without holding its rows. Raises WireError: it is none of ours, or too large."""

    def ask(connection: Any, place: str) -> SealedSize:
        rows = footer.count_rows(place)
        _check(frame, rows, rows * ROW_BYTES)
        # The number in the footer is a claim: these are the rows that will be read.
        there, fewest = connection.execute(
            "SELECT coalesce(sum(rows), 0), coalesce(min(rows), 0) FROM (SELECT DISTINCT row_group_id, "
            f"row_group_num_rows AS rows FROM parquet_metadata({parquet.literal(place)}))"
        ).fetchone()
        if there != rows or fewest < 0:
            raise WireError(f"{frame.path} says that it has {rows:,} rows, and has {there:,}")
        names, texts = connection.execute(
            "SELECT coalesce(sum(strlen(name) + strlen(label)), 0), coalesce(sum(strlen(text)), 0) "
            f"FROM {parquet.scan([place])}"
        ).fetchone()
        memory = rows * ROW_BYTES + int(names) + int(texts)
        _check(frame, rows, memory)
        return SealedSize(memory, max(len(frame.data), rows * VALUE_BYTES + int(texts)))

    return _ask(frame, ask)


def read(frame: FileRange) -> tuple[Numbers, list[Word]]:
    """The rows of a file that was measured. Raises WireError."""

    def ask(connection: Any, place: str) -> tuple[Numbers, list[Word]]:
        numbers = extremes.read_numbers(connection, place)
        words = connection.execute(
            f"SELECT row, name, label, text, coalesce(step, {NO_STEP}), time FROM {parquet.scan([place])} "
            "WHERE value IS NULL AND text IS NOT NULL ORDER BY name, label, row"
        ).fetchall()
        return numbers, words

    return _ask(frame, ask)


def _check(frame: FileRange, rows: int, memory: int) -> None:
    if memory > MOST_MEMORY:
        raise WireError(
            f"{frame.path} has {rows:,} rows, of {memory >> 20:,} MB in memory; at most {MOST_MEMORY >> 20} MB are "
            "accepted in one file: rotate_size_mb sets the size of files"
        )


def _ask(frame: FileRange, ask: Callable[[Any, str], Found]) -> Found:
    import duckdb

    with _as_file(frame) as place:
        connection = parquet.connect(_MEMORY)
        try:
            return ask(connection, place)
        except (duckdb.Error, JournalError, ValueError, TypeError) as error:
            raise WireError(f"{frame.path} is not a segment of ours: {str(error).splitlines()[0][:200]}") from error
        finally:
            connection.close()


@contextlib.contextmanager
def _as_file(frame: FileRange) -> Iterator[str]:
    """A frame as a file that DuckDB may open."""
    with tempfile.TemporaryDirectory(prefix="trainvitals-") as place:
        (Path(place) / "frame.parquet").write_bytes(frame.data)
        folder = parquet.OpenFolder(Path(place))
        yield folder.locate("frame.parquet")
