"""Runs of other trackers, read from their files: `trainvitals import`.

A *source* is a place where a tracker keeps runs: a folder, a file, an address. It finds runs, and each run gives
*pieces* of what it holds behind a position. Pieces are written to run folders by `Import`, in order, and the position
of each is saved with it: a second import of the same source, or one after a kill, goes on from there.

Adding a source is one module with `open_source(target)` and one row in `registry.py`.
Tested in tests/views/cli/test_import_runs.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from trainvitals.errors import TrainvitalsError
from trainvitals.journal.contracts import MediaKind
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.run import RUNNING, Origin
from trainvitals.journal.media import Media, OverLimit
from trainvitals.journal.segment_writer import Lines
from trainvitals.trackers.run_writing import About, RunWriter, TrackedRuns

LOOK_SECONDS = 1.0
"""Between two looks at a source that is followed."""


class ImportFailed(TrainvitalsError):
    """A source that cannot be read at all."""


# -- what a source gives


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """Something that happened."""

    event: str
    message: str
    time: float | None = None
    severity: str = "info"
    step: int | None = None
    data: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Medium:
    """A picture, histogram, table or text, as the file that it will be."""

    kind: MediaKind
    name: str
    data: bytes
    suffix: str
    step: int | None = None
    time: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else is known of it, such as its caption."""


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """How the run ended, as the tracker has it."""

    status: str
    time: float | None = None
    cause: Cause | None = None
    exit_code: int | None = None


@dataclass(slots=True, kw_only=True)
class Piece:
    """Some of what a run holds. Everything in it is written before its position is saved."""

    position: Mapping[str, Any]
    """Where the next piece begins, as JSON."""
    about: About | None = None
    """What is known of the run by now, where that has changed."""
    begins_attempt: bool = False
    """The training was started again before these rows, and logs steps that it has logged before."""
    lines: Lines | None = None
    """Rows; those without a time have `run_writing.NO_TIME`."""
    again: frozenset[str] = frozenset()
    """Metrics that are given whole, in this piece and the next ones: what the run has of them is not written again."""
    events: Sequence[SourceEvent] = ()
    media: Sequence[Medium] = ()
    printed: str = ""
    left_out: Counter[str] = field(default_factory=Counter)
    """What cannot be taken, by kind."""


class SourceRun(Protocol):
    """One run of a source. `place` and `key` identify it, today and in a year."""

    @property
    def place(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def title(self) -> str:
        """For people."""
        ...

    def about(self) -> About:
        """What is known of it without reading its rows."""
        ...

    def read(self, position: Mapping[str, Any]) -> Iterator[Piece]:
        """Everything that is there behind `position`, which is empty at first. May be called again when there may be
        more. Damage is passed over and counted, never raised."""
        ...

    def end(self) -> SourceEnd | None:
        """How it ended, or that it is running, as far as it was read; None if the tracker has not recorded either."""
        ...


class RunSource(Protocol):
    """A place where a tracker keeps runs."""

    unended: SourceEnd
    """What to make of a run without a recorded end when it is no longer read."""

    def runs(self) -> Iterable[SourceRun]:
        """All there are now. A run that was given before is given as the same object."""
        ...


# -- into run folders


@dataclass(slots=True)
class Imported:
    """What became of one run."""

    run: RunWriter
    title: str
    is_new: bool
    rows: int = 0
    """New ones."""
    values: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    error: str | None = None
    """Why it could not be read to its end."""


class Import:
    """One source into the runs below a root."""

    def __init__(
        self, tool: str, source: RunSource, runs: TrackedRuns, *, project: str | None = None, name: str | None = None
    ) -> None:
        self._tool = tool
        self._source = source
        self._runs = runs
        self._project = project
        self._name = name
        self._open: dict[tuple[str, str], _OpenRun] = {}

    def take(self, *, live: bool = False) -> Iterator[Imported]:
        """Write what is there and not yet written, run by run. With `live` a run that has grown is one that goes on:
        the agent watches it, and rows without a time get that of their arrival."""
        found = list(self._source.runs())
        name = self._name
        for item in found:
            known = self._open.get((item.place, item.key))
            if known is None:
                # One name for many runs would make them one in every list.
                wanted = name if name is None or len(found) == 1 else f"{name}/{item.title}"
                known = self._open[(item.place, item.key)] = self._begin(item, wanted)
            yield known.take(live=live)

    def _begin(self, item: SourceRun, name: str | None) -> _OpenRun:
        origin = Origin(tool=self._tool, place=item.place, key=item.key)
        is_new = self._runs.find(origin) is None

        def describe(about: About) -> About:
            # A run that is known keeps the name that it was given, perhaps by another `--name`.
            return replace(about, name=name or (about.name if is_new else ""), project=self._project or about.project)

        return _OpenRun(item, self._runs.open(origin, describe(item.about())), is_new, describe)

    def settle(self, *, stopped: bool = False) -> None:
        """Write the status of each run that is not followed now. `stopped` if no run will be followed any more."""
        for item in self._open.values():
            item.settle(self._source.unended, stopped=stopped)

    @property
    def look_seconds(self) -> float:
        """Between two looks at a source that is followed. One that costs somebody else something has its own."""
        found: float = getattr(self._source, "look_seconds", LOOK_SECONDS)
        return found

    @property
    def goes_on(self) -> bool:
        """Whether a run may still grow, or the first one come."""
        return not self._open or any(not item.is_over for item in self._open.values())

    def tend(self) -> None:
        """Start the agent again if it died."""
        for item in self._open.values():
            if item.is_watched:
                item.run.look_after_agent()
                return


class _OpenRun:
    """A run that is being imported."""

    def __init__(self, item: SourceRun, run: RunWriter, is_new: bool, describe: Callable[[About], About]) -> None:
        self.run = run
        self.is_watched = False
        self.is_over = False
        self._item = item
        self._is_new = is_new
        self._describe = describe
        self._media: Media | None = None

    def take(self, *, live: bool) -> Imported:
        found = Imported(self.run, self._item.title, self._is_new)
        self._is_new = False
        before = self.run.rows
        pending: Piece | None = None
        try:
            for piece in self._item.read(self.run.origin.position):
                self._write(piece, found, live)
                self.run.save(piece.position, caught_up=False)
                pending = piece
        except (OSError, ImportFailed) as error:  # of this run alone: a file that is gone, a database that is locked
            found.error = str(error)
        if pending is not None and found.error is None:
            self.run.save(pending.position)
        found.rows = self.run.rows - before
        self._note_end()
        return found

    def _write(self, piece: Piece, found: Imported, live: bool) -> None:
        if live and not self.is_watched and piece.lines is not None and len(piece.lines):
            self.is_watched = True
            self.run.watch()
        if piece.about is not None:
            self.run.describe(self._describe(piece.about))
        if piece.begins_attempt:
            self.run.begin_attempt()
        if piece.lines is not None and len(piece.lines):
            self.run.expect_again(piece.again)
            found.values += piece.lines.count
            self.run.append_block(piece.lines, arrived=time.time() if live else None)
        for event in piece.events:
            self.run.event(
                event.event, event.message, when=event.time, severity=event.severity, step=event.step, data=event.data
            )
        if piece.printed:
            self.run.print(piece.printed)
        left_out = piece.left_out + Counter()
        for medium in piece.media:
            try:
                self._keep(medium)
            except OverLimit:
                left_out[f"{medium.kind}s beyond the limit of a run"] += 1
        if left_out:
            found.left_out += left_out
            self.run.describe_origin(left_out={**(Counter(self.run.origin.left_out) + left_out)})

    def _keep(self, medium: Medium) -> None:
        if self._media is None:
            self._media = Media(self.run.folder, skip_known=True)
        self._media.write(
            medium.kind, medium.name, medium.data, medium.suffix, step=medium.step, time=medium.time, **medium.facts
        )

    def _note_end(self) -> None:
        end = self._item.end()
        was_over, self.is_over = self.is_over, end is not None and end.status != RUNNING
        if end is not None and self.is_over and (not was_over or self.is_watched):
            self._end(end)

    def settle(self, unended: SourceEnd, *, stopped: bool) -> None:
        if self.is_over or (self.is_watched and not stopped):
            return
        end = self._item.end() or unended
        if self.is_watched:  # it may go on, but nobody will notice here when it ends
            self.run.event("import_stopped", "no longer followed; its tracker has not recorded an end")
            end = SourceEnd("finished")
        if end.status == RUNNING:
            self.run.close()
        else:
            self._end(end)

    def _end(self, end: SourceEnd) -> None:
        self.is_watched = False
        self.run.end(end.status, end.cause, when=end.time, exit_code=end.exit_code)
