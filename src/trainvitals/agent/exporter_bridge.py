"""The agent's side of the exporters: they are imported, fed and ended here, and only while somebody wants them.
Tested in tests/exporters/test_live.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainvitals.agent.gpu_holders import GpuHolders
from trainvitals.agent.log import BoundLog
from trainvitals.agent.reading import Reading, exporter_trouble
from trainvitals.agent.run import WatchedRun
from trainvitals.exporters.registry import wishes_of
from trainvitals.exporters.runs import ActiveAlert, RunView, ShippingCounts
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.latest import SourceHealth
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.listening import Listener
from trainvitals.newest import Newest
from trainvitals.settings import Settings
from trainvitals.sources import described_gpus

if TYPE_CHECKING:
    from trainvitals.exporters.service import Exports


class Exporting:
    """Nothing at all until a setting asks for an exporter."""

    def __init__(
        self,
        host: str,
        folder: Path,
        newest: Newest,
        holders: GpuHolders,
        log: BoundLog,
        offer: Callable[[Reading], None],
        count_shipping: Callable[[], ShippingCounts | None],
    ) -> None:
        self._host = host
        self._folder = folder
        self._newest = newest
        self._holders = holders
        self._log = log
        self._offer = offer
        self._count_shipping = count_shipping
        self._exports: Exports | None = None
        self._about: dict[Path, RunFile] = {}
        self._shown: dict[Path, WatchedRun] = {}
        self._listeners: dict[WatchedRun, Listener] = {}
        self._missing = False

    def want(self, wishes: Iterable[Settings]) -> bool:
        """Serve what these settings ask for. Cheap when they ask for nothing. Whether that began just now."""
        asking = [item for item in wishes if wishes_of(item, "families")]
        begins = self._exports is None
        if self._exports is None:
            if not asking or self._missing:
                return False
            try:
                from trainvitals.exporters.service import Exports
            except ImportError as error:
                self._missing = True
                self._warn(
                    f"cannot serve metrics: {error.name} is not installed; pip install 'trainvitals[prometheus]'"
                )
                return False
            self._exports = Exports(self._host, self._folder, self._newest, self._warn, self._count_shipping)
        self._exports.want(asking)
        if self._exports.idle:
            self.close()
        return begins

    def update(
        self,
        runs: Iterable[WatchedRun],
        health: Callable[[], Mapping[str, SourceHealth]],
        describe: Callable[[], Mapping[str, Any]],
    ) -> None:
        """The runs, the state of the sources, and what they report about the machine; call it every second or so."""
        exports = self._exports
        if exports is None:
            return
        present = {run.folder: run for run in runs}
        self._about = {folder: self._about.get(folder) or _read_about(folder) for folder in (*self._shown, *present)}
        healths = health()
        if self._shown.keys() - present.keys():
            # What is shown of a run that has gone is how it ended, which it only knows now.
            exports.update([self._view(run) for run in (self._shown | present).values()], healths)
        exports.update([self._view(run) for run in present.values()], healths)
        ranks = [process for run in present.values() for process in run.processes()]
        exports.update_gpus(self._holders.list(ranks), describe_gpus(describe()))
        self._shown = present
        self._listeners = {run: listener for run, listener in self._listeners.items() if not run.over}
        for run in present.values():
            if run not in self._listeners:
                self._listeners[run] = listener = exports.listen_to(run.folder)
                run.add_listener(listener)

    def close(self) -> None:
        if self._exports is not None:
            exports, self._exports = self._exports, None
            for run, listener in self._listeners.items():
                run.remove_listener(listener)
            exports.update([self._view(run) for run in self._shown.values()], exports.healths)
            self._shown, self._listeners = {}, {}
            exports.close()

    def _view(self, run: WatchedRun) -> RunView:
        about = self._about[run.folder]
        return RunView(
            run_id=run.run_id,
            folder=run.folder,
            project=about.project or run.folder.parent.name,
            name=about.name or run.run_id,
            state=run.state,
            alerts=tuple(_describe_alert(row) for row in run.firing),
            ended=run.ending,
            job=about.placed,
            keep_seconds=run.settings.prometheus_keep_ended,
        )

    def _warn(self, text: str) -> None:
        """Into the log, and into every run that is watched: whoever asked for the exporter is among them."""
        self._log.warning("exporter", reason=text)
        self._offer(exporter_trouble(text))


def _describe_alert(row: AlertRow) -> ActiveAlert:
    return ActiveAlert(row.rule, row.severity or "warning", row.labels)


def _read_about(folder: Path) -> RunFile:
    return run_folder.find_run(folder) or RunFile()


_SPELLINGS = {
    "pci_bus_id": ("pci", "pci_address"),
    "serial": ("serial",),
    "vbios_version": ("vbios", "vbios_version"),
    "driver_version": ("driver_version", "driver"),
    "cuda_version": ("cuda_version",),
}
"""Of labels, in what the sources say of a GPU or of their driver."""


def describe_gpus(hardware: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """What each GPU is besides its labels, by UUID; `hardware` is what each source describes, whoever its vendor is."""
    found = {}
    for row, gpus in described_gpus(hardware):
        for gpu in gpus:
            known = {**hardware[row.name], **gpu}
            uuid = str(gpu.get("uuid") or gpu.get("gpu_uuid") or "")
            values = {label: next(filter(None, map(known.get, names)), None) for label, names in _SPELLINGS.items()}
            found[uuid] = {label: str(value) for label, value in values.items() if value}
    return found
