"""The limits a container or job really has: control groups, version 1 and 2.

A limit may sit on the process's own group or on any group above it; the smallest one is in force. Inside a
container the path in /proc may not exist (it is the host's): then the mount itself is the group.
Tested in tests/sources/test_system.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainvitals.sources.sysfs import read_bytes, read_int, read_text

NO_LIMIT = 1 << 60
"""Version 1 writes "no limit" as a number near 2**63."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The groups of one process, its own first, then those above; empty where a controller is not there."""

    version: int
    memory: tuple[str, ...]
    cpu: tuple[str, ...]
    cpu_accounting: tuple[str, ...]


def read_cgroup(procfs_root: str, sysfs_root: str, pid: int | str = "self") -> Cgroup | None:
    """Where the limits of `pid` are; None without control groups (or without such a process)."""
    groups = parse_cgroups(read_text(f"{procfs_root}/{pid}/cgroup") or "")
    mount = f"{sysfs_root}/fs/cgroup"
    if not groups:
        return None
    if "" in groups and Path(f"{mount}/cgroup.controllers").exists():
        chain = _chain(mount, groups[""])
        return Cgroup(2, chain, chain, chain)
    folders = {
        name: _chain(f"{mount}/{name}", groups[name])
        for name in ("memory", "cpu", "cpuacct")
        if name in groups and Path(f"{mount}/{name}").is_dir()
    }
    return Cgroup(1, folders.get("memory", ()), folders.get("cpu", ()), folders.get("cpuacct", ()))


def parse_cgroups(text: str) -> dict[str, str]:
    """Controller to path out of lines like `4:memory:/job`; the key is empty for version 2."""
    groups = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                groups[controller] = parts[2]
    return groups


def _chain(mount: str, path: str) -> tuple[str, ...]:
    parts = [part for part in path.split("/") if part]
    if ".." in parts or not Path(mount, *parts).is_dir():
        return (mount,)
    return tuple("/".join([mount, *parts[:depth]]) for depth in range(len(parts), -1, -1))


def read_memory_limit(group: Cgroup) -> tuple[int, str] | None:
    """(bytes, folder) of the smallest limit; of equal ones the topmost, which counts the neighbours too."""
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    limits = [
        (limit, -depth, folder)
        for depth, folder in enumerate(group.memory)
        if (limit := read_int(f"{folder}/{name}")) is not None and 0 < limit < NO_LIMIT
    ]
    if not limits:
        return None
    limit, _, folder = min(limits)
    return limit, folder


def read_memory_used(group: Cgroup, folder: str) -> int | None:
    """Bytes that count against the limit of `folder`, without the file cache the kernel can drop at once."""
    usage = read_int(f"{folder}/{'memory.current' if group.version == 2 else 'memory.usage_in_bytes'}")
    if usage is None:
        return None
    stat = parse_counters(read_text(f"{folder}/memory.stat", limit=1 << 14) or "")
    cache = stat.get("inactive_file" if group.version == 2 else "total_inactive_file", 0)
    return max(usage - cache, 0)


def read_cpu_quota(group: Cgroup) -> float | None:
    """Cores the group may use; None without a quota."""
    quotas = []
    for folder in group.cpu:
        if group.version == 2:
            parts = (read_text(f"{folder}/cpu.max") or "max").split()
            if len(parts) == 2 and all(part.isdecimal() for part in parts) and int(parts[1]):
                quotas.append(int(parts[0]) / int(parts[1]))
        else:
            quota, period = read_int(f"{folder}/cpu.cfs_quota_us"), read_int(f"{folder}/cpu.cfs_period_us")
            if quota is not None and period and quota > 0:
                quotas.append(quota / period)
    return min(quotas, default=None)


def read_cpu_seconds(group: Cgroup) -> float | None:
    """CPU time of the process's own group since it was made."""
    if group.version == 2:
        used = _first_counters(group.cpu, "cpu.stat").get("usage_usec")
        return used / 1e6 if used is not None else None
    nanoseconds = read_int(f"{group.cpu_accounting[0]}/cpuacct.usage") if group.cpu_accounting else None
    return nanoseconds / 1e9 if nanoseconds is not None else None


def read_throttled_seconds(group: Cgroup) -> float | None:
    """Time the group was throttled by its CPU quota."""
    stat = _first_counters(group.cpu, "cpu.stat")
    if group.version == 2:
        return stat["throttled_usec"] / 1e6 if "throttled_usec" in stat else None
    return stat["throttled_time"] / 1e9 if "throttled_time" in stat else None


def read_oom_kills(group: Cgroup) -> int | None:
    """Processes of the group that the kernel killed because the group had no memory left."""
    name = "memory.events" if group.version == 2 else "memory.oom_control"
    return _first_counters(group.memory, name).get("oom_kill")


def parse_counters(text: str) -> dict[str, int]:
    """`name number` lines; other lines are left out."""
    counters = {}
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if number.isdecimal():
            counters[name] = int(number)
    return counters


def _first_counters(folders: tuple[str, ...], name: str) -> dict[str, int]:
    raw = read_bytes(f"{folders[0]}/{name}") if folders else None
    return parse_counters(raw.decode("utf-8", "replace")) if raw else {}
