"""Twenty thousand runs below one folder, and a configuration of ten megabytes: lists stay bounded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import trainvitals
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.reader import open_run
from trainvitals.views.web.app import make_app

RUNS = 20_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many")
    for number in range(RUNS):
        day, second = divmod(number, 1000)
        name = f"202601{day + 1:02d}-{second // 60:04d}{second % 60:02d}-run-{number:05d}"
        folder = root / "p" / name
        os.makedirs(folder)
        document = {"id": name, "project": "p", "name": f"run {number}", "status": "finished", "config": {"lr": number}}
        (folder / "run.json").write_text(json.dumps(document))
    return root


@pytest.mark.promise("20,000 runs in the page's list", "a page of them is bounded, and all can be reached and found")
def test_a_page_of_very_many_runs_has_what_was_asked_for(many: Path) -> None:
    client = TestClient(make_app(FolderRuns(many), lambda *_: b""), base_url="http://localhost")
    first = client.get("/api/v1/runs", params={"limit": 100})
    assert first.json()["total"] == RUNS and len(first.json()["runs"]) == 100
    assert len(first.content) < 200_000
    last = client.get("/api/v1/runs", params={"limit": 100, "offset": RUNS - 50}).json()["runs"]
    assert len(last) == 50 and last[-1]["name"] == "run 0"
    found = client.get("/api/v1/runs", params={"q": "lr=12345"}).json()
    assert [run["name"] for run in found["runs"]] == ["run 12345"]
    assert client.get("/api/v1/runs", params={"limit": 10**9}).status_code == 400


@pytest.mark.promise("20,000 runs listed by a command", "every run is listed, in less than 500 MB")
def test_very_many_runs_are_listed_in_little_memory(many: Path) -> None:
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (500 << 20, 500 << 20))\n"
        "from trainvitals.views.cli.main import main; sys.exit(main(['runs', '--dir', sys.argv[1], '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", program, many], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == RUNS


@pytest.mark.promise("a configuration of 10 MB", "it is cut and says so; the run is listed and shown")
def test_a_huge_configuration_is_cut_and_the_run_is_shown(tmp_path: Path) -> None:
    config = {f"key_{number}": "x" * 1000 for number in range(10_000)}
    run = trainvitals.init(project="p", name="huge", dir=tmp_path, agent=False, capture_git=False, config=config)
    run.log({"loss": 1.0}, step=0)
    run.finish()
    assert (run.folder / "run.json").stat().st_size < 4 << 20
    client = TestClient(make_app(FolderRuns(tmp_path), lambda *_: b""), base_url="http://localhost")
    (row,) = client.get("/api/v1/runs").json()["runs"]
    assert row["name"] == "huge"
    assert client.get(f"/api/v1/runs/{row['key']}").status_code == 200
    assert [item["step"] for item in open_run("latest", tmp_path).rows()] == [0]


@pytest.mark.promise("a run.json of 10 MB that somebody else wrote", "it is listed and shown")
def test_a_huge_document_of_somebody_else_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "p" / "huge"
    folder.mkdir(parents=True)
    config = {f"key_{number}": {"deep": ["x" * 1000]} for number in range(10_000)}
    (folder / "run.json").write_text(json.dumps({"id": "huge", "name": "huge", "status": "finished", "config": config}))
    client = TestClient(make_app(FolderRuns(tmp_path), lambda *_: b""), base_url="http://localhost")
    answer = client.get("/api/v1/runs")
    assert answer.status_code == 200 and [row["name"] for row in answer.json()["runs"]] == ["huge"]
    assert client.get("/api/v1/runs/huge").status_code == 200
    command = [sys.executable, "-m", "trainvitals", "runs", "show", str(folder)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
