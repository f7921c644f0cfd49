"""Images, tables, texts and histograms of a run, for its mirrors: what is new since a mirror looked last.

How far a mirror is belongs to its state, and is saved with it. A file that a tracker's client has announced and not yet
uploaded is waited for until the run has ended.
Tested in tests/exporters/test_mirrored_media.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from trainvitals.errors import JournalError
from trainvitals.exporters.mirroring import MirrorState
from trainvitals.exporters.rows import RunDescription
from trainvitals.journal import layout
from trainvitals.journal.contracts import MediaItem, MediaKind
from trainvitals.journal.cursor import Cursor
from trainvitals.journal.encoding import number, parse_time
from trainvitals.journal.histograms import Histogram, from_other
from trainvitals.journal.identity import Participant
from trainvitals.journal.media import MediaIndex
from trainvitals.plain_json import parse_object

PIECE_BYTES = 8 << 20
"""Of media at a time, while the run goes on."""
MEDIUM = "trainvitals/medium"
"""In a line for a client, in the place of a number: the kind of a medium, with where it is."""
HISTOGRAM_BYTES = 1 << 20
"""Of a file of histograms, at a time."""


class MirroredMedium(NamedTuple):
    """An image, a table or a text."""

    kind: MediaKind
    name: str
    """With the participant before it, unless it is the first rank."""
    step: int
    time: float
    file: str
    """Below `media/`."""
    data: bytes
    caption: str

    @property
    def suffix(self) -> str:
        return self.file.rpartition(".")[2]

    def as_table(self) -> tuple[list[str], list[list[Any]]]:
        """Columns and rows; both empty for what is no table."""
        try:
            found = parse_object(self.data)
            columns, rows = found["columns"], found["data"]
            return [str(column) for column in columns], [list(row) for row in rows]
        except (ValueError, TypeError, KeyError):
            return [], []


class MirroredHistogram(NamedTuple):
    name: str
    step: int
    time: float
    histogram: Histogram


class MediaNews:
    """Of one run, for one mirror. What was taken counts once the state is saved."""

    def __init__(self, run: RunDescription, state: MirrorState) -> None:
        self._folder = run.folder
        self._state = state
        self._index = MediaIndex(run.folder)

    def take(self, *, last: bool = False) -> Iterator[MirroredMedium]:
        """Images, tables and texts; `last` for all there are."""
        done: int = self._state.values.get("media", 0)
        size = 0
        for item in self._index.list()[done:]:
            if item.kind != "histogram":
                try:
                    data = item.read()
                except JournalError:
                    if not last:
                        return
                else:
                    size += len(data)
                    yield _describe(item, data)
            done += 1
            self._state.values["media"] = done
            if size >= PIECE_BYTES and not last:
                return

    def take_histograms(self, *, last: bool = False) -> Iterator[MirroredHistogram]:
        """Those that were logged, and those of `watch`."""
        done: dict[str, int] = self._state.values.setdefault("histograms", {})
        for path in sorted((self._folder / layout.MEDIA).glob("histograms.*.jsonl")):
            cursor = Cursor(path, done.get(path.name, 0))
            subject = path.name.removeprefix("histograms.").removesuffix(".jsonl").replace("role-", "")
            prefix = "" if subject == "rank0" else f"{subject}/"
            while rows := cursor.read(HISTOGRAM_BYTES):
                for row in rows:
                    histogram = from_other(row)
                    if histogram is not None:
                        moment = parse_time(row.get("timestamp")) or 0.0
                        step = number(row.get("step"))
                        yield MirroredHistogram(f"{prefix}{row.get('name', '')}", int(step or 0), moment, histogram)
                if not last:
                    break
            done[path.name] = cursor.offset


def _describe(item: MediaItem, data: bytes) -> MirroredMedium:
    who = item.participant
    prefix = "" if who == Participant() else f"{who.file_part.replace('role-', '')}/"
    caption = item.facts.get("caption")
    return MirroredMedium(
        item.kind,
        f"{prefix}{item.name}",
        item.step or 0,
        item.time or 0.0,
        item.file,
        data,
        caption if isinstance(caption, str) else "",
    )
