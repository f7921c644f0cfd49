"""Runs that are removed from a store, by somebody or for their age."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import Engine
from shipped import address_of, parse, send
from starlette.testclient import TestClient
from waiting import wait_until

from trainvitals.errors import RunNotFound
from trainvitals.fleet import gateway as gateways
from trainvitals.fleet import removal, store_documents, tokens
from trainvitals.fleet.audit import Audit
from trainvitals.fleet.clickhouse import ClickHouse, literal
from trainvitals.fleet.gateway import Gateway
from trainvitals.fleet.intake import take
from trainvitals.fleet.removal import NotRemoved, find_outdated, remove_runs
from trainvitals.fleet.schema import TABLES
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.fleet.tokens import Tokens
from trainvitals.fleet.wire import MOVED, FileRange, encode_frames
from trainvitals.journal.encoding import encode_line, format_time

RUN, OTHER = "20261118-060000-one-aaaa", "20261118-060001-two-bbbb"
DAY = 86_400.0


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(store_documents, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(removal, "LOOK_SECONDS", 0.05)


@pytest.fixture
def store(engine: Engine, prepare: Callable[[Engine], ClickHouse]) -> Store:
    return Store(prepare(engine))


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(Gateway(store, None).make_app()) as found:
        yield found


def frames_of(run: str, status: str = "finished", project: str = "vision") -> list[FileRange]:
    """A row for every table."""
    created = format_time(1.8e9)
    about = {"format": 1, "id": run, "project": project, "status": status, "created": created}
    rows = [{"timestamp": created, "step": step, "loss": 1.0 / (step + 1), "phase": "warm"} for step in range(3)]
    event = {"timestamp": created, "event": "run_ended", "message": "ended"}
    return [
        FileRange("run.json", "document", encode_line(about)),
        FileRange("training_metrics_20261118_060000.rank0.jsonl", "lines", b"".join(map(encode_line, rows))),
        FileRange("events_20261118_060000.jsonl", "lines", encode_line(event)),
        FileRange("console.rank0.log", "bytes", b"printed\n", generation="1"),
    ]


def put(client: httpx.Client, run: str, status: str = "finished", project: str = "vision") -> None:
    send(client, address_of(project, run), frames_of(run, status, project))


def count_rows(store: Store, run: str) -> dict[str, int]:
    """By table, without the mark."""
    counted = {
        name: int(
            store.engine.execute(
                f"SELECT count() FROM {name} WHERE run = {literal(run)}"
                + (" AND path != 'removed.json'" if name == "documents" else "")
            )
        )
        for name in TABLES
    }
    return {name: count for name, count in counted.items() if count}


def test_a_run_that_is_removed_is_gone_from_every_table_and_stays_away(client: TestClient, store: Store) -> None:
    for run in (RUN, OTHER):
        put(client, run)
    put(client, RUN, project="default")
    send(client, address_of("default", RUN), [FileRange("moved.json", "document", MOVED)])
    before = count_rows(store, OTHER)
    assert before.keys() == {"points", "words", "lines", "pieces", "documents", "ends"}
    runs = StoreRuns(store)
    reader = runs.open(RUN)
    remove_runs(store, [("vision", RUN)], "alice")
    assert runs.list_keys() == [OTHER]
    with pytest.raises(RunNotFound):
        reader.info()
    wait_until(lambda: count_rows(store, RUN) == {}, "the engine to remove its rows")
    assert count_rows(store, OTHER) == before
    for project in ("vision", "default"):
        assert client.get(address_of(project, RUN)).status_code == 410
        with pytest.raises(NotRemoved, match="there is no run"):
            remove_runs(store, [(project, RUN)], "alice")


@pytest.mark.promise(
    "a run is removed from the store while an agent ships it", "the agent is told so for good; no part of it comes back"
)
def test_gateways_that_know_a_run_bring_nothing_of_it_back(store: Store, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    with TestClient(Gateway(store, None, audit=Audit(audit)).make_app()) as client:
        put(client, RUN)
        remove_runs(store, [("vision", RUN)], "alice@laptop")
        answers: list[httpx.Response] = []

        def is_refused() -> bool:
            """The gateway had it in memory: a request of that moment may still be taken."""
            at = parse(answers[-1])["console.rank0.log"].end if answers else 8
            frame = FileRange("console.rank0.log", "bytes", b"more\n", at, "1")
            answer = client.post(address_of("vision", RUN), content=_encode(frame))
            if answer.status_code != 410:
                answers.append(answer)
            return answer.status_code == 410

        wait_until(is_refused, "the gateway to notice")
        assert StoreRuns(store).list_keys() == []
        wait_until(lambda: count_rows(store, RUN) == {}, "what was still taken to go")
    noted = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(row["who"], row["run"]) for row in noted if row["did"] == "removed"] == [("alice@laptop", RUN)]


def _encode(frame: FileRange) -> bytes:
    return encode_frames([frame], compress=False)


def test_an_admin_removes_what_has_ended_and_nobody_else_anything(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    made = {
        role: tokens.add(file, role, role.partition(" ")[0], projects)
        for role, projects in (
            ("write", ["vision"]), ("read", ["vision"]), ("admin", ["vision"]), ("admin elsewhere", ["speech"])
        )
    }  # fmt: skip

    def remove(role: str, run: str) -> httpx.Response:
        return client.delete(address_of("vision", run), headers={"Authorization": f"Bearer {made[role]}"})

    with TestClient(Gateway(store, Tokens(file)).make_app()) as client:
        client.headers["Authorization"] = f"Bearer {made['write']}"
        put(client, RUN)
        put(client, OTHER, "running")
        for role in ("write", "read", "admin elsewhere"):
            assert remove(role, RUN).status_code == 403
        assert client.delete(address_of("vision", RUN), headers={"Authorization": ""}).status_code == 401
        refused = remove("admin", OTHER)
        assert refused.status_code == 422 and "has not ended" in refused.json()["error"]
        assert "there is no run" in remove("admin", "nothing").json()["error"]
        assert sorted(StoreRuns(store).list_keys()) == [RUN, OTHER]
        assert remove("admin", RUN).status_code == 200
        assert StoreRuns(store).list_keys() == [OTHER]
        forged = FileRange("removed.json", "document", b"{}")
        assert client.post(address_of("vision", OTHER), content=_encode(forged)).status_code == 422


def test_a_run_whose_machine_died_can_be_removed(client: TestClient, store: Store, monkeypatch: Any) -> None:
    put(client, RUN, "running")
    with pytest.raises(NotRemoved, match="has not ended"):
        remove_runs(store, [("vision", RUN)], "alice")
    monkeypatch.setattr(removal, "ALIVE_SECONDS", 0.0)
    remove_runs(store, [("vision", RUN)], "alice")
    assert StoreRuns(store).list_keys() == []


def test_documents_go_with_the_last_rows_of_a_run(client: TestClient, store: Store) -> None:
    for run in (RUN, OTHER):
        put(client, run)
    later = time.time() + 40 * DAY
    assert find_outdated(store, 50, later) == []
    assert sorted(find_outdated(store, 30, later)) == [("vision", RUN), ("vision", OTHER)]
    # Of one of them a part was missing, and came when its documents had long been there.
    name = "training_metrics_20261118_070000.rank0.jsonl"
    line = encode_line({"timestamp": format_time(1.8e9), "step": 9, "loss": 1.0})
    day = int(time.strftime("%Y%m%d", time.gmtime(later)))
    store.write(take([FileRange(name, "lines", line)], {}, "vision", OTHER, day).intake.blocks)
    assert find_outdated(store, 30, later) == [("vision", RUN)]


def test_a_gateway_removes_what_is_too_old_and_takes_it_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "SWEEP_SECONDS", 0.0)
    with TestClient(Gateway(store, None).make_app()) as client:
        put(client, RUN)
    monkeypatch.setattr("trainvitals.fleet.removal.find_outdated", lambda store, days, now: outdated.pop())
    outdated = [[], [], [("vision", RUN)]]
    with TestClient(Gateway(store, None, keep_days=30).make_app()) as client:
        monkeypatch.setattr(removal, "LOOK_SECONDS", 3600.0)
        wait_until(lambda: count_rows(store, RUN) == {}, "its rows to go")
        assert StoreRuns(store).list_keys() == []
        put(client, RUN)
        assert StoreRuns(store).list_keys() == [RUN]
