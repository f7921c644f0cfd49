"""The files of a run as the store has them, for `SeriesReader`. Tested in tests/fleet/test_store_reader.py."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainvitals.fleet.clickhouse import ClickHouse, literal
from trainvitals.fleet.intake import End
from trainvitals.fleet.store import Store, text
from trainvitals.journal import layout
from trainvitals.journal.damage import Damage
from trainvitals.journal.encoding import format_time, spell
from trainvitals.journal.extremes import NO_STEP
from trainvitals.journal.layout import FileName
from trainvitals.journal.points import Bounds, Points, known_step
from trainvitals.journal.segment_reader import points_of_buckets
from trainvitals.journal.segment_writer import Lines, SegmentColumn, parse_labels
from trainvitals.journal.summaries import MetricSummary

FRESH_SECONDS = 0.3
"""For so long the ends of the files are not asked for again."""
ROWS_AT_ONCE = 20_000
MOST_VALUES = 2_000_000
"""Of several series that are read with one question. Of a longer one only the files that are wanted are read."""
REMEMBERED_VALUES = 4_000_000

_BUCKET_COLUMNS = (
    *("count", "low", "low_row", "low_step", "low_time", "high", "high_row", "high_step", "high_time"),
    *("broken", "broken_value", "broken_step", "broken_time", "step_from", "step_to", "time_from", "time_to"),
)
_SUMMARY_COLUMNS = (
    *("count", "last_row", "last_step", "last", "low_row", "low_step", "low"),
    *("high_row", "high_step", "high", "broken"),
)
Columns = dict[str, Any]


class StoreFiles:
    """Implements `series_reader.JournalFiles`. Rows behind the end of a file are not there yet."""

    def __init__(self, store: Store, project: str, run: str) -> None:
        self._store = store
        self.project, self.run = project, run
        self.which = f"project = {literal(project)} AND run = {literal(run)}"
        self.segments = StoreSegments(self)
        self._tails: dict[str, Lines] = {}
        self._ends: dict[str, End] = {}
        self._listed: list[tuple[FileName, str, Path]] = []
        self._until = 0.0

    @property
    def engine(self) -> ClickHouse:
        return self._store.engine

    @property
    def ends(self) -> Mapping[str, End]:
        """Of every file of the run, by path."""
        now = time.monotonic()
        if now >= self._until:
            self._ends = self._store.read_ends(self.project, self.run)
            self._until = now + FRESH_SECONDS
            self._listed = _list_files(self._ends)
        return self._ends

    def look_again(self) -> None:
        """Forget which files there are."""
        self._until = 0.0

    def list(self) -> list[tuple[FileName, str, Path]]:
        """Every file of the journal, in reading order."""
        _ = self.ends
        return self._listed

    def end_of(self, stem: str) -> End:
        """Of a file of the journal."""
        return self._ends.get(f"{stem}.jsonl", End())

    # -- files that are not sealed

    def read_tail(self, name: FileName, path: Path) -> bool:
        """Take in what was written since the last time."""
        lines = self._tails.setdefault(name.stem, Lines(name.table))
        end = self.end_of(name.stem)
        lines.damage = Damage(torn=end.torn, foreign=end.foreign)
        if len(lines) < end.rows:
            self._add_rows(lines, name, len(lines), end.rows)
        return True

    def tail(self, path: Path) -> Lines:
        """What was taken in."""
        return self._tails[path.stem]

    def drop_tail(self, name: FileName) -> None:
        """It is sealed now."""
        self._tails.pop(name.stem, None)

    def count_rows(self, path: Path) -> int:
        """Of a file that is not sealed."""
        return self.end_of(path.stem).rows

    def rows(self, name: FileName, path: Path, sealed: bool, end: int) -> Iterator[dict[str, Any]]:
        """The rows of one file up to the given one."""
        return self.read_rows(name, 0, min(end, self.end_of(name.stem).rows))

    def read_rows(self, name: FileName, begin: int, end: int) -> Iterator[dict[str, Any]]:
        """Some rows of one file, as they were written."""
        for first in range(begin, end, ROWS_AT_ONCE):
            lines = Lines(name.table)
            self._add_rows(lines, name, first, min(first + ROWS_AT_ONCE, end))
            yield from _as_rows(lines)

    def _add_rows(self, lines: Lines, name: FileName, first: int, end: int) -> None:
        """Rows of a file, from the `first` on, behind those that `lines` has."""
        base = len(lines) - first
        count = end - first
        times = np.zeros(count, dtype=np.int64)
        steps = np.full(count, NO_STEP, dtype=np.int64)
        file = f"{self.which} AND tbl = {literal(name.table)} AND stem = {literal(name.stem)}"
        rows = f"{file} AND row >= {first} AND row < {end}"
        numbers = f"attempt = {name.attempt} AND {rows}"
        keys, found = self.ask_keyed("points", numbers, ("row", "step", "time", "value"), ("name", "label"))
        found = _once(_in_order(found, ("key", "row")), ("key", "row"))
        # In the order in which they came first: the last value of a name is that of its last label.
        for key, columns in sorted(_by_key(found), key=lambda item: int(item[1]["row"][0])):
            places = columns["row"].astype(np.int64) - first
            times[places], steps[places] = columns["time"], columns["step"]
            metric, label = keys[key]
            column = lines.columns.setdefault((metric, label), SegmentColumn())
            column.rows.frombytes((places + first + base).tobytes())
            column.values.frombytes(columns["value"].tobytes())
        words = _once(
            _in_order(
                self.engine.select(f"SELECT row, name, label, step, time, text FROM words WHERE {rows}"),
                ("row", "name", "label"),
            ),
            ("row", "name", "label"),
        )
        for row, metric, label, step, moment, word in zip(*words.values(), strict=True) if words else ():
            place = int(row) - first
            times[place], steps[place] = moment, step
            lines.texts.append((int(row) + base, text(metric), text(label), text(word)))
        lines.times.extend(array("q", times.tobytes()))
        lines.steps.extend(array("q", steps.tobytes()))

    # -- questions

    def ask_keyed(
        self, table: str, condition: str, columns: Sequence[str], names: Sequence[str]
    ) -> tuple[dict[int, tuple[str, ...]], Columns]:
        """Rows of a table in which a few texts come again and again: what they are by number, and the columns with that
        number as `key`. Of a million rows, two million texts would be what takes the time."""
        key = f"cityHash64({', '.join(names)}) AS key"
        found = self.engine.select(f"SELECT {key}, {', '.join(columns)} FROM {table} WHERE {condition}")
        if not found:
            return {}, {}
        told = self.engine.select(
            f"SELECT {key}, {', '.join(names)} FROM {table} WHERE {condition} GROUP BY {', '.join(names)}"
        )
        texts = zip(*(told[name] for name in names), strict=True)
        return dict(zip(told["key"].tolist(), (tuple(map(text, item)) for item in texts), strict=True)), found


class StoreSegments:
    """Implements `series_reader.Segments`. Closed files never change, so what was read of them is remembered."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._keys: dict[str, frozenset[tuple[str, str]]] = {}
        self._buckets: dict[tuple[tuple[Path, ...], str], dict[str, Columns]] = {}
        self._asked: tuple[str, ...] = ()
        self._values: dict[tuple[tuple[Path, ...], str], dict[str, Columns]] = {}
        self._summary: tuple[tuple[Path, ...], dict[str, MetricSummary]] = ((), {})

    def is_damaged(self, path: Path) -> bool:
        return False  # the gateway refuses what it cannot read

    def check(self, paths: Iterable[Path]) -> None:
        """Nothing can be cut off here."""

    def learn_keys(self, paths: Iterable[Path]) -> None:
        """What is in several files, with one question."""
        new = [path.stem for path in paths if path.stem not in self._keys]
        if not new:
            return
        found: dict[str, set[tuple[str, str]]] = {stem: set() for stem in new}
        answer = self._files.engine.select(
            f"SELECT stem, name, label FROM extremes WHERE {self._of(new)} GROUP BY stem, name, label"
        )
        for stem, name, label in zip(*answer.values(), strict=True) if answer else ():
            found[text(stem)].add((text(name), text(label)))
        self._keys.update((stem, frozenset(keys)) for stem, keys in found.items())

    def keys(self, path: Path) -> frozenset[tuple[str, str]]:
        """Every (name, label) of a file."""
        self.learn_keys([path])
        return self._keys[path.stem]

    def first_step(self, path: Path) -> int | None:
        """The step of the first line that has one."""
        return known_step(self._files.end_of(path.stem).first_step)

    def learn_buckets(self, paths: Sequence[Path], names: Iterable[str]) -> None:
        """The extremes of several names, with one question."""
        together, self._asked = tuple(paths), tuple(names)
        wanted = [name for name in self._asked if (together, name) not in self._buckets]
        if not wanted:
            return
        listed = ", ".join(map(literal, wanted))
        keys, found = self._ask_extremes(paths, f"name IN ({listed})", _BUCKET_COLUMNS)
        self._buckets.update({(together, name): {} for name in wanted})
        for key, columns in _by_key(found):
            name, label = keys[key]
            self._buckets[together, name][label] = columns

    def points(self, paths: Sequence[Path], name: str, label: str, bounds: Bounds, max_points: int | None) -> Points:
        """Of one series: the extremes of each bucket where these fill a chart of `max_points`, else every value."""
        if (tuple(paths), name) not in self._buckets:
            self.learn_buckets(paths, [name])
        buckets = self._buckets[tuple(paths), name].get(label)
        if buckets is not None and max_points is not None:
            found = points_of_buckets(buckets, bounds, max_points)
            if found is not None:
                return found
        columns = self._read_values(tuple(paths), name, label, bounds) if buckets is not None else None
        if columns is None:
            return Points.whole(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        return bounds.cut(Points.whole(columns["step"], columns["time"], columns["value"]))

    def _read_values(self, together: tuple[Path, ...], name: str, label: str, bounds: Bounds) -> Columns | None:
        """Every value of a series that may be wanted. Of short ones all that are asked for come with one question."""
        if (together, name) not in self._values:
            names = [
                asked for asked in (self._asked if name in self._asked else (name,)) if self._count(together, asked)
            ]
            if sum(self._count(together, asked) for asked in names) > MOST_VALUES:
                names = [name]
            long = self._count(together, name) > MOST_VALUES
            found = self._ask_values(together, names, self._stems_for(together, name, label, bounds) if long else ())
            if long:  # of the range that is wanted, and only now
                return found.get(name, {}).get(label)
            kept = sum(len(columns["row"]) for labels in self._values.values() for columns in labels.values())
            if kept > REMEMBERED_VALUES:
                self._values.clear()
            self._values.update({(together, asked): found.get(asked, {}) for asked in names})
        return self._values[together, name].get(label)

    def _count(self, together: tuple[Path, ...], name: str) -> int:
        labels = self._buckets.get((together, name), {})
        return sum(int(columns["count"].sum()) for columns in labels.values())

    def _stems_for(self, together: tuple[Path, ...], name: str, label: str, bounds: Bounds) -> list[str]:
        buckets = self._buckets[together, name][label]
        return [together[place].stem for place in sorted(set(buckets["file"][bounds.may_hold(buckets)].tolist()))]

    def _ask_values(
        self, together: tuple[Path, ...], names: Sequence[str], stems: Sequence[str]
    ) -> dict[str, dict[str, Columns]]:
        """By name and label; of these files only, if any are given."""
        every = [path.stem for path in together]
        parsed = layout.parse_name(f"{every[0]}.jsonl")
        assert parsed is not None
        file = parsed[0]
        listed = ", ".join(map(literal, names))
        condition = (
            f"{self._of(stems or every)} AND tbl = {literal(file.table)} AND attempt = {file.attempt} "
            f"AND name IN ({listed})"
        )
        columns = (_place_of(every), "row", "step", "time", "value")
        keys, answer = self._files.ask_keyed("points", condition, columns, ("name", "label"))
        answer = _once(_in_order(answer, ("key", "file", "row")), ("key", "file", "row"))
        found: dict[str, dict[str, Columns]] = {}
        for key, series in _by_key(answer):
            name, label = keys[key]
            found.setdefault(name, {})[label] = series
        return found

    def summary(self, paths: Sequence[Path]) -> dict[str, MetricSummary]:
        """What every metric came to. `paths` are in order of writing: the last value is that of the last file."""
        if self._summary[0] != tuple(paths):
            self._summary = (tuple(paths), dict(self._read_summary(paths)))
        return self._summary[1]

    def _read_summary(self, paths: Sequence[Path]) -> Iterator[tuple[str, MetricSummary]]:
        if not paths:
            return
        keys, found = self._ask_extremes(paths, "1 = 1", _SUMMARY_COLUMNS)
        by_name: dict[str, list[Columns]] = {}
        for key, columns in _by_key(found):
            by_name.setdefault(keys[key][0], []).append(columns)
        for name, parts in by_name.items():
            yield name, _summarize({column: np.concatenate([part[column] for part in parts]) for column in parts[0]})

    def changes(self, paths: Sequence[Path], name: str) -> list[tuple[str, int, str]]:
        """(label, microseconds, text) of every line whose text under `name` is another than in the line before."""
        if not paths:
            return []
        stems = [path.stem for path in paths]
        answer = self._files.engine.select(
            f"SELECT {_place_of(stems)}, row, label, time, text FROM words WHERE {self._of(stems)} "
            f"AND name = {literal(name)}"
        )
        rows = _once(_in_order(answer, ("file", "row", "label")), ("file", "row", "label"))
        found, last = [], dict[str, str]()
        for _, _, label, moment, word in zip(*rows.values(), strict=True) if rows else ():
            plain, where = text(word), text(label)
            if last.get(where) != plain:
                last[where] = plain
                found.append((where, int(moment), plain))
        return found

    def _of(self, stems: Sequence[str]) -> str:
        return f"{self._files.which} AND stem IN ({', '.join(map(literal, stems))})"

    def _ask_extremes(
        self, paths: Sequence[Path], condition: str, columns: Sequence[str]
    ) -> tuple[dict[int, tuple[str, ...]], Columns]:
        stems = [path.stem for path in paths]
        wanted = (_place_of(stems), "bucket", *columns)
        keys, found = self._files.ask_keyed("extremes", f"{self._of(stems)} AND {condition}", wanted, ("name", "label"))
        found = _once(_in_order(found, ("key", "file", "bucket")), ("key", "file", "bucket"))
        if found and "low_row" in found:
            found["empty"] = found["low_row"] < 0
        return keys, found


def _list_files(ends: Mapping[str, End]) -> list[tuple[FileName, str, Path]]:
    """As a folder with the same files would list them."""
    found = []
    for path, end in ends.items():
        parsed = layout.parse_name(path)
        if parsed is None:
            continue
        name = parsed[0]
        suffix = ".parquet" if end.sealed else ".jsonl"
        found.append((name, suffix, Path(f"{name.stem}{suffix}")))
    return layout.in_reading_order(found)


def _place_of(stems: Sequence[str]) -> str:
    """SQL for the place of a file among these."""
    return f"toInt64(indexOf([{', '.join(map(literal, stems))}], stem) - 1) AS file"


def _in_order(columns: Columns, by: Sequence[str]) -> Columns:
    if not columns:
        return {}
    keys = [_sortable(columns[name]) for name in reversed(by)]
    order = np.lexsort(keys)
    return {name: _pick(values, order) for name, values in columns.items()}


def _once(columns: Columns, by: Sequence[str]) -> Columns:
    """Without rows that came twice; rows with the same identity stand together."""
    if not columns:
        return {}
    size = len(columns[by[0]])
    new = np.zeros(size, dtype=bool)
    new[:1] = True
    for name in by:
        values = _sortable(columns[name])
        new[1:] |= values[1:] != values[:-1]
    if new.all():
        return columns
    return {name: _pick(values, np.flatnonzero(new)) for name, values in columns.items()}


def _sortable(values: Any) -> NDArray[Any]:
    return values if isinstance(values, np.ndarray) else np.array(values, dtype=object)


def _pick(values: Any, places: NDArray[np.int64]) -> Any:
    return values[places] if isinstance(values, np.ndarray) else [values[place] for place in places]


def _by_key(columns: Columns) -> Iterator[tuple[int, Columns]]:
    """The rows of each key, in their order."""
    if not columns:
        return
    order = np.argsort(columns["key"], kind="stable")
    key = columns["key"][order]
    starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    for start, end in zip(starts, [*starts[1:], len(key)], strict=True):
        places = order[start:end]
        yield int(key[start]), {name: values[places] for name, values in columns.items() if name != "key"}


def _summarize(rows: Columns) -> MetricSummary:
    """Of one name. Of equal extremes the first one counts, as in lines that are not sealed."""
    last = np.lexsort((rows["last_row"], rows["file"]))[-1]
    found = MetricSummary(int(rows["count"].sum()), float(rows["last"][last]), known_step(rows["last_step"][last]))
    found.nonfinite = int(rows["broken"].sum())
    full = np.flatnonzero(rows["low_row"] >= 0)
    if len(full):
        low = full[np.lexsort((rows["low_row"][full], rows["file"][full], rows["low"][full]))[0]]
        high = full[np.lexsort((rows["high_row"][full], rows["file"][full], -rows["high"][full]))[0]]
        found.low, found.low_step = float(rows["low"][low]), known_step(rows["low_step"][low])
        found.high, found.high_step = float(rows["high"][high]), known_step(rows["high_step"][high])
    return found


def _as_rows(lines: Lines) -> Iterator[dict[str, Any]]:
    """Lines as they were written, but for the order of their values."""
    values: list[list[tuple[str, str, Any]]] = [[] for _ in lines.times]
    for (name, label), column in lines.columns.items():
        for place, value in zip(column.rows, column.values, strict=True):
            values[place].append((name, label, spell(value)))
    for place, name, label, word in lines.texts:
        values[place].append((name, label, word))
    for moment, step, found in zip(lines.times, lines.steps, values, strict=True):
        if not found:
            continue  # a line without a value is not kept, here as in a sealed file
        row: dict[str, Any] = {"timestamp": format_time(moment / 1e6)}
        if step != NO_STEP:
            row["step"] = step
        row.update(parse_labels(found[0][1]))
        row.update({name: value for name, _, value in sorted(found)})
        yield row
