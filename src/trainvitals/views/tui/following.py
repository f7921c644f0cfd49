"""Following one run: its status, its newest values, its curves, its ranks.

What is asked for first is read through the journal's reader; from then on only new lines are looked at, so a run of a
million steps costs no more per second than a young one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from trainvitals import catalog
from trainvitals.alerts import records
from trainvitals.analysis.health import Health, judge_health
from trainvitals.analysis.progress import PACE_STEPS, find_pace, find_progress
from trainvitals.errors import JournalError, RunNotFound
from trainvitals.journal.contracts import RunRef, Series
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.rows import AlertRow, EventRow
from trainvitals.journal.encoding import TimeParser, number, parse_time
from trainvitals.journal.identity import gpu_number
from trainvitals.journal.layout import FileName
from trainvitals.journal.points import Axis
from trainvitals.journal.run_info import RunInfo
from trainvitals.views.data.run_details import find_last_step
from trainvitals.views.data.run_rows import make_row
from trainvitals.views.tui.canvas import Floats
from trainvitals.views.tui.snapshot import Gpu, Rank, Run
from trainvitals.views.tui.tracks import Track, Tracks, identity

FOLLOWED = ("training", "gpu", "system", "process")
LOADED_POINTS = 2000
LEAST_POINTS = 64
RECENT_STEPS = PACE_STEPS
INFO_SECONDS = 1.0
OUTPUT_BYTES = 32 << 10


class Following:
    """One run, live or not. Used by one thread."""

    def __init__(self, run: RunRef) -> None:
        self.place = run.place
        self.problem = ""
        """Why there is nothing new: the run vanished."""
        self._reader = run.open()
        self._follower = self._reader.follow(FOLLOWED, from_end=True)
        self._info: RunInfo | None = None
        self._info_at = -math.inf
        self._tracks = Tracks()
        self._loaded: set[tuple[str, str]] = set()
        self._names: dict[str, set[str]] = {}
        self._values: dict[str, float] = {}
        self._named: dict[str, float] = {}
        """The same under the names that were logged."""
        self._recent: dict[int, deque[tuple[int, float, float | None]]] = {}
        self._lowest_rank: int | None = None
        self._step: int | None = None
        """The newest step of the lowest rank."""
        self._attempt: int | None = None
        self._clock = TimeParser()
        self._small = self._reader.follow(("events", "alerts"))
        self._lines: dict[str, list[dict[str, Any]]] = {"events": [], "alerts": []}
        self._events: tuple[list[dict[str, Any]], tuple[EventRow, ...]] | None = None
        self._alerts: tuple[list[dict[str, Any]], tuple[AlertRow, ...], tuple[AlertRow, ...]] | None = None
        self._gpus: dict[str, tuple[Mapping[str, Any], dict[str, Any], float]] = {}
        self._system: dict[str, Any] = {}
        self._read_once = False

    # -- reading

    def poll(self) -> bool:
        """Take in what is new; True if anything was."""
        try:
            if time.monotonic() - self._info_at >= INFO_SECONDS:
                self._info = self._reader.info
                self._info_at = time.monotonic()
            self.problem = ""
            if not self._read_once:
                self._load_start()
                self._read_once = True
        except RunNotFound:
            self._note_gone()
            return False
        new = False
        for name, row in self._follower.poll():
            new = True
            self._take(name, row)
        return new

    def _series(self, names: Sequence[str], **options: Any) -> list[Series]:
        try:
            return self._reader.series(names, **options)
        except RunNotFound:
            self._note_gone()
            return []

    def _note_gone(self) -> None:
        self.problem = f"the run is gone: {self.place}"

    def _load_start(self) -> None:
        for table in FOLLOWED:
            self._names[table] = set(self._reader.names(table))
        if not self._names["training"]:
            return
        probe = next(
            (name for name in ("batch_time", "step_time", "loss") if name in self._names["training"]),
            min(self._names["training"]),
        )
        at_times = {series.rank: series.x for series in self._newest(probe, "time")}
        is_duration = probe in ("batch_time", "step_time")
        for series in self._newest(probe, "step"):
            times = at_times.get(series.rank, series.x)
            count = min(RECENT_STEPS, len(series.x), len(times))
            recent = self._recent.setdefault(series.rank or 0, deque(maxlen=RECENT_STEPS))
            for step, moment, value in zip(series.x[-count:], times[-count:], series.y[-count:], strict=True):
                recent.append((int(step), float(moment), float(value) if is_duration else None))
        if self._recent:
            self._lowest_rank = min(self._recent)
        info, summary = self._reader.info, self._reader.summary()
        for name, item in summary.items():
            self._named[name] = self._values[canonical(name)] = item.last
        self._step = find_last_step(self._reader, make_row(info.id, info, self._reader.statuses()), summary)

    def _newest(self, name: str, axis: Axis) -> list[Series]:
        """The end of a metric, with the newest steps of every rank in it: of ten million steps only these are read."""
        starts = []
        for series in self._series([name], x=axis, max_points=LEAST_POINTS):
            first, last = float(series.x[0]), float(series.x[-1])
            starts.append(last - (last - first) * min(2 * RECENT_STEPS / series.total, 1.0))
        return self._series([name], x=axis, start=min(starts, default=None))

    def _take(self, file: FileName, row: dict[str, Any]) -> None:
        micros = self._clock.parse(row["timestamp"])
        if micros is None:
            return
        moment = micros / 1e6
        table = file.table
        if table == "training":
            self._take_training(file, row, moment)
            return
        key, _, _ = identity(table, row, file.rank)
        if table == "gpu":
            self._gpus[key] = (row, row, moment)
        elif table == "system":
            self._system.update(row)
        self._append(table, key, file.rank, row, moment, None)

    def _take_training(self, file: FileName, row: dict[str, Any], moment: float) -> None:
        rank = file.rank or 0
        step = row.get("step")
        step = step if isinstance(step, int) and not isinstance(step, bool) else None
        if self._attempt is not None and file.attempt > self._attempt:
            self._tracks.clear()  # steps are logged again: what a later attempt replaced is read anew
            self._loaded.clear()
            self._recent.clear()
        self._attempt = max(file.attempt, self._attempt or 0)
        if self._lowest_rank is None or rank < self._lowest_rank:
            self._lowest_rank = rank
        if rank == self._lowest_rank:
            self._step = step if step is not None else self._step
            for name, item in row.items():
                value = number(item)
                if value is not None and name != "step":
                    self._named[name] = self._values[canonical(name)] = value
        if step is not None:
            duration = number(row.get("batch_time", row.get("step_time")))
            recent = self._recent.setdefault(rank, deque(maxlen=RECENT_STEPS))
            if recent and recent[-1][0] == step:
                duration = duration if duration is not None else recent[-1][2]
                recent[-1] = (step, moment, duration)
            else:
                recent.append((step, moment, duration))
        self._append("training", str(rank), file.rank, row, moment, step)

    def _append(
        self, table: str, key: str, rank: int | None, row: Mapping[str, Any], moment: float, step: int | None
    ) -> None:
        names = self._names.setdefault(table, set())
        for name, item in row.items():
            if (table, name) in self._loaded:
                value = number(item)
                if value is None:
                    continue
                _, label, order = identity(table, row, rank)
                time_track = self._tracks.track(name, label, order, table, name, "time", key)
                if len(time_track) and moment <= time_track.x[-1] and (table != "training" or step is None):
                    continue  # already there: it was written between the first read and now
                time_track.add(moment, value)
                if step is not None:
                    self._tracks.track(name, label, order, table, name, "step", key).add(step, value)
            elif name not in names and number(item) is not None and name not in _NOT_METRICS:
                names.add(name)

    # -- what is known

    def names(self, table: str) -> set[str]:
        return self._names.get(table, set())

    def tracks(self, table: str, name: str, axis: str) -> list[Track]:
        """The curves of one metric, one per rank or GPU; read from the folder when asked for the first time."""
        if (table, name) not in self._loaded:
            self._loaded.add((table, name))
            axes: tuple[Axis, ...] = ("step", "time") if table == "training" else ("time",)
            for one in axes:
                for series in self._series([name], table=table, x=one, max_points=LOADED_POINTS):
                    key, label, order = identity(table, series.labels, series.rank)
                    self._tracks.track(name, label, order, table, name, one, key).extend(series.x, series.y)
        return self._tracks.matching(table, name, axis if table == "training" else "time")

    def detail(self, table: str, name: str, axis: str, start: float, end: float) -> list[tuple[str, Floats, Floats]]:
        """(label, x, y) of a stretch in full resolution, for a zoomed chart."""
        one: Any = axis if table == "training" else "time"
        found = self._series([name], table=table, x=one, start=start, end=end, max_points=LOADED_POINTS)
        return [(identity(table, series.labels, series.rank)[1], series.x, series.y) for series in found]

    def reset(self) -> None:
        """Forget the curves; they start again with what is written from now on."""
        self._tracks.clear()
        self._loaded = {(table, name) for table, names in self._names.items() for name in names}

    def run(self, registered: Sequence[Registration] = ()) -> Run | None:
        """The run as it stands now. `registered` are the ranks of this machine: they say which process is which."""
        info = self._info
        if info is None:
            return None
        steps = self._recent.get(self._lowest_rank if self._lowest_rank is not None else 0)
        live = info.is_live and not self.problem
        pace = find_pace([(place, moment) for place, moment, _ in steps]) if steps else None
        return Run(
            id=info.id,
            name=info.name,
            project=info.project,
            folder=info.place,
            status="gone" if self.problem else info.status,
            cause=self.problem or info.cause_text,
            live=live,
            started=parse_time(info.started),
            ended=parse_time(info.ended),
            attempt=info.attempt,
            simulated=info.simulated,
            step=self._step,
            progress=find_progress(info.file.config or {}, self._step, self._values.get("epoch"), pace, live),
            step_seconds=pace,
            last_step_time=max((recent[-1][1] for recent in self._recent.values() if recent), default=None),
            values=dict(self._values),
            ranks=self._ranks(info.id, registered),
        )

    def health(self, firing: Sequence[AlertRow]) -> Health:
        """In one word, as the page in the browser and the report say it."""
        if self.problem:
            return Health("gone", "critical", self.problem, "Pick another run with 7.")
        info = self._info
        return judge_health(info.status, info.cause_text, firing, self._named) if info is not None else Health("", "ok")

    def host(self) -> str:
        """Where the run's first rank runs or ran."""
        return self._info.file.host_name if self._info is not None else ""

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs as the folder last saw them: for a run that has ended or runs elsewhere."""
        if not self._gpus:
            self._load_gpus()
        found = []
        for key, (labels, values, moment) in self._gpus.items():
            history = self.tracks("gpu", "utilization_percent", "time")
            mine = next((track for track in history if track.label == f"GPU {gpu_number(labels)}"), None)
            found.append(
                Gpu(
                    key=key,
                    index=gpu_number(labels),
                    name=str(labels.get("gpu_name") or ""),
                    uuid=str(labels.get("gpu_uuid") or ""),
                    values={name: value for name, value in values.items() if isinstance(value, (int, float, str))},
                    time=moment,
                    simulated=bool(labels.get("simulated")),
                    host=str(labels.get("host") or ""),
                    history=mine.last(RECENT_STEPS) if mine is not None else (),
                )
            )
        return tuple(sorted(found, key=lambda gpu: identity("gpu", {"gpu_index": gpu.index, "host": gpu.host})[2]))

    def system(self) -> Mapping[str, Any]:
        """The host's numbers as the folder last saw them."""
        if not self._system:
            for series in self._series(sorted(self.names("system")), table="system", x="time", max_points=8):
                if len(series.y):
                    self._system[series.name] = float(series.y[-1])
        return {name: value for name, value in self._system.items() if isinstance(value, (int, float, str))}

    def _load_gpus(self) -> None:
        for series in self._series(sorted(self.names("gpu")), table="gpu", x="time", max_points=8):
            if not len(series.y):
                continue
            key, _, _ = identity("gpu", series.labels)
            labels, values, moment = self._gpus.get(key, (series.labels, {}, 0.0))
            values[series.name] = float(series.y[-1])
            self._gpus[key] = (labels, values, max(moment, float(series.x[-1])))

    def events(self) -> tuple[EventRow, ...]:
        lines = self._all_lines("events")
        if self._events is None or self._events[0] is not lines:
            self._events = (lines, tuple(map(EventRow.parse, lines)))
        return self._events[1]

    def alerts(self) -> tuple[tuple[AlertRow, ...], tuple[AlertRow, ...]]:
        """(every change in order of time, what fires now)."""
        lines = self._all_lines("alerts")
        if self._alerts is None or self._alerts[0] is not lines:
            rows = [AlertRow.parse(line) for line in lines]
            self._alerts = (lines, tuple(records.changes(rows)), tuple(records.current(rows)))
        return self._alerts[1:]

    def output(self) -> tuple[str, ...]:
        """The newest lines the program printed, where that is kept: of the file that was written last."""
        try:
            written = max(self._reader.texts("console"), key=lambda file: (file.modified, file.name))
            found = self._reader.read_text("console", written.name, OUTPUT_BYTES)
        except (ValueError, JournalError):  # there is none, or it was put aside just now
            return ()
        lines = found.text.rstrip("\n").split("\n")
        return tuple(lines[1:] if found.cut else lines)

    def _all_lines(self, table: str) -> list[dict[str, Any]]:
        """Every line of a small table in order of time; the same list until there are more."""
        new: dict[str, list[dict[str, Any]]] = {}
        for name, row in self._small.poll():
            new.setdefault(name.table, []).append(row)
        for found, rows in new.items():
            self._lines[found] = sorted([*self._lines[found], *rows], key=lambda row: str(row["timestamp"]))
        return self._lines[table]

    # -- pieces

    def _ranks(self, run_id: str, registered: Sequence[Registration]) -> tuple[Rank, ...]:
        durations = {rank: _durations(recent) for rank, recent in self._recent.items()}
        usual = _usual(durations)
        hosts = {entry.rank: entry for entry in registered if entry.run_id == run_id}
        processes = self._process_values()
        found = []
        for rank, recent in sorted(self._recent.items()):
            mine = durations[rank]
            entry = hosts.get(rank)
            measured = processes.get(rank, {})
            found.append(
                Rank(
                    rank=rank,
                    host=entry.host if entry else self.host(),
                    pid=entry.pid if entry else None,
                    step=recent[-1][0] if recent else None,
                    step_time=median(list(mine.values())[-20:]) if mine else None,
                    ratios=_against(list(mine.values()), usual),
                    seen=recent[-1][1] if recent else None,
                    cpu_percent=number(measured.get("cpu_percent")),
                    rss_mb=number(measured.get("rss_mb")),
                )
            )
        return tuple(found)

    def _process_values(self) -> dict[int, dict[str, float]]:
        found: dict[int, dict[str, float]] = {}
        for name in ("cpu_percent", "rss_mb"):
            if name in self.names("process"):
                for track in self.tracks("process", name, "time"):
                    if len(track):
                        found.setdefault(track.order[0], {})[name] = track.y[-1]
        return found


_NOT_METRICS = frozenset(
    ("timestamp", "step", "gpu_index", "simulated", "mig_index", "rank", "pid", "gpu_uuid", "host", "stale")
)


def canonical(name: str) -> str:
    """The catalog's name for a training metric, or the name itself."""
    metric = catalog.find("training", name)
    return metric.name if metric is not None else name


def _durations(recent: deque[tuple[int, float, float | None]]) -> dict[int, float]:
    """Step -> seconds: as logged, else the time since the step before."""
    found: dict[int, float] = {}
    before: tuple[int, float] | None = None
    for step, moment, logged in recent:
        if logged is not None and math.isfinite(logged):
            found[step] = logged
        elif logged is None and before is not None and step > before[0] and moment >= before[1]:
            found[step] = (moment - before[1]) / (step - before[0])
        before = (step, moment)
    return found


def _usual(durations: Mapping[int, Mapping[int, float]]) -> list[float]:
    """The newest last: the median over all ranks of their newest step, of the one before it, and so on. Ranks that
    are not in step can be compared like this, too. With one rank it is the median of its own steps."""
    newest = [list(mine.values())[-RECENT_STEPS:] for mine in durations.values() if mine]
    if not newest:
        return []
    longest = max(len(mine) for mine in newest)
    if len(durations) == 1:
        return [median(newest[0])] * longest
    return [median([mine[-place] for mine in newest if len(mine) >= place]) for place in range(longest, 0, -1)]


def _against(mine: Sequence[float], usual: Sequence[float]) -> tuple[float | None, ...]:
    """Each of the newest steps as a multiple of what is usual; None where this rank has no such step."""
    missing = [None] * (len(usual) - len(mine))
    shown = mine[-len(usual) :] if usual else []
    return (
        *missing,
        *(own / other if other > 0 else None for own, other in zip(shown, usual[-len(shown) :], strict=True)),
    )
