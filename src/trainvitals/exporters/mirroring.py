"""What the mirrors of runs in other trackers share: numbers of a row, the state kept in the run folder, the config.

A mirror remembers in `exports/<name>-<target>.json` of the run folder under which id the run is known there and which
rows it has written, so that it continues after a crash, and no row is sent twice.
Tested in tests/exporters/test_mirroring.py.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.exporters.rows import RunDescription, RunRow
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, number, parse_time
from trainvitals.journal.identity import Participant, gpu_number
from trainvitals.journal.layout import FileName
from trainvitals.journal.listening import Position, Positions

FOLDER = "exports"
_NEVER_VALUES = frozenset({"timestamp", "step"})


class MirrorBusy(Exception):
    """Another process writes this mirror now."""


class MirrorState:
    """One mirror of one run, locked while it is open."""

    def __init__(self, folder: Path, name: str, target: str) -> None:
        """Raises MirrorBusy, or OSError where the run folder cannot be written."""
        place = run_folder.make_within(folder, FOLDER)
        digest = hashlib.sha256(target.encode()).hexdigest()[:8]
        self._path = place / f"{name}-{digest}.json"
        self._mode = run_folder.file_rights(place)
        self._lock = os.open(
            self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | runtime.NO_LINK, self._mode
        )
        if not runtime.try_lock(self._lock):
            os.close(self._lock)
            raise MirrorBusy(f"another process sends this run to {name} now")
        self.values: dict[str, Any] = {}
        """What the mirror itself has to remember: an id, a file."""
        self.revert()

    def revert(self) -> None:
        """Back to what was saved last."""
        known = runtime.read_json(self._path) or {}
        values = known.get("values")
        self.values = values if isinstance(values, dict) else {}
        self._written = Positions.parse(known.get("written"))

    def select_new(self, rows: Sequence[RunRow]) -> list[RunRow]:
        """Those that are not written yet."""
        return [row for row in rows if self._is_new(row)]

    def _is_new(self, row: RunRow) -> bool:
        file = _parse_stem(row.file)
        position = self._written.get(file) if file is not None else Position()
        return position is not None and (row.line == 0 or row.line > (position.lines or 0))

    def mark_written(self, rows: Sequence[RunRow]) -> None:
        """In memory, until `save`."""
        for row in {row.file: row for row in rows if self._is_new(row)}.values():
            file = _parse_stem(row.file)
            if file is not None and row.line:  # the number of a line behind the end of a closed file is not known
                self._written.advance(file, Position(0, row.line))

    def save(self) -> None:
        content = {"values": self.values, "written": self._written.as_json()}
        runtime.write_atomically(self._path, encode_line(content), self._mode)

    @property
    def spool(self) -> Path:
        """For rows that the other side may lose."""
        return self._path.with_suffix(".sent.jsonl")

    @property
    def mode(self) -> int:
        """Rights of a file beside it."""
        return self._mode

    @property
    def lock(self) -> int:
        """The descriptor that is locked."""
        return self._lock

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@functools.lru_cache(maxsize=256)
def _parse_stem(stem: str) -> FileName | None:
    parsed = layout.parse_name(f"{stem}.jsonl")
    return parsed[0] if parsed is not None else None


class RunNews:
    """run.json, read again only when it has changed."""

    def __init__(self, run: RunDescription) -> None:
        self._run = run
        self._changed = -1

    def look(self) -> RunFile | None:
        """The run as it is now; None if nothing has changed since the last look."""
        try:
            changed = (self._run.folder / layout.RUN_FILE).stat().st_mtime_ns
        except OSError:
            changed = 0
        if changed == self._changed:
            return None
        self._changed = changed
        return self._run.read_about()


# -- rows


def read_numbers(row: RunRow) -> dict[str, float]:
    """What a row measured: neither labels nor texts."""
    labels = layout.LABEL_KEYS.get(row.table, ())
    return {
        name: value
        for name, item in row.values.items()
        if name not in _NEVER_VALUES and name not in labels and (value := number(item)) is not None
    }


def read_time(row: RunRow) -> float:
    """In seconds since 1970; every row has its time."""
    return parse_time(row.values["timestamp"]) or 0.0


def read_step(row: RunRow) -> int | None:
    step = row.values.get("step")
    return step if type(step) is int else None


def read_subject(row: RunRow, between: str = "") -> str:
    """Whom the row is about, as a part of a name: `gpu0`, `rank3`; empty for the lowest rank and the host."""
    if row.table == "gpu":
        return f"gpu{between}{gpu_number(row.values).replace(':', '.')}"
    if row.table in ("training", "process"):
        participant = Participant(row.role, row.rank or 0) if row.table == "training" else Participant.of(row.values)
        return "" if participant == Participant() else participant.file_part.replace("role-", "")
    if row.table == "openmetrics":
        labels = (str(value) for key, value in row.values.items() if key != "timestamp" and isinstance(value, str))
        return ".".join(labels)
    return ""
