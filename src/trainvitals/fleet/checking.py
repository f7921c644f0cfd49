"""Does an engine keep what it acknowledges? `trainvitals gateway check` asks that of a site's own cluster.

A made-up run is written in many pieces, some of them twice, as gateways that are killed do; meanwhile a command of the
site may take a replica away. Then every value is read back and compared. The project is one of its own, and is removed
afterwards. Tested in tests/fleet/test_checking.py.
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

from trainvitals.fleet.clickhouse import ClickHouse, EngineAway, EngineError, literal
from trainvitals.fleet.intake import End, take
from trainvitals.fleet.schema import TABLES
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.fleet.wire import FileRange
from trainvitals.journal.encoding import encode_line, format_time

ROWS = 20_000
PIECES = 40
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


def _check(store: Store, project: str, disturb: Callable[[], None] | None) -> ClusterCheck:
    started = time.monotonic()
    waited = 0.0
    repeated = 0
    chance = random.Random(1)
    values = [*_VALUES, *(chance.gauss(1, 1e-3) for _ in range(ROWS - len(_VALUES)))]
    run = "20231114-221320-check-aaaa"
    document = {"format": 1, "id": run, "project": project, "status": "finished", "created": format_time(_START)}
    frames = [FileRange("run.json", "document", encode_line(document)), *_frames(values)]
    known: dict[str, End] = {}
    for number, frame in enumerate(frames):
        if number == len(frames) // 2 and disturb is not None:
            disturb()
        taken = take([frame], known, project, run, 20231114)
        known.update(taken.ends)
        write = functools.partial(store.write, taken.intake.blocks)
        waited += _insist(write)
        if number % 5 == 0:  # as after a gateway that was killed before it answered
            waited += _insist(write)
            repeated += 1
    seconds = time.monotonic() - started
    wrong, settled = _compare(store, project, run, values), 0.0
    while wrong and disturb is not None and settled < AWAY_SECONDS:
        time.sleep(1.0)
        settled = time.monotonic() - started - seconds
        wrong = _compare(store, project, run, values)
    return ClusterCheck(ROWS, seconds, repeated, waited, tuple(wrong), settled)


def _compare(store: Store, project: str, run: str, values: list[float]) -> list[str]:
    wrong = []
    (series,) = StoreRuns(store, frozenset({project})).open(run).series(["loss"])
    expected = np.array(values)
    if not np.array_equal(series.y, expected, equal_nan=True) or np.signbit(series.y[1]) != np.signbit(expected[1]):
        wrong.append(f"loss: {series.total:,} values came back of {ROWS:,}, or others than were written")
    if not np.array_equal(series.x, np.arange(ROWS)):
        wrong.append("the steps are not those that were written")
    return wrong


def _frames(values: list[float]) -> Iterator[FileRange]:
    offset, size = 0, -(-len(values) // PIECES)
    for first in range(0, len(values), size):
        lines = b"".join(
            encode_line({"timestamp": format_time(_START + step), "step": step, "loss": values[step]})
            for step in range(first, min(first + size, len(values)))
        )
        yield FileRange("training_metrics_20231114_221320.rank0.jsonl", "lines", lines, offset)
        offset += len(lines)


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
    on = f" ON CLUSTER {literal(cluster)}" if cluster else ""
    for table in TABLES:
        name = f"{table}_local" if cluster else table
        engine.execute(f"ALTER TABLE {name}{on} DELETE WHERE project = {literal(project)}")
