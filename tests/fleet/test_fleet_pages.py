"""The fleet pages are told the same by folders, by memory and by a store, old engine or new, and a tenant is told of
its projects only."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from engines import Engine
from made_fleet import PROJECTS, make_fleet
from memory_runs import MemoryRun, MemoryRuns
from shipped import ship_all
from starlette.testclient import TestClient

from trainvitals.fleet.clickhouse import ClickHouse
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.journal.contracts import Runs
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.views.web.app import PREFIX, make_app

NOW = 1_790_000_000.0
NODES = 5
QUESTIONS = (
    "/fleet", "/fleet?window=day", "/fleet?window=month", "/fleet/use?by=user&period=day", "/fleet/use?by=project",
    "/fleet/use?by=run&period=month", "/fleet/use?by=node&until=2026-09-20", "/fleet/faults", "/fleet/faults?days=3",
)  # fmt: skip


@pytest.fixture(autouse=True)
def that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> FolderRuns:
    place = tmp_path_factory.mktemp("fleet")
    make_fleet(place, NODES, NOW)
    return FolderRuns(place)


@pytest.fixture(scope="module")
def store(engine: Engine, prepare: Callable[[Engine], ClickHouse], folders: FolderRuns) -> StoreRuns:
    found = Store(prepare(engine))
    ship_all(found, folders)
    return StoreRuns(found)


@contextmanager
def asking(*places: Runs) -> Iterator[list[Callable[[str], Any]]]:
    with ExitStack() as opened:
        clients = [
            opened.enter_context(TestClient(make_app(runs, lambda *_: b""), base_url="http://localhost"))
            for runs in places
        ]

        def ask(client: TestClient, question: str) -> Any:
            answer = client.get(PREFIX + question)
            assert answer.status_code == 200, (question, answer.text)
            return answer.json()

        yield [lambda question, client=client: ask(client, question) for client in clients]  # type: ignore[misc]


def test_folders_memory_and_store_say_the_same(folders: FolderRuns, store: StoreRuns) -> None:
    memory = MemoryRuns(**{key: MemoryRun.of_folder(folders.folder(key)) for key in folders.list_keys()})
    with asking(folders, memory, store) as (of_folders, of_memory, of_store):
        for question in QUESTIONS:
            expected = of_folders(question)
            assert expected == of_memory(question), question
            assert expected == of_store(question), question
        fleet, faults = of_store("/fleet"), of_store("/fleet/faults")
    assert fleet["capacity"]["nodes"] == NODES and fleet["holders"] and fleet["alerts"] and fleet["simulated"]
    assert len(faults["nodes"]) == 3


def test_a_tenant_sees_what_a_folder_of_its_project_alone_would_show(
    folders: FolderRuns, store: StoreRuns, tmp_path: Path
) -> None:
    for project in PROJECTS:
        alone = tmp_path / project
        alone.mkdir()
        shutil.copytree(folders.root / project, alone / project)
        with asking(FolderRuns(alone), store.limited_to(frozenset({project}))) as (of_folder, of_tenant):
            for question in QUESTIONS:
                assert of_folder(question) == of_tenant(question), (project, question)
    with asking(store.limited_to(frozenset())) as (of_nobody,):
        assert (
            of_nobody("/fleet")["nodes"] == [] == of_nobody("/fleet/use")["rows"] == of_nobody("/fleet/faults")["nodes"]
        )


def test_what_is_asked_wrong_is_refused(folders: FolderRuns) -> None:
    with TestClient(make_app(folders, lambda *_: b""), base_url="http://localhost") as client:
        for question in ("?window=year", "/use?by=boss", "/use?until=yesterday", "/use?period=now", "/faults?days=0"):
            assert client.get(f"{PREFIX}/fleet{question}").status_code == 400, question
