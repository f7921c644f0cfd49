"""Every view shows of a store what it shows of folders."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from engines import Engine
from same_answers import START, check_answers, frames, make_runs, plain
from shipped import make_long_run, ship_all
from starlette.testclient import TestClient

from trainvitals.fleet.clickhouse import ClickHouse
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.journal.contracts import RunRef
from trainvitals.journal.folder_runs import FolderRuns, refer_to
from trainvitals.settings import resolve
from trainvitals.views.report.document import draw_report
from trainvitals.views.web.app import make_app


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> FolderRuns:
    place = tmp_path_factory.mktemp("runs")
    make_runs(place)
    make_long_run(place / "long" / "20260115-120000-long-aaaa")
    return FolderRuns(place)


@pytest.fixture(scope="module")
def runs(debian: Engine, prepare: Callable[[Engine], ClickHouse], folders: FolderRuns) -> StoreRuns:
    store = Store(prepare(debian))
    ship_all(store, folders)
    return StoreRuns(store)


@pytest.fixture(autouse=True)
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(time, "time", lambda: START + 1e8)


def test_the_page_is_told_the_same(folders: FolderRuns, runs: StoreRuns) -> None:
    with (
        TestClient(make_app(folders, lambda *_: b""), base_url="http://localhost") as of_folders,
        TestClient(make_app(runs, lambda *_: b""), base_url="http://localhost") as of_store,
    ):
        check_answers(of_folders, of_store, len(folders.list_keys()))


def test_the_terminal_shows_the_same(folders: FolderRuns, runs: StoreRuns) -> None:
    for key in folders.list_keys():
        drawn = frames(RunRef("store", functools.partial(runs.open, key)), runs)
        assert drawn == frames(refer_to(folders.folder(key)), folders), key


def test_a_report_is_the_same(folders: FolderRuns, runs: StoreRuns) -> None:
    for key in folders.list_keys():
        mine, theirs = (draw_report([(key, place.open(key))], "json", resolve({})) for place in (runs, folders))
        assert plain(json.loads(mine)) == plain(json.loads(theirs))
