"""All ways out together: what the agent holds while somebody wants to be served.

exports = Exports(host, folder, newest, warn)
exports.want(wishes)              # the settings of the runs and of the agent itself, whenever they change
exports.update(runs, healths)     # every second or so
relay.add(exports.listen_to(run)) # for each run: what its ranks log
exports.close()
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path

from prometheus_client.metrics_core import Metric

from trainvitals.errors import SettingError
from trainvitals.exporters import families
from trainvitals.exporters.contracts import Order, Output
from trainvitals.exporters.ended_runs import EndedRuns, Viewer
from trainvitals.exporters.families import FamilyOptions, FamilySeries, MetricsSnapshot
from trainvitals.exporters.push_queue import PATIENCE, PushQueue
from trainvitals.exporters.registry import Wish, wishes_of
from trainvitals.exporters.runs import GpuHolder, RunView, ShippingCounts
from trainvitals.exporters.server import PageServer
from trainvitals.exporters.training import Trainings
from trainvitals.journal.cursor import count_parsed
from trainvitals.journal.documents.latest import SourceHealth
from trainvitals.journal.identity import is_gpu_named
from trainvitals.journal.listening import Listener
from trainvitals.newest import Newest, Thing, Value
from trainvitals.plugins import describe
from trainvitals.redaction import redact_text
from trainvitals.settings import Settings
from trainvitals.settings.secrets import is_reference, read_secret

RETRY_SECONDS = 5.0
PUSH_LINGER_SECONDS = 30.0
UNHURRIED_SECONDS = 30.0
"""For the last words of a push while the agent goes on: a busy server gets them, and not only from the next agent."""
STATE_FILE = "exporter.json"
TABLES = ("gpu", "system", "process")
"""What is served of the newest values: what was scraped from another exporter is served by that one."""


GpuChoice = tuple[int | str, ...] | None


class Exports:
    """Everything that is served and pushed from this machine."""

    def __init__(
        self,
        host: str,
        folder: Path,
        newest: Newest,
        warn: Callable[[str], None],
        count_shipping: Callable[[], ShippingCounts | None] = lambda: None,
    ) -> None:
        self._host = host
        self._started = time.time()
        self._folder = folder
        self._newest = newest
        self._on_trouble = warn
        self._count_shipping = count_shipping
        self._warned = ""
        self._runs: tuple[RunView, ...] = ()
        self.healths: Mapping[str, SourceHealth] = {}
        self._gpu_facts: Mapping[str, Mapping[str, str]] = {}
        self._holders: tuple[GpuHolder, ...] = ()
        self._trainings = Trainings(folder / STATE_FILE)
        self._outputs: dict[Viewer, tuple[Wish, Output]] = {}
        self._failed: dict[Viewer, tuple[Wish, float]] = {}
        self._unwanted: dict[Viewer, float] = {}
        self._gpus: dict[Viewer, GpuChoice] = {}
        self._closing: dict[Viewer, threading.Thread] = {}
        self._ended = EndedRuns()
        self._lock = threading.Lock()

    # -- from the agent

    def listen_to(self, folder: Path) -> Listener:
        """What is to hear the lines of a run of `update`, all of them before the run is gone."""
        with self._lock:
            return self._trainings.listen_to(folder)

    def update(self, runs: Iterable[RunView], healths: Mapping[str, SourceHealth]) -> None:
        """Which runs there are, and how the sources do."""
        present = tuple(runs)
        folders = {run.folder for run in present}
        with self._lock:
            gone = [run for run in self._runs if run.folder not in folders]
            for run in gone:
                self._ended.add(run, self._outputs)
                if run.ended is not None:
                    self._trainings.count_end(run.state, run.ended.cause)
            self._ended.forget(folders)
            self._runs = present
            self._trainings.keep(run.folder for run in (*present, *self._ended.runs()))
            outputs = [(key, output) for key, (_, output) in self._outputs.items()] if gone else []
        self.healths = healths
        for key, output in outputs:
            self._guard(key, output.hurry)
        self._save()

    def update_gpus(self, holders: tuple[GpuHolder, ...], facts: Mapping[str, Mapping[str, str]]) -> None:
        """Who is on which GPU, and what each GPU is besides its labels, by UUID."""
        self._holders, self._gpu_facts = holders, facts

    def want(self, settings: Iterable[Settings]) -> None:
        """Open what is asked for and not there, close what nobody asks for. Cheap when nothing has changed."""
        wanted: dict[Viewer, list[Wish]] = {}
        for wish in (wish for item in settings for wish in wishes_of(item, "families")):
            wanted.setdefault(wish.key, []).append(wish)
        self._gpus |= {key: _choose_gpus(wishes) for key, wishes in wanted.items()}
        for key, (opened, output) in list(self._outputs.items()):
            wishes = wanted.get(key, [])
            if opened in wishes:
                self._unwanted.pop(key, None)
                if any(wish != opened for wish in wishes):
                    self._warn_once(_explain_difference(opened, next(wish for wish in wishes if wish != opened)))
                continue
            since = self._unwanted.setdefault(key, time.monotonic())
            if wishes or not self._lingers(key, output, since):
                del self._unwanted[key]
                self._close(key, UNHURRIED_SECONDS)
        for key in [key for key in self._failed if key not in wanted]:
            del self._failed[key]
        for key in [key for key, thread in self._closing.items() if not thread.is_alive()]:
            del self._closing[key]
        for key, wishes in wanted.items():
            if key not in self._outputs and key not in self._closing:
                self._open(key, wishes[0])

    def _lingers(self, key: Viewer, output: Output, since: float) -> bool:
        """The end of a run is served and pushed for a while, and then the port is given back. A Pushgateway keeps it by
        itself. A push ends an interval later: at once the end of the series would hide them from every chart."""
        if isinstance(output, PushQueue) and time.monotonic() < since + min(output.interval, PUSH_LINGER_SECONDS):
            return True
        with self._lock:
            return isinstance(output, PageServer | PushQueue) and bool(self._ended.runs(key))

    def _close(self, key: Viewer, patience: float | None = None) -> None:
        """A page at once, for somebody may want its port; a push when it has sent its last, and nobody waits."""
        with self._lock:
            _, output = self._outputs.pop(key)
            self._gpus.pop(key, None)
        if isinstance(output, PageServer):
            output.close()
        else:
            close = partial(output.close, patience) if isinstance(output, PushQueue) else output.close
            self._closing[key] = thread = threading.Thread(
                target=self._guard, args=(key, close), name="exporter: last words", daemon=True
            )
            thread.start()

    def _guard(self, key: Viewer, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the boundary around an exporter, which may be another package's
            self._warn_once(f"exporter {key[0]} failed: {redact_text(describe(error))}")

    @property
    def idle(self) -> bool:
        """Whether nobody is served."""
        return not self._outputs and not self._failed and not self._closing

    def close(self) -> None:
        """The last values of everything, with a bounded patience for servers that do not take them."""
        deadline = time.monotonic() + PATIENCE
        pages_last = sorted(self._outputs, key=lambda key: isinstance(self._outputs[key][1], PageServer))
        for key in pages_last:  # what nobody need wait for first
            self._close(key)
        for thread in self._closing.values():
            thread.join(max(deadline - time.monotonic(), 0.0))
        self._save(force=True)

    # -- the page

    def collect(self, options: FamilyOptions, viewer: Viewer | None = None) -> list[Metric]:
        """All families now, with those of runs that ended a while ago."""
        snapshot, pushes = self._look(viewer)
        return families.build(snapshot, options) + _describe_pushes(pushes, options.host or self._host)

    def _look(self, viewer: Viewer | None) -> tuple[MetricsSnapshot, list[tuple[str, PushQueue]]]:
        with self._lock:
            shown = (*self._runs, *self._ended.runs())
            runs = tuple((run, self._trainings.look(run.folder)) for run in shown)
            ended = dict(self._trainings.ended)
            pushes = [
                (kind, output) for (kind, _), (_, output) in self._outputs.items() if isinstance(output, PushQueue)
            ]
        chosen = self._gpus.get(viewer) if viewer is not None else None
        holders = (item for item in self._holders if chosen is None or _is_named(item.gpu, chosen))
        snapshot = MetricsSnapshot(
            self._host,
            self._started,
            tuple(thing for thing in self._newest.things(*TABLES) if _is_chosen(thing, chosen)),
            runs,
            self.healths,
            count_parsed(),
            tuple(holders),
            self._gpu_facts,
            ended,
            self._count_shipping(),
        )
        return snapshot, pushes

    # -- opening

    def _open(self, key: Viewer, wish: Wish) -> None:
        failed, again = self._failed.get(key, (None, 0.0))
        if failed == wish and time.monotonic() < again:
            return
        try:
            made = (wish, self._make(wish))
            with self._lock:
                self._outputs[key] = made
            self._failed.pop(key, None)
        except Exception as error:  # noqa: BLE001 - the boundary around an exporter, which may be another package's
            if failed != wish:
                self._warn_once(_explain(wish, error))
            self._failed[key] = (wish, time.monotonic() + RETRY_SECONDS)

    def _make(self, wish: Wish) -> Output:
        target = wish.target
        read_target = partial(read_secret, target) if is_reference(target) else None
        order = Order(
            target=target if read_target is None else read_target(),
            settings=wish.settings,
            collect=lambda options: self.collect(options, wish.key),
            collect_endings=lambda options: families.build_endings(self._look(wish.key)[0], options),
            host=self._host,
            started=self._started,
            folder=self._folder / "spool" / hashlib.sha256(target.encode()).hexdigest()[:16],
            warn=self._warn_once,
            read_target=read_target,
        )
        made: Output = import_module(wish.exporter.module).start(order)
        return made

    def _warn_once(self, text: str) -> None:
        """Once, not with every try."""
        if text != self._warned:
            self._warned = text
            self._on_trouble(text)

    def _save(self, *, force: bool = False) -> None:
        try:
            self._trainings.save(time.monotonic(), force=force)
        except OSError as error:
            self._warn_once(f"cannot save the exporter's counters: {error.strerror or error}")


def _choose_gpus(wishes: Iterable[Wish]) -> GpuChoice:
    """The GPUs that those who want an exporter measure, by index or UUID; None for all."""
    chosen: list[int | str] = []
    for wish in wishes:
        if wish.settings.gpus is None:
            return None
        chosen += wish.settings.gpus
    return tuple(chosen)


def _is_chosen(thing: Thing, chosen: GpuChoice) -> bool:
    return thing.table != "gpu" or chosen is None or _is_named(thing.labels, chosen)


def _is_named(labels: Mapping[str, Value], chosen: tuple[int | str, ...]) -> bool:
    return any(is_gpu_named(item, labels) for item in chosen)


def _describe_pushes(pushes: list[tuple[str, PushQueue]], host: str) -> list[Metric]:
    found = []
    for kind in sorted({kind for kind, _ in pushes}):
        mine = [output for other, output in pushes if other == kind]
        requests = FamilySeries(
            f"trainvitals_{kind}_requests", "Requests by result", ("outcome", "host"), kind="counter"
        )
        pending = FamilySeries(f"trainvitals_{kind}_pending_bytes", "Samples in the spool", ("host",), unit="bytes")
        for outcome in ("sent", "rejected", "failed"):
            requests.add((outcome, host), sum(getattr(output.counts, outcome) for output in mine))
        requests.add(("dropped", host), sum(output.dropped for output in mine))
        pending.add((host,), sum(output.pending_bytes for output in mine))
        found += [requests.family, pending.family]
    return found


def _explain_difference(opened: Wish, other: Wish) -> str:
    names = [name for (name, value), (_, wanted) in zip(opened.values, other.values, strict=True) if value != wanted]
    return f"{opened.target} keeps the settings of the first run; {', '.join(names)} of another run is ignored"


def _explain(wish: Wish, error: Exception) -> str:
    import errno

    if isinstance(error, SettingError):
        return str(error)
    if not isinstance(error, OSError):
        return f"cannot start exporter {wish.exporter.name}: {redact_text(describe(error))}"
    if error.errno == errno.EADDRINUSE:
        return f"cannot serve metrics: {wish.target} is in use by another program; choose another --prometheus-port"
    return f"cannot serve metrics on {wish.target}: {error.strerror or error}"
