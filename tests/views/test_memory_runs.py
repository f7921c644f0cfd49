"""Views ask for runs through the contracts: the same runs, held in memory, give the same answers everywhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from memory_runs import MemoryRun, MemoryRuns
from same_answers import START, check_answers, frames, make_runs, plain
from starlette.testclient import TestClient
from waiting import wait_until

from trainvitals.journal.contracts import Reader, Runs
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import format_time
from trainvitals.journal.folder_runs import FolderRuns, refer_to
from trainvitals.journal.layout import FileName
from trainvitals.settings import resolve
from trainvitals.views.cli.details import draw_details, read_price
from trainvitals.views.cli.summary import draw_summary, read_summary
from trainvitals.views.cli.terminal import Paint
from trainvitals.views.data.comparison import describe_comparison
from trainvitals.views.data.diagnosis import read_findings
from trainvitals.views.data.export import FORMATS, Rows, write_rows
from trainvitals.views.data.wire import encode
from trainvitals.views.report.document import draw_picture, draw_report
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.options import TopOptions
from trainvitals.views.tui.snapshot import Request
from trainvitals.views.web.app import make_app


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of an earlier version (sealed, resumed, of several ranks, monitored, live), and one with a story."""
    place = tmp_path_factory.mktemp("runs")
    make_runs(place)
    return place


@pytest.fixture(scope="module")
def folders(root: Path) -> FolderRuns:
    return FolderRuns(root)


@pytest.fixture(scope="module")
def memory(folders: FolderRuns) -> MemoryRuns:
    return MemoryRuns(**{key: MemoryRun.of_folder(folders.folder(key)) for key in folders.list_keys()})


@pytest.fixture(autouse=True)
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    # Two answers are compared that are made one after the other.
    monkeypatch.setattr(time, "time", lambda: START + 1e8)


def in_both(folders: FolderRuns, memory: MemoryRuns, ask: Callable[[Runs], Any]) -> None:
    assert ask(memory) == ask(folders)


# -- the API, which is the page's data


@pytest.fixture(scope="module")
def clients(folders: FolderRuns, memory: MemoryRuns) -> Iterator[tuple[TestClient, TestClient]]:
    with (
        TestClient(make_app(folders, lambda *_: b""), base_url="http://localhost") as of_folders,
        TestClient(make_app(memory, lambda *_: b""), base_url="http://localhost") as of_memory,
    ):
        yield of_folders, of_memory


def test_the_api_gives_the_same_answers(clients: tuple[TestClient, TestClient], folders: FolderRuns) -> None:
    check_answers(*clients, len(folders.list_keys()))


def test_runs_are_compared_alike(folders: FolderRuns, memory: MemoryRuns) -> None:
    def compare(runs: Runs) -> Any:
        keys = [key for key in runs.list_keys() if "monitor" not in key]
        return plain(json.loads(encode(describe_comparison([(key, runs.open(key)) for key in keys], []))))

    in_both(folders, memory, compare)


def test_nothing_can_be_changed_where_no_folder_is(clients: tuple[TestClient, TestClient]) -> None:
    key = clients[1].get("/api/v1/runs").json()["runs"][0]["key"]
    assert clients[1].delete(f"/api/v1/runs/{key}").status_code == 403


def test_a_run_that_leaves_the_memory_is_gone_from_the_page() -> None:
    runs = MemoryRuns(one=MemoryRun(FILE), two=MemoryRun(FILE))
    with TestClient(make_app(runs, lambda *_: b""), base_url="http://localhost") as client:
        assert client.get("/api/v1/runs/one").status_code == 200
        del runs.runs["one"]
        assert client.get("/api/v1/runs/one").status_code == 404
        wait_until(lambda: client.get("/api/v1/runs").json()["total"] == 1, "the list without it")


# -- documents


@pytest.mark.parametrize("format", ["json", "md", "svg"])
def test_reports_are_the_same(format: str, folders: FolderRuns, memory: MemoryRuns) -> None:
    def draw(runs: Runs) -> Any:
        keys = [key for key in runs.list_keys() if "monitor" not in key]
        found = [draw_report([(key, runs.open(key))], format, resolve({})) for key in keys]
        both = draw_report([(key, runs.open(key)) for key in keys[:2]], format, resolve({}))
        return [plain(json.loads(text)) if format == "json" else _without_place(text) for text in [*found, both]]

    in_both(folders, memory, draw)


def _without_place(text: bytes) -> list[str]:
    return [line for line in text.decode().splitlines() if "memory:" not in line and "runs0/" not in line]


def test_the_page_as_a_file_and_a_picture_are_made_without_a_folder(memory: MemoryRuns) -> None:
    key = next(key for key in memory.list_keys() if "baseline" in key)
    run = (key, memory.open(key))
    assert b"baseline" in draw_report([run], "html", resolve({}))
    assert draw_picture([run], "png", names=["loss"]).startswith(b"\x89PNG")


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_exported_without_a_folder(format: str, memory: MemoryRuns, tmp_path: Path) -> None:
    key = next(key for key in memory.list_keys() if "baseline" in key)
    with open(tmp_path / "out", "wb") as file:
        write_rows(Rows(memory.open(key), ("training",)), format, file)
    assert (tmp_path / "out").stat().st_size > 10_000


def test_the_summary_in_the_terminal_is_the_same(folders: FolderRuns, memory: MemoryRuns) -> None:
    paint = Paint(sys.stdout)

    def draw(runs: Runs) -> list[str]:
        return [_draw(runs.open(key), runs) for key in runs.list_keys()]

    def _draw(reader: Reader, runs: Runs) -> str:
        summary = read_summary(reader, runs)
        lines = draw_summary(summary, paint, next_steps=False).splitlines()
        settings = resolve({})
        price = read_price(reader, summary, settings)
        details = draw_details(summary, read_findings(reader, settings), price, reader, paint, None)
        return "\n".join([*(line for line in lines if not set(line.split()) & {"folder", "history"}), details])

    in_both(folders, memory, draw)


# -- the terminal


def test_every_page_of_the_terminal_is_drawn_alike(folders: FolderRuns, memory: MemoryRuns) -> None:
    for key in folders.list_keys():
        of_folder = frames(refer_to(folders.folder(key)), folders)
        of_memory = frames(memory.refer_to(key), memory)
        assert [frame for frame in of_memory if "no data" in frame] == []
        assert of_memory == of_folder, key


# -- live


FILE = RunFile.parse({"id": "one", "project": "p", "status": "running", "started": format_time(START)})
TRAINING = FileName("training", 1, "20260115_100000", rank=0)


def test_what_is_added_reaches_the_terminal() -> None:
    runs = MemoryRuns(one=MemoryRun(FILE))
    feed = Feed(TopOptions(run=runs.refer_to("one"), runs=runs, sources=()))
    assert feed.read().run.values == {}  # type: ignore[union-attr]
    runs.runs["one"].rows.append((TRAINING, {"timestamp": format_time(START), "step": 7, "loss": 0.5}))
    run = feed.read().run
    assert run is not None and (run.step, run.values["loss"]) == (7, 0.5)
    feed.stop()


def test_a_run_of_the_list_is_shown_when_it_is_chosen(memory: MemoryRuns) -> None:
    feed = Feed(TopOptions(runs=memory, sources=()))
    feed.want(Request(page="runs"))
    rows = feed.read().runs
    assert [row.key for row in rows] == list(reversed(memory.list_keys()))
    feed.choose(rows[0])
    assert feed.read().run.id == rows[0].info.id  # type: ignore[union-attr]
    feed.stop()
