"""Live updates: one follower per run, for any number of viewers.

What is new in the run is read once, encoded once, and the same bytes go to every viewer as server-sent events:

    points  new values: "series", each with table, name, labels, rank, step, time, y, nonfinite; and "more", see below
    event   a line of the events table
    alert   a line of the alerts table
    state   status, cause, step; every two seconds, so that a viewer knows that it is not stale
    reset   what was sent before does not connect to what comes now: read everything again

A viewer that is too slow loses points, never the connection: it gets `reset`. A viewer that reconnects sends
the last id it received and gets what it missed, as long as that is remembered.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import numpy as np

from trainvitals.errors import MachineError, TrainvitalsError
from trainvitals.journal import layout
from trainvitals.journal.contracts import Reader
from trainvitals.journal.downsample import pick
from trainvitals.journal.encoding import TimeParser, number
from trainvitals.journal.layout import FileName
from trainvitals.journal.segment_writer import labels_of, split_labels
from trainvitals.views.data.shapes import IncrementJson, StateJson
from trainvitals.views.data.wire import encode, find_broken, mark_broken

POLL_SECONDS = 0.2
IDLE_SECONDS = 1.0
"""Between two polls of a run that has been idle for a while, and of one that has ended."""
STATE_SECONDS = 2.0
LINGER_SECONDS = 10.0
"""How long a run is followed after its last viewer has gone: a reload must not lose anything."""
QUEUE = 64
REMEMBERED = 256
REMEMBERED_BYTES = 4 << 20
POLL_BYTES = 4 << 20
MAX_POINTS = 100
"""Of one series in one message; of more, the extremes are sent."""
MAX_SERIES = 600
"""In one message, the training's first. The tables of which some were left out are in `more`: the page asks for what it
shows of those."""
MANY_SERIES = ("gpu", "openmetrics")
ORDER = {table: (table in MANY_SERIES, place) for place, table in enumerate(layout.METRIC_TABLES)}
NOT_VALUES = frozenset({"timestamp", "step"})


class Viewer:
    """One connection."""

    def __init__(self) -> None:
        self._queue: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._lost = False

    def put(self, message: bytes) -> None:
        if len(self._queue) >= QUEUE:
            self._queue.clear()
            self._lost = True
        self._queue.append(message)
        self._wake.set()

    async def messages(self) -> AsyncIterator[bytes]:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._lost:
                self._lost = False
                yield frame("reset", b'{"reason":"slow"}')
            waiting, self._queue = self._queue, deque()
            yield b"".join(waiting)


def frame(event: str, data: bytes, id: str = "") -> bytes:
    """One server-sent event. JSON has no line breaks, so one data line is enough."""
    head = f"id: {id}\n" if id else ""
    return f"{head}event: {event}\ndata: ".encode() + data + b"\n\n"


class ViewedRun:
    """One run and its viewers."""

    def __init__(self, reader: Reader, on_end: Callable[[], None]) -> None:
        self._reader = reader
        self._viewers: set[Viewer] = set()
        self._on_end = on_end
        self._epoch = secrets.token_hex(4)
        self._count = 0
        self._memory: deque[tuple[int, bytes]] = deque()
        self._memory_bytes = 0
        self._empty_since: float | None = None
        self._followed = asyncio.Event()
        self._task = asyncio.create_task(self._follow())

    async def view(self, last_id: str | None) -> AsyncIterator[bytes]:
        """Bytes for one connection, until it is closed."""
        viewer = Viewer()
        yield b"retry: 1000\n\n"
        # Who reads everything before the run is followed would never hear of what is logged between the two.
        await self._followed.wait()
        missed = self._missed(last_id)
        self._viewers.add(viewer)  # no await since the lookup: nothing is sent twice or lost between
        self._empty_since = None
        try:
            if missed is None:
                yield frame("reset", b'{"reason":"new"}', f"{self._epoch}-{self._count}")
            elif missed:
                yield missed
            async for message in viewer.messages():
                yield message
        finally:
            self._viewers.discard(viewer)
            if not self._viewers:
                self._empty_since = time.monotonic()

    def close(self) -> None:
        self._task.cancel()

    def _missed(self, last_id: str | None) -> bytes | None:
        """What was sent after `last_id`; None if that is no longer known."""
        epoch, _, text = (last_id or "").partition("-")
        if epoch != self._epoch or not text.isdecimal():
            return None
        last = int(text)
        if last > self._count or (self._memory and last + 1 < self._memory[0][0]):
            return None
        if not self._memory and last < self._count:
            return None
        return b"".join(message for count, message in self._memory if count > last)

    def _send(self, event: str, content: Mapping[str, Any]) -> None:
        self._count += 1
        message = frame(event, encode(content), f"{self._epoch}-{self._count}")
        self._memory.append((self._count, message))
        self._memory_bytes += len(message)
        while len(self._memory) > REMEMBERED or self._memory_bytes > REMEMBERED_BYTES:
            self._memory_bytes -= len(self._memory.popleft()[1])
        for viewer in self._viewers:
            viewer.put(message)

    async def _follow(self) -> None:
        try:
            await self._follow_run()
        finally:
            self._followed.set()
            self._on_end()

    async def _follow_run(self) -> None:
        tables = (*layout.METRIC_TABLES, *layout.LINE_TABLES)
        feed = await asyncio.to_thread(self._reader.follow, tables, from_end=True)
        self._followed.set()
        collector = Collector()
        next_state, quiet, before = 0.0, 0.0, None
        while True:
            now = time.monotonic()
            if self._empty_since is not None and now - self._empty_since > LINGER_SECONDS:
                return
            try:
                messages = await asyncio.to_thread(lambda: collector.collect(feed.poll(POLL_BYTES)))
            except (OSError, MachineError):
                messages = []  # the folder vanished meanwhile, or its machine does not answer; `state` reports it
            for event, content in messages:
                self._send(event, content)
            quiet = 0.0 if messages else quiet + POLL_SECONDS
            if now >= next_state:
                next_state = now + STATE_SECONDS
                state = await asyncio.to_thread(read_state, self._reader)
                if before is not None and state.get("attempt") != before:
                    self._send("reset", {"reason": "attempt"})
                before = state.get("attempt")
                # Not remembered: an old state is useless.
                message = frame("state", encode(state))
                for viewer in self._viewers:
                    viewer.put(message)
                quiet = quiet if state.get("live") else max(quiet, 10.0)
            await asyncio.sleep(IDLE_SECONDS if quiet >= 10.0 else POLL_SECONDS)


def read_state(reader: Reader) -> StateJson:
    """What a viewer should know every two seconds."""
    try:
        info = reader.info
        consoles = {file.name: file.size for file in reader.texts("console")}
    except MachineError as error:
        return {"status": "unreachable", "live": True, "cause": error.message, "now": time.time()}
    except (TrainvitalsError, OSError):
        return {"status": "gone", "live": False, "cause": "the run was removed", "now": time.time()}
    return {
        "status": info.status,
        "live": info.is_live,
        "cause": info.cause_text or None,
        "attempt": info.attempt,
        "ended": info.ended,
        "consoles": consoles,
        "now": time.time(),
    }


class Collector:
    """Rows of one poll as messages: columns instead of rows, extremes instead of thousands of points."""

    def __init__(self) -> None:
        self._parser = TimeParser()

    def collect(self, rows: list[tuple[FileName, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
        """(event, content) for each message."""
        series: dict[tuple[Any, ...], dict[str, Any]] = {}
        more: set[str] = set()
        messages: list[tuple[str, dict[str, Any]]] = []
        for name, row in sorted(rows, key=lambda item: ORDER.get(item[0].table, (False, 0))):
            if name.table in layout.LINE_TABLES:
                messages.append((name.table[:-1], row))
                continue
            micros = self._parser.parse(row["timestamp"])
            if micros is None:
                continue
            if self._add(series, name, row, micros / 1e6):
                more.add(name.table)
        if series:
            messages.append(("points", {"series": [_pack(item) for item in series.values()], "more": sorted(more)}))
        return messages

    def _add(
        self, series: dict[tuple[Any, ...], dict[str, Any]], name: FileName, row: dict[str, Any], at: float
    ) -> bool:
        label = split_labels(name.table, row)
        step = row.get("step")
        step = step if isinstance(step, int) and not isinstance(step, bool) else None
        left_out = False
        for key, value in row.items():
            if key in NOT_VALUES:
                continue
            found = number(value)
            if found is None:
                continue
            place = (*name.writer, key, label)
            item = series.get(place)
            if item is None:
                if len(series) >= MAX_SERIES:
                    left_out = True
                    continue
                item = series[place] = {
                    "table": name.table,
                    "name": key,
                    "labels": labels_of(name, label),
                    "rank": name.rank,
                    "step": [],
                    "time": [],
                    "y": [],
                }
            item["step"].append(step)
            item["time"].append(round(at, 3))
            item["y"].append(found)
        return left_out


def _pack(item: dict[str, Any]) -> IncrementJson:
    values = np.array(item["y"], dtype=np.float64)
    steps, times = item["step"], item["time"]
    if len(values) > MAX_POINTS:
        chosen = pick(values, MAX_POINTS)
        values = values[chosen]
        steps, times = [steps[at] for at in chosen], [times[at] for at in chosen]
    packed: IncrementJson = {
        "table": item["table"],
        "name": item["name"],
        "labels": item["labels"],
        "rank": item["rank"],
        "time": times,
        "y": values,
    }
    mark_broken(packed, find_broken(values))
    if any(step is not None for step in steps):
        packed["step"] = steps
    return packed


class Hub:
    """The channels of all runs that have viewers."""

    def __init__(self) -> None:
        self._channels: dict[str, ViewedRun] = {}

    def find(self, key: str) -> ViewedRun | None:
        """The channel of a run that already has viewers."""
        return self._channels.get(key)

    def begin(self, key: str, reader: Reader) -> ViewedRun:
        """A channel for a run without viewers so far. To be called in the event loop."""
        if key not in self._channels:  # else another viewer came while the reader was made
            self._channels[key] = ViewedRun(reader, lambda: self._forget(key))
        return self._channels[key]

    def _forget(self, key: str) -> None:
        self._channels.pop(key, None)

    async def close(self) -> None:
        for channel in list(self._channels.values()):
            channel.close()
            with contextlib.suppress(asyncio.CancelledError):
                await channel._task
