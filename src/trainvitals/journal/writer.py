"""Appending to a run folder: one process, one file, one write per line.

The line is with the kernel when `append` returns, so any other process can read it and `kill -9` loses nothing.
Nothing here raises into the caller's loop, and nothing waits: when the disk is full or read-only the lines are kept
in memory up to a limit, the trouble is reported once, and they are written in order as soon as there is room.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from trainvitals.handlers import is_from_handler
from trainvitals.journal import layout
from trainvitals.journal.layout import FileName
from trainvitals.stderr import print_line

MIB = 1 << 20
BACKLOG_LIMIT = 64 * MIB
RETRY_SECONDS = 1.0
_WAITING = f"Training continues; up to {BACKLOG_LIMIT // MIB} MB of lines are kept in memory until it can be written."


class LineWriter:
    """Appends whole lines to `<folder>/<name>.jsonl` and starts a new file by size or age.

    Safe from many threads, from a signal handler (the lock is re-entrant), and after `fork()`: a child never writes
    to its parent's file but opens a separate one, named with its process id.

    `on_fd` is given the descriptor whenever it changes, for a caller who writes whole lines to it himself with one
    `os.write` each: the file is opened for appending, so lines of several threads do not mix. -1 means: not now, use
    `append`.
    """

    def __init__(
        self,
        folder: Path,
        name: FileName,
        *,
        rotate_bytes: int = 16 * MIB,
        rotate_seconds: float = 3600.0,
        mode: int = 0o600,
        on_trouble: Callable[[str], None] = print_line,
        on_fd: Callable[[int], None] = lambda fd: None,
    ) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.dropped = 0
        """Lines lost because the disk stayed full longer than memory could bridge."""
        self._name = name
        self._rotate_bytes = rotate_bytes
        self._rotate_seconds = rotate_seconds
        self._mode = mode
        self._on_trouble = on_trouble
        self._on_fd = on_fd
        self._fd = -1
        self._identity = (0, 0)
        self._has_links = False  # not every file system counts them
        self._unchecked = 0
        self._opened = 0.0
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._torn = False
        self._busy = False
        self._next_try = 0.0
        self._warned: set[int | None] = set()
        self._closed = False
        _writers.add(self)

    @property
    def path(self) -> Path:
        """The file being written, or that would be."""
        return self.folder / self._name.jsonl

    @property
    def waiting(self) -> int:
        """Lines kept in memory until they can be written."""
        return len(self._backlog)

    def append(self, line: bytes) -> None:
        """Write one line, newline included. Raises only what a signal handler of the program raises meanwhile."""
        self.append_all((line,))

    def append_all(self, lines: Sequence[bytes]) -> None:
        """Write several lines with one call of the kernel."""
        with self.lock:
            if self._busy:
                for line in lines:
                    self._append_within(line)
                return
            self._busy = True
            try:
                self._append(lines)
            finally:
                self._busy = False

    def mark_torn(self) -> None:
        """The last line was cut, because the disk filled up inside it; the caller appends it again."""
        with self.lock:
            self._torn = True
            self._on_fd(-1)
            self._trouble(_full())

    def rotate_if_due(self) -> None:
        """Start a new file if this one is too large or too old; called where time passes anyway."""
        with self.lock:
            self._unchecked = 0
            found = None if self._backlog else self.check()
            if found is None:
                return
            old = time.monotonic() - self._opened > self._rotate_seconds
            if found.st_size >= self._rotate_bytes or (old and found.st_size):
                self._rotate()

    def check(self) -> os.stat_result | None:
        """What the file is like; None if there is none, or no longer any: then it warns, and the next line opens
        another."""
        with self.lock:
            if self._fd < 0:
                return None
            try:
                found = os.fstat(self._fd)
            except OSError as error:
                if is_from_handler(error):
                    raise
                found = None
            if found is None or (found.st_dev, found.st_ino) != self._identity:
                self._forget_file()
                return None
            if found.st_nlink == 0 and self._has_links:  # else what is written goes where nobody can read it
                self._close_file()
                self._warned |= {errno.ENOENT, None}
                gone = self.path if self.folder.is_dir() else self.folder
                self._on_trouble(f"{gone} was removed and its data is lost. {_WAITING}")
                return None
            return found

    def flush(self, seconds: float = 0.0) -> bool:
        """Try to write what waits, for at most `seconds`. True if nothing is left."""
        deadline = time.monotonic() + seconds
        while self._backlog:
            with self.lock:
                if self._busy:
                    return False  # the interrupted call continues with it
                self._busy = True
                try:
                    self._next_try = 0.0
                    self._write_backlog()
                finally:
                    self._busy = False
            if not self._backlog or time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        return not self._backlog

    def close(self, seconds: float = 1.0) -> None:
        """Write what waits if that is possible within `seconds`, and close the file. Later lines are dropped."""
        self.flush(seconds)
        with self.lock:
            if self._backlog:
                self.dropped += len(self._backlog)
                self._backlog.clear()
            self._closed = True
            self._close_file()

    # -- everything below runs with the lock held

    def _append(self, lines: Sequence[bytes]) -> None:
        if self._backlog or self._fd < 0 or self._torn:
            self._append_slowly(lines)
            return
        try:
            written = os.write(self._fd, lines[0] if len(lines) == 1 else b"".join(lines))
        except OSError as error:
            if is_from_handler(error):
                raise  # perhaps just after the line was written
            self._keep(lines, error)
            return
        end = 0
        for number, line in enumerate(lines):
            end += len(line)
            if end > written:  # the disk filled up inside of it
                self.mark_torn()
                self._remember(lines[number:])
                return
        self._unchecked += written
        if self._backlog:
            self._write_backlog()  # lines of a signal handler that could not be written
        elif self._unchecked >= self._rotate_bytes // 16:
            self.rotate_if_due()

    def _append_within(self, line: bytes) -> None:
        """From a signal handler or a finalizer that interrupted this very writer: the line is written by itself, or
        waits. Nothing that the interrupted call has begun is touched, so no line is lost and none is written twice."""
        try:
            if self._fd >= 0 and not self._torn:
                if os.write(self._fd, line) == len(line):
                    return
                self._torn = True
        except OSError as error:  # the interrupted call will fail in the same way, and report it
            if is_from_handler(error):
                raise
        self._remember((line,))

    def _append_slowly(self, lines: Sequence[bytes]) -> None:
        if self._closed:
            self.dropped += len(lines)
            return
        self._remember(lines)
        if time.monotonic() >= self._next_try:
            self._write_backlog()

    def _write_backlog(self) -> None:
        try:
            if self._fd < 0:
                self._open()
            while self._backlog:
                self._mend()
                self._write_first()
        except OSError as error:
            if is_from_handler(error):
                raise
            self._trouble(error)
            return
        if None in self._warned:  # the user was warned that lines wait: report that they no longer do
            self._warned.clear()
            lost = f", {self.dropped} lines were lost" if self.dropped else ""
            self._on_trouble(f"{self.path} is writable again{lost}")
        self._on_fd(self._fd)
        self.rotate_if_due()

    def _write_first(self) -> None:
        """Write the line that has waited longest."""
        line = self._backlog[0]
        size = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                self._torn = True
                written += os.write(self._fd, line[written:])  # raises the reason of the short write
                if written != len(line):
                    raise _full()
                self._torn = False
            self._backlog.popleft()
        except BaseException as error:
            # A signal handler may raise just after the line was written: it must not be written again.
            if is_from_handler(error) and self._backlog and self._backlog[0] is line and self._holds(line, size):
                self._torn = False
                self._backlog.popleft()
            raise
        self._backlog_bytes -= len(line)

    def _holds(self, line: bytes, start: int) -> bool:
        with open(self.path, "rb", buffering=0) as file:
            file.seek(start)
            return line in file.read()

    def _mend(self) -> None:
        """Take the line that was cut off the end of the file: it is written again whole, and a reader that found its
        beginning would have to count it as damage."""
        if not self._torn:
            return
        try:
            _cut_last_line(self.path, self._identity)
        except (
            OSError
        ) as error:  # a file that only grows (chattr +a): end the line, so that only this one cannot be read
            if is_from_handler(error):
                raise
            os.write(self._fd, b"\n")
        self._torn = False

    def _keep(self, lines: Sequence[bytes], error: OSError) -> None:
        self._on_fd(-1)
        self._remember(lines)
        self._trouble(error)

    def _remember(self, lines: Sequence[bytes]) -> None:
        self._backlog.extend(lines)
        self._backlog_bytes += sum(map(len, lines))
        while self._backlog_bytes > BACKLOG_LIMIT and len(self._backlog) > 1:
            self._backlog_bytes -= len(self._backlog.popleft())
            self.dropped += 1

    def _trouble(self, error: OSError) -> None:
        self._next_try = time.monotonic() + RETRY_SECONDS
        if error.errno == errno.EBADF:
            self._forget_file()
        elif error.errno in (errno.ESTALE, errno.ENOENT, errno.EFBIG):
            # The file went away under us, or may not grow (ulimit -f): open a new one.
            with contextlib.suppress(OSError):
                self._mend()
            self._close_file()
        self._warn(error)

    def _warn(self, error: OSError) -> None:
        if error.errno not in self._warned:
            self._warned |= {error.errno, None}
            reason = error.strerror or str(error)
            self._on_trouble(f"cannot write {self.path}: {reason}. {_WAITING}")

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _O_BINARY
        taken = {name.stamp for name, _, _ in layout.list_files(self.folder) if name.writer == self._name.writer}
        while True:
            name = self._name._replace(stamp=layout.next_stamp(taken))
            try:
                self._fd = move_up(os.open(self.folder / name.jsonl, flags, self._mode))
                break
            except FileExistsError:  # another process took this very name: one writer per file
                taken.add(name.stamp)
        found = os.fstat(self._fd)
        self._identity = (found.st_dev, found.st_ino)
        self._has_links = found.st_nlink > 0
        self._name = name
        self._opened = time.monotonic()
        self._torn = False

    def _rotate(self) -> None:
        old = self._fd
        try:
            self._open()
        except OSError as error:
            if is_from_handler(error):
                raise
            self._opened = time.monotonic()  # stay with this file for now
            self._warn(error)
            return
        self._on_fd(self._fd)
        _retire(old)

    def _close_file(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._on_fd(-1)
            _retire(fd)

    def _forget_file(self) -> None:
        """The program closed our descriptor, as one does that becomes a daemon. The number may mean another file by
        now, which is not ours to write or close: the next line opens a new one."""
        self._fd = -1
        self._on_fd(-1)

    def write_apart(self) -> None:
        """From now on write a separate file, in another process than the one the name was made for."""
        self.lock = threading.RLock()  # another thread of the parent may have held it
        self._close_file()
        self._backlog.clear()  # the parent writes these
        self._backlog_bytes = 0
        self._name = self._name._replace(pid=os.getpid())


def move_up(fd: int) -> int:
    """The same file under a number far above those in use. A program that closes all its descriptors, as one does that
    becomes a daemon, gets the lowest numbers for its next files: ours is then not one of them, and the next write
    fails instead of going to a file of the program."""
    if sys.platform == "win32":
        return fd
    import fcntl
    import resource

    try:
        limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], HIGHEST_DESCRIPTORS)
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(limit - KEPT_DESCRIPTORS, 3))
    except (OSError, ValueError) as error:  # no such number is free
        if is_from_handler(error):
            raise
        return fd
    os.close(fd)
    return moved


def _full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _cut_last_line(path: Path, identity: tuple[int, int]) -> None:
    """Cut the file after its last newline, if it is the one meant. With a separate descriptor: that of the writer may
    have been closed by the program, and mean a file that is not ours to cut."""
    fd = os.open(path, os.O_RDWR | _O_BINARY)
    try:
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != identity:
            return
        end = found.st_size
        while end > 0:
            start = max(0, end - (1 << 16))
            os.lseek(fd, start, os.SEEK_SET)
            newline = os.read(fd, end - start).rfind(b"\n")
            end = start if newline < 0 else start + newline + 1
            if newline >= 0:
                break
        os.ftruncate(fd, end)
    finally:
        os.close(fd)


_O_BINARY: int = getattr(os, "O_BINARY", 0)
RETIRE_SECONDS = 2.0
HIGHEST_DESCRIPTORS = 1024
"""A table of open files that is larger costs memory, and this is what most systems allow."""
KEPT_DESCRIPTORS = 128
_retired: deque[tuple[float, int]] = deque()


def _retire(fd: int) -> None:
    """Close a descriptor a little later: another thread may be about to write to it, and its number must not mean
    another file by then."""
    now = time.monotonic()
    _retired.append((now, fd))
    while _retired and (now - _retired[0][0] > RETIRE_SECONDS or len(_retired) > 32):
        try:
            os.close(_retired.popleft()[1])
        except OSError:
            pass  # closed by other code: it is closed


_writers: weakref.WeakSet[LineWriter] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for writer in list(_writers):
        writer.write_apart()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
