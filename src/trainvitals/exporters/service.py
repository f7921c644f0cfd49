"""All ways out together: what the agent holds while somebody wants to be served.

exports = Exports(host, folder, tell)
exports.want(wishes)              # the settings of the runs and of the agent itself, whenever they change
exports.take(table, labels, values, moment, interval)      # every sample
exports.update(runs, healths)     # now and then
exports.close()
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from prometheus_client.metrics_core import Metric

from trainvitals.errors import SettingError
from trainvitals.exporters import families
from trainvitals.exporters.families import Options, Series
from trainvitals.exporters.page import SharedPage
from trainvitals.exporters.remote_write import RemoteWrite
from trainvitals.exporters.server import Address, PageServer
from trainvitals.exporters.store import RunView, SourceHealth, Store, Value
from trainvitals.exporters.training import Trainings
from trainvitals.exporters.wishes import Wish, wishes_of
from trainvitals.settings import Settings
from trainvitals.settings.secrets import is_reference, read_secret

POLL_SECONDS = 0.5
RETRY_SECONDS = 5.0
LINGER_SECONDS = 30.0
"""How long a run that has ended is still there for whoever has not seen its last values."""
STATE_FILE = "exporter.json"


class Output(Protocol):
    """One way out."""

    def close(self) -> None:
        """End within a moment."""


class Exports:
    """Everything that is served and pushed from this machine."""

    def __init__(self, host: str, folder: Path, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._on_trouble = tell
        self._told = ""
        self.store = Store(host)
        self._trainings = Trainings(folder / STATE_FILE, host)
        self._outputs: dict[tuple[str, str], tuple[Wish, Output]] = {}
        self._failed: dict[tuple[str, str], tuple[Wish, float]] = {}
        self._unwanted: dict[tuple[str, str], float] = {}
        self._ended: dict[Path, tuple[RunView, float]] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="exporter", daemon=True)
        self._thread.start()

    # -- from the agent

    def take(
        self, table: str, labels: Mapping[str, Value], values: Mapping[str, Value], moment: float, interval: float
    ) -> None:
        """A new sample."""
        self.store.take(table, labels, values, moment, interval)

    def update(self, runs: Iterable[RunView], healths: Iterable[SourceHealth]) -> None:
        """Which runs there are and how the sources do."""
        present = tuple(runs)
        folders = {run.folder for run in present}
        now = time.monotonic()
        with self._lock:
            for run in self.store.runs:
                if run.folder not in folders:
                    self._ended[run.folder] = (run, now + LINGER_SECONDS)
            for folder in [f for f, (_, until) in self._ended.items() if f in folders or until < now]:
                del self._ended[folder]
        self.store.set_runs(present)
        self.store.set_healths(healths)

    def want(self, settings: Iterable[Settings]) -> None:
        """Open what is asked for and not there, close what nobody asks for. Cheap when nothing has changed."""
        wanted: dict[tuple[str, str], list[Wish]] = {}
        for wish in (wish for item in settings for wish in wishes_of(item)):
            wanted.setdefault((wish.kind, wish.target), []).append(wish)
        for key, (opened, output) in list(self._outputs.items()):
            wishes = wanted.get(key, [])
            if opened in wishes:
                self._unwanted.pop(key, None)
                if any(wish != opened for wish in wishes):
                    self._tell(_explain_difference(opened, next(wish for wish in wishes if wish != opened)))
                continue
            until = self._unwanted.setdefault(key, time.monotonic() + LINGER_SECONDS)
            # The last values of a run are still there for whoever scrapes next, and then the port is given back; at
            # once to somebody who wants it otherwise.
            if wishes or not self._ended or not isinstance(output, PageServer) or time.monotonic() > until:
                del self._outputs[key], self._unwanted[key]
                output.close()
        for key in [key for key in self._failed if key not in wanted]:
            del self._failed[key]
        for key, wishes in wanted.items():
            if key not in self._outputs:
                self._open(key, wishes[0])

    @property
    def idle(self) -> bool:
        """Whether nobody is served."""
        return not self._outputs and not self._failed

    @property
    def ports(self) -> list[int]:
        """Ports with a page."""
        return sorted(output.port for _, output in self._outputs.values() if isinstance(output, PageServer))

    def close(self) -> None:
        self._ending.set()
        self._thread.join(2.0)
        for _, output in self._outputs.values():
            output.close()
        self._outputs.clear()
        self._save(force=True)

    # -- the page

    def collect(self, options: Options, *, last_look: bool = False) -> list[Metric]:
        """All families now. A run that has ended is in the first page after its end and in no later one."""
        with self._lock:
            ended = [run for run, _ in self._ended.values()]
            runs = [self._trainings.look(run) for run in (*self.store.runs, *ended)]
            if last_look:
                self._ended.clear()
        found = families.build(families.take_snapshot(self.store, runs), options)
        return found + self._describe_pushes()

    def _describe_pushes(self) -> list[Metric]:
        writers = [output for _, output in self._outputs.values() if isinstance(output, RemoteWrite)]
        if not writers:
            return []
        requests = Series(
            "trainvitals_remote_write_requests", "Requests by what became of them", ("outcome", "host"), kind="counter"
        )
        pending = Series("trainvitals_remote_write_pending_bytes", "Waiting in the spool", ("host",), unit="bytes")
        host = self.store.host
        for outcome in ("sent", "rejected", "failed"):
            requests.add((outcome, host), sum(getattr(writer.counts, outcome) for writer in writers))
        requests.add(("dropped", host), sum(writer.dropped for writer in writers))
        pending.add((host,), sum(writer.pending_bytes for writer in writers))
        return [requests.family, pending.family]

    # -- opening

    def _open(self, key: tuple[str, str], wish: Wish) -> None:
        failed, again = self._failed.get(key, (None, 0.0))
        if failed == wish and time.monotonic() < again:
            return
        try:
            self._outputs[key] = (wish, self._make(wish))
            self._failed.pop(key, None)
        except (OSError, SettingError) as error:
            if failed != wish:
                self._tell(_explain(wish, error))
            self._failed[key] = (wish, time.monotonic() + RETRY_SECONDS)

    def _make(self, wish: Wish) -> Output:
        rows = dict(wish.settings)
        options = Options(spelling="base" if rows["prometheus.names"] == "base" else "mb")
        if wish.kind == "page":
            return self._make_page(rows)
        interval, secret = float(str(rows["prometheus.push_interval"])), _secret(rows["prometheus.push_token"])
        url = read_secret(wish.target) if is_reference(wish.target) else wish.target
        if wish.kind == "remote_write":
            return RemoteWrite(
                url,
                self._folder / "spool" / hashlib.sha256(wish.target.encode()).hexdigest()[:16],
                lambda: self.collect(options),
                interval=interval,
                token=secret,
                most_bytes=int(float(str(rows["prometheus.spool_size_mb"])) * 1024**2),
                labels={"job": "trainvitals", "instance": self.store.host},
                tell=self._tell,
            )
        if wish.kind == "pushgateway":
            from trainvitals.exporters.pushgateway import Pushgateway

            return Pushgateway(url, lambda: self.collect(options), interval=interval, password=secret, tell=self._tell)
        from trainvitals.exporters.otlp import Otlp

        return Otlp(
            url,
            lambda: self.collect(options),
            host=self.store.host,
            started=self.store.started,
            interval=interval,
            token=secret,
            tell=self._tell,
        )

    def _make_page(self, rows: Mapping[str, object]) -> PageServer:
        compat, certificate, key = (rows[f"prometheus.{name}"] for name in ("compat", "tls_certificate", "tls_key"))
        options = Options(
            spelling="base" if rows["prometheus.names"] == "base" else "mb",
            compat=frozenset(compat) if isinstance(compat, tuple) else frozenset(),
            user_names=str(rows["prometheus.user_metrics"]),
            max_user_series=int(str(rows["prometheus.max_user_series"])),
            native=True,
        )
        address = Address(
            host=str(rows["prometheus.address"]),
            port=int(str(rows["prometheus.port"])),
            token=_secret(rows["prometheus.token"]),
            password=_secret(rows["prometheus.password"]),
            certificate=certificate if isinstance(certificate, Path) else None,
            key=key if isinstance(key, Path) else None,
        )
        return PageServer(address, SharedPage(lambda: self.collect(options, last_look=True)))

    def _tell(self, text: str) -> None:
        """Once, not with every try."""
        if text != self._told:
            self._told = text
            self._on_trouble(text)

    # -- the thread

    def _follow(self) -> None:
        while not self._ending.wait(POLL_SECONDS):
            with self._lock:
                runs = [*self.store.runs, *(run for run, _ in self._ended.values())]
            try:
                self._trainings.poll(runs)
            except OSError as error:
                self._tell(f"what the ranks log cannot be read: {error}")
            self._save()

    def _save(self, *, force: bool = False) -> None:
        try:
            self._trainings.save(time.monotonic(), force=force)
        except OSError as error:
            self._tell(f"the exporter's counters cannot be kept: {error.strerror or error}")


def _secret(reference: object) -> str | None:
    return None if reference is None else read_secret(str(reference))


def _explain_difference(opened: Wish, other: Wish) -> str:
    names = [
        name for (name, value), (_, wanted) in zip(opened.settings, other.settings, strict=True) if value != wanted
    ]
    return (
        f"{opened.target} is served as the first who asked wanted it; {', '.join(names)} of another run is not in force"
    )


def _explain(wish: Wish, error: OSError | SettingError) -> str:
    import errno

    if isinstance(error, SettingError):
        return str(error)
    if error.errno == errno.EADDRINUSE:
        return f"metrics cannot be served: {wish.target} is taken by another program; choose another --prometheus-port"
    return f"metrics cannot be served on {wish.target}: {error.strerror or error}"
