"""Asking the sealed segments of a run. They never change, so what was read of their side tables is remembered.

Every method raises SegmentUnreadable when a file turns out to be damaged or gone; a damaged one is remembered, and a
side table that is missing, damaged or without its mark is made again. Tested in tests/journal/test_segment_writer.py.
"""

from __future__ import annotations

import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainvitals.errors import JournalError
from trainvitals.journal import extremes, parquet, segment_writer
from trainvitals.journal.encoding import format_time, spell
from trainvitals.journal.extremes import BUCKET, NO_STEP
from trainvitals.journal.footer import Oversized, check_size
from trainvitals.journal.parquet import OpenFolder
from trainvitals.journal.points import Bounds, Points, known_step
from trainvitals.journal.segment_writer import parse_labels
from trainvitals.journal.summaries import MetricSummary

REMEMBERED_BYTES = 32 << 20
FEW_VALUES = 20_000
"""Segments with no more are read whole, with one question for all their series: asking takes longer than reading."""
REMEMBERED_VALUES = 500_000
"""Of such segments, for the next question about them."""
Buckets = Mapping[str, Any]

# One row per bucket. `broken` is a value that is not finite; `empty` if all of them are.
_BUCKET_COLUMNS = f"""
    count, low, low_row, low_step, low_time, high, high_row, high_step, high_time,
    coalesce(broken, 0) AS broken, broken_value, coalesce(broken_step, {NO_STEP}) AS broken_step,
    coalesce(broken_time, 0) AS broken_time, low IS NULL AS empty,
    coalesce(step_from, {NO_STEP}) AS step_from, coalesce(step_to, {NO_STEP}) AS step_to, time_from, time_to
"""


class SegmentUnreadable(JournalError):
    """A segment that is damaged, or no longer there."""


class SealedSegments:
    """The segments of one run. Not for use from several threads at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connection: Any = None
        self._open: OpenFolder | None = None
        self._damaged: dict[str, object] = {}
        self._sides: dict[str, str] = {}
        self._distrusted: set[str] = set()
        self._rows: dict[str, int] = {}
        self._rebuilt: tuple[tempfile.TemporaryDirectory[str], OpenFolder] | None = None
        self._keys: dict[str, frozenset[tuple[str, str]]] = {}
        self._first_steps: dict[str, int | None] = {}
        self._buckets: OrderedDict[tuple[tuple[Path, ...], str], dict[str, Buckets]] = OrderedDict()
        self._bytes = 0
        self._whole: OrderedDict[tuple[object, ...], dict[tuple[str, str], Points]] = OrderedDict()
        self._whole_values = 0
        self._summary: tuple[tuple[Path, ...], dict[str, MetricSummary]] = ((), {})

    def is_damaged(self, path: Path) -> bool:
        """Whether the segment was found to be damaged, and is still the same file."""
        known = self._damaged.get(path.name)
        if known is not None and known != _identity(path):
            del self._damaged[path.name]
            return False
        return known is not None

    def check(self, paths: Iterable[Path]) -> None:
        """Look at the end of each segment, which a file that was cut off does not have."""
        listed = list(paths)
        files = ", ".join(parquet.literal(self._files.locate(path.name)) for path in listed)
        if files:
            self._ask(listed, f"SELECT count(*) FROM parquet_file_metadata([{files}])")

    def learn_keys(self, paths: Iterable[Path]) -> None:
        """Read what is in several segments with one question."""
        new = [path for path in paths if path.name not in self._keys]
        if not new:
            return
        sides = self._find_sides(new)
        by_side = dict(zip(sides, new, strict=True))
        found: dict[str, set[tuple[str, str]]] = {path.name: set() for path in new}
        query = f"SELECT DISTINCT filename, name, label FROM {_tables(sides)}"
        for file, name, label in self._ask(new, query):
            found[by_side[file].name].add((name, label))
        self._keys.update((name, frozenset(keys)) for name, keys in found.items())

    def keys(self, path: Path) -> frozenset[tuple[str, str]]:
        """Every (name, label) of a segment."""
        self.learn_keys([path])
        return self._keys[path.name]

    def first_step(self, path: Path) -> int | None:
        """The step of the first line that has one."""
        if path.name not in self._first_steps:
            query = f"SELECT arg_min(step, row) FROM {self._table([path])} WHERE step IS NOT NULL"
            self._first_steps[path.name] = self._ask([path], query)[0][0]
        return self._first_steps[path.name]

    def learn_buckets(self, paths: Sequence[Path], names: Iterable[str]) -> None:
        """Read the side tables of several names with one question: opening the files is what takes time."""
        together = tuple(paths)
        wanted = [name for name in names if (together, name) not in self._buckets]
        if not wanted:
            return
        query = (
            f"SELECT list_position(?, name) - 1 AS place, label, {_BUCKET_COLUMNS} "
            f"FROM {_tables(self._find_sides(paths))} WHERE name IN ({', '.join('?' * len(wanted))})"
        )
        columns = self._ask(paths, query, [wanted, *wanted], "fetchnumpy")
        rows = {column: np.ma.getdata(values) for column, values in columns.items()}
        places, labels = rows.pop("place"), rows.pop("label")
        for place, name in enumerate(wanted):
            mine = np.flatnonzero(places == place)
            here = labels[mine]
            found: dict[str, Buckets] = {}
            for label in dict.fromkeys(here):
                chosen = mine[here == label]
                found[str(label)] = {column: values[chosen] for column, values in rows.items()}
            self._buckets[(together, name)] = found
            self._bytes += _size(found)
        while self._bytes > REMEMBERED_BYTES and len(self._buckets) > len(wanted):
            self._bytes -= _size(self._buckets.popitem(last=False)[1])

    def points(self, paths: Sequence[Path], name: str, label: str, bounds: Bounds, max_points: int | None) -> Points:
        """Of one series: the extremes of each bucket where these fill a chart of `max_points`, else every value."""
        if max_points is not None:
            self.learn_buckets(paths, [name])
            buckets = self._buckets[(tuple(paths), name)].get(label)
            if buckets is not None and (found := points_of_buckets(buckets, bounds, max_points)) is not None:
                return found
        if self._count_rows(paths) <= FEW_VALUES:
            whole = self._read_whole(paths).get((name, label))
            return bounds.cut(whole if whole is not None else Points.none())
        condition, values = bounds.condition()
        query = (
            f"SELECT coalesce(step, {NO_STEP}) AS step, time, value "
            f"FROM {self._table(paths)} WHERE name = ? AND label = ? AND value IS NOT NULL{condition}"
        )
        columns = self._ask(paths, query, [name, label, *values], "fetchnumpy")
        return bounds.cut(Points.whole(columns["step"], columns["time"], np.ma.getdata(columns["value"])))

    def _read_whole(self, paths: Sequence[Path]) -> dict[tuple[str, str], Points]:
        """Every series of segments that have few values, by (name, label)."""
        known = tuple((path, _identity(path)) for path in paths)  # one that is damaged later is to be noticed
        if known not in self._whole:
            query = (
                f"SELECT name, label, coalesce(step, {NO_STEP}) AS step, time, value "
                f"FROM {self._table(paths)} WHERE value IS NOT NULL"
            )
            columns = {
                name: np.ma.getdata(values) for name, values in self._ask(paths, query, (), "fetchnumpy").items()
            }
            places: dict[tuple[str, str], list[int]] = {}
            for place, key in enumerate(zip(columns["name"], columns["label"], strict=True)):
                places.setdefault(key, []).append(place)
            self._whole[known] = {
                key: Points.whole(*(columns[name][chosen] for name in ("step", "time", "value")))
                for key, chosen in places.items()
            }
            self._whole_values += len(columns["value"])
            while self._whole_values > REMEMBERED_VALUES:
                self._whole_values -= sum(points.total for points in self._whole.popitem(last=False)[1].values())
        return self._whole[known]

    def summary(self, paths: Sequence[Path]) -> dict[str, MetricSummary]:
        """What every metric came to. `paths` are in order of writing: the last value is that of the last file."""
        if self._summary[0] != tuple(paths):
            self._summary = (tuple(paths), dict(self._read_summary(paths)))
        return self._summary[1]

    def _read_summary(self, paths: Sequence[Path]) -> Iterator[tuple[str, MetricSummary]]:
        if not paths:
            return
        sides = self._find_sides(paths)
        query = (
            # Of equal extremes the first one counts, here as in lines that are not sealed.
            "SELECT name, sum(count), arg_max(last, (file_index, last_row)), "
            "arg_max(last_step, (file_index, last_row)), "
            "min(low), arg_min(low_step, (low, file_index, low_row)) FILTER (WHERE low IS NOT NULL), "
            "max(high), arg_max(high_step, (high, -file_index, -high_row)) FILTER (WHERE high IS NOT NULL), "
            "sum(broken) FROM (SELECT *, list_position(?, filename) AS file_index "
            f"FROM {_tables(sides)}) GROUP BY name"
        )
        for row in self._ask(paths, query, [sides]):
            name, count, last, last_step, low, low_step, high, high_step, broken = row
            steps = known_step(last_step), known_step(low_step), known_step(high_step)
            item = MetricSummary(int(count), last, steps[0], low, steps[1], high, steps[2], int(broken or 0))
            yield name, item

    def rows(self, path: Path, first: int = 0, end: int = 2**62) -> Iterator[dict[str, Any]]:
        """The lines of a segment as they were written; from the `first` on, up to `end`."""
        query = (
            f"SELECT row, name, label, step, time, value, text FROM {self._table([path])} "
            "WHERE row >= ? AND row < ? ORDER BY row"
        )
        current: dict[str, Any] = {}
        place = -1
        for row, name, label, step, time, value, text in self._stream(path, query, [first, end]):
            if row != place:
                if place >= 0:
                    yield current
                place = row
                current = {"timestamp": format_time(time / 1e6)}
                if step is not None:
                    current["step"] = step
                current.update(parse_labels(label))
            current[name] = text if value is None else spell(value)
        if place >= 0:
            yield current

    def _stream(self, path: Path, query: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """The answer piece by piece, on a separate cursor: other queries may run meanwhile."""
        import duckdb

        try:
            self._check_sizes([path])
            result = self._connect().cursor().execute(query, list(values))
            while batch := result.fetchmany(10_000):
                yield from batch
        except (duckdb.Error, OSError, Oversized) as error:
            raise self._explain(error, [path]) from error

    def changes(self, paths: Sequence[Path], name: str) -> list[tuple[str, int, str]]:
        """(label, microseconds, text) of every line whose text under `name` is another than in the line before."""
        if not paths:
            return []
        files = [self._files.locate(path.name) for path in paths]
        query = (
            "SELECT label, time, text FROM (SELECT *, list_position(?, filename) AS file_index "
            f"FROM {_tables(files)} WHERE name = ? AND text IS NOT NULL) "
            "QUALIFY text IS DISTINCT FROM lag(text) OVER (PARTITION BY label ORDER BY file_index, row) "
            "ORDER BY file_index, row"
        )
        found: list[tuple[str, int, str]] = self._ask(paths, query, [files, name])
        return found

    # -- files

    @property
    def _files(self) -> OpenFolder:
        if self._open is None:
            try:
                self._open = OpenFolder(self._folder)
            except OSError as error:
                raise SegmentUnreadable(f"cannot open {self._folder}: {error.strerror}") from error
        return self._open

    def _table(self, paths: Iterable[Path]) -> str:
        return parquet.scan(self._files.locate(path.name) for path in paths)

    def _find_sides(self, paths: Sequence[Path]) -> list[str]:
        """The side table of each segment, made again where there is none that can be trusted."""
        new = [path for path in paths if path.name not in self._sides]
        marked = self._find_marked(new)
        for path in new:
            trusted = path in marked and path.name not in self._distrusted
            self._sides[path.name] = (
                self._files.locate(segment_writer.side_of(path).name) if trusted else self._rebuild(path)
            )
        return [self._sides[path.name] for path in paths]

    def _find_marked(self, paths: Sequence[Path]) -> set[Path]:
        import duckdb

        by_file = {self._files.locate(segment_writer.side_of(path).name): path for path in paths}
        if not by_file:
            return set()
        listed = ", ".join(map(parquet.literal, by_file))
        query = f"SELECT file_name FROM parquet_kv_metadata([{listed}]) WHERE key = ?::BLOB AND value = ?::BLOB"
        try:
            return {by_file[file] for (file,) in self._connect().execute(query, list(extremes.MARK)).fetchall()}
        except duckdb.Error:  # at least one is missing or damaged
            return set().union(*(self._find_marked([path]) for path in paths)) if len(paths) > 1 else set()

    def _rebuild(self, path: Path) -> str:
        """In place if the folder is ours to write, for the next reader's sake; else for us alone."""
        try:
            if self._folder.stat().st_uid == os.geteuid():
                return self._rebuild_as(path, segment_writer.side_of(path), self._files)
        except SegmentUnreadable:
            raise
        except (OSError, JournalError):
            pass  # a read-only or full file system
        if self._rebuilt is None:
            place = tempfile.TemporaryDirectory(prefix="trainvitals-", ignore_cleanup_errors=True)
            self._rebuilt = (place, OpenFolder(Path(place.name)))
        place, opened = self._rebuilt
        return self._rebuild_as(path, Path(place.name) / segment_writer.side_of(path).name, opened)

    def _rebuild_as(self, path: Path, target: Path, folder: OpenFolder) -> str:
        import duckdb

        try:
            segment_writer.rebuild_side(path, target)
        except (duckdb.Error, OSError, Oversized) as error:
            raise self._explain(error, [path]) from error
        return folder.locate(target.name)

    # -- questions

    def _connect(self) -> Any:
        if self._connection is None:
            self._connection = parquet.connect()
        return self._connection

    def _ask(self, paths: Sequence[Path], query: str, values: Sequence[Any] = (), fetch: str = "fetchall") -> Any:
        """The answer of DuckDB to a question about the segments `paths`."""
        import duckdb

        try:
            self._check_sizes(paths)
            return getattr(self._connect().execute(query, list(values)), fetch)()
        except (duckdb.Error, OSError, Oversized) as error:
            raise self._explain(error, paths) from error

    def _check_sizes(self, paths: Sequence[Path]) -> None:
        """Before anything of a file is read: whether it and its side table can be as large as they claim."""
        files = {self._files.locate(path.name) for path in paths}
        files |= {self._sides[path.name] for path in paths if path.name in self._sides}
        for file in files - self._rows.keys():
            self._rows[file] = check_size(file)

    def _count_rows(self, paths: Sequence[Path]) -> int:
        try:
            self._check_sizes(paths)
        except (OSError, Oversized) as error:
            raise self._explain(error, paths) from error
        return sum(self._rows[self._files.locate(path.name)] for path in paths)

    def _explain(self, error: Exception, paths: Iterable[Path]) -> JournalError:
        """What is wrong with these segments. What is found is not asked again."""
        import duckdb

        for path in paths:
            if not path.exists():
                return SegmentUnreadable(f"{path.name} is missing")
            try:
                self._read_all(self._files.locate(path.name))
            except (duckdb.Error, Oversized):
                self._damaged[path.name] = _identity(path)
                return SegmentUnreadable(f"{path.name} is damaged")
            side = self._sides.get(path.name)
            try:
                if side is not None:
                    self._read_all(side)
            except (duckdb.Error, OSError, Oversized):
                del self._sides[path.name]
                self._distrusted.add(path.name)
                return SegmentUnreadable(f"{segment_writer.side_of(path).name} is damaged")
        return JournalError(f"cannot read {self._folder}: {error}")

    def _read_all(self, file: str) -> None:
        check_size(file)
        self._connect().execute(f"SELECT sum(hash(t)) FROM {parquet.scan([file])} t").fetchall()


def _tables(files: Iterable[str]) -> str:
    return parquet.scan(files, "filename = true")


def _identity(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _size(found: Mapping[str, Buckets]) -> int:
    return sum(values.nbytes for columns in found.values() for values in columns.values())


def points_of_buckets(buckets: Buckets, bounds: Bounds, max_points: int) -> Points | None:
    """The extremes of the buckets that may hold something wanted; None if they are too few for a chart of
    `max_points`."""
    kept = bounds.may_hold(buckets)
    total = int(buckets["count"][kept].sum())
    if total < max_points * BUCKET // 4:  # else two points a bucket still make a full chart
        return None
    chosen = {column: values[kept] for column, values in buckets.items()}
    return bounds.cut(_bucket_points(chosen, total), keep_total=True)


def _bucket_points(buckets: Buckets, total: int) -> Points:
    full = ~buckets["empty"].astype(bool)
    low_first = buckets["low_row"] <= buckets["high_row"]
    columns: dict[str, list[Any]] = {"step": [], "time": [], "value": [], "order": []}
    order = np.arange(len(full), dtype=np.float64)
    same = buckets["low_row"] == buckets["high_row"]
    broken = buckets["broken"] > 0
    kinds = (
        ("low", full, np.where(low_first, 0.0, 0.5)),
        ("high", full & ~same, np.where(low_first, 0.5, 0.0)),
        ("broken", broken, np.full(len(full), 0.75)),
    )
    for kind, keep, shift in kinds:
        value = "broken_value" if kind == "broken" else kind
        columns["step"].append(buckets[f"{kind}_step"][keep])
        columns["time"].append(buckets[f"{kind}_time"][keep])
        columns["value"].append(buckets[value][keep])
        columns["order"].append((order + shift)[keep])
    sequence = np.argsort(np.concatenate(columns["order"]), kind="stable")
    return Points(
        np.concatenate(columns["step"]).astype(np.int64)[sequence],
        np.concatenate(columns["time"]).astype(np.int64)[sequence],
        np.concatenate(columns["value"]).astype(np.float64)[sequence],
        total,
        int(buckets["broken"].sum()),
    )
