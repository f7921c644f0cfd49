"""Every run of this agent that has a gateway, shipped there by one thread: while it lives, and afterwards until the
gateway has all of it.

A note in the runtime folder lets the next agent go on, however this one ends; how far the gateway is, it says itself
(`trainvitals.fleet.shipping`). A reboot may empty that folder, so when a run is added, the status files of the others
beside it are asked, too. Where no run has a gateway, nothing of this is imported.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainvitals import runtime
from trainvitals.agent import status
from trainvitals.agent.log import BoundLog
from trainvitals.errors import TrainvitalsError
from trainvitals.exporters.runs import ShippingCounts
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.status import Shipment, Status
from trainvitals.journal.encoding import format_time
from trainvitals.journal.folder_notes import FolderNotes
from trainvitals.ownership import explain_foreign
from trainvitals.plain_json import parse_object
from trainvitals.settings import Settings

if TYPE_CHECKING:
    from trainvitals.fleet.gateway_client import FarGateway, GatewayAccess
    from trainvitals.fleet.shipping import RunShipment

NOTES = FolderNotes("shipping")
PATIENCE = 86_400.0
"""Seconds without any success, after which an agent with nothing else to do ends. The notes stay."""
LEAVE_PATIENCE = 2.5
REST = 3.0
"""Seconds of rest for every second of processor time, while much lies behind: a training may want the processor."""
LONGEST_IDLE = 60.0
AT_ONCE = 256 << 10
"""Bytes of a live run that do not wait for the next interval: less than that was written meanwhile."""
MOST_TOLD = 20
"""Different troubles of one run that become events."""
BROKEN_SECONDS = 60.0
"""Until a run is tried again whose folder cannot be read."""

Warn = Callable[[str], None]


@dataclass(slots=True, eq=False)
class _Run:
    """One run and its copy at the gateway."""

    folder: Path
    mode: int
    """Rights of status.json."""
    interval: float
    gateway: FarGateway
    shipment: RunShipment
    target: str
    is_watched: bool
    known: Shipment
    """What an earlier agent left in status.json."""
    warn: Warn
    due: float = 0.0
    idle: float = 0.0
    """Seconds until the next look, of a run that has ended and gets no further."""
    waiting: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    has_all: bool = False
    behind_since: float | None = None
    trouble: str = ""
    refusal: str = ""
    """Why the gateway takes nothing of this run until `refused_until`, unless it is in another project by then."""
    refused_until: float = 0.0
    refused_project: str = ""
    gone: str = ""
    """That it was removed there: it is not shipped any more."""
    told: set[str] = field(default_factory=set)
    is_marked: bool = False
    """status.json says that all is shipped: once the gateway has that too, it is."""
    was_marked: bool = False


class Shipping:
    """All runs of one agent."""

    def __init__(self, host: str, log: BoundLog, own: Settings | None = None) -> None:
        """`own` are the settings of an agent that serves a whole node: they hold for runs that name no gateway."""
        self._own = own
        self._host = host
        self._log = log
        self._lock = threading.Lock()
        self._runs: dict[Path, _Run] = {}
        self._gateways: dict[object, FarGateway] = {}
        self._thread: threading.Thread | None = None
        self._news = threading.Event()
        self._closing = False
        self._roots: dict[Path, tuple[Settings, Mapping[str, str], str] | None] = {}
        """Folders of runs, and how to ship those in them that are still due; None where that is done."""
        self._sent_before = 0
        self._moved = time.monotonic()

    # -- from other threads

    @property
    def busy(self) -> bool:
        """Whether there is something left to ship, and a gateway that has taken something within a day."""
        return bool(self._runs) and time.monotonic() - self._moved < PATIENCE

    def add(
        self, folder: Path, settings: Settings, environment: Mapping[str, str], warn: Warn, *, watched: bool = True
    ) -> None:
        """Ship this run, if its settings or those of this agent name a gateway."""
        mode = settings.file_mode
        if settings.gateway is None and self._own is not None:
            settings, environment = self._own, os.environ
        if settings.gateway is None:
            return
        from trainvitals.fleet.gateway_client import GatewayAccess
        from trainvitals.fleet.shipping import RunShipment

        try:
            access = GatewayAccess.find(settings, environment)
            assert access is not None
        except TrainvitalsError as error:
            warn(f"cannot ship this run: {error}")
            return
        self._write_note(folder, settings)
        known = status.read_own(folder, self._host).shipment
        if known.target != access.shown:
            known = Shipment()
        shipment = RunShipment(folder, self._host, warn)
        with self._lock:
            if self._closing or (not watched and folder in self._runs):
                return
            gateway = self._find_gateway(access)
            interval = settings.gateway_interval
            self._runs[folder] = _Run(folder, mode, interval, gateway, shipment, access.shown, watched, known, warn)
            if folder.parent.parent not in self._roots:
                self._roots[folder.parent.parent] = (settings, environment, access.shown)
            self._moved = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="shipping", daemon=True)
                self._thread.start()
        self._news.set()

    def release(self, folder: Path) -> None:
        """The run is no longer watched: what is left of it is the last there is, and this thread says how far it is."""
        with self._lock:
            run = self._runs.get(folder)
            if run is not None:
                run.is_watched, run.due = False, 0.0
                run.shipment.look_deep()
        self._news.set()

    def take_up(self, make_settings: Callable[[Mapping[str, Any]], Settings]) -> int:
        """At the agent's start: what an earlier agent has noted. Returns how many runs that concerns."""
        notes = NOTES.take()
        for folder, known, _ in notes:
            if _is_removed(folder):
                NOTES.remove(folder)
                continue
            warn = self._make_warning(folder)
            if (why := explain_foreign(folder)) is not None:
                warn(f"not shipped: {why}")
                continue
            self.add(folder, make_settings(known), os.environ, warn, watched=False)
        return len(notes)

    def describe(self, folder: Path) -> Shipment | None:
        """For status.json; None if this agent does not ship it."""
        run = self._runs.get(folder)
        return _describe(run) if run is not None else None

    def count(self) -> ShippingCounts | None:
        """For metrics; None if nothing was ever shipped."""
        if self._thread is None:
            return None
        with self._lock:
            runs, gateways = list(self._runs.values()), list(self._gateways.values())
        since = [run.behind_since for run in runs if run.behind_since is not None]
        return ShippingCounts(
            sum(gateway.sent for gateway in gateways),
            sum(gateway.failed for gateway in gateways),
            self._sent_before + sum(run.shipment.sent_bytes for run in runs),
            sum(run.waiting for run in runs),
            len(runs),
            max(time.time() - min(since), 0.0) if since else 0.0,
        )

    def close(self) -> None:
        """The agent ends; the notes stay."""
        with self._lock:
            self._closing = True
        self._news.set()
        if self._thread is not None:
            self._thread.join(LEAVE_PATIENCE)

    # -- the thread

    def _work(self) -> None:
        while not self._closing:
            with self._lock:
                runs = list(self._runs.values())
            self._search_roots()
            for run in runs:
                if run.due <= time.monotonic() and not self._closing:
                    self._guard(run)
            pause = min((run.due for run in runs), default=float("inf")) - time.monotonic()
            if pause > 0:
                self._news.wait(min(pause, threading.TIMEOUT_MAX))
                self._news.clear()

    def _guard(self, run: _Run) -> None:
        try:
            self._serve(run)
        except Exception as error:  # noqa: BLE001 - one run's trouble must not end the shipping of the others
            run.due = time.monotonic() + BROKEN_SECONDS
            run.trouble = f"{type(error).__name__}: {error}"
            if _is_removed(run.folder):
                self._forget(run)
            else:
                self._log.exception_once("shipping a run failed", error, folder=str(run.folder))

    def _serve(self, run: _Run) -> None:
        """One request for this run, if its gateway may be asked and there is something to send."""
        from trainvitals.fleet.gateway_client import NotNow, RunGone, RunNotNow

        if run.gone:
            self._leave(run)
            return
        began, more = time.thread_time(), False
        watched = run.is_watched  # before the look: what is written until it is released will be seen
        try:
            is_refused = run.refused_until > time.monotonic() and run.refused_project == run.shipment.project
            if run.gateway.wait <= 0 and not is_refused:
                more = run.shipment.ship(run.gateway)
                run.refusal = ""
                self._moved = time.monotonic()
            else:
                run.shipment.look(time.monotonic())  # so that status.json says how much waits
        except RunNotNow as error:
            run.refusal, run.refused_until = str(error), time.monotonic() + error.seconds
            run.refused_project = run.shipment.project
        except NotNow:
            pass  # its trouble says why
        except RunGone as error:
            run.gone = run.trouble = str(error)
            run.waiting, run.behind_since = 0, None
            run.warn(f"no longer shipped to {run.target}: {error}")
            self._leave(run)
            return
        self._take_stock(run)
        now = time.monotonic()
        run.idle = 0.0 if more or watched else min(2 * run.idle or run.interval, LONGEST_IDLE)
        if more and (not watched or run.waiting > AT_ONCE):
            run.due = now + REST * (time.thread_time() - began)
        else:
            run.due = now + max(run.interval, run.idle, run.gateway.wait)
        if not watched and not more:
            self._close_up(run)

    def _take_stock(self, run: _Run) -> None:
        """What others ask about."""
        run.waiting, run.left_out = run.shipment.waiting_bytes, run.shipment.left_out
        run.has_all = run.shipment.has_all
        if not run.waiting:
            run.behind_since = None
        elif run.behind_since is None:
            run.behind_since = time.time()
        run.trouble = run.gateway.trouble or run.refusal
        if run.trouble and run.trouble not in run.told and len(run.told) < MOST_TOLD:
            run.told.add(run.trouble)
            run.warn(f"cannot ship to {run.target}, retrying: {run.trouble}")

    def _close_up(self, run: _Run) -> None:
        """The run has ended. Once all is shipped, say so in status.json, ship that, and forget the run."""
        if self._runs.get(run.folder) is not run:
            return  # it is watched again
        if run.has_all and run.is_marked:
            self._forget(run)
            return
        run.is_marked = False
        try:
            if not status.write_shipment(run.folder, self._host, _describe(run), run.mode, first=not run.was_marked):
                self._forget(run)  # `trainvitals export` has shipped it
                return
        except OSError as error:
            self._log.warn_once("cannot write status.json", folder=str(run.folder), error=str(error))
        if run.has_all:
            run.is_marked = run.was_marked = True
            run.due = 0.0
        run.shipment.look_deep()

    def _leave(self, run: _Run) -> None:
        """It was removed from the store. Nothing is sent again; once it has ended, status.json says why."""
        run.due = float("inf")
        if run.is_watched:
            return
        try:
            status.write_shipment(run.folder, self._host, _describe(run), run.mode)
        except OSError as error:
            self._log.warn_once("cannot write status.json", folder=str(run.folder), error=str(error))
        self._forget(run)

    def _forget(self, run: _Run) -> None:
        NOTES.remove(run.folder)
        with self._lock:
            if self._runs.get(run.folder) is run:  # not one that is watched again
                del self._runs[run.folder]
                self._sent_before += run.shipment.sent_bytes

    def _search_roots(self) -> None:
        """Take up what lies beside a run that was added, and is due."""
        with self._lock:
            new = {root: place for root, place in self._roots.items() if place is not None}
            self._roots.update(dict.fromkeys(new))
        for root, place in new.items():
            settings, environment, target = place
            for folder in _find_due(root, self._host, target):
                if explain_foreign(folder) is None and not self._closing:
                    self.add(folder, settings, environment, self._make_warning(folder), watched=False)

    # -- helpers

    def _find_gateway(self, access: GatewayAccess) -> FarGateway:
        from trainvitals.fleet.gateway_client import FarGateway

        kind, _, name = access.token.partition(":")
        key = (access, access.environment.get(name.strip()) if kind == "env" else None)
        found = self._gateways.get(key)
        if found is None:
            found = self._gateways[key] = FarGateway(access)
        return found

    def _write_note(self, folder: Path, settings: Settings) -> None:
        try:
            NOTES.write(folder, settings)
        except OSError as error:
            self._log.warning("cannot note for the next agent what is to be shipped", error=str(error))

    def _make_warning(self, folder: Path) -> Warn:
        return lambda text: self._log.warning("shipping", folder=str(folder), reason=text)


def _describe(run: _Run) -> Shipment:
    return Shipment(
        target=run.target,
        sent=run.known.sent + run.shipment.sent_bytes,
        waiting=run.waiting,
        behind_since=format_time(run.behind_since) if run.behind_since is not None else None,
        left_out=len(run.left_out),
        trouble=run.trouble or next((f"{path}: {why}" for path, why in run.left_out.items()), None),
        complete=not run.is_watched and run.has_all and not run.left_out and not run.gone,
        removed=bool(run.gone),
    )


def _find_due(root: Path, host: str, target: str) -> Iterator[Path]:
    """Runs that this host has shipped to the gateway, and not as a whole."""
    for place in run_folder.list_places(root):
        for path in Path(place).glob("status*.json"):
            try:
                data = runtime.read_regular(path, runtime.MOST_BYTES)
                if b'"shipment"' not in data:
                    continue  # of ten thousand runs, most
                found = Status.parse(parse_object(data))
            except (OSError, ValueError):
                continue
            if found.host == host and found.shipment.is_due and found.shipment.target == target:
                yield Path(place)


def _is_removed(folder: Path) -> bool:
    """Not where a whole file system is missing: it may come back."""
    return folder.parent.is_dir() and not folder.is_dir()


def list_unshipped() -> list[Path]:
    """The runs of this machine and user that a gateway does not have as a whole."""
    return NOTES.list_folders()
