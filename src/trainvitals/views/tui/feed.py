"""The feed: reads everything in a thread and makes one frozen snapshot per interval.

Hardware comes from the agent's newest samples; where no agent runs, from sampling here; for a run that has ended or
runs elsewhere, from its folder. The screen requests what it shows with a `Request` and never waits.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from trainvitals import runtime
from trainvitals.analysis.health import Health
from trainvitals.errors import MachineError
from trainvitals.journal import registrations
from trainvitals.journal.contracts import RunRef
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.sources import RankProcess, World
from trainvitals.views.data.run_rows import ListedRun, list_rows
from trainvitals.views.tui.chart_reader import ChartReader
from trainvitals.views.tui.hardware import HISTORY, Hardware, HardwareNow
from trainvitals.views.tui.machine_alerts import find_machine_alerts
from trainvitals.views.tui.options import TopOptions
from trainvitals.views.tui.paced import Paced
from trainvitals.views.tui.run_choice import RunChoice
from trainvitals.views.tui.snapshot import WELL, Gpu, ProcessRow, Request, Snapshot

if TYPE_CHECKING:
    from trainvitals.views.data.machines import MachineNow
    from trainvitals.views.tui.processes import ProcessList
    from trainvitals.views.tui.run_findings import RunFindings
    from trainvitals.views.tui.shown_run import ShownRun

RUNS_SECONDS = 5.0
REGISTERED_SECONDS = 1.0
PROCESS_SECONDS = 1.5
ON_GPUS_SECONDS = 3.0
"""Who is on the GPUs changes seldom, and the overview is made to stay open."""
FIRST_SAMPLE_SECONDS = 0.1
KEPT_EVENTS = 2000


class Feed:
    """All readers together. `read` is for one thread; the rest may be called from any."""

    def __init__(self, options: TopOptions, *, clock: Callable[[], float] = time.time) -> None:
        self.options = options
        self.interval = options.interval
        self.request = Request()
        self.shown: ShownRun | None = None
        self.findings: RunFindings | None = None
        """Of `shown`."""
        self.registered: Paced[list[Registration]] = Paced(_read_registered, REGISTERED_SECONDS, [])
        self._clock = clock
        self._trouble = ""
        """Why the chosen run cannot be opened now."""
        self._choice = RunChoice(options.run, options.holds)
        self._world = World(simulated_gpus=options.simulate_gpus, ranks=self._list_rank_processes)
        self._hardware = Hardware(options, self._world)
        self._charts = ChartReader(options.gpus)
        self._process_list: ProcessList | None = None
        self._processes: Paced[tuple[ProcessRow, ...]] = Paced(self._read_processes, PROCESS_SECONDS, ())
        self._on_gpus: Paced[tuple[ProcessRow, ...]] = Paced(self._read_on_gpus, ON_GPUS_SECONDS, ())
        self._runs: Paced[tuple[ListedRun, ...]] = Paced(self._list_runs, RUNS_SECONDS, ())
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._reset = threading.Event()

    # -- for the screen

    def want(self, request: Request) -> None:
        """Request what is to be shown; new requests are read at once."""
        if request != self.request:
            self.request = request
            self._wake.set()

    def choose(self, row: ListedRun | None) -> None:
        """Show another run of the list; None is whatever runs on this machine."""
        runs = self.options.runs
        if row is None or runs is None:
            self._choice.choose(None)
            self._trouble = ""
        else:
            self._choice.choose(RunRef(row.info.place, functools.partial(runs.open, row.key)))
        self._wake.set()

    def set_interval(self, interval: float) -> None:
        self.interval = interval
        self._wake.set()

    def reset(self) -> None:
        """Forget the history."""
        self._reset.set()
        self._wake.set()

    def start(self, deliver: Callable[[Snapshot], None]) -> None:
        """Read in a thread until `stop`."""
        threading.Thread(target=self._loop, args=(deliver,), name="top-feed", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to stop; it is not joined, since a file system may hang."""
        self._stop.set()
        self._wake.set()
        self._hardware.end()

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
            # Our own samples take a moment: read again soon, for a complete first frame.
            is_first = not snapshot.system and self._hardware.is_sampled_here
            if self._wake.wait(FIRST_SAMPLE_SECONDS if is_first else max(due - time.monotonic(), 0.0)):
                self._wake.clear()
                due = time.monotonic()

    # -- one look

    def read(self) -> Snapshot:
        """Look once."""
        now, request = self._clock(), self.request
        registered = self.registered.get()
        shown = self.shown = self._follow(self._choice.find(registered))
        if self._reset.is_set():
            self._reset.clear()
            self._hardware.reset()
            if shown is not None:
                shown.reset()
        is_elsewhere = shown is not None and (not shown.is_live or shown.host not in ("", runtime.host_name()))
        live = self._hardware if not is_elsewhere else None
        trouble = self._trouble
        try:
            machine = self._read_machine(now, shown, live)
        except MachineError as error:
            machine, trouble = HardwareNow("", (), {}), error.message
        gpus = tuple(gpu for gpu in machine.gpus if self._is_wanted(gpu))
        notes = [*machine.notes, *([trouble] if trouble else [])]
        if machine.gpus and not gpus:
            there = ", ".join(gpu.index for gpu in machine.gpus)
            notes.append(f"no GPU {' or '.join(self.options.gpus)} on this machine, only {there}")
        panels = self._charts.find_panels(shown, live, request.filter)
        charted = panels[request.offset : request.offset + max(request.charts, 0)]
        try:
            charts = tuple(self._charts.read(panel, shown, live, request) for panel in charted)
        except MachineError:
            charts = ()  # `silence` of the run says why
        with_users = bool(gpus) and live is not None and not self.options.simulate_gpus
        on_gpus = self._find_on_gpus(request.page) if with_users else ()
        machine_alerts = find_machine_alerts(gpus, self.options.conditions)
        snapshot = Snapshot(
            time=now,
            host=runtime.host_name(),
            origin=machine.origin,
            gpus=gpus,
            system=machine.system,
            processes=self._processes.get() if request.page == "processes" else self._processes.last,
            runs=self._runs.get() if request.page == "runs" else self._runs.last,
            machines=self._read_machines(),
            driver=self._process_list.driver if with_users and self._process_list is not None else "",
            on_gpus=on_gpus,
            health=judge_machine(gpus, machine_alerts),
            active=machine_alerts,
            firing=machine_alerts,
            events=tuple(self._hardware.notices),
            output=tuple(self.options.output()) if self.options.output is not None else (),
            panels=panels,
            charts=charts,
            notes=tuple(notes),
        )
        return snapshot if shown is None else self._add_run(snapshot, shown, is_elsewhere)

    def _add_run(self, snapshot: Snapshot, shown: ShownRun, is_elsewhere: bool) -> Snapshot:
        tables = shown.tables
        firing = tuple(row for row in tables.active_alerts if not row.is_silenced(snapshot.time))
        with_output = self.options.output is None and self.request.page == "events"
        return replace(
            snapshot,
            host=(shown.host if is_elsewhere else "") or snapshot.host,
            run=shown.describe(self.registered.last),
            health=shown.judge(firing, tables.alert_changes),
            alerts=tables.alert_changes,
            active=tables.active_alerts,
            firing=firing,
            judged=self.findings.read(shown.info.last) if self.findings is not None else None,
            events=(*tables.events, *snapshot.events)[-KEPT_EVENTS:],
            output=shown.read_output() if with_output else snapshot.output,
            notes=(*snapshot.notes, *self._describe_trouble(shown)),
        )

    def _describe_trouble(self, shown: ShownRun) -> list[str]:
        problems = [text for text in (shown.problem, shown.silence) if text]
        if not problems and self.findings is not None and self.findings.problem:
            problems.append(f"findings could not be read: {self.findings.problem}")
        return problems

    def _follow(self, run: RunRef | None) -> ShownRun | None:
        shown = self.shown
        if run is None:
            return None
        if shown is None or shown.place != run.place:
            from trainvitals.views.tui.shown_run import ShownRun

            try:
                shown = ShownRun(run)
            except MachineError as error:
                self._trouble = error.message
                return None
            self.findings = self._make_findings(run)
        self._trouble = ""
        shown.poll()
        return shown

    def _make_findings(self, run: RunRef) -> RunFindings | None:
        if self.options.settings is None:
            return None
        from trainvitals.views.tui.run_findings import RunFindings

        return RunFindings(run, self.options.settings)

    def _read_machines(self) -> tuple[MachineNow, ...]:
        if self.options.machines is None:
            return ()
        from trainvitals.views.data.machines import read_machines

        return tuple(read_machines(self.options.machines))

    def _read_machine(self, now: float, shown: ShownRun | None, live: Hardware | None) -> HardwareNow:
        if shown is not None and live is None:
            return shown.hardware.read()
        machine = self._hardware.read(now, self.interval)
        if shown is None or "utilization_percent" not in shown.curves.names("gpu"):
            return machine
        # The run's files go further back than the dashboard.
        recorded = {}
        for track in shown.curves.tracks("gpu", "utilization_percent", "time"):
            recorded[track.owner.key] = recorded[track.owner.label] = track.last(HISTORY)
        gpus = []
        for gpu in machine.gpus:
            name = gpu.key if gpu.uuid else f"GPU {gpu.index}"
            gpus.append(replace(gpu, history=recorded.get(name, gpu.history)))
        return machine._replace(gpus=tuple(gpus))

    def _is_wanted(self, gpu: Gpu) -> bool:
        wanted = self.options.gpus
        return not wanted or gpu.index.split(":")[0] in wanted or gpu.uuid in wanted

    def _read_processes(self) -> tuple[ProcessRow, ...]:
        return self._make_process_list().read(self.registered.last)

    def _read_on_gpus(self) -> tuple[ProcessRow, ...]:
        return self._make_process_list().read_on_gpus()

    def _find_on_gpus(self, page: str) -> tuple[ProcessRow, ...]:
        if page == "overview" and not self._on_gpus.get():
            self._on_gpus.expire()  # the driver is read in the background: look again soon, which costs nothing
        wanted = self.options.gpus
        return tuple(row for row in self._on_gpus.last if not wanted or set(row.gpus) & set(wanted))

    def _make_process_list(self) -> ProcessList:
        if self._process_list is None:
            from trainvitals.views.tui.processes import ProcessList

            self._process_list = ProcessList(self._world)
        return self._process_list

    def _list_runs(self) -> tuple[ListedRun, ...]:
        runs = self.options.runs
        return tuple(reversed(list_rows(runs))) if runs is not None else ()

    def _list_rank_processes(self) -> Sequence[RankProcess]:
        return [RankProcess(entry.run_id, entry.participant, entry.pid) for entry in self.registered.last]


def _read_registered() -> list[Registration]:
    return [entry for _, entry in registrations.read_all()]


def judge_machine(gpus: Sequence[Gpu], alerts: Sequence[AlertRow] = ()) -> Health:
    """The health of this machine when no run is shown: GPUs that do not respond, and what is wrong with the others."""
    troubled = [gpu for gpu in gpus if gpu.problem and gpu.problem != "asleep"]
    if alerts and (not troubled or alerts[0].severity == "critical"):
        grave: Literal["warning", "critical"] = "critical" if alerts[0].severity == "critical" else "warning"
        return Health(grave, grave, alerts[0].message)
    if not troubled:
        return WELL
    more = f" (and {len(troubled) - 1} more)" if len(troubled) > 1 else ""
    return Health("warning", "warning", f"GPU {troubled[0].index}: {troubled[0].problem}{more}")
