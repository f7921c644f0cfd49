"""The documents of the runs in the store: what a list of runs needs, asked for only where it changed.
Tested in tests/fleet/test_store_runs.py."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import cached_property

import orjson

from trainvitals.fleet.clickhouse import literal
from trainvitals.fleet.store import Store, text
from trainvitals.journal import layout
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.run import UNREADABLE, RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.folder import find_state
from trainvitals.journal.run_info import RunInfo, make_info

FRESH_SECONDS = 1.0
AT_ONCE = 500
"""Runs whose documents are asked for with one question."""

RunKey = tuple[str, str]
"""Project and run."""


@dataclass
class StoredRun:
    """The documents of one run, of one moment."""

    place: str
    project: str
    run: str
    versions: dict[str, int] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)

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


class StoredDocuments:
    """Those of all runs, or of those of some projects."""

    def __init__(self, store: Store, projects: frozenset[str] | None = None) -> None:
        self._store = store
        self.allowed = "1 = 1"
        """SQL for the projects that may be asked about."""
        if projects is not None:
            listed = ", ".join(map(literal, sorted(projects))) or "''"
            self.allowed = f"project IN ({listed})"
        self._runs: dict[RunKey, StoredRun] = {}
        self._until = 0.0
        self._lock = threading.Lock()

    def runs(self) -> dict[RunKey, StoredRun]:
        """Every run. One that did not change is the same object as before."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._refresh()
                self._until = time.monotonic() + FRESH_SECONDS
            return self._runs

    def _refresh(self) -> None:
        fixed = f"{literal(layout.RUN_FILE)}, {literal(layout.FINDINGS_FILE)}"
        shown = f"(path IN ({fixed}) OR path LIKE 'status%') AND {self.allowed}"
        answer = self._store.engine.select(
            "SELECT project, run, path, max(version) AS newest FROM documents "
            f"WHERE {shown} GROUP BY project, run, path"
        )
        versions: dict[RunKey, dict[str, int]] = {}
        for project, run, path, version in zip(*answer.values(), strict=True) if answer else ():
            versions.setdefault((text(project), text(run)), {})[text(path)] = int(version)
        changed = [key for key, found in versions.items() if key not in self._runs or self._runs[key].versions != found]
        runs = {key: self._runs[key] for key in versions if key in self._runs}
        for first in range(0, len(changed), AT_ONCE):
            runs.update(self._read(changed[first : first + AT_ONCE], shown, versions))
        self._runs = runs

    def _read(self, keys: list[RunKey], shown: str, versions: dict[RunKey, dict[str, int]]) -> dict[RunKey, StoredRun]:
        listed = ", ".join(f"({literal(project)}, {literal(run)})" for project, run in keys)
        answer = self._store.engine.select(
            "SELECT project, run, path, argMax(data, version) AS newest FROM documents "
            f"WHERE (project, run) IN ({listed}) AND {shown} GROUP BY project, run, path"
        )
        place = self._store.engine.address.shown
        found = {key: StoredRun(f"{place}/{key[0]}/{key[1]}", *key, versions[key]) for key in keys}
        for project, run, path, data in zip(*answer.values(), strict=True) if answer else ():
            found[text(project), text(run)].documents[text(path)] = data
        return found


def _load(data: bytes) -> dict[str, object] | None:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
