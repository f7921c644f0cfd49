"""What the ranks of this machine log: read once, a bounded piece at a time, never twice.

How far each file was read and what came out of it are kept together in status.json, so an agent that was killed is
followed by one that goes on from there, with nothing missed and nothing counted twice.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from trainvitals.journal import layout
from trainvitals.journal.cursor import Cursor, Damage, parse_line
from trainvitals.journal.documents.status import MetricStatus, Status
from trainvitals.journal.encoding import number
from trainvitals.journal.layout import FileName

PIECE = 512 << 10
"""Bytes of one file at a time, so that a fast trainer does not keep the agent from everything else."""
CLOCK_TICK_NS = 100_000_000
RELIST_SECONDS = 5.0
CLOSED_SECONDS = 5.0
"""A file that was read to its end and has had a successor for this long is not looked at again."""
MOST_NAMES = 2000
"""Metrics with a summary; of the rest only the values are counted."""

_TABLE = "training"
_PREFIX = f"{_TABLE}_metrics_"
_LINE_START = b'{"timestamp":"'


@dataclass(slots=True)
class Growth:
    """What a rank logged since the last look."""

    lines: int = 0
    step: int | None = None
    timestamp: str | None = None


@dataclass(slots=True)
class _File:
    name: FileName
    cursor: Cursor
    at_end: bool = False
    """Nothing more was found at the last look."""
    superseded: float = math.inf
    """Monotonic time at which its writer was seen to have begun another file."""


class Following:
    """The training files of some ranks of a run folder, with a summary of the lowest of these ranks."""

    def __init__(self, folder: Path, known: Status) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}
        self._changed = 0
        self._next_list = 0.0
        self._ranks: frozenset[int] = frozenset()
        self._summarised = 0
        self._positions = known.positions
        self._earlier = Damage(known.damage.torn, known.damage.foreign)
        self.summary = Summary.parse(known)
        self.listen: Callable[[int, dict[str, Any]], None] | None = None
        """Is given every line of every rank."""

    def set_ranks(self, ranks: Iterable[int], summarised: int) -> None:
        """Whose files to follow, and of which rank to keep the summary."""
        self._ranks = frozenset(ranks)
        self._summarised = summarised
        self._next_list = 0.0
        self.find_files()

    @property
    def damage(self) -> Damage:
        """Lines that could not be understood."""
        return sum((file.cursor.damage for file in self._files.values()), self._earlier)

    @property
    def positions(self) -> dict[str, int]:
        """How far each file was read, in bytes."""
        return {name: file.cursor.offset for name, file in self._files.items()}

    def has_read(self, name: str, persisted: Mapping[str, int]) -> bool:
        """Whether the file was read to its end, and that is safely written down."""
        file = self._files.get(name)
        return file is None or (file.at_end and persisted.get(name) == file.cursor.offset)

    def poll(self) -> dict[int, Growth]:
        """Read a piece of what is new, by rank; empty when there is nothing new."""
        self.find_files()
        found: dict[int, Growth] = {}
        behind: set[object] = set()
        now = time.monotonic()
        for file in self._files.values():
            writer = file.name.writer
            if file.at_end and now - file.superseded > CLOSED_SECONDS:
                continue
            if writer in behind:
                continue  # the older file first: the last value must be the newest
            rank = file.name.rank or 0
            growth = Growth()
            if rank == self._summarised or self.listen is not None:
                consumed = file.cursor.feed(self._understand(rank, growth, file.cursor.damage), PIECE)
            else:
                skim = _Skim(growth, file.cursor.damage)
                consumed = file.cursor.feed(skim.take, PIECE)
                skim.finish()
            file.at_end = consumed == 0
            if consumed >= PIECE:
                behind.add(writer)
            if growth.lines:
                _merge(found, rank, growth)
        return found

    def silence(self, rank: int) -> float:
        """For how many seconds the rank's files have not changed, by their own time."""
        newest = 0.0
        for file in self._files.values():
            if (file.name.rank or 0) == rank:
                try:
                    newest = max(newest, file.cursor.path.stat().st_mtime)
                except FileNotFoundError:
                    continue
        return max(time.time() - newest, 0.0) if newest else 0.0

    def find_files(self) -> None:
        """Notice files that are new or gone; cheap when the folder has not changed."""
        try:
            changed = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return
        now = time.monotonic()
        if changed == self._changed and now < self._next_list:
            return
        self._changed = changed
        # A folder changed just now may change again within the same tick of the file system's clock.
        settled = time.time_ns() - changed > CLOCK_TICK_NS
        self._next_list = now + RELIST_SECONDS if settled else 0.0
        names = {entry.name for entry in os.scandir(self._folder) if entry.name.startswith(_PREFIX)}
        for gone in self._files.keys() - names:
            self._earlier += self._files.pop(gone).cursor.damage
        new = [parsed[0] for name in names - self._files.keys() if (parsed := layout.parse_name(name))]
        for name in new:
            if (name.rank or 0) in self._ranks:
                offset = self._positions.get(name.jsonl)
                cursor = Cursor(self._folder / name.jsonl, offset if isinstance(offset, int) else 0)
                self._files[name.jsonl] = _File(name, cursor)
        if new:
            ordered = sorted(self._files.items(), key=lambda item: (item[1].name.attempt, item[1].name.stamp))
            self._files = dict(ordered)
            newest = {file.name.writer: file for file in self._files.values()}
            for file in self._files.values():
                if newest[file.name.writer] is not file:
                    file.superseded = min(file.superseded, now)

    def _understand(self, rank: int, growth: Growth, damage: Damage) -> Callable[[bytes], None]:
        add = self.summary.add if rank == self._summarised else _step_of
        listen = self.listen

        def take(line: bytes) -> None:
            row = parse_line(line, damage)
            if row is not None:
                growth.lines += 1
                growth.timestamp = row["timestamp"]
                step = add(row)
                if step is not None:
                    growth.step = step
                if listen is not None:
                    listen(rank, row)

        return take


def _step_of(row: Mapping[str, Any]) -> int | None:
    step = row.get("step")
    return step if type(step) is int else None


class _Skim:
    """Counts lines and understands only the last of them: cheap enough for the ranks that have no summary."""

    def __init__(self, growth: Growth, damage: Damage) -> None:
        self._growth = growth
        self._damage = damage
        self._last = b""

    def take(self, line: bytes) -> None:
        looks_right = line.startswith(_LINE_START) and line.endswith(b"}")
        if looks_right or parse_line(line, self._damage) is not None:
            self._growth.lines += 1
            self._last = line

    def finish(self) -> None:
        try:
            row = orjson.loads(self._last) if self._last else {}
        except orjson.JSONDecodeError:
            return  # two lines in one, from a full disk: the reader counts it
        self._growth.timestamp = row.get("timestamp")
        step = row.get("step")
        self._growth.step = step if type(step) is int else None


def _merge(found: dict[int, Growth], rank: int, growth: Growth) -> None:
    known = found.setdefault(rank, growth)
    if known is not growth:
        known.lines += growth.lines
        known.step = growth.step if growth.step is not None else known.step
        known.timestamp = growth.timestamp or known.timestamp


# -- the summary


@dataclass(slots=True)
class Extremes:
    """One metric so far. `low` and `high` look at finite values only."""

    last: float
    last_step: int | None
    low: float = math.inf
    low_step: int | None = None
    high: float = -math.inf
    high_step: int | None = None
    count: int = 1
    nonfinite: int = 0

    def widen(self, value: float, step: int | None) -> None:
        """Take in a value outside of what was seen."""
        if not math.isfinite(value):
            self.nonfinite += 1
            return
        if value < self.low:
            self.low, self.low_step = value, step
        if value > self.high:
            self.high, self.high_step = value, step

    def describe(self) -> MetricStatus:
        known = self.low <= self.high
        return MetricStatus(
            last=self.last,
            last_step=self.last_step,
            low=self.low if known else None,
            low_step=self.low_step,
            high=self.high if known else None,
            high_step=self.high_step,
            count=self.count,
            nonfinite=self.nonfinite,
        )

    @classmethod
    def parse(cls, known: MetricStatus) -> Extremes:
        """What `describe` gave."""
        return cls(
            known.last if known.last is not None else math.nan,
            known.last_step,
            known.low if known.low is not None else math.inf,
            known.low_step,
            known.high if known.high is not None else -math.inf,
            known.high_step,
            known.count,
            known.nonfinite,
        )


@dataclass(slots=True)
class Summary:
    """Last, lowest and highest value of each metric."""

    metrics: dict[str, Extremes] = field(default_factory=dict)
    left_out: int = 0
    """Values of metrics beyond the limit."""

    def add(self, row: Mapping[str, Any]) -> int | None:
        """Take one line in. Returns its step, None if it has none."""
        metrics = self.metrics
        step = row.get("step")
        if type(step) is not int:
            step = None
        for name, item in row.items():
            if name == "timestamp" or name == "step":
                continue
            value = item if type(item) is float else number(item)
            if value is None:
                continue
            known = metrics.get(name)
            if known is None:
                if len(metrics) >= MOST_NAMES:
                    self.left_out += 1
                    continue
                metrics[name] = known = Extremes(value, step)
                known.widen(value, step)
                continue
            known.count += 1
            known.last = value
            known.last_step = step
            if not known.low <= value <= known.high:
                known.widen(value, step)
        return step

    def describe(self) -> dict[str, MetricStatus]:
        return {name: item.describe() for name, item in self.metrics.items()}

    @classmethod
    def parse(cls, status: Status) -> Summary:
        """From what an earlier agent left in status.json."""
        return cls({name: Extremes.parse(item) for name, item in status.summary.items()}, status.summary_left_out)
