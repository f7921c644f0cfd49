"""The rows of a run, handed to a tracker, a database or another machine as they are written.

An exporter of rows may be slow, away or broken, and must never hold up the agent. So each has its own thread and a
bounded queue (`RowRunner`, a listener of the run). Returning from `write` acknowledges the rows, and status.json keeps
how far that is: an agent that was killed is followed by one that goes on from there. Rows for which it raised are given
again after a pause, so some may come twice; those that did not fit into the queue or were refused for good are counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import RowExport
from trainvitals.journal.identity import TRAINER
from trainvitals.journal.layout import METRIC_TABLES, FileName
from trainvitals.journal.listening import Batch, Position, Positions
from trainvitals.plugins import describe
from trainvitals.redaction import redact_text

QUEUE = 20_000
"""Rows that wait at most; more are dropped and counted."""
BATCH = 1000
MOST_MARKS = 1000
"""Positions remembered until the rows before them are dealt with; more are merged with the newest."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds after a failure, twice as long after each further one."""
END_PATIENCE = 10.0
"""Seconds for what is left when the run has ended."""
LEAVE_PATIENCE = 2.5
"""And when the agent ends while the run goes on; `trainvitals agent stop` waits for 5."""


@dataclass(frozen=True, slots=True)
class RunDescription:
    """A run whose rows are about to come."""

    run_id: str
    folder: Path
    host: str
    attempt: int
    about: RunFile
    """The content of run.json: project, name, config, tags, ..."""


class RunRow(NamedTuple):
    """One line of the run folder."""

    table: str
    """`training`, `gpu`, `system`, `process`, `openmetrics`, `source`"""
    rank: int | None
    """Of whoever logged it; None for what the agent measured."""
    values: Mapping[str, Any]
    """As in the file: `timestamp`, labels, `step`, values. Text for what is not finite: "NaN", "Infinity". Shared with
    others, so not to be changed."""
    role: str = TRAINER
    """Of whoever logged it."""


class RunEnd(NamedTuple):
    """How a run ended."""

    status: str
    """finished, failed, crashed, killed, ..."""
    cause: Cause | None = None


class RowsRefused(Exception):
    """These rows will never be taken: they are counted as refused, and the next ones are tried."""


class RowExporter(Protocol):
    """One exporter for one run. Every method is called from one thread, and whatever it raises is tried again."""

    def open(self, run: RunDescription) -> None:
        """Before the first row. After an agent has ended, the next one opens the same run again."""

    def write(self, rows: Sequence[RunRow]) -> None:
        """Take these rows, in order. Returning acknowledges them."""

    def close(self, end: RunEnd | None) -> None:
        """After the last row. None: the agent ends, the run goes on."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a runner keeps and how long it tries."""

    queue: int = QUEUE
    first_pause: float = FIRST_PAUSE
    patience: float | None = None
    """Seconds at the end, in place of the constants above."""


class RowRunner:
    """One exporter of one run, on its own thread. A listener: all but the exporter is called from the run's thread."""

    def __init__(
        self,
        name: str,
        create: Callable[[], RowExporter],
        run: RunDescription,
        known: RowExport | None = None,
        *,
        warn: Callable[[str], None] = lambda text: None,
        limits: Limits | None = None,
    ) -> None:
        """Go on from what an earlier agent left in status.json."""
        known = known or RowExport()
        self.name = name
        self.positions = Positions.parse(known.positions)
        self.acknowledged = self.positions.copy()
        self._settled = self.positions.copy()
        self._marks: deque[tuple[int, dict[FileName, Position]]] = deque()
        """How far files are with the row of that number."""
        self._written, self._refused, self._dropped = known.written, known.refused, known.dropped
        self._failures = known.failures
        self._create = create
        self._run = run
        self._warn = warn
        self._trouble = ""
        self._limits = limits or Limits()
        self._queue: deque[tuple[int, RunRow]] = deque()
        self._offered = 0
        self._closed = False
        self._news = threading.Event()
        self._end: RunEnd | None = None
        self._ending = threading.Event()
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._work, name=f"exporter {name}", daemon=True)
        self._thread.start()

    # -- from the agent

    def wants(self, file: FileName) -> bool:
        return file.table in METRIC_TABLES

    def see(self, batch: Batch) -> None:
        table = batch.file.table
        rank = batch.file.participant.rank if table == "training" else None
        for values in batch.rows:
            self._offer(RunRow(table, rank, values, batch.file.role))
        self.positions.advance(batch.file, batch.end)
        files = {batch.file: batch.end}
        if len(self._marks) >= MOST_MARKS:
            files = {**self._marks.pop()[1], **files}
        self._marks.append((self._offered, files))

    def _offer(self, row: RunRow) -> None:
        self._offered += 1
        if len(self._queue) < self._limits.queue:
            self._queue.append((self._offered, row))
            if not self._news.is_set():
                self._news.set()
        else:
            self._dropped += 1

    def describe(self) -> RowExport:
        """For status.json."""
        try:
            dealt_with = self._queue[0][0] - 1
        except IndexError:
            dealt_with = self._offered
        while self._marks and self._marks[0][0] <= dealt_with:
            for file, position in self._marks.popleft()[1].items():
                self._settled.advance(file, position)
        return RowExport(
            written=self._written,
            refused=self._refused,
            dropped=self._dropped,
            failures=self._failures,
            positions=self._settled.as_json(),
        )

    def mark_saved(self) -> None:
        """What `describe` gave last is on disk."""
        self.acknowledged = self._settled.copy()

    def end(self, end: RunEnd | None) -> None:
        """No more rows will come: write what is left and close, with a bounded patience. Returns at once."""
        if not self._ending.is_set():
            self._end = end
            usual = LEAVE_PATIENCE if end is None else END_PATIENCE
            self._deadline = time.monotonic() + (usual if self._limits.patience is None else self._limits.patience)
            self._ending.set()
            self._news.set()

    def wait(self) -> bool:
        """Until it has closed, or its patience has ended; whether it has closed. To be called after `end`."""
        self._thread.join(max(self._deadline - time.monotonic(), 0.0))
        return self._closed

    # -- the thread

    def _work(self) -> None:
        made: list[RowExporter] = []

        def begin() -> None:
            if not made:
                made.append(self._create())
            made[0].open(self._run)

        if self._insist(begin) != "done":
            return
        exporter = made[0]
        while self._queue or not self._ending.is_set():
            # By index: the agent goes on adding while this thread looks.
            batch = [self._queue[place][1] for place in range(min(len(self._queue), BATCH))]
            if not batch:
                self._news.wait()
                self._news.clear()
                continue
            outcome = self._insist(partial(exporter.write, batch))
            if outcome == "given up":
                return
            if outcome == "refused":
                self._refused += len(batch)
            else:
                self._written += len(batch)
            for _ in batch:  # counted first: who sees them gone finds them among the counts
                self._queue.popleft()
        self._closed = self._insist(partial(exporter.close, self._end)) == "done"

    def _insist(self, call: Callable[[], None]) -> Literal["done", "refused", "given up"]:
        """Call until it is done, with growing pauses, for as long as there is time."""
        pause = self._limits.first_pause
        while True:
            try:
                call()
            except RowsRefused as error:
                self._report(f"rejected rows: {error}")
                return "refused"
            except Exception as error:  # noqa: BLE001 - the boundary around an exporter, which may be another package's
                self._failures += 1
                self._report(f"failed, retrying: {describe(error)}")
            else:
                self._trouble = ""
                return "done"
            if not self._pause(pause):
                return "given up"
            pause = min(pause * 2, LONGEST_PAUSE)

    def _pause(self, seconds: float) -> bool:
        """Wait before another try, or until the end comes; False if there is no time for another try."""
        if not self._ending.is_set():
            self._ending.wait(seconds)
            return True
        left = self._deadline - time.monotonic()
        time.sleep(max(min(seconds, left), 0.0))
        return left > seconds

    def _report(self, what: str) -> None:
        if what != self._trouble:  # once, not with every try
            self._trouble = what
            self._warn(redact_text(f"exporter {self.name} {what}"))
