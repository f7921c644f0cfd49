"""One watched run: follow its ranks, write what the machine does, and tell its end if it cannot tell itself.

Each run has a thread of its own, so a run folder on a dead file server harms nobody else.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.agent import status
from trainvitals.agent.alerting import Alerting
from trainvitals.agent.causes import Verdict
from trainvitals.agent.consoles import Consoles
from trainvitals.agent.ending import correct_end, decide_end, write_end
from trainvitals.agent.gpu_holding import GpuHolding
from trainvitals.agent.lines import RunLines, read_told
from trainvitals.agent.liveness import Rank, status_key, wait_for_end
from trainvitals.agent.log import BoundLog
from trainvitals.agent.reading import Reading, exporter_trouble
from trainvitals.agent.row_exporting import RowExporting
from trainvitals.agent.sealing import Sealer, Seals
from trainvitals.agent.stalls import Stalls
from trainvitals.agent.training_log import TrainingLog
from trainvitals.analysis.gpu_use import GpuUses, parse_uses
from trainvitals.exporters.rows import RunDescription, RunEnd
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout, registrations
from trainvitals.journal.cursor import Damage
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.latest import LatestRun
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.run import COMMAND, ENDED, MONITOR, TRAINING, RunFile
from trainvitals.journal.documents.status import RankStatus, Status
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.failures import Failure, read_failures
from trainvitals.journal.follower import Relay
from trainvitals.journal.layout import FileName
from trainvitals.journal.listening import Listener
from trainvitals.newest import SourceHealth
from trainvitals.settings import Settings
from trainvitals.sources import RankProcess

LONGEST_TICK = 0.5
SHORTEST_TICK = 0.25
SETTLING_TICK = 0.05
"""Seconds between two looks while a process that is gone is asked for its exit status."""
HEALTH_SECONDS = 10.0
FIRST_HEALTH_SECONDS = 2.0
SEALING_SECONDS = 5.0
TEND_SECONDS = 1.0
FOLDER_SECONDS = 1.0
CONSOLE_SECONDS = 1.0
HOLDING_SECONDS = 5.0
GOODBYE_SECONDS = 3.0
"""A process that lives on and logs nothing this long after the run was finished is left alone, as in a notebook."""
WRAPPER_SECONDS = 2.0
"""`trainvitals run` knows the exit code for certain and gets this long to write it down."""
END_PATIENCE_SECONDS = 600.0
ROOM_TICK = 2.0
"""Seconds between two tries to write the end down while the disk does not take it."""
INBOX_SIZE = 20_000
PIECE = 512 << 10
"""Bytes of one file at a time, so that a fast trainer does not keep the agent from everything else."""
CATCH_UP_SECONDS = 0.5
"""How long, per tick, a listener that was added late is served once the run has ended."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run may ask the agent for."""

    host: str
    describe: Callable[[], Mapping[str, Any]]
    health: Callable[[], list[SourceHealth]]
    gpu_users: Callable[[], Mapping[str, Iterable[int]]]
    """The processes on each GPU, by the key of its unit."""
    sealer: Sealer


class WatchedRun:
    """All ranks of one attempt of one run on this machine."""

    def __init__(self, first: Registration, settings: Settings, machine: Machine, log: BoundLog) -> None:
        self.run_id = first.run_id
        self.attempt = first.attempt
        self.folder = Path(first.folder)
        self.settings = settings
        self._first_pid = first.pid
        self.correlation_id = first.correlation_id or secrets.token_hex(16)
        self.finishing = False
        """It has ended; its files are being sealed."""
        self.over = False
        self.failed = False
        """It is over because watching it went wrong, not because it ended."""
        self.past = True
        """None of its processes lived when it was found: there is nothing to measure, only its end to tell."""
        self.began = time.monotonic()
        self.state = "running"
        self.firing: Sequence[AlertRow] = ()
        """The alerts that fire now, each with its labels."""
        self._machine = machine
        self._log = log.bind(run_id=self.run_id, attempt=self.attempt, correlation_id=self.correlation_id)
        self._many_hosts = first.world_size > first.local_world_size
        self._ranks: dict[tuple[int, str], Rank] = {}
        self._inbox: deque[Reading] = deque(maxlen=INBOX_SIZE)
        self._orders: deque[tuple[str, Registration, Path]] = deque()
        self._listeners: deque[tuple[Callable[[Relay, Listener], None], Listener]] = deque()
        self._leaving = False
        self._run = RunFile()
        self._run_stamp: object = None
        self._goodbye_at: float | None = None
        self._told_damage = Damage()
        self._told_dropped = 0
        self._last_error = ""
        self._complaints: set[str] = set()
        self._end_deadline: float | None = None
        self._has_news = False
        """A rank has come or gone: status.json is not to wait for its turn."""
        self._next = {"health": time.monotonic() + FIRST_HEALTH_SECONDS}
        self._row_exports: RowExporting | None = None
        self._run_end: RunEnd | None = None
        self._thread = threading.Thread(target=self._live, name=f"run {self.run_id}", daemon=True)

    # -- from other threads

    def start(self) -> None:
        self._thread.start()

    def join_rank(self, registration: Registration, path: Path) -> None:
        """A rank of this run has registered."""
        if self.past and runtime.is_same_process(registration.pid, registration.pid_start):
            self.past = False
        self._orders.append(("join", registration, path))

    def leave_rank(self, registration: Registration, path: Path) -> None:
        """The registration of a rank has gone."""
        self._orders.append(("leave", registration, path))

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
        self._log.warning("exporter", reason=text)
        self.offer(exporter_trouble(text))

    def end_watch(self) -> None:
        """The agent ends, the run goes on."""
        self._leaving = True

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def processes(self) -> list[RankProcess]:
        """The rank processes that live; of a rank seen twice (by `trainvitals run` and by itself) the rank itself."""
        alive = [rank for rank in list(self._ranks.values()) if rank.is_alive]
        alive.sort(key=lambda rank: rank.registration.kind == TRAINING)
        by_rank = {rank.registration.rank: rank.registration.pid for rank in alive}
        return [RankProcess(self.run_id, number, pid) for number, pid in sorted(by_rank.items())]

    @property
    def rank_numbers(self) -> frozenset[int]:
        return frozenset(number for number, _ in list(self._ranks))

    def describe(self) -> LatestRun:
        """For latest.json."""
        ranks = {
            rank.status_key: RankStatus(
                pid=rank.registration.pid,
                kind=rank.registration.kind,
                state=rank.state,
                step=rank.progress.step,
            )
            for rank in list(self._ranks.values())
        }
        return LatestRun(
            run_id=self.run_id, folder=str(self.folder), attempt=self.attempt, state=self.state, ranks=ranks
        )

    # -- the thread

    def _live(self) -> None:
        try:
            self._attach()
            ended: frozenset[int] = frozenset()
            while not self.over and not self._leaving:
                try:
                    self._tick(time.monotonic(), ended)
                except Exception as error:  # noqa: BLE001 - one run's trouble must not end its watch
                    self._survive(error)
                if not self.over:
                    ended = self._sleep()
            if not self.over:
                self._detach()
        except Exception as error:  # noqa: BLE001 - nor any other run's
            self.failed = True
            self._survive(error)
        finally:
            self.over = True
            for rank in self._ranks.values():
                rank.close()
            self._end_row_exports()

    def _survive(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text != self._last_error:  # once, not with every tick
            import traceback

            self._last_error = text
            self._log.error("watching a run failed", error=text, traceback=traceback.format_exc())
        time.sleep(0.5)

    def _sleep(self) -> frozenset[int]:
        tick = min(LONGEST_TICK, max(SHORTEST_TICK, self._lines.shortest_interval / 2))
        if self._end_deadline is not None:
            tick = ROOM_TICK
        settling = any(not rank.is_alive and not rank.is_over for rank in self._ranks.values())
        pidfds = [rank.pidfd for rank in self._ranks.values() if rank.is_alive and rank.pidfd is not None]
        return wait_for_end(pidfds, SETTLING_TICK if settling else tick)

    def _attach(self) -> None:
        known = status.read_own(self.folder, self._machine.host)
        before = known if known.attempt == self.attempt else Status()
        self._known_ranks = before.ranks
        self._seen = read_told(self.folder, self._machine.host)
        self._training_log = TrainingLog(known)
        self._told_damage = self._training_log.damage
        self._gpu_use = GpuUses(parse_uses(known.gpu_summary))
        self._holding = GpuHolding(self._machine.gpu_users, before.held_gpus)
        self._consoles = Consoles(self.folder, self.settings, known.consoles)
        self._lines = self._open_lines()
        self._status = status.StatusFile(self.folder, self._machine.host, self._many_hosts, self.settings.file_mode)
        self._stalls = Stalls(self.folder, self.settings, self._lines, before.cause)
        self._seals = Seals(self.folder, self.settings, self._lines, self._machine.sealer, self._log)
        self._relay = Relay(
            self.folder, self._is_followed, read_sealed=self._seals.read_sealed, on_error=self._survive_listener
        )
        self._relay.add(self._training_log)
        self._alerting = Alerting(
            self.folder,
            self.settings,
            FileName("alerts", self.attempt, "", host=self._host_token),
            self._machine.host,
            lambda: list(self._ranks.values()),
            self._holding.holds,
            lambda event, message, severity: self._lines.write_event(event, message, severity=severity),
            self._log,
        )
        # An earlier agent told the end and was itself ended before it could clean up.
        self._told_end = before.is_over
        if self._told_end or not self.folder.is_dir():
            return
        self._alerting.start(self._first_pid, self._training_log.acknowledged)
        self._relay.add(self._alerting)
        self._lines.listen = self._alerting.see_sample
        about = run_folder.find_run(self.folder) or RunFile()
        self._row_exports = RowExporting(
            self.settings,
            RunDescription(self.run_id, self.folder, self._machine.host, self.attempt, about),
            known.row_exports,
            self._warn_of_exporter,
        )
        for exporter in self._row_exports:
            self._relay.add(exporter)
        again = before.state is not None
        self._lines.write_event(
            "agent_attached",
            "the agent watches this run again" if again else "the agent watches this run",
            data={"pid": os.getpid()},
        )
        self._log.info("watching", folder=str(self.folder), again=again)

    def _open_lines(self) -> RunLines:
        return RunLines(
            self.folder,
            self.run_id,
            self.correlation_id,
            self.settings,
            FileName("events", self.attempt, "", host=self._host_token),
            self._machine.host,
            self._gpu_use,
            lambda text: self._log.warning("the run folder cannot be written", reason=text),
        )

    @property
    def _host_token(self) -> str | None:
        """How this host is called in file names; None where the whole run is on one host."""
        return layout.host_token(self._machine.host) if self._many_hosts else None

    def _tick(self, now: float, ended: frozenset[int]) -> None:
        if self.finishing:
            self._wait_for_seals()
            return
        if self._is_time("folder", FOLDER_SECONDS, now) and not self.folder.is_dir():
            self._log.warning("the run folder is gone, so the run is not watched any more", folder=str(self.folder))
            self._remove_registrations()
            self.over = True
            return
        self._take_orders(now)
        if self._told_end:
            self._clean_up()
            return
        self._read_run(now)
        self._follow(now)
        self._drain()
        for rank in list(self._ranks.values()):
            self._look(rank, now, ended)
        self._stalls.tell()
        if self._is_time("holding", HOLDING_SECONDS, now):
            alive = [rank.registration for rank in self._ranks.values() if rank.is_alive]
            held = [item for item in alive if item.kind != MONITOR]
            lines = self._lines
            self._holding.look(held, self._machine.describe(), lines.gpus.values(), lines.processes.values())
        self._alerting.tick(now, self._stalls.causes)
        self.firing = self._alerting.firing()
        if self._is_time("files", TEND_SECONDS, now):
            self._lines.tend()
        if self._is_time("health", HEALTH_SECONDS, now):
            self._lines.write_health(self._machine.health())
            self._tell_losses()
        if self._ranks and all(rank.is_over for rank in self._ranks.values()) and self._end_is_known(now):
            self._end()
            return
        self._write_status(now, force=self._has_news)
        if self._is_time("console", CONSOLE_SECONDS, now):
            self._consoles.look()  # once it is noted where the copy begins: another agent may have to go on there
        if self._is_time("sealing", SEALING_SECONDS, now):
            self._seals.request(self._is_ours, self._is_read, self._find_behind)

    def _is_time(self, what: str, interval: float, now: float) -> bool:
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + interval
        return True

    # -- ranks come and go

    def _take_orders(self, now: float) -> None:
        while self._orders:
            order, registration, path = self._orders.popleft()
            known = self._ranks.get((registration.rank, registration.kind))
            if order == "leave":
                if known is not None and known.is_alive and not known.is_over and not path.exists():
                    # A cleaner of temporary files took it; the run goes on.
                    registrations.register(known.registration)
            elif known is None or known.registration.pid != registration.pid:
                if registration.attempt > self.attempt:
                    self._begin_attempt(registration.attempt)
                if known is not None:
                    self._replace(known, registration)
                self._join(registration, path, now)

    def _begin_attempt(self, attempt: int) -> None:
        """A launcher started the ranks anew in the same folder: the same run, another attempt."""
        self.attempt = attempt
        self._goodbye_at = None
        self._lines.begin_attempt(attempt)
        self._log = self._log.bind(attempt=attempt)
        self._lines.write_event("attempt_started", f"attempt {attempt} has started")

    def _replace(self, old: Rank, new: Registration) -> None:
        if not old.is_over:
            message = f"{old.name} is another process now: {new.pid} instead of {old.registration.pid}"
            self._lines.write_event("rank_replaced", message, severity="warning", rank=new.rank, data={"pid": new.pid})
        old.close()

    def _join(self, registration: Registration, path: Path, now: float) -> None:
        known = self._known_ranks.get(status_key(registration))
        if known is not None and known.pid != registration.pid:
            known = None
        rank = Rank(registration, path, now, known)
        self._ranks[rank.key] = rank
        if self._told_end:
            return
        self._consoles.join(registration)
        if registration.kind == TRAINING:
            training = [item.registration for item in self._ranks.values() if item.registration.kind == TRAINING]
            self._training_log.summarised = min(max(item.rank - item.local_rank, 0) for item in training)
            self._relay.ask_again()
            if known is not None:
                rank.progress.restore(known, self._silence(registration.rank), now)
                rank.state = known.state or "running" if rank.is_alive else rank.state
        if ("rank_started", registration.rank, registration.pid) not in self._seen:
            self._lines.write_event(
                "rank_started",
                f"{rank.name} is process {registration.pid} on {self._machine.host}",
                rank=registration.rank,
                data={"pid": registration.pid, "kind": registration.kind},
            )
        self._has_news = True

    def _follow(self, now: float) -> bool:
        """Read a piece of what the ranks logged, for all who listen. False if the ranks have nothing new."""
        self._take_listeners()
        self._relay.poll(PIECE)
        found = self._training_log.take_growth()
        for number, growth in found.items():
            rank = self._ranks.get((number, TRAINING))
            if rank is None:
                continue
            # What was logged before we came was not logged just now.
            silent = 0.0 if rank.progress.lines else self._silence(number)
            rank.progress.grow(growth.lines, LONGEST_TICK, now, silent)
            rank.progress.step = growth.step if growth.step is not None else rank.progress.step
            rank.progress.last_log = growth.timestamp or rank.progress.last_log
        return bool(found)

    def _take_listeners(self) -> None:
        while self._listeners:
            order, listener = self._listeners.popleft()
            order(self._relay, listener)

    def _is_followed(self, file: FileName) -> bool:
        """Whether anybody here may listen to it: what this machine writes, and the events and alerts of all machines. A
        training is listened to once its rank has registered, for its lines are counted there."""
        if file.table == "training":
            return (file.rank or 0, "training") in self._ranks
        return file.table in layout.LINE_TABLES or self._is_ours(file)

    def _silence(self, rank: int) -> float:
        """For how many seconds the rank's files have not changed, by their own time."""
        newest = self._relay.last_write(lambda file: file.table == "training" and (file.rank or 0) == rank)
        return max(time.time() - newest, 0.0) if newest is not None else 0.0

    def _survive_listener(self, listener: Listener, error: Exception) -> None:
        text = f"{listener.name}: {type(error).__name__}: {error}"
        if text not in self._complaints:
            import traceback

            self._complaints.add(text)
            self._log.error("a listener failed", listener=listener.name, error=text, traceback=traceback.format_exc())

    def _drain(self) -> None:
        if len(self._inbox) == INBOX_SIZE:
            self._log.warning("the run folder is so slow that samples were lost")
        for _ in range(len(self._inbox)):
            for notice in self._lines.take(self._inbox.popleft()):
                self._lines.write_event(
                    notice.event, notice.message, severity=notice.severity, data=notice.data, when=notice.time
                )

    def _read_run(self, now: float) -> None:
        """Look whether the training has said its end."""
        try:
            found = (self.folder / layout.RUN_FILE).stat()
        except OSError:
            return
        stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
        if stamp != self._run_stamp:
            self._run_stamp = stamp
            self._run = run_folder.find_run(self.folder) or self._run
        if self._goodbye_at is None and self._said_end:
            self._goodbye_at = now

    @property
    def _said_end(self) -> bool:
        """Whether run.json has the end of this attempt, and not only tentatively."""
        return self._run.has_ended(self.attempt)

    # -- is it still stepping

    def _look(self, rank: Rank, now: float, ended: frozenset[int]) -> None:
        was_over = rank.is_over
        memory = rank.look(now, ended)
        number = rank.registration.rank
        if memory == "group":
            message = f"the kernel killed a process for memory in the control group of {rank.name}"
            self._lines.write_event("oom_kill", message, severity="warning", rank=number)
        if was_over:
            return
        if rank.is_over:
            self._explain(rank)
            self._tell_end(rank)
        elif rank.is_alive:
            self._judge_progress(rank, now)

    def _judge_progress(self, rank: Rank, now: float) -> None:
        if self._said_end and rank.registration.kind != COMMAND:
            silent = rank.progress.silence(now)
            # Other ranks may have lines to write still; a monitor writes none and waits for us.
            patience = GOODBYE_SECONDS if rank.registration.kind == TRAINING else 0.0
            if self._goodbye_at is not None and min(silent, now - self._goodbye_at) >= patience:
                rank.said_goodbye = True
            return
        if rank.registration.kind == TRAINING:
            self._stalls.judge(rank, now)

    # -- the end

    def _explain(self, rank: Rank) -> None:
        """An exit code says less than the exception behind it, which the rank wrote down."""
        verdict = rank.verdict
        if verdict is not None and verdict.status == "failed" and rank.registration.kind == TRAINING:
            own = [item for item in self._failures() if item.rank == rank.registration.rank]
            if own:
                rank.verdict = replace(verdict, cause=own[0].cause)

    def _failures(self) -> list[Failure]:
        """The exceptions of the ranks, and what rank 0 said of the end, each at its time by the clock of this agent."""
        found = read_failures(self.folder, self.attempt)
        ended = parse_time(self._run.ended) if self._said_end else None
        if ended is not None:
            found.append(Failure(ended, 0, self._run.cause or Cause()))
        ago = time.time() - time.monotonic()
        return [item._replace(time=item.time - ago) for item in found]

    def _tell_end(self, rank: Rank) -> None:
        number, verdict = rank.registration.rank, rank.verdict
        if verdict is None or ("rank_ended", number, rank.registration.pid) in self._seen:
            return
        data = {"pid": rank.registration.pid, **_plain(verdict)}
        # What it said of itself stands, but "finished" said at exit does not stand against a bad exit status.
        excused = self._said_end and (number == 0 or verdict.signal is None)
        tentative = number == 0 and self._run.tentative and not (verdict.exit_code or verdict.signal)
        peaceful = verdict.status == "finished" or excused or tentative
        self._alerting.see_end(rank, "finished" if peaceful else verdict.status, verdict.cause)
        if peaceful:
            self._lines.write_event("rank_ended", f"{rank.name} has ended", rank=number, data=data)
        else:
            message = f"{rank.name} is lost: {verdict.cause}"
            self._lines.write_event("rank_lost", message, severity="critical", rank=number, data=data)
        self._has_news = True

    def _end_is_known(self, now: float) -> bool:
        """Give `trainvitals run` a moment to write the exit status it alone knows for certain."""
        run = self._run
        told = run.attempt == self.attempt and (run.exit_code is not None or run.signal is not None)
        wrapped = any(rank.registration.kind == COMMAND for rank in self._ranks.values())
        if self._said_end or told or not wrapped:
            return True
        last = max((rank.gone_at or now for rank in self._ranks.values()), default=now)
        return now - last > WRAPPER_SECONDS

    def _end(self) -> None:
        while self._follow(time.monotonic()):
            continue  # what was logged last counts too
        self._drain()
        self._run = run_folder.find_run(self.folder) or self._run
        verdict = decide_end(self._run, self.attempt, list(self._ranks.values()), self._failures())
        if any(rank.registration.rank == 0 for rank in self._ranks.values()):
            mode = self.settings.file_mode
            try:
                if self._said_end and verdict.cause != self._run.cause:
                    correct_end(self.folder, self.attempt, verdict, mode)
                else:
                    leader = self._ranks.get((0, TRAINING))
                    step = leader.progress.step if leader is not None else None
                    write_end(self.folder, self.attempt, verdict, mode, step)
            except OSError as error:
                self._complain("the end of the run cannot be written", error)
                if self._waits_for_room():
                    return
        self._tell_losses()
        severity = "info" if verdict.status == "finished" else "critical"
        cause = f": {verdict.cause}" if verdict.cause else ""
        self._lines.write_event(
            "run_ended",
            f"the run is {verdict.status}{cause}",
            severity=severity,
            data={"status": verdict.status, **_plain(verdict)},
        )
        self._log.info("the run has ended", status=verdict.status, cause=str(verdict.cause or ""))
        self._consoles.end()
        self.state, self._stalls.cause = verdict.status, verdict.cause
        self._alerting.end(verdict, list(self._ranks.values()))
        self.firing = ()
        self._run_end = RunEnd(verdict.status, verdict.cause)
        self._catch_up()  # exporters of rows get what was measured last, too
        self._relay.close()
        self._write_status(time.monotonic(), force=True)
        self._clean_up()

    def _waits_for_room(self) -> bool:
        """A full disk may have room again, and the end is worth waiting for, but not for ever."""
        if self._end_deadline is None:
            self._end_deadline = time.monotonic() + END_PATIENCE_SECONDS
        return time.monotonic() < self._end_deadline

    def _complain(self, what: str, error: OSError) -> None:
        text = f"{what}: {error.strerror}"
        if text not in self._complaints:  # once, not with every tick
            self._complaints.add(text)
            self._log.warning(what, error=str(error))

    def _clean_up(self) -> None:
        self._remove_registrations()
        self.finishing = True
        self._seals.request_last(self._is_ours)
        self._wait_for_seals()

    def _wait_for_seals(self) -> None:
        """Until everything is sealed and listeners that were added late have caught up."""
        self._seals.tend()
        self._take_listeners()
        more = self._catch_up()
        if not (self._seals.busy or more or self._relay.waits):
            self._seals.tend()
            self._lines.close()
            self.over = True

    def _catch_up(self) -> bool:
        """Hand over what is left of an ended run, for a moment. False if there is nothing more."""
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while (more := self._relay.poll(PIECE)) and time.monotonic() < deadline:
            continue
        return more

    def _end_row_exports(self) -> None:
        """Give the exporters of rows their time for what is left, and write down how far they are."""
        if self._row_exports is None or not any(self._row_exports):
            return
        unfinished = self._row_exports.end(self._run_end)
        if unfinished:
            self._log.warning("exporters did not take all rows", exporters=unfinished)
        self._write_status(time.monotonic(), force=True)

    def _detach(self) -> None:
        if self.finishing:
            self._lines.close()
            return
        self._follow(time.monotonic())
        self._drain()
        self._alerting.leave()
        self._consoles.look()
        self._lines.write_event("agent_detached", "the agent ends; the run goes on", data={"pid": os.getpid()})
        self._write_status(time.monotonic(), force=True)
        self._consoles.leave()
        self._lines.close()

    def _remove_registrations(self) -> None:
        for rank in self._ranks.values():
            rank.unregister()
        for order, registration, path in self._orders:
            if order == "join":
                registrations.unregister(path, registration)

    # -- what is written besides

    def _tell_losses(self) -> None:
        """Lines that could not be understood or kept: said when there are more of them."""
        damage = self._training_log.damage
        if damage != self._told_damage:
            self._told_damage = damage
            message = f"lines that could not be understood: {damage.torn} torn, {damage.foreign} foreign"
            self._lines.write_event(
                "damage", message, severity="warning", data={"torn": damage.torn, "foreign": damage.foreign}
            )
        dropped = self._lines.dropped
        if dropped > self._told_dropped:
            self._told_dropped = dropped
            message = f"{dropped} lines of the agent could not be written"
            self._lines.write_event("lines_dropped", message, severity="warning", data={"lines": dropped})
        self._seals.tend()

    def _write_status(self, now: float, *, force: bool = False) -> None:
        ranks = list(self._ranks.values())
        if self.state not in ENDED:
            states = {rank.state for rank in ranks if rank.is_alive}
            self.state = next((state for state in ("hung", "stalled") if state in states), "running")
            if self.state == "running":
                self._stalls.cause = None
        if not force and not self._status.is_due(now):
            return
        self._has_news = False
        content = Status(
            host=self._machine.host,
            agent_pid=os.getpid(),
            attempt=self.attempt,
            state=self.state,
            cause=self._stalls.cause,
            ranks={rank.status_key: rank.describe() for rank in ranks},
            hardware=self._machine.describe(),
            visible_gpus=status.visible_gpus(self._machine.describe(), [rank.registration for rank in ranks]),
            held_gpus=self._holding.describe(),
            gpu_summary=self._gpu_use.as_json(),
            alerts=self._alerting.active(),
            row_exports=self._row_exports.describe() if self._row_exports is not None else {},
            consoles=self._consoles.as_json(),
            dropped_lines=self._lines.dropped,
        )
        try:
            self._status.write(self._training_log.add_to(content), now)
        except OSError as error:
            self._complain("status.json cannot be written", error)
            return
        self._training_log.mark_saved()
        if self._row_exports is not None:
            self._row_exports.mark_saved()

    def _is_ours(self, name: FileName) -> bool:
        """Whether a journal file was written on this machine: the folder may be shared with others."""
        if name.table == "training":
            return any((name.rank or 0) == rank.registration.rank for rank in self._ranks.values())
        return name.host == self._host_token

    def _is_read(self, name: str) -> bool:
        """Whether it is closed, and all of it is counted in status.json."""
        return name not in self._lines.open_files and self._training_log not in self._list_behind(name)

    def _find_behind(self, name: str) -> list[Listener]:
        return [listener for listener in self._list_behind(name) if listener is not self._training_log]

    def _list_behind(self, name: str) -> list[Listener]:
        parsed = layout.parse_name(name)
        return self._relay.behind(parsed[0]) if parsed is not None else []


def _plain(verdict: Verdict) -> dict[str, Any]:
    """What an event keeps of it."""
    reason = verdict.cause.as_json() if verdict.cause is not None else None
    found = {"exit_code": verdict.exit_code, "signal": verdict.signal, "reason": reason}
    return {key: value for key, value in found.items() if value is not None}
