"""Runs whose processes were dead before the agent came. They can wait: the living are never kept waiting for them.

A killed session or a script without an agent may leave hundreds of registrations. Those whose run folder is gone are
dropped at once, and logged in one line; the others are handed out a few at a time, the newest first.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from trainvitals.agent.log import BoundLog
from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import Registration

AT_ONCE = 4
"""Runs that are closed side by side."""
SLOW_SECONDS = 10.0
"""A folder that has not answered for this long, as on a file server that is gone, does not hold up the others."""
MOST_SLOW = 32
"""Unless there are this many of them: threads must not pile up."""

Entry = tuple[Path, Registration]


@dataclass(slots=True)
class _Group:
    """The ranks of one run."""

    entries: dict[Path, Registration] = field(default_factory=dict)
    seen: bool = False
    """Its folder is known to be there."""


class Backlog:
    """Registrations of dead processes, by run folder."""

    def __init__(self, log: BoundLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._unseen: deque[str] = deque()
        self._lookers: dict[threading.Thread, float] = {}
        self._dropped = 0

    def put(self, entries: Iterable[Entry]) -> None:
        """Keep these until their turn comes."""
        with self._lock:
            for path, registration in entries:
                if registration.folder not in self._groups:
                    self._groups[registration.folder] = _Group()
                    self._unseen.append(registration.folder)
                self._groups[registration.folder].entries[path] = registration

    def forget(self, path: Path, registration: Registration) -> None:
        """This registration is gone."""
        with self._lock:
            group = self._groups.get(registration.folder)
            if group is not None:
                group.entries.pop(path, None)
                if not group.entries:
                    del self._groups[registration.folder]

    def take(self, folder: str) -> list[Entry]:
        """Those of this run, out of turn: another rank of it lives."""
        with self._lock:
            group = self._groups.pop(folder, None)
        return list(group.entries.items()) if group else []

    def next(self, under_way: Iterable[float]) -> list[list[Entry]]:
        """The runs whose turn it is, all ranks of each together; `under_way` is when those handed out before began."""
        now = time.monotonic()
        self._look(now)
        with self._lock:
            room = min(_room(under_way, now, AT_ONCE), len(self._groups))
            ready = [
                (next(iter(group.entries.values())).run_id, key) for key, group in self._groups.items() if group.seen
            ]
            return [list(self._groups.pop(folder).entries.items()) for _, folder in heapq.nlargest(room, ready)]

    # -- looking at folders, in a thread: one on a dead file server does not answer

    def _look(self, now: float) -> None:
        with self._lock:
            self._lookers = {thread: began for thread, began in self._lookers.items() if thread.is_alive()}
            if not self._unseen or not _room(self._lookers.values(), now, 1):
                return
            thread = threading.Thread(target=self._sweep, name="backlog", daemon=True)
            self._lookers[thread] = now
        thread.start()

    def _sweep(self) -> None:
        me = threading.current_thread()
        while True:
            with self._lock:
                if not self._unseen:
                    dropped, self._dropped = self._dropped, 0
                    break
                folder = self._unseen.popleft()
                self._lookers[me] = time.monotonic()
            gone = _is_gone(folder)
            with self._lock:
                group = self._groups.get(folder)
                if group is None:
                    continue  # taken out of turn meanwhile
                group.seen = True
                if gone:
                    del self._groups[folder]
                    self._dropped += len(group.entries)
            if gone:
                for path, registration in group.entries.items():
                    registrations.unregister(path, registration)
        if dropped:
            self._log.info("removed registrations of dead processes without a run folder", count=dropped)


def _room(began: Iterable[float], now: float, most: int) -> int:
    """How many may begin beside those that began at these times: the slow ones do not count, up to a point."""
    times = list(began)
    if len(times) >= MOST_SLOW:
        return 0
    return max(most - sum(now - time < SLOW_SECONDS for time in times), 0)


def _is_gone(folder: str) -> bool:
    try:
        Path(folder).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # there, but not for us now
    return False
