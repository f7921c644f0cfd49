"""Two places that keep the same runs, asked the same by every view."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from trainvitals.journal.contracts import RunRef, Runs
from trainvitals.journal.encoding import parse_time
from trainvitals.views.data.layers import LAYER_MEASURES
from trainvitals.views.tui import screen
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.options import TopOptions
from trainvitals.views.tui.snapshot import Request
from trainvitals.views.tui.view import PAGES, View

sys.path.insert(0, str(Path(__file__).parent / "views" / "tui"))  # story.py; importlib mode adds no path

import story

START = story.START
BEFORE = Path(__file__).parent / "data" / "runs_before"


def make_runs(place: Path) -> None:
    """Runs of an earlier version (sealed, resumed, of several ranks, monitored, live), and one with a story."""
    for folder in sorted(BEFORE.glob("*/*/run.json")):
        if "damaged" not in folder.parent.name:  # damage is of files
            shutil.copytree(folder.parent, place / folder.parent.parent.name / folder.parent.name)
    story.make_run(place)


def plain(value: Any) -> Any:
    """Without where a run is kept: that is all that may differ."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in ("folder", "root", "version", "written")}
    return [plain(item) for item in value] if isinstance(value, list) else value


def questions(run: dict[str, Any]) -> Iterator[str]:
    yield ""
    for table, known in run["tables"].items():
        names = "&".join(f"name={name}" for name in known["names"][:40])
        for x in ("step", "time", "relative") if table == "training" else ("time", "relative"):
            yield f"/series?table={table}&x={x}&{names}"
            yield f"/series?table={table}&x={x}&points=20&{names}"
        yield f"/series?table={table}&x=time&band=true&{names}"
    yield "/series?name=loss&all_attempts=true"
    yield "/series?name=loss&start=10&end=30&rank=0"
    yield "/states?table=gpu&name=throttle_reasons"
    yield from (f"/layers?measure={measure}" for measure in LAYER_MEASURES)
    yield "/events"
    yield "/alerts"
    yield "/diagnosis"
    yield from (f"/stacks/{name}" for name in run["stacks"])
    yield from (f"/console/{name}" for name in run["consoles"])
    yield "/console/none.log"
    yield from (f"/export?format={format}&table={table}" for format in ("csv", "jsonl") for table in run["tables"])


def export_rows(question: str, export: bytes) -> list[list[tuple[str, str]]]:
    """The rows of an export, with columns in any order. Sealed, an integer is a float, and a
    time has microseconds."""
    lines = export.decode().splitlines()
    rows = csv.DictReader(lines) if "format=csv" in question else map(json.loads, lines)
    return sorted(sorted((name, _plain_cell(name, item)) for name, item in row.items()) for row in rows)


def _plain_cell(name: str, item: object) -> str:
    if name == "timestamp":
        return str(parse_time(item))
    is_number = isinstance(item, int) or re.fullmatch(r"-?\d+(\.\d+)?", str(item))
    return str(float(str(item))) if is_number and not isinstance(item, bool) else str(item)


def check_answers(of_folders: TestClient, of_others: TestClient, runs: int) -> None:
    """Everything that the page may ask."""
    clients = of_folders, of_others
    listed = [plain(client.get("/api/v1/runs").json()) for client in clients]
    assert listed[0] == listed[1]
    assert len(listed[0]["runs"]) == runs > 2
    for row in listed[0]["runs"]:
        address = f"/api/v1/runs/{row['key']}"
        run = of_folders.get(address).json()
        asked = list(questions(run))
        assert len(asked) > 12
        for question in asked:
            answer, other = (client.get(address + question) for client in clients)
            assert answer.status_code == other.status_code, question
            if "/export" in question:
                mine, theirs = (export_rows(question, found.content) for found in (other, answer))
                different = [pair for pair in zip(mine, theirs, strict=True) if pair[0] != pair[1]][:1]
                assert different == [], (row["key"], question, different)
            else:
                assert plain(answer.json()) == plain(other.json()), (row["key"], question)


def frames(run: RunRef, runs: Runs) -> list[str]:
    feed = Feed(TopOptions(run=run, runs=runs, sources=()), clock=lambda: story.START + 180.0)
    found = []
    try:
        for page in (name for name, _ in PAGES if name != "processes"):  # those are of the machine
            feed.want(Request(page=page))
            drawn = screen.draw(feed.read(), View(page=page), 160, 50)
            found.append("\n".join("".join(segment.text for segment in line) for line in drawn.lines))
    finally:
        feed.stop()
    return found
