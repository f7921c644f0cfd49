"""The feed: looks at the world in a thread and makes one frozen snapshot per interval.

Hardware comes from the agent's newest samples; where no agent runs, from sampling here; for a run that has ended or
runs elsewhere, from its folder. The screen says what it wants to show with a `Request` and never waits.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainvitals import catalog, runtime, sources
from trainvitals.analysis.health import Health
from trainvitals.conditions import Conditions
from trainvitals.journal import registrations
from trainvitals.journal.contracts import RunRef, Runs
from trainvitals.journal.documents.latest import LatestSample, read_latest
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.rows import EventRow, new_event
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.folder import is_run
from trainvitals.journal.folder_runs import refer_to
from trainvitals.journal.identity import gpu_number
from trainvitals.sources import Notice, RankProcess, World
from trainvitals.views.data.run_rows import ListedRun, list_rows
from trainvitals.views.panels import PANELS, Panel, find_names, own_panel
from trainvitals.views.tui.snapshot import WELL, Chart, Gpu, Line, ProcessRow, Snapshot, Value

if TYPE_CHECKING:
    from trainvitals.agent.sampling import Sampler
    from trainvitals.views.tui.following import Following
    from trainvitals.views.tui.processes import ProcessList
    from trainvitals.views.tui.tracks import Track, Tracks

AGENT_FRESH_SECONDS = 5.0
"""An agent that has not written for this long (and three intervals) is treated as absent."""
STALE_SECONDS = 3.0
RUNS_SECONDS = 5.0
ENTRIES_SECONDS = 1.0
PROCESS_SECONDS = 1.5
MAX_LINES = 64
"""Curves in one chart; more cannot be told apart."""
HISTORY = 120

LIVE_TABLES = ("gpu", "system", "process")
_CHARTED = {(panel.table, name) for panel in PANELS for name in panel.metrics}


@dataclass(frozen=True, slots=True)
class Request:
    """What the screen wants to show."""

    page: str = "overview"
    filter: str = ""
    """Words that a charted metric must contain."""
    offset: int = 0
    charts: int = 6
    axis: str = "step"
    window: tuple[float, float] | None = None
    """A stretch of the axis in full resolution; None is all of it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for on the command line."""

    run: RunRef | None = None
    runs: Runs | None = None
    """For the list of runs."""
    interval: float = 1.0
    gpus: tuple[str, ...] = ()
    """Indices or UUIDs; empty is all."""
    simulate_gpus: int = 0
    readonly: bool = False
    conditions: Conditions = field(default_factory=Conditions)
    """From which values on numbers are coloured."""
    sources: tuple[str, ...] | None = None
    output: Callable[[], Sequence[str]] | None = None
    """The newest lines of the program that is watched from here."""
    holds: Callable[[int], bool] | None = None
    """Whether a process is of that program: only its runs are followed then, whatever else starts on the machine."""


class Feed:
    """Everything that is read. `read` is for one thread; the rest may be called from any."""

    def __init__(self, options: Options, *, clock: Callable[[], float] = time.time) -> None:
        self.options = options
        self.interval = options.interval
        self._clock = clock
        self._request = Request()
        self._chosen = options.run
        self._found: tuple[str, RunRef] | None = None
        """Id of the run that was found by itself and is shown while none is chosen, and the run."""
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._reset = threading.Event()
        self._thread: threading.Thread | None = None
        self._following: Following | None = None
        self._made_tracks: Tracks | None = None
        self._seen: dict[str, float] = {}
        self._sampler: Sampler | None = None
        self._processes: ProcessList | None = None
        self._process_rows: tuple[ProcessRow, ...] = ()
        self._processes_at = -math.inf
        self._runs: tuple[ListedRun, ...] = ()
        self._runs_at = -math.inf
        self._entries: list[Registration] = []
        self._entries_at = -math.inf
        self._known_panels: tuple[tuple[object, ...], tuple[Panel, ...]] | None = None
        self._notices: deque[EventRow] = deque(maxlen=500)
        self._detail: dict[tuple[Any, ...], tuple[float, list[Any]]] = {}
        self._world = World(
            simulated_gpus=options.simulate_gpus,
            ranks=self._rank_processes,
        )

    @property
    def _live(self) -> Tracks:
        """The history of this machine. Made when it is needed, in the feed's own thread: it imports numpy."""
        if self._made_tracks is None:
            from trainvitals.views.tui.tracks import Tracks

            self._made_tracks = Tracks()
        return self._made_tracks

    # -- for the screen

    def want(self, request: Request) -> None:
        """Say what is to be shown; something new is looked for at once."""
        if request != self._request:
            self._request = request
            self._wake.set()

    def choose(self, row: ListedRun | None) -> None:
        """Show another run of the list; None is whatever runs on this machine."""
        runs = self.options.runs
        self._found = None
        self._chosen = None
        if row is not None and runs is not None:
            self._chosen = RunRef(row.info.place, functools.partial(runs.open, row.key))
        self._wake.set()

    def set_interval(self, interval: float) -> None:
        self.interval = interval
        self._wake.set()

    def reset(self) -> None:
        """Forget the history."""
        self._reset.set()
        self._wake.set()

    def start(self, deliver: Callable[[Snapshot], None]) -> None:
        """Read in a thread of its own until `stop`."""
        self._thread = threading.Thread(target=self._loop, args=(deliver,), name="top-feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it is not waited for, since a file system may hang."""
        self._stop.set()
        self._wake.set()
        if self._sampler is not None:
            self._sampler.end()

    def _loop(self, deliver: Callable[[Snapshot], None]) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            try:
                snapshot = self.read()
            except Exception as error:  # noqa: BLE001 - the boundary around all that is read: the screen stays up
                snapshot = Snapshot(
                    time=self._clock(), host=runtime.host_name(), notes=(f"{type(error).__name__}: {error}",)
                )
            if not self._stop.is_set():
                deliver(snapshot)
            due = max(due + self.interval, time.monotonic())
            # Samples of our own need a moment to come in: look again soon, for a first picture that is whole.
            pause = 0.1 if not snapshot.system and self._sampler is not None else due - time.monotonic()
            if self._wake.wait(max(pause, 0.0)):
                self._wake.clear()
                due = time.monotonic()

    # -- one look

    def read(self) -> Snapshot:
        """Look once."""
        now, request = self._clock(), self._request
        if self._reset.is_set():
            self._reset.clear()
            self._live.clear()
            if self._following is not None:
                self._following.reset()
        if time.monotonic() - self._entries_at >= ENTRIES_SECONDS:
            self._entries_at = time.monotonic()
            self._entries = [entry for _, entry in registrations.read_all()]
        following = self._follow()
        from_folder = following is not None and self._is_elsewhere(following)
        notes: list[str] = []
        if following is not None and from_folder:
            origin, gpus, system = "run folder", following.gpus(), following.system()
        else:
            origin, gpus, system = self._read_live(now, notes)
            if following is not None and "utilization_percent" in following.names("gpu"):
                recorded = {
                    track.label: track.last(HISTORY) for track in following.tracks("gpu", "utilization_percent", "time")
                }
                gpus = tuple(replace(gpu, history=recorded.get(f"GPU {gpu.index}", gpu.history)) for gpu in gpus)
        shown = tuple(gpu for gpu in gpus if self._is_wanted(gpu))
        if gpus and not shown:
            there = ", ".join(gpu.index for gpu in gpus)
            notes.append(f"there is no GPU {' or '.join(self.options.gpus)} here, only {there}")
        gpus = shown
        panels = self._panels(following, from_folder, request.filter)
        charted = panels[request.offset : request.offset + max(request.charts, 0)]
        events = following.events() if following is not None else ()
        changes, active = following.alerts() if following is not None else ((), ())
        firing = tuple(row for row in active if not row.is_silenced(now))
        if following is not None and following.problem:
            notes.append(following.problem)
        return Snapshot(
            time=now,
            host=(following.host() if following is not None and from_folder else "") or runtime.host_name(),
            origin=origin,
            gpus=gpus,
            system=system,
            processes=self._read_processes(request),
            run=following.run(self._entries) if following is not None else None,
            runs=self._read_runs(request),
            health=following.health(firing) if following is not None else judge_machine(gpus),
            alerts=changes,
            active=active,
            firing=firing,
            events=(*events, *self._notices)[-2000:],
            output=self._output(following, request),
            panels=panels,
            charts=tuple(self._chart(panel, following, from_folder, request) for panel in charted),
            notes=tuple(notes),
        )

    def _follow(self) -> Following | None:
        run = self._chosen if self._chosen is not None else self._newest_live()
        if run is None:
            self._following = None
            return None
        if self._following is None or self._following.place != run.place:
            from trainvitals.views.tui.following import Following

            self._following = Following(run)
        self._following.poll()
        return self._following

    def _newest_live(self) -> RunRef | None:
        """The run that was started last among those that run here and are still there."""
        alive = [entry for entry in self._entries if self._is_followed(entry)]
        if alive:
            newest = max(alive, key=lambda entry: entry.run_id)
            # A program that begins several runs lives on as the first of them when a later one has ended.
            is_earlier = self._found is not None and newest.run_id < self._found[0] and is_run(self._found[1].place)
            if self.options.holds is None or not is_earlier:
                self._found = (newest.run_id, refer_to(Path(newest.folder)))
        # The run that was shown until now has ended: it stays on the screen, which says how it ended.
        return self._found[1] if self._found is not None else None

    def _is_followed(self, entry: Registration) -> bool:
        if entry.kind == "monitor" or not runtime.is_same_process(entry.pid, entry.pid_start):
            return False
        if self.options.holds is not None and not self.options.holds(entry.pid):
            return False
        return is_run(entry.folder)

    def _is_elsewhere(self, following: Following) -> bool:
        run = following.run()
        if run is None:
            return False
        return not run.live or following.host() not in ("", runtime.host_name())

    def _is_wanted(self, gpu: Gpu) -> bool:
        wanted = self.options.gpus
        return not wanted or gpu.index.split(":")[0] in wanted or gpu.uuid in wanted

    # -- hardware, live

    def _read_live(self, now: float, notes: list[str]) -> tuple[str, tuple[Gpu, ...], Mapping[str, Value]]:
        latest = read_latest()
        limit = max(AGENT_FRESH_SECONDS, 3 * self.interval)
        written = parse_time(latest.written) if latest is not None else None
        if latest is not None and now - (written or 0.0) <= limit and self.options.simulate_gpus == 0:
            if self._sampler is not None:
                self._sampler.end()
                self._sampler = None
            reasons = {key: unit.reason for key, unit in latest.sources.items() if unit.reason}
            return "agent", *self._take(latest.samples, reasons, now)
        samples, reasons = self._sample_here()
        if not any(sample.table == "gpu" for sample in samples.values()):
            missing = sources.explain_missing_gpus(reasons, self._world.sysfs_root)
            notes.extend([": ".join(missing)] if missing is not None else [])
        return "own sampling", *self._take(samples, reasons, now)

    def _sample_here(self) -> tuple[Mapping[str, LatestSample], dict[str, str]]:
        from trainvitals.agent.demand import Demand
        from trainvitals.agent.log import Log
        from trainvitals.agent.sampling import Sampler

        if self._sampler is None:
            self._sampler = Sampler(Log(Path(os.devnull)).bind(), self._deliver)
        chosen = self.options.sources
        demand = Demand(
            sources=tuple(
                row.name
                for row in sources.REGISTRY
                if (not chosen or row.name in chosen)
                and (row.setting is None or getattr(self.options, row.setting, None))
            ),
            intervals={"process": max(self.interval, 2.0)},
            default_interval=self.interval,
            simulated_gpus=self.options.simulate_gpus,
        )
        self._sampler.want(demand, self._world)
        self._sampler.check()
        reasons = {name: word for name, word in self._sampler.states().items() if word != "ok"}
        reasons |= {unit: health.reason for unit, health in self._sampler.health().items() if health.reason}
        return self._sampler.newest.describe(), reasons

    def _deliver(self, reading: Any) -> None:
        for item in reading.items:
            if isinstance(item, Notice):
                self._notices.append(new_event(item.event, item.message, when=item.time, severity=item.severity))

    def _take(
        self, samples: Mapping[str, LatestSample], reasons: Mapping[str, str], now: float
    ) -> tuple[tuple[Gpu, ...], Mapping[str, Value]]:
        from trainvitals.views.tui.tracks import identity

        gpus: list[Gpu] = []
        system: dict[str, Value] = {}
        for unit, sample in samples.items():
            table, labels, values = sample.table, sample.labels, sample.values
            moment = parse_time(sample.time) or 0.0
            if table not in LIVE_TABLES:
                continue
            key, label, order = identity(table, labels)
            if self._seen.get(unit) != moment:
                self._seen[unit] = moment
                for name, value in values.items():
                    if (table, name) in _CHARTED and isinstance(value, (int, float)):
                        self._live.track(name, label, order, table, name, key).add(moment, float(value))
            if table == "gpu":
                gpus.append(self._gpu(key, unit, labels, values, moment, reasons, now))
            elif table == "system":
                system.update(values)  # the host is read in several parts
        answered = {unit.partition("#")[0] for unit in samples}
        vendors = sources.gpu_sources()
        for unit, reason in reasons.items():
            vendor, _, place = unit.partition(":")
            # A GPU that has never answered has no numbers, but it is there and that must be seen.
            if place and vendor in vendors and place != "events" and unit not in answered:
                index = place if place.isdigit() else "?"
                gpus.append(Gpu(unit, index, "", place if index == "?" else "", {}, 0.0, problem=reason))
        gpus.sort(key=lambda gpu: identity("gpu", _place(gpu))[2])
        return tuple(gpus), system

    def _gpu(
        self,
        key: str,
        unit: str,
        labels: Mapping[str, Any],
        values: Mapping[str, Any],
        moment: float,
        reasons: Mapping[str, str],
        now: float,
    ) -> Gpu:
        state = values.get("state")
        problem = str(state) if isinstance(state, str) and state != "ok" else ""
        age = now - moment
        if not problem and age > max(STALE_SECONDS, 3 * self.interval):
            problem = reasons.get(unit.partition("#")[0], "") or f"no answer for {age:.0f} s"
        track = self._live.get("gpu", "utilization_percent", key)
        return Gpu(
            key=key,
            index=gpu_number(labels),
            name=str(labels.get("gpu_name") or labels.get("vendor") or ""),
            uuid=str(labels.get("gpu_uuid") or ""),
            values=dict(values),
            time=moment,
            problem=problem,
            simulated=bool(labels.get("simulated")),
            host=str(labels.get("host") or ""),
            history=track.last(HISTORY) if track is not None else (),
        )

    # -- charts

    def _panels(self, following: Following | None, from_folder: bool, words: str) -> tuple[Panel, ...]:
        """The panels that have data, most important first; then the user's own metrics."""
        logged: dict[str, set[str]] = {}
        for table in ("training", *LIVE_TABLES):
            names = set(following.names(table)) if following is not None else set()
            if not from_folder and table != "training":
                names |= self._live.names(table)
            logged[table] = names
        # Names are only ever added, so their number tells whether there is anything new among thousands.
        key = (id(following), *(len(names) for names in logged.values()))
        if self._known_panels is None or self._known_panels[0] != key:
            self._known_panels = (key, _choose_panels(logged))
        panels, wanted = self._known_panels[1], words.casefold().split()
        if not wanted:
            return panels
        return tuple(panel for panel in panels if all(any(word in text for text in _texts(panel)) for word in wanted))

    def _chart(self, panel: Panel, following: Following | None, from_folder: bool, request: Request) -> Chart:
        from trainvitals.analysis.rates import rate_of

        axis = request.axis if panel.table == "training" else "time"
        lines: list[Line] = []
        total = 0
        for metric in panel.metrics:
            tracks = self._tracks(panel, metric, axis, following, from_folder)
            if len(panel.metrics) > 1:
                tracks = tracks[:1]  # several metrics of one rank or GPU can be read; of all of them they cannot
            total += len(tracks)
            many = len(tracks) > 1
            for track in tracks[: max(MAX_LINES - len(lines), 0)]:
                x, y = track.points()
                if panel.is_rate:
                    x, y = rate_of(x, y)
                lines.append(Line(track.metric, track.label if many else "", x, y))
        if request.window is not None and following is not None and panel.table == "training":
            lines = self._detailed(panel, axis, lines, following, request.window)
        of = following.place if following is not None else ""
        return Chart(panel, axis, tuple(lines), total, of)

    def _tracks(
        self, panel: Panel, metric: str, axis: str, following: Following | None, from_folder: bool
    ) -> list[Track]:
        live = [] if from_folder else self._live.matching(panel.table, metric)
        if following is None:
            return live
        names = find_names(panel, following.names(panel.table))
        spelled = [name for name in names if name == metric or _means(panel.table, name) == metric]
        recorded = following.tracks(panel.table, spelled[0], axis) if spelled else []
        wanted = self.options.gpus
        if wanted and panel.table == "gpu":
            recorded = [track for track in recorded if track.label.split()[-1].split(":")[0] in wanted]
        return recorded or live

    def _detailed(
        self,
        panel: Panel,
        axis: str,
        lines: list[Line],
        following: Following,
        window: tuple[float, float],
    ) -> list[Line]:
        """The lines with the window read again in full resolution, unless all of it is there already."""
        result = []
        for line in lines:
            inside = int(((line.x >= window[0]) & (line.x <= window[1])).sum())
            key = (following.place, panel.id, line.metric, axis, window)
            if inside < len(line.x) and len(line.x) >= 1000:
                known = self._detail.get(key)
                if known is None or time.monotonic() - known[0] > 5.0:
                    found = following.detail(panel.table, line.metric, axis, *window)
                    self._detail = {key: (time.monotonic(), found)}
                else:
                    found = known[1]
                match = next((item for item in found if item[0] == (line.label or item[0])), None)
                if match is not None and len(match[1]) > inside:
                    line = Line(line.metric, line.label, match[1], match[2])
            result.append(line)
        return result

    # -- the rest

    def _read_processes(self, request: Request) -> tuple[ProcessRow, ...]:
        if request.page != "processes":
            return self._process_rows
        if time.monotonic() - self._processes_at >= PROCESS_SECONDS:
            from trainvitals.views.tui.processes import ProcessList

            if self._processes is None:
                self._processes = ProcessList(self._world)
            self._process_rows = self._processes.read(self._entries)
            self._processes_at = time.monotonic()
        return self._process_rows

    def _read_runs(self, request: Request) -> tuple[ListedRun, ...]:
        runs = self.options.runs
        if runs is not None and request.page == "runs" and time.monotonic() - self._runs_at >= RUNS_SECONDS:
            self._runs = tuple(reversed(list_rows(runs)))
            self._runs_at = time.monotonic()
        return self._runs

    def _output(self, following: Following | None, request: Request) -> tuple[str, ...]:
        if self.options.output is not None:
            return tuple(self.options.output())
        return following.output() if following is not None and request.page == "events" else ()

    def _rank_processes(self) -> Sequence[RankProcess]:
        return [RankProcess(entry.run_id, entry.rank, entry.pid) for entry in self._entries]


def judge_machine(gpus: Sequence[Gpu]) -> Health:
    """The health of a machine on which no run is shown: a GPU that does not answer is the trouble there can be."""
    troubled = [gpu for gpu in gpus if gpu.problem and gpu.problem != "asleep"]
    if not troubled:
        return WELL
    more = f" (and {len(troubled) - 1} more)" if len(troubled) > 1 else ""
    return Health("warning", "warning", f"GPU {troubled[0].index}: {troubled[0].problem}{more}")


def _place(gpu: Gpu) -> dict[str, Any]:
    index, _, part = gpu.index.partition(":")
    place: dict[str, Any] = {"gpu_index": index, "host": gpu.host}
    return {**place, "mig_index": part} if part else place


def _choose_panels(logged: Mapping[str, Iterable[str]]) -> tuple[Panel, ...]:
    declared = [panel for panel in PANELS if panel.chart != "states" and find_names(panel, logged[panel.table])]
    declared.sort(key=lambda panel: panel.importance)
    used = {("training", name) for panel in declared for name in find_names(panel, logged[panel.table])}
    own = [
        own_panel(name)
        for name in sorted(logged["training"])
        if ("training", name) not in used and catalog.find("training", name) is None
    ]
    return (*declared, *own)


def _texts(panel: Panel) -> tuple[str, ...]:
    return (panel.title.casefold(), panel.id.casefold(), *(name.casefold() for name in panel.metrics))


def _means(table: str, name: str) -> str:
    metric = catalog.find(table, name)
    return metric.name if metric is not None else name
