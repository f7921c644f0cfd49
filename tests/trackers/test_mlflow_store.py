"""Runs that the real MLflow client logged: to files, to a database, to a server."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from made_imports import points, reader_of, take, values
from waiting import free_port, wait_until

from trainvitals import settings
from trainvitals.journal.encoding import format_time
from trainvitals.journal.media import list_rows
from trainvitals.trackers import mlflow_media, mlflow_store
from trainvitals.trackers.importing import Import, Imported, ImportFailed
from trainvitals.trackers.point_rows import PointColumns, PointRows
from trainvitals.trackers.registry import REGISTRY
from trainvitals.trackers.run_writing import TrackedRuns

SCRIPT = """
import math, os, sys, mlflow, numpy

mlflow.set_tracking_uri(sys.argv[1])
mlflow.set_experiment("an experiment")
with mlflow.start_run(run_name="base", tags={"team": "x"}, description="a note"):
    mlflow.log_params({"lr": 0.1, "password": "hunter22"})
    for step in range(20):
        mlflow.log_metric("train/loss", 1 / (step + 1), step=step, timestamp=1763380000123 + step)
    for step, value in enumerate([math.nan, math.inf, -math.inf, 1.5]):
        mlflow.log_metric("odd", value, step=step, timestamp=1763380000123 + step)
    mlflow.log_metric("odd", 2.5, step=0, timestamp=1763380000200)
    mlflow.log_metrics({"a": 1.0, "b": 2.0}, step=9)
    image = numpy.full((4, 4, 3), 200, "uint8")
    mlflow.log_image(image, key="val/mask", step=3)
    mlflow.log_image(image, "plots/plain.png")
    mlflow.log_table({"word": ["a", "b"], "count": [1, 2]}, "words.json")
    mlflow.log_text("hello", "note.txt")
try:
    with mlflow.start_run(run_name="bad"):
        mlflow.log_metric("loss", 3.0, step=1)
        raise RuntimeError
except RuntimeError:
    pass
mlflow.start_run(run_name="open")
mlflow.log_metric("loss", 1.0, step=1)
os._exit(0)
"""
MORE = """
import sys
from mlflow.tracking import MlflowClient

client = MlflowClient(sys.argv[1])
(experiment,) = [item for item in client.search_experiments() if item.name == "an experiment"]
(run,) = [item for item in client.search_runs([experiment.experiment_id]) if item.info.run_name == "open"]
client.log_metric(run.info.run_id, "loss", 0.5, step=2)
client.set_terminated(run.info.run_id)
"""
ENVIRON = {
    **os.environ,
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


def _run(script: str, address: str, folder: Path) -> None:
    """Artifacts of a database are in a folder where the program was started."""
    subprocess.run([sys.executable, "-c", script, address], check=True, env=ENVIRON, capture_output=True, cwd=folder)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same runs in `mlruns/` and in `mlflow.db`."""
    folder = tmp_path_factory.mktemp("mlflow")
    (folder / "started").mkdir()
    _run(SCRIPT, str(folder / "mlruns"), folder / "started")
    _run(SCRIPT, f"sqlite:///{folder / 'mlflow.db'}", folder / "started")
    return folder


def _expect_runs(found: list[Imported]) -> None:
    by_name = {item.run.file.name: reader_of(item) for item in found}
    base = by_name["base"]
    assert points(base, "train/loss") == [
        (step, f"2025-11-17T11:46:40.{123 + step}000Z", 1 / (step + 1)) for step in range(20)
    ]
    assert values(base, "odd") == ["NaN", "Infinity", "-Infinity", 1.5, 2.5]
    assert [row for row in base.rows() if "a" in row] == [row for row in base.rows() if "b" in row]
    file = base.info.file
    assert (file.project, file.status, file.tags, file.notes) == ("an experiment", "finished", ("team=x",), "a note")
    assert file.config == {"lr": "0.1", "password": "[redacted]"}
    assert file.started is not None and file.ended is not None
    assert by_name["bad"].info.status == "failed"
    assert by_name["open"].info.status == "running"


@pytest.mark.parametrize("form", ["mlruns", "mlflow.db", "sqlite:///", "."])
def test_runs_of_the_real_client_are_imported_value_by_value(stores: Path, tmp_path: Path, form: str) -> None:
    target = {"sqlite:///": f"sqlite:///{stores / 'mlflow.db'}", ".": str(stores)}.get(form, str(stores / form))
    found = take("mlflow", target, tmp_path)
    _expect_runs(found)
    (base,) = [item for item in found if item.run.file.name == "base"]
    media = {row["name"]: row for row in list_rows(base.run.folder)}
    assert {name: (row["kind"], row.get("step")) for name, row in media.items()} == {
        "val/mask": ("image", 3),
        "plots/plain.png": ("image", None),
        "words.json": ("table", None),
    }
    table = json.loads((base.run.folder / "media" / media["words.json"]["file"]).read_text())
    assert table == {"columns": ["word", "count"], "data": [["a", 1], ["b", 2]]}
    assert base.left_out == {mlflow_media.LEFT_OUT: 1}
    assert [(item.rows, item.is_new) for item in take("mlflow", target, tmp_path)] == [(0, False)] * 3


@pytest.mark.parametrize("form", ["mlruns", "mlflow.db"])
def test_a_run_that_went_on_gets_only_what_is_new(stores: Path, tmp_path: Path, form: str) -> None:
    address = str(tmp_path / form) if form == "mlruns" else f"sqlite:///{tmp_path / form}"
    if form == "mlruns":
        shutil.copytree(stores / form, tmp_path / form)
    else:
        shutil.copy(stores / form, tmp_path / form)
    take("mlflow", address, tmp_path / "runs")
    _run(MORE, address, tmp_path)
    found = {item.run.file.name: item for item in take("mlflow", address, tmp_path / "runs")}
    assert {name: item.rows for name, item in found.items()} == {"base": 0, "bad": 0, "open": 1}
    reader = reader_of(found["open"])
    assert values(reader, "loss") == [1.0, 0.5]
    assert reader.info.status == "finished"


def test_a_server_is_asked_for_the_same(stores: Path, tmp_path: Path) -> None:
    import http.client

    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    shutil.copy(stores / "mlflow.db", tmp_path / "served.db")
    store = ["--backend-store-uri", f"sqlite:///{tmp_path / 'served.db'}"]
    server = subprocess.Popen(
        [*command, *store], env=ENVIRON, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
    )

    def answers() -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    try:
        wait_until(answers, "MLflow's server")
        target = f"http://somebody:hunter22@127.0.0.1:{port}"
        found = take("mlflow", target, tmp_path)
        _expect_runs(found)
        assert [item.rows for item in take("mlflow", target, tmp_path)] == [0, 0, 0]
        assert "hunter22" not in (found[0].run.folder / "run.json").read_text()
        (base,) = [item for item in found if item.run.file.name == "base"]
        before = points(reader_of(base), "train/loss")
        for moment, value in ((1, 7.0), (1, math.nan)):  # long before all others
            late = {"run_id": base.run.origin.key, "key": "train/loss", "value": value, "timestamp": moment, "step": 3}
            sent = urllib.request.Request(
                f"http://127.0.0.1:{port}/api/2.0/mlflow/runs/log-metric",
                json.dumps({**late, "value": "NaN"} if math.isnan(value) else late).encode(),
                {"Content-Type": "application/json"},
            )
            assert urllib.request.urlopen(sent).status == 200
        assert sorted(item.rows for item in take("mlflow", target, tmp_path)) == [0, 0, 2]
        after = points(reader_of(base), "train/loss")
        assert Counter(map(str, after)) - Counter(map(str, before)) == Counter(
            [str((3, format_time(0.001), 7.0)), str((3, format_time(0.001), "NaN"))]
        )
        assert len(after) == len(before) + 2
        assert [item.rows for item in take("mlflow", target, tmp_path)] == [0, 0, 0]
        _expect_few_requests(port, tmp_path / "followed")
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def _expect_few_requests(port: int, root: Path) -> None:
    """Followed, an MLflow server is asked for histories only where there is something new."""
    asked: list[str] = []

    class Counting(BaseHTTPRequestHandler):
        def pass_on(self, body: bytes | None = None) -> None:
            asked.append(self.path.partition("?")[2] if "get-history" in self.path else "")
            request = urllib.request.Request(f"http://127.0.0.1:{port}{self.path}", body)
            request.add_header("Content-Type", "application/json")
            with urllib.request.urlopen(request) as answer:
                content = answer.read()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self.pass_on()

        def do_POST(self) -> None:
            self.pass_on(self.rfile.read(int(self.headers["Content-Length"])))

        def log_message(self, *_: object) -> None:
            pass

    between = ThreadingHTTPServer(("127.0.0.1", 0), Counting)
    Thread(target=between.serve_forever, daemon=True).start()
    try:
        source = REGISTRY["mlflow"].open(f"http://127.0.0.1:{between.server_port}")
        work = Import("mlflow", source, TrackedRuns(root, settings.resolve(environ={}, search=False)))
        first = {item.run.file.name: item.run for item in work.take()}
        assert any(asked)
        asked.clear()
        assert [item.rows for item in work.take()] == [0, 0, 0]
        assert not any(asked) and len(asked) <= 3, "the experiments, and the runs of each"
        point = {"run_id": first["open"].origin.key, "key": "loss", "value": 0.25, "timestamp": 2**41, "step": 9}
        address = f"http://127.0.0.1:{port}/api/2.0/mlflow/runs/log-metric"
        kind = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(address, json.dumps(point).encode(), kind)).close()
        assert sorted(item.rows for item in work.take()) == [0, 0, 1]
        assert len([query for query in asked if query]) == 1
    finally:
        between.shutdown()
        between.server_close()


@pytest.mark.parametrize(
    "status, body", [(500, b"{}"), (200, b"<html>"), (429, b"slow down"), (200, b"[1]"), (404, b"")]
)
def test_a_server_that_answers_otherwise_is_an_error_that_names_it(tmp_path: Path, status: int, body: bytes) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        if body == b"[1]":
            assert take("mlflow", f"http://127.0.0.1:{server.server_port}", tmp_path) == []
        else:
            with pytest.raises(ImportFailed, match=r"127\.0\.0\.1"):
                take("mlflow", f"http://127.0.0.1:{server.server_port}", tmp_path)
    finally:
        server.shutdown()
        server.server_close()


def test_what_is_no_store_is_an_error_that_says_so(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (a)").connection.close()
    (tmp_path / "text.db").write_text("not a database")
    for target in ("other.db", "text.db", "missing"):
        with pytest.raises(ImportFailed):
            take("mlflow", tmp_path / target, tmp_path)
    with pytest.raises(ImportFailed, match="http://"):
        take("mlflow", "postgresql://user:hunter22@host/db", tmp_path)


def test_a_server_whose_import_was_killed_within_a_metric_gives_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_store, "READ_POINTS", 10)
    monkeypatch.setattr(mlflow_store, "PIECE_POINTS", 10)
    history = [{"timestamp": 1000 + step, "step": step, "value": step / 2} for step in range(35)]
    answers = {
        "experiments/search": {"experiments": [{"experiment_id": "1", "name": "e"}]},
        "runs/search": {"runs": [{"info": {"run_id": "r"}, "data": {"metrics": [{"key": "loss"}]}}]},
        "metrics/get-history": {"metrics": history},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(next(answer for route, answer in answers.items() if route in self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()

    def read(position: Mapping[str, Any], pieces: int | None = None) -> tuple[list[int | None], Mapping[str, Any]]:
        (run,) = REGISTRY["mlflow"].open(f"http://127.0.0.1:{server.server_port}").runs()
        found = [piece for piece in run.read(position) if piece.lines is not None and len(piece.lines)][:pieces]
        rows = [step for piece in found if piece.lines is not None for _, step, _ in piece.lines.rows()]
        return rows, found[-1].position if found else position

    try:
        first, position = read({}, 2)
        assert first == list(range(20))
        rest, position = read(position)
        assert rest == list(range(20, 35))
        history.insert(0, {"timestamp": 1, "step": 99, "value": 7.0})  # now all of it is given again
        first, stopped = read(position, 2)
        again, _ = read(stopped)
        assert again == [99, *range(35)], "the run knows which of these it has: from the start"
        assert first == again[:20]
    finally:
        server.shutdown()
        server.server_close()


def test_points_of_one_time_and_step_are_one_row_unless_a_metric_is_there_twice() -> None:
    rows = PointRows()
    rows.add(PointColumns(["b", "a", "a", "b", "a"], [5, 5, 5, 4, 5], [1, 1, 1, 9, 2], [1.0, 2.0, 3.0, 4.0, math.inf]))
    rows.add(PointColumns(["c", "a", "a", "a"], [5, 5.5, 2**70, 5], [1, 1, 1, None], [6.0, 0.0, 0.0, 0.0]))
    assert list(rows.make_lines().rows()) == [
        (4000, 9, {"b": 4.0}),
        (5000, 1, {"b": 1.0, "a": 2.0, "c": 6.0}),
        (5000, 1, {"a": 3.0}),
        (5000, 2, {"a": math.inf}),
    ]
    assert (rows.count, rows.damaged) == (6, 3)


@pytest.mark.promise("an MLflow database names a folder outside its own as its artifacts", "nothing in it is read")
def test_only_artifacts_below_the_store_are_read(tmp_path: Path) -> None:
    (tmp_path / "store/runs").mkdir(parents=True)
    (tmp_path / "store/out").symlink_to(tmp_path)
    within = tmp_path / "store"
    assert mlflow_media.find_folder(f"file://{within}/runs", within) == within / "runs"
    for address in (
        str(tmp_path),
        f"file://{within}/../",
        f"{within}/out",
        "s3://bucket/a",
        "mlflow-artifacts:/1",
        None,
    ):
        assert mlflow_media.find_folder(address, within) is None, address
    (within / "runs/secret.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "secret.png").write_bytes(b"\x89PNG secret")
    (within / "runs/fake.png").write_bytes(b"no picture")
    (piece,) = mlflow_media.LocalArtifacts().read(within / "runs", {}, {})
    assert (piece.media, piece.left_out) == ([], {mlflow_media.LEFT_OUT: 2})
