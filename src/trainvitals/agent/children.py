"""Children of a training that die while it waits for them, such as loader workers: which, of what, and when."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass

from trainvitals.agent.exit_causes import ExitStatus, read_exit_status
from trainvitals.agent.pidfds import open_pidfd
from trainvitals.sources.procfs import read_children
from trainvitals.sources.sysfs import read_text

REFRESH_SECONDS = 2.0
"""Between two looks for new children. Their end is reported by the kernel."""
MOST_CHILDREN = 64
MOST_DEATHS = 8
MARGIN_SECONDS = 5.0
"""What a training still logs after a child has died: batches that were ready."""


@dataclass(frozen=True, slots=True)
class ChildDeath:
    """A child that did not end well."""

    pid: int
    name: str
    status: ExitStatus
    when: float
    """By the monotonic clock."""

    def describe(self, last_step: float) -> str:
        """In words; `last_step` is when its parent last logged."""
        how = f"died ({self.status.signal})" if self.status.signal else f"exited with code {self.status.exit_code}"
        seconds = self.when - last_step
        when = f"{abs(seconds):.0f} s {'after' if seconds >= 0 else 'before'} the last step"
        return f"child process {self.pid} ({self.name}) {how} {when}"


class Children:
    """Of one process, as far as its main thread started them. Costs one small read every other second."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._names: dict[int, str] = {}
        self._pidfds: dict[int, int] = {}
        """pidfd of each child that lives."""
        self._deaths: deque[ChildDeath] = deque(maxlen=MOST_DEATHS)
        self._next_refresh = 0.0

    @property
    def pidfds(self) -> list[int]:
        return list(self._pidfds.values())

    def look(self, now: float, ended: frozenset[int]) -> None:
        """Notice who is new; `ended` are the pidfds whose end the kernel has reported."""
        for pid, pidfd in list(self._pidfds.items()):
            if pidfd in ended:
                self._bury(pid, now)
        if now < self._next_refresh:
            return
        self._next_refresh = now + REFRESH_SECONDS
        listed = read_children("/proc", self._parent, (self._parent,)) or ()
        for pid in self._names.keys() - set(listed):
            del self._names[pid]
        for pid in listed:
            if pid in self._names or len(self._pidfds) == MOST_CHILDREN:
                continue
            opened = open_pidfd(pid)
            if opened is not None:
                self._names[pid] = (read_text(f"/proc/{pid}/comm") or "").strip() or "?"
                self._pidfds[pid] = opened

    def _bury(self, pid: int, now: float) -> None:
        pidfd = self._pidfds.pop(pid)
        status = read_exit_status(pid, None, pidfd)
        if status is not None and (status.signal or status.exit_code):
            self._deaths.append(ChildDeath(pid, self._names[pid], status, now))
        os.close(pidfd)

    def deaths_since(self, last_step: float) -> list[ChildDeath]:
        """Those that may be why nothing was logged after `last_step`."""
        return [death for death in self._deaths if death.when >= last_step - MARGIN_SECONDS]

    def close(self) -> None:
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._pidfds.clear()
