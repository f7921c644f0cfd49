"""Runs that were shipped to a store give the same answers as their folders: to the last bit, in every view."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import Engine
from same_answers import START, make_runs
from shipped import address_of, make_long_run, parse, send, ship_all
from starlette.testclient import TestClient

from trainvitals.fleet.clickhouse import ClickHouse
from trainvitals.fleet.gateway import Gateway
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.fleet.wire import FileRange
from trainvitals.journal.contracts import Reader
from trainvitals.journal.encoding import encode_line, format_time, parse_time
from trainvitals.journal.folder_runs import FolderRuns


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    make_runs(place)
    make_long_run(place / "long" / "20260115-120000-long-aaaa")
    return place


@pytest.fixture(scope="module")
def store(engine: Engine, prepare: Callable[[Engine], ClickHouse], root: Path) -> Store:
    """Everything of `root`, shipped in pieces of any size."""
    found = Store(prepare(engine))
    folders = FolderRuns(root)
    if engine.is_slow:  # enough to see that it understands every question
        for key in folders.list_keys():
            if not any(part in key for part in ("long", "sealed", "ranks")):
                shutil.rmtree(folders.folder(key))
    ship_all(found, folders)
    return found


@pytest.fixture
def runs(store: Store) -> StoreRuns:
    return StoreRuns(store)


@pytest.fixture
def folders(root: Path) -> FolderRuns:
    return FolderRuns(root)


@pytest.fixture(autouse=True)
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(time, "time", lambda: START + 1e8)


def pairs(folders: FolderRuns, runs: StoreRuns) -> Iterator[tuple[str, Reader, Reader]]:
    assert runs.list_keys() == folders.list_keys()
    for key in folders.list_keys():
        yield key, folders.open(key), runs.open(key)


def test_every_number_is_the_same_to_the_bit(folders: FolderRuns, runs: StoreRuns) -> None:
    compared = 0
    for key, folder, other in pairs(folders, runs):
        assert folder.tables() == other.tables()
        for table in folder.tables():
            names = folder.names(table)
            assert other.names(table) == names
            assert other.labels(table) == folder.labels(table)
            assert other.summary(table) == folder.summary(table), (key, table)
            asked: list[dict[str, Any]] = [{"x": "step", "max_points": points} for points in (None, 20, 500)]
            asked += [{"x": "time", "all_attempts": True}, {"x": "relative", "max_points": 100}]
            asked.append({"x": "step", "start": 9_000.0, "end": 11_500.0})
            asked.append({"x": "step", "start": 100.0, "end": 3000.0, "max_points": 400})
            for how in asked:
                found, expected = (reader.series(names, table=table, **how) for reader in (other, folder))
                assert len(found) == len(expected), (key, table, how)
                for mine, theirs in zip(found, expected, strict=True):
                    assert (mine.name, mine.labels, mine.rank) == (theirs.name, theirs.labels, theirs.rank)
                    assert (mine.total, mine.nonfinite) == (theirs.total, theirs.nonfinite), (key, mine.name, how)
                    assert mine.x.tobytes() == theirs.x.tobytes(), (key, mine.name, how)
                    assert np.array_equal(mine.y, theirs.y, equal_nan=True), (key, mine.name, how)
                    compared += len(mine.y)
    assert compared > 100_000


def test_everything_else_is_the_same(folders: FolderRuns, runs: StoreRuns) -> None:
    for key, folder, other in pairs(folders, runs):
        assert other.events() == folder.events()
        assert other.alerts() == folder.alerts() == runs.alerts(key)
        assert other.damage() == folder.damage(), key
        assert other.first_steps() == folder.first_steps(), key
        assert other.newest_steps(50) == folder.newest_steps(50), key
        assert other.participants() == folder.participants()
        assert other.states(["throttle_reasons", "phase"]) == folder.states(["throttle_reasons", "phase"])
        assert other.states(["phase"], table="training") == folder.states(["phase"], table="training")
        assert other.benchmarks() == folder.benchmarks()
        assert other.statuses() == folder.statuses() and other.findings() == folder.findings()
        assert runs.has_values(key) == folders.has_values(key)
        assert [item.name for item in other.media()] == [item.name for item in folder.media()]
        assert [item.read() for item in other.media()] == [item.read() for item in folder.media()]
        assert other.histogram_names() == folder.histogram_names()
        for name in folder.histogram_names():
            assert other.histograms(name) == folder.histograms(name)
        for text in folder.texts("console"):
            assert other.read_text("console", text.name, 5000) == folder.read_text("console", text.name, 5000)
        assert [text.name for text in other.texts("stack")] == [text.name for text in folder.texts("stack")]


def as_sealed(row: dict[str, Any]) -> dict[str, Any]:
    """As it is read from a sealed file: numbers are floats, and times have microseconds."""
    found = {key: value if isinstance(value, (int, float, str)) else json.dumps(value) for key, value in row.items()}
    return {**found, "timestamp": parse_time(row["timestamp"])}


def test_rows_are_given_as_they_were_written(folders: FolderRuns, runs: StoreRuns) -> None:
    for key, folder, other in pairs(folders, runs):
        for table in folder.tables():
            expected = [as_sealed(row) for row in folder.rows(table)]
            assert [as_sealed(row) for row in other.rows(table)] == expected, (key, table)


def test_a_run_is_followed_while_it_is_shipped(store: Store) -> None:
    name = "training_metrics_20261118_060000.rank0.jsonl"
    address = address_of("live", "20261118-060000-live-aaaa")

    def line(step: int) -> bytes:
        return encode_line({"timestamp": format_time(START + step), "step": step, "loss": step / 3})

    with TestClient(Gateway(store, None).make_app()) as client:
        document = {"format": 1, "id": "20261118-060000-live-aaaa", "project": "live", "status": "running"}
        frame = FileRange(name, "lines", line(0))
        held = send(client, address, [FileRange("run.json", "document", encode_line(document)), frame])
        reader = StoreRuns(store).open("20261118-060000-live-aaaa")
        feed, late = reader.follow(("training", "events")), reader.follow(from_end=True)
        assert [row["step"] for _, row in feed.poll()] == [0]
        stamp = reader.stamp()
        held = send(client, address, [FileRange(name, "lines", line(1) + line(2), held[name].end)])
        reader.files.look_again()
        assert reader.stamp() != stamp
        assert [row["step"] for _, row in feed.poll()] == [1, 2]
        assert [row["loss"] for _, row in late.poll()] == [1 / 3, 2 / 3]
        assert feed.poll() == []
        assert reader.series(["loss"])[0].y.tolist() == [0.0, 1 / 3, 2 / 3]
        assert parse(client.get(address))[name].rows == 3
