"""Who did what with the runs of a fleet: lines of JSON that are only added, in a file that stays within a bound.

    {"timestamp": "...", "did": "read", "who": "alice", "from": "10.0.0.7", "run": "20261118-060000-base-k3f9",
     "what": "series", "status": 200}

No token, no query and no content is in it. An agent ships every two seconds, and a page asks as often: the first
request is a line at once, the same again within ten minutes is counted, and told as `times` afterwards.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.line_log import LineLog
from trainvitals.safe_text import one_line
from trainvitals.stderr import print_line

MAX_BYTES = 16 << 20
KEPT_FILES = 9
AGAIN_SECONDS = 600.0
MOST_COUNTED = 10_000
"""Different things that are counted at a time: an attacker can invent names."""
LONGEST = 200
STANDARD_OUTPUT = Path("-")


class Audit:
    """Safe for several threads. A log that cannot be written is said, and stops nobody."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """`-` is standard output, for containers."""
        self._lines = None if path == STANDARD_OUTPUT else LineLog(path, max_bytes=MAX_BYTES, kept_files=KEPT_FILES)
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._counted: OrderedDict[tuple[tuple[str, str | int], ...], tuple[float, int]] = OrderedDict()
        """By what was done: since when it is counted, and how often since."""
        self._said = False

    def note(self, did: str, **about: str | int) -> None:
        """Write a line; empty fields are left out."""
        fields = {name: one_line(value)[:LONGEST] if isinstance(value, str) else value for name, value in about.items()}
        self._write({"did": did, **{name: value for name, value in fields.items() if value != ""}}, self._clock())

    def count(self, did: str, **about: str | int) -> None:
        """The same for what is done again and again."""
        key = tuple(sorted({"did": did, **about}.items()))
        now = self._clock()
        with self._lock:
            self._tell_old(now)
            since, times = self._counted.get(key, (now, -1))
            self._counted[key] = (since, times + 1)
            if len(self._counted) > MOST_COUNTED:
                self._tell(*self._counted.popitem(last=False))
        if times < 0:
            self.note(did, **about)

    def close(self) -> None:
        """Tell what was counted."""
        with self._lock:
            self._tell_old(float("inf"))

    def _tell_old(self, now: float) -> None:
        while self._counted:
            key, (since, times) = next(iter(self._counted.items()))
            if now - since < AGAIN_SECONDS:
                return
            del self._counted[key]
            self._tell(key, (since, times))

    def _tell(self, key: tuple[tuple[str, str | int], ...], counted: tuple[float, int]) -> None:
        since, times = counted
        if times:
            self.note(**{**dict(key), "since": format_time(since), "times": times})  # type: ignore[arg-type]

    def _write(self, row: dict[str, str | int], moment: float) -> None:
        line = encode_line({"timestamp": format_time(moment), **row})
        try:
            if self._lines is not None:
                self._lines.write(line)
            else:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
        except OSError as error:
            if not self._said:
                self._said = True
                print_line(f"the audit log {self._path} cannot be written: {error.strerror}")
