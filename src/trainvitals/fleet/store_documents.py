"""What a list of runs needs of the store: a few questions for all runs together say which changed, and what these have
become is read many at a time. Tested in tests/fleet/test_store_runs.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import orjson

from trainvitals.errors import RunNotFound
from trainvitals.fleet.clickhouse import literal
from trainvitals.fleet.store import Store, text
from trainvitals.fleet.wire import MOVED, digest_of
from trainvitals.journal import layout
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.run import UNREADABLE, RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.folder import find_state
from trainvitals.journal.run_info import RunInfo, make_info
from trainvitals.plain_json import parse_object

FRESH_SECONDS = 1.0
AT_ONCE = 500
"""Runs whose documents are asked for with one question."""

RunKey = tuple[str, str]
"""Project and run."""
_HIDING = (layout.MOVED_FILE, layout.REMOVED_FILE)
_LINES = "of lines"
"""Stands for the files of alerts and training among the paths of a run."""


@dataclass(slots=True)
class RunMark:
    """What tells whether a run changed."""

    paths: dict[str, int] = field(default_factory=dict)
    """A number for what each document is now, and one for all files of alerts and training."""
    has_alerts: bool = False
    has_values: bool = False


@dataclass
class StoredRun:
    """The documents and alerts of one run, of one moment."""

    place: str
    project: str
    run: str
    mark: RunMark
    documents: dict[str, bytes] = field(default_factory=dict)
    alert_lines: list[bytes] = field(default_factory=list)

    @cached_property
    def statuses(self) -> list[Status]:
        """What the agent of each host reported last."""
        names = sorted(path for path in self.documents if path.startswith("status") and "/" not in path)
        parsed = (_load(self.documents[name]) for name in names)
        return [Status.parse(found) for found in parsed if found is not None]

    @cached_property
    def findings(self) -> FindingsFile | None:
        """What the diagnosis after its end found, if it was kept."""
        found = _load(self.documents.get(layout.FINDINGS_FILE, b""))
        return FindingsFile.parse(found) if found is not None else None

    @cached_property
    def info(self) -> RunInfo:
        """The run at a glance."""
        found = _load(self.documents.get(layout.RUN_FILE, b""))
        if found is None:
            why = Cause(detail=f"{layout.RUN_FILE} has not arrived yet")
            return make_info(self.place, None, self.run, self.project, RunFile(), UNREADABLE, why)
        run = RunFile.parse(found)
        status, cause = find_state(run, lambda: self.statuses, may_be_here=False)
        return make_info(self.place, None, self.run, self.project, run, status, cause)

    @property
    def alerts(self) -> list[AlertRow]:
        """Every line of its alerts, in order of time."""
        rows = sorted((orjson.loads(line) for line in self.alert_lines), key=lambda row: str(row["timestamp"]))
        return [AlertRow.parse(row) for row in rows]


class StoredDocuments:
    """Those of all runs, or of those of some projects."""

    def __init__(self, store: Store, projects: frozenset[str] | None = None) -> None:
        self._store = store
        self.allowed = "1 = 1"
        """SQL for the projects that may be asked about."""
        if projects is not None:
            listed = ", ".join(map(literal, sorted(projects))) or "''"
            self.allowed = f"project IN ({listed})"
        fixed = ", ".join(map(literal, (layout.RUN_FILE, layout.FINDINGS_FILE, *_HIDING)))
        self._shown = f"(path IN ({fixed}) OR path LIKE 'status%') AND {self.allowed}"
        self._marks: dict[RunKey, RunMark] = {}
        self._read: dict[RunKey, StoredRun] = {}
        self._at_once = 1
        self._until = 0.0
        self._lock = threading.RLock()

    def marks(self) -> Mapping[RunKey, RunMark]:
        """Of every run, but for what is left of those that were removed or have moved to another project. Of one that
        did not change it is the same object as before."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._refresh()
                self._until = time.monotonic() + FRESH_SECONDS
            return self._marks

    def find(self, key: RunKey) -> StoredRun:
        """Raises RunNotFound."""
        with self._lock:
            marks = self.marks()
            if key not in marks:
                raise RunNotFound(f"run {key[1]} was removed")
            if key not in self._read:
                # Who asks for one after the other will ask for all of them: each time for twice as many.
                others = (other for other in marks if other not in self._read and other != key)
                self._load([key, *(other for other, _ in zip(others, range(self._at_once - 1), strict=False))])
                self._at_once = min(2 * self._at_once, AT_ONCE)
            return self._read[key]

    def read(self, keys: Iterable[RunKey]) -> None:
        """Those of them that were not read since they changed."""
        with self._lock:
            self._load([key for key in keys if key in self._marks and key not in self._read])

    def _refresh(self) -> None:
        found: dict[RunKey, RunMark] = {}
        hidden: set[RunKey] = set()
        is_moved = f"path = {literal(layout.MOVED_FILE)} AND argMax(digest, version) = {literal(digest_of(MOVED))}"
        is_hidden = f"({is_moved}) OR path = {literal(layout.REMOVED_FILE)}"
        # Not the version: it begins anew when a run is removed and sent again.
        answer = self._store.engine.select(
            f"SELECT project, run, path, cityHash64(argMax(digest, version)) AS mark, {is_hidden} AS hidden "
            f"FROM documents WHERE {self._shown} GROUP BY project, run, path"
        )
        for project, run, path, mark, is_gone in zip(*answer.values(), strict=True) if answer else ():
            key = text(project), text(run)
            found.setdefault(key, RunMark()).paths[text(path)] = int(mark)
            if is_gone:
                hidden.add(key)
        for key in hidden:
            del found[key]
        answer = self._store.engine.select(
            "SELECT project, run, sum(cityHash64(path, newest)) AS mark, sum(path LIKE 'alerts%') AS alerts, "
            "sum(path LIKE 'training%') AS training FROM (SELECT project, run, path, max(version) AS newest FROM ends "
            f"WHERE (path LIKE 'alerts%' OR path LIKE 'training%') AND {self.allowed} GROUP BY project, run, path) "
            "GROUP BY project, run"
        )
        for project, run, mark, alerts, training in zip(*answer.values(), strict=True) if answer else ():
            known = found.get((text(project), text(run)))
            if known is not None:
                known.paths[_LINES] = int(mark)
                known.has_alerts, known.has_values = bool(alerts), bool(training)
        self._marks = {key: old if (old := self._marks.get(key)) == mark else mark for key, mark in found.items()}
        read = self._read
        self._read = {key: run for key, run in read.items() if run.mark is self._marks.get(key)}
        self._load([key for key in read if key in self._marks and key not in self._read])
        self._at_once = 1

    def _load(self, keys: list[RunKey]) -> None:
        for first in range(0, len(keys), AT_ONCE):
            self._read.update(self._ask(keys[first : first + AT_ONCE]))

    def _ask(self, keys: list[RunKey]) -> dict[RunKey, StoredRun]:
        answer = self._store.engine.select(
            "SELECT project, run, path, argMax(data, version) AS newest FROM documents "
            f"WHERE (project, run) IN ({_list(keys)}) AND {self._shown} GROUP BY project, run, path"
        )
        place = self._store.engine.address.shown
        found = {key: StoredRun(f"{place}/{key[0]}/{key[1]}", *key, self._marks[key]) for key in keys}
        for project, run, path, data in zip(*answer.values(), strict=True) if answer else ():
            found[text(project), text(run)].documents[text(path)] = data
        if alerted := [key for key in keys if self._marks[key].has_alerts]:
            for key, lines in self._ask_alerts(alerted).items():
                found[key].alert_lines = lines
        return found

    def _ask_alerts(self, keys: Collection[RunKey]) -> dict[RunKey, list[bytes]]:
        """The lines of their alerts that count, in the order of the files."""
        which = f"(project, run) IN ({_list(keys)}) AND {self.allowed}"
        answer = self._store.engine.select(
            "SELECT project, run, path, argMax(rows, version) AS newest FROM ends "
            f"WHERE {which} AND path LIKE 'alerts%' GROUP BY project, run, path"
        )
        ends: dict[tuple[RunKey, str], int] = {}
        for project, run, path, rows in zip(*answer.values(), strict=True) if answer else ():
            parsed = layout.parse_name(text(path))
            if parsed is not None:
                ends[(text(project), text(run)), parsed[0].stem] = int(rows)
        answer = self._store.engine.select(
            "SELECT project, run, stem, row, any(line) AS written FROM lines "
            f"WHERE {which} AND tbl = 'alerts' GROUP BY project, run, stem, row ORDER BY project, run, stem, row"
        )
        found: dict[RunKey, list[bytes]] = {}
        for project, run, stem, row, line in zip(*answer.values(), strict=True) if answer else ():
            key = text(project), text(run)
            if row < ends.get((key, text(stem)), 0):
                found.setdefault(key, []).append(line)
        return found


def _list(keys: Iterable[RunKey]) -> str:
    return ", ".join(f"({literal(project)}, {literal(run)})" for project, run in keys)


def _load(data: bytes) -> dict[str, object] | None:
    try:
        return parse_object(data)
    except ValueError:
        return None
