"""Why a process ended: its exit status, the kernel's out-of-memory killer, a limit.

The exit status of a process that is not our child can be had in two ways on Linux, and both are tried: while it is
a zombie it is in /proc/<pid>/stat, and from Linux 6.15 on a pidfd has it once the parent has collected it.
"""

from __future__ import annotations

import re
import signal
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from trainvitals.journal.documents.cause import (
    CPU_LIMIT,
    EXIT_CODE,
    OUT_OF_MEMORY,
    SIGNAL,
    UNKNOWN,
    UNWATCHED,
    Cause,
)
from trainvitals.sources.cgroup import parse_counters, read_cgroup
from trainvitals.sources.procfs import read_stat
from trainvitals.sources.sysfs import read_int, read_text

_KILLING = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU", "SIGXFSZ"})
# ioctl PIDFD_GET_INFO of linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info), and where the fields are.
_INFO_SIZE = 128
_PIDFD_GET_INFO = (3 << 30) | (_INFO_SIZE << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3
_EXIT_CODE_OFFSET = 60
_STAT_EXIT_CODE = 49
"""Place of the exit status in /proc/<pid>/stat, counted after the name."""
_STAT_START = 19


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended, as `wait` reports it. Exactly one of the two is not None."""

    exit_code: int | None
    signal: str | None


def parse_wait_status(status: int) -> ExitStatus:
    """A wait status in words: an exit code or the name of a signal."""
    number = status & 0x7F
    if number == 0:
        return ExitStatus((status >> 8) & 0xFF, None)
    try:
        return ExitStatus(None, signal.Signals(number).name)
    except ValueError:  # a real-time signal
        return ExitStatus(None, f"signal {number}")


def read_exit_status(pid: int, start: float | None, pidfd: int | None) -> ExitStatus | None:
    """How the process ended; None if that cannot be known, or not yet: it is worth asking again for a moment."""
    text = read_text(f"/proc/{pid}/stat")
    fields = text.rpartition(") ")[2].split() if text else []
    if len(fields) > _STAT_EXIT_CODE and fields[0] in ("Z", "X") and start in (None, float(fields[_STAT_START])):
        return parse_wait_status(int(fields[_STAT_EXIT_CODE]))
    return _read_pidfd_exit(pidfd) if pidfd is not None else None


def _read_pidfd_exit(pidfd: int) -> ExitStatus | None:
    import fcntl

    buffer = bytearray(_INFO_SIZE)
    struct.pack_into("=Q", buffer, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None  # an older kernel, or a zombie that nobody has collected
    (mask,) = struct.unpack_from("=Q", buffer, 0)
    if not mask & _PIDFD_INFO_EXIT:
        return None
    (status,) = struct.unpack_from("=i", buffer, _EXIT_CODE_OFFSET)
    return parse_wait_status(status)


# -- out of memory


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Of one control group: processes in it that the kernel killed for memory, and how often its limit was hit."""

    kills: int
    hits: int


@dataclass(frozen=True, slots=True)
class OomCounts:
    """How often the kernel has killed for memory: on the machine, and in the groups of a process, its own first."""

    machine: int | None
    groups: dict[str, GroupCounts]

    def grown_since(self, before: OomCounts) -> str | None:
        """What the process may have been killed for since `before`: the limit of its `group`, the memory of the
        `machine`, or None.

        The group's own counter knows best: that of the machine also counts other people's containers, so it is asked
        only where the group is gone or has none.
        """
        own = next(iter(before.groups), None)
        grown = [path for path, now in self.groups.items() if _grown(now.kills, before.groups.get(path), "kills")]
        if grown or (own is not None and own in self.groups):
            hit = any(_grown(now.hits, before.groups.get(path), "hits") for path, now in self.groups.items())
            return ("group" if hit else "machine") if grown else None
        if self.machine is not None and before.machine is not None and self.machine > before.machine:
            return "machine"
        return None

    def as_json(self) -> dict[str, Any]:
        groups = {path: [counts.kills, counts.hits] for path, counts in self.groups.items()}
        return {"machine": self.machine, "groups": groups}


def _grown(now: int, before: GroupCounts | None, what: str) -> bool:
    return before is not None and now > int(getattr(before, what))


def parse_oom_counts(data: object) -> OomCounts | None:
    """What `as_json` made, or None if it is something else."""
    if not isinstance(data, dict) or not isinstance(data.get("groups"), dict):
        return None
    groups = {
        str(path): GroupCounts(int(counts[0]), int(counts[1]))
        for path, counts in data["groups"].items()
        if isinstance(counts, list) and len(counts) == 2
    }
    machine = data.get("machine")
    return OomCounts(machine if isinstance(machine, int) else None, groups)


def read_oom_counts(groups: Iterable[str]) -> OomCounts:
    """The counters now. A group that was removed with its process is missing; those above it may still count."""
    machine = parse_counters(read_text("/proc/vmstat", limit=1 << 16) or "").get("oom_kill")
    found = {path: _read_group(path) for path in groups}
    return OomCounts(machine, {path: counts for path, counts in found.items() if counts is not None})


def _read_group(path: str) -> GroupCounts | None:
    events = parse_counters(read_text(f"{path}/memory.events") or "")  # version 2
    if "oom_kill" in events:
        return GroupCounts(events["oom_kill"], events.get("oom", 0))
    control = parse_counters(read_text(f"{path}/memory.oom_control") or "")  # version 1
    if "oom_kill" in control:
        return GroupCounts(control["oom_kill"], read_int(f"{path}/memory.failcnt") or 0)
    return None


class Suspects:
    """What is remembered of a living process so that its death can be explained."""

    def __init__(self, pid: int, before: OomCounts | None = None) -> None:
        self._pid = pid
        self._groups = _read_groups(pid) or tuple(before.groups if before else ())
        self.counts = before or read_oom_counts(self._groups)
        self._cpu_limit = read_cpu_limit(pid)
        self._cpu_seconds = 0.0
        self._recent: str | None = None

    def look(self) -> str | None:
        """Remember the counters; where the kernel killed for memory since the last reading, if it did."""
        now = read_oom_counts(self._groups)
        groups = _read_groups(self._pid)
        if groups != self._groups and groups:  # a job scheduler moved it
            self._groups = groups
            now = read_oom_counts(groups)
        self._recent = now.grown_since(self.counts)
        self.counts = now
        stat = read_stat("/proc", self._pid)
        if stat is not None:
            self._cpu_seconds = stat.cpu_seconds
        return self._recent

    def out_of_memory(self) -> str | None:
        """Where the kernel killed for memory just now: `group`, `machine`, or None."""
        return read_oom_counts(self._groups).grown_since(self.counts) or self._recent

    def out_of_cpu_time(self) -> bool:
        """Whether the process had all but used up the CPU time it may use."""
        return self._cpu_limit is not None and self._cpu_seconds + 5 > self._cpu_limit


def _read_groups(pid: int) -> tuple[str, ...]:
    group = read_cgroup("/proc", "/sys", pid)
    return group.memory if group is not None else ()


def read_cpu_limit(pid: int) -> float | None:
    """Seconds of CPU time after which the kernel kills the process; None if there is no limit."""
    found = re.search(r"^Max cpu time\s+\S+\s+(\d+)\s", read_text(f"/proc/{pid}/limits") or "", re.MULTILINE)
    return float(found[1]) if found else None


# -- the verdict


@dataclass(frozen=True, slots=True)
class ExitVerdict:
    """How a rank, or a run, ended."""

    status: str
    cause: Cause | None
    exit_code: int | None = None
    signal: str | None = None


def judge(
    exit_status: ExitStatus | None,
    *,
    out_of_memory: str | None = None,
    out_of_cpu_time: bool = False,
    watched: bool = True,
    stalled: str | None = None,
) -> ExitVerdict:
    """What an end without a goodbye means. `stalled` is how the rank was before: `stalled`, `hung` or None."""
    verdict = _judge(exit_status, out_of_memory, out_of_cpu_time, watched)
    if stalled is None or verdict.cause is None:
        return verdict
    return replace(verdict, cause=replace(verdict.cause, before=stalled))


def _judge(
    exit_status: ExitStatus | None, out_of_memory: str | None, out_of_cpu_time: bool, watched: bool
) -> ExitVerdict:
    if exit_status is None:
        if out_of_memory:
            return ExitVerdict("killed", Cause(kind=OUT_OF_MEMORY, memory=out_of_memory))
        return ExitVerdict("crashed", Cause(kind=UNKNOWN if watched else UNWATCHED))
    name = exit_status.signal
    if name is None:
        code = exit_status.exit_code or 0
        return ExitVerdict(
            "failed" if code else "finished", Cause(kind=EXIT_CODE, exit_code=code) if code else None, code
        )
    if name == "SIGKILL" and out_of_memory:
        cause = Cause(kind=OUT_OF_MEMORY, memory=out_of_memory, signal=name)
    elif name == "SIGKILL" and out_of_cpu_time:
        cause = Cause(kind=CPU_LIMIT, signal=name)
    else:
        cause = Cause(kind=SIGNAL, signal=name)
    return ExitVerdict("killed" if name in _KILLING else "crashed", cause, None, name)
