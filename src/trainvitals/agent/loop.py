"""The agent's life: find registrations, keep a watch on each run, sample what they want, and end when idle.
Tested in tests/agent/test_agent.py."""

from __future__ import annotations

import os
import secrets
import signal
import time
from pathlib import Path
from typing import Any

import trainvitals
from trainvitals import runtime, sources
from trainvitals import settings as settings_room
from trainvitals.agent.exporter_bridge import Exporting
from trainvitals.agent.gpu_holders import GpuHolders
from trainvitals.agent.late_exports import LateExports
from trainvitals.agent.log import FILE_NAME, Log
from trainvitals.agent.reading import Reading
from trainvitals.agent.run import WatchedRun
from trainvitals.agent.run_context import AgentServices
from trainvitals.agent.run_settings import resolve_given
from trainvitals.agent.sampling import Sampler
from trainvitals.agent.sealing import Sealer
from trainvitals.agent.shipping import Shipping
from trainvitals.agent.timetable import Timetable
from trainvitals.agent.wanted import combine, find_pages
from trainvitals.agent.watches import Watches
from trainvitals.alerts import builtin
from trainvitals.alerts.session import resume_sending, still_sending
from trainvitals.errors import SettingError
from trainvitals.journal.documents.fields import Document
from trainvitals.journal.documents.latest import AgentFile, Latest
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.plugins import Plugin
from trainvitals.runtime import CHECKED_SECONDS, AgentLock
from trainvitals.settings import Settings
from trainvitals.sources import RankProcess, World
from trainvitals.sources.kubelet import Kubelet, find_gpus

TICK = 0.5
LATEST_SECONDS = 0.5
LONGEST_LATEST_SECONDS = 1.0
CHECK_SECONDS = 1.0
FAREWELL_SECONDS = 5.0
"""How long the watches have for their last lines: a moment where all is well, more where the node is busy."""
TOUCH_SECONDS = 3600.0


class Agent:
    """One per machine and user."""

    def __init__(self, *, keep: bool = False, echo: bool = False) -> None:
        self._keep = keep
        self._folder = runtime.runtime_dir()
        self._host = runtime.host_name()
        self._started = format_time()
        self._log = Log(self._folder / FILE_NAME, echo=echo).bind(
            pid=os.getpid(),
            correlation_id=os.environ.get("TRAINVITALS_CORRELATION_ID") or secrets.token_hex(16),
        )
        self._settings = self._own_settings()
        self._lock = AgentLock()
        self._sealer = Sealer()
        self._sampler = Sampler(self._log, self._offer)
        kubelet = Kubelet(
            self._settings.kubelet_socket,
            lambda reason: self._log.warn_once("kubelet", reason=reason),
            is_expected="KUBERNETES_SERVICE_HOST" in os.environ,
        )
        holders = GpuHolders(
            self._sampler.gpu_holders,
            lambda: find_gpus(kubelet.given_devices(), self._sampler.describe()),
        )
        self._shipping = Shipping(self._host, self._log, self._settings if keep else None)
        self._exporting = Exporting(
            self._host,
            self._folder,
            self._sampler.newest,
            holders,
            self._log,
            self._report,
            self._shipping.count,
        )
        self._late_exports = LateExports(self._host, self._log)
        machine = AgentServices(
            self._host,
            self._sampler.describe,
            self._sampler.health,
            self._sampler.gpu_users,
            self._sealer,
            self._late_exports,
            self._shipping,
        )
        self._watches = Watches(self._folder, machine, self._log, self._prepare_exporters)
        self._listening: tuple[WatchedRun, ...] = ()
        self._ranks: list[RankProcess] = []
        self._first = True
        self._latest_seconds = LATEST_SECONDS
        self._idle_since: float | None = None
        self._stop_signal: int | None = None
        self._replaced = False
        self._written_count = -1
        self._unwritten: set[str] = set()
        self._last_error = ""
        self._timetable = Timetable()

    def run(self) -> int:
        """Live until idle or asked to stop. Returns 0, also when another agent is there already."""
        if not self._lock.acquire(CHECKED_SECONDS):
            return 0
        for number in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM)):
            signal.signal(number, self._on_signal)
        self._log.info("agent started", version=trainvitals.__version__, keep=self._keep)
        self._log_broken_plugins()
        self._take_up_messages()
        while True:
            self._introduce()
            self._serve()
            if self._stop_signal is not None or self._replaced:
                break
            # A run that registered while we decided to go saw the lock held and started no other agent.
            (self._folder / "agent.json").unlink(missing_ok=True)
            self._lock.release()
            if not self._watches.find_registrations() or not self._lock.acquire(CHECKED_SECONDS):
                break
            self._idle_since = None
        self._leave()
        return 0

    def _log_broken_plugins(self) -> None:
        """Of what every agent uses; who asks for an exporter or a channel that is broken gets the reason there."""
        used: tuple[Plugin[Any], ...] = (*sources.REGISTRY.plugins(), *builtin.REGISTRY.plugins())
        for plugin in used:
            if plugin.error is not None:
                self._log.warning(
                    "plugin disabled",
                    group=plugin.group,
                    name=plugin.name,
                    package=f"{plugin.package} {plugin.version}",
                    reason=plugin.error,
                )

    def _take_up_messages(self) -> None:
        """Alerts, rows and files of runs that ended, which an earlier agent could not deliver."""
        pending = (
            ("messages", resume_sending),
            ("rows", self._late_exports.take_up),
            ("files", self._shipping.take_up),
        )
        for what, take_up in pending:
            try:
                count = take_up(lambda values: resolve_given(values, self._log))
            except (OSError, SettingError) as error:
                self._log.warning(f"cannot send {what} of an earlier agent", error=str(error))
                continue
            if count:
                self._log.info(f"sending pending {what} of an earlier agent", runs=count)

    def _keep_lock(self) -> None:
        """Take the lock again if its file was removed. If another agent has it by then, that one continues."""
        if self._lock.is_ours():
            return
        if self._lock.acquire(CHECKED_SECONDS):
            self._log.warning("the lock file was removed, perhaps by a cleaner of temporary files; taking it again")
            self._introduce()
        else:
            self._replaced = True

    def _on_signal(self, number: int, _frame: object) -> None:
        self._stop_signal = number

    def _introduce(self) -> None:
        about = AgentFile(
            pid=os.getpid(),
            start=runtime.process_start(os.getpid()),
            started=self._started,
            version=trainvitals.__version__,
            host=self._host,
            log=str(self._folder / FILE_NAME),
            keep=self._keep,
        )
        self._write("agent.json", about)
        self._lock.guard_folder()

    def _own_settings(self) -> Settings:
        try:
            return settings_room.resolve()
        except SettingError as error:
            # The user was warned where the mistake was made; an agent must start anyway.
            self._log.warning("invalid settings", error=str(error))
            return settings_room.resolve(environ={}, folder=Path("/"))

    # -- the loop

    def _serve(self) -> None:
        while self._stop_signal is None and not self._replaced:
            try:
                self._tick(time.monotonic())
            except Exception as error:  # noqa: BLE001 - what is wrong with one thing must not end the watch of all
                self._survive(error)
            if self._is_idle():
                return
            time.sleep(TICK)

    def _tick(self, now: float) -> None:
        self._keep_lock()
        if self._replaced:
            return
        self._watches.read_registrations()
        self._watches.close_past()
        self._watches.forget_over()
        self._meet_demand()
        if self._timetable.is_due("check", CHECK_SECONDS, now):
            self._sampler.check()
        if self._timetable.is_due("latest", self._latest_seconds, now):
            self._write_latest()
        if self._timetable.is_due("export", CHECK_SECONDS, now):
            self._export()
        if self._timetable.is_due("touch", TOUCH_SECONDS, now):
            self._touch()

    def _survive(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text != self._last_error:  # once, not with every tick
            import traceback

            self._last_error = text
            self._log.error("the agent's loop failed", error=text, traceback=traceback.format_exc())

    def _is_idle(self) -> bool:
        sending = still_sending() or self._late_exports.busy or self._shipping.busy
        if self._keep or self._watches or self._sealer.busy or sending:
            self._idle_since = None
            return False
        if self._idle_since is None:
            self._idle_since = time.monotonic()
        last = self._watches.idle_timeout
        patience = last if last is not None else self._settings.agent_idle_timeout
        return time.monotonic() - self._idle_since >= patience

    def _meet_demand(self) -> None:
        active = tuple(run for run in self._watches.runs.values() if not (run.past or run.finishing or run.over))
        if active != self._listening or self._first:
            self._first = False
            self._listening = active
            pages = [url for run in active for url in run.openmetrics_urls]
            if self._keep:
                pages += find_pages(self._settings, os.environ.get, self._log.warning)
            demand = combine([run.settings for run in active] + ([self._settings] if self._keep else []), pages)
            world = World(
                openmetrics_urls=demand.openmetrics_urls,
                simulated_gpus=demand.simulated_gpus,
                disk_path=self._disk_path,
                ranks=self._list_ranks,
                gpu_processes=self._sampler.gpu_processes,
                gpu_utilization=self._sampler.gpu_utilization,
            )
            self._sampler.want(demand, world)
            self._latest_seconds = min(max(demand.default_interval, LATEST_SECONDS), LONGEST_LATEST_SECONDS)
        ranks = self._list_ranks()
        if ranks != self._ranks:
            self._ranks = ranks
            self._sampler.rediscover("process")

    def _offer(self, reading: Reading) -> None:
        """Called from the threads of the units."""
        for run in self._listening:
            run.offer(reading)

    def _report(self, reading: Reading) -> None:
        """Called from the threads of the exporters. To every run: an exporter may fail before the run that asked for it
        is sampled for."""
        for run in list(self._watches.runs.values()):
            run.offer(reading)

    def _export(self) -> None:
        runs = [run for run in self._watches.runs.values() if not run.past]
        self._exporting.update(runs, self._sampler.health, self._sampler.describe)
        if self._exporting.want([run.settings for run in runs] + ([self._settings] if self._keep else [])):
            self._exporting.update(runs, self._sampler.health, self._sampler.describe)

    def _prepare_exporters(self) -> None:
        """Before the first line of a run is read: a listener that is added later reads it again."""
        try:
            self._export()
        except Exception as error:  # noqa: BLE001 - trouble with exporters must not keep a run from being watched
            self._survive(error)

    def _list_ranks(self) -> list[RankProcess]:
        return [process for run in self._listening for process in run.processes()]

    def _disk_path(self) -> str:
        runs = self._listening
        return str(runs[-1].folder) if runs else str(self._folder)

    def _touch(self) -> None:
        """Keep what is long-lived from looking abandoned to a cleaner of temporary files."""
        for path in (self._folder / "agent.lock", *self._watches.files):
            try:
                os.utime(path)
            except OSError:
                continue

    # -- what others may read

    def _write_latest(self) -> None:
        count = self._sampler.newest.count
        if count == self._written_count:
            return
        self._written_count = count
        latest = Latest(
            written=format_time(),
            agent=AgentFile(pid=os.getpid(), started=self._started, version=trainvitals.__version__),
            samples=self._sampler.newest.describe(),
            runs=tuple(run.describe() for run in self._watches.runs.values()),
            sources=self._sampler.health(),
            states=self._sampler.states(),
        )
        self._write("latest.json", latest)

    def _write(self, name: str, content: Document) -> None:
        """A full disk here must not keep us from watching runs, whose folders are elsewhere."""
        try:
            runtime.write_atomically(self._folder / name, encode_line(content.as_json()))
        except OSError as error:
            if name not in self._unwritten:
                self._unwritten.add(name)
                self._log.warning(f"cannot write {name}", error=str(error))
        else:
            self._unwritten.discard(name)

    # -- the end

    def _leave(self) -> None:
        """Let every run's thread write its last words, but wait for none that hangs."""
        self._sealer.end()
        for run in self._watches.runs.values():
            run.end_watch()
        deadline = time.monotonic() + FAREWELL_SECONDS
        for run in self._watches.runs.values():
            run.wait(max(deadline - time.monotonic(), 0.0))
        self._late_exports.close()
        self._shipping.close()
        self._exporting.close()  # with what the runs have read last, and with the newest samples
        self._sampler.end()
        hanging = [run.run_id for run in self._watches.runs.values() if run.is_alive]
        reason = "replaced by another agent" if self._replaced else "idle"
        if self._stop_signal is not None:
            reason = signal.Signals(self._stop_signal).name
        self._log.info("agent stopped", reason=reason, **({"hanging": hanging} if hanging else {}))
        if self._stop_signal is not None:
            (self._folder / "agent.json").unlink(missing_ok=True)
            self._lock.release()
