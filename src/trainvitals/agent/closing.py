"""The end of a run, once none of its ranks is left here: decided, written down, its files sealed."""

from __future__ import annotations

import time

from trainvitals.agent.exit_causes import ExitVerdict
from trainvitals.agent.rank_watch import describe_verdict
from trainvitals.agent.ranks import Ranks
from trainvitals.agent.run_account import RunAccount
from trainvitals.agent.run_context import RunContext
from trainvitals.agent.run_end import correct_end, decide_end, write_end
from trainvitals.agent.run_parts import RunParts
from trainvitals.exporters.rows import END_PATIENCE, RunEnd
from trainvitals.journal import registrations
from trainvitals.journal.documents.run import COMMAND

WRAPPER_SECONDS = 2.0
"""`trainvitals run` knows the exit code for certain and gets this long to write it down."""
JOIN_SECONDS = 30.0
"""How long the agent gets to read a registration; on a busy machine it may come late to it."""
END_PATIENCE_SECONDS = 600.0
DIAGNOSED_LINES = 100
"""Lines of the lowest rank from which on findings are kept: most checks of a curve need as many."""
DIAGNOSED_SECONDS = 60.0
"""The same of a run that logs once per epoch, or nothing: then its hardware can be judged. What is shorter is diagnosed
in no time by whoever looks at it."""
CATCH_UP_SECONDS = 0.5
"""How long, per tick, a listener that was added late is served once the run has ended."""


class Closing:
    """Used by the thread of one run."""

    def __init__(self, context: RunContext, account: RunAccount, ranks: Ranks, parts: RunParts) -> None:
        self._context = context
        self._account = account
        self._ranks = ranks
        self._parts = parts
        self._deadline: float | None = None
        self._joining_since: float | None = None
        self._export_deadline: float | None = None
        self._end: RunEnd | None = None

    @property
    def waits_for_room(self) -> bool:
        """Whether the end is decided and the disk does not take it."""
        return self._deadline is not None

    def is_end_known(self, now: float) -> bool:
        """Whether all ranks are over, and `trainvitals run` had a moment to write the exit status that it alone knows
        for certain."""
        if not self._ranks.are_over or self._waits_for_rank(now):
            return False
        wrapped = any(rank.registration.kind == COMMAND for rank in self._ranks)
        if wrapped and not self._parts.are_program_files_read(now):
            return False
        if self._account.has_ended or self._account.has_exit_status or not wrapped:
            return True
        last = max((rank.gone_at or now for rank in self._ranks), default=now)
        return now - last > WRAPPER_SECONDS

    def _waits_for_rank(self, now: float) -> bool:
        """Whether a rank has registered that the agent has not looked at yet: one that began and ended within a moment
        logged nevertheless."""
        folder, host = str(self._context.folder), self._context.host
        found = (item for _, item in registrations.read_all(self._context.run_id))
        mine = [item for item in found if (item.folder, item.host) == (folder, host)]
        known = {(rank.registration.pid, rank.registration.file_name) for rank in self._ranks}
        if all((item.pid, item.file_name) in known for item in mine):
            return False
        self._joining_since = self._joining_since or now
        return now - self._joining_since < JOIN_SECONDS

    def end(self) -> ExitVerdict | None:
        """Decide how the run ended and write it down. None if the disk does not take it yet: it is tried again."""
        parts = self._parts
        run = self._account.read()
        verdict = decide_end(run, self._account.attempt, list(self._ranks), self._account.failures())
        if any(self._account.is_led_by(rank.registration) for rank in self._ranks):
            try:
                self._write_run(verdict)
            except OSError as error:
                self._context.log.warn_once("cannot write the end of the run", error=str(error))
                if self._may_wait_for_room():
                    return None
        parts.write_losses()
        cause = f": {verdict.cause}" if verdict.cause else ""
        parts.lines.write_event(
            "run_ended",
            f"the run is {verdict.status}{cause}",
            severity="info" if verdict.status == "finished" else "critical",
            data=describe_verdict(verdict, status=verdict.status),
        )
        self._context.log.info("the run has ended", status=verdict.status, cause=str(verdict.cause or ""))
        parts.consoles.end()
        parts.stalls.cause = verdict.cause
        parts.alerting.end(verdict, self._ranks)
        self._end = RunEnd(verdict.status, verdict.cause)
        parts.catch_up(CATCH_UP_SECONDS)  # exporters of rows get what was measured last, too
        parts.relay.close()
        return verdict

    def _write_run(self, verdict: ExitVerdict) -> None:
        folder, attempt, mode = self._context.folder, self._account.attempt, self._context.settings.file_mode
        if self._account.has_ended and verdict.cause != self._account.file.cause:
            correct_end(folder, attempt, verdict, mode)
        else:
            lowest = self._ranks.lowest
            write_end(folder, attempt, verdict, mode, lowest.progress.step if lowest is not None else None)

    def _may_wait_for_room(self) -> bool:
        """A full disk may have room again, and the end is worth waiting for, but not forever."""
        if self._deadline is None:
            self._deadline = time.monotonic() + END_PATIENCE_SECONDS
        return time.monotonic() < self._deadline

    def request_seals(self) -> None:
        """Seal what the run leaves, and have it diagnosed by the host that wrote its end."""
        lowest = self._ranks.lowest
        leads = any(self._account.is_led_by(rank.registration) for rank in self._ranks)
        has_curves = lowest is not None and lowest.progress.lines >= DIAGNOSED_LINES
        is_long = has_curves or self._account.read_seconds() >= DIAGNOSED_SECONDS
        self._parts.seals.request_last(self._parts.is_ours, diagnose=leads and is_long)

    def finish(self) -> bool:
        """Go on sealing, and serving listeners that were added late. True when there is nothing left to do."""
        parts = self._parts
        parts.seals.tend()
        more = parts.catch_up(CATCH_UP_SECONDS)
        if parts.seals.busy or more or parts.relay.waits:
            return False
        if self._waits_for_exports():
            return False
        parts.seals.tend()
        parts.lines.close()
        return True

    def _waits_for_exports(self) -> bool:
        """Exporters of rows get a moment for what is left; what takes longer is sent without a watch."""
        exports = self._parts.row_exports
        if exports is None or exports.have_all(self._parts.relay):
            return False
        self._export_deadline = self._export_deadline or time.monotonic() + END_PATIENCE
        return time.monotonic() < self._export_deadline

    def end_row_exports(self) -> bool:
        """Give the exporters of rows their time for what is left. False if there are none."""
        exports = self._parts.row_exports
        if exports is None or not any(exports):
            return False
        unfinished = exports.end(self._end, self._parts.relay)
        if unfinished:
            self._context.log.warning("exporters did not accept all rows", exporters=unfinished)
        return True
