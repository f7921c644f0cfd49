"""The mirror in MLflow: a real server and real stores, and servers that answer badly."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mirrored import START, MlflowServer, make_rows, make_run
from servers import Answering

from trainvitals.exporters import mlflow
from trainvitals.exporters.mlflow import MlflowMirror, StoreServer
from trainvitals.exporters.rows import RowsRefused, RunDescription, RunEnd, TryLater
from trainvitals.journal.documents.cause import Cause
from trainvitals.settings import resolve

SETTINGS = resolve(environ={}, folder=Path("/"))
MS = round(START * 1000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    found = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    yield found
    found.kill()


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds to draw, and is the subject of other tests."""
    monkeypatch.setattr(MlflowMirror, "_send_report", lambda mirror: None)


def open_mirror(run: RunDescription, target: str) -> MlflowMirror:
    mirror = mlflow.create(target, SETTINGS)
    mirror.open(run)
    return mirror


def history(client: Any, run: Any, name: str) -> list[tuple[int, int, float]]:
    points = client.get_metric_history(run.info.run_id, name)
    return sorted((point.step, point.timestamp, point.value) for point in points)


def test_parameters_metrics_tags_and_the_end_are_the_runs(server: MlflowServer, tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "whole",
        project="whole",
        config={"lr": 0.1, "optimizer": {"name": "adam"}, "long": "x" * 10_000},
        tags=["small", "odd/тag"],
        notes="a *note*",
        status="failed",
        started="2027-01-15T08:00:00Z",
        ended="2027-01-15T08:05:00Z",
    )
    logged = make_rows([{"loss": 1.0 / (step + 1), "val/acc": 0.5, "bad": "NaN"} for step in range(2500)])
    other = make_rows([{"loss": 9.0}], file="training_metrics_20260101_000000.rank1", rank=1)
    gpu = make_rows([{"gpu_index": 0, "utilization_percent": 50.0, "memory_used_mb": 1000.0}], "gpu", file="gpu")
    host = make_rows([{"host": "box", "cpu_usage_percent": 12.5, "load_1m": 2.0}], "system", file="system")
    mirror = open_mirror(run, server.url)
    mirror.write([*logged, *other, *gpu, *host])
    mirror.close(RunEnd("failed", Cause(detail="boom")))
    (found,) = server.runs("whole")
    client = server.client()
    assert history(client, found, "loss") == [(n, MS + 1000 * n, 1.0 / (n + 1)) for n in range(2500)]
    assert all(math.isnan(value) for _, _, value in history(client, found, "bad"))
    assert found.data.metrics["rank1/loss"] == 9.0 and found.data.metrics["val/acc"] == 0.5
    assert found.data.metrics["system/gpu_0_utilization_percentage"] == 50.0
    assert found.data.metrics["system/gpu_0_memory_usage_megabytes"] == pytest.approx(1048.576)
    assert found.data.metrics["system/cpu_utilization_percentage"] == 12.5 and found.data.metrics["system/load_1m"] == 2
    assert found.data.params == {"lr": "0.1", "optimizer.name": "adam", "long": "x" * 6000}
    assert (found.info.run_name, found.info.status, found.info.start_time) == ("base", "FAILED", MS)
    assert found.info.end_time == 1_800_000_300_000
    tags = found.data.tags
    assert tags["small"] == tags["odd/_ag"] == "true" and tags["mlflow.note.content"] == "a *note*"
    assert "boom" in tags["trainvitals.cause"]
    (report,) = client.list_artifacts(found.info.run_id, "trainvitals")
    assert report.path == "trainvitals/report.html" and report.file_size > 10_000
    assert mirror.link is not None and mirror.link.endswith(f"/runs/{found.info.run_id}")


@pytest.mark.usefixtures("no_report")
def test_rows_that_come_twice_are_there_once_and_a_resumed_run_goes_on(server: MlflowServer, tmp_path: Path) -> None:
    run = make_run(tmp_path / "twice", project="twice")
    rows = make_rows([{"loss": float(step)} for step in range(30)])
    mirror = open_mirror(run, server.url)
    mirror.write(rows[:20])
    mirror.close(RunEnd("killed"))
    assert [item.info.status for item in server.runs("twice")] == ["KILLED"]
    for path in (tmp_path / "twice" / "exports").glob("*.json"):
        path.unlink()  # as if the agent was killed before it could note the run
    mirror = open_mirror(run, server.url)
    assert [item.info.status for item in server.runs("twice")] == ["RUNNING"]
    mirror.write(rows)
    mirror.close(RunEnd("finished"))
    (found,) = server.runs("twice")
    assert [step for step, _, _ in history(server.client(), found, "loss")] == list(range(30))
    assert found.info.status == "FINISHED"


def test_names_that_mlflow_does_not_allow_stay_apart(server: MlflowServer, tmp_path: Path) -> None:
    run = make_run(tmp_path / "names", project="names", config={"a?": 1, "a!": 2, "a_": 3})
    long = "n" * 250
    mirror = open_mirror(run, server.url)
    mirror.write(make_rows([{"a?": 1.0, "a!": 2.0, "/x//y": 3.0, "../z": 4.0, f"{long}n": 5.0, f"{long}o": 7.0}]))
    mirror.close(None)
    mirror = open_mirror(run, server.url)
    mirror.write(make_rows([{}, {"a!": 6.0, "a_": 8.0, "top_5": 9.0, "top@5": 10.0}]))
    mirror.close(None)
    (found,) = server.runs("names")
    assert found.data.metrics == {
        "a_": 1.0,
        "a__2": 6.0,
        "a__3": 8.0,
        "top_5": 9.0,
        "top_5_2": 10.0,
        "_/x/_/y": 3.0,
        "_/z": 4.0,
        long: 5.0,
        f"{long[:-2]}_2": 7.0,
    }
    assert found.data.params == {"a_": "1", "a__2": "2", "a__3": "3"}


def test_a_parameter_that_is_refused_costs_nothing_but_itself(server: MlflowServer, tmp_path: Path) -> None:
    run = make_run(tmp_path / "params", project="params", config={"lr": 1})
    mirror = open_mirror(run, server.url)
    mirror.write(make_rows([{"loss": 1.0}]))
    client, (found,) = server.client(), server.runs("params")
    client.log_param(found.info.run_id, "depth", "7")
    make_run(tmp_path / "params", project="params", config={"lr": 1, "depth": 8})
    mirror.write(make_rows([{}, {"loss": 2.0}]))
    mirror.close(None)
    (found,) = server.runs("params")
    assert found.data.params["depth"] == "7" and "trainvitals.refused_parameters" in found.data.tags
    assert found.data.metrics["loss"] == 2.0


@pytest.mark.parametrize("kind", ["sqlite", "folder"])
def test_a_database_or_a_folder_is_kept_by_mlflow_in_a_child_that_may_be_killed(kind: str, tmp_path: Path) -> None:
    import mlflow as their

    target = f"sqlite:///{tmp_path / 'runs.db'}" if kind == "sqlite" else str(tmp_path / "mlruns")
    run = make_run(tmp_path / "stored", project="stored")
    rows = make_rows([{"loss": float(step)} for step in range(20)])
    mirror = open_mirror(run, target)
    mirror.write(rows[:10])
    store = mirror._server
    assert isinstance(store, StoreServer) and store._child is not None
    os.kill(store._child.pid, signal.SIGKILL)
    with pytest.raises(OSError, match="its process ended with SIGKILL"):
        mirror.write(rows[10:])
    mirror.write(rows[10:])
    mirror.close(RunEnd("finished"))
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    try:
        client = their.MlflowClient(target)
        experiment = client.get_experiment_by_name("stored")
        (found,) = client.search_runs([experiment.experiment_id])
        assert [step for step, _, _ in history(client, found, "loss")] == list(range(20))
        assert client.list_artifacts(found.info.run_id, "trainvitals")
    finally:
        del os.environ["MLFLOW_ALLOW_FILE_STORE"]


# -- servers that answer badly


def answers(*given: tuple[int, object]) -> list[tuple[int, bytes, dict[str, str]]]:
    return [(status, body if isinstance(body, bytes) else json.dumps(body).encode(), {}) for status, body in given]


OPENING = (
    (200, {"experiment": {"experiment_id": "7", "lifecycle_stage": "active"}}),
    (200, {"runs": []}),
    (200, {"run": {"info": {"run_id": "abc"}}}),
    (200, {"run_info": {"run_id": "abc", "artifact_uri": "s3://bucket/7/abc"}}),
)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ((500, b"oops"), "MLflow returned 500"),
        ((503, b""), "MLflow returned 503"),
        ((401, b"who are you"), "MLflow returned 401"),
        ((404, b"<html>"), "MLflow returned 404"),
        ((200, b"<html>please log in</html>"), "is not MLflow's"),
        ((302, b""), "is not MLflow's"),
        ((200, b"[1, 2]"), "is not MLflow's"),
        ((0, b"\x00\xff garbage"), "BadStatusLine|garbage|line"),
    ],
)
def test_a_bad_answer_is_a_reason_to_try_again(
    reply: tuple[int, bytes], reason: str, answering: Answering, tmp_path: Path
) -> None:
    answering.answers = answers(*OPENING, (200, {}), reply, (200, {}))
    mirror = open_mirror(make_run(tmp_path / "r"), answering.url)
    with pytest.raises(OSError, match=reason):
        mirror.write(make_rows([{"loss": 1.0}]))
    answering.answers = answers((200, {}))
    mirror.write(make_rows([{"loss": 1.0}]))
    mirror.close(None)
    bodies = [json.loads(body) for path, _, body in answering.received if path.endswith("log-batch")]
    assert bodies[-1]["metrics"] == [{"key": "loss", "value": 1.0, "timestamp": MS, "step": 0}]


def test_a_server_that_asks_for_a_pause_gets_it(answering: Answering, tmp_path: Path) -> None:
    answering.answers = [*answers(*OPENING, (200, {})), (429, b"{}", {"Retry-After": "17"})]
    mirror = open_mirror(make_run(tmp_path / "r"), answering.url)
    with pytest.raises(TryLater) as raised:
        mirror.write(make_rows([{"loss": 1.0}]))
    assert raised.value.seconds == 17
    mirror.close(None)


def test_rows_that_are_refused_for_good_are_not_tried_again(answering: Answering, tmp_path: Path) -> None:
    refusal = {"error_code": "INVALID_PARAMETER_VALUE", "message": "too much\nof it"}
    answering.answers = answers(*OPENING, (200, {}), (400, refusal))
    mirror = open_mirror(make_run(tmp_path / "r"), answering.url)
    with pytest.raises(RowsRefused, match="400 INVALID_PARAMETER_VALUE: too much"):
        mirror.write(make_rows([{"loss": 1.0}]))
    mirror.close(None)


def test_no_server_is_a_reason_to_try_again_and_lets_go_of_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    for _ in range(2):
        with pytest.raises(OSError, match="refused"):
            open_mirror(run, "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("address", "environment", "header"),
    [
        ("joe:hunter2hunter2@", {}, "Basic am9lOmh1bnRlcjJodW50ZXIy"),
        ("", {"MLFLOW_TRACKING_USERNAME": "joe", "MLFLOW_TRACKING_PASSWORD": "p"}, "Basic am9lOnA="),
        ("", {"MLFLOW_TRACKING_TOKEN": "hunter2hunter2"}, "Bearer hunter2hunter2"),
    ],
)
def test_credentials_go_to_the_server_and_nowhere_else(
    address: str, environment: dict[str, str], header: str, answering: Answering, tmp_path: Path
) -> None:
    answering.answers = answers(*OPENING, (200, {}))
    run = make_run(tmp_path / "r", environment)
    mirror = open_mirror(run, answering.url.replace("://", f"://{address}"))
    mirror.write(make_rows([{"loss": 1.0}]))
    mirror.close(None)
    assert {headers.get("authorization") for _, headers, _ in answering.received} == {header}
    kept = "".join(path.read_text() for path in (tmp_path / "r").rglob("*") if path.is_file())
    assert "hunter2" not in kept + str(mirror.link)
