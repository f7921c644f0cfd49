"""The files of a run folder, for `SeriesReader`. Tested in tests/journal/test_reader.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainvitals.errors import RunNotFound
from trainvitals.journal import layout
from trainvitals.journal.cursor import Cursor, count_rows
from trainvitals.journal.layout import FileName
from trainvitals.journal.segment_reader import SealedSegments, SegmentUnreadable
from trainvitals.journal.segment_writer import Lines
from trainvitals.journal.series_reader import ALL_ROWS

SETTLED_NS = 2_000_000_000


class FolderFiles:
    """Implements `series_reader.JournalFiles`: a file that is no longer there is read as its segment, or the other way
    round, and a run that is removed meanwhile raises instead of looking shorter than it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.segments = SealedSegments(folder / layout.SEGMENTS)
        self._tails: dict[str, tuple[Cursor, Lines]] = {}
        self._listing: tuple[object, list[tuple[FileName, str, Path]]] = (None, [])

    def list(self) -> list[tuple[FileName, str, Path]]:
        """Every file of the journal, sealed ones included, in reading order."""
        stamp, known = self._listing
        now = self._stamp_of_listing()
        if now is None or now != stamp:
            known = layout.list_files(self.folder)
            self.require()
            self._listing = (now, known)
        return known

    def require(self) -> None:
        """Raises RunNotFound if the folder is gone."""
        if not self.folder.is_dir():
            raise RunNotFound(f"run {self.folder.name} was removed")

    def look_again(self) -> None:
        """Forget which files there are."""
        self._listing = (None, [])

    def read_tail(self, name: FileName, path: Path) -> bool:
        """Take in what was written since the last time; whether the file is there."""
        if path.name not in self._tails:
            self._tails[path.name] = (Cursor(path), Lines(name.table))
        cursor, lines = self._tails[path.name]
        cursor.feed(lines.add, restart=lines.clear)
        return not cursor.gone

    def tail(self, path: Path) -> Lines:
        """What was taken in."""
        return self._tails[path.name][1]

    def drop_tail(self, name: FileName) -> None:
        """It is sealed now."""
        self._tails.pop(name.jsonl, None)

    def count_rows(self, path: Path) -> int:
        """Of a file that is not sealed; ALL_ROWS if it is not there."""
        return count_rows(path, gone=ALL_ROWS)

    def rows(self, name: FileName, path: Path, sealed: bool, end: int) -> Iterator[dict[str, Any]]:
        """Rows of one file, wherever they are now."""
        if not sealed:
            cursor = Cursor(path)
            rows = cursor.read()
            if not cursor.gone:
                yield from rows[:end]
                return
        begun = False
        try:
            for row in self.segments.rows(self.folder / layout.SEGMENTS / f"{name.stem}.parquet", 0, end):
                begun = True
                yield row
        except SegmentUnreadable:
            self.require()
            if begun:
                raise
            # Nothing, if the segment is damaged and its file gone: `damage` counts that.
            yield from Cursor(self.folder / f"{name.stem}.jsonl").read()[:end]

    def _stamp_of_listing(self) -> object:
        """What changes when a file comes or goes; None if it may change again within a tick of the file system."""
        changed = []
        for place in (self.folder, self.folder / layout.SEGMENTS):
            try:
                changed.append(place.stat().st_mtime_ns)
            except FileNotFoundError:
                changed.append(0)
        return tuple(changed) if time.time_ns() - max(changed) > SETTLED_NS else None
