"""Runs that are removed from a store: by somebody, or because nothing of them came for so long (`--keep-days`).

Who removes a run first leaves a mark, removed.json, which stays: from then on no viewer shows the run, and gateways
refuse more of it for good, so that an agent which still ships it stops and brings nothing back. Then the rows go; the
engine takes its time for that. A gateway may be taking some at that very moment, so each of them looks for new marks
every few seconds, and removes once more what it had in memory.

What is too old is removed without a mark: should its folder be shipped again, it is there again.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import orjson

from trainvitals.errors import RunNotFound, TrainvitalsError
from trainvitals.fleet.audit import Audit
from trainvitals.fleet.clickhouse import ClickHouse, EngineError, literal
from trainvitals.fleet.intake import RowBlocks
from trainvitals.fleet.schema import TABLES, TableChange
from trainvitals.fleet.store import Store, rows_of, text
from trainvitals.fleet.store_documents import RunKey, StoredDocuments
from trainvitals.fleet.wire import MOVED, WireError, digest_of
from trainvitals.journal import layout
from trainvitals.journal.encoding import format_time
from trainvitals.plain_json import parse_object
from trainvitals.stderr import print_line

LOOK_SECONDS = 10.0
"""Between two looks of a gateway at the marks. What it still took of a run meanwhile is hidden, and goes then."""
SWEEP_SECONDS = 3600.0
"""Between two looks for what is too old."""
ALIVE_SECONDS = 900.0
"""A run that has not ended may be removed if nothing came of it for so long: an agent may be asked to wait for less."""
AT_ONCE = 500
"""Runs whose rows go with one statement."""

_KEPT = ("usage",)
"""What a project has shipped today stays counted."""
_LAST = ("ends", "documents")
"""Whoever is killed on the way leaves what is found, and removed, by the next one."""


class RunRemoved(TrainvitalsError):
    """It was removed from the store, and is not taken again."""


class NotRemoved(WireError):
    """It is not there, or goes on."""


def remove_runs(store: Store, keys: Collection[RunKey], by: str) -> None:
    """Hide these runs and what is left of them in projects they have moved from, then remove their rows. Raises
    NotRemoved before anything is done, and EngineError; the same again does the rest."""
    _check(store, keys)
    both = [*keys, *_find_moved(store, [run for _, run in keys])]
    now = time.time()
    mark = orjson.dumps({"removed": format_time(now), "by": by}, option=orjson.OPT_APPEND_NEWLINE)
    marks = RowBlocks()
    marks.add(
        "documents",
        {
            "project": [project for project, _ in both],
            "run": [run for _, run in both],
            "path": [layout.REMOVED_FILE] * len(both),
            "version": np.full(len(both), int(now * 1e6), dtype=np.uint64),
            "digest": [digest_of(mark)] * len(both),
            "modified": np.full(len(both), now),
            "data": [mark] * len(both),
        },
    )
    store.write(marks.blocks)
    delete_runs(store.engine, both)


def _check(store: Store, keys: Collection[RunKey]) -> None:
    documents = StoredDocuments(store, frozenset(project for project, _ in keys))
    arrived = {
        (text(row["project"]), text(row["run"])): int(row["newest"]) / 1e6
        for row in rows_of(
            store.engine.select(
                f"SELECT project, run, max(version) AS newest FROM documents WHERE {_these(keys)} GROUP BY project, run"
            )
        )
    }
    for key in keys:
        project, run = key
        try:
            info = documents.find(key).info
        except RunNotFound:
            raise NotRemoved(f"there is no run {run!r} in project {project!r}") from None
        # One whose machine died never says that it has ended.
        if info.is_live and time.time() - arrived[key] < ALIVE_SECONDS:
            raise NotRemoved(f"run {run!r} has not ended, nothing was removed", hint="wait for it to end, or stop it")


def delete_runs(engine: ClickHouse, keys: Sequence[RunKey]) -> None:
    """The rows of these runs, but for the marks."""
    cluster = find_cluster(engine)
    for first in range(0, len(keys), AT_ONCE):
        which = _these(keys[first : first + AT_ONCE])
        marks = f"path = {literal(layout.REMOVED_FILE)}"
        delete_rows(engine, {
            name: which if name != "documents" else f"{which} AND NOT ({marks})"
            for name in sorted(TABLES.keys() - set(_KEPT), key=lambda name: _LAST.index(name) if name in _LAST else -1)
        }, cluster=cluster)  # fmt: skip


def delete_rows(engine: ClickHouse, conditions: Mapping[str, str], *, cluster: str = "") -> None:
    """By table. The engine has noted it when this returns, and does it in its own time."""
    for table, condition in conditions.items():
        removal = TableChange(table, f"DELETE WHERE {condition}", of_columns=False)
        for statement in removal.make_statements(engine.address.database, cluster):
            engine.execute(statement)


def find_cluster(engine: ClickHouse) -> str:
    """Of these tables; empty if they are on one server."""
    database = engine.address.database
    found = engine.select(
        f"SELECT engine_full FROM system.tables WHERE database = {literal(database)} AND name = 'documents' "
        "AND engine = 'Distributed'"
    )
    for row in rows_of(found):
        if (parsed := re.match(r"Distributed\(\W*(\w[^',\\]*)", text(row["engine_full"]))) is not None:
            return parsed[1]
    return ""


def find_marks(store: Store) -> dict[RunKey, tuple[int, str]]:
    """Of every run that was removed: when, in microseconds, and by whom."""
    found = store.engine.select(
        "SELECT project, run, max(version) AS newest, argMax(data, version) AS mark FROM documents "
        f"WHERE path = {literal(layout.REMOVED_FILE)} GROUP BY project, run"
    )
    return {
        (text(row["project"]), text(row["run"])): (int(row["newest"]), str(_parse(row["mark"]).get("by", "")))
        for row in rows_of(found)
    }


def find_outdated(store: Store, days: int, now: float) -> list[RunKey]:
    """Runs of which nothing was received for so many days."""
    since = datetime.fromtimestamp(now, UTC) - timedelta(days=days)
    # The version of a document is when it came.
    found = store.engine.select(
        f"SELECT project, run FROM documents WHERE path != {literal(layout.REMOVED_FILE)} "
        f"GROUP BY project, run HAVING max(version) < {round(since.timestamp() * 1e6)}"
    )
    silent = [(text(row["project"]), text(row["run"])) for row in rows_of(found)]
    outdated = []
    for first in range(0, len(silent), AT_ONCE):
        some = silent[first : first + AT_ONCE]
        fresh = {
            (text(row["project"]), text(row["run"]))
            for name in ("points", "words", "lines", "pieces")
            for row in rows_of(
                store.engine.select(
                    f"SELECT DISTINCT project, run FROM {name} WHERE {_these(some)} AND received >= {since:%Y%m%d}"
                )
            )
        }
        outdated += [key for key in some if key not in fresh]
    return outdated


def _find_moved(store: Store, runs: Collection[str]) -> list[RunKey]:
    listed = ", ".join(map(literal, runs)) or "''"
    found = store.engine.select(
        f"SELECT project, run FROM documents WHERE path = {literal(layout.MOVED_FILE)} AND run IN ({listed}) "
        f"GROUP BY project, run HAVING argMax(digest, version) = {literal(digest_of(MOVED))}"
    )
    return [(text(row["project"]), text(row["run"])) for row in rows_of(found)]


def _these(keys: Collection[RunKey]) -> str:
    return f"(project, run) IN ({', '.join(f'({literal(project)}, {literal(run)})' for project, run in keys)})"


def _parse(mark: bytes) -> Mapping[str, object]:
    try:
        return parse_object(mark)
    except ValueError:
        return {}


class RemovalWatch:
    """What a gateway does about runs that are removed while it takes them, and about those that are too old."""

    def __init__(
        self, store: Store, forget: Callable[[RunKey], bool], audit: Audit | None = None, *, days: int = 0
    ) -> None:
        """`forget` drops what is known of a run from memory, and says whether there was anything. With `days`, runs of
        which nothing came for so long are removed."""
        self._store = store
        self._forget = forget
        self._audit = audit
        self._days = days
        self._marks: dict[RunKey, tuple[int, str]] | None = None
        self._again: list[RunKey] = []
        """Of which rows may have been taken after they were removed: when the requests of that moment are over."""
        self._noted: set[RunKey] = set()
        """Removed by this gateway, whose log has it."""
        self._swept = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """In the loop of the requests."""
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def expect(self, key: RunKey) -> None:
        """This gateway removes the run, and its log will say so."""
        self._noted.add(key)

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except EngineError:
                pass  # the next look finds the same
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Once. Raises EngineError."""
        marks = await asyncio.to_thread(find_marks, self._store)
        known, self._marks = self._marks, marks
        again, self._again = self._again, []
        for key, mark in marks.items():
            if known is not None and known.get(key) != mark:
                if self._forget(key) or key in self._noted:
                    self._again.append(key)
                if key not in self._noted:
                    self._note(key, by=mark[1])
                self._noted.discard(key)
        if again:
            await asyncio.to_thread(delete_runs, self._store.engine, again)
        if self._days and time.monotonic() - self._swept >= SWEEP_SECONDS:
            await self._sweep()
            self._swept = time.monotonic()

    async def _sweep(self) -> None:
        outdated = await asyncio.to_thread(find_outdated, self._store, self._days, time.time())
        if not outdated:
            return
        await asyncio.to_thread(delete_runs, self._store.engine, outdated)
        for key in outdated:
            self._forget(key)
            self._note(key, by="--keep-days")
        print_line(f"removed {len(outdated):,} runs without data for {self._days} days")

    def _note(self, key: RunKey, by: str) -> None:
        if self._audit is not None:
            self._audit.note("removed", who=by, project=key[0], run=key[1])
