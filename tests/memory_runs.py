"""Runs held in memory: a second implementation of what views ask for, with no folder, no files and no DuckDB.

It is written for being plain, not fast: every question goes through all rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trainvitals.errors import JournalError, RunNotFound
from trainvitals.journal import layout
from trainvitals.journal.alert_tallies import tally
from trainvitals.journal.console import show
from trainvitals.journal.contracts import (
    AlertTally,
    Extent,
    MediaItem,
    Patch,
    RunRef,
    Series,
    States,
    TextFile,
    TextKind,
    TextPart,
)
from trainvitals.journal.damage import Damage
from trainvitals.journal.documents.benchmark import Benchmark
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.rows import AlertRow, EventRow
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.documents.view import ViewFile
from trainvitals.journal.downsample import pick
from trainvitals.journal.encoding import TimeParser, number, parse_time, spell_all
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.points import Axis
from trainvitals.journal.row_cache import MakeRow
from trainvitals.journal.run_info import RunInfo
from trainvitals.journal.segment_writer import labels_of, parse_labels, split_labels
from trainvitals.journal.summaries import MetricSummary

Row = dict[str, Any]
TABLES = (*layout.METRIC_TABLES, *layout.LINE_TABLES)


@dataclass
class MemoryRun:
    """One run. Rows may be added while it is read."""

    file: RunFile
    rows: list[tuple[FileName, Row]] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)
    texts: dict[tuple[TextKind, str], bytes] = field(default_factory=dict)
    histograms: list[Row] = field(default_factory=list)
    media: list[MediaItem] = field(default_factory=list)
    findings: FindingsFile | None = None
    patches: list[Patch] = field(default_factory=list)

    @classmethod
    def of_folder(cls, folder: Path) -> MemoryRun:
        """All that is in a folder."""
        from trainvitals.journal.reader import RunReader

        reader = RunReader(folder)
        kinds: tuple[TextKind, ...] = ("console", "stack")
        return cls(
            reader.info.file,
            reader.follow(TABLES).poll(),
            reader.statuses(),
            {
                (kind, file.name): (folder / (layout.STACKS if kind == "stack" else "") / file.name).read_bytes()
                for kind in kinds
                for file in reader.texts(kind)
            },
            [row for name in reader.histogram_names() for row in reader.histograms(name)],
            [replace(item, read=partial(bytes, item.read())) for item in reader.media()],
            reader.findings(),
            [replace(item, read=partial(bytes, item.read())) for item in reader.patches() if not item.about.missing],
        )


@dataclass(frozen=True)
class Value:
    """One number or word of one row."""

    name: str
    label: str
    file: FileName
    step: int | None
    micros: int
    value: float | None
    text: str


class MemoryFeed:
    def __init__(self, run: MemoryRun, tables: Sequence[str], from_end: bool) -> None:
        self._run = run
        self._tables = tables
        self._place = len(run.rows) if from_end else 0

    def poll(self, limit: int | None = None) -> list[tuple[FileName, Row]]:
        new = self._run.rows[self._place :]
        self._place += len(new)
        return [(file, dict(row)) for file, row in new if file.table in self._tables]


class MemoryReader:
    def __init__(self, key: str, runs: dict[str, MemoryRun]) -> None:
        self._key = key
        self._runs = runs

    @property
    def _run(self) -> MemoryRun:
        if self._key not in self._runs:
            raise RunNotFound(f"run {self._key} was removed")
        return self._runs[self._key]

    @property
    def info(self) -> RunInfo:
        file = self._run.file
        status, cause = file.status, file.cause
        for reported in self._run.statuses:
            if not file.is_over and reported.attempt == file.attempt and reported.state in ("stalled", "hung"):
                status, cause = reported.state, reported.cause
        return RunInfo(
            place=f"memory:{self._key}",
            folder=None,
            id=file.id or self._key,
            project=file.project or "",
            name=file.name or file.id or self._key,
            status=status,
            cause=cause,
            started=file.started,
            ended=file.ended,
            attempt=file.attempt,
            simulated=file.simulated,
            file=file,
        )

    def statuses(self) -> list[Status]:
        return list(self._run.statuses)

    def findings(self) -> FindingsFile | None:
        return self._run.findings

    def view(self) -> ViewFile | None:
        return None

    def damage(self) -> Damage:
        return Damage()

    def stamp(self) -> object:
        return len(self._run.rows)

    # -- numbers and words

    def tables(self) -> list[str]:
        return sorted({file.table for file, _ in self._run.rows if file.table in layout.METRIC_TABLES})

    def names(self, table: str = "training") -> list[str]:
        return sorted({item.name for item in self._values(table) if item.value is not None})

    def labels(self, table: str) -> list[dict[str, Any]]:
        return [parse_labels(text) for text in sorted({v.label for v in self._values(table) if v.value is not None})]

    def participants(self, attempt: int | None = None) -> list[Participant]:
        listed = {file for file, _ in self._run.rows if file.table == "training"}
        return sorted({file.participant for file in listed if attempt in (None, file.attempt)})

    def _files(self, table: str) -> list[tuple[FileName, list[Row]]]:
        """The rows of each file, writer after writer in order of time."""
        found: dict[FileName, list[Row]] = {}
        for file, row in self._run.rows:
            if file.table == table:
                found.setdefault(file, []).append(row)

        def order(item: tuple[FileName, list[Row]]) -> Any:
            file = item[0]
            return (file.participant, file.pid or 0, file.host or ""), file.order

        return sorted(found.items(), key=order)

    def _values(self, table: str) -> list[Value]:
        clock, found = TimeParser(), []
        for file, rows in self._files(table):
            for row in rows:
                rest = dict(row)
                micros = clock.parse(rest.pop("timestamp"))
                step = rest.pop("step", None)
                label = split_labels(table, rest)
                for name, item in rest.items():
                    found.append(Value(name, label, file, step, micros or 0, number(item), str(item)))
        return found

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
        wanted = None if participants is None else set(participants)
        origin = (parse_time(self.info.started) or 0.0) if x == "relative" else 0.0
        values = [item for item in self._values(table) if item.value is not None]
        found = []
        for name in dict.fromkeys(names):
            lines: dict[tuple[Any, str], list[Value]] = {}
            for item in values:
                if item.name == name and (wanted is None or item.file.participant in wanted):
                    lines.setdefault((item.file.writer, item.label), []).append(item)
            for (_, label), line in sorted(lines.items(), key=_order_of_line):
                kept = line if all_attempts or table != "training" else self._newest_attempts(line)
                points = [
                    (at, item.value)
                    for item in kept
                    if (at := _place(item, x, origin)) is not None
                    and (start is None or at >= start)
                    and (end is None or at <= end)
                ]
                if not points:
                    continue
                points.sort(key=lambda point: point[0])
                axis, ys = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
                broken = int((~np.isfinite(ys)).sum())
                total = len(ys)
                if max_points is not None and total > max_points:
                    chosen = pick(ys, max_points)
                    axis, ys = axis[chosen], ys[chosen]
                labels = labels_of(line[0].file, label)
                found.append(Series(name, labels, line[0].file.rank, axis, ys, total, broken))
        return found

    def _newest_attempts(self, line: list[Value]) -> list[Value]:
        """Without the steps that a later attempt logged again."""
        firsts: dict[int, int] = {}
        for file, rows in self._files("training"):
            if file.writer == line[0].file.writer:
                steps = [row["step"] for row in rows if row.get("step") is not None]
                if steps:
                    firsts.setdefault(file.attempt, steps[0])
        return [
            item
            for item in line
            if all(
                item.step is not None and item.step < first
                for attempt, first in firsts.items()
                if attempt > item.file.attempt
            )
        ]

    def states(self, names: Iterable[str], *, table: str = "gpu") -> list[States]:
        found = []
        for name in dict.fromkeys(names):
            lines: dict[tuple[Any, str], list[Value]] = {}
            for item in self._values(table):
                if item.name == name and item.value is None:
                    lines.setdefault((item.file.writer, item.label), []).append(item)
            for (_, label), line in sorted(lines.items(), key=_order_of_line):
                changes: list[tuple[float, str]] = []
                for item in line:
                    if not changes or changes[-1][1] != item.text:
                        changes.append((item.micros / 1e6, item.text))
                found.append(States(name, labels_of(line[0].file, label), line[0].file.rank, changes))
        return found

    def summary(self, table: str = "training", participant: Participant | None = None) -> dict[str, MetricSummary]:
        values = [item for item in self._values(table) if item.value is not None]
        if values and table == "training":
            chosen = participant or min(item.file.participant for item in values)
            values = [item for item in values if item.file.participant == chosen]
        found: dict[str, MetricSummary] = {}
        for item in values:
            value = item.value
            assert value is not None
            known = found.setdefault(item.name, MetricSummary(0, value, item.step))
            known.count += 1
            known.last, known.last_step = value, item.step
            known.widen(value, item.step)
        return dict(sorted(found.items()))

    def newest_steps(self, count: int) -> list[tuple[int, float]]:
        files = self._files("training")
        files = [item for item in files if item[0].writer == files[0][0].writer]
        newest = max((file.attempt for file, _ in files), default=1)
        rows = [row for file, rows in files if file.attempt == newest for row in rows if row.get("step") is not None]
        return [(row["step"], parse_time(row["timestamp"]) or 0.0) for row in rows[-count:]]

    def first_steps(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for file, rows in self._files("training"):
            for row in rows:
                if row.get("step") is not None:
                    found.setdefault(file.attempt, row["step"])
        return found

    def histogram_names(self) -> list[str]:
        return list(dict.fromkeys(str(row["name"]) for row in self._run.histograms))

    def histograms(self, name: str) -> list[Row]:
        return [row for row in self._run.histograms if row["name"] == name]

    # -- lines

    def events(self) -> list[EventRow]:
        return [EventRow.parse(row) for row in self._lines("events")]

    def alerts(self) -> list[AlertRow]:
        return [AlertRow.parse(row) for row in self._lines("alerts")]

    def count_benchmarks(self) -> int:
        return 0

    def benchmarks(self) -> list[Benchmark]:
        return []

    def _lines(self, table: str) -> list[Row]:
        rows = [row for file, row in self._run.rows if file.table == table]
        return sorted(rows, key=lambda row: str(row["timestamp"]))

    def extent(self, table: str = "training") -> Extent:
        return {file.stem: len(rows) for file, rows in self._files(table)}

    def rows(self, table: str = "training", extent: Extent | None = None) -> Iterator[Row]:
        for file, rows in self._files(table):
            added = file.participant.labels if file.rank is not None else {}
            added |= {"attempt": file.attempt} if file.attempt > 1 else {}
            for row in rows[: len(rows) if extent is None else extent.get(file.stem, 0)]:
                yield {**row, **{key: value for key, value in added.items() if key not in row}}

    def follow(self, tables: Sequence[str] = ("training",), *, from_end: bool = False) -> MemoryFeed:
        return MemoryFeed(self._run, tables, from_end)

    # -- texts

    def texts(self, kind: TextKind) -> list[TextFile]:
        return [TextFile(name, len(data), 0.0) for (of, name), data in self._run.texts.items() if of == kind]

    def read_text(self, kind: TextKind, name: str, limit: int, after: int | None = None) -> TextPart:
        data = self._run.texts.get((kind, name))
        if data is None:
            raise JournalError(f"no file '{name}' in this run")
        begin = after if after is not None and after <= len(data) else 0
        start = max(len(data) - limit, begin)
        rest = data[start:]
        text = show(rest.decode("utf-8", "replace"))
        return TextPart(name, len(data), start, start + rest.rfind(b"\n") + 1, start > begin, text)

    # -- media

    def patches(self) -> list[Patch]:
        return self._run.patches

    def media(self) -> list[MediaItem]:
        return list(self._run.media)


def _order_of_line(entry: tuple[tuple[Any, str], list[Value]]) -> Any:
    file = entry[1][0].file
    return file.participant, file.pid or 0, file.host or "", entry[0][1]


def _place(item: Value, x: Axis, origin: float) -> float | None:
    if x == "step":
        return None if item.step is None else float(item.step)
    return item.micros / 1e6 - origin


class MemoryRuns:
    """Implements `contracts.Runs`."""

    place = "memory"

    def __init__(self, **runs: MemoryRun) -> None:
        self.runs = dict(runs)

    def list_keys(self) -> list[str]:
        return list(self.runs)

    def find(self, reference: str) -> str:
        if reference == "latest" and self.runs:
            return next(reversed(self.runs))
        if reference not in self.runs:
            raise RunNotFound(f"no run '{reference}'")
        return reference

    def describe(self, key: str) -> RunInfo:
        return self.open(key).info

    def statuses(self, key: str) -> list[Status]:
        return self.open(key).statuses()

    def alerts(self, key: str) -> list[AlertRow]:
        return self.open(key).alerts()

    def tally_alerts(self, rules: Collection[str], start: float, end: float) -> list[AlertTally]:
        return tally(self.runs, self.alerts, rules, start, end)

    def findings(self, key: str) -> FindingsFile | None:
        return self.open(key).findings()

    def has_values(self, key: str) -> bool:
        return bool(self.open(key).names())

    def recall(self, key: str, make: MakeRow) -> Row:
        return json.loads(json.dumps(spell_all(make().row)))  # type: ignore[no-any-return]

    def has_folder(self, project: str) -> bool:
        return False

    def find_view(self, project: str) -> ViewFile | None:
        return None

    def keep_rows(self) -> None:
        """A row is made again each time."""

    def open(self, key: str) -> MemoryReader:
        return MemoryReader(key, self.runs)

    def refer_to(self, key: str) -> RunRef:
        return RunRef(f"memory:{key}", lambda: self.open(key))
