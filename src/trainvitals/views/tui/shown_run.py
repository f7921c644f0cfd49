"""The run that is shown: its status, its newest values, its curves, its participants.

The first request is read through the journal's reader; from then on only new lines are read, so a run of a million
steps costs no more per second than a new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainvitals.alerts.records import count_fired
from trainvitals.analysis.health import Health, judge_health
from trainvitals.analysis.progress import find_progress
from trainvitals.errors import JournalError, MachineError, RunNotFound
from trainvitals.journal.contracts import RunRef, Series
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.encoding import TimeParser, number, parse_time
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.points import Axis
from trainvitals.journal.run_info import RunInfo
from trainvitals.views.data.run_details import find_last_step
from trainvitals.views.data.run_rows import count_findings, read_row_of, seconds_before
from trainvitals.views.tui.curves import RunCurves
from trainvitals.views.tui.newest_values import NewestValues
from trainvitals.views.tui.paced import Paced
from trainvitals.views.tui.recent_steps import RECENT_STEPS, LoggedStep, RecentSteps
from trainvitals.views.tui.recorded_hardware import RecordedHardware
from trainvitals.views.tui.small_tables import SmallTables
from trainvitals.views.tui.snapshot import RankRow, Restart, RunState
from trainvitals.views.tui.view import key_of

FOLLOWED = ("training", "gpu", "system", "process")
LEAST_POINTS = 64
INFO_SECONDS = 1.0
OUTPUT_BYTES = 32 << 10
DURATIONS = ("batch_time", "step_time")
"""Metrics with the duration of a step."""


class ShownRun:
    """One run, live or not. Used by one thread."""

    def __init__(self, run: RunRef) -> None:
        self.place = run.place
        self.problem = ""
        """Why there is no new data: the run vanished."""
        self.silence = ""
        """Why nothing can be asked about it now: its machine does not answer."""
        self._reader = run.open()
        self.curves = RunCurves(self._read_series)
        self.hardware = RecordedHardware(self.curves, self._read_series)
        self.tables = SmallTables(self._reader)
        self.info: Paced[RunInfo | None] = Paced(lambda: self._reader.info, INFO_SECONDS, None)
        self._follower = self._reader.follow(FOLLOWED, from_end=True)
        self._steps = RecentSteps()
        self._values = NewestValues()
        self._attempt: int | None = None
        self._restarts: tuple[Restart, ...] = ()
        self._restarts_of: tuple[int, int | None] = (1, None)
        """The newest attempt, and the newest that logged a step, of which the restarts are known."""
        self._clock = TimeParser()
        self._is_loaded = False

    # -- reading

    def poll(self) -> bool:
        """Read what is new; True if any metric was."""
        try:
            self.info.get()
            self.problem = ""
            if not self._is_loaded:
                self._load()
                self._is_loaded = True
            self.tables.poll()
            new = self._follower.poll()
            self.silence = ""
        except RunNotFound:
            self._note_gone()
            return False
        except MachineError as error:
            self.silence = error.message
            return False
        for file, row in new:
            self._take(file, row)
        return bool(new)

    def _read_series(self, names: Iterable[str], **options: Any) -> list[Series]:
        try:
            return self._reader.series(names, **options)
        except RunNotFound:
            self._note_gone()
            return []

    def _note_gone(self) -> None:
        self.problem = f"the run was deleted or moved: {self.place}"

    def _load(self) -> None:
        for table in FOLLOWED:
            self.curves.add_names(table, self._reader.names(table))
        logged = self.curves.names("training")
        if not logged:
            return
        self._load_steps(next((name for name in (*DURATIONS, "loss") if name in logged), min(logged)))
        summary = self._reader.summary()
        last_step = find_last_step(self._reader, read_row_of(self._reader, self._reader.info.id), summary)
        self._values.load({name: item.last for name, item in summary.items()}, last_step, self._steps.lowest)

    def _load_steps(self, probe: str) -> None:
        """The newest steps, read from a metric that most of them have."""
        moments = {series.participant: series.x for series in self._read_newest(probe, "time")}
        for series in self._read_newest(probe, "step"):
            times = moments.get(series.participant, series.x)
            count = min(RECENT_STEPS, len(series.x), len(times))
            newest = zip(series.x[-count:], times[-count:], series.y[-count:], strict=True)
            steps = [
                LoggedStep(int(step), float(moment), float(value) if probe in DURATIONS else None)
                for step, moment, value in newest
            ]
            self._steps.add(series.participant, steps)

    def _read_newest(self, name: str, axis: Axis) -> list[Series]:
        """The end of a metric, with the newest steps of every rank in it: of ten million steps only these are read."""
        starts = []
        for series in self._read_series([name], x=axis, max_points=LEAST_POINTS):
            first, last = float(series.x[0]), float(series.x[-1])
            starts.append(last - (last - first) * min(2 * RECENT_STEPS / series.total, 1.0))
        return self._read_series([name], x=axis, start=min(starts, default=None))

    def _take(self, file: FileName, row: Mapping[str, Any]) -> None:
        micros = self._clock.parse(row["timestamp"])
        if micros is None:
            return
        moment, step = micros / 1e6, None
        if file.table == "training":
            step = row.get("step")
            step = step if isinstance(step, int) and not isinstance(step, bool) else None
            self._take_training(file, row, moment, step)
        else:
            if file.host is not None and "host" not in row:
                row = {**row, "host": file.host}  # as the reader labels what it reads: a GPU may have no other identity
            self.hardware.add(file.table, row, moment)
        labels = file.participant.labels if file.table == "training" else row
        self.curves.add(file.table, row, labels, moment, step)

    def _take_training(self, file: FileName, row: Mapping[str, Any], moment: float, step: int | None) -> None:
        if self._attempt is not None and file.attempt > self._attempt:
            self.curves.read_again()  # steps are logged again: a later attempt replaces them
            self._steps.clear()
        self._attempt = max(file.attempt, self._attempt or 0)
        self._values.add(file.participant, step, row)
        if step is not None:
            seconds = next((row[name] for name in DURATIONS if name in row), None)
            self._steps.add(file.participant, [LoggedStep(step, moment, number(seconds))])

    # -- what is known

    @property
    def is_live(self) -> bool:
        return self.info.last is not None and self.info.last.is_live and not self.problem

    @property
    def host(self) -> str:
        """Where the run's first process runs or ran."""
        return self.info.last.file.host_name if self.info.last is not None else ""

    def reset(self) -> None:
        """Forget the curves; they start again with what is written from now on."""
        self.curves.reset()

    def describe(self, registered: Sequence[Registration] = ()) -> RunState | None:
        """The run as it is now. `registered` maps the processes of this machine to participants."""
        info = self.info.last
        if info is None:
            return None
        pace, values = self._steps.pace(), self._values
        return RunState(
            id=info.id,
            name=info.name,
            project=info.project,
            folder=info.place,
            status="gone" if self.problem else info.status,
            cause=self.problem or info.cause_text,
            live=self.is_live,
            started=parse_time(info.started),
            ended=parse_time(info.ended),
            attempt=info.attempt,
            simulated=info.simulated,
            step=values.step,
            progress=find_progress(
                info.file.config or {}, values.step, values.by_metric.get("epoch"), pace, self.is_live
            ),
            step_seconds=pace,
            last_step_time=self._steps.last_moment(),
            values=dict(values.by_metric),
            job=str(info.file.placed),
            restarts=self._find_restarts(info),
            seconds_before=seconds_before(info),
            ranks=self._describe_ranks({entry.participant: entry for entry in registered if entry.run_id == info.id}),
        )

    def judge(self, firing: Sequence[AlertRow], changes: Sequence[AlertRow]) -> Health:
        """In one word, as in the web page and the report; `changes` are those of all alerts so far."""
        if self.problem:
            return Health("gone", "critical", self.problem, f"Press {key_of('runs')} to select another run.")
        info = self.info.last
        if info is None:
            return Health("", "ok")
        findings = count_findings(self._reader.findings() if not self.silence else None, info)
        fired = count_fired(changes, parse_time(info.started))
        return judge_health(info.status, info.cause_text, firing, self._values.by_name, fired, findings)

    def read_output(self) -> tuple[str, ...]:
        """The newest lines of the program's output, if it is kept: of the file written last."""
        try:
            written = max(self._reader.texts("console"), key=lambda file: (file.modified, file.name))
            found = self._reader.read_text("console", written.name, OUTPUT_BYTES)
        except (ValueError, JournalError, MachineError):  # there is none, or it was put aside just now
            return ()
        lines = found.text.rstrip("\n").split("\n")
        return tuple(lines[1:] if found.cut else lines)

    def _find_restarts(self, info: RunInfo) -> tuple[Restart, ...]:
        now = (info.attempt, self._attempt)
        if info.attempt > 1 and now != self._restarts_of and not self.silence:
            with contextlib.suppress(JournalError, MachineError):
                steps = self._reader.first_steps()
                self._restarts = tuple(
                    Restart(parse_time(attempt.started), steps.get(attempt.number or 0))
                    for attempt in info.file.attempts[1:]
                )
                self._restarts_of = now
        return self._restarts

    def _describe_ranks(self, registered: Mapping[Participant, Registration]) -> tuple[RankRow, ...]:
        cpu, memory = self._newest_by_participant("cpu_percent"), self._newest_by_participant("rss_mb")
        return tuple(
            RankRow(
                participant=participant,
                host=registered[participant].host if participant in registered else self.host,
                pid=registered[participant].pid if participant in registered else None,
                step=pace.last.number,
                step_time=pace.step_time,
                ratios=pace.ratios,
                seen=pace.last.moment,
                cpu_percent=cpu.get(participant),
                rss_mb=memory.get(participant),
            )
            for participant, pace in self._steps.compare().items()
        )

    def _newest_by_participant(self, name: str) -> dict[Participant, float]:
        """Of its process and those below it."""
        if name not in self.curves.names("process"):
            return {}
        tracks = self.curves.tracks("process", name, "time")
        return {track.owner.order[0]: track.y[-1] for track in tracks if len(track)}
