"""Everything that is open for a run while it is watched: what is written, followed, judged, copied and sealed.
Tested in tests/agent/test_closing.py."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from trainvitals import runtime
from trainvitals.agent import status
from trainvitals.agent.alerting import Alerting
from trainvitals.agent.consoles import Consoles
from trainvitals.agent.gpu_holding import GpuHolding
from trainvitals.agent.losses import Losses
from trainvitals.agent.patches import Patches
from trainvitals.agent.program_files import ProgramFiles
from trainvitals.agent.ranks import Ranks
from trainvitals.agent.row_exporting import RowExporting, find_incomplete
from trainvitals.agent.run_context import RunContext
from trainvitals.agent.run_files import RunLines
from trainvitals.agent.sealing import Seals
from trainvitals.agent.stalls import Stalls
from trainvitals.agent.training_log import TrainingLog
from trainvitals.alerts.environment import read_environment
from trainvitals.analysis.gpu_days import IDLE_PERCENT
from trainvitals.analysis.gpu_use import GpuUses, kept_gpus
from trainvitals.exporters.registry import wishes_of
from trainvitals.exporters.rows import RunDescription
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.events import ProcessEvent
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.follower import Relay
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.listening import Listener
from trainvitals.ownership import explain_foreign
from trainvitals.settings import Settings

PATCH_SECONDS = 10.0
"""For a patch that is still being made when the run has ended, before the gateway is said to have all of the run."""
PIECE = 512 << 10
"""Bytes of one file at a time, so that a fast trainer does not keep the agent from everything else."""


class RunParts:
    """Goes on from what an earlier agent of this host left in status.json."""

    def __init__(self, context: RunContext, attempt: int, ranks: Ranks) -> None:
        known = status.read_own(context.folder, context.host)
        self.before = known if known.attempt == attempt else Status()
        """What was known of this attempt before."""
        self._context = context
        self._ranks = ranks
        self._known_row_exports = known.row_exports
        self._known_shipment = known.shipment
        self.training_log = TrainingLog(known)
        idle_percent = context.settings.alerts_thresholds.get("gpu_idle_percent", IDLE_PERCENT)
        self.gpu_use = GpuUses((gpu.as_use(idle_percent) for gpu in kept_gpus(known)), idle_percent)
        self.holding = GpuHolding(context.machine.gpu_users, self.before.held_gpus)
        self.consoles = Consoles(context.folder, context.settings, known.consoles)
        ranks.gpus_of = self.holding.gpus_of
        self.lines = RunLines(context, attempt, self.gpu_use)
        self.status_file = status.StatusFile(context)
        self.stalls = Stalls(context, self.lines, ranks, self.holding, self.before.cause)
        self.seals = Seals(context, self.lines)
        self.relay = Relay(
            context.folder, self.is_followed, read_sealed=self.seals.read_sealed, on_error=self._survive_listener
        )
        self.relay.add(self.training_log)
        self._losses = Losses(self.lines, self.training_log)
        self.alerting = Alerting(context, context.file_name("alerts", attempt), ranks, self.holding, self.lines)
        self.program_files = ProgramFiles(context)
        self._patches = Patches(context)
        self._is_trusted = False
        self.row_exports: RowExporting | None = None
        self._environment: Mapping[str, str] | None = None

    def start(self, pid: int, attempt: int, warn: Callable[[str], None]) -> None:
        """Begin to judge and to export. `pid` is a process of the run; `warn` is called from exporters' threads."""
        context = self._context
        distrust = explain_foreign(context.folder)
        if distrust is not None and _asks_to_act(context.settings):
            self.lines.write_event(
                "folder_not_trusted",
                f"this run is watched and its alerts are shown, but nothing is sent or run for it: the run folder is "
                f"not only yours, {distrust}",
                severity="warning",
            )
        self.alerting.start(pid, self.training_log.acknowledged)
        self.relay.add(self.alerting)
        self.lines.listen = self.alerting.see_sample
        self._is_trusted = distrust is None
        if distrust is None:
            run = self._describe_run(pid, attempt)
            context.machine.shipping.add(context.folder, context.settings, run.environment, warn)
            self.row_exports = RowExporting(context.settings, run, self._known_row_exports, warn)
            for exporter in self.row_exports:
                self.relay.add(exporter, exporter.has_room)
        again = self.before.state is not None
        self.lines.write_event(
            "agent_attached",
            "agent monitors this run again" if again else "agent monitors this run",
            data=ProcessEvent(pid=os.getpid()),
        )
        context.log.info("watching", folder=str(context.folder), again=again)

    def _describe_run(self, pid: int, attempt: int) -> RunDescription:
        context = self._context
        about = run_folder.find_run(context.folder) or RunFile()
        # Read while the process lives: where its user keeps tokens must be known after its end, too.
        self._environment = self._environment or read_environment(pid)
        return RunDescription(context.run_id, context.folder, context.host, attempt, about, self._environment)

    def hand_over_exports(self, pid: int, attempt: int) -> None:
        """The run has ended: have the agent send what exporters of rows have not accepted."""
        if not wishes_of(self._context.settings, "rows"):
            return
        run = self._describe_run(pid, attempt)
        known = self.row_exports.describe() if self.row_exports is not None else self._known_row_exports
        if find_incomplete(self._context.settings, run, known):
            self._context.machine.late_exports.add(run.folder, self._context.settings, run.environment)

    def release_shipping(self) -> None:
        """The run has ended, or the agent does: nothing more is written here."""
        shipping, folder = self._context.machine.shipping, self._context.folder
        if shipping.describe(folder) is not None:
            self._patches.wait(PATCH_SECONDS)
            shipping.release(folder)

    def _survive_listener(self, listener: Listener, error: Exception) -> None:
        self._context.log.exception_once("a listener failed", error, listener=listener.name)

    # -- files

    def is_followed(self, file: FileName) -> bool:
        """Whether anybody here may listen to it: what this machine writes, and the events and alerts of all machines. A
        training is listened to once its rank has registered, for its lines are counted there; a program that is not
        seen to train, once it is known to log to files."""
        if file.table == "training":
            known = self._ranks.get(file.participant) is not None
            return known or self.program_files.is_written_by(file.participant)
        return file.table in layout.LINE_TABLES or self.is_ours(file)

    def is_ours(self, file: FileName) -> bool:
        """Whether it was written on this machine: the folder may be shared with others."""
        if file.table == "training":
            return file.participant in self._ranks.participants
        return file.host == self._context.host_token

    def silence(self, participant: Participant) -> float:
        """For how many seconds its files have not changed, by the clock of their file system: a server may have another
        time than this machine."""
        newest = self.relay.last_write(lambda file: file.table == "training" and file.participant == participant)
        if newest is None:
            return 0.0
        try:
            ahead = runtime.measure_file_clock(self._context.folder)
        except OSError:
            ahead = 0.0  # it cannot be written to now
        return max(time.time() + ahead - newest, 0.0)

    def request_sealing(self) -> None:
        """Seal what is closed and no longer needed by a listener."""
        self.seals.request(self.is_ours, self._is_read, self._find_behind)

    def _is_read(self, name: str) -> bool:
        """Whether it is closed, and all of it is counted in status.json."""
        return name not in self.lines.open_files and self.training_log not in self._list_behind(name)

    def _find_behind(self, name: str) -> list[Listener]:
        return [listener for listener in self._list_behind(name) if listener is not self.training_log]

    def _list_behind(self, name: str) -> list[Listener]:
        parsed = layout.parse_name(name)
        return self.relay.behind(parsed[0]) if parsed is not None else []

    # -- now and then

    def catch_up(self, seconds: float) -> bool:
        """Hand over what is left of an ended run, for a moment. False if there is nothing more."""
        deadline = time.monotonic() + seconds
        while (more := self.relay.poll(PIECE)) and time.monotonic() < deadline:
            continue
        return more

    def look_at_program_files(self, now: float) -> None:
        """Follow what the program logs to files of other trackers."""
        if self._is_trusted and self.program_files.look(now):
            self.relay.ask_again()

    def look_at_patch(self, run: RunFile, attempt: int) -> None:
        """Keep what was changed in its repository. Another user who may write run.json does not get to name one."""
        if self._is_trusted:
            self._patches.look(run, attempt)

    def are_program_files_read(self, now: float) -> bool:
        """Whether all that the program has logged to files is in the run, now that it has ended."""
        self.look_at_program_files(now)
        return self.program_files.finish(now)

    def look_at_gpus(self) -> None:
        """Find out which GPUs the run holds."""
        held = [rank.registration for rank in self._ranks.alive()]
        hardware = self._context.machine.describe()
        self.holding.look(held, hardware, self.lines.gpus.values(), self.lines.processes.values())
        self._ranks.workers = self.holding.workers
        for rank in self._ranks.training():
            # Of one that is gone, or whose GPU is lost, the driver names no processes any more.
            rank.gpus = tuple(sorted(self.holding.gpus_of(rank.participant))) or rank.gpus

    def write_losses(self) -> None:
        """What was lost and what was sealed meanwhile, as events."""
        self._losses.write()
        self.seals.tend()

    # -- status.json

    def write_status(self, attempt: int, state: str, now: float) -> None:
        """What is known of the run now. Raises OSError when the folder cannot be written."""
        ranks, hardware = list(self._ranks), self._context.machine.describe()
        content = Status(
            host=self._context.host,
            rack=self._context.settings.rack or "",
            agent_pid=os.getpid(),
            attempt=attempt,
            state=state,
            cause=self.stalls.cause,
            ranks={rank.status_key: rank.describe() for rank in ranks},
            hardware=hardware,
            visible_gpus=status.visible_gpus(hardware, [rank.registration for rank in ranks]),
            held_gpus=self.holding.describe(),
            gpu_summary=self.gpu_use.as_json(),
            alerts=self.alerting.active(),
            row_exports=self.row_exports.describe() if self.row_exports is not None else self._known_row_exports,
            shipment=self._context.machine.shipping.describe(self._context.folder) or self._known_shipment,
            consoles=self.consoles.describe(),
            dropped_lines=self.lines.dropped,
        )
        self.status_file.write(self.training_log.add_to(content), now)
        self.training_log.mark_saved()
        if self.row_exports is not None:
            self.row_exports.mark_saved()


def _asks_to_act(settings: Settings) -> bool:
    """Whether an alert or a row of the run may leave this machine or start something."""
    rules = (settings.alerts_actions, settings.alerts_rules) if settings.alerts_enabled else ()
    sends = settings.gateway is not None or wishes_of(settings, "rows")
    return bool(sends or (settings.alerts_enabled and settings.alerts_notify) or any(rules))
