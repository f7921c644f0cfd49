"""The runs of a store, by key: the run's id, or `project~id` where two projects have the same.
Tested in tests/fleet/test_store_runs.py."""

from __future__ import annotations

from collections.abc import Collection

import orjson

from trainvitals.errors import RunNotFound
from trainvitals.fleet import schema
from trainvitals.fleet.clickhouse import ClickHouse, literal, parse_address
from trainvitals.fleet.store import Store, text
from trainvitals.fleet.store_documents import RunKey, StoredDocuments, StoredRun
from trainvitals.fleet.store_files import StoreFiles
from trainvitals.fleet.store_reader import StoreReader, read_lines
from trainvitals.journal.alert_tallies import sort_tallies
from trainvitals.journal.contracts import AlertTally
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.status import Status
from trainvitals.journal.documents.view import ViewFile
from trainvitals.journal.encoding import dump_json, spell_all
from trainvitals.journal.folder import choose
from trainvitals.journal.row_cache import MakeRow, Row
from trainvitals.journal.run_info import RunInfo


def open_store(address: str) -> StoreRuns:
    """The runs at `clickhouse://HOST:8123/DATABASE`. Raises EngineError."""
    engine = ClickHouse(parse_address(address))
    schema.check(engine)
    return StoreRuns(Store(engine))


class StoreRuns:
    """Implements `contracts.Runs`."""

    def __init__(self, store: Store, projects: frozenset[str] | None = None) -> None:
        """Of these projects only, if given: no question is asked about others."""
        self._store = store
        self._documents = StoredDocuments(store, projects)
        self._keys: dict[str, RunKey] = {}
        self._rows: dict[str, tuple[dict[str, int], Row]] = {}

    def limited_to(self, projects: frozenset[str] | None) -> StoreRuns:
        """The same, of these projects only; of all for None."""
        return StoreRuns(self._store, projects)

    @property
    def place(self) -> str:
        return self._store.engine.address.shown

    def list_keys(self) -> list[str]:
        """Every run, oldest first."""
        runs = self._documents.runs()
        ids = [run for _, run in runs]
        seen = {run for run in ids if ids.count(run) > 1} if len(set(ids)) < len(ids) else set()
        ordered = sorted(runs, key=lambda key: (runs[key].info.file.created or "", key[1]))
        self._keys = {f"{project}~{run}" if run in seen else run: (project, run) for project, run in ordered}
        return list(self._keys)

    def find(self, reference: str) -> str:
        """The key of a run by key, id, name, unique part of either, or `latest`; raises RunNotFound."""
        ids = {key: self._keys[key][1] for key in self.list_keys()}
        if reference in ids:
            return reference
        return choose(
            reference,
            ids,
            lambda: {key: self._find(key).info.name for key in ids},
            self.place,
            shown={key: key for key in ids},
        )

    def describe(self, key: str) -> RunInfo:
        """The run at a glance: also one whose run.json has not arrived."""
        return self._find(key).info

    def statuses(self, key: str) -> list[Status]:
        """What the agent of each host reported last."""
        return self._find(key).statuses

    def alerts(self, key: str) -> list[AlertRow]:
        """Every line of its alerts, in order of time."""
        files = StoreFiles(self._store, *self._key(key))
        rows = sorted((row for _, row in read_lines(files, "alerts", {})), key=lambda row: str(row["timestamp"]))
        return [AlertRow.parse(row) for row in rows]

    def tally_alerts(self, rules: Collection[str], start: float, end: float) -> list[AlertTally]:
        """Which alerts of these rules fired from `start` to before `end`, in any run: counted by the engine, of which
        one line of each comes here."""
        named = {run: key for key in self.list_keys() for run in (self._keys[key],)}
        if not named or not rules:
            return []
        listed = ", ".join(map(literal, sorted(rules)))
        # Lines are as orjson writes them: no blanks, and an alert's own state before its labels.
        answer = self._store.engine.select(
            "SELECT project, run, uniqExact(stem, row) AS times, uniqExact(intDiv(time, 86400000000)) AS days, "
            "min(time) AS first, argMax(line, time) AS newest FROM lines "
            f"WHERE {self._documents.allowed} AND tbl = 'alerts' "
            f"AND time >= {round(start * 1e6)} AND time < {round(end * 1e6)} "
            'AND position(line, \'"state":"firing"\') > 0 '
            f"AND visitParamExtractString(line, 'rule') IN ({listed}) "
            "GROUP BY project, run, visitParamExtractString(line, 'rule'), visitParamExtractRaw(line, 'labels'), "
            "visitParamExtractString(line, 'host'), visitParamHas(line, 'outgoing')"
        )
        found = []
        for project, run, times, days, first, line in zip(*answer.values(), strict=True) if answer else ():
            key, row = named.get((text(project), text(run))), AlertRow.parse(orjson.loads(line))
            if key is not None and row.state == "firing":
                found.append(AlertTally(key, int(times), int(days), int(first) / 1e6, row))
        return sort_tallies(found)

    def findings(self, key: str) -> FindingsFile | None:
        """What the diagnosis after its end found, if it was kept."""
        return self._find(key).findings

    def has_values(self, key: str) -> bool:
        """Whether the training logged anything."""
        return any(name.table == "training" for name, _, _ in StoreFiles(self._store, *self._key(key)).list())

    def recall(self, key: str, make: MakeRow) -> Row:
        """What `make` gives; it is not asked again for an ended run that did not change."""
        run = self._find(key)
        known = self._rows.get(key)
        if known is not None and known[0] == run.versions:
            return known[1]
        made = make()
        row: Row = orjson.loads(dump_json(spell_all(made.row)))
        if made.lasts:
            self._rows[key] = (run.versions, row)
        return row

    def has_folder(self, project: str) -> bool:
        """Whether there are runs of this project."""
        return any(key[0] == project for key in self._documents.runs())

    def find_view(self, project: str) -> ViewFile | None:
        """Not kept in a store: every browser keeps its own."""
        return None

    def keep_rows(self) -> None:
        """They are kept in memory only."""

    def open(self, key: str) -> StoreReader:
        """A new reader; raises RunNotFound."""
        project, run = self._key(key)
        self._find(key)
        return StoreReader(self._store, project, run, lambda: self._find(key))

    def _key(self, key: str) -> RunKey:
        if key not in self._keys:
            self.list_keys()
        try:
            return self._keys[key]
        except KeyError:
            raise RunNotFound(f"no run '{key}' in {self.place}", hint="list them: trainvitals runs") from None

    def _find(self, key: str) -> StoredRun:
        found = self._documents.runs().get(self._key(key))
        if found is None:
            raise RunNotFound(f"run {key} was removed")
        return found
