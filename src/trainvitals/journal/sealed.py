"""Asking the sealed segments of a run. They never change, so what was read of their side tables is remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainvitals.journal import segments
from trainvitals.journal.encoding import format_time, spell
from trainvitals.journal.points import Bounds, Points
from trainvitals.journal.segments import BUCKET, NO_STEP, parse_labels
from trainvitals.journal.summaries import MetricSummary, known_step

REMEMBERED_BYTES = 32 << 20
Buckets = Mapping[str, Any]

# One row per bucket. `broken` is a value that is not finite; `empty` says that all of them are.
_BUCKET_COLUMNS = f"""
    count, low, low_row, low_step, low_time, high, high_row, high_step, high_time,
    coalesce(broken, 0) AS broken, broken_value, coalesce(broken_step, {NO_STEP}) AS broken_step,
    coalesce(broken_time, 0) AS broken_time, low IS NULL AS empty,
    coalesce(step_from, {NO_STEP}) AS step_from, coalesce(step_to, {NO_STEP}) AS step_to, time_from, time_to
"""


class SealedSegments:
    """The segments of one run. Not for use from several threads at once."""

    def __init__(self) -> None:
        self._connection: Any = None
        self._keys: dict[str, frozenset[tuple[str, str]]] = {}
        self._first_steps: dict[str, int | None] = {}
        self._buckets: OrderedDict[tuple[tuple[Path, ...], str], dict[str, Buckets]] = OrderedDict()
        self._bytes = 0
        self._summary: tuple[tuple[Path, ...], dict[str, MetricSummary]] = ((), {})

    def learn_keys(self, paths: Iterable[Path]) -> None:
        """Read what is in several segments with one question."""
        new = {str(_side(path)): path.name for path in paths if path.name not in self._keys}
        if not new:
            return
        found: dict[str, set[tuple[str, str]]] = {name: set() for name in new.values()}
        query = f"SELECT DISTINCT filename, name, label FROM {_tables(map(Path, new))}"
        for file, name, label in self._query(query).fetchall():
            found[new[file]].add((name, label))
        self._keys.update((name, frozenset(keys)) for name, keys in found.items())

    def keys(self, path: Path) -> frozenset[tuple[str, str]]:
        """Every (name, label) of a segment."""
        self.learn_keys([path])
        return self._keys[path.name]

    def first_step(self, path: Path) -> int | None:
        """The step of the first line that has one."""
        if path.name not in self._first_steps:
            source = f"read_parquet({segments.paths_literal([path])})"
            query = f"SELECT arg_min(step, row) FROM {source} WHERE step IS NOT NULL"
            self._first_steps[path.name] = self._query(query).fetchone()[0]
        return self._first_steps[path.name]

    def learn_buckets(self, paths: Sequence[Path], names: Iterable[str]) -> None:
        """Read the side tables of several names with one question: opening the files is what takes time."""
        together = tuple(paths)
        wanted = [name for name in names if (together, name) not in self._buckets]
        if not wanted:
            return
        query = (
            f"SELECT list_position(?, name) - 1 AS place, label, {_BUCKET_COLUMNS} "
            f"FROM {_tables(_side(path) for path in paths)} WHERE name IN ({', '.join('?' * len(wanted))})"
        )
        columns = self._query(query, [wanted, *wanted]).fetchnumpy()
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
            if buckets is not None:
                kept = bounds.may_hold(buckets)
                total = int(buckets["count"][kept].sum())
                if total >= max_points * BUCKET // 4:  # then two points a bucket still make a full chart
                    chosen = {column: values[kept] for column, values in buckets.items()}
                    return bounds.cut(_bucket_points(chosen, total), keep_total=True)
        condition, values = bounds.condition()
        query = (
            f"SELECT coalesce(step, {NO_STEP}) AS step, time, value "
            f"FROM read_parquet({segments.paths_literal(paths)}) "
            f"WHERE name = ? AND label = ? AND value IS NOT NULL{condition}"
        )
        columns = self._query(query, [name, label, *values]).fetchnumpy()
        return bounds.cut(Points.whole(columns["step"], columns["time"], np.ma.getdata(columns["value"])))

    def summary(self, paths: Sequence[Path]) -> dict[str, MetricSummary]:
        """What every metric came to. `paths` are in order of writing: the last value is that of the last file."""
        if self._summary[0] != tuple(paths):
            self._summary = (tuple(paths), dict(self._read_summary(paths)))
        return self._summary[1]

    def _read_summary(self, paths: Sequence[Path]) -> Iterator[tuple[str, MetricSummary]]:
        if not paths:
            return
        query = (
            "SELECT name, sum(count), arg_max(last, (file_index, last_row)), "
            "arg_max(last_step, (file_index, last_row)), min(low), arg_min(low_step, low), max(high), "
            "arg_max(high_step, high), sum(broken) FROM (SELECT *, list_position(?, filename) AS file_index "
            f"FROM {_tables(_side(path) for path in paths)}) GROUP BY name"
        )
        for row in self._query(query, [[str(_side(path)) for path in paths]]).fetchall():
            name, count, last, last_step, low, low_step, high, high_step, broken = row
            steps = known_step(last_step), known_step(low_step), known_step(high_step)
            item = MetricSummary(int(count), last, steps[0], low, steps[1], high, steps[2], int(broken or 0))
            yield name, item

    def count_lines(self, path: Path) -> int:
        """How many lines the file had that was sealed, without those at its end that had no values."""
        (last,) = self._query(f"SELECT max(row) FROM read_parquet({segments.paths_literal([path])})").fetchone()
        return 0 if last is None else int(last) + 1

    def rows(self, path: Path, first: int = 0, end: int = 2**62) -> Iterator[dict[str, Any]]:
        """The lines of a segment as they were written; from the `first` on, up to `end`."""
        query = (
            "SELECT row, name, label, step, time, value, text FROM "
            f"read_parquet({segments.paths_literal([path])}) WHERE row >= ? AND row < ? ORDER BY row"
        )
        result = self._query(query, [first, end])
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

    def changes(self, paths: Sequence[Path], name: str) -> list[tuple[str, int, str]]:
        """(label, microseconds, text) of every line whose text under `name` is another than in the line before."""
        if not paths:
            return []
        query = (
            "SELECT label, time, text FROM (SELECT *, list_position(?, filename) AS file_index "
            f"FROM {_tables(paths)} WHERE name = ? AND text IS NOT NULL) "
            "QUALIFY text IS DISTINCT FROM lag(text) OVER (PARTITION BY label ORDER BY file_index, row) "
            "ORDER BY file_index, row"
        )
        found: list[tuple[str, int, str]] = self._query(query, [[str(path) for path in paths], name]).fetchall()
        return found

    def _query(self, query: str, values: Sequence[Any] = ()) -> Any:
        if self._connection is None:
            self._connection = segments.connect()
            self._connection.execute("SET parquet_metadata_cache = true")
        return self._connection.execute(query, list(values))


def _side(path: Path) -> Path:
    return path.with_name(f"{path.name.removesuffix('.parquet')}.minmax.parquet")


def _tables(paths: Iterable[Path]) -> str:
    return f"read_parquet({segments.paths_literal(paths)}, filename = true)"


def _size(found: Mapping[str, Buckets]) -> int:
    return sum(values.nbytes for columns in found.values() for values in columns.values())


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
