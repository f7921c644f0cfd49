"""Processes that are not our children, held by a descriptor: the kernel reports their end on it.
Tested in tests/agent/test_liveness.py."""

from __future__ import annotations

import os
import time


def open_pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # gone already, an old kernel, or a sandbox that forbids it


def wait_for_end(pidfds: list[int], seconds: float) -> frozenset[int]:
    """Sleep for `seconds`, or less: the pidfds of processes that have ended."""
    if not pidfds:
        time.sleep(seconds)
        return frozenset()
    import select

    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    return frozenset(pidfd for pidfd, _ in poll.poll(seconds * 1000))
