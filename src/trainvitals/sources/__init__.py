"""What can be measured: one file per thing, one line here to register it.

A source finds the things it can measure (`discover`), and each of those is read on its own (`Unit.read`), so one
that hangs or raises never harms the others: the agent gives every unit a thread, a deadline and a back-off.
Vendor libraries are imported inside the source, never at module level, so a missing one costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol

Value = float | int | str


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading: a future line of `<table>_metrics_*.jsonl`.

    `labels` say of what (gpu_index, gpu_uuid, rank, ...), `values` are catalog names of that table. A value that
    could not be read is not in `values`. `time` is wall-clock seconds when the reading began.
    """

    table: str
    labels: Mapping[str, Value]
    values: Mapping[str, Value]
    time: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened, to be written as an event: an Xid error, a lost GPU, a sleeping laptop GPU."""

    event: str
    message: str
    severity: str = "info"  # info, warning, critical
    data: Mapping[str, object] = field(default_factory=dict)
    time: float = field(default_factory=time.time)


class SourceUnavailable(Exception):
    """Nothing to measure here now (no driver, no such hardware). The text says why and what would help."""


class UnitGone(Exception):
    """This unit cannot be read any more (GPU lost, driver reloaded, process ended); the source rediscovers."""


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

    sysfs_root: str = "/sys"
    procfs_root: str = "/proc"
    macmon_command: tuple[str, ...] = ("macmon",)
    openmetrics_urls: tuple[str, ...] = ()
    simulated_gpus: int = 0
    disk_path: Callable[[], str] = lambda: "."
    """A path on the file system whose space matters: the newest run folder."""
    ranks: Callable[[], Sequence[RankProcess]] = lambda: ()
    """The ranks that run on this machine now, for the process source."""
    gpu_processes: Callable[[], Sequence[GpuProcess]] = lambda: ()
    """Who uses a GPU now, as far as the drivers say: an entry for each process and GPU, for the process source."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One rank of one run: the root of a process tree."""

    run_id: str
    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on a GPU. In a container `pid` may be the host's number.

    `memory_mb` is None where the driver does not tell (WSL, Windows), `sm_percent` where it was not sampled.
    """

    pid: int
    memory_mb: float | None = None
    sm_percent: int | None = None


# One line per source: name -> module with a `create(world) -> Source`.
REGISTRY: tuple[tuple[str, str], ...] = (
    ("nvidia", "trainvitals.sources.nvidia"),
    ("amd", "trainvitals.sources.amd"),
    ("intel", "trainvitals.sources.intel"),
    ("apple", "trainvitals.sources.apple"),
    ("system", "trainvitals.sources.system"),
    ("process", "trainvitals.sources.process"),
    ("openmetrics", "trainvitals.sources.openmetrics"),
    ("simulated", "trainvitals.sources.simulated"),
)


def create(name: str, world: World) -> Source:
    """The source of that name, its module imported now."""
    source: Source = import_module(dict(REGISTRY)[name]).create(world)
    return source
