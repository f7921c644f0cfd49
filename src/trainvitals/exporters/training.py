"""What is in the run folders, as Prometheus wants it: counters that survive a resume, a histogram, a summary, the
newest values, and the alerts that fire.

Each rank's files are followed from the start of what is there. How far, and what came of it, is kept in a file of the
agent's runtime folder, so that an agent that was killed is followed by one that counts on from the same line.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals import catalog, runtime
from trainvitals.exporters.store import ActiveAlert, RunView
from trainvitals.journal import layout
from trainvitals.journal.cursor import Cursor
from trainvitals.journal.encoding import encode_line, number, parse_time

# fmt: off
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
# fmt: on
"""Upper ends in seconds: from a toy's step to one with gradient accumulation over many nodes."""
FINENESS = 8
"""Buckets of the native histogram for a doubling: each is 9 % wider than the one before (schema 3)."""
SHORTEST, LONGEST = 2.0**-20, 2.0**20
"""Seconds; what is beyond is in the last bucket on that side, so that there are at most 321."""
QUANTILES = (0.5, 0.9, 0.99)
WINDOW = 512
"""Values over which the quantiles of the memory summary are taken."""
MOST_METRICS = 10_000
"""User metrics remembered of one rank; how many are exposed is a setting."""
MOST_REPEATS = 100_000
KEPT_RUNS = 200
"""Ended runs whose counters are remembered, in case they are resumed."""
SAVE_SECONDS = 5.0

_CANONICAL = {alias: row.name for row in catalog.TRAINING for alias in (row.name, *row.aliases)}


class Exemplar(NamedTuple):
    """A step that fell into a bucket: an example to look at."""

    step: int
    value: float
    time: float


@dataclass(slots=True)
class RankTraining:
    """One rank so far."""

    steps_total: float = 0.0
    last_step: int | None = None
    last_time: float | None = None
    first_time: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    """Newest value of each catalog metric."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Newest value of each of the user's own."""
    left_out: int = 0
    """Metrics beyond those that are remembered, in the line that had most of them."""
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    native: dict[int, int] = field(default_factory=dict)
    """The same durations by fine bucket; number n ends at 2 ** (n / FINENESS) seconds."""
    duration_sum: float = 0.0
    exemplars: dict[int, Exemplar] = field(default_factory=dict)
    memory_count: int = 0
    memory_sum: float = 0.0
    memory_window: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def take(self, row: Mapping[str, Any]) -> None:
        """One line of the journal."""
        time = parse_time(row["timestamp"])
        step = row.get("step")
        advanced, elapsed = self._advance(step if type(step) is int else None, time)
        duration, left_out = None, 0
        for name, item in row.items():
            if name in ("timestamp", "step"):
                continue
            value = number(item)
            if value is None:
                continue
            known = _CANONICAL.get(name)
            if known is None:
                if name in self.metrics or len(self.metrics) < MOST_METRICS:
                    self.metrics[name] = value
                else:
                    left_out += 1
                continue
            self.values[known] = value
            if known == "batch_time":
                duration = value
            elif known == "memory_allocated_mb" and math.isfinite(value):
                self.memory_count += 1
                self.memory_sum += value
                self.memory_window.append(value)
        self.left_out = max(self.left_out, left_out)
        if duration is not None:
            self._observe(duration, 1, time)
        elif "batch_time" not in self.values and advanced and elapsed is not None:
            self._observe(elapsed / advanced, advanced, time)

    def _advance(self, step: int | None, time: float | None) -> tuple[int, float | None]:
        """Count the steps up to this one. Returns how many they were, and the seconds since the last one."""
        if step is None or step == self.last_step:
            return 0, None
        before, since = self.last_step, self.last_time
        self.last_step = step
        if time is not None:
            self.last_time = time
            self.first_time = time if self.first_time is None else self.first_time
        if before is None:
            # A run that is resumed in a new place has done the steps before, and the first is as good as done.
            self.steps_total = max(self.steps_total, float(max(step, 0)))
            return 0, None
        if step < before:
            return 0, None  # resumed from a checkpoint: the steps done again are counted again
        advanced = step - before
        self.steps_total += advanced
        elapsed = time - since if time is not None and since is not None and time > since else None
        return advanced, elapsed

    def _observe(self, seconds: float, times: int, time: float | None) -> None:
        if not math.isfinite(seconds) or seconds < 0:
            return
        times = min(times, MOST_REPEATS)
        place = bisect_left(BUCKETS, seconds)
        self.buckets[place] += times
        fine = math.ceil(math.log2(min(max(seconds, SHORTEST), LONGEST)) * FINENESS)
        self.native[fine] = self.native.get(fine, 0) + times
        self.duration_sum += seconds * times
        if self.last_step is not None and time is not None:
            self.exemplars[place] = Exemplar(self.last_step, seconds, time)

    def quantiles(self) -> list[tuple[float, float]]:
        """(quantile, memory in MB) over the newest values; empty without any."""
        ordered = sorted(self.memory_window)
        if not ordered:
            return []
        return [(share, ordered[min(int(share * len(ordered)), len(ordered) - 1)]) for share in QUANTILES]

    def as_json(self) -> dict[str, Any]:
        """What must survive an agent's death: the counters, and the values that are shown."""
        return {
            "steps_total": self.steps_total,
            "last_step": self.last_step,
            "last_time": self.last_time,
            "first_time": self.first_time,
            "values": dict(self.values),
            "metrics": dict(self.metrics),
            "buckets": list(self.buckets),
            "native": {str(number): count for number, count in self.native.items()},
            "duration_sum": self.duration_sum,
            "memory_count": self.memory_count,
            "memory_sum": self.memory_sum,
            "memory_window": list(self.memory_window)[-32:],
        }

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> RankTraining:
        """What `as_json` made and JSON gave back; raises ValueError or TypeError for something else."""
        buckets = [int(item) for item in data["buckets"]]
        if len(buckets) != len(BUCKETS) + 1:
            raise ValueError("other buckets")
        step = data.get("last_step")
        return cls(
            steps_total=float(data["steps_total"]),
            last_step=int(step) if step is not None else None,
            last_time=number(data.get("last_time")),
            first_time=number(data.get("first_time")),
            values=_parse_numbers(data.get("values")),
            metrics=_parse_numbers(data.get("metrics")),
            buckets=buckets,
            native={int(number): int(count) for number, count in data["native"].items()},
            duration_sum=float(data["duration_sum"]),
            memory_count=int(data["memory_count"]),
            memory_sum=float(data["memory_sum"]),
            memory_window=deque((float(item) for item in data.get("memory_window", ())), maxlen=WINDOW),
        )


class RunTraining:
    """The ranks of one run on this machine."""

    def __init__(self, folder: Path, host: str, known: Mapping[str, Any] | None = None) -> None:
        self._folder = folder
        self._host = layout.host_token(host)
        self._alert_files: dict[str, Cursor] = {}
        self._firing: dict[str, ActiveAlert] = {}
        self._cursors: dict[str, tuple[int, Cursor]] = {}
        self._offsets: dict[str, int] = {}
        self.ranks: dict[int, RankTraining] = {}
        if known is not None:
            try:
                self.ranks = {int(rank): RankTraining.parse(item) for rank, item in known["ranks"].items()}
                self._offsets = {str(name): int(offset) for name, offset in known["offsets"].items()}
            except (KeyError, TypeError, ValueError, AttributeError):
                self.ranks, self._offsets = {}, {}  # of another version: count anew from what is there

    def poll(self, ranks: frozenset[int]) -> bool:
        """Read what is new of these ranks. True if there was something."""
        found = False
        for name, suffix, path in layout.list_files(self._folder):
            if suffix != ".jsonl" or path.name in self._cursors or path.name in self._alert_files:
                continue
            if name.table == "training":
                self._cursors[path.name] = (name.rank or 0, Cursor(path, self._offsets.get(path.name, 0)))
            elif name.table == "alerts" and name.host in (None, self._host):
                self._alert_files[path.name] = Cursor(path)
        for cursor in self._alert_files.values():
            for row in cursor.read():
                self._judge(row)
        for rank, cursor in self._cursors.values():
            if rank not in ranks:
                continue
            rows = cursor.read()
            if rows:
                found = True
                training = self.ranks.setdefault(rank, RankTraining())
                for row in rows:
                    training.take(row)
        return found

    @property
    def alerts(self) -> tuple[ActiveAlert, ...]:
        """What fires now, as the lines of the run's alerts say."""
        return tuple(self._firing.values())

    def _judge(self, row: Mapping[str, Any]) -> None:
        labels = row.get("labels")
        labels = labels if isinstance(labels, dict) else {}
        key = repr((row.get("rule"), sorted((str(name), str(value)) for name, value in labels.items())))
        if row.get("state") == "firing":
            self._firing[key] = ActiveAlert(str(row.get("rule")), str(row.get("severity", "warning")), labels)
        elif row.get("state") == "resolved":
            self._firing.pop(key, None)

    def as_json(self) -> dict[str, Any]:
        offsets = {**self._offsets, **{name: cursor.offset for name, (_, cursor) in self._cursors.items()}}
        return {
            "ranks": {str(rank): item.as_json() for rank, item in self.ranks.items()},
            "offsets": offsets,
        }


class Trainings:
    """All runs, and the file that remembers them."""

    def __init__(self, path: Path, host: str) -> None:
        self._path = path
        self._host = host
        self._known: dict[str, Any] = (runtime.read_json(path) or {}).get("runs") or {}
        self._runs: dict[str, RunTraining] = {}
        self._changed = False
        self._saved = 0.0

    def poll(self, runs: Iterable[RunView]) -> None:
        """Read what the ranks of these runs logged; forget the others, but for their counters."""
        wanted = {str(run.folder): run for run in runs}
        for folder in [folder for folder in self._runs if folder not in wanted]:
            self._known[folder] = _forget_values(self._runs.pop(folder).as_json())
            self._changed = True
        for folder, run in wanted.items():
            training = self._runs.get(folder)
            if training is None:
                training = self._runs[folder] = RunTraining(run.folder, self._host, self._known.pop(folder, None))
            self._changed |= training.poll(run.ranks)

    def look(self, run: RunView) -> tuple[RunView, dict[int, RankTraining]]:
        """The run with its alerts, and what is known of its ranks; nothing of either before the first poll."""
        training = self._runs.get(str(run.folder))
        if training is None:
            return run, {}
        return replace(run, alerts=training.alerts), dict(training.ranks)

    def save(self, now: float, *, force: bool = False) -> None:
        """Write down how far everything was read. Raises OSError where that is not possible."""
        if not self._changed or (not force and now - self._saved < SAVE_SECONDS):
            return
        self._saved, self._changed = now, False
        for folder in list(self._known)[: max(len(self._known) - KEPT_RUNS, 0)]:
            del self._known[folder]
        runs = {**self._known, **{folder: run.as_json() for folder, run in self._runs.items()}}
        runtime.write_atomically(self._path, encode_line({"runs": runs}))


def _forget_values(run: dict[str, Any]) -> dict[str, Any]:
    """Only the counters: a run that is resumed logs its values anew."""
    for rank in run["ranks"].values():
        rank |= {"values": {}, "metrics": {}, "memory_window": []}
    return run


def _parse_numbers(data: object) -> dict[str, float]:
    if not isinstance(data, dict):
        return {}
    return {str(name): value for name, item in data.items() if (value := number(item)) is not None}
