"""The numbers of a run: from files of lines and from sealed segments, wherever these are kept.

`JournalFiles` gives the files: those of a folder (`folder_files`), or those of a fleet's store. What is made of them is
the same, to the last bit. Tested in tests/journal/test_reader.py.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np

from trainvitals.journal import layout
from trainvitals.journal.contracts import Extent, Series, States
from trainvitals.journal.downsample import pick
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.extremes import NO_STEP
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.points import Axis, Bounds, Points, summarize, tail_points, thin
from trainvitals.journal.run_info import RunInfo
from trainvitals.journal.segment_reader import SegmentUnreadable
from trainvitals.journal.segment_writer import Lines, labels_of, parse_labels
from trainvitals.journal.summaries import MetricSummary, merge

ALL_ROWS = 2**62

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound="SeriesReader")


class Segments(Protocol):
    """Closed files. Every method raises SegmentUnreadable when one turns out to be damaged or gone."""

    def is_damaged(self, path: Path) -> bool: ...

    def check(self, paths: Iterable[Path]) -> None:
        """Look at each, as far as it takes to notice one that was cut off."""

    def learn_keys(self, paths: Iterable[Path]) -> None:
        """What is in several of them, with one question."""

    def learn_buckets(self, paths: Sequence[Path], names: Iterable[str]) -> None:
        """The side tables of several names, with one question."""

    def keys(self, path: Path) -> frozenset[tuple[str, str]]:
        """Every (name, label)."""
        ...

    def first_step(self, path: Path) -> int | None:
        """The step of the first line that has one."""
        ...

    def points(self, paths: Sequence[Path], name: str, label: str, bounds: Bounds, max_points: int | None) -> Points:
        """Of one series: the extremes of each bucket where these fill a chart of `max_points`, else every value."""
        ...

    def summary(self, paths: Sequence[Path]) -> dict[str, MetricSummary]:
        """What every metric came to; `paths` are in order of writing."""
        ...

    def changes(self, paths: Sequence[Path], name: str) -> list[tuple[str, int, str]]:
        """(label, microseconds, text) of every line whose text under `name` is another than in the line before."""
        ...


class JournalFiles(Protocol):
    """The files of one run. A path only names one of them."""

    @property
    def segments(self) -> Segments: ...

    def list(self) -> list[tuple[FileName, str, Path]]:
        """Name, suffix and path of each, in reading order."""
        ...

    def look_again(self) -> None:
        """Forget which files there are."""

    def read_tail(self, name: FileName, path: Path) -> bool:
        """Take in what was written to a file that is not sealed since the last time; whether it is there."""
        ...

    def tail(self, path: Path) -> Lines:
        """What was taken in."""
        ...

    def drop_tail(self, name: FileName) -> None:
        """It is sealed now."""

    def count_rows(self, path: Path) -> int:
        """Of a file that is not sealed; ALL_ROWS if it is not there."""
        ...

    def rows(self, name: FileName, path: Path, sealed: bool, end: int) -> Iterator[dict[str, Any]]:
        """The rows of one file up to the given one, wherever they are now."""
        ...


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


def of_one_state(
    method: Callable[Concatenate[R, P], T],
) -> Callable[Concatenate[R, P], T]:
    """A read that begins again where a segment turns out to be damaged or gone, with what the folder holds then."""

    @functools.wraps(method)
    def read(reader: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # Each time one more segment is known not to be readable, so there is an end to it.
        for _ in range(reader.count_files() + 3):
            try:
                return method(reader, *args, **kwargs)
            except SegmentUnreadable:
                reader.files.look_again()
        return method(reader, *args, **kwargs)

    return read


class SeriesReader(ABC):
    """Answers of one state of the files. Not for use from several threads at once."""

    def __init__(self, files: JournalFiles) -> None:
        self.files = files

    @property
    @abstractmethod
    def info(self) -> RunInfo:
        """The run at a glance."""

    def count_files(self) -> int:
        """Files of the journal, sealed ones included."""
        return len(self.files.list())

    def tables(self) -> list[str]:
        """Which metric tables this run has."""
        return sorted({name.table for name, _, _ in self.files.list() if name.table in layout.METRIC_TABLES})

    def names(self, table: str = "training") -> list[str]:
        """Every metric name of the table, sorted."""
        return sorted({name for name, _ in self._table_keys(table)})

    def labels(self, table: str) -> list[dict[str, Any]]:
        """Of what the table speaks: its GPUs, hosts or processes."""
        return [parse_labels(text) for text in sorted({label for _, label in self._table_keys(table)})]

    def participants(self, attempt: int | None = None) -> list[Participant]:
        """Those that logged, in this attempt or in any, the lowest first."""
        listed = (name for name, _, _ in self.files.list() if name.table == "training")
        return sorted({name.participant for name in listed if attempt in (None, name.attempt)})

    @of_one_state
    def _table_keys(self, table: str) -> set[tuple[str, str]]:
        streams = self._streams(table)
        self.files.segments.learn_keys(path for stream in streams for path in stream.sealed())
        return {key for stream in streams for part in stream.parts for key in self._part_keys(*part)}

    # -- numbers

    @of_one_state
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
        self.files.segments.learn_keys(path for stream in streams for path in stream.sealed())
        if max_points is not None:
            for stream in streams:
                for attempt in stream.attempts():
                    if sealed := stream.sealed(attempt):
                        self.files.segments.learn_buckets(sealed, wanted_names)
        found = []
        for name in wanted_names:
            for stream in streams:
                for label in self._stream_labels(stream, name):
                    points = self._points(stream, table, name, label, x, origin, start, end, max_points, all_attempts)
                    if points.total:
                        found.append(_as_series(name, label, stream, points, x, origin, max_points))
        return found

    @of_one_state
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
            for name, item in self.files.segments.summary(stream.sealed()).items():
                merged[name] = merge(merged.get(name), item)
            for _, path, is_sealed in stream.parts:
                if not is_sealed:
                    for name, item in summarize(self.files.tail(path)):
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

    @of_one_state
    def states(self, names: Iterable[str], *, table: str = "gpu") -> list[States]:
        """The words of the given names over time, one for each GPU, host or process that has them."""
        found = []
        for name in dict.fromkeys(names):
            for stream in self._streams(table):
                rows = list(self.files.segments.changes(stream.sealed(), name))
                for _, path, sealed in stream.parts:
                    if not sealed:
                        lines = self.files.tail(path)
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

    @of_one_state
    def newest_steps(self, count: int) -> list[tuple[int, float]]:
        """(step, seconds since 1970) of the newest lines of the lowest participant, oldest first. Only of what is not
        sealed yet: enough for the speed of a live run."""
        for stream in self._streams("training")[:1]:
            attempt = max(name.attempt for name, _, _ in stream.parts)
            lines = [self.files.tail(path) for n, path, sealed in stream.parts if not sealed and n.attempt == attempt]
            found = [pair for tail in lines for pair in zip(tail.steps[-count:], tail.times[-count:], strict=True)]
            return [(step, micros / 1e6) for step, micros in found if step != NO_STEP][-count:]
        return []

    @of_one_state
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

    def extent(self, table: str = "training") -> Extent:
        """How far the table is written now: `rows` gives the same again for it, while the run continues."""
        parts = (part for stream in self._list_streams(table) for part in stream.parts)
        return {name.stem: ALL_ROWS if sealed else self.files.count_rows(path) for name, path, sealed in parts}

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
                for row in self.files.rows(name, path, sealed, end):
                    yield {**row, **{key: value for key, value in added.items() if key not in row}}

    # -- files

    def _streams(self, table: str) -> list[_Stream]:
        """The files of the table, those that are not sealed read as far as they go: `_tail` has what they say, and
        sealing them now changes nothing for this read."""
        while True:
            streams = self._list_streams(table)
            if all(
                sealed or self.files.read_tail(name, path) for stream in streams for name, path, sealed in stream.parts
            ):
                return streams
            self.files.look_again()  # sealed between listing and reading: it is a segment now

    def _list_streams(self, table: str) -> list[_Stream]:
        streams: dict[tuple[Any, ...], _Stream] = {}
        files = [item for item in self.files.list() if item[0].table == table and item[1] != layout.SIDE]
        sealed = {
            name.stem
            for name, suffix, path in files
            if suffix == ".parquet" and not self.files.segments.is_damaged(path)
        }
        for name, suffix, path in files:
            is_sealed = suffix == ".parquet"
            if is_sealed != (name.stem in sealed):
                continue
            if is_sealed:
                self.files.drop_tail(name)
            stream = streams.setdefault(name.writer, _Stream(name))
            stream.parts.append((name, path, is_sealed))
        return sorted(streams.values(), key=lambda s: (s.participant, s.first.pid or 0, s.first.host or ""))

    def _part_keys(self, name: FileName, path: Path, sealed: bool) -> Iterable[tuple[str, str]]:
        return self.files.segments.keys(path) if sealed else self.files.tail(path).columns.keys()

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
                pieces.append(self.files.segments.points(sealed, name, label, bounds, max_points))
            for _, path, is_sealed in parts:
                if not is_sealed:
                    pieces.append(bounds.cut(tail_points(self.files.tail(path), name, label)))
        if not pieces:
            return Points.none()
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
            steps = self.files.tail(path).steps
            return next((step for step in steps if step != NO_STEP), None)
        return self.files.segments.first_step(path)

    # -- the rest

    def _origin(self) -> float:
        return parse_time(self.info.started) or 0.0

    def _untimed_until(self) -> float | None:
        """Only rows later than this have times, in seconds since 1970; None if all have."""
        imported = self.info.file.origin
        moment = parse_time(imported.untimed_until) if imported is not None else None
        return None if moment is None else moment + 1e-6


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
