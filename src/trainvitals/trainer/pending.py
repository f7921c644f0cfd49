"""Values that a device is still computing: kept in order, and read when they have arrived. Nothing here waits.
Tested in tests/trainer/test_run.py."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from trainvitals.journal.encoding import encode_line
from trainvitals.journal.writer import LineWriter
from trainvitals.trainer.scalars import Waiting

LIMIT = 10_000
"""Calls of `log` kept at most; a device further behind than this no longer responds."""


class Late(NamedTuple):
    """The values of one call of `log` that arrived, with the time and step of that call."""

    stamp: str
    step: int
    values: dict[str, float]


class Pending:
    """Values that were logged and have not arrived yet."""

    def __init__(self, also: Mapping[str, str]) -> None:
        """`also` is in every line."""
        self._also = also
        self.lost = 0
        """Values that never arrived."""
        self._calls: deque[tuple[str, int, dict[str, Waiting]]] = deque()

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, stamp: str, step: int, items: dict[str, Waiting]) -> None:
        """Keep the values of one call."""
        self._calls.append((stamp, step, items))
        if len(self._calls) > LIMIT:
            self.lost += len(self._calls.popleft()[2])

    def take(self) -> Iterator[Late]:
        """The calls whose values have all arrived, oldest first, up to the first incomplete one."""
        while self._calls and all(item.ready() for item in self._calls[0][2].values()):
            stamp, step, items = self._calls.popleft()
            yield Late(stamp, step, {key: item.value() for key, item in items.items()})

    def give_up(self) -> Iterator[Late]:
        """At the end: the values that have arrived, in any order. The others are lost."""
        while self._calls:
            stamp, step, items = self._calls.popleft()
            values = {key: item.value() for key, item in items.items() if item.ready()}
            self.lost += len(items) - len(values)
            if values:
                yield Late(stamp, step, values)

    def write(self, writer: LineWriter) -> list[Late]:
        """Write what has arrived, and return it. The caller holds the writer's lock."""
        return self._write(writer, self.take())

    def _write(self, writer: LineWriter, arrived: Iterator[Late]) -> list[Late]:
        written = []
        for late in arrived:
            writer.append(encode_line({"timestamp": late.stamp, "step": late.step, **self._also, **late.values}))
            written.append(late)
        return written

    def drain(self, writer: LineWriter, seconds: float) -> int:
        """Write what arrives within `seconds`. Returns how many values never arrived."""
        deadline = time.monotonic() + seconds
        while self._calls and time.monotonic() < deadline:
            with writer.lock:
                self.write(writer)
            if self._calls:
                time.sleep(0.005)
        with writer.lock:
            self._write(writer, self.give_up())
        return self.lost

    def clear(self) -> None:
        """Forget them: they belong to another process."""
        self._calls.clear()
