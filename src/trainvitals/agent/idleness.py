"""Whether a silent rank computes: the CPU time of its process and its children. Measured only while it is silent.

An evaluation or a checkpoint computes, reads or writes; a rank that waits for what never comes does nothing at all, and
need not be waited for as long.
"""

from __future__ import annotations

from trainvitals.sources.procfs import read_children, read_stat

WINDOW_SECONDS = 1.0
IDLE_SHARE = 0.05
"""Of one core. Watchdogs and progress bars of an idle process use less."""


class Idleness:
    """Of one rank, since it last logged."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._mark: tuple[float, float] | None = None
        self._since: float | None = None

    def reset(self) -> None:
        """The rank does something that can be seen."""
        self._mark = self._since = None

    def measure(self, now: float) -> float:
        """Seconds for which it has done nothing, as far as it was measured."""
        if self._mark is None:
            self._mark = (now, self._read_cpu_seconds())
        began, before = self._mark
        if now - began >= WINDOW_SECONDS:
            used = self._read_cpu_seconds()
            idle = used - before < IDLE_SHARE * (now - began)
            self._since = (began if self._since is None else self._since) if idle else None
            self._mark = (now, used)
        return now - self._since if self._since is not None else 0.0

    def _read_cpu_seconds(self) -> float:
        pids = (self._pid, *(read_children("/proc", self._pid, (self._pid,)) or ()))
        return sum(stat.cpu_seconds for pid in pids if (stat := read_stat("/proc", pid)) is not None)
