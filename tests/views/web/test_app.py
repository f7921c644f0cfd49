"""The API as a program asks it, over a real connection."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from waiting import PATIENCE, wait_until

from trainvitals.journal import folder as run_folder
from trainvitals.journal.stop_requests import find_request

from .conftest import HOSTILE, Server, make_run


def ask(server: Server, path: str, **more: object) -> httpx.Response:
    return httpx.get(f"{server.base}api/v1{path}", timeout=PATIENCE, **more)  # type: ignore[arg-type]


def test_runs_are_listed_newest_first_with_config_and_results(server: Server, keys: list[str]) -> None:
    found = ask(server, "/runs").json()
    assert [row["key"] for row in found["runs"]] == keys[::-1]
    assert found["projects"] == ["other", "p"]
    assert found["runs"][-1]["config"]["lr"] == 0.1


def test_runs_are_sorted_and_given_in_parts_with_the_number_of_all(server: Server) -> None:
    found = ask(server, "/runs?sort=-config.lr&limit=2").json()
    assert found["total"] == 3 and [row["config"]["lr"] for row in found["runs"]] == [0.1, 0.1]
    rest = ask(server, "/runs?sort=-config.lr&limit=2&offset=2").json()
    assert [row["name"] for row in rest["runs"]] == ["candidate"]
    names = [row["name"] for row in ask(server, "/runs?sort=name&q=config.lr>0").json()["runs"]]
    assert names == [HOSTILE, "baseline", "candidate"]


def test_only_what_changed_is_sent_again(serve: Callable[..., Server], tmp_path: Path) -> None:
    root = tmp_path / "runs"
    one, two = make_run(root, "one", steps=1), make_run(root, "two", steps=1)
    server = serve(root)
    found = ask(server, "/runs").json()
    same = ask(server, f"/runs?since={found['version']}").json()
    assert same == {**found, "runs": [], "since": found["version"]}
    run_folder.change_run(root / "p" / one, lambda run: replace(run, tags=("new",)))
    changed = ask(server, f"/runs?since={found['version']}").json()
    assert [(row["key"], row["tags"]) for row in changed["runs"]] == [(one, ["new"])]
    assert changed["order"] is None and changed["total"] == 2
    three = make_run(root, "three", steps=1)
    wait_until(lambda: ask(server, "/runs").json()["total"] == 3, "the new run is listed")
    added = ask(server, f"/runs?since={changed['version']}").json()
    assert [row["key"] for row in added["runs"]] == [three] and added["order"] == [three, two, one]
    for foreign in ("other-1", f"{found['version']}000", "x"):
        everything = ask(server, f"/runs?since={foreign}").json()
        assert everything["since"] is None and len(everything["runs"]) == 3


def test_runs_are_found_by_project_status_and_words(server: Server) -> None:
    assert [row["name"] for row in ask(server, "/runs?project=other").json()["runs"]] == [HOSTILE]
    assert ask(server, "/runs?status=running").json()["total"] == 0
    assert [row["name"] for row in ask(server, "/runs?q=candidate").json()["runs"]] == ["candidate"]
    found = ask(server, f"/runs?q={quote('config.lr<0.08 name~^CAND')}").json()
    assert [row["name"] for row in found["runs"]] == ["candidate"]


def test_a_run_is_found_and_told_by_the_job_of_its_scheduler(serve: Callable[..., Server], tmp_path: Path) -> None:
    root = tmp_path / "runs"
    key = make_run(root, "one", steps=1)
    make_run(root, "two", steps=1)
    (file,) = root.glob(f"*/{key}/run.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "job": {"slurm": "4711", "array": "4700_3"}}))
    server = serve(root)
    for search in ("slurm:4711", "slurm:4700", "job.array:4700_3"):
        assert [row["key"] for row in ask(server, f"/runs?q={quote(search)}").json()["runs"]] == [key]
    assert ask(server, f"/runs/{key}").json()["job_facts"] == [["Slurm job", "4711, task 4700_3"]]


def test_a_series_has_every_value_and_nan_beside_it(server: Server, keys: list[str]) -> None:
    (series,) = ask(server, f"/runs/{keys[0]}/series?name=loss&points=1000").json()["series"]
    assert series["x"] == list(range(200)) and series["total"] == 200
    assert series["nonfinite"] == [[60, "NaN"]] and series["y"][60] is None
    assert series["y"][0] == 1.0 and math.isclose(series["y"][1], math.exp(-1 / 80) + 0.01 * (7919 % 13))


def test_a_zoom_gives_only_the_range_and_every_axis_works(server: Server, keys: list[str]) -> None:
    path = f"/runs/{keys[0]}/series?name=accuracy"
    assert ask(server, f"{path}&start=10&end=12").json()["series"][0]["x"] == [10, 11, 12]
    assert ask(server, f"{path}&x=epoch&start=1&end=1.02").json()["series"][0]["y"] == [50 / 200, 51 / 200]
    for axis in ("time", "relative"):
        assert len(ask(server, f"{path}&x={axis}").json()["series"][0]["x"]) == 200


def test_gpus_come_as_lines_or_as_a_band(server: Server, keys: list[str]) -> None:
    path = f"/runs/{keys[0]}/series?name=utilization_percent&table=gpu&x=time"
    lines = ask(server, path).json()["series"]
    assert sorted(item["labels"]["gpu_index"] for item in lines) == [0, 1]
    (band,) = ask(server, f"{path}&band=true").json()["series"]
    assert band["members"] == 2
    assert (set(band["low"]), set(band["y"]), set(band["high"])) == ({90.0}, {90.5}, {91.0})


def test_layers_are_in_the_order_of_the_model(server: Server, keys: list[str]) -> None:
    found = ask(server, f"/runs/{keys[0]}/layers").json()
    assert found["layers"] == [f"blocks.{layer}.mlp" for layer in range(12)]
    assert found["values"][11][0] == 12.0


def test_the_run_says_its_health_alerts_and_what_was_logged(server: Server, keys: list[str]) -> None:
    run = ask(server, f"/runs/{keys[0]}").json()
    assert run["health"]["word"] == "finished"
    assert run["firing"][0]["rule"] == "gpu_temperature_high"
    assert "__proto__" in run["tables"]["training"]["names"]
    assert run["layers"] == {"gradient_norm": 12}
    assert run["stacks"] == ["rank0.txt"]
    assert ask(server, f"/runs/{keys[0]}/stacks/rank0.txt").json()["text"].startswith("Thread")


def test_two_runs_are_compared_with_a_verdict(server: Server, keys: list[str]) -> None:
    found = ask(server, f"/compare?run={keys[0]}&run={keys[1]}").json()
    searched = ask(server, f"/compare?run={keys[0]}&q=id:{keys[1]}").json()
    assert [row["key"] for row in searched["runs"]] == keys[:2]
    assert {item["key"] for item in found["config"]} == {"lr"}
    verdict = next(item for item in found["verdicts"] if item["metric"] == "val/loss")
    assert verdict["value"] < verdict["baseline"]
    assert next(row for row in found["metrics"] if row["name"] == "loss")["best"] == 1


@pytest.mark.parametrize("format", ["csv", "json", "jsonl", "parquet"])
def test_an_export_is_read_by_another_program(server: Server, keys: list[str], format: str, tmp_path: Path) -> None:
    import duckdb

    answer = ask(server, f"/runs/{keys[0]}/export?format={format}")
    assert f"{keys[0]}-training.{format}" in answer.headers["content-disposition"]
    path = tmp_path / f"x.{format}"
    path.write_bytes(answer.content)
    reader = {"csv": "read_csv", "parquet": "read_parquet"}.get(format, "read_json")
    rows = duckdb.sql(f"SELECT count(*), max(step), max(accuracy) FROM {reader}('{path}')").fetchall()
    assert rows == [(200, 199, 199 / 200)]


def test_answers_are_compressed_and_not_sent_twice(server: Server, keys: list[str]) -> None:
    address = f"{server.base}api/v1/runs/{keys[0]}/series?name=loss"
    with httpx.stream("GET", address, headers={"accept-encoding": "gzip"}, timeout=PATIENCE) as answer:
        body = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == "gzip"
    plain = ask(server, f"/runs/{keys[0]}/series?name=loss", headers={"accept-encoding": "identity"})
    assert gzip.GzipFile(fileobj=io.BytesIO(body)).read() == plain.content and len(body) < len(plain.content)
    again = ask(server, f"/runs/{keys[0]}/series?name=loss", headers={"if-none-match": plain.headers["etag"]})
    assert again.status_code == 304 and again.content == b""


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/runs/nothing", 404, "no run 'nothing'"),
        ("/runs/{key}/series", 400, "'name' or 'chosen' is missing"),
        (
            "/runs/{key}/series?chosen=loss%20-",
            400,
            "loss -: expected a metric or a number at character 7",
        ),
        ("/runs/{key}/series?chosen=/(/", 400, "/(/ is not a regular expression"),
        ("/runs/{key}/series?table=gpu&x=time&chosen=a", 400, "'chosen' is for the table 'training'"),
        ("/runs/{key}/series?name=loss&points=3", 400, "from 4 to 20000"),
        ("/runs/{key}/series?name=loss&points=1e3", 400, "an integer"),
        ("/runs/{key}/series?name=loss&start=nan", 400, "number"),
        ("/runs/{key}/series?name=loss&start=5&end=4", 400, "after"),
        ("/runs/{key}/series?name=loss&nmae=x", 400, "did you mean 'name'"),
        ("/runs/{key}/series?name=loss&band=1", 400, "true or false"),
        ("/runs/{key}/series?name=cpu&table=system", 400, "has no steps"),
        ("/runs/{key}/series?name=%00", 400, "NUL"),
        ("/runs/{key}/series?" + "&".join(["name=x"] * 101), 400, "at most 100"),
        ("/runs/{key}/export?format=exe", 400, "one of csv"),
        ("/runs/{key}/stacks/nothing.txt", 404, "no file"),
        ("/compare?run={key}&run={key}", 400, "two different"),
        ("/compare?run={key}&run=gone", 404, "no run 'gone'"),
        ("/compare?run={key}&q=nothing:1", 400, "no run matches 'nothing:1'"),
        ("/compare?q=step>x", 400, "is not a number"),
        ("/runs?since=a-1&q=b", 400, "'since' is for the list of all runs"),
        ("/runs?q=a+status:fialed", 400, "'fialed' in 'status:fialed' is not a status"),
        ("/nowhere", 404, "not found"),
    ],
)
def test_a_wrong_request_gets_a_reason(server: Server, keys: list[str], path: str, status: int, said: str) -> None:
    answer = ask(server, path.replace("{key}", keys[0]))
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server whose root has links that lead out of it, and the key of an honest run."""
    place = tmp_path_factory.mktemp("guarded")
    root = place / "runs"
    key = make_run(root, "inside", steps=2)
    make_run(place / "elsewhere", "outside", steps=2)
    outside = next((place / "elsewhere").glob("*/*"))
    secret = place / "secret.txt"
    secret.write_text("TOP SECRET")
    (root / "p" / "outside").symlink_to(outside, target_is_directory=True)
    (root / "p" / key / "stacks" / "link.txt").symlink_to(secret)
    server = Server(root)
    yield server, key
    server.stop()


@pytest.mark.parametrize(
    "attack",
    [
        "/api/v1/runs/..%2f..%2fetc/passwd",
        "/api/v1/runs/../../../../etc/passwd",
        "/api/v1/runs/%2e%2e%2f%2e%2e%2fsecret",
        "/api/v1/runs/%2Fetc",
        "/api/v1/runs/{key}/stacks/..%2frun.json",
        "/api/v1/runs/{key}/stacks/%2e%2e%2frun.json",
        "/api/v1/runs/{key}/stacks/link.txt",
        "/api/v1/runs/{key}/stacks/rank0.txt%00.txt",
        "/api/v1/runs/{key}/console/run.json",
        "/api/v1/runs/outside",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%5csecret.txt",
        "//etc/passwd",
    ],
)
@pytest.mark.promise("paths and links that lead out of the root", "404")
def test_nothing_outside_the_root_is_served(attack: str, guarded: tuple[Server, str]) -> None:
    server, key = guarded
    path = attack.replace("{key}", key)
    # By hand: an HTTP library would tidy the path up before sending it.
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    assert answer.split(b" ", 2)[1] in (b"400", b"404"), answer[:300]
    assert (
        b"SECRET" not in answer and b"root:" not in answer and b"outside" not in answer.partition(b"\r\n\r\n")[2][60:]
    )


def test_a_run_deleted_while_open_is_a_clear_answer(serve: Callable[..., Server], tmp_path: Path) -> None:
    import shutil

    key = make_run(tmp_path, "short", steps=5)
    server = serve(tmp_path)
    assert ask(server, f"/runs/{key}").status_code == 200
    shutil.rmtree(next(tmp_path.glob(f"*/{key}")))
    answer = ask(server, f"/runs/{key}/series?name=loss")
    error = answer.json()["error"]
    # Which of the two depends on how long ago the server listed the runs.
    assert answer.status_code == 404 and error["message"] in (f"run {key} was removed", f"no run '{key}'")
    assert "deleted or moved" in error["hint"]


def test_half_a_folder_an_empty_run_and_no_runs_are_fine(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(tmp_path / "runs")
    found = ask(server, "/runs").json()
    assert (found["total"], found["projects"], found["runs"]) == (0, [], [])
    empty = make_run(tmp_path / "runs", "empty", steps=0)
    half = tmp_path / "runs" / "p" / "half"
    half.mkdir()
    (half / "run.json").write_text('{"id": "ha')
    bare = tmp_path / "runs" / "p" / "bare"
    bare.mkdir()
    (bare / "run.json").write_text("{}")
    rows = []
    while not rows:
        rows = ask(server, "/runs").json()["runs"]
    assert {row["key"]: row["status"] for row in rows} == {empty: "finished", "bare": "running", "half": "unreadable"}
    for key in (empty, "bare"):
        assert ask(server, f"/runs/{key}").status_code == 200
    assert ask(server, "/runs/half").status_code == 404


def test_ten_thousand_metrics_are_listed_and_one_is_read(serve: Callable[..., Server], tmp_path: Path) -> None:
    import trainvitals

    run = trainvitals.init(project="p", name="wide", dir=tmp_path, agent=False)
    for step in range(3):
        run.log({f"metric/{place}": place + step for place in range(10_000)}, step=step)
    run.finish()
    server = serve(tmp_path)
    found = ask(server, f"/runs/{Path(run.folder).name}").json()
    assert len(found["tables"]["training"]["names"]) == 10_000
    (series,) = ask(server, f"/runs/{Path(run.folder).name}/series?name=metric/9999").json()["series"]
    assert series["y"] == [9999, 10000, 10001]


def test_a_run_on_a_shared_folder_that_is_not_readable_is_a_404(serve: Callable[..., Server], tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # root may read everything but a file of the kernel that can only be written
        key = make_run(tmp_path, "odd", steps=2)
        folder = next(tmp_path.glob(f"*/{key}"))
        (folder / "training_metrics_20990101_000000.jsonl").symlink_to("/sys/bus/cpu/uevent")
    else:
        key = make_run(tmp_path, "closed", steps=2)
        next(next(tmp_path.glob(f"*/{key}")).glob("training_*.jsonl")).chmod(0)
    answer = ask(serve(tmp_path), f"/runs/{key}/series?name=loss")
    assert answer.status_code == 404 and "cannot be read" in answer.json()["error"]["message"]


def test_nothing_changes_without_allow_edit(server: Server, keys: list[str]) -> None:
    address = f"{server.base}api/v1/runs/{keys[0]}"
    for answer in (
        httpx.delete(address, timeout=PATIENCE),
        httpx.patch(address, json={"tags": ["x"]}, timeout=PATIENCE),
        httpx.post(f"{address}/stop", json={}, timeout=PATIENCE),
    ):
        assert answer.status_code == 403 and "--allow-edit" in answer.json()["error"]["hint"]
    assert ask(server, f"/runs/{keys[0]}").json()["tags"] == []


def test_runs_are_tagged_silenced_and_removed_where_that_is_allowed(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    key = make_run(tmp_path, "mine", steps=2)
    folder = next(tmp_path.glob(f"*/{key}"))
    server = serve(tmp_path, "--allow-edit")
    address = f"{server.base}api/v1/runs/{key}"
    assert httpx.patch(address, json={"tags": ["good", "good"], "notes": "n"}, timeout=PATIENCE).json() == {
        "name": "mine",
        "tags": ["good"],
        "notes": "n",
    }
    more = {"name": "other", "add_tags": ["new"], "remove_tags": ["good"]}
    assert httpx.patch(address, json=more, timeout=PATIENCE).json() == {"name": "other", "tags": ["new"], "notes": "n"}
    assert ask(server, f"/runs/{key}").json()["name"] == "other"
    assert httpx.patch(address, json={"name": " "}, timeout=PATIENCE).status_code == 400
    httpx.patch(address, json={"tags": ["good"]}, timeout=PATIENCE)
    assert json.loads((folder / "run.json").read_text())["tags"] == ["good"]
    httpx.patch(address, json={"notes": "with ghp_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789"}, timeout=PATIENCE)
    assert json.loads((folder / "run.json").read_text())["notes"] == "with [redacted]"
    asked = httpx.post(
        f"{address}/alerts", json={"action": "silence", "rule": "gpu_temperature_high", "seconds": 60}, timeout=PATIENCE
    )
    assert asked.json()["asked"]["control"] == "silence"
    lines = [line for path in folder.glob("alerts_*.jsonl") for line in path.read_text().splitlines()]
    assert any(json.loads(line).get("control") == "silence" for line in lines)
    assert (
        httpx.patch(address, content=b"[", headers={"content-type": "application/json"}, timeout=PATIENCE).status_code
        == 400
    )
    assert httpx.patch(address, json={"tags": "x"}, timeout=PATIENCE).status_code == 400
    assert httpx.delete(address, timeout=PATIENCE).json() == {"removed": key}
    assert not folder.exists() and httpx.get(address, timeout=PATIENCE).status_code == 404


def test_a_living_run_is_edited(serve: Callable[..., Server], tmp_path: Path) -> None:
    import trainvitals

    run = trainvitals.init(project="p", name="alive", dir=tmp_path, tags=["own"], agent=False)
    try:
        server = serve(tmp_path, "--allow-edit")
        address = f"{server.base}api/v1/runs/{Path(run.folder).name}"
        answer = httpx.patch(address, json={"name": "renamed", "notes": "**n**", "add_tags": ["t"]}, timeout=PATIENCE)
        assert answer.json() == {"name": "renamed", "tags": ["own", "t"], "notes": "**n**"}
        run.add_config({"lr": 0.1})
    finally:
        run.finish()
    written = json.loads((Path(run.folder) / "run.json").read_text())
    assert (written["name"], written["notes"], written["status"]) == ("renamed", "**n**", "finished")
    assert written["tags"] == ["own", "t"] and written["config"]["lr"] == 0.1


def test_a_living_run_is_stopped_and_not_removed(serve: Callable[..., Server], tmp_path: Path) -> None:
    import trainvitals

    run = trainvitals.init(project="p", name="alive", dir=tmp_path, agent=False)
    try:
        run.log({"loss": 1.0}, step=0)
        server = serve(tmp_path, "--allow-edit")
        address = f"{server.base}api/v1/runs/{Path(run.folder).name}"
        answer = httpx.delete(address, timeout=PATIENCE)
        assert answer.status_code == 409 and Path(run.folder).exists()
        assert httpx.post(f"{address}/stop", json={}, timeout=PATIENCE).json() == {"stopping": Path(run.folder).name}
        assert find_request(Path(run.folder)) is not None
    finally:
        run.finish()
    assert httpx.post(f"{address}/stop", json={}, timeout=PATIENCE).status_code == 409


def test_the_console_is_followed_line_by_line(server: Server, root: Path, keys: list[str]) -> None:
    file = root / "p" / keys[0] / "console.rank0.log"
    file.write_bytes(b"step 1\n 10%|#\r 50%|##\r")
    assert ask(server, f"/runs/{keys[0]}").json()["consoles"] == ["console.rank0.log"]
    path = f"/runs/{keys[0]}/console/console.rank0.log"
    first = ask(server, path).json()
    assert (first["text"], first["cut"]) == ("step 1\n 50%|##", False)
    with open(file, "ab") as more:
        more.write(b"100%|###\nstep 2\n")
    then = ask(server, f"{path}?after={first['next']}").json()
    assert then["text"] == "100%|###\nstep 2\n"
    assert ask(server, f"{path}?after={then['next']}").json()["text"] == ""
    file.write_bytes(b"anew\n")
    again = ask(server, f"{path}?after={then['next']}").json()
    assert (again["start"], again["text"]) == (0, "anew\n")
    file.unlink()


def test_throttle_reasons_are_told_as_changes_of_a_word(server: Server, root: Path, keys: list[str]) -> None:
    folder = root / "p" / keys[0]
    words = ["none", "none", "power cap", "power cap", "none"]
    rows = [
        {"timestamp": f"2026-01-01T00:00:0{second}.000Z", "gpu_index": gpu, "throttle_reasons": word, "state": "ok"}
        for second, word in enumerate(words)
        for gpu in (0, 1)
    ]
    path = folder / "gpu_metrics_20260101_000000.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    begin = 1767225600.0
    found = ask(server, f"/runs/{keys[0]}/states?name=throttle_reasons&name=state&end={begin + 100}").json()["states"]
    expected = [[begin, "none"], [begin + 2, "power cap"], [begin + 4, "none"]]
    assert [(item["name"], item["gpu"], item["changes"]) for item in found] == [
        ("throttle_reasons", 0, expected),
        ("throttle_reasons", 1, expected),
        ("state", 0, [[begin, "ok"]]),
        ("state", 1, [[begin, "ok"]]),
    ]
    later = ask(server, f"/runs/{keys[0]}/states?name=throttle_reasons&start={begin + 3}&end={begin + 100}").json()
    assert later["states"][0]["changes"] == [[begin + 2, "power cap"], [begin + 4, "none"]]
    path.unlink()


def test_curves_of_all_runs_that_a_search_finds_come_in_one_answer(server: Server, keys: list[str]) -> None:
    found = ask(server, "/curves?project=p&name=accuracy").json()
    assert [line["runs"] for line in found["lines"]] == [[keys[1]], [keys[0]]] and found["total"] == 2
    assert [series["line"] for series in found["series"]] == [0, 1] and len(found["series"][0]["x"]) == 200
    grouped = ask(server, "/curves?project=p&name=loss&group=project&band=std").json()
    (series,) = grouped["series"]
    assert series["members"] == 2 and series["counts"][0] == 2 and series["nonfinite"] == [[60, "NaN"]]
    assert series["y"][0] == 0.75 and grouped["lines"][0]["title"] == "p"
    refused = ask(server, "/curves?group=projekt")
    assert refused.status_code == 400 and "'project'" in refused.json()["error"]["message"]
