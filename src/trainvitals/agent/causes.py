"""Why a process ended: its exit status, the kernel's out-of-memory killer, a limit.

The exit status of a process that is not our child can be had in two ways on Linux, and both are tried: while it is
a zombie it stands in /proc/<pid>/stat, and from Linux 6.15 on a pidfd tells it once the parent has collected it.
"""

from __future__ import annotations

import re
import signal
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainvitals.sources.cgroup import parse_counters, read_cgroup
from trainvitals.sources.procfs import read_stat
from trainvitals.sources.sysfs import read_text

UNWATCHED = "the process ended while no agent was watching"
UNKNOWN = "the process is gone; nothing is known about why"

_KILLING = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU", "SIGXFSZ"})
_WORDS = {
    "SIGKILL": "kill -9, or a job scheduler at its limit",
    "SIGTERM": "asked to end, such as by a job scheduler or a launcher",
    "SIGINT": "Ctrl-C",
    "SIGHUP": "its terminal was closed",
    "SIGSEGV": "it touched memory that is not its own",
    "SIGBUS": "a memory access that cannot be served, such as a full /dev/shm",
    "SIGABRT": "it stopped itself, such as after a failed check in native code",
    "SIGFPE": "an arithmetic fault",
    "SIGILL": "an instruction this processor does not have",
    "SIGXCPU": "its limit on CPU time (ulimit -t)",
    "SIGXFSZ": "its limit on file size (ulimit -f)",
}

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
    """How a process ended, as `wait` tells it. Exactly one of the two is not None."""

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
    if (
        len(fields) > _STAT_EXIT_CODE
        and fields[0] in ("Z", "X")
        and start in (None, float(fields[_STAT_START]))
    ):
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
class OomCounts:
    """How often the kernel has killed for memory: in the whole machine, and in each group of a process by file."""

    machine: int | None
    groups: dict[str, int]

    def grown_since(self, before: OomCounts) -> str | None:
        """Where there were kills since `before`: `group`, `machine`, or None."""
        for file, count in self.groups.items():
            if count > before.groups.get(file, count):
                return "group"
        if self.machine is not None and before.machine is not None and self.machine > before.machine:
            return "machine"
        return None

    def as_json(self) -> dict[str, Any]:
        return {"machine": self.machine, "groups": self.groups}


def parse_oom_counts(data: object) -> OomCounts | None:
    """What `as_json` made, or None if it is something else."""
    if not isinstance(data, dict) or not isinstance(data.get("groups"), dict):
        return None
    groups = {str(file): count for file, count in data["groups"].items() if isinstance(count, int)}
    machine = data.get("machine")
    return OomCounts(machine if isinstance(machine, int) else None, groups)


def read_oom_counts(files: Iterable[str]) -> OomCounts:
    """The counters now. A group that has been removed with its process is missing; those above it still count."""
    machine = parse_counters(read_text("/proc/vmstat", limit=1 << 16) or "").get("oom_kill")
    counts = {}
    for file in files:
        found = parse_counters(read_text(file) or "").get("oom_kill")
        if found is not None:
            counts[file] = found
    return OomCounts(machine, counts)


def find_oom_files(pid: int) -> tuple[str, ...]:
    """The files that count kills for memory in the groups of the process, its own first."""
    group = read_cgroup("/proc", "/sys", pid)
    if group is None:
        return ()
    name = "memory.events" if group.version == 2 else "memory.oom_control"
    return tuple(f"{folder}/{name}" for folder in group.memory)


class Suspects:
    """What is remembered of a living process so that its death can be explained."""

    def __init__(self, pid: int, before: OomCounts | None = None) -> None:
        self._pid = pid
        self._files = find_oom_files(pid) or tuple(before.groups if before else ())
        self.counts = before or read_oom_counts(self._files)
        self._cpu_limit = read_cpu_limit(pid)
        self._cpu_seconds = 0.0
        self._recent: str | None = None

    def look(self) -> str | None:
        """Remember how things stand; where the kernel killed for memory since the last look, if it did."""
        now = read_oom_counts(self._files)
        self._recent = now.grown_since(self.counts)
        self.counts = now
        stat = read_stat("/proc", self._pid)
        if stat is not None:
            self._cpu_seconds = stat.cpu_seconds
        return self._recent

    def out_of_memory(self) -> str | None:
        """Where the kernel killed for memory just now: `group`, `machine`, or None."""
        return read_oom_counts(self._files).grown_since(self.counts) or self._recent

    def out_of_cpu_time(self) -> bool:
        """Whether the process had all but used up the CPU time it may use."""
        return self._cpu_limit is not None and self._cpu_seconds + 5 > self._cpu_limit


def read_cpu_limit(pid: int) -> float | None:
    """Seconds of CPU time after which the kernel kills the process; None if there is no limit."""
    found = re.search(r"^Max cpu time\s+\S+\s+(\d+)\s", read_text(f"/proc/{pid}/limits") or "", re.MULTILINE)
    return float(found[1]) if found else None


# -- the verdict


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a rank, or a run, ended."""

    status: str
    cause: str | None
    exit_code: int | None = None
    signal: str | None = None


def judge(
    exit_status: ExitStatus | None,
    *,
    out_of_memory: str | None = None,
    out_of_cpu_time: bool = False,
    watched: bool = True,
    stalled: str | None = None,
) -> Verdict:
    """What an end without a goodbye means. `stalled` is how the rank was before: `stalled`, `hung` or None."""
    verdict = _judge(exit_status, out_of_memory, out_of_cpu_time, watched)
    if stalled is None or verdict.cause is None:
        return verdict
    return Verdict(
        verdict.status, f"{verdict.cause}; it had {_STALLED[stalled]}", verdict.exit_code, verdict.signal
    )


_STALLED = {"stalled": "stalled before", "hung": "been hung before"}


def _judge(
    exit_status: ExitStatus | None, out_of_memory: str | None, out_of_cpu_time: bool, watched: bool
) -> Verdict:
    if exit_status is None:
        if out_of_memory:
            return Verdict(
                "killed", f"probably {_OUT_OF_MEMORY[out_of_memory]}; its exit status is not known"
            )
        return Verdict("crashed", UNKNOWN if watched else UNWATCHED)
    if exit_status.signal is None:
        code = exit_status.exit_code or 0
        return Verdict("failed" if code else "finished", f"exit code {code}" if code else None, code)
    name = exit_status.signal
    if name == "SIGKILL" and out_of_memory:
        return Verdict("killed", _OUT_OF_MEMORY[out_of_memory], None, name)
    if name == "SIGKILL" and out_of_cpu_time:
        return Verdict("killed", "killed by the kernel at its limit on CPU time (ulimit -t)", None, name)
    words = f" ({_WORDS[name]})" if name in _WORDS else ""
    status = "killed" if name in _KILLING else "crashed"
    return Verdict(status, f"killed by {name}{words}", None, name)


_OUT_OF_MEMORY = {
    "group": "out of memory: killed by the kernel (OOM) at the memory limit of its control group",
    "machine": "out of memory: killed by the kernel (OOM)",
}
