"""The real W&B client, of several versions, logs to a real server."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import PATIENCE, wait_until

import trainvitals
from trainvitals.journal.console import show
from trainvitals.journal.folder import read_run
from trainvitals.journal.media import list_rows
from trainvitals.journal.stop_requests import request_stop
from trainvitals.settings import resolve
from trainvitals.trackers.intake import wandb_reading
from trainvitals.trackers.intake.runs import IntakeRuns
from trainvitals.trackers.run_writing import About

from .conftest import LocalServer, Server, clean_environ, count_rows, run_client

DOCUMENTED = """
import math, sys
import wandb

with wandb.init(
    project="animals", id="abc123", name="baseline", notes="first try", tags=["small"], group="seeds", job_type="train",
    config={"lr": 0.1, "model": {"layers": 2}, "api_key": "sk-proj-abcdefghij0123456789abcdefghij"},
) as run:
    for step in range(20):
        odd = math.nan if step % 2 else step
        run.log({"loss": 1 / (step + 1), "odd": odd, "top": math.inf, "acc": {"train": step}})
    run.summary.update({"best": 0.05, "done": True})
    run.alert("low accuracy", "it is 3 %", level=wandb.AlertLevel.WARN)
    with open("weights.txt", "w") as file:
        file.write("weights")
    run.save("weights.txt")
    artifact = wandb.Artifact("dataset", type="dataset")
    artifact.add_file("weights.txt")
    run.log_artifact(artifact)
    artifact.wait()
    print("trained", artifact.name)
"""


@pytest.mark.parametrize("version", ["0.17.9", "0.19.11", "0.22.3", "installed"])
def test_a_script_after_the_documentation_logs_everything(
    version: str, server: Server, client_python: Callable[[str], Path], tmp_path: Path
) -> None:
    python = sys.executable if version == "installed" else client_python(f"wandb=={version}")
    run_client(tmp_path / "work", DOCUMENTED, server.client_env, python)
    reader, file = server.run(), server.file()
    rows = list(reader.rows())
    assert [row["step"] for row in rows] == list(range(20))
    assert [row["loss"] for row in rows] == [1 / (step + 1) for step in range(20)]
    assert [row["odd"] for row in rows] == ["NaN" if step % 2 else step for step in range(20)]
    assert {row["top"] for row in rows} == {"Infinity"} and [row["acc.train"] for row in rows] == list(range(20))
    assert (file.name, file.project, file.notes, file.tags) == (
        "baseline",
        "animals",
        "first try",
        ("seeds", "small", "train"),
    )
    assert file.config == {"lr": 0.1, "model": {"layers": 2}, "api_key": "[redacted]"}
    assert (file.status, file.exit_code, file.last_step) == ("finished", 0, 19)
    (alert,) = [event for event in reader.events() if event.event == "wandb_alert"]
    assert (alert.severity, alert.message) == ("warning", "low accuracy: it is 3 %")
    assert (reader.folder / "files" / "weights.txt").read_text() == "weights"
    assert [path.read_text() for path in reader.folder.glob("artifacts/dataset/*/weights.txt")] == ["weights"]
    assert json.loads((reader.folder / "files" / "wandb-summary.json").read_text())["best"] == 0.05
    (summary,) = [event for event in reader.events() if event.event == "summary"]
    assert (summary.message, summary.data) == ("W&B summary: best = 0.05, done = True", {"best": 0.05, "done": True})
    assert "trained dataset:v0" in next(reader.folder.glob("console.*.log")).read_text()
    assert version != "installed" or "system" in reader.tables(), "older clients measure after 10 s at the earliest"
    assert "sk-proj" not in "".join(
        path.read_text(errors="replace") for path in reader.folder.rglob("*.*") if path.is_file()
    )


READING_BACK = """
import math
import wandb

with wandb.init(project="animals", id="second") as run:
    dataset = run.use_artifact("dataset:latest", type="dataset")
    print("used", open(dataset.download() + "/weights.txt").read(), sorted(dataset.aliases), dataset.version)
    try:
        run.use_artifact("nothing:latest")
    except wandb.errors.CommError:
        print("no such artifact")
api = wandb.Api()
run = api.run("animals/abc123")
print("run", run.name, run.state, run.tags, run.config["lr"], run.summary["best"], run.lastHistoryStep)
rows = list(run.scan_history())
print("rows", [row["_step"] for row in rows] == list(range(20)), math.isnan(rows[1]["odd"]), rows[3]["acc.train"])
print("keys", [row["loss"] for row in run.scan_history(keys=["loss"])] == [1 / (step + 1) for step in range(20)])
print("some", len(run.history(samples=5, pandas=False)), run.history(keys=["loss"], pandas=False)[2]["loss"])
print("list", [item.id for item in api.runs("animals", filters={"config.lr": {"$gt": 0}, "state": "finished"})])
print("file", [file.name for file in run.files()], run.file("weights.txt").download(replace=True).read())
for unknown in (lambda: api.run("animals/none"), lambda: wandb.sweep({"method": "grid", "parameters": {}})):
    try:
        unknown()
    except Exception as error:
        print("error", error)
"""


@pytest.mark.parametrize("version", ["0.17.9", "installed"])
def test_runs_and_artifacts_are_read_back(
    version: str, server: Server, client_python: Callable[[str], Path], tmp_path: Path
) -> None:
    python = sys.executable if version == "installed" else client_python(f"wandb=={version}")
    run_client(tmp_path / "work", DOCUMENTED, server.client_env, python)
    server.kill()  # what was logged is known to the next server too
    server.start()
    printed = run_client(tmp_path / "again", READING_BACK, server.client_env, python).splitlines()
    found = {line.partition(" ")[0]: line.partition(" ")[2] for line in printed}
    assert found["used"] == "weights ['latest', 'v0'] v0" or found["used"] == "weights ['latest'] v0"
    assert found["no"] == "such artifact"
    assert found["run"] == "baseline finished ['seeds', 'small', 'train'] 0.1 0.05 19"
    assert (found["rows"], found["keys"], found["list"]) == ("True True 3", "True", "['abc123']")
    assert found["some"] == f"5 {1 / 3}"
    assert found["file"] == "['wandb-summary.json', 'weights.txt'] weights"
    errors = [line for line in printed if line.startswith("error")]
    assert "Could not find run" in errors[0] and "trainvitals does not run sweeps of W&B" in errors[1]


SHARED_FILES = """
import os
import wandb

with wandb.init(project="animals", id="maker") as run:
    table = wandb.Table(columns=["x", "y"], data=[[1, 2.5], [2, 3.5]])
    run.log({"scores": table})
    dataset = wandb.Artifact("dataset", type="dataset")
    dataset.add(table, "scores")
    with open("elsewhere.txt", "w") as file:
        file.write("elsewhere")
    dataset.add_reference(f"file://{os.path.abspath('elsewhere.txt')}")
    run.log_artifact(dataset)
    dataset.wait()
with wandb.init(project="animals", id="user") as run:
    dataset = run.use_artifact("dataset:latest")
    print(sorted(os.listdir(dataset.download())))
    print(dataset.get("scores").data)
"""


@pytest.mark.parametrize("version", ["0.17.9", "installed"])
def test_an_artifact_may_have_a_table_of_another_one_and_files_that_are_elsewhere(
    version: str, server: Server, client_python: Callable[[str], Path], tmp_path: Path
) -> None:
    python = sys.executable if version == "installed" else client_python(f"wandb=={version}")
    printed = run_client(tmp_path / "work", SHARED_FILES, server.client_env, python).splitlines()
    assert printed[-2:] == ["['elsewhere.txt', 'scores.table.json']", "[[1, 2.5], [2, 3.5]]"]


COUNTING = """
import sys, time
import wandb

run = wandb.init(project="p", id="abc123", resume=sys.argv[2] if len(sys.argv) > 2 else None)
for step in range(int(sys.argv[1])):
    run.log({"loss": float(step)})
    print("line", step, flush=True)
    time.sleep(0.01)
run.finish()
"""


@pytest.mark.promise("a server that W&B clients log to is killed (kill -9) repeatedly", "nothing is lost or duplicated")
def test_a_killed_server_loses_and_doubles_nothing(server: Server, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "script.py").write_text(COUNTING)
    environ = clean_environ(HOME=str(work), WANDB_HTTP_TIMEOUT="5", **server.client_env)
    client = subprocess.Popen([sys.executable, "script.py", "400"], cwd=work, env=environ, stdout=subprocess.DEVNULL)
    for kills in range(1, 4):
        wait_until(lambda: client.poll() is not None or count_rows(server) > 40 * kills, "rows")  # noqa: B023
        server.kill()
        server.start()
    assert client.wait(PATIENCE) == 0
    wait_until(lambda: server.file().is_over, "the end of the run")
    assert [(row["step"], row["loss"]) for row in server.run().rows()] == [(step, float(step)) for step in range(400)]
    printed = next(server.run().folder.glob("console.*.log")).read_bytes().decode()
    lines = show(printed).split("\n")  # a line may have come before it was whole, and again when it was
    assert [line for line in lines if line.startswith("line")] == [f"line {step}" for step in range(400)]


def test_output_of_a_request_that_a_kill_interrupted_is_kept_once(tmp_path: Path) -> None:
    settings = resolve({}, environ={}, folder=Path("/"))
    with IntakeRuns(tmp_path, settings).begin("wandb", "p/abc", About(name="r")) as killed:
        killed.print_lines(0, ["one", "two"])  # and never saved
    with IntakeRuns(tmp_path, settings).begin("wandb", "p/abc", About(name="r")) as run:
        assert run.folder == killed.folder
        run.print_lines(0, ["one", "two"])
        run.print_lines(2, ["three"])
        run.end("finished")
    (console,) = run.folder.glob("console.*.log")
    assert show(console.read_text()).splitlines() == ["one", "two", "three"]


def test_output_that_the_program_keeps_itself_is_left_alone(tmp_path: Path) -> None:
    with IntakeRuns(tmp_path, resolve({}, environ={}, folder=Path("/"))).begin("wandb", "p/abc", About()) as run:
        (run.folder / "console.rank0.log").write_text("of the program\n")
        run.print_lines(0, ["one"])
        run.save()
        assert (run.folder / "console.rank0.log").read_text() == "of the program\n"


def test_a_run_is_resumed_where_it_was_and_one_that_is_unknown_is_not(server: Server, tmp_path: Path) -> None:
    run_client(tmp_path / "work", COUNTING, server.client_env, sys.executable, "5")
    run_client(tmp_path / "work", COUNTING, server.client_env, sys.executable, "5", "must")
    file = server.file()
    assert [row["step"] for row in server.run().rows()] == list(range(10)) and file.attempt == 2
    unknown = COUNTING.replace("abc123", "nobody")
    with pytest.raises(AssertionError, match="does not exist"):
        run_client(tmp_path / "work", unknown, server.client_env, sys.executable, "5", "must")


def test_an_id_that_is_used_again_begins_another_attempt_and_keeps_the_first(server: Server, tmp_path: Path) -> None:
    run_client(tmp_path / "work", COUNTING, server.client_env, sys.executable, "5")
    run_client(tmp_path / "work", COUNTING, server.client_env, sys.executable, "3")
    assert server.file().attempt == 2
    assert [(row.get("attempt", 1), row["step"]) for row in server.run().rows()] == [
        *((1, step) for step in range(5)),
        *((2, step) for step in range(3)),
    ]


def test_two_clients_with_one_id_at_once_get_a_run_each(local: LocalServer) -> None:
    server = local
    for number in (1, 2):
        made = upsert(server, "same", host="vm")
        name = made["name"]
        history = [json.dumps({"_step": step, "loss": number}) for step in range(3)]
        assert stream(server, name, {"wandb-history.jsonl": (0, history)}).status_code == 200
    assert [[row["loss"] for row in reader.rows()] for reader in server.runs()] == [[1, 1, 1], [2, 2, 2]]
    assert "two W&B clients use the run id same" in server.log


def test_a_stop_request_interrupts_the_script(server: Server, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "script.py").write_text(COUNTING)
    environ = clean_environ(HOME=str(work), **server.client_env)
    client = subprocess.Popen(
        [sys.executable, "script.py", "1000000"],
        cwd=work,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: client.poll() is not None or count_rows(server), "rows")
    request_stop(server.run().folder)
    _, errors = client.communicate(timeout=PATIENCE)
    assert client.returncode != 0 and b"KeyboardInterrupt" in errors
    wait_until(lambda: server.file().is_over, "the end of the run")


def test_the_mirror_of_a_run_in_wandb_has_all_of_it_online_too(server: Server, tmp_path: Path) -> None:
    odd = (math.nan, math.inf, -math.inf)
    with trainvitals.init(project="p", name="base", dir=tmp_path / "own", config={"lr": 0.1}, agent=False) as run:
        for step in range(20):
            run.log({"loss": 1 / (step + 1), "odd": odd[step % 3]}, step=step * 10)
    environ = {**clean_environ(HOME=str(tmp_path)), **server.client_env}
    command = [sys.executable, "-m", "trainvitals", "export", str(run.folder), "--to", "wandb", "mirrored"]
    for _ in range(2):  # the second one has nothing to send
        subprocess.run(command, env=environ, check=True, capture_output=True)
    wait_until(lambda: server.file().is_over, "the end of the run")
    file, rows = server.file(), list(server.run().rows())
    assert (file.name, file.project, (file.config or {})["lr"], file.status) == ("base", "mirrored", 0.1, "finished")
    assert [(row["step"], row["loss"], float(row["odd"])) for row in rows if "loss" in row] == [
        (step * 10, 1 / (step + 1), pytest.approx(odd[step % 3], nan_ok=True)) for step in range(20)
    ]


def test_media_are_files_of_the_run(server: Server, tmp_path: Path) -> None:
    script = """
import numpy, wandb
run = wandb.init(project="p")
run.log({"picture": wandb.Image(numpy.zeros((4, 4, 3), dtype="uint8"))})
run.log({"table": wandb.Table(columns=["a"], data=[[1], [2]])})
run.log({"weights": wandb.Histogram([1, 2, 2, 3])})
run.finish()
"""
    run_client(tmp_path / "work", script, server.client_env)
    reader = server.run()
    (picture,) = reader.folder.glob("media/images/picture*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    (indexed,) = [row for row in list_rows(reader.folder) if row["kind"] == "image"]
    assert (indexed["name"], indexed["step"], reader.folder / "media" / indexed["file"]) == ("picture", 0, picture)
    (table,) = reader.folder.glob("media/table/*.table.json")
    assert json.loads(table.read_text())["data"] == [[1], [2]]
    assert reader.histogram_names() == ["weights"]
    (histogram,) = reader.histograms("weights")
    assert (histogram["step"], histogram["low"], histogram["high"], sum(histogram["counts"])) == (2, 1, 3, 4)


def test_step_metrics_count_the_steps(server: Server, tmp_path: Path) -> None:
    # The client sends definitions when it likes, on a busy machine after the rows: here they come first.
    script = """
import json, pathlib, sys, time, wandb

def count_definitions():
    files = pathlib.Path(sys.argv[1]).glob("*/*/run.json")
    positions = [json.loads(file.read_text()).get("origin", {}).get("position", {}) for file in files]
    return sum(len(position.get("metrics", [])) for position in positions)

run = wandb.init(project="p")
run.define_metric("train/global_step")
run.define_metric("*", step_metric="train/global_step")
while count_definitions() < 2:
    time.sleep(0.05)
for step in range(3):
    run.log({"train/loss": 1.0, "train/global_step": step * 10})
run.finish()
"""
    run_client(tmp_path / "work", script, server.client_env, sys.executable, str(server.root))
    assert [row["step"] for row in server.run().rows()] == [0, 10, 20]


def test_the_address_that_the_client_prints_leads_to_the_run(server: Server, tmp_path: Path) -> None:
    printed = run_client(tmp_path / "work", "import wandb\nprint(wandb.init(project='p').url)", server.client_env)
    bearer = {"authorization": f"Bearer {server.token}"}
    answer = httpx.get(printed.strip(), headers=bearer, timeout=PATIENCE)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/#/run/{server.run().folder.name}")
    assert httpx.get(f"{printed.strip()}x", headers=bearer, timeout=PATIENCE).status_code == 404
    assert httpx.get(printed.strip(), timeout=PATIENCE).status_code == 401


# -- requests that a client does not send, or not so


@pytest.mark.parametrize("counter", ["trainer/global_step", "train/global_step"])
def test_what_a_framework_counts_with_is_the_step_before_its_definition_comes(counter: str, local: LocalServer) -> None:
    upsert(local, "r", host="vm")
    stream(local, "r", {"wandb-history.jsonl": (0, [json.dumps({"_step": 0, "loss": 1, counter: 50})])})
    upsert(local, "r", config=json.dumps({"_wandb": {"value": {"m": [{"1": counter}, {"2": "*", "5": 1}]}}}))
    stream(local, "r", {"wandb-history.jsonl": (1, [json.dumps({"_step": 1, "loss": 2, counter: 100})])})
    assert [row["step"] for row in local.run().rows()] == [50, 100]


def test_a_metric_that_began_before_its_definition_came_goes_on_as_it_began(local: LocalServer) -> None:
    upsert(local, "r", host="vm")
    stream(local, "r", {"wandb-history.jsonl": (0, [json.dumps({"_step": 0, "loss": 1, "epoch": 7})])})
    config = json.dumps({"_wandb": {"value": {"m": [{"1": "epoch"}, {"2": "*", "5": 1}]}}})
    upsert(local, "r", config=config)
    lines = [{"_step": 1, "loss": 2, "epoch": 8}, {"_step": 2, "accuracy": 0.5, "epoch": 9}]
    stream(local, "r", {"wandb-history.jsonl": (1, [json.dumps(line) for line in lines])})
    assert [row["step"] for row in local.run().rows()] == [0, 1, 9]


def graphql(server: LocalServer | Server, operation: str, variables: dict[str, Any], **options: Any) -> httpx.Response:
    body = {"query": f"mutation {operation} {{ x }}", "operationName": operation, "variables": variables}
    return server.post("/graphql", body, **options)


def upsert(server: LocalServer | Server, run: str, **more: Any) -> dict[str, Any]:
    answer = graphql(server, "UpsertBucket", {"name": run, "project": "p", "entity": "e", **more})
    bucket: dict[str, Any] = answer.json()["data"]["upsertBucket"]["bucket"]
    return bucket


def stream(
    server: LocalServer | Server, run: str, files: dict[str, tuple[int, list[str]]], **more: Any
) -> httpx.Response:
    parts = {name: {"offset": offset, "content": lines} for name, (offset, lines) in files.items()}
    return server.post(f"/files/e/p/{run}/file_stream", {"files": parts, **more})


def test_lines_that_come_again_are_not_doubled(local: LocalServer) -> None:
    server = local
    upsert(server, "one")
    lines = [json.dumps({"_step": step, "_timestamp": 1e9 + step, "loss": step}) for step in range(4)]
    for offset, part in ((0, lines[:2]), (0, lines[:3]), (2, lines[2:])):
        assert stream(server, "one", {"wandb-history.jsonl": (offset, part)}).json() == {}
    assert [row["loss"] for row in server.run().rows()] == [0, 1, 2, 3]


@pytest.mark.promise(
    "a server that W&B clients log to is killed before it notes down what it has written",
    "repeated rows and media are kept once",
)
def test_media_that_come_again_after_a_kill_are_not_doubled(local: LocalServer) -> None:
    upsert(local, "r", host="vm")
    before = (local.run().folder / "run.json").read_bytes()
    histogram = {"_type": "histogram", "values": [1, 2], "bins": [0, 1, 2]}
    image = {"_type": "image-file", "path": "media/images/a.png"}
    lines = [
        json.dumps({"_step": step, "_timestamp": 1.7e9 + step, "w": histogram, "picture": image, "loss": step})
        for step in range(3)
    ]
    stream(local, "r", {"wandb-history.jsonl": (0, lines)})
    (local.run().folder / "run.json").write_bytes(before)
    local.start()
    stream(local, "r", {"wandb-history.jsonl": (0, lines)})
    assert [row["loss"] for row in local.run().rows()] == [0, 1, 2]
    media = local.run().folder / "media"
    for file, steps in (("index.jsonl", [None, 0, 1, 2]), ("histograms.rank0.jsonl", [0, 1, 2])):
        assert [json.loads(line).get("step") for line in (media / file).read_text().splitlines()] == steps


def test_a_line_that_cannot_be_read_is_counted_and_the_others_are_kept(local: LocalServer) -> None:
    server = local
    upsert(server, "one")
    lines = ['{"_step":0,"loss":1}', "no JSON", "[" * 5000, '{"_step":3,"loss":NaN,"word":"x","list":[1]}']
    assert stream(server, "one", {"wandb-history.jsonl": (0, lines)}).status_code == 200
    assert [(row["step"], row["loss"]) for row in server.run().rows()] == [(0, 1), (3, "NaN")]
    origin = server.file().origin
    assert origin is not None and origin.left_out == {"a line that is not JSON": 2, "word": 1, "list": 1}


@pytest.mark.promise("GraphQL that is none, an operation that is not known", "an error that W&B's client goes on with")
def test_what_is_not_understood_is_answered_in_the_clients_own_form(local: LocalServer) -> None:
    server = local
    for body in (b"", b"no JSON", b"[]", b'{"query": 5}', b'{"query": "{}", "variables": 7}'):
        answer = server.post("/graphql", body)
        assert answer.status_code == 400 and answer.json()["errors"]
    for files in ([None], ["x"], [7]):
        answer = graphql(server, "CreateArtifactFiles", {"artifactFiles": files})
        assert answer.status_code == 200 and "not described" in answer.json()["errors"][0]["message"]
    for _ in range(3):
        answer = graphql(server, "MakeCoffee", {})
        assert answer.status_code == 200 and "MakeCoffee" in answer.json()["errors"][0]["message"]
    assert server.log.count("MakeCoffee") == 1
    assert server.post("/files/e/p/nobody/file_stream", {}).status_code == 404


def test_an_id_that_a_client_made_up_is_known_to_the_next_server_too(local: LocalServer) -> None:
    upsert(local, "maker", host="vm")
    given = {"projectName": "p", "entityName": "e", "runName": "maker", "clientID": "made-up"}
    made = graphql(local, "CreateArtifact", {"input": {**given, "artifactCollectionName": "dataset", "digest": "d1"}})
    artifact = made.json()["data"]["createArtifact"]["artifact"]["id"]
    files = graphql(local, "CreateArtifactFiles", {"artifactFiles": [{"artifactID": artifact, "name": "a.txt"}]})
    (edge,) = files.json()["data"]["createArtifactFiles"]["files"]["edges"]
    assert local.client.put(edge["node"]["uploadUrl"], content=b"data").status_code == 200
    local.start()
    mapped = graphql(local, "ClientIDMapping", {"clientID": "made-up"}).json()["data"]["clientIDMapping"]
    found = graphql(local, "ArtifactByID", {"id": mapped["serverID"]}).json()["data"]["artifact"]
    assert (found["id"], found["digest"]) == (artifact, "d1")
    unknown = graphql(local, "ClientIDMapping", {"clientID": "nobody"}).json()
    assert unknown["data"]["clientIDMapping"] is None


def test_what_is_read_back_in_one_request_is_bounded(local: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    upsert(local, "one")
    lines = [json.dumps({"_step": step, "_timestamp": 1.7e9 + step, "loss": step}) for step in range(20)]
    stream(local, "one", {"wandb-history.jsonl": (0, lines)})
    run = {"entity": "e", "project": "p", "run": "one"}

    def read_page(**steps: int) -> dict[str, Any]:
        found: dict[str, Any] = graphql(local, "HistoryPage", {**run, **steps}).json()
        return found

    assert len(read_page()["data"]["project"]["run"]["history"]) == 20
    monkeypatch.setattr(wandb_reading, "MOST_OF_A_PAGE", 500)
    assert "smaller page_size" in read_page()["errors"][0]["message"]
    assert len(read_page(minStep=0, maxStep=5)["data"]["project"]["run"]["history"]) == 5
    spec = json.dumps({"keys": ["loss"], "samples": 2})
    for count, is_answered in ((wandb_reading.MOST_SPECS, True), (wandb_reading.MOST_SPECS + 1, False)):
        answer = graphql(local, "RunSampledHistory", {**run, "specs": [spec] * count}).json()
        assert (answer["data"] is not None) is is_answered


def test_runs_are_looked_through_once_however_many_artifacts_are_listed(
    local: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert(local, "maker")
    given = {"projectName": "p", "entityName": "e", "runName": "maker", "artifactCollectionName": "dataset"}
    for digest in ("d1", "d2", "d3"):
        made = graphql(local, "CreateArtifact", {"input": {**given, "digest": digest}}).json()["data"]
        files = [{"artifactID": made["createArtifact"]["artifact"]["id"], "name": "a.txt"}]
        answer = graphql(local, "CreateArtifactFiles", {"artifactFiles": files}).json()["data"]
        (edge,) = answer["createArtifactFiles"]["files"]["edges"]
        assert local.client.put(edge["node"]["uploadUrl"], content=b"data").status_code == 200
    looks: list[str] = []
    list_keys = IntakeRuns.list_keys

    def list_counted(runs: IntakeRuns, tool: str) -> list[tuple[str, Path]]:
        looks.append(tool)
        return list_keys(runs, tool)

    monkeypatch.setattr(IntakeRuns, "list_keys", list_counted)
    answer = graphql(local, "RunOutputArtifacts", {"entity": "e", "project": "p", "run": "maker"}).json()
    edges = answer["data"]["project"]["run"]["outputArtifacts"]["edges"]
    assert {edge["node"]["versionIndex"] for edge in edges} == {0, 1, 2} and looks == ["wandb"]


@pytest.mark.parametrize("depth", [101, 300, 900])
def test_what_is_nested_too_deeply_is_refused_or_counted(depth: int, local: LocalServer) -> None:
    deep = "[" * depth + "]" * depth
    upsert(local, "one", config=f'{{"lr": {{"value": {deep}}}}}')
    body = f'{{"query": "query Run {{ x }}", "operationName": "Run", "variables": {{"x": {deep}}}}}'.encode()
    assert local.post("/graphql", body).status_code == 400
    lines = ['{"_step":0,"loss":1}', f'{{"_step":1,"loss":1,"x":{deep}}}', '{"_step":2,"loss":1}']
    assert stream(local, "one", {"wandb-history.jsonl": (0, lines)}).status_code == 200
    assert [row["step"] for row in local.run().rows()] == [0, 2]
    found = graphql(local, "Runs", {"entity": "e", "project": "p", "order": "summary_metrics.loss"}).json()
    assert found["data"]["project"]["runCount"] == 1


@pytest.mark.promise("file names of uploads that lead out of the run folder", "refused")
def test_hostile_file_names_are_refused(server: Server) -> None:
    upsert(server, "one")
    before = server.file()
    names = ["../run.json", "/etc/x", "a/../../x", "media/../run.json", "a\\b", "x\ny", "a/" * 30, "x" * 300]
    answer = graphql(server, "CreateRunFiles", {"entity": "e", "project": "p", "run": "one", "files": names})
    with httpx.Client(timeout=PATIENCE) as client:
        for file in answer.json()["data"]["createRunFiles"]["files"]:
            path = file["uploadUrl"].removeprefix(server.address)
            request = client.build_request("PUT", server.address, content=b"evil")
            # The path goes out as it is: a client need not tidy it.
            request.url = httpx.URL(server.address).copy_with(raw_path=path.encode())
            assert client.send(request).status_code in (400, 403, 404), file["name"]
        answer = client.put(f"{server.address}/wandb-files/e/p/one/x.txt", content=b"evil")
        assert answer.status_code == 403, "an upload needs the address that was given out"
    assert server.file() == before
    assert not [path for path in server.root.rglob("*") if path.is_file() and path.read_bytes() == b"evil"]


def test_hostile_names_of_runs_and_projects_stay_below_the_root(local: LocalServer) -> None:
    server = local
    for number, name in enumerate(("../../up", "..", "a/b", "\x00", "x" * 5000)):
        graphql(server, "UpsertBucket", {"name": name, "project": f"../{name}{number}", "entity": "../.."})
    assert len(server.runs()) == 5
    assert [path.name for path in server.root.parent.iterdir()] == ["runs"]


def test_a_client_that_goes_silent_has_crashed(tmp_path: Path) -> None:
    from trainvitals import settings
    from trainvitals.trackers.intake.answers import OnceReporter
    from trainvitals.trackers.intake.app import Intake
    from trainvitals.trackers.intake.uploads import Signer

    effective = settings.resolve({"dir": str(tmp_path), "agent": False})
    intake = Intake(tmp_path, effective, ("wandb",), Signer("t"), OnceReporter())
    assert intake.wandb is not None
    body = json.dumps({"query": "mutation UpsertBucket {x}", "variables": {"name": "a", "project": "p"}}).encode()
    intake.wandb.answer_graphql(body, "http://x")
    (run,) = intake.runs.list_open()
    intake.sweep()
    assert not read_run(run.folder).is_over
    run.last_request -= 1000
    intake.sweep()
    assert read_run(run.folder).status == "crashed"
