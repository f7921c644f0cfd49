"""What can be measured: one file per thing, one row of `REGISTRY` to register it.

Everything that the rest of the program knows of a source is in its row: no other module names a vendor. Other packages
add rows through the entry points `trainvitals.sources` (docs/plugins.md).

A source finds the things it can measure (`discover`), and each of those is read on its own (`Unit.read`), so one
that hangs or raises never harms the others: the agent gives every unit a thread, a deadline and a back-off.
Vendor libraries are imported inside the source, never at module level, so a missing one costs nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import Any, Literal, Protocol, get_args

from trainvitals.errors import name_kind
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import METRIC_TABLES
from trainvitals.plugins import Registry
from trainvitals.settings import Settings
from trainvitals.settings.resolution import SYSFS_VARIABLE

Value = float | int | str
Counters = Mapping[str, Mapping[str, float]]
Kind = Literal["gpu", "host", "process", "scrape"]
Absence = Literal["absent", "asleep", "incomplete", "broken"]
"""Why a source has nothing to measure: there is no such hardware; it sleeps and is not woken; something has to be
installed first; it should work and does not."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading: a future line of `<table>_metrics_*.jsonl`.

    `labels` are its subject (gpu_index, gpu_uuid, rank, ...), `values` are catalog names of that table. A value that
    could not be read is not in `values`. `time` is wall-clock seconds when the reading began.
    """

    table: str
    labels: Mapping[str, Value]
    values: Mapping[str, Value]
    time: float
    counters: Counters = field(default_factory=dict)
    """For Prometheus, not for the file: names of the catalog's COUNTERS, each with its counts by device (or what its
    label is), by the empty text where it has no label."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened, to be written as an event: an Xid error, a lost GPU, a sleeping laptop GPU."""

    event: str
    message: str
    severity: str = "info"  # info, warning, critical
    data: Mapping[str, object] = field(default_factory=dict)
    time: float = field(default_factory=time.time)


class SourceUnavailable(Exception):
    """Nothing to measure here now. The text explains it to a person, `command` is what to type about it."""

    def __init__(self, text: str, *, kind: Absence = "absent", command: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.command = command


class UnitGone(Exception):
    """This unit can no longer be read (GPU lost, driver reloaded, process ended); the source rediscovers."""


class Unit(Protocol):
    """One thing that is read on its own: a GPU, the host, the ranks' processes, one scrape target."""

    key: str
    """Stable identity, such as `nvidia:GPU-6f…`; the agent keeps a thread per key."""

    def read(self) -> Sequence[Sample | Notice]:
        """Read once. May be slow or hang; is only ever called from this unit's thread."""

    def close(self) -> None:
        """Give back handles. Called from the unit's thread, or never if that thread hangs."""


class Source(Protocol):
    """A family of units. Constructed with the world it reads, so that tests can pass another one."""

    name: str

    def discover(self) -> Sequence[Unit]:
        """The units there are now, called again every `rediscover_interval`. A unit whose key is known already
        is kept as it is. Raises SourceUnavailable with the reason when there is nothing to measure."""

    def describe(self) -> Mapping[str, object]:
        """Static facts for run.json and `doctor`: driver, names, limits. May be empty."""


@dataclass(frozen=True, slots=True)
class World:
    """What a source may look at; every field has a real default and a test passes another."""

    sysfs_root: str = field(default_factory=lambda: os.environ.get(SYSFS_VARIABLE, "/sys"))
    procfs_root: str = "/proc"
    macmon_command: tuple[str, ...] = ("macmon",)
    openmetrics_urls: tuple[str, ...] = ()
    simulated_gpus: int = 0
    disk_path: Callable[[], str] = lambda: "."
    """A path on the file system whose space matters: the newest run folder."""
    ranks: Callable[[], Sequence[RankProcess]] = lambda: ()
    """The ranks that run on this machine now, for the process source."""
    gpu_processes: Callable[[], Sequence[GpuProcess]] = lambda: ()
    """Who uses a GPU now, as far as drivers report it: an entry for each process and GPU, for the process source."""
    gpu_utilization: Callable[[], Mapping[str, float]] = dict
    """How busy each GPU is now, in percent, as `gpu_key` names it, for the process source."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One participant of one run: the root of a process tree."""

    run_id: str
    participant: Participant
    pid: int
    gpus: frozenset[str] = frozenset()
    """Those that it computes on, or that were set aside for it, as `gpu_key` names them."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on a GPU. In a container `pid` may be the host's number.

    `memory_mb` is None where the driver does not report it (WSL, Windows), `sm_percent` where it was not sampled.
    """

    pid: int
    memory_mb: float | None = None
    sm_percent: int | None = None
    part: tuple[int, str] | None = None
    """Index and UUID of the MIG slice that it is on, of a GPU that is divided."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source as the rest of the program knows it, before its module is imported."""

    name: str
    """As the setting `sources` and, for GPUs, the label `vendor` spell it."""
    module: str
    """Has `create(world) -> Source`."""
    kind: Kind
    pci_vendor: str | None = None
    """PCI vendor id such as `0x10de`: where such a display controller is on the bus, the source should work."""
    command: str | None = None
    """What to type where the hardware is there and the source does not work, unless the source knows better."""
    visible_variables: tuple[str, ...] = ()
    """Variables that hide GPUs from a program. The module then has `visible_devices(environment, gpus)`: the ids of
    those a program sees, in its order; `gpus` is `describe()["gpus"]`."""
    names_processes: bool = False
    """Whether the driver names the processes on a GPU: units then are `BusyUnit`s."""
    setting: str | None = None
    """The setting that asks for this source; without one it is always wanted."""
    note: str | None = None
    """What `doctor` shows while there is nothing to ask the source."""
    world: tuple[str, ...] = ("sysfs_root",)
    """Fields of `World` whose change makes another source of it."""

    def check(self) -> None:
        """ValueError for a row that others would stumble over."""
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind is {self.kind!r}, not one of {', '.join(get_args(Kind))}")
        if self.setting is not None and not hasattr(Settings, self.setting):
            raise ValueError(f"unknown setting {self.setting!r}")
        if unknown := set(self.world) - {field.name for field in fields(World)}:
            raise ValueError(f"World has no {', '.join(sorted(unknown))}")

    def is_asked_for(self, settings: Settings) -> bool:
        """Whether these settings want it, by `sources` and by the setting that asks for it."""
        if settings.sources is not None and self.name not in settings.sources:
            return False
        return self.setting is None or bool(getattr(settings, self.setting))

    def hides_gpus(self, environment: Mapping[str, str]) -> bool:
        """Whether a program with this environment was given some GPUs, rather than all."""
        return any(name in environment for name in self.visible_variables)

    def visible_devices(self, environment: Mapping[str, str], gpus: Sequence[Mapping[str, Any]]) -> list[str]:
        """The ids of the GPUs that a program with this environment may use; all where nothing can hide one."""
        ids = (gpu.get("uuid", gpu.get("gpu_uuid")) for gpu in gpus)
        everything = [str(known) for known in ids if known is not None]
        if not self.visible_variables:
            return everything
        try:
            return list(map(str, import_module(self.module).visible_devices(environment, gpus)))
        except Exception:  # noqa: BLE001 - the boundary around a source, which may be another package's
            return everything


class BusyUnit(Unit, Protocol):
    """A GPU whose driver names the processes on it."""

    @property
    def gpu_index(self) -> int: ...

    @property
    def processes(self) -> Sequence[GpuProcess]:
        """As of the last reading."""


REGISTRY: Registry[SourceRow] = Registry(
    "sources",
    (
        SourceRow(
            name="nvidia",
            module="trainvitals.sources.nvidia",
            kind="gpu",
            pci_vendor="0x10de",
            command="nvidia-smi",
            visible_variables=("CUDA_VISIBLE_DEVICES",),
            names_processes=True,
        ),
        SourceRow(
            name="amd",
            module="trainvitals.sources.amd",
            kind="gpu",
            pci_vendor="0x1002",
            command="sudo modprobe amdgpu",
            visible_variables=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        ),
        SourceRow(
            name="intel",
            module="trainvitals.sources.intel",
            kind="gpu",
            pci_vendor="0x8086",
            command="sudo modprobe i915",
            visible_variables=("ZE_AFFINITY_MASK",),
        ),
        SourceRow(name="apple", module="trainvitals.sources.apple", kind="gpu"),
        SourceRow(name="system", module="trainvitals.sources.system", kind="host"),
        SourceRow(
            name="process",
            module="trainvitals.sources.process",
            kind="process",
            note="measures processes of runs",
        ),
        SourceRow(
            name="openmetrics",
            module="trainvitals.sources.openmetrics",
            kind="scrape",
            setting="openmetrics",
            note="no metrics page configured; set one: TRAINVITALS_OPENMETRICS=http://localhost:9400/metrics",
            world=("openmetrics_urls",),
        ),
        SourceRow(
            name="simulated",
            module="trainvitals.sources.simulated",
            kind="gpu",
            setting="simulate_gpus",
            note="off; to try two: trainvitals demo",
            world=("simulated_gpus",),
        ),
    ),
    SourceRow,
    check=lambda row: row.check(),
)


def create(name: str, world: World) -> Source:
    """The source of that name, its module imported now."""
    source: Source = import_module(REGISTRY[name].module).create(world)
    return source


def gpu_sources() -> tuple[str, ...]:
    """The names of all sources of GPUs, the simulated ones included."""
    return tuple(row.name for row in REGISTRY if row.kind == "gpu")


def described_gpus(hardware: Mapping[str, Any]) -> Iterator[tuple[SourceRow, Sequence[Mapping[str, Any]]]]:
    """The GPU sources that found GPUs, with the facts each gives about them; `hardware` is `describe()` by source."""
    for row in REGISTRY:
        facts = hardware.get(row.name)
        gpus = facts.get("gpus") if row.kind == "gpu" and isinstance(facts, Mapping) else None
        if isinstance(gpus, list) and gpus:
            yield row, [gpu for gpu in gpus if isinstance(gpu, Mapping)]


def check_items(items: Sequence[Sample | Notice]) -> None:
    """TypeError or ValueError for what another package's source gave and others could not work with."""
    for item in items:
        if isinstance(item, Notice):
            continue
        if not isinstance(item, Sample):
            raise TypeError(f"a reading contains {name_kind(item)}; only Sample and Notice are allowed")
        if item.table not in METRIC_TABLES:
            raise ValueError(f"a sample has table {item.table!r}, not one of {', '.join(METRIC_TABLES)}")
        for name, value in (*item.labels.items(), *item.values.items(), ("time", item.time)):
            if not isinstance(value, (int, float, str)):
                raise TypeError(f"{name} is {name_kind(value)}, not a number or text")
        for name, counts in item.counters.items():
            if not isinstance(counts, Mapping) or not all(isinstance(count, (int, float)) for count in counts.values()):
                raise TypeError(f"counter {name} is not a mapping of numbers")


def pci_vendor(name: str) -> str:
    """The PCI vendor id in the source's row."""
    vendor = REGISTRY[name].pci_vendor
    if vendor is None:
        raise ValueError(f"source {name} has no PCI vendor")
    return vendor


def explain_missing_gpus(reasons: Mapping[str, str], sysfs_root: str) -> tuple[str, str] | None:
    """Which GPU source's reason answers "why is no GPU measured", and that reason: that of the first one whose
    hardware is in the machine, else of the first of all. None if no GPU source gave a reason."""
    from trainvitals.sources.sysfs import list_displays

    given = [row for row in REGISTRY if row.kind == "gpu" and reasons.get(row.name)]
    there = [row for row in given if row.pci_vendor is not None and list_displays(sysfs_root, row.pci_vendor)]
    return next(((row.name, reasons[row.name]) for row in (*there, *given)), None)
