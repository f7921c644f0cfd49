"""What a training logs, as Prometheus wants it: counters that survive a resume, a histogram, a summary, newest values.

Their files are listened to from the oldest that is there. How far, and what came of it, is kept in a file of the
agent's runtime folder, so that an agent that was killed is followed by one that counts on from the same line.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals import catalog, runtime
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.encoding import encode_line, number, parse_time
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.listening import Batch, Positions

FINENESS = 8
"""Buckets for a doubling: each is 9 % wider than the one before (schema 3 of native histograms), so that a median,
which may be anywhere in its bucket, is known to 5 %."""
SHORTEST, LONGEST = 2.0**-20, 2.0**20
"""Seconds; what is beyond is in the last bucket on that side, so that there are at most 321."""
FIRST, LAST = -10 * FINENESS, 8 * FINENESS
"""Numbers of the first and the last bucket that a classic histogram tells apart: from a millisecond, a toy's step, to
four minutes, one with gradient accumulation over many nodes."""
BUCKETS = tuple(2.0 ** (number / FINENESS) for number in range(FIRST, LAST + 1))
"""Their upper ends in seconds."""
QUANTILES = (0.5, 0.9, 0.99)
WINDOW = 512
"""Values over which the quantiles of the memory summary are taken."""
MOST_METRICS = 10_000
"""User metrics remembered of one participant; how many are exposed is a setting."""
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
    """One participant so far."""

    steps_total: float = 0.0
    last_step: int | None = None
    last_time: float | None = None
    first_step: int | None = None
    first_time: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    """Newest value of each catalog metric."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Newest value of each of the user's own."""
    left_out: int = 0
    """Metrics beyond those that are remembered, in the line that had most of them."""
    durations: dict[int, int] = field(default_factory=dict)
    """How many steps were in each bucket; number n ends at 2 ** (n / FINENESS) seconds."""
    duration_sum: float = 0.0
    exemplars: dict[int, Exemplar] = field(default_factory=dict)
    """By number of the bucket, LAST + 1 for all beyond the last one."""
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
            self.first_step = step
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
        place = math.ceil(math.log2(min(max(seconds, SHORTEST), LONGEST)) * FINENESS)
        self.durations[place] = self.durations.get(place, 0) + times
        self.duration_sum += seconds * times
        if self.last_step is not None and time is not None:
            self.exemplars[min(max(place, FIRST), LAST + 1)] = Exemplar(self.last_step, seconds, time)

    def count_durations(self) -> list[int]:
        """How many steps took at most as long as each of BUCKETS, and last how many there were."""
        counts = dict(self.durations)
        found, total = [], sum(count for place, count in counts.items() if place < FIRST)
        for place in range(FIRST, LAST + 1):
            total += counts.get(place, 0)
            found.append(total)
        return [*found, sum(counts.values())]

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
            "first_step": self.first_step,
            "first_time": self.first_time,
            "values": dict(self.values),
            "metrics": dict(self.metrics),
            "durations": {str(place): count for place, count in self.durations.items()},
            "duration_sum": self.duration_sum,
            "memory_count": self.memory_count,
            "memory_sum": self.memory_sum,
            "memory_window": list(self.memory_window)[-32:],
        }

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> RankTraining:
        """What `as_json` made and JSON gave back; raises ValueError or TypeError for something else."""
        first, last = number(data.get("first_step")), number(data.get("last_step"))
        return cls(
            steps_total=float(data["steps_total"]),
            first_step=int(first) if first is not None else None,
            last_step=int(last) if last is not None else None,
            last_time=number(data.get("last_time")),
            first_time=number(data.get("first_time")),
            values=_parse_numbers(data.get("values")),
            metrics=_parse_numbers(data.get("metrics")),
            # Once they were called `native`.
            durations={int(place): int(count) for place, count in data.get("durations", data.get("native")).items()},
            duration_sum=float(data["duration_sum"]),
            memory_count=int(data["memory_count"]),
            memory_sum=float(data["memory_sum"]),
            memory_window=deque((float(item) for item in data.get("memory_window", ())), maxlen=WINDOW),
        )


class RunTraining:
    """The participants of one run on this machine: a listener of its training files."""

    name = "exporter"

    def __init__(self, known: Mapping[str, Any] | None = None) -> None:
        self.ranks: dict[Participant, RankTraining] = {}
        self.acknowledged = Positions()
        self._lock = threading.Lock()
        """Counters and positions are changed and saved together."""
        if known is not None:
            try:
                for key, item in known["ranks"].items():
                    if (participant := Participant.parse(key)) is not None:
                        self.ranks[participant] = RankTraining.parse(item)
                # Before there were positions there were offsets.
                self.acknowledged = Positions.parse(known.get("positions") or known["offsets"])
            except (KeyError, TypeError, ValueError, AttributeError):
                self.ranks = {}  # of another version: count again from what is there
        self.positions = self.acknowledged.copy()
        self._saved = self.acknowledged
        self.has_news = False
        """Whether there is something that `as_json` has not given yet."""

    def wants(self, file: FileName) -> bool:
        return file.table == "training"

    def see(self, batch: Batch) -> None:
        with self._lock:
            self.has_news = True
            self.positions.advance(batch.file, batch.end)
            if batch.rows:
                training = self.ranks.setdefault(batch.file.participant, RankTraining())
                for row in batch.rows:
                    training.take(row)

    def as_json(self) -> dict[str, Any]:
        with self._lock:
            self.has_news = False
            self._saved = self.positions.copy()
            ranks = {str(participant): item.as_json() for participant, item in self.ranks.items()}
            return {"ranks": ranks, "positions": self._saved.as_json()}

    def mark_saved(self) -> None:
        """What `as_json` gave last is on disk."""
        self.acknowledged = self._saved


class Trainings:
    """All runs, and the file that remembers them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        saved = runtime.read_json(path) or {}
        self._known: dict[str, Any] = saved.get("runs") or {}
        self.ended = _parse_ends(saved.get("ended"))
        """How many runs ended with this status and kind of cause, since this file began."""
        self._runs: dict[str, RunTraining] = {}
        self._changed = False
        self._saved = 0.0

    def listen_to(self, folder: Path) -> RunTraining:
        """The listener for a run, which continues its counters if it was there before."""
        key = str(folder)
        if key not in self._runs:
            self._runs[key] = RunTraining(self._known.pop(key, None))
        return self._runs[key]

    def keep(self, folders: Iterable[Path]) -> None:
        """Forget all other runs, but for their counters."""
        kept = {str(folder) for folder in folders}
        for folder in [folder for folder in self._runs if folder not in kept]:
            self._known[folder] = _forget_values(self._runs.pop(folder).as_json())
            self._changed = True

    def count_end(self, status: str, cause: Cause | None) -> None:
        """A run has ended."""
        self.ended[status, cause.kind if cause is not None else ""] += 1
        self._changed = True

    def look(self, folder: Path) -> dict[Participant, RankTraining]:
        """What is known of the participants of a run."""
        training = self._runs.get(str(folder))
        return dict(training.ranks) if training is not None else {}

    def save(self, now: float, *, force: bool = False) -> None:
        """Write down how far everything was read. Raises OSError where that is not possible."""
        changed = self._changed or any(run.has_news for run in self._runs.values())
        if not changed or (not force and now - self._saved < SAVE_SECONDS):
            return
        self._saved, self._changed = now, False
        for folder in list(self._known)[: max(len(self._known) - KEPT_RUNS, 0)]:
            del self._known[folder]
        runs = {**self._known, **{folder: run.as_json() for folder, run in self._runs.items()}}
        ended = [[status, cause, count] for (status, cause), count in self.ended.items()]
        try:
            runtime.write_atomically(self._path, encode_line({"runs": runs, "ended": ended}))
        except OSError:
            self._changed = True
            raise
        for run in self._runs.values():
            run.mark_saved()


def _forget_values(run: dict[str, Any]) -> dict[str, Any]:
    """Only the counters: a resumed run logs its values again."""
    for rank in run["ranks"].values():
        rank |= {"values": {}, "metrics": {}, "memory_window": []}
    return run


def _parse_ends(data: object) -> Counter[tuple[str, str]]:
    try:
        return Counter({(str(status), str(cause)): int(count) for status, cause, count in data or ()})  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return Counter()


def _parse_numbers(data: object) -> dict[str, float]:
    if not isinstance(data, dict):
        return {}
    return {str(name): value for name, item in data.items() if (value := number(item)) is not None}
