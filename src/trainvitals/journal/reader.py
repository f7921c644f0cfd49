"""Reading runs: what every view uses. Works on the folder alone, of a live run, a dead one or a copy.

    run = open_run("latest")
    for series in run.series(["loss"], x="step", max_points=2000):
        series.x, series.y

A `RunReader` remembers what it parsed, so asking again of a live run costs only what is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainvitals.errors import TrainvitalsError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout, segments
from trainvitals.journal.cursor import Cursor, Damage, Follower
from trainvitals.journal.downsample import pick
from trainvitals.journal.encoding import TimeParser, format_time, spell
from trainvitals.journal.layout import FileName
from trainvitals.journal.segments import BUCKET, NO_STEP, Lines, labels_of, parse_labels

Axis = Literal["step", "time", "relative"]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one rank, GPU, host or process. `x` is ascending; NaN and infinity in `y` are data."""

    name: str
    labels: Mapping[str, Any]
    rank: int | None
    x: Floats
    y: Floats
    total: int
    """Points before any were left out for `max_points`."""


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """What a metric came to, over everything that was logged. `low` and `high` look at finite values only."""

    count: int
    last: float
    last_step: int | None
    low: float | None
    low_step: int | None
    high: float | None
    high_step: int | None
    nonfinite: int


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run at a glance, from run.json and what the agents said."""

    folder: Path
    id: str
    project: str
    name: str
    status: str
    cause: str | None
    started: str | None
    ended: str | None
    attempt: int
    simulated: bool
    details: Mapping[str, Any] = field(repr=False)

    @property
    def is_live(self) -> bool:
        return self.status not in run_folder.ENDED


def default_root() -> Path:
    """Where runs are looked for: TRAINVITALS_DIR, the configuration file, or ./trainvitals_runs."""
    from trainvitals.settings import resolve

    return Path(resolve().dir)


def list_runs(root: str | Path | None = None) -> list[RunInfo]:
    """All runs below `root`, oldest first. A folder that cannot be read is left out."""
    found = []
    for folder in run_folder.list_folders(Path(root) if root is not None else default_root()):
        try:
            found.append(read_info(folder))
        except TrainvitalsError:
            continue  # removed or half-copied between listing and reading
    return found


def open_run(reference: str | Path, root: str | Path | None = None) -> RunReader:
    """A run by path, id, beginning of an id, name, or `latest`."""
    return RunReader(run_folder.find(reference, Path(root) if root is not None else default_root()))


def read_info(folder: Path) -> RunInfo:
    """The run at a glance."""
    run = run_folder.read_run(folder)
    status, cause = run_folder.read_state(folder, run)
    return RunInfo(
        folder=folder,
        id=str(run.get("id", folder.name)),
        project=str(run.get("project", folder.parent.name)),
        name=str(run.get("name") or run.get("id") or folder.name),
        status=status,
        cause=cause,
        started=run.get("started"),
        ended=run.get("ended"),
        attempt=int(run.get("attempt") or 1),
        simulated=bool(run.get("simulated")),
        details=run,
    )


@dataclass(slots=True)
class _Stream:
    """The files of one writer, in order: what is sealed, then what is still JSONL."""

    rank: int | None
    pid: int | None
    host: str | None
    parts: list[tuple[FileName, Path, bool]] = field(default_factory=list)  # name, path, sealed


@dataclass(slots=True)
class _Points:
    steps: Integers
    times: Integers
    values: Floats
    total: int


class RunReader:
    """One run folder. Not for use from several threads at once."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._tails: dict[str, tuple[Cursor, Lines]] = {}
        self._first_steps: dict[str, int | None] = {}
        self._keys: dict[str, frozenset[tuple[str, str]]] = {}
        self._connection: Any = None

    # -- about the run

    @property
    def info(self) -> RunInfo:
        return read_info(self.folder)

    def damage(self) -> Damage:
        """What could not be understood, in all files: torn and foreign lines."""
        total = Damage()
        for name, suffix, path in self._files():
            if suffix == ".jsonl" and name.table in layout.METRIC_TABLES:
                total += self._tail(name, path)[1].damage
        for rejected in (self.folder / layout.SEGMENTS).glob("*.rejected"):
            total += Damage(torn=rejected.read_bytes().count(b"\n"))
        return total

    def tables(self) -> list[str]:
        """Which metric tables this run has."""
        return sorted({name.table for name, _, _ in self._files() if name.table in layout.METRIC_TABLES})

    def names(self, table: str = "training") -> list[str]:
        """Every metric name of the table, sorted."""
        found: set[str] = set()
        for stream in self._streams(table):
            for name, path, sealed in stream.parts:
                found.update(key[0] for key in self._part_keys(name, path, sealed))
        return sorted(found)

    def labels(self, table: str) -> list[dict[str, Any]]:
        """Of what the table speaks: its GPUs, hosts or processes."""
        found: set[str] = set()
        for stream in self._streams(table):
            for name, path, sealed in stream.parts:
                found.update(key[1] for key in self._part_keys(name, path, sealed))
        return [parse_labels(text) for text in sorted(found)]

    # -- numbers

    def series(
        self,
        names: Iterable[str],
        *,
        table: str = "training",
        x: Axis = "step",
        start: float | None = None,
        end: float | None = None,
        max_points: int | None = None,
        ranks: Iterable[int] | None = None,
        all_attempts: bool = False,
    ) -> list[Series]:
        """The series of the given names, one per rank, GPU, host or process that has it.

        `x` is the step, the time (seconds since 1970) or the time since the run started; `start` and `end` are in the
        same unit, both included. Tables other than training have no steps: use time. Where a resumed run logged steps
        again, the newest attempt is shown unless `all_attempts`. A name that was never logged gives no series.
        """
        origin = self._origin() if x == "relative" else 0.0
        wanted_ranks = None if ranks is None else set(ranks)
        found = []
        for name in dict.fromkeys(names):
            for stream in self._streams(table):
                if wanted_ranks is not None and (stream.rank or 0) not in wanted_ranks:
                    continue
                for label in self._stream_labels(stream, name):
                    points = self._points(stream, table, name, label, x, origin, start, end, max_points, all_attempts)
                    if points.total:
                        found.append(_as_series(name, label, stream, points, x, origin, max_points))
        return found

    def summary(self, table: str = "training", rank: int | None = None) -> dict[str, MetricSummary]:
        """Last, lowest and highest value of every metric with their steps, over all attempts.

        Of the lowest rank unless `rank` says otherwise; for tables with labels, of all of them together.
        """
        streams = self._streams(table)
        if streams and table == "training":
            chosen = rank if rank is not None else min(stream.rank or 0 for stream in streams)
            streams = [stream for stream in streams if (stream.rank or 0) == chosen]
        merged: dict[str, MetricSummary] = {}
        for stream in streams:
            sealed = [path for _, path, is_sealed in stream.parts if is_sealed]
            for name, item in self._sealed_summary(sealed):
                merged[name] = _merge(merged.get(name), item)
            for name_, path, is_sealed in stream.parts:
                if not is_sealed:
                    for name, item in _lines_summary(self._tail(name_, path)[1]):
                        merged[name] = _merge(merged.get(name), item)
        return dict(sorted(merged.items()))

    def newest_steps(self, count: int) -> list[tuple[int, float]]:
        """(step, seconds since 1970) of the newest lines of the lowest rank, oldest first. Only of what is not sealed
        yet: enough to tell how fast a live run goes."""
        for stream in self._streams("training")[:1]:
            attempt = max(name.attempt for name, _, _ in stream.parts)
            lines = [self._tail(n, path)[1] for n, path, sealed in stream.parts if not sealed and n.attempt == attempt]
            found = [pair for tail in lines for pair in zip(tail.steps[-count:], tail.times[-count:], strict=True)]
            return [(step, micros / 1e6) for step, micros in found if step != NO_STEP][-count:]
        return []

    # -- lines

    def events(self) -> list[dict[str, Any]]:
        """Everything that happened, in order of time."""
        return self._read_lines("events")

    def alerts(self) -> list[dict[str, Any]]:
        """Every change of every alert, in order of time."""
        return self._read_lines("alerts")

    def follow(self, tables: Sequence[str] = ("training",), *, from_end: bool = False) -> Follower:
        """New rows as they are written."""
        return Follower(self.folder, tuple(tables), from_end=from_end)

    def rows(self, table: str = "training") -> Iterator[dict[str, Any]]:
        """Every line of the table as it was written, file after file, sealed or not. Adds `rank` and `attempt` where
        the file name says them."""
        for stream in self._streams(table):
            for name, path, sealed in stream.parts:
                added = {
                    **({"rank": name.rank} if name.rank is not None else {}),
                    **({"attempt": name.attempt} if name.attempt > 1 else {}),
                }
                lines = self._segment_rows(path) if sealed else Cursor(path).read()
                for row in lines:
                    yield {**row, **{key: value for key, value in added.items() if key not in row}}

    # -- files

    def _files(self) -> list[tuple[FileName, str, Path]]:
        return layout.list_files(self.folder)

    def _streams(self, table: str) -> list[_Stream]:
        for _ in range(3):
            streams = self._list_streams(table)
            parts = [part for stream in streams for part in stream.parts]
            if all(self._is_there(name, path, sealed) for name, path, sealed in parts):
                return streams
        return streams  # files keep being sealed as we look: what is listed now is at most one file behind

    def _is_there(self, name: FileName, path: Path, sealed: bool) -> bool:
        if sealed:
            return True
        self._tail(name, path)
        return path.exists()

    def _list_streams(self, table: str) -> list[_Stream]:
        streams: dict[tuple[Any, ...], _Stream] = {}
        files = [item for item in self._files() if item[0].table == table]
        sealed_stems = {name.stem for name, suffix, _ in files if suffix == ".parquet"}
        for name, suffix, path in files:
            is_sealed = suffix == ".parquet"
            if suffix == ".minmax.parquet" or (not is_sealed and name.stem in sealed_stems):
                continue
            if is_sealed:
                self._tails.pop(f"{name.stem}.jsonl", None)
            stream = streams.setdefault(name.writer, _Stream(name.rank, name.pid, name.host))
            stream.parts.append((name, path, is_sealed))
        return sorted(streams.values(), key=lambda s: (s.rank or 0, s.pid or 0, s.host or ""))

    def _tail(self, name: FileName, path: Path) -> tuple[Cursor, Lines]:
        known = self._tails.get(path.name)
        if known is None:
            known = self._tails[path.name] = (Cursor(path), Lines(name.table))
        cursor, lines = known
        before = cursor.offset
        cursor.feed(lines.add)
        if cursor.offset < before:  # the file was replaced: what was parsed is of another file
            lines = Lines(name.table)
            cursor.offset = 0
            cursor.feed(lines.add)
            self._tails[path.name] = (cursor, lines)
        return cursor, lines

    def _part_keys(self, name: FileName, path: Path, sealed: bool) -> Iterable[tuple[str, str]]:
        if not sealed:
            return self._tail(name, path)[1].columns.keys()
        if path.name not in self._keys:
            rows = self._query(
                f"SELECT DISTINCT name, label FROM read_parquet({segments.paths_literal([_side(path)])})"
            )
            self._keys[path.name] = frozenset(rows.fetchall())
        return self._keys[path.name]

    def _stream_labels(self, stream: _Stream, name: str) -> list[str]:
        found: set[str] = set()
        for file_name, path, sealed in stream.parts:
            if sealed or len(stream.parts) == 1:
                found.update(label for key, label in self._part_keys(file_name, path, sealed) if key == name)
            else:
                columns = self._tail(file_name, path)[1].columns
                found.update(label for key, label in columns if key == name)
        return sorted(found)

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
    ) -> _Points:
        limits = {} if all_attempts or table != "training" else self._attempt_limits(stream)
        pieces: list[_Points] = []
        for attempt in sorted({part[0].attempt for part in stream.parts}):
            parts = [part for part in stream.parts if part[0].attempt == attempt]
            below = limits.get(attempt)
            bounds = _Bounds(x, origin, start, end, below)
            sealed = [path for _, path, is_sealed in parts if is_sealed]
            if sealed:
                pieces.append(self._sealed_points(sealed, name, label, bounds, max_points))
            for file_name, path, is_sealed in parts:
                if not is_sealed:
                    pieces.append(bounds.cut(_tail_points(self._tail(file_name, path)[1], name, label)))
        if not pieces:
            return _Points(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), 0)
        total = sum(piece.total for piece in pieces)
        if max_points is not None and any(len(piece.values) < piece.total for piece in pieces):
            # Some pieces came as extremes only: thin the others out alike, or they would fill the chart.
            pieces = [_thin(piece, max(4, max_points * piece.total // total)) for piece in pieces]
        return _Points(
            np.concatenate([piece.steps for piece in pieces]),
            np.concatenate([piece.times for piece in pieces]),
            np.concatenate([piece.values for piece in pieces]),
            total,
        )

    def _attempt_limits(self, stream: _Stream) -> dict[int, int]:
        """For each attempt the step from which a later attempt takes over."""
        limits: dict[int, int] = {}
        ceiling: int | None = None
        for attempt in sorted({part[0].attempt for part in stream.parts}, reverse=True):
            if ceiling is not None:
                limits[attempt] = ceiling
            firsts = (self._first_step(*part) for part in stream.parts if part[0].attempt == attempt)
            first = next((step for step in firsts if step is not None), None)
            if first is not None:
                ceiling = first if ceiling is None else min(ceiling, first)
        return limits

    def _first_step(self, name: FileName, path: Path, sealed: bool) -> int | None:
        if not sealed:
            steps = self._tail(name, path)[1].steps
            return next((step for step in steps if step != NO_STEP), None)
        if path.name not in self._first_steps:
            query = (
                f"SELECT arg_min(step, row) FROM read_parquet({segments.paths_literal([path])}) WHERE step IS NOT NULL"
            )
            self._first_steps[path.name] = self._query(query).fetchone()[0]
        return self._first_steps[path.name]

    def _sealed_points(
        self, paths: list[Path], name: str, label: str, bounds: _Bounds, max_points: int | None
    ) -> _Points:
        if max_points is not None:
            condition, values = bounds.condition(buckets=True)
            query = (
                f"SELECT count, low, low_row, low_step, low_time, high, high_row, high_step, high_time, "
                f"coalesce(broken, 0) AS broken, broken_value, coalesce(broken_step, {NO_STEP}) AS broken_step, "
                f"coalesce(broken_time, 0) AS broken_time, low IS NULL AS empty "
                f"FROM read_parquet({segments.paths_literal(_side(path) for path in paths)}) "
                f"WHERE name = ? AND label = ?{condition}"
            )
            buckets = self._query(query, [name, label, *values]).fetchnumpy()
            total = int(buckets["count"].sum())
            if total >= max_points * BUCKET // 4:  # then two points a bucket still make a full chart
                return bounds.cut(_bucket_points(buckets, total), keep_total=True)
        condition, values = bounds.condition(buckets=False)
        query = (
            f"SELECT coalesce(step, {NO_STEP}) AS step, time, value "
            f"FROM read_parquet({segments.paths_literal(paths)}) "
            f"WHERE name = ? AND label = ? AND value IS NOT NULL{condition}"
        )
        columns = self._query(query, [name, label, *values]).fetchnumpy()
        times = columns["time"]
        return bounds.cut(_Points(columns["step"], times, np.ma.getdata(columns["value"]), len(times)))

    def _sealed_summary(self, paths: list[Path]) -> Iterator[tuple[str, MetricSummary]]:
        if not paths:
            return
        # Files are in order of writing, so the last value is that of the last file that has the metric.
        query = (
            "SELECT name, sum(count), arg_max(last, (file_index, last_row)), "
            "arg_max(last_step, (file_index, last_row)), min(low), arg_min(low_step, low), max(high), "
            "arg_max(high_step, high), sum(broken) FROM (SELECT *, list_position(?, filename) AS file_index "
            f"FROM read_parquet({segments.paths_literal(_side(path) for path in paths)}, filename = true)) "
            "GROUP BY name"
        )
        for row in self._query(query, [[str(_side(path)) for path in paths]]).fetchall():
            name, count, last, last_step, low, low_step, high, high_step, broken = row
            yield (
                name,
                MetricSummary(
                    int(count),
                    last,
                    _step(last_step),
                    low,
                    _step(low_step),
                    high,
                    _step(high_step),
                    int(broken or 0),
                ),
            )

    def _query(self, query: str, values: Sequence[Any] = ()) -> Any:
        if self._connection is None:
            self._connection = segments.connect()
            self._connection.execute("SET parquet_metadata_cache = true")
        return self._connection.execute(query, list(values))

    def _segment_rows(self, path: Path) -> Iterator[dict[str, Any]]:
        query = (
            "SELECT row, name, label, step, time, value, text FROM "
            f"read_parquet({segments.paths_literal([path])}) ORDER BY row"
        )
        result = self._query(query)
        current: dict[str, Any] | None = None
        place = -1
        while batch := result.fetchmany(10_000):
            for row, name, label, step, time, value, text in batch:
                if row != place:
                    if current is not None:
                        yield current
                    place = row
                    current = {"timestamp": format_time(time / 1e6)}
                    if step is not None:
                        current["step"] = step
                    current.update(parse_labels(label))
                assert current is not None
                current[name] = text if value is None else spell(value)
        if current is not None:
            yield current

    # -- the rest

    def _origin(self) -> float:
        started = self.info.started
        micros = TimeParser().parse(started) if started else None
        return micros / 1e6 if micros is not None else 0.0

    def _read_lines(self, table: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for name, suffix, path in self._files():
            if name.table == table and suffix == ".jsonl":
                rows.extend(Cursor(path).read())
        rows.sort(key=lambda row: str(row["timestamp"]))
        return rows


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Which points are wanted: a range on the axis, and the step at which a later attempt takes over."""

    x: Axis
    origin: float
    start: float | None
    end: float | None
    below_step: int | None

    def condition(self, *, buckets: bool) -> tuple[str, list[Any]]:
        """SQL that keeps what may be wanted; `cut` then keeps exactly that."""
        column = "step" if self.x == "step" else "time"
        low_column, high_column = (f"{column}_to", f"{column}_from") if buckets else (column, column)
        text, values = "", []
        for operator, wanted, name in ((">=", self.start, low_column), ("<=", self.end, high_column)):
            if wanted is not None:
                text += f" AND {name} {operator} ?"
                values.append(wanted if self.x == "step" else (wanted + self.origin) * 1e6)
        if self.below_step is not None:
            text += f" AND {'step_from' if buckets else 'step'} < ?"
            values.append(self.below_step)
        return text, values

    def cut(self, points: _Points, *, keep_total: bool = False) -> _Points:
        keep = np.ones(len(points.times), dtype=bool)
        if self.x == "step":
            keep &= points.steps != NO_STEP
            axis: Any = points.steps
        else:
            axis = points.times / 1e6 - self.origin
        if self.start is not None:
            keep &= axis >= self.start
        if self.end is not None:
            keep &= axis <= self.end
        if self.below_step is not None:
            keep &= points.steps < self.below_step
        if keep.all():
            return points
        total = points.total if keep_total else int(keep.sum())
        return _Points(points.steps[keep], points.times[keep], points.values[keep], total)


def _as_series(
    name: str, label: str, stream: _Stream, points: _Points, x: Axis, origin: float, max_points: int | None
) -> Series:
    axis = points.steps.astype(np.float64) if x == "step" else points.times / 1e6 - origin
    values = points.values
    if len(axis) > 1 and bool((np.diff(axis) < 0).any()):  # a clock that jumped, steps in another order
        order = np.argsort(axis, kind="stable")
        axis, values = axis[order], values[order]
    if max_points is not None and len(values) > max_points:
        chosen = pick(values, max_points)
        axis, values = axis[chosen], values[chosen]
    return Series(name, labels_of(stream.parts[0][0], label), stream.rank, axis, values, points.total)


def _thin(points: _Points, max_points: int) -> _Points:
    chosen = pick(points.values, max_points)
    return _Points(points.steps[chosen], points.times[chosen], points.values[chosen], points.total)


def _tail_points(lines: Lines, name: str, label: str) -> _Points:
    column = lines.columns.get((name, label))
    if column is None:
        return _Points(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), 0)
    # Copies: the arrays go on growing, which a view of them would forbid.
    rows = np.array(column.rows, dtype=np.int64)
    return _Points(
        np.array(lines.steps, dtype=np.int64)[rows],
        np.array(lines.times, dtype=np.int64)[rows],
        np.array(column.values, dtype=np.float64),
        len(rows),
    )


def _bucket_points(buckets: Mapping[str, Any], total: int) -> _Points:
    full = ~np.asarray(buckets["empty"], dtype=bool)
    low_first = np.ma.getdata(buckets["low_row"]) <= np.ma.getdata(buckets["high_row"])
    columns: dict[str, list[Any]] = {"step": [], "time": [], "value": [], "order": []}
    order = np.arange(len(full), dtype=np.float64)
    same = np.ma.getdata(buckets["low_row"]) == np.ma.getdata(buckets["high_row"])
    broken = np.asarray(np.ma.getdata(buckets["broken"])) > 0
    kinds = (
        ("low", full, np.where(low_first, 0.0, 0.5)),
        ("high", full & ~same, np.where(low_first, 0.5, 0.0)),
        ("broken", broken, np.full(len(full), 0.75)),
    )
    for kind, keep, shift in kinds:
        value = "broken_value" if kind == "broken" else kind
        columns["step"].append(np.ma.getdata(buckets[f"{kind}_step"])[keep])
        columns["time"].append(np.ma.getdata(buckets[f"{kind}_time"])[keep])
        columns["value"].append(np.ma.getdata(buckets[value])[keep])
        columns["order"].append((order + shift)[keep])
    sequence = np.argsort(np.concatenate(columns["order"]), kind="stable")
    return _Points(
        np.concatenate(columns["step"]).astype(np.int64)[sequence],
        np.concatenate(columns["time"]).astype(np.int64)[sequence],
        np.concatenate(columns["value"]).astype(np.float64)[sequence],
        total,
    )


def _lines_summary(lines: Lines) -> Iterator[tuple[str, MetricSummary]]:
    steps = np.array(lines.steps, dtype=np.int64)
    for (name, _), column in lines.columns.items():
        values = np.array(column.values, dtype=np.float64)
        at = steps[np.array(column.rows, dtype=np.int64)]
        finite = np.isfinite(values)
        broken = len(values) - int(finite.sum())
        extremes: tuple[float | None, int | None, float | None, int | None] = (None, None, None, None)
        if finite.any():
            low = int(np.where(finite, values, np.inf).argmin())
            high = int(np.where(finite, values, -np.inf).argmax())
            extremes = (float(values[low]), _step(at[low]), float(values[high]), _step(at[high]))
        yield name, MetricSummary(len(values), float(values[-1]), _step(at[-1]), *extremes, broken)


def _merge(older: MetricSummary | None, newer: MetricSummary) -> MetricSummary:
    if older is None:
        return newer
    low, low_step = older.low, older.low_step
    if low is None or (newer.low is not None and newer.low < low):
        low, low_step = newer.low, newer.low_step
    high, high_step = older.high, older.high_step
    if high is None or (newer.high is not None and newer.high > high):
        high, high_step = newer.high, newer.high_step
    return MetricSummary(
        older.count + newer.count,
        newer.last,
        newer.last_step,
        low,
        low_step,
        high,
        high_step,
        older.nonfinite + newer.nonfinite,
    )


def _step(value: Any) -> int | None:
    return None if value is None or int(value) == NO_STEP else int(value)


def _side(path: Path) -> Path:
    return path.with_name(f"{path.name.removesuffix('.parquet')}.minmax.parquet")
