"""Whether a gateway's copy of a run is the run."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from honest_gateway import Copy

from trainvitals.fleet import wire
from trainvitals.journal import layout
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.reader import RunReader

TABLES = (*layout.METRIC_TABLES, *layout.LINE_TABLES)


def list_shipped(folder: Path) -> dict[str, bytes]:
    """Every file that is to be shipped; of lines the whole ones."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        kind = wire.kind_of(name)
        if kind is not None and path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            found[name] = data[: data.rfind(b"\n") + 1] if kind == "lines" else data
    return {name: data for name, data in found.items() if data}


def find_differences(folder: Path, copy: Copy, but: Collection[str] = ()) -> list[str]:
    """Files of the run that the copy does not have, byte by byte, and tables whose rows are others there."""
    wrong = []
    for name, data in list_shipped(folder).items():
        place = copy.folder / name
        is_same = place.is_file() and place.read_bytes() == data
        if not is_same and name not in but:
            wrong.append(name)
    for path in (copy.folder / layout.SEGMENTS).glob("*.parquet"):
        (copy.folder / f"{path.stem}.jsonl").unlink(missing_ok=True)  # what had come as lines before
    mine, theirs = RunReader(folder), RunReader(copy.folder)
    return wrong + [f"rows of {table}" for table in TABLES if _read(mine, table) != _read(theirs, table)]


def _read(reader: RunReader, table: str) -> list[dict[str, Any]]:
    """A segment has the time of a row as a number."""
    return [{**row, "timestamp": parse_time(row["timestamp"])} for row in reader.rows(table)]
