"""Does an engine keep what it acknowledges? `trainvitals gateway check` asks that of a site's own cluster.

Made-up runs are written in many pieces, some of them twice, as gateways that are killed do; meanwhile a command of the
site may take a replica away. Then every value is read back and compared. There are so many runs because each of them is
on one shard, and every shard has to be seen. The project is one of its own, and is removed afterwards. Tested in
tests/fleet/test_checking.py.
"""

from __future__ import annotations

import contextlib
import functools
import random
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from trainvitals.errors import RunNotFound
from trainvitals.fleet.clickhouse import ClickHouse, EngineAway, EngineError, literal
from trainvitals.fleet.intake import End, RowBlocks, take
from trainvitals.fleet.removal import delete_rows
from trainvitals.fleet.schema import TABLES
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.fleet.wire import FileRange
from trainvitals.journal.encoding import encode_line, format_time

RUNS = 16
"""That all of them miss one of two shards has a chance of one in 30,000; one of four, of one in 25."""
ROWS = 1250
"""Of each run."""
PIECES = 3
AWAY_SECONDS = 300.0
"""How long an engine may be away in between."""
_START = 1_700_000_000.0
_VALUES = (0.1 + 0.2, -0.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"))


@dataclass(frozen=True, slots=True)
class ClusterCheck:
    """What was found."""

    rows: int
    seconds: float
    sent_twice: int
    waited: float
    """Seconds during which the engine was away."""
    wrong: tuple[str, ...]
    """What was read back otherwise than it was written."""
    settled: float = 0.0
    """Seconds until everything could be read: a replica that was killed may have had rows that no other had yet."""
    left: str = ""
    """The project, if it could not be removed: a replica that is away does not answer."""


def check_engine(engine: ClickHouse, *, cluster: str = "", disturb: Callable[[], None] | None = None) -> ClusterCheck:
    """Write, `disturb` half-way, read back and compare. Raises EngineError."""
    project = f"trainvitals-check-{secrets.token_hex(4)}"
    store = Store(engine)
    try:
        found = _check(store, project, disturb)
    except BaseException:
        with contextlib.suppress(EngineError):
            remove_project(engine, project, cluster=cluster)
        raise
    try:
        remove_project(engine, project, cluster=cluster)
    except EngineError:
        return replace(found, left=project)
    return found


class _MadeRun:
    """One run, and how far it is written."""

    def __init__(self, project: str, number: int) -> None:
        self.project = project
        self.name = f"20231114-2213{number:02d}-check-aaaa"
        chance = random.Random(number)
        self.values = [*_VALUES, *(chance.gauss(1, 1e-3) for _ in range(ROWS - len(_VALUES)))]
        self._known: dict[str, End] = {}

    def make_frames(self) -> Iterator[FileRange]:
        """What is to be written, in order."""
        about = {"format": 1, "id": self.name, "project": self.project, "status": "finished"}
        yield FileRange("run.json", "document", encode_line({**about, "created": format_time(_START)}))
        offset, size = 0, -(-ROWS // PIECES)
        for first in range(0, ROWS, size):
            lines = b"".join(
                encode_line({"timestamp": format_time(_START + step), "step": step, "loss": self.values[step]})
                for step in range(first, min(first + size, ROWS))
            )
            yield FileRange("training_metrics_20231114_221320.rank0.jsonl", "lines", lines, offset)
            offset += len(lines)

    def take(self, frame: FileRange) -> RowBlocks:
        """Its rows."""
        taken = take([frame], self._known, self.project, self.name, 20231114)
        self._known.update(taken.ends)
        return taken.intake

    def compare(self, runs: StoreRuns) -> str | None:
        """What was read back otherwise than it was written."""
        try:
            if runs.describe(self.name).status != "finished":
                return "its description is missing"
            found = runs.open(self.name).series(["loss"])
        except RunNotFound:
            return "it is missing"
        if not found:
            return "its values are missing"
        series, expected = found[0], np.array(self.values)
        if not np.array_equal(series.y, expected, equal_nan=True) or np.signbit(series.y[1]) != np.signbit(expected[1]):
            return f"{series.total:,} values came back of {ROWS:,}, or others than were written"
        return None if np.array_equal(series.x, np.arange(ROWS)) else "the steps are not those that were written"


def _check(store: Store, project: str, disturb: Callable[[], None] | None) -> ClusterCheck:
    started = time.monotonic()
    waited = 0.0
    repeated = 0
    runs = [_MadeRun(project, number) for number in range(RUNS)]
    # A piece of each run in turn, so that all of them are half written when it is disturbed.
    turns = zip(*(run.make_frames() for run in runs), strict=True)
    pieces = [(run, frame) for turn in turns for run, frame in zip(runs, turn, strict=True)]
    for number, (run, frame) in enumerate(pieces):
        if number == len(pieces) // 2 and disturb is not None:
            disturb()
        write = functools.partial(store.write, run.take(frame).blocks)
        waited += _insist(write)
        if number % 7 == 0:  # as after a gateway that was killed before it answered
            waited += _insist(write)
            repeated += 1
    seconds = time.monotonic() - started
    wrong, settled = _compare(store, runs), 0.0
    while wrong and disturb is not None and settled < AWAY_SECONDS:
        time.sleep(1.0)
        settled = time.monotonic() - started - seconds
        wrong = _compare(store, runs)
    return ClusterCheck(RUNS * ROWS, seconds, repeated, waited, tuple(wrong), settled)


def _compare(store: Store, runs: list[_MadeRun]) -> list[str]:
    stored = StoreRuns(store, frozenset({runs[0].project}))
    return [f"{run.name}: {wrong}" for run in runs if (wrong := run.compare(stored)) is not None]


def _insist(call: Callable[[], None]) -> float:
    """Until it is done; how long the engine was away."""
    began = time.monotonic()
    failed = False
    while True:
        try:
            call()
        except EngineAway:
            failed = True
            if time.monotonic() - began > AWAY_SECONDS:
                raise
            time.sleep(1.0)
        else:
            return time.monotonic() - began if failed else 0.0


def remove_project(engine: ClickHouse, project: str, *, cluster: str = "") -> None:
    """All rows of a project."""
    delete_rows(engine, dict.fromkeys(TABLES, f"project = {literal(project)}"), cluster=cluster)
