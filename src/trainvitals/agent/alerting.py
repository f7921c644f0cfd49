"""The alerts of a watched run, behind a guard: what goes wrong there is logged once and harms nothing else.
Tested in tests/alerts/test_agent.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainvitals.agent.exit_causes import ExitVerdict
from trainvitals.agent.gpu_holding import GpuHolding
from trainvitals.agent.liveness import WatchedRank
from trainvitals.agent.ranks import Ranks
from trainvitals.agent.run_context import RunContext
from trainvitals.agent.run_files import RunLines
from trainvitals.alerts.actions import Target
from trainvitals.alerts.session import RunAlerts
from trainvitals.conditions import ROWS
from trainvitals.errors import SettingError
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.run import BAD_ENDS, MONITOR, TRAINING, RunFile
from trainvitals.journal.documents.status import AlertStatus
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.listening import Batch, Positions
from trainvitals.sources import Sample

RANK_SECONDS = 1.0
END_RULES = frozenset(row.id for row in ROWS if row.about_end)


class Alerting:
    """Nothing happens here with `alerts.enabled: false`, or after rules that cannot be used. A listener."""

    name = "alerts"

    def __init__(self, context: RunContext, file: FileName, ranks: Ranks, holding: GpuHolding, lines: RunLines) -> None:
        """`file` is where alerts are written."""
        self._context = context
        self._file = file
        self._ranks = ranks
        self._holding = holding
        self._lines = lines
        self._next_ranks = 0.0
        self._ended: dict[Participant, tuple[str, Cause]] = {}
        self._alerts: RunAlerts | None = None
        self._last: list[AlertRow] = []

    def start(self, pid: int, judged: Positions) -> None:
        """Begin to judge. `pid` is a process of the run: it knows the environment that addresses may refer to;
        `judged` is how far an earlier agent has judged what was logged."""
        if self._context.settings.alerts_enabled:
            self._guard(lambda: self._begin(pid))
            self._ask(lambda alerts: alerts.warm(judged))

    def _begin(self, pid: int) -> None:
        folder = self._context.folder
        run = run_folder.find_run(folder) or RunFile()
        about: dict[str, Any] = {
            "run": folder.name,
            "project": run.project,
            "name": run.name,
            "host": self._context.host,
        }
        if run.placed:
            labels = {name: value for name, value in run.placed.label_values().items() if value}
            about |= {"job": str(run.placed), "job_labels": labels}
        try:
            self._alerts = RunAlerts(
                folder,
                self._context.settings,
                about,
                name=self._file,
                pid=pid,
                targets=self._targets,
                write_event=self._write_event,
            )
        except SettingError as error:  # the run was warned at its start; here it may be one of another version
            self._write_event("alerts_off", f"alerts are off: {error.message}", "warning")

    def _write_event(self, event: str, message: str, severity: str) -> None:
        self._lines.write_event(event, message, severity=severity)

    def _targets(self) -> list[Target]:
        return [
            Target(item.pid, item.pid_start, item.stack_signal)
            for item in (rank.registration for rank in self._ranks.alive())
        ]

    # -- what happens

    @property
    def positions(self) -> Positions:
        return self._alerts.positions if self._alerts is not None else Positions()

    @property
    def acknowledged(self) -> Positions:
        return self.positions  # what was judged is known from the lines of the alerts

    def wants(self, file: FileName) -> bool:
        return self._alerts is not None and self._alerts.wants(file)

    def see(self, batch: Batch) -> None:
        self._ask(lambda alerts: alerts.see(batch))

    def see_sample(self, sample: Sample) -> None:
        values = sample.values
        if self._alerts is not None and sample.table == "gpu":
            values = {**values, "held_by_run": float(self._holding.holds(sample.labels))}
        self._ask(lambda alerts: alerts.see_sample(sample.table, sample.labels, values, sample.time))

    def see_end(self, rank: WatchedRank, status: str, cause: Cause | None) -> None:
        """A rank has ended, by this verdict. For `trainvitals monitor` that is not worth an alert."""
        if rank.registration.kind == MONITOR:
            return
        self._ended[rank.participant] = (status, cause or Cause(detail=f"{status}; cause unknown"))
        self._see_rank(rank, 0.0)

    def tick(self, now: float, stalls: Mapping[Participant, Cause]) -> None:
        """`stalls` are the causes of those that have stopped stepping."""
        if self._alerts is None:
            return
        if now >= self._next_ranks:
            self._next_ranks = now + RANK_SECONDS
            for rank in self._ranks.alive():
                if rank.registration.kind == TRAINING:
                    self._see_rank(rank, now, stalls.get(rank.participant))
        self._ask(RunAlerts.tick)

    def _see_rank(self, rank: WatchedRank, now: float, cause: Cause | None = None) -> None:
        participant, size = rank.participant, self._size(rank)
        state, why = self._ended.get(participant, (rank.state, cause))
        silence = rank.progress.silence(now) if now else 0.0
        self._ask(lambda alerts: alerts.see_participant(participant, state, why, silence, size))

    def _size(self, rank: WatchedRank) -> int:
        """Of how many it is one: other roles are not in its world size."""
        here = len(self._ranks.training()) if rank.registration.kind == TRAINING else 1
        return max(rank.registration.world_size, here)

    # -- the end

    def end(self, verdict: ExitVerdict, ranks: Iterable[WatchedRank]) -> None:
        """The run is over, in this way."""
        if self._alerts is None:
            return
        for rank in ranks:
            alone = self._size(rank) == 1
            known, _ = self._ended.get(rank.participant, ("", None))
            if verdict.status in BAD_ENDS and alone and known not in BAD_ENDS:
                self.see_end(rank, verdict.status, verdict.cause)
        alerts, self._alerts = self._alerts, None
        self._last = [row for row in alerts.firing() if row.rule in END_RULES]
        self._guard(lambda: alerts.end(verdict.status))

    def leave(self) -> None:
        """The agent stops, the run continues."""
        self._ask(RunAlerts.leave)

    def active(self) -> tuple[AlertStatus, ...]:
        """What fires now."""
        return self._alerts.active() if self._alerts is not None else ()

    def firing(self) -> list[AlertRow]:
        """Everything that fires now, each with its labels; after the end what fired about it."""
        return self._alerts.firing() if self._alerts is not None else self._last

    def _ask(self, do: Callable[[RunAlerts], None]) -> None:
        if (alerts := self._alerts) is not None:
            self._guard(lambda: do(alerts))

    def _guard(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - alerts are a help: a fault in them must not end the watch
            self._context.log.exception_once("evaluating alerts failed", error)
