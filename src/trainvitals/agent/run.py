"""One watched run: follow its ranks, write what the machine does, and write its end if it cannot do so itself.

Each run has its own thread, so a run folder on a dead file server does not affect the others.
Tested in tests/agent/test_agent.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from trainvitals import runtime
from trainvitals.agent.closing import Closing
from trainvitals.agent.log import BoundLog
from trainvitals.agent.pidfds import wait_for_end
from trainvitals.agent.rank_watch import RankWatch, RegistrationChange
from trainvitals.agent.ranks import Ranks
from trainvitals.agent.reading import Reading, exporter_trouble
from trainvitals.agent.run_account import RunAccount
from trainvitals.agent.run_context import AgentServices, RunContext
from trainvitals.agent.run_parts import RunParts
from trainvitals.agent.stopping import Stopping
from trainvitals.agent.timetable import Timetable
from trainvitals.exporters.runs import EndedAt
from trainvitals.journal import registrations
from trainvitals.journal.documents.events import ProcessEvent
from trainvitals.journal.documents.latest import LatestRun
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.run import COMMAND, ENDED
from trainvitals.journal.follower import Relay
from trainvitals.journal.listening import Listener
from trainvitals.settings import Settings
from trainvitals.sources import RankProcess

LONGEST_TICK = 0.5
SHORTEST_TICK = 0.25
SETTLING_TICK = 0.05
"""Seconds between two looks while a process that is gone is asked for its exit status."""
ROOM_TICK = 2.0
"""Seconds between two tries to write the end down while the disk does not take it."""
HEALTH_SECONDS = 10.0
FIRST_HEALTH_SECONDS = 2.0
SEALING_SECONDS = 5.0
TEND_SECONDS = 1.0
FOLDER_SECONDS = 1.0
CONSOLE_SECONDS = 1.0
HOLDING_SECONDS = 5.0
INBOX_SIZE = 20_000


class WatchedRun:
    """All ranks of one run on this machine. What the thread does is in `RankWatch` while they live and in `Closing`
    when they are gone."""

    def __init__(self, first: Registration, settings: Settings, machine: AgentServices, log: BoundLog) -> None:
        self._context = RunContext.of(first, settings, machine, log)
        self.finishing = False
        """It has ended; its files are being sealed."""
        self.over = False
        self.failed = False
        """It is over because watching it went wrong, not because it ended."""
        self.past = True
        """None of its processes lived when it was found: there is nothing to measure, only its end to write."""
        self.began = time.monotonic()
        self.state = "running"
        self.firing: Sequence[AlertRow] = ()
        """The alerts that fire now, each with its labels; of a run that is over those about its end."""
        self.ending: EndedAt | None = None
        self._first = first
        self._account = RunAccount(self.folder, first.attempt)
        self._ranks = Ranks()
        self._inbox: deque[Reading] = deque(maxlen=INBOX_SIZE)
        self._changes: deque[RegistrationChange] = deque()
        self._listeners: deque[tuple[Callable[[Relay, Listener], None], Listener]] = deque()
        self._leaving = False
        self._timetable = Timetable(health=time.monotonic() + FIRST_HEALTH_SECONDS)
        self._thread = threading.Thread(target=self._live, name=f"run {self.run_id}", daemon=True)

    @property
    def run_id(self) -> str:
        return self._context.run_id

    @property
    def folder(self) -> Path:
        return self._context.folder

    @property
    def settings(self) -> Settings:
        return self._context.settings

    @property
    def openmetrics_urls(self) -> tuple[str, ...]:
        return self._context.openmetrics_urls

    @property
    def attempt(self) -> int:
        return self._account.attempt

    # -- from other threads

    def start(self) -> None:
        self._thread.start()

    def join_rank(self, registration: Registration, path: Path) -> None:
        """A rank of this run has registered."""
        if self.past and runtime.is_same_process(registration.pid, registration.pid_start):
            self.past = False
        self._changes.append(RegistrationChange("join", registration, path))

    def leave_rank(self, registration: Registration, path: Path) -> None:
        """The registration of a rank has gone."""
        self._changes.append(RegistrationChange("leave", registration, path))

    def offer(self, reading: Reading) -> None:
        """A new reading; whether the run wants it is decided in its own thread."""
        self._inbox.append(reading)

    def add_listener(self, listener: Listener) -> None:
        """Hand it the rows of this run, from the run's thread."""
        self._listeners.append((Relay.add, listener))

    def remove_listener(self, listener: Listener) -> None:
        """Stop handing it rows with the next tick."""
        self._listeners.append((Relay.remove, listener))

    def _warn_of_exporter(self, text: str) -> None:
        """Called from the exporters' threads: into the log, and as an event into the run while it is watched."""
        self._context.log.warning("exporter", reason=text)
        self.offer(exporter_trouble(text))

    def end_watch(self) -> None:
        """The agent stops, the run continues."""
        self._leaving = True

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def processes(self) -> list[RankProcess]:
        """The rank processes that live."""
        return self._ranks.processes(self.run_id)

    def describe(self) -> LatestRun:
        """For latest.json."""
        return LatestRun(
            run_id=self.run_id,
            folder=str(self.folder),
            attempt=self.attempt,
            state=self.state,
            ranks=self._ranks.describe(),
        )

    # -- the thread

    def _live(self) -> None:
        try:
            self._attach()
            try:
                self._watch()
            finally:
                self.over = True
                if self._closing.end_row_exports():
                    self._write_status(time.monotonic(), force=True)
                if self.finishing:
                    self._parts.hand_over_exports(self._first.pid, self.attempt)
                if not self._leaving:
                    self._parts.release_shipping()
        except Exception as error:  # noqa: BLE001 - one run's trouble must not end the agent
            self.failed = True
            self._survive(error)
        finally:
            self.over = True
            self._ranks.close()

    def _watch(self) -> None:
        ended: frozenset[int] = frozenset()
        while not self.over and not self._leaving:
            try:
                self._tick(time.monotonic(), ended)
            except Exception as error:  # noqa: BLE001 - nor its watch
                self._survive(error)
            if not self.over:
                ended = self._sleep()
        if not self.over:
            self._detach()

    def _survive(self, error: Exception) -> None:
        self._context.log.exception_once("monitoring a run failed", error)
        time.sleep(0.5)

    def _sleep(self) -> frozenset[int]:
        tick = min(LONGEST_TICK, max(SHORTEST_TICK, self._parts.lines.shortest_interval / 2))
        if self._closing.waits_for_room:
            tick = ROOM_TICK
        return wait_for_end(self._ranks.pidfds, SETTLING_TICK if self._ranks.are_settling else tick)

    def _attach(self) -> None:
        self._context.machine.late_exports.adopt(self.folder)
        self._context = self._context.look_into_folder(self._first)
        self._parts = RunParts(self._context, self.attempt, self._ranks)
        self._rank_watch = RankWatch(self._context, self._account, self._ranks, self._parts)
        self._closing = Closing(self._context, self._account, self._ranks, self._parts)
        self._stopping = Stopping(self._context, self._account, self._ranks, self._parts.lines)
        # Else an earlier agent wrote the end and was itself ended before it could clean up.
        if not self._parts.before.is_over and self.folder.is_dir():
            self._parts.start(self._first.pid, self.attempt, self._warn_of_exporter)

    def _tick(self, now: float, ended: frozenset[int]) -> None:
        if self.finishing:
            self._finish()
            return
        if self._timetable.is_due("folder", FOLDER_SECONDS, now) and not self.folder.is_dir():
            self._context.log.warning("the run folder was removed, monitoring stopped", folder=str(self.folder))
            self._remove_registrations()
            self.over = True
            return
        self._rank_watch.take(self._changes, now)
        if self._parts.before.is_over:
            self._clean_up()
            return
        self._account.look(now)
        self._parts.look_at_patch(self._account.file, self.attempt)
        self._follow(now)
        self._drain()
        self._rank_watch.look(now, ended)
        self._look_around(now)
        if self._closing.is_end_known(now):
            self._end()
            return
        self._write_status(now, force=self._rank_watch.has_news)
        if self._timetable.is_due("console", CONSOLE_SECONDS, now):
            # Once it is noted where the copy begins: another agent may have to continue there.
            self._parts.consoles.look()
        if self._timetable.is_due("sealing", SEALING_SECONDS, now):
            self._parts.request_sealing()

    def _look_around(self, now: float) -> None:
        """What is due besides the ranks: GPUs, alerts, files, the health of the sources."""
        parts = self._parts
        if self._timetable.is_due("holding", HOLDING_SECONDS, now):
            parts.look_at_gpus()
        parts.alerting.tick(now, parts.stalls.causes)
        self.firing = parts.alerting.firing()
        if self._timetable.is_due("files", TEND_SECONDS, now):
            parts.lines.tend()
            parts.look_at_program_files(now)
            self._stopping.look(now)
        if self._timetable.is_due("health", HEALTH_SECONDS, now):
            parts.lines.write_health(self._context.machine.health())
            parts.write_losses()

    def _follow(self, now: float) -> bool:
        """Read a piece of what the ranks logged. False if they have nothing new."""
        self._take_listeners()
        return self._rank_watch.follow(now, LONGEST_TICK)

    def _take_listeners(self) -> None:
        while self._listeners:
            order, listener = self._listeners.popleft()
            order(self._parts.relay, listener)

    def _drain(self) -> None:
        """Write the samples that have come in."""
        lines = self._parts.lines
        commanded = any(rank.registration.kind == COMMAND for rank in self._ranks.alive())
        lines.until = None if commanded else self._account.end_time  # a command is watched until it ends itself
        if len(self._inbox) == INBOX_SIZE:
            self._context.log.warning("samples were lost: the run folder is too slow")
        for _ in range(len(self._inbox)):
            for notice in lines.take(self._inbox.popleft()):
                lines.write_event(
                    notice.event, notice.message, severity=notice.severity, data=notice.data, when=notice.time
                )

    def _write_status(self, now: float, *, force: bool = False) -> None:
        if self.state not in ENDED:
            states = {rank.state for rank in self._ranks.alive()}
            self.state = next((state for state in ("hung", "stalled") if state in states), "running")
            if self.state == "running":
                self._parts.stalls.cause = None
        if not force and not self._parts.status_file.is_due(now):
            return
        self._rank_watch.has_news = False
        try:
            self._parts.write_status(self.attempt, self.state, now)
        except OSError as error:
            self._context.log.warn_once("cannot write status.json", error=str(error))

    # -- the end

    def _end(self) -> None:
        while self._follow(time.monotonic()):
            continue  # what was logged last counts too
        self._drain()
        verdict = self._closing.end()
        if verdict is not None:
            self.state, self.firing = verdict.status, self._parts.alerting.firing()
            self.ending = EndedAt(time.time(), verdict.cause)
            self._write_status(time.monotonic(), force=True)
            self._clean_up()

    def _clean_up(self) -> None:
        self._remove_registrations()
        self.finishing = True
        self._closing.request_seals()
        self._finish()

    def _finish(self) -> None:
        self._take_listeners()
        self.over = self._closing.finish()

    def _remove_registrations(self) -> None:
        self._ranks.unregister()
        for change in self._changes:
            if change.what == "join":
                registrations.unregister(change.path, change.registration)

    def _detach(self) -> None:
        """The agent stops, the run continues."""
        parts = self._parts
        if self.finishing:
            parts.lines.close()
            return
        self._follow(time.monotonic())
        self._drain()
        parts.alerting.leave()
        parts.program_files.leave()
        parts.consoles.look()
        parts.lines.write_event(
            "agent_detached", "agent stopped; the run continues", data=ProcessEvent(pid=os.getpid())
        )
        self._write_status(time.monotonic(), force=True)
        parts.consoles.leave()
        parts.lines.close()
