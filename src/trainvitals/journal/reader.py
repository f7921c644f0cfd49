"""Reading runs: what every view uses. Works on the folder alone, of a live run, a dead one or a copy.

    run = open_run("latest")
    for series in run.series(["loss"], x="step", max_points=2000):
        series.x, series.y

A `RunReader` remembers what it parsed, so asking again of a live run costs only what is new. Every answer is of one
state of the folder, whatever is rotated, sealed or repaired while it is read: a file that is no longer there is read as
its segment, or the other way round, and a run that is removed meanwhile raises instead of looking shorter than it was.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from trainvitals.errors import RunNotFound
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout, media, patches, texts
from trainvitals.journal.benchmarks import list_benchmarks, read_benchmarks
from trainvitals.journal.contracts import Extent, MediaItem, Patch, Series, States, TextFile, TextKind, TextPart
from trainvitals.journal.cursor import Cursor, count_lines, count_rows
from trainvitals.journal.damage import Damage
from trainvitals.journal.documents.benchmark import Benchmark
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.rows import AlertRow, EventRow
from trainvitals.journal.documents.status import Status
from trainvitals.journal.downsample import pick
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.extremes import NO_STEP
from trainvitals.journal.follower import Follower, read_table
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.points import Axis, Bounds, Points, summarize, tail_points, thin
from trainvitals.journal.run_info import RunInfo, default_root, read_info
from trainvitals.journal.segment_reader import SealedSegments, SegmentUnreadable
from trainvitals.journal.segment_writer import Lines, labels_of, parse_labels
from trainvitals.journal.summaries import MetricSummary, merge

SETTLED_NS = 2_000_000_000
ALL_ROWS = 2**62

P = ParamSpec("P")
T = TypeVar("T")


def open_run(reference: str | Path, root: str | Path | None = None) -> RunReader:
    """A run by path, id, beginning of an id, name, or `latest`."""
    return RunReader(run_folder.find(reference, Path(root) if root is not None else default_root()))


@dataclass(slots=True)
class _Stream:
    """The files of one writer, in order: what is sealed, then what is still JSONL."""

    first: FileName
    parts: list[tuple[FileName, Path, bool]] = field(default_factory=list)  # name, path, sealed

    @property
    def rank(self) -> int | None:
        return self.first.rank

    @property
    def participant(self) -> Participant:
        return self.first.participant

    def attempts(self) -> list[int]:
        return sorted({name.attempt for name, _, _ in self.parts})

    def sealed(self, attempt: int | None = None) -> list[Path]:
        return [path for name, path, sealed in self.parts if sealed and attempt in (None, name.attempt)]


def _of_one_state(
    method: Callable[Concatenate[RunReader, P], T],
) -> Callable[Concatenate[RunReader, P], T]:
    """A read that begins again where a segment turns out to be damaged or gone, with what the folder holds then."""

    @functools.wraps(method)
    def read(reader: RunReader, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # Each time one more segment is known not to be readable, so there is an end to it.
        for _ in range(reader.count_files() + 3):
            try:
                return method(reader, *args, **kwargs)
            except SegmentUnreadable:
                reader.look_again()
        return method(reader, *args, **kwargs)

    return read


class RunReader:
    """One run folder. Not for use from several threads at once."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._tails: dict[str, tuple[Cursor, Lines]] = {}
        self._sealed = SealedSegments(self.folder / layout.SEGMENTS)
        self._media = media.MediaIndex(self.folder)
        self._listing: tuple[object, list[tuple[FileName, str, Path]]] = (None, [])

    # -- about the run

    @property
    def info(self) -> RunInfo:
        return read_info(self.folder)

    def statuses(self) -> list[Status]:
        """What the agent of each host reported last."""
        return run_folder.read_statuses(self.folder)

    def findings(self) -> FindingsFile | None:
        """What the diagnosis after its end found, if it was kept."""
        return run_folder.find_findings(self.folder)

    def stamp(self) -> object:
        """Equal to an earlier one as long as nothing was written since."""
        found = []
        for _, _, path in layout.list_files(self.folder):
            with contextlib.suppress(FileNotFoundError):  # sealed just now
                found.append((path.name, path.stat().st_size))
        return found

    @_of_one_state
    def damage(self) -> Damage:
        """What could not be understood, in all files: torn and foreign lines, Parquet files that cannot be read."""
        total = Damage()
        for table in self.tables():
            parts = [part for stream in self._streams(table) for part in stream.parts]
            self._sealed.check(path for _, path, sealed in parts if sealed)
            total += sum((self._tail(path).damage for _, path, sealed in parts if not sealed), Damage())
            stems = {name.stem for name, _, _ in parts}
            listed = {name.stem for name, suffix, _ in self._files() if name.table == table and suffix != layout.SIDE}
            total.files += len(listed - stems)
        for rejected in (self.folder / layout.SEGMENTS).glob("*.rejected"):
            if rejected.is_file():
                total += Damage(torn=count_lines(rejected))
        return total

    def tables(self) -> list[str]:
        """Which metric tables this run has."""
        return sorted({name.table for name, _, _ in self._files() if name.table in layout.METRIC_TABLES})

    def names(self, table: str = "training") -> list[str]:
        """Every metric name of the table, sorted."""
        return sorted({name for name, _ in self._table_keys(table)})

    def labels(self, table: str) -> list[dict[str, Any]]:
        """Of what the table speaks: its GPUs, hosts or processes."""
        return [parse_labels(text) for text in sorted({label for _, label in self._table_keys(table)})]

    def participants(self, attempt: int | None = None) -> list[Participant]:
        """Those that logged, in this attempt or in any, the lowest first."""
        listed = (name for name, _, _ in self._files() if name.table == "training")
        return sorted({name.participant for name in listed if attempt in (None, name.attempt)})

    @_of_one_state
    def _table_keys(self, table: str) -> set[tuple[str, str]]:
        streams = self._streams(table)
        self._sealed.learn_keys(path for stream in streams for path in stream.sealed())
        return {key for stream in streams for part in stream.parts for key in self._part_keys(*part)}

    # -- numbers

    @_of_one_state
    def series(
        self,
        names: Iterable[str],
        *,
        table: str = "training",
        x: Axis = "step",
        start: float | None = None,
        end: float | None = None,
        max_points: int | None = None,
        participants: Iterable[Participant] | None = None,
        all_attempts: bool = False,
    ) -> list[Series]:
        """The series of the given names, one per participant, GPU, host or process that has it.

        `x` is the step, the time (seconds since 1970) or the time since the run started; `start` and `end` are in the
        same unit, both included. Tables other than training have no steps: use time. Where a resumed run logged steps
        again, the newest attempt is shown unless `all_attempts`. A name that was never logged gives no series.
        """
        origin = self._origin() if x == "relative" else 0.0
        if x != "step" and table == "training" and (untimed := self._untimed_until()) is not None:
            start = max(untimed - origin, start if start is not None else -math.inf)
        wanted_names = list(dict.fromkeys(names))
        streams = self._streams(table)
        if participants is not None:
            wanted = set(participants)
            streams = [stream for stream in streams if stream.participant in wanted]
        self._sealed.learn_keys(path for stream in streams for path in stream.sealed())
        if max_points is not None:
            for stream in streams:
                for attempt in stream.attempts():
                    if sealed := stream.sealed(attempt):
                        self._sealed.learn_buckets(sealed, wanted_names)
        found = []
        for name in wanted_names:
            for stream in streams:
                for label in self._stream_labels(stream, name):
                    points = self._points(stream, table, name, label, x, origin, start, end, max_points, all_attempts)
                    if points.total:
                        found.append(_as_series(name, label, stream, points, x, origin, max_points))
        return found

    @_of_one_state
    def summary(self, table: str = "training", participant: Participant | None = None) -> dict[str, MetricSummary]:
        """Last, lowest and highest value of every metric with their steps, over all attempts.

        Of the lowest participant unless another is named; for tables with labels, of all of them together.
        """
        streams = self._streams(table)
        if streams and table == "training":
            chosen = participant or streams[0].participant
            streams = [stream for stream in streams if stream.participant == chosen]
        merged: dict[str, MetricSummary] = {}
        for stream in streams:
            for name, item in self._sealed.summary(stream.sealed()).items():
                merged[name] = merge(merged.get(name), item)
            for _, path, is_sealed in stream.parts:
                if not is_sealed:
                    for name, item in summarize(self._tail(path)):
                        merged[name] = merge(merged.get(name), item)
        return dict(sorted(merged.items()))

    def means(self, names: Iterable[str], participant: Participant) -> dict[str, float]:
        """The mean of the finite values of training metrics, over all attempts."""
        found = {}
        for series in self.series(names, participants=[participant], all_attempts=True):
            finite = series.y[np.isfinite(series.y)]
            if len(finite):
                found[series.name] = float(finite.mean())
        return found

    @_of_one_state
    def states(self, names: Iterable[str], *, table: str = "gpu") -> list[States]:
        """The words of the given names over time, one for each GPU, host or process that has them."""
        found = []
        for name in dict.fromkeys(names):
            for stream in self._streams(table):
                rows = list(self._sealed.changes(stream.sealed(), name))
                for _, path, sealed in stream.parts:
                    if not sealed:
                        lines = self._tail(path)
                        rows += [
                            (label, lines.times[row], text) for row, key, label, text in lines.texts if key == name
                        ]
                by_label: dict[str, list[tuple[float, str]]] = {}
                for label, micros, text in rows:
                    changes = by_label.setdefault(label, [])
                    if not changes or changes[-1][1] != text:
                        changes.append((micros / 1e6, text))
                found += [
                    States(name, labels_of(stream.first, label), stream.rank, sorted(changes))
                    for label, changes in sorted(by_label.items())
                ]
        return found

    @_of_one_state
    def newest_steps(self, count: int) -> list[tuple[int, float]]:
        """(step, seconds since 1970) of the newest lines of the lowest participant, oldest first. Only of what is not
        sealed yet: enough for the speed of a live run."""
        for stream in self._streams("training")[:1]:
            attempt = max(name.attempt for name, _, _ in stream.parts)
            lines = [self._tail(path) for n, path, sealed in stream.parts if not sealed and n.attempt == attempt]
            found = [pair for tail in lines for pair in zip(tail.steps[-count:], tail.times[-count:], strict=True)]
            return [(step, micros / 1e6) for step, micros in found if step != NO_STEP][-count:]
        return []

    @_of_one_state
    def first_steps(self) -> dict[int, int]:
        """The first step that each attempt of the lowest participant logged."""
        streams = self._streams("training")
        found = {
            attempt: step
            for stream in streams
            if stream.participant == streams[0].participant
            for attempt in stream.attempts()
            if (step := self._first_step_of(stream, attempt)) is not None
        }
        return dict(sorted(found.items()))

    def histogram_names(self) -> list[str]:
        """Those that were logged, imported or received, then those that `watch` measured."""
        return media.list_histogram_names(self.folder, self.media())

    def histograms(self, name: str) -> list[dict[str, Any]]:
        """Every histogram of one name, of the lowest participant that has any."""
        return media.read_histograms(self.folder, name, self.media())

    # -- texts

    def texts(self, kind: TextKind) -> list[TextFile]:
        """What the program printed, or the stack dumps, in order of time for each writer."""
        return texts.list_texts(self.folder, kind)

    def read_text(self, kind: TextKind, name: str, limit: int, after: int | None = None) -> TextPart:
        """The end of one text, at most `limit` bytes of it and not before byte `after`."""
        return texts.read_text(self.folder, kind, name, limit, after)

    def patches(self) -> list[Patch]:
        """What was changed in the run's repository, in order of the attempts of which anything is known."""
        return patches.list_patches(self.folder)

    # -- media

    def media(self) -> list[MediaItem]:
        """Pictures, tables, texts and histograms, in the order in which they were logged."""
        return self._media.list()

    # -- lines

    def events(self) -> list[EventRow]:
        """Everything that happened, in order of time."""
        return [EventRow.parse(line) for line in self._read_lines("events")]

    def alerts(self) -> list[AlertRow]:
        """Every change of every alert, in order of time."""
        return [AlertRow.parse(line) for line in self._read_lines("alerts")]

    def count_benchmarks(self) -> int:
        return len(list_benchmarks(self.folder))

    def benchmarks(self) -> list[Benchmark]:
        """By step and time."""
        return read_benchmarks(self.folder)

    def follow(self, tables: Sequence[str] = ("training",), *, from_end: bool = False) -> Follower:
        """New rows as they are written."""
        return Follower(self.folder, tuple(tables), from_end=from_end)

    def extent(self, table: str = "training") -> Extent:
        """How far the table is written now: `rows` gives the same again for it, while the run continues."""
        parts = (part for stream in self._list_streams(table) for part in stream.parts)
        return {name.stem: ALL_ROWS if sealed else count_rows(path, gone=ALL_ROWS) for name, path, sealed in parts}

    def rows(self, table: str = "training", extent: Extent | None = None) -> Iterator[dict[str, Any]]:
        """Every line of the table as it was written, file after file, sealed or not; as far as `extent`, if given.

        Adds `role`, `rank` and `attempt` where they are part of the file name.
        """
        for stream in self._list_streams(table):
            for name, path, sealed in stream.parts:
                end = ALL_ROWS if extent is None else extent.get(name.stem, 0)
                added = {
                    **(name.participant.labels if name.rank is not None else {}),
                    **({"attempt": name.attempt} if name.attempt > 1 else {}),
                }
                for row in self._file_rows(path, sealed, end):
                    yield {**row, **{key: value for key, value in added.items() if key not in row}}

    def _file_rows(self, path: Path, sealed: bool, end: int) -> Iterator[dict[str, Any]]:
        """Rows of one file, wherever they are now."""
        stem = path.name.removesuffix(".parquet").removesuffix(".jsonl")
        if not sealed:
            cursor = Cursor(path)
            rows = cursor.read()
            if not cursor.gone:
                yield from rows[:end]
                return
        begun = False
        try:
            for row in self._sealed.rows(self.folder / layout.SEGMENTS / f"{stem}.parquet", 0, end):
                begun = True
                yield row
        except SegmentUnreadable:
            self._require()
            if begun:
                raise
            # Nothing, if the segment is damaged and its file gone: `damage` counts that.
            yield from Cursor(self.folder / f"{stem}.jsonl").read()[:end]

    # -- files

    def count_files(self) -> int:
        """Files of the journal, sealed ones included."""
        return len(self._files())

    def look_again(self) -> None:
        """Forget which files there are."""
        self._listing = (None, [])

    def _require(self) -> None:
        if not self.folder.is_dir():
            raise RunNotFound(f"run {self.folder.name} was removed")

    def _files(self) -> list[tuple[FileName, str, Path]]:
        stamp, known = self._listing
        now = self._stamp_of_listing()
        if now is None or now != stamp:
            known = layout.list_files(self.folder)
            self._require()
            self._listing = (now, known)
        return known

    def _stamp_of_listing(self) -> object:
        """What changes when a file comes or goes; None if it may change again within a tick of the file system."""
        changed = []
        for place in (self.folder, self.folder / layout.SEGMENTS):
            try:
                changed.append(place.stat().st_mtime_ns)
            except FileNotFoundError:
                changed.append(0)
        return tuple(changed) if time.time_ns() - max(changed) > SETTLED_NS else None

    def _streams(self, table: str) -> list[_Stream]:
        """The files of the table, those that are not sealed read as far as they go: `_tail` has what they say, and
        sealing them now changes nothing for this read."""
        while True:
            streams = self._list_streams(table)
            if all(sealed or self._read_tail(name, path) for stream in streams for name, path, sealed in stream.parts):
                return streams
            self.look_again()  # sealed between listing and reading: it is a segment now

    def _list_streams(self, table: str) -> list[_Stream]:
        streams: dict[tuple[Any, ...], _Stream] = {}
        files = [item for item in self._files() if item[0].table == table and item[1] != layout.SIDE]
        sealed = {
            name.stem for name, suffix, path in files if suffix == ".parquet" and not self._sealed.is_damaged(path)
        }
        for name, suffix, path in files:
            is_sealed = suffix == ".parquet"
            if is_sealed != (name.stem in sealed):
                continue
            if is_sealed:
                self._tails.pop(f"{name.stem}.jsonl", None)
            stream = streams.setdefault(name.writer, _Stream(name))
            stream.parts.append((name, path, is_sealed))
        return sorted(streams.values(), key=lambda s: (s.participant, s.first.pid or 0, s.first.host or ""))

    def _read_tail(self, name: FileName, path: Path) -> bool:
        """Take in what was written since the last time; whether the file is there."""
        if path.name not in self._tails:
            self._tails[path.name] = (Cursor(path), Lines(name.table))
        cursor, lines = self._tails[path.name]
        cursor.feed(lines.add, restart=lines.clear)
        return not cursor.gone

    def _tail(self, path: Path) -> Lines:
        return self._tails[path.name][1]

    def _part_keys(self, name: FileName, path: Path, sealed: bool) -> Iterable[tuple[str, str]]:
        return self._sealed.keys(path) if sealed else self._tail(path).columns.keys()

    def _stream_labels(self, stream: _Stream, name: str) -> list[str]:
        return sorted({label for part in stream.parts for key, label in self._part_keys(*part) if key == name})

    # -- points

    def _points(
        self,
        stream: _Stream,
        table: str,
        name: str,
        label: str,
        x: Axis,
        origin: float,
        start: float | None,
        end: float | None,
        max_points: int | None,
        all_attempts: bool,
    ) -> Points:
        limits = {} if all_attempts or table != "training" else self._attempt_limits(stream)
        pieces: list[Points] = []
        for attempt in stream.attempts():
            parts = [part for part in stream.parts if part[0].attempt == attempt]
            below = limits.get(attempt)
            bounds = Bounds(x, origin, start, end, below)
            if sealed := stream.sealed(attempt):
                pieces.append(self._sealed.points(sealed, name, label, bounds, max_points))
            for _, path, is_sealed in parts:
                if not is_sealed:
                    pieces.append(bounds.cut(tail_points(self._tail(path), name, label)))
        if not pieces:
            return Points.whole(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        total = sum(piece.total for piece in pieces)
        if max_points is not None and any(len(piece.values) < piece.total for piece in pieces):
            # Some pieces came as extremes only: thin the others out alike, or they would fill the chart.
            pieces = [thin(piece, max(4, max_points * piece.total // total)) for piece in pieces]
        return Points(
            np.concatenate([piece.steps for piece in pieces]),
            np.concatenate([piece.times for piece in pieces]),
            np.concatenate([piece.values for piece in pieces]),
            total,
            sum(piece.nonfinite for piece in pieces),
        )

    def _attempt_limits(self, stream: _Stream) -> dict[int, int]:
        """For each attempt the step from which a later attempt takes over."""
        limits: dict[int, int] = {}
        ceiling: int | None = None
        for attempt in reversed(stream.attempts()):
            if ceiling is not None:
                limits[attempt] = ceiling
            first = self._first_step_of(stream, attempt)
            if first is not None:
                ceiling = first if ceiling is None else min(ceiling, first)
        return limits

    def _first_step_of(self, stream: _Stream, attempt: int) -> int | None:
        firsts = (self._first_step(*part) for part in stream.parts if part[0].attempt == attempt)
        return next((step for step in firsts if step is not None), None)

    def _first_step(self, name: FileName, path: Path, sealed: bool) -> int | None:
        if not sealed:
            steps = self._tail(path).steps
            return next((step for step in steps if step != NO_STEP), None)
        return self._sealed.first_step(path)

    # -- the rest

    def _origin(self) -> float:
        return parse_time(self.info.started) or 0.0

    def _untimed_until(self) -> float | None:
        """Only rows later than this have times, in seconds since 1970; None if all have."""
        imported = self.info.file.origin
        moment = parse_time(imported.untimed_until) if imported is not None else None
        return None if moment is None else moment + 1e-6

    def _read_lines(self, table: str) -> list[dict[str, Any]]:
        rows = [row for _, row in read_table(self.folder, table)]
        self._require()
        return rows


def _as_series(
    name: str, label: str, stream: _Stream, points: Points, x: Axis, origin: float, max_points: int | None
) -> Series:
    axis = points.steps.astype(np.float64) if x == "step" else points.times / 1e6 - origin
    values = points.values
    if len(axis) > 1 and bool((np.diff(axis) < 0).any()):  # a clock that jumped, steps in another order
        order = np.argsort(axis, kind="stable")
        axis, values = axis[order], values[order]
    if max_points is not None and len(values) > max_points:
        chosen = pick(values, max_points)
        axis, values = axis[chosen], values[chosen]
    labels = labels_of(stream.first, label)
    return Series(name, labels, stream.rank, axis, values, points.total, points.nonfinite)
