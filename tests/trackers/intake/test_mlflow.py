"""The real MLflow client, of both major versions, logs to a real server and reads back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from under_run import end_processes, run, runs
from waiting import PATIENCE, wait_until

from trainvitals.journal.stop_requests import request_stop

from .conftest import LocalServer, Server, clean_environ, count_rows, run_client

DOCUMENTED = """
import json, math
import mlflow

mlflow.set_experiment("team/animals")
with mlflow.start_run(run_name="baseline") as run:
    mlflow.log_params({"lr": 0.1, "layers": 2, "api_key": "sk-proj-abcdefghij0123456789abcdefghij"})
    for step in range(5):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
        mlflow.log_metrics({"odd": math.nan if step % 2 else step, "top": math.inf}, step=step)
    mlflow.set_tag("stage", "try")
    mlflow.log_text("hello", "notes/readme.txt")
    mlflow.log_dict({"a": 1}, "d.json")
    if hasattr(mlflow, "initialize_logged_model"):  # MLflow 3
        with open("weights.bin", "wb") as file:
            file.write(b"weights")
        model = mlflow.initialize_logged_model("net", params={"layers": "2"}, tags={"kind": "tiny"})
        mlflow.MlflowClient().log_model_artifact(model.model_id, "weights.bin")
        mlflow.finalize_logged_model(model.model_id, "READY")
        kept = mlflow.get_logged_model(model.model_id)
        assert (kept.name, kept.status, kept.source_run_id) == ("net", "READY", run.info.run_id), kept
        assert kept.params["layers"] == "2" and kept.tags["kind"] == "tiny", kept
        assert len(mlflow.search_logged_models(filter_string="name = 'net'", output_format="list")) == 1
        assert mlflow.artifacts.load_text(f"{kept.artifact_location}/weights.bin") == "weights"

from mlflow.entities import Dataset, DatasetInput, InputTag
client, run_id = mlflow.MlflowClient(), run.info.run_id
zoo = Dataset(name="zoo", digest="d1", source_type="local", source="zoo.csv")
client.log_inputs(run_id, [DatasetInput(zoo, [InputTag("mlflow.data.context", "training")])])
found = client.get_run(run_id)
experiment = client.get_experiment_by_name("team/animals").experiment_id
errors = []
for call in (
    lambda: client.log_param(run_id, "lr", "9"),
    lambda: client.get_run("nobody"),
    lambda: client.create_registered_model("m"),
):
    try:
        call()
    except mlflow.exceptions.MlflowException as error:
        errors.append(error.error_code)
print("RESULT" + json.dumps({
    "status": found.info.status,
    "metrics": {name: repr(value) for name, value in found.data.metrics.items()},
    "params": found.data.params,
    "tags": {"stage": found.data.tags["stage"]},
    "history": [(point.step, point.value) for point in client.get_metric_history(run_id, "loss")],
    "files": [file.path for place in (None, "notes") for file in client.list_artifacts(run_id, place)],
    "text": mlflow.artifacts.load_text(f"runs:/{run_id}/notes/readme.txt"),
    "found": len(client.search_runs([experiment],
        "metrics.loss < 1 and params.layers = '2' and tags.stage LIKE 't%'")),
    "by_dataset": [len(client.search_runs([experiment], f"dataset.name = '{name}'")) for name in ("zoo", "other")],
    "not_found": len(client.search_runs([experiment], "metrics.loss > 0.5")),
    "experiments": sorted(item.name for item in client.search_experiments()),
    "errors": errors,
}))
"""


@pytest.mark.parametrize("version", ["2.22.5", "installed"])
def test_a_script_after_the_documentation_logs_everything_and_reads_it_back(
    version: str, server: Server, client_python: Callable[[str], Path], tmp_path: Path
) -> None:
    python = sys.executable if version == "installed" else client_python(f"mlflow-skinny=={version}")
    printed = run_client(tmp_path / "work", DOCUMENTED, server.client_env, python)
    result = json.loads(printed.partition("RESULT")[2])
    assert result == {
        "status": "FINISHED",
        "metrics": {"loss": "0.2", "odd": "4.0", "top": "inf"},
        "params": {"lr": "0.1", "layers": "2", "api_key": "[redacted]"},
        "tags": {"stage": "try"},
        "history": [[step, 1 / (step + 1)] for step in range(5)],
        "files": ["d.json", *(["models"] if version == "installed" else []), "notes", "notes/readme.txt"],
        "text": "hello",
        "found": 1,
        "by_dataset": [1, 0],
        "not_found": 0,
        "experiments": ["Default", "team/animals"],
        "errors": ["INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "ENDPOINT_NOT_FOUND"],
    }
    reader, file = server.run(), server.file()
    assert [row["loss"] for row in reader.rows() if "loss" in row] == [1 / (step + 1) for step in range(5)]
    assert [row["odd"] for row in reader.rows() if "odd" in row] == [0, "NaN", 2, "NaN", 4]
    assert (file.name, file.project, file.status) == ("baseline", "team/animals", "finished")
    assert file.config == {"lr": "0.1", "layers": "2", "api_key": "[redacted]"}
    assert file.tags == ("stage=try",)
    assert (reader.folder / "artifacts" / "notes" / "readme.txt").read_text() == "hello"
    assert server.log.count("registered-models/create") == 1
    models = [path.read_bytes() for path in reader.folder.glob("artifacts/models/m-*/weights.bin")]
    assert models == ([b"weights"] if version == "installed" else [])


COUNTING = """
import mlflow

client = mlflow.MlflowClient()
run_id = client.create_run("0").info.run_id
for step in range(300):
    while True:  # the client does not try again where an answer was cut off in the middle
        try:
            client.log_metric(run_id, "loss", float(step), timestamp=1_700_000_000_000 + step, step=step)
            break
        except mlflow.exceptions.MlflowException as error:
            assert "Connection" in str(error), error
client.set_terminated(run_id)
"""


def test_the_addresses_that_the_client_prints_lead_to_the_run_and_its_project(server: Server, tmp_path: Path) -> None:
    script = (
        "import mlflow\nmlflow.set_experiment('team/animals')\nwith mlflow.start_run():\n    mlflow.log_metric('a', 1)"
    )
    printed = run_client(tmp_path / "work", script, server.client_env)
    bearer = {"authorization": f"Bearer {server.token}"}
    # The page takes what follows the # for a path (tests/views/web/test_mlflow_link.py).
    run, experiment = [line.rpartition(" at: ")[2].replace("/#/", "/") for line in printed.splitlines()[-2:]]
    places = []
    for address in (run, experiment, f"{run}x", f"{experiment}9"):
        answer = httpx.get(address, headers=bearer, timeout=PATIENCE)
        assert answer.status_code == 303, (address, answer.text)
        places.append(answer.headers["location"])
    folder = server.run().folder
    assert places == [f"/#/run/{folder.name}", "/#/runs?project=team%2Fanimals", "/#/runs", "/#/runs"]
    assert httpx.get(run, timeout=PATIENCE).status_code == 401


@pytest.mark.promise(
    "a server that MLflow clients log to is killed (kill -9) repeatedly", "nothing is lost or duplicated"
)
def test_a_killed_server_loses_and_doubles_nothing(server: Server, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(COUNTING)
    environ = clean_environ(HOME=str(tmp_path), **server.client_env)
    client = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL)
    for kills in range(1, 4):
        wait_until(lambda: client.poll() is not None or count_rows(server) > 40 * kills, "rows")  # noqa: B023
        server.kill()
        server.start()
    assert client.wait(PATIENCE) == 0
    assert [(row["step"], row["loss"]) for row in server.run().rows()] == [(step, float(step)) for step in range(300)]


def call(server: LocalServer | Server, route: str, **body: Any) -> httpx.Response:
    return server.post(f"/api/2.0/mlflow/{route}", body)


def begin(server: LocalServer | Server) -> str:
    run: str = call(server, "runs/create", experiment_id="0").json()["run"]["info"]["run_id"]
    return run


def test_a_batch_that_is_sent_again_is_taken_once_also_by_the_next_server(local: LocalServer) -> None:
    server = local
    run = begin(server)
    metrics = [
        {"key": "loss", "value": value, "timestamp": 1000 + step, "step": step} for step, value in enumerate((1, "NaN"))
    ]
    assert call(server, "runs/log-batch", run_id=run, metrics=metrics).status_code == 200
    assert call(server, "runs/log-batch", run_id=run, metrics=metrics).status_code == 200
    server.start()
    more = [*metrics, {"key": "loss", "value": 3, "timestamp": 2000, "step": 2}]
    assert call(server, "runs/log-batch", run_id=run, metrics=more).status_code == 200
    assert [(row["step"], row["loss"]) for row in server.run().rows()] == [(0, 1), (1, "NaN"), (2, 3)]


def test_tags_of_a_client_are_those_of_the_run_until_it_deletes_them(local: LocalServer) -> None:
    own = {"key": "team", "value": "x"}
    theirs = [{"key": "mlflow.user", "value": "me"}, {"key": "mlflow.note.content", "value": "a note"}]
    run = call(local, "runs/create", tags=[own, *theirs]).json()["run"]["info"]["run_id"]
    assert (local.file().tags, local.file().notes) == (("team=x",), "a note")
    call(local, "runs/set-tag", run_id=run, key="stage", value="try")
    call(local, "runs/log-batch", run_id=run, tags=[{"key": "stage", "value": "best"}])
    assert sorted(local.file().tags) == ["stage=best", "team=x"]
    for key in ("stage", "team"):
        assert call(local, "runs/delete-tag", run_id=run, key=key).status_code == 200
    assert local.file().tags == ()


def test_a_model_outside_of_a_run_has_a_run_of_its_own_and_an_unknown_one_is_missing(local: LocalServer) -> None:
    place = "/api/2.0/mlflow/logged-models"
    tags = [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]
    model = local.post(place, {"experiment_id": "0", "name": "net", "tags": tags}).json()["model"]
    assert (model["info"]["status"], local.file().name) == ("LOGGED_MODEL_PENDING", "net")
    one = f"{place}/{model['info']['model_id']}"
    local.start()  # another server knows it too
    bearer = {"authorization": f"Bearer {local.token}"}
    assert local.client.delete(f"{one}/tags/a", headers=bearer).status_code == 200
    ready = local.client.patch(one, json={"status": "LOGGED_MODEL_READY"}, headers=bearer).json()["model"]["info"]
    assert (ready["status"], ready["tags"]) == ("LOGGED_MODEL_READY", tags[1:])
    assert local.client.patch(one, json={"status": "GONE"}, headers=bearer).status_code == 400
    assert local.client.delete(one, headers=bearer).status_code == 200
    missing = local.client.get(one, headers=bearer)
    assert (missing.status_code, missing.json()["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")


@pytest.mark.parametrize(
    "metric", [{}, {"key": "a"}, {"key": "a", "value": "x", "timestamp": 1}, {"key": "a", "value": 1, "timestamp": "x"}]
)
def test_a_metric_that_is_none_is_refused_in_the_clients_own_form(metric: dict[str, Any], local: LocalServer) -> None:
    server = local
    answer = call(server, "runs/log-batch", run_id=begin(server), metrics=[metric])
    assert (answer.status_code, answer.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert list(server.run().rows()) == []


@pytest.mark.parametrize("depth", [101, 300, 900])
def test_what_is_nested_too_deeply_is_refused_and_the_run_goes_on(depth: int, local: LocalServer) -> None:
    run = begin(local)
    deep = "[" * depth + "]" * depth
    body = f'{{"run_id": "{run}", "datasets": [{{"dataset": {deep}}}]}}'.encode()
    answer = local.post("/api/2.0/mlflow/runs/log-inputs", body)
    assert (answer.status_code, answer.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    answer = call(local, "runs/log-model", run_id=run, model_json=f'{{"x": {deep}}}')
    assert (answer.status_code, answer.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    metric = {"key": "loss", "value": 1, "timestamp": 1_700_000_000_000, "step": 0}
    assert call(local, "runs/log-batch", run_id=run, metrics=[metric]).status_code == 200
    assert [row["loss"] for row in local.run().rows()] == [1]


def test_artifacts_stay_below_the_run(server: Server) -> None:
    run = begin(server)
    with httpx.Client(headers={"authorization": f"Bearer {server.token}"}, timeout=PATIENCE) as client:
        for path in ("../x", "%2e%2e/x", "a/../../x", "..%2fx"):
            request = client.build_request("PUT", server.address, content=b"evil")
            raw = f"/api/2.0/mlflow-artifacts/artifacts/0/{run}/artifacts/{path}"
            request.url = httpx.URL(server.address).copy_with(raw_path=raw.encode())
            assert client.send(request).status_code in (400, 404, 405)
    assert not [file for file in server.root.rglob("*") if file.is_file() and file.read_bytes() == b"evil"]


def test_a_run_that_is_asked_to_stop_is_killed_in_the_words_of_mlflow(local: LocalServer) -> None:
    made = local.post("/api/2.0/mlflow/runs/create", {"experiment_id": "0", "start_time": 1}).json()["run"]["info"]
    assert made["status"] == "RUNNING"
    request_stop(local.run().folder)
    asked = {"authorization": f"Bearer {local.token}"}
    found = local.client.get("/api/2.0/mlflow/runs/get", params={"run_id": made["run_id"]}, headers=asked)
    assert found.json()["run"]["info"]["status"] == "KILLED"


THEIR_SERVER = """
import math, sys
import mlflow

mlflow.set_tracking_uri(sys.argv[1])
with mlflow.start_run(tags={"stage": "try"}) as parent:
    mlflow.log_params({"lr": 0.1, "token": "hunter22"})
    for step in range(5):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
        mlflow.log_metrics({"odd": math.nan if step % 2 else math.inf, "system/cpu": 1.0}, step=step)
    with mlflow.start_run(nested=True):
        mlflow.log_metric("loss", 9.0, step=3)
"""


def test_a_program_that_names_a_server_has_its_numbers_there_and_in_the_run_of_the_command(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_runtime, place = tmp_path / "runtime", tmp_path / "program"
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(own_runtime))
    place.mkdir()
    try:
        errors = run(place, THEIR_SERVER, server.address, MLFLOW_TRACKING_TOKEN=server.token, TRAINVITALS_AGENT="1")
        # The command gives the agent only a moment.
        wait_until(
            lambda: any(row.get("loss") is None and "odd" not in row for _, rows in runs(place) for row in rows),
            "all rows",
        )
    finally:
        end_processes(own_runtime)
    assert "its numbers are copied into this run" in errors
    ((file, rows),) = runs(place)
    names = {name for row in rows for name in row} - {"timestamp", "step", "rank"}
    (nested,) = names - {"loss", "odd"}
    assert nested.endswith("/loss") and [row[nested] for row in rows if nested in row] == [9.0]
    assert [(row["step"], row["loss"]) for row in rows if "loss" in row] == [(s, 1 / (s + 1)) for s in range(5)]
    assert [row["odd"] for row in rows if "odd" in row] == ["Infinity", "NaN", "Infinity", "NaN", "Infinity"]
    assert file.config is not None and (file.config["lr"], file.config["token"]) == ("0.1", "[redacted]")
    assert "stage=try" in file.tags
    theirs = [sorted(reader.names()) for reader in server.runs()]
    assert sorted(theirs) == [["loss"], ["loss", "odd", "system/cpu"]]
    kept = b"".join(path.read_bytes() for path in (place / "runs").rglob("*") if path.is_file())
    assert b"hunter22" not in kept
