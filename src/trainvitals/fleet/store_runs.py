"""The runs of a store, by key: the run's id, or `project~id` where two projects have the same.
Tested in tests/fleet/test_store_runs.py."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Mapping

import orjson

from trainvitals.errors import RunNotFound
from trainvitals.fleet import schema
from trainvitals.fleet.clickhouse import ClickHouse, literal, parse_address
from trainvitals.fleet.store import Store, text
from trainvitals.fleet.store_documents import RunKey, StoredDocuments, StoredRun
from trainvitals.fleet.store_reader import StoreReader
from trainvitals.journal.alert_tallies import sort_tallies
from trainvitals.journal.contracts import AlertTally
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.status import Status
from trainvitals.journal.documents.view import ViewFile
from trainvitals.journal.folder import choose
from trainvitals.journal.row_cache import MakeRow, Row, RowCache
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
        self.store = store
        self._documents = StoredDocuments(store, projects)
        self._keys: dict[str, RunKey] = {}
        # A viewer of some projects has no file: what was in it would be there for the next one with this account.
        name = f"{self.place}\0".encode() if projects is None else None
        self._rows = RowCache("", _Stamps(self._documents), name)

    def limited_to(self, projects: frozenset[str] | None) -> StoreRuns:
        """The same, of these projects only; of all for None."""
        return StoreRuns(self.store, projects)

    @property
    def place(self) -> str:
        return self.store.engine.address.shown

    def list_keys(self) -> list[str]:
        """Every run, oldest first."""
        created = {key: self._rows.find_created(_place(key)) for key in self._documents.marks()}
        missing = [key for key, when in created.items() if when is None]
        self._documents.read(missing)
        for key in missing:
            with contextlib.suppress(RunNotFound):
                created[key] = self._documents.find(key).info.file.created
        counts = Counter(run for _, run in created)
        seen = {run for run, count in counts.items() if count > 1}
        ordered = sorted(created, key=lambda key: (created[key] or "", key[1]))
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
        return self._find(key).alerts

    def tally_alerts(self, rules: Collection[str], start: float, end: float) -> list[AlertTally]:
        """Which alerts of these rules fired from `start` to before `end`, in any run: counted by the engine, of which
        one line of each comes here."""
        named = {run: key for key in self.list_keys() for run in (self._keys[key],)}
        if not named or not rules:
            return []
        listed = ", ".join(map(literal, sorted(rules)))
        # Lines are as orjson writes them: no blanks, and an alert's own state before its labels.
        answer = self.store.engine.select(
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
        return self._find(key).mark.has_values

    def recall(self, key: str, make: MakeRow) -> Row:
        """What `make` gives; it is not asked again for an ended run that did not change."""
        return self._rows.recall(_place(self._key(key)), make)

    def has_folder(self, project: str) -> bool:
        """Whether there are runs of this project."""
        return any(key[0] == project for key in self._documents.marks())

    def find_view(self, project: str) -> ViewFile | None:
        """Not kept in a store: every browser keeps its own."""
        return None

    def keep_rows(self) -> None:
        """All have been recalled that somebody wanted: the next program may have them."""
        self._rows.save(map(_place, self._keys.values()))

    def open(self, key: str) -> StoreReader:
        """A new reader; raises RunNotFound."""
        project, run = self._key(key)
        self._find(key)
        return StoreReader(self.store, project, run, lambda: self._find(key))

    def _key(self, key: str) -> RunKey:
        if key not in self._keys:
            self.list_keys()
        try:
            return self._keys[key]
        except KeyError:
            raise RunNotFound(f"no run '{key}' in {self.place}", hint="list them: trainvitals runs") from None

    def _find(self, key: str) -> StoredRun:
        return self._documents.find(self._key(key))


class _Stamps:
    """Implements `row_cache.Stamps`."""

    def __init__(self, documents: StoredDocuments) -> None:
        self._documents = documents

    def list_files(self, place: str) -> list[str]:
        return sorted(self._find(place))

    def stamp(self, place: str, files: list[str]) -> list[int]:
        found = self._find(place)
        return [found[path] for path in files] if len(found) == len(files) and found.keys() >= set(files) else []

    def is_settled(self, stamp: list[int]) -> bool:
        """Every change has another one."""
        return True

    def _find(self, place: str) -> Mapping[str, int]:
        project, _, run = place.partition("/")
        mark = self._documents.marks().get((project, run))
        return mark.paths if mark is not None else {}


def _place(key: RunKey) -> str:
    """How a run is called in the cache of rows."""
    return "/".join(key)
