"""A list of the runs in a store."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engines import Engine
from shipped import address_of, send
from starlette.testclient import TestClient

from trainvitals import runtime
from trainvitals.errors import RunNotFound
from trainvitals.fleet import gateway as gateways
from trainvitals.fleet import store_documents
from trainvitals.fleet.clickhouse import ClickHouse, EngineError
from trainvitals.fleet.gateway import Gateway
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns, open_store
from trainvitals.fleet.wire import FileRange
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.row_cache import Made


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
        send(client, address_of(project, run), [FileRange("run.json", "document", encode_line(about))])


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
