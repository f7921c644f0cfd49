"""The rows of a run, handed to a tracker, a database or another machine as they are written.

An exporter of rows may be slow, away or broken, and must never hold up the agent. So each has its own thread and a
short queue (`RowRunner`, a listener of the run). While the queue is full, rows wait in the run's files, and the relay
reads them from there once there is room: nothing is dropped, however long a tracker is away. Returning from `write`
acknowledges the rows, and status.json keeps how far that is: whoever continues, the next agent or `trainvitals export
--to`, begins there. Rows for which it raised are given again after a pause, so some may come twice; those that were
refused for good are counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from trainvitals.http_client import LONGEST_ASKED_PAUSE
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import RowExport
from trainvitals.journal.follower import Relay
from trainvitals.journal.identity import TRAINER
from trainvitals.journal.layout import METRIC_TABLES, FileName
from trainvitals.journal.listening import Batch, Position, Positions
from trainvitals.plugins import describe
from trainvitals.redaction import redact_text

QUEUE = 2_000
"""Rows in the queue from which on more wait in the files."""
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
    """The content of run.json when it was opened: project, name, config, tags, ..."""
    environment: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Of the training, as far as it is known: where its user keeps tokens and addresses of trackers."""

    def read_about(self) -> RunFile:
        """run.json as it is now: a program under `trainvitals run` gives its config when it begins to train."""
        return run_folder.find_run(self.folder) or self.about


class RunRow(NamedTuple):
    """One line of the run folder."""

    table: str
    """`training`, `gpu`, `system`, `process`, `openmetrics`, `source`; `events`, `alerts` where asked for"""
    rank: int | None
    """Of whoever logged it; None for what the agent measured."""
    values: Mapping[str, Any]
    """As in the file: `timestamp`, labels, `step`, values. Text for what is not finite: "NaN", "Infinity". Shared with
    others, so not to be changed."""
    role: str = TRAINER
    """Of whoever logged it."""
    file: str = ""
    """Its file, without the suffix, and its number there from 1: together they identify the row, sealed or not."""
    line: int = 0


class RunEnd(NamedTuple):
    """How a run ended."""

    status: str
    """finished, failed, crashed, killed, ..."""
    cause: Cause | None = None

    @classmethod
    def of(cls, run: RunFile) -> RunEnd:
        """Of a run that is over."""
        return cls(run.status, run.cause)


class RowsRefused(Exception):
    """These rows will never be taken: they are counted as refused, and the next ones are tried."""


class TryLater(Exception):
    """The other side asks for a pause of so many seconds."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = min(seconds, LONGEST_ASKED_PAUSE)


class RowExporter(Protocol):
    """One exporter for one run. Every method is called from one thread, and whatever it raises is tried again."""

    def open(self, run: RunDescription) -> None:
        """Before the first row. After an agent has ended, the next one opens the same run again."""

    def write(self, rows: Sequence[RunRow]) -> None:
        """Take these rows, in order. Returning acknowledges them."""

    def close(self, end: RunEnd | None) -> None:
        """After the last row. None: more rows will come, after it was opened again: the agent ends, or takes a run that
        has ended up again."""


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
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
        target: str = "",
        tables: tuple[str, ...] = METRIC_TABLES,
        warn: Callable[[str], None] = lambda text: None,
        limits: DeliveryLimits | None = None,
    ) -> None:
        """Go on from what an earlier one left in status.json, if that went to the same target."""
        known = known if known is not None and known.target in ("", target) else RowExport()
        self.name = name
        self.positions = Positions.parse(known.positions)
        self.acknowledged = self.positions.copy()
        self._settled = self.positions.copy()
        self._marks: deque[tuple[int, dict[FileName, Position]]] = deque()
        """How far files are with the row of that number."""
        self._written, self._refused, self._failures = known.written, known.refused, known.failures
        self._create = create
        self._run = run
        self._target = target
        self._tables = tables
        self._warn = warn
        self._trouble = ""
        self._link: str | None = known.link
        self._limits = limits or DeliveryLimits()
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
        return file.table in self._tables

    def has_room(self) -> bool:
        """Whether it takes more rows now; if not, they wait in the files."""
        return len(self._queue) < self._limits.queue

    def has_all(self, relay: Relay) -> bool:
        """Whether all rows that the relay had for it at its last poll are dealt with."""
        return not self._queue and not relay.holds_back(self)

    def see(self, batch: Batch) -> None:
        file, lines = batch.file, batch.end.lines
        rank = file.participant.rank if file.table == "training" else None
        first = lines - len(batch.rows) + 1 if lines is not None else 0
        for place, values in enumerate(batch.rows):
            line = first + place if lines is not None else 0
            self._offered += 1
            self._queue.append((self._offered, RunRow(file.table, rank, values, file.role, file.stem, line)))
        if batch.rows and not self._news.is_set():
            self._news.set()
        self.positions.advance(batch.file, batch.end)
        files = {batch.file: batch.end}
        if len(self._marks) >= MOST_MARKS:
            files = {**self._marks.pop()[1], **files}
        self._marks.append((self._offered, files))

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
            target=self._target,
            link=self._link,
            written=self._written,
            refused=self._refused,
            waiting=len(self._queue),
            failures=self._failures,
            trouble=self._trouble or None,
            complete=self._closed and self._end is not None,
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
            # By index: the agent keeps adding while this thread looks.
            batch = [self._queue[place][1] for place in range(min(len(self._queue), BATCH))]
            if not batch:
                self._news.wait()
                self._news.clear()
                continue
            outcome = self._insist(partial(exporter.write, batch))
            if outcome == "given up":
                break
            if outcome == "refused":
                self._refused += len(batch)
            else:
                self._written += len(batch)
            self._link = getattr(exporter, "link", None)
            for _ in batch:  # counted first: who sees them gone finds them among the counts
                self._queue.popleft()
        if self._queue:  # given up: let go of what it holds, so that another one can continue
            self._try_to(partial(exporter.close, None))
        else:
            self._closed = self._insist(partial(exporter.close, self._end)) == "done"
            self._link = getattr(exporter, "link", None)

    def _insist(self, call: Callable[[], None]) -> Literal["done", "refused", "given up"]:
        """Call until it is done, with growing pauses, for as long as there is time."""
        pause = self._limits.first_pause
        while True:
            asked = 0.0
            try:
                call()
            except RowsRefused as error:
                self._report(f"rejected rows: {error}")
                return "refused"
            except Exception as error:  # noqa: BLE001 - the boundary around an exporter, which may be another package's
                self._failures += 1
                asked = error.seconds if isinstance(error, TryLater) else 0.0
                self._report(f"failed, retrying: {describe(error)}")
            else:
                self._trouble = ""
                return "done"
            if not self._pause(max(pause, asked)):
                return "given up"
            pause = min(pause * 2, LONGEST_PAUSE)

    def _try_to(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the same boundary
            self._report(f"failed: {describe(error)}")

    def _pause(self, seconds: float) -> bool:
        """Wait before another try, or until the end comes; False if there is no time for another try."""
        if not self._ending.is_set():
            self._ending.wait(seconds)
            return True
        left = self._deadline - time.monotonic()
        time.sleep(max(min(seconds, left), 0.0))
        return left > seconds

    def _report(self, what: str) -> None:
        text = redact_text(what)
        if text != self._trouble:  # once, not with every try
            self._trouble = text
            self._warn(f"exporter {self.name} {text}")
