"""The host: CPU, load, memory, swap, disks, network, pressure and the limits of the container.

psutil reads what is available on every system; /proc, /sys and the control groups add what it does not know
on Linux. Rates are differences, so the first reading has none. Space on disk is read apart from the rest,
because asking a file server that is gone hangs forever.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals.sources import Notice, Sample, Unit, Value, World
from trainvitals.sources.cgroup import (
    Cgroup,
    read_cgroup,
    read_cpu_quota,
    read_cpu_seconds,
    read_memory_limit,
    read_memory_used,
    read_oom_kills,
    read_throttled_seconds,
)
from trainvitals.sources.sysfs import list_folder, read_bytes, read_int, read_text, scaled

MIB = 1 << 20
GIB = 1 << 30
STEADY_INTERVAL = 0.7
"""Seconds between readings of what the kernel itself averages or seldom counts: load, pressure, kills. Less than a
second, so that a reading every second always has them, even if it comes a little early."""
SLOW_INTERVAL = 5.0
"""Seconds between readings of what changes slowly: limits, affinity, devices, temperature, space on disk."""
MOST_CORES = 256
"""With more cores than this there is no column per core."""

CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal", "scpi_sensors", "apm_xgene")
CPU_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal", "soc_thermal")
_MEMINFO = re.compile(rb"^(MemTotal|MemAvailable|SwapTotal|SwapFree): +(\d+) kB$", re.MULTILINE)
_WHOLE_CHIP = re.compile(r"Package id \d+|Tdie")
_DISK_COUNTERS = (
    *(("read_bytes", "read_bytes"), ("write_bytes", "write_bytes")),
    *(("reads", "read_count"), ("writes", "write_count")),
)
"""Name in the catalog, without its ends, and psutil's."""
_NOT_A_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd)\d")


def create(world: World) -> SystemSource:
    return SystemSource(world)


class SystemSource:
    """This machine: two units, `system:host` and `system:disk`. Always there."""

    name = "system"

    def __init__(self, world: World) -> None:
        self._world = world

    def discover(self) -> Sequence[Unit]:
        return [HostUnit(self._world), DiskSpaceUnit(self._world)]

    def describe(self) -> Mapping[str, object]:
        """Processor, cores, memory and the limits of the container, where there are any."""
        import psutil

        group = read_cgroup(self._world.procfs_root, self._world.sysfs_root)
        limit = read_memory_limit(group) if group else None
        total = psutil.virtual_memory().total
        facts = {
            "cpu_model": read_cpu_model(self._world.procfs_root),
            "cpu_count": psutil.cpu_count(),
            "cpu_count_physical": psutil.cpu_count(logical=False),
            "cpu_quota_cores": read_cpu_quota(group) if group else None,
            "memory_total_mb": total / MIB,
            "memory_limit_mb": limit[0] / MIB if limit and limit[0] < total else None,
        }
        return {name: fact for name, fact in facts.items() if fact is not None}


def read_cpu_model(procfs_root: str) -> str | None:
    """`AMD EPYC 7763 64-Core Processor`; None where the system does not report it."""
    found = re.search(r"^model name\s*:\s*(.+)$", read_text(f"{procfs_root}/cpuinfo") or "", re.MULTILINE)
    return found[1] if found else platform.processor() or None


class HostUnit:
    """Everything but the space on disk."""

    key = "system:host"

    def __init__(self, world: World, clock: Callable[[], float] = time.monotonic) -> None:
        self._world = world
        self._clock = clock
        self._next_slow = self._next_steady = float("-inf")
        self._group: Cgroup | None = None
        self._cpu = CpuMeter(world.sysfs_root)
        self._memory = MemoryMeter(world.procfs_root)
        self._disk = DiskMeter(world.sysfs_root)
        self._network = NetworkMeter(world.sysfs_root)

    def read(self) -> Sequence[Sample | Notice]:
        began, now = time.time(), self._clock()
        values: dict[str, Value] = {}
        if now >= self._next_slow:
            self._next_slow = now + SLOW_INTERVAL
            self._group = read_cgroup(self._world.procfs_root, self._world.sysfs_root)
            self._cpu.refresh(self._group)
            self._memory.refresh(self._group)
            self._disk.refresh()
            self._network.refresh()
            values |= read_cpu_temperature(self._world.sysfs_root)
        values |= {**self._cpu.read(now, self._group), **self._memory.read(self._group)}
        values |= {**self._disk.read(now), **self._network.read(now)}
        counters = {**self._disk.counters(), **self._network.counters()}
        if now >= self._next_steady:
            self._next_steady = now + STEADY_INTERVAL
            values |= {**read_load(), **read_pressure(self._world.procfs_root), **self._read_kills()}
        return [Sample("system", {}, values, began, counters)]

    def close(self) -> None:
        """Nothing is kept open."""

    def _read_kills(self) -> dict[str, Value]:
        kills = {
            "oom_kills_total": parse_oom_kills(read_bytes(f"{self._world.procfs_root}/vmstat", 1 << 16) or b""),
            "cgroup_oom_kills_total": read_oom_kills(self._group) if self._group else None,
        }
        return {name: count for name, count in kills.items() if count is not None}


def parse_oom_kills(vmstat: bytes) -> int | None:
    """Processes killed for memory since boot; None on kernels before 4.13."""
    found = re.search(rb"^oom_kill (\d+)$", vmstat, re.MULTILINE)
    return int(found[1]) if found else None


class DiskSpaceUnit:
    """Space on the file system of the run folder. Gives a sample every five seconds, nothing in between."""

    key = "system:disk"

    def __init__(self, world: World, clock: Callable[[], float] = time.monotonic) -> None:
        self._world = world
        self._clock = clock
        self._next = float("-inf")

    def read(self) -> Sequence[Sample | Notice]:
        import psutil

        if self._clock() < self._next:
            return []
        self._next = self._clock() + SLOW_INTERVAL
        began = time.time()
        try:
            usage = psutil.disk_usage(self._world.disk_path())
        except FileNotFoundError:
            return []  # the folder was removed: there is nothing to measure until the next run
        return [Sample("system", {}, {"disk_usage_percent": usage.percent, "disk_free_gb": usage.free / GIB}, began)]

    def close(self) -> None:
        """Nothing is kept open."""


class CpuTimes(NamedTuple):
    """Seconds of one core since boot, or between two readings."""

    busy: float
    total: float
    iowait: float
    steal: float


class CpuMeter:
    """CPU use of the cores this process may use; under a quota, what the container used of it."""

    def __init__(self, sysfs_root: str) -> None:
        self._root = sysfs_root
        self._online: list[int] = []
        self._allowed: frozenset[int] = frozenset()
        self._quota: float | None = None
        self._before: tuple[float, dict[int, CpuTimes], float | None] | None = None

    def refresh(self, group: Cgroup | None) -> None:
        self._quota = read_cpu_quota(group) if group else None
        self._online = parse_cpu_list(read_text(f"{self._root}/devices/system/cpu/online") or "")
        affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)  # Linux only
        self._allowed = frozenset(affinity(0)) if affinity else frozenset()

    def read(self, now: float, group: Cgroup | None) -> dict[str, Value]:
        cores = self._read_cores()
        group_seconds = read_cpu_seconds(group) if group and self._quota else None
        allowed = [number for number in cores if number in self._allowed] or list(cores)
        count = min(len(allowed), self._quota) if self._quota else len(allowed)
        values: dict[str, Value] = {"cpu_count": count}
        if group and (throttled := read_throttled_seconds(group)) is not None:
            values["cpu_throttled_seconds"] = throttled
        if self._before is not None and now > self._before[0]:
            then, cores_then, group_then = self._before
            spent = {
                number: since(cores_then[number], times) for number, times in cores.items() if number in cores_then
            }
            values |= core_shares(spent, allowed)
            if group_seconds is not None and group_then is not None:
                used = (group_seconds - group_then) / (now - then) / count * 100
                values["cpu_usage_percent"] = min(max(used, 0.0), 100.0)
        self._before = (now, cores, group_seconds)
        return values

    def _read_cores(self) -> dict[int, CpuTimes]:
        import psutil

        times = psutil.cpu_times(percpu=True)
        # psutil leaves out cores that are switched off, so its list does not know their numbers.
        numbers: Iterable[int] = self._online if len(self._online) == len(times) else range(len(times))
        return {number: cpu_times(core) for number, core in zip(numbers, times, strict=True)}


def cpu_times(core: Any) -> CpuTimes:
    """psutil's times of one core. Time of guests is counted in `user` already."""
    iowait, steal = getattr(core, "iowait", 0.0), getattr(core, "steal", 0.0)
    guests = getattr(core, "guest", 0.0) + getattr(core, "guest_nice", 0.0)
    total = sum(core) - guests
    return CpuTimes(busy=total - core.idle - iowait, total=total, iowait=iowait, steal=steal)


def since(before: CpuTimes, after: CpuTimes) -> CpuTimes:
    """What passed between two readings. The kernel lets counters go back a little: never below zero."""
    return CpuTimes(*(max(new - old, 0.0) for old, new in zip(before, after, strict=True)))


def core_shares(spent: Mapping[int, CpuTimes], allowed: Sequence[int]) -> dict[str, Value]:
    """Percentages of all allowed cores together, of the busiest one and of each one."""
    shares = {number: min(times.busy / times.total, 1.0) * 100 for number, times in spent.items() if times.total > 0}
    counted = [spent[number] for number in allowed if number in shares]
    if not counted:
        return {}
    total = sum(times.total for times in counted)
    values: dict[str, Value] = {
        "cpu_usage_percent": min(sum(times.busy for times in counted) / total, 1.0) * 100,
        "cpu_iowait_percent": min(sum(times.iowait for times in counted) / total, 1.0) * 100,
        "cpu_steal_percent": min(sum(times.steal for times in counted) / total, 1.0) * 100,
        "cpu_max_core_percent": max(shares[number] for number in allowed if number in shares),
    }
    if len(shares) <= MOST_CORES:
        values |= {f"cpu{number}_percent": share for number, share in shares.items()}
    return values


def parse_cpu_list(text: str) -> list[int]:
    """`0-3,8` to [0, 1, 2, 3, 8]; empty for anything else."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part)
        if match is None:
            return []
        numbers.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return numbers


def read_cpu_temperature(sysfs_root: str) -> dict[str, Value]:
    """The hottest sensor of the processor; absent in most virtual machines.

    Only the processor's own sensors are opened: reading those of a graphics card or a disk would wake it.
    """
    degrees: list[float | None] = []
    for name in list_folder(f"{sysfs_root}/class/hwmon"):
        folder = f"{sysfs_root}/class/hwmon/{name}"
        if read_text(f"{folder}/name") in CPU_SENSORS:
            sensors = [file.removesuffix("_input") for file in list_folder(folder) if file.endswith("_input")]
            sensors = [sensor for sensor in sensors if sensor.startswith("temp")]
            chips = [sensor for sensor in sensors if _WHOLE_CHIP.match(read_text(f"{folder}/{sensor}_label") or "")]
            degrees += [scaled(read_int(f"{folder}/{sensor}_input"), 1000, 1, 150) for sensor in chips or sensors]
    if not degrees:
        for name in list_folder(f"{sysfs_root}/class/thermal"):
            folder = f"{sysfs_root}/class/thermal/{name}"
            if read_text(f"{folder}/type") in CPU_ZONES:
                degrees.append(scaled(read_int(f"{folder}/temp"), 1000, 1, 150))
    known = [value for value in degrees if value is not None]
    return {"cpu_temperature_celsius": max(known)} if known else {}


def read_load() -> dict[str, Value]:
    """Load averages; absent on Windows, which has none."""
    average: Callable[[], tuple[float, float, float]] | None = getattr(os, "getloadavg", None)
    try:
        return dict(zip(("load_1m", "load_5m", "load_15m"), average(), strict=True)) if average else {}
    except OSError:
        return {}


class MemoryMeter:
    """Memory against what may be used: the limit of the container where it is smaller than the machine."""

    def __init__(self, procfs_root: str) -> None:
        self._file = f"{procfs_root}/meminfo"
        self._limit: tuple[int, str] | None = None

    def refresh(self, group: Cgroup | None) -> None:
        self._limit = read_memory_limit(group) if group else None

    def read(self, group: Cgroup | None) -> dict[str, Value]:
        memory = parse_meminfo(read_bytes(self._file) or b"") or read_memory()
        total, available = memory.total, memory.available
        used = total - available
        values: dict[str, Value] = {}
        if group and self._limit and self._limit[0] < total:
            limit, folder = self._limit
            values["memory_limit_mb"] = limit / MIB
            inside = read_memory_used(group, folder)
            if inside is not None:
                total, used, available = limit, inside, min(available, max(limit - inside, 0))
        values |= {
            "memory_usage_percent": min(used / total, 1.0) * 100,
            "memory_used_mb": used / MIB,
            "memory_available_mb": available / MIB,
            "memory_total_mb": total / MIB,
            "swap_used_mb": memory.swap_used / MIB,
        }
        if memory.swap_total:
            values["swap_usage_percent"] = memory.swap_used / memory.swap_total * 100
        return values


class HostMemory(NamedTuple):
    """Bytes."""

    total: int
    available: int
    swap_total: int
    swap_used: int


def parse_meminfo(raw: bytes) -> HostMemory | None:
    """Out of /proc/meminfo; None where it does not have what is available, as before Linux 3.14."""
    sizes = {name: int(size) * 1024 for name, size in _MEMINFO.findall(raw)}
    try:
        total, available = sizes[b"MemTotal"], sizes[b"MemAvailable"]
        swap_total, swap_free = sizes[b"SwapTotal"], sizes[b"SwapFree"]
    except KeyError:
        return None
    # Inside some containers `available` is that of the machine and `total` is not.
    return HostMemory(total, min(available, total), swap_total, max(swap_total - swap_free, 0))


def read_memory() -> HostMemory:
    """As psutil knows it, on every system; on Linux that costs several times as much."""
    import psutil

    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return HostMemory(memory.total, memory.available, swap.total, swap.used)


class DiskMeter:
    """What the disks of the machine move. Layered devices and partitions would count the same bytes again."""

    def __init__(self, sysfs_root: str) -> None:
        self._folder = Path(sysfs_root, "block")
        self._whole: dict[str, bool] = {}
        self._before: tuple[float, dict[str, Any]] | None = None

    def refresh(self) -> None:
        self._whole = {}

    def read(self, now: float) -> dict[str, Value]:
        disks = self._read_counters()
        before, self._before = self._before, (now, disks)
        if before is None or now <= before[0]:
            return {}
        then, disks_then = before
        elapsed = now - then
        pairs = [(disks_then[name], disk) for name, disk in disks.items() if name in disks_then]
        if not pairs:
            return {}

        def rate(field: str) -> float:
            grown: list[int] = [max(getattr(new, field) - getattr(old, field), 0) for old, new in pairs]
            return sum(grown) / elapsed

        values: dict[str, Value] = {
            "disk_read_mb_s": rate("read_bytes") / MIB,
            "disk_write_mb_s": rate("write_bytes") / MIB,
            "disk_read_iops": rate("read_count"),
            "disk_write_iops": rate("write_count"),
        }
        if all(hasattr(new, "busy_time") for _, new in pairs):
            busy = max((new.busy_time - old.busy_time) / (elapsed * 1000) for old, new in pairs)
            values["disk_busy_percent"] = min(max(busy, 0.0), 1.0) * 100
        return values

    def counters(self) -> dict[str, dict[str, float]]:
        """Of each disk, as of the last reading."""
        disks = self._before[1] if self._before is not None else {}
        found: dict[str, dict[str, float]] = {
            f"disk_{name}_total": {device: getattr(disk, column) for device, disk in disks.items()}
            for name, column in _DISK_COUNTERS
        }
        busy = {device: disk.busy_time / 1000 for device, disk in disks.items() if hasattr(disk, "busy_time")}
        return found | {"disk_busy_seconds_total": busy}

    def _read_counters(self) -> dict[str, Any]:
        import psutil

        try:
            disks: dict[str, Any] = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        except (OSError, NotImplementedError, RuntimeError, ValueError):
            return {}  # a container may hide the counters, Windows may have them switched off
        return {name: disk for name, disk in disks.items() if self._is_whole(name)}

    def _is_whole(self, name: str) -> bool:
        if name not in self._whole:
            listed = not self._folder.is_dir() or (self._folder / name.replace("/", "!")).exists()
            self._whole[name] = listed and not _NOT_A_DISK.match(name)
        return self._whole[name]


class NetworkMeter:
    """What the physical interfaces move; in a container, which has none, all but loopback."""

    def __init__(self, sysfs_root: str) -> None:
        self._folder = Path(sysfs_root, "class/net")
        self._physical: dict[str, bool] = {}
        self._before: tuple[float, dict[str, Any]] | None = None

    def refresh(self) -> None:
        self._physical = {}

    def read(self, now: float) -> dict[str, Value]:
        interfaces = self._read_counters()
        before, self._before = self._before, (now, interfaces)
        values: dict[str, Value] = {}
        if interfaces:
            values["network_errors_total"] = sum(
                nic.errin + nic.errout + nic.dropin + nic.dropout for nic in interfaces.values()
            )
        if before is not None and now > before[0]:
            pairs = [(before[1][name], nic) for name, nic in interfaces.items() if name in before[1]]
            elapsed = now - before[0]
            if pairs:
                received = sum(max(new.bytes_recv - old.bytes_recv, 0) for old, new in pairs)
                sent = sum(max(new.bytes_sent - old.bytes_sent, 0) for old, new in pairs)
                values["network_receive_mb_s"] = received / elapsed / MIB
                values["network_send_mb_s"] = sent / elapsed / MIB
        return values

    def counters(self) -> dict[str, dict[str, float]]:
        """Of each interface, as of the last reading."""
        interfaces = self._before[1] if self._before is not None else {}
        return {
            "network_receive_bytes_total": {device: nic.bytes_recv for device, nic in interfaces.items()},
            "network_send_bytes_total": {device: nic.bytes_sent for device, nic in interfaces.items()},
        }

    def _read_counters(self) -> dict[str, Any]:
        import psutil

        try:
            every: dict[str, Any] = psutil.net_io_counters(pernic=True, nowrap=False) or {}
        except (OSError, ValueError):
            return {}
        outside = {name: nic for name, nic in every.items() if not name.lower().startswith("lo")}
        physical = {name: nic for name, nic in outside.items() if self._is_physical(name)}
        return physical or outside

    def _is_physical(self, name: str) -> bool:
        if name not in self._physical:
            self._physical[name] = (self._folder / name / "device").exists()
        return self._physical[name]


def read_pressure(procfs_root: str) -> dict[str, Value]:
    """Share of time in which some task waited, over ten seconds; absent where the kernel does not count."""
    values: dict[str, Value] = {}
    for resource in ("cpu", "memory", "io"):
        share = parse_pressure(read_text(f"{procfs_root}/pressure/{resource}") or "")
        if share is not None:
            values[f"pressure_{resource}_percent"] = share
    return values


def parse_pressure(text: str) -> float | None:
    """The ten-second average of the `some` line."""
    found = re.search(r"^some avg10=(\d+(?:\.\d+)?)", text, re.MULTILINE)
    return float(found[1]) if found else None
