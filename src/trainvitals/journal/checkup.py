"""Looking a run's files over: what is damaged, and mending what can be mended.

A segment whose JSONL file is still there is sealed again, a side table is made again from its segment, and what a
killed sealer left behind is removed. Nothing else is ever changed: a damaged segment stays where it is, for somebody
who knows more than this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainvitals.errors import JournalError
from trainvitals.journal import extremes, layout, parquet, segment_writer
from trainvitals.journal.cursor import Cursor
from trainvitals.journal.footer import Oversized
from trainvitals.journal.parquet import OpenFolder


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is not as it should be."""

    file: str
    """Its path within the run folder."""
    text: str
    """What is wrong with it."""
    mend: Callable[[], object] | None = None
    """Puts it right; None if that cannot be done."""


def find_faults(folder: Path) -> Iterator[Fault]:
    """Everything that is wrong with the files of a run. Reads all of them, so it may take a while."""
    files = {(name.stem, suffix): path for name, suffix, path in layout.list_files(folder)}
    for (stem, suffix), path in files.items():
        if suffix == ".parquet":
            yield from _check_segment(folder, path, files.get((stem, ".jsonl")))
        elif suffix == ".jsonl":
            yield from _check_lines(folder, path)
    for place in segment_writer.find_left_over(folder / layout.SEGMENTS):
        yield Fault(
            f"{layout.SEGMENTS}/{place.name}",
            "left behind by a killed process",
            functools.partial(segment_writer.remove_left_over, place),
        )


def _check_lines(folder: Path, path: Path) -> Iterator[Fault]:
    cursor = Cursor(path)
    cursor.read()
    if cursor.damage:
        yield Fault(path.relative_to(folder).as_posix(), f"{cursor.damage}; all other lines are read")


def _check_segment(folder: Path, path: Path, jsonl: Path | None) -> Iterator[Fault]:
    import duckdb

    side = segment_writer.side_of(path)
    name, side_name = (f"{layout.SEGMENTS}/{file.name}" for file in (path, side))
    connection, opened = parquet.connect(), OpenFolder(path.parent)
    try:
        try:
            numbers = extremes.read_numbers(connection, opened.locate(path.name))
            connection.execute(f"SELECT sum(hash(t)) FROM {parquet.scan([opened.locate(path.name)])} t").fetchall()
        except (duckdb.Error, Oversized):
            lost = ", and its JSONL file is missing: its data is lost"
            yield Fault(name, f"cannot be read{'' if jsonl else lost}", _seal_again(path, jsonl))
            return
        try:
            known = extremes.read_digest(connection, opened.locate(side.name))
            right = extremes.is_right(connection, numbers, opened.locate(side.name))
        except (duckdb.Error, OSError, Oversized):
            text = "cannot be read" if side.exists() else "is missing"
            yield Fault(side_name, text, lambda: segment_writer.rebuild_side(path, side))
            return
        if known is not None and known != extremes.digest(path):
            text = "or its side table changed after sealing: its numbers may be wrong"
            yield Fault(name, text, _seal_again(path, jsonl))
        elif known is None or not right:
            yield Fault(side_name, "does not match its segment", lambda: segment_writer.rebuild_side(path, side))
    finally:
        connection.close()


def _seal_again(path: Path, jsonl: Path | None) -> Callable[[], object] | None:
    if jsonl is None:
        return None
    return lambda: segment_writer.seal(jsonl, keep=True, mode=path.stat().st_mode & 0o777)


def mend(fault: Fault) -> bool:
    """Whether the fault is gone now."""
    if fault.mend is None:
        return False
    try:
        fault.mend()
    except (OSError, JournalError):
        return False
    return True
