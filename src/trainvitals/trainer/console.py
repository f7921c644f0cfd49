"""Where this process prints to. If that is a file, the agent copies it for the Logs page.
Tested in tests/trainer/test_tee.py."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import replace

from trainvitals.journal.documents.registration import ConsoleFile

STREAMS = {1: "", 2: "stderr"}
"""The suffix of a separate file, by file descriptor."""


def find_files() -> tuple[ConsoleFile, ...]:
    """The files that standard output and standard error go to, each with its current position."""
    found: dict[tuple[int, int], ConsoleFile] = {}
    for fd, stream in STREAMS.items():
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                continue
            offset = os.lseek(fd, 0, os.SEEK_CUR)
            path = _path_of(fd)
        except OSError:
            continue
        if path is None:
            continue
        if _appends(fd):
            offset = status.st_size  # its position is known only after the first write
        file = ConsoleFile(path=path, device=status.st_dev, inode=status.st_ino, offset=offset, stream=stream)
        known = found.get((status.st_dev, status.st_ino), file)
        found[status.st_dev, status.st_ino] = replace(known, fds=(*known.fds, fd))
    return tuple(found.values())


def _path_of(fd: int) -> str | None:
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{fd}") if sys.platform == "linux" else None  # noqa: PTH115 - pathlib is slower


def _appends(fd: int) -> bool:
    if sys.platform == "win32":
        return False
    import fcntl

    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND)
