"""A list of the runs in a store."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

import pytest
from engines import Engine
from made_sweep import make_sweep
from shipped import address_of, parse, send, ship_all
from starlette.testclient import TestClient

from trainvitals import runtime
from trainvitals.errors import RunNotFound
from trainvitals.fleet import gateway as gateways
from trainvitals.fleet import store_documents
from trainvitals.fleet.clickhouse import ClickHouse, EngineError
from trainvitals.fleet.gateway import Gateway
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns, open_store
from trainvitals.fleet.wire import MOVED, NOT_MOVED, FileRange, Held, digest_of
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.row_cache import Made
from trainvitals.views.data.fleet_runs import FleetBook
from trainvitals.views.data.run_listing import list_json


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(store_documents, "FRESH_SECONDS", 0.0)


@pytest.fixture
def store(debian: Engine, prepare: Callable[[Engine], ClickHouse]) -> Store:
    return Store(prepare(debian))


def put(store: Store, project: str, run: str, name: str, status: str = "finished", second: int = 0) -> None:
    created = format_time(1.8e9 + second)
    about = {"format": 1, "id": run, "project": project, "name": name, "status": status, "created": created}
    with TestClient(Gateway(store, None).make_app()) as client:
        before = parse(client.get(address_of(project, run))).get("run.json", Held())
        frame = FileRange("run.json", "document", encode_line(about), generation=before.digest)
        send(client, address_of(project, run), [frame])


def test_runs_are_listed_by_age_and_found_by_name(store: Store) -> None:
    put(store, "vision", "20261118-060002-second-bbbb", "second", second=2)
    put(store, "vision", "20261118-060001-first-aaaa", "first", second=1)
    put(store, "speech", "20261118-060001-first-aaaa", "third", second=3)
    runs = StoreRuns(store)
    assert runs.list_keys() == [
        "vision~20261118-060001-first-aaaa", "20261118-060002-second-bbbb", "speech~20261118-060001-first-aaaa"
    ]  # fmt: skip
    assert runs.find("second") == "20261118-060002-second-bbbb"
    assert runs.find("latest") == runs.find("third") == "speech~20261118-060001-first-aaaa"
    assert runs.find("vision~20261118-060001-first-aaaa") == "vision~20261118-060001-first-aaaa"
    with pytest.raises(RunNotFound, match="matches 2 runs"):
        runs.find("20261118-060001")
    with pytest.raises(RunNotFound, match="did you mean 'second'"):
        runs.find("secnod")
    with pytest.raises(RunNotFound, match="list them"):
        runs.describe("none")
    assert runs.has_folder("speech") and not runs.has_folder("other")


def test_a_run_that_went_on_in_another_project_is_shown_there_only(store: Store) -> None:
    name = "20261118-060001-first-aaaa"
    for project in ("default", "vision"):
        put(store, project, name, "first")
    with TestClient(Gateway(store, None).make_app()) as client:
        send(client, address_of("default", name), [FileRange("moved.json", "document", MOVED)])
        runs = StoreRuns(store)
        assert runs.list_keys() == [name] and runs.describe(name).project == "vision"
        assert not runs.has_folder("default")
        assert StoreRuns(store, frozenset({"default"})).list_keys() == []
        back = FileRange("moved.json", "document", NOT_MOVED, generation=digest_of(MOVED))
        send(client, address_of("default", name), [back])
    assert sorted(runs.list_keys()) == [f"default~{name}", f"vision~{name}"], "it has come back"


def test_a_viewer_of_one_project_learns_nothing_of_others(store: Store) -> None:
    put(store, "vision", "20261118-060001-first-aaaa", "first")
    put(store, "secret", "20261118-060002-second-bbbb", "second")
    runs = StoreRuns(store, frozenset({"vision"}))
    assert runs.list_keys() == ["20261118-060001-first-aaaa"]
    for ask in (runs.find, runs.describe, runs.open, runs.statuses, runs.alerts, runs.findings, runs.has_values):
        with pytest.raises(RunNotFound):
            ask("20261118-060002-second-bbbb")
    assert StoreRuns(store, frozenset()).list_keys() == []


def test_rows_of_ended_runs_are_made_once(store: Store) -> None:
    put(store, "vision", "20261118-060001-first-aaaa", "first", "running")
    runs = StoreRuns(store)
    made = []

    def make() -> Made:
        info = runs.describe("20261118-060001-first-aaaa")
        made.append(info.status)
        return Made({"status": info.status, "loss": float("nan")}, not info.is_live, "")

    for _ in range(2):
        assert runs.recall("20261118-060001-first-aaaa", make) == {"status": "running", "loss": "NaN"}
    put(store, "vision", "20261118-060001-first-aaaa", "first")
    for _ in range(3):
        assert runs.recall("20261118-060001-first-aaaa", make)["status"] == "finished"
    assert made == ["running", "running", "finished"]


def test_a_list_of_runs_costs_the_same_questions_however_many_there_are(
    debian: Engine, prepare: Callable[[Engine], ClickHouse], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their values and alerts too; and the next program reads only what has changed."""
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(store_documents, "FRESH_SECONDS", 60.0)
    engine = prepare(debian)
    folders = FolderRuns(tmp_path / "runs")
    asked: list[str] = []
    ask = engine.select
    first: list[int] = []
    for runs, project in ((3, "few"), (9, "many")):
        make_sweep(folders.root, runs, project=project)
        for key in folders.list_keys():
            made_alerts(folders.folder(key), key)
        ship_all(Store(engine), folders)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "select", lambda query: asked.append(query) or ask(query))  # type: ignore[func-returns-value]
            found = StoreRuns(Store(engine))
            rows = list_json(found, found.list_keys())
            first.append(len(asked))
            asked.clear()
            again = StoreRuns(Store(engine))
            assert list_json(again, again.list_keys()) == rows
            assert len(asked) == 2 and "data" not in "".join(asked)  # nothing but whether they changed
            asked.clear()
        expected = list_json(folders, folders.list_keys())
        assert sorted(rows, key=itemgetter("key")) == sorted(expected, key=itemgetter("key"))
        assert all(row["alert_counts"]["critical"] == 1 for row in rows)
    assert first == [5, 5]
    with monkeypatch.context() as patch:
        patch.setattr(engine, "select", lambda query: asked.append(query) or ask(query))  # type: ignore[func-returns-value]
        live = StoreRuns(Store(engine))
        assert len(FleetBook().read(live, live.list_keys())) == 12
    assert len(asked) <= 2 + 3 * 4  # as each asks for one run, for twice as many each time


def made_alerts(folder: Path, key: str) -> None:
    """One alert of the run; once."""
    file = folder / "alerts_20261118_060000.jsonl"
    about = {"rule": "nan_loss", "severity": "critical", "summary": key, "labels": {}}
    file.write_bytes(encode_line({"timestamp": format_time(1.8e9), "state": "firing", **about}))


def test_a_run_whose_description_is_still_on_its_way_is_shown_so(store: Store) -> None:
    with TestClient(Gateway(store, None).make_app()) as client:
        send(client, address_of("vision", "20261118-060001-first-aaaa"), [FileRange("status.json", "document", b"{}")])
    info = StoreRuns(store).describe("20261118-060001-first-aaaa")
    assert (info.status, info.cause_text) == ("unreadable", "run.json has not arrived yet")


def test_a_live_run_of_another_machine_with_the_name_of_this_one_lives(store: Store) -> None:
    """Its process is not among those of this machine, and that says nothing."""
    run = "20261118-060001-first-aaaa"
    process = {"pid": 2**22 + 1, "start": 1.0, "host": runtime.host_name()}
    about = {"format": 1, "id": run, "project": "vision", "status": "running", "process": process}
    with TestClient(Gateway(store, None).make_app()) as client:
        send(client, address_of("vision", run), [FileRange("run.json", "document", encode_line(about))])
        assert StoreRuns(store).describe(run).status == "running"
        # Nor can a run take the key that another one has in a list of several projects.
        answer = client.get(address_of("other", f"vision~{run}"))
        assert answer.status_code == 422 and "is not a name" in answer.json()["error"]


def test_a_place_without_tables_says_what_to_do(debian: Engine) -> None:
    with pytest.raises(EngineError) as caught:
        open_store(debian.address("nothing_here"))
    assert caught.value.hint is not None and "trainvitals gateway --store" in caught.value.hint
