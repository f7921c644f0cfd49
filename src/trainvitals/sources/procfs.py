"""One process out of /proc: a few small reads, no scan of all processes.

psutil asks more files per process than it needs here, and finds children by reading every process of the
machine; with 8 ranks of 8 workers each, this costs a tenth. Tested in tests/sources/test_process.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from trainvitals.sources.sysfs import list_folder, read_bytes, read_text

PAGE_SIZE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "disk sleep",
    "T": "stopped",
    "t": "stopped",
    "Z": "zombie",
    "X": "dead",
    "I": "idle",
}


class ProcessStat(NamedTuple):
    """The contents of /proc/<pid>/stat."""

    parent: int
    state: str
    cpu_seconds: float
    threads: int
    started: float
    """Seconds after boot; with the pid, the identity of a process"""
    rss_bytes: int


def read_stat(root: str, pid: int) -> ProcessStat | None:
    """None when there is no such process (any more)."""
    raw = read_bytes(f"{root}/{pid}/stat")
    return parse_stat(raw) if raw else None


def parse_stat(raw: bytes) -> ProcessStat | None:
    """The name of a program may hold spaces and parentheses: fields are counted from the last parenthesis."""
    fields = raw[raw.rfind(b")") + 1 :].split()
    try:
        return ProcessStat(
            parent=int(fields[1]),
            state=STATES.get(fields[0].decode(), fields[0].decode()),
            cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND,
            threads=int(fields[17]),
            started=int(fields[19]) / TICKS_PER_SECOND,
            rss_bytes=int(fields[21]) * PAGE_SIZE,
        )
    except (IndexError, ValueError):
        return None


def read_children(root: str, pid: int, threads: Iterable[int] | None = None) -> list[int] | None:
    """Children of some or all threads of a process; None where the kernel does not list them.

    A child belongs to the thread that forked it. Asking every thread of a process with hundreds is not free,
    so a caller may ask only for the main one (whose number is the pid).
    """
    children: list[int] = []
    listed = False
    for thread in threads if threads is not None else list_threads(root, pid):
        raw = read_bytes(f"{root}/{pid}/task/{thread}/children", 1 << 20)
        if raw is not None:
            listed = True
            children.extend(int(child) for child in raw.split() if child.isdigit())
    return children if listed else None


def list_threads(root: str, pid: int) -> list[int]:
    """Thread numbers of a process."""
    return [int(name) for name in list_folder(f"{root}/{pid}/task") if name.isdecimal()]


def read_io(root: str, pid: int) -> tuple[int, int] | None:
    """(bytes read from, bytes written to) storage; None for another user's process."""
    raw = read_bytes(f"{root}/{pid}/io")
    found = re.search(rb"^read_bytes: (\d+)\nwrite_bytes: (\d+)$", raw or b"", re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else None


def count_descriptors(root: str, pid: int) -> int | None:
    """Open file descriptors; None for another user's process."""
    folder = Path(f"{root}/{pid}/fd")
    try:
        # Linux 6.2 and later reports the number as the size of the folder.
        return folder.stat().st_size or sum(1 for _ in folder.iterdir())
    except OSError:
        return None


def read_descriptor_limit(root: str, pid: int) -> int | None:
    """The soft limit on open files; None when it is unlimited or cannot be read."""
    found = re.search(r"^Max open files\s+(\d+)\s", read_text(f"{root}/{pid}/limits") or "", re.MULTILINE)
    return int(found[1]) if found else None


def read_pss(root: str, pid: int) -> int | None:
    """Proportional memory in bytes; None where it cannot be read.

    The kernel walks all pages of the process and holds its memory map meanwhile: ask seldom.
    """
    found = re.search(r"^Pss:\s+(\d+) kB$", read_text(f"{root}/{pid}/smaps_rollup") or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else None
