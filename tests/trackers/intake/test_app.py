"""Who may log, and how much at once."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from waiting import PATIENCE

from trainvitals.trackers.intake.app import MOST_BODY, Room
from trainvitals.trackers.intake.keys import make_key
from trainvitals.trackers.intake.uploads import Signer

from .conftest import LocalServer, Server
from .test_wandb import graphql, stream, upsert

VIEWER = {"query": "query Viewer { viewer { id } }"}


def basic(text: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def test_the_token_is_needed_in_the_form_of_each_client(local: LocalServer) -> None:
    server = local
    key = make_key(server.token)
    for headers in (basic(f"api:{key}"), basic(f"user:{server.token}"), {"authorization": f"Bearer {server.token}"}):
        assert server.post("/graphql", VIEWER, headers=headers).status_code == 200
    for headers in ({}, basic("api:wrong"), basic("no colon"), {"authorization": "Basic %%%"}, {"authorization": "x"}):
        assert server.post("/graphql", VIEWER, headers=headers).status_code == 401
    assert server.client.get("/api/2.0/mlflow/experiments/get").json()["error_code"] == "UNAUTHENTICATED"
    assert server.post("/v1/metrics", {}, headers={}).status_code == 401


@pytest.mark.promise("a short token is guessed through the entrance of clients", "ten attempts per minute, in all")
def test_a_short_token_is_not_guessed_here_either(tmp_path: Path, serve: Callable[..., Server]) -> None:
    file = tmp_path / "token"
    file.write_text("password1")
    server = serve("wandb,mlflow,otlp", "--token-file", str(file))

    def ask(path: str, token: str) -> int:
        return server.post(path, VIEWER, headers={"authorization": f"Bearer {token}"}).status_code

    paths = ("/graphql", "/v1/metrics", "/api/2.0/mlflow/runs/search")
    assert [ask(paths[guess % 3], f"password{guess}") for guess in range(100, 110)] == [401] * 10
    assert ask("/graphql", "password1") == 429
    wrong = httpx.get(f"{server.address}/api/v1/about", headers={"authorization": "Bearer x"}, timeout=PATIENCE)
    assert wrong.status_code == 429, "the dashboard counts them as well"
    signed = Signer("password1").sign("/wandb-files/a/b/c/d")
    assert httpx.put(f"{server.address}{signed}", content=b"x", timeout=PATIENCE).status_code == 403


def test_a_page_of_another_site_cannot_log(server: Server) -> None:
    token = {"authorization": f"Bearer {server.token}"}
    foreign = {**token, "origin": "http://evil.example"}
    assert server.post("/graphql", VIEWER, headers=foreign).status_code == 403
    assert server.post("/graphql", VIEWER, headers={**token, "host": "evil.example"}).status_code == 421
    runs = f"{server.address}/api/v1/runs"
    assert httpx.get(runs, timeout=PATIENCE).status_code == 401, "the dashboard has an entrance of its own"
    assert httpx.get(runs, headers=token, timeout=PATIENCE).status_code == 200


def test_only_what_was_asked_for_is_accepted(serve: Callable[..., Server]) -> None:
    answer = serve("mlflow").post("/graphql", VIEWER)
    assert answer.status_code == 404 and "--accept wandb" in answer.json()["error"]


@pytest.mark.promise("a request of a client that is far too large, packed or not", "refused, and not kept in memory")
def test_bodies_that_are_too_large_are_refused(local: LocalServer) -> None:
    server = local
    token = {"authorization": f"Bearer {server.token}"}
    large = b" " * (MOST_BODY + 1)
    assert server.post("/graphql", large).status_code == 413
    packed = {**token, "content-encoding": "gzip"}
    assert server.post("/graphql", gzip.compress(large), headers=packed).status_code == 413
    assert server.post("/graphql", b"no gzip", headers=packed).status_code == 400
    assert server.post("/graphql", gzip.compress(json.dumps(VIEWER).encode()), headers=packed).status_code == 200


@pytest.mark.promise("more concurrent requests than the memory limit allows", "told to retry (429), each in turn")
def test_what_there_is_no_room_for_must_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = LocalServer(tmp_path / "runs", capsys, room=Room(1000))
    answer = server.post("/graphql", b" " * 2000)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    for _ in range(10):
        assert server.post("/graphql", VIEWER).status_code == 200, "the room of a request is free after it"


@pytest.mark.promise("clients that log 10,000 metrics a step as fast as they can", "accepted in bounded memory")
def test_a_flood_is_taken_in_bounded_memory(server: Server) -> None:
    lines = [json.dumps({"_step": step, **{f"metric/{n}": n * 0.5 for n in range(10_000)}}) for step in range(10)]

    def flood(number: int) -> list[int]:
        upsert(server, f"run{number}")
        parts = (
            stream(server, f"run{number}", {"wandb-history.jsonl": (at, lines[at : at + 5])}) for at in range(0, 10, 5)
        )
        return [answer.status_code for answer in parts]

    with ThreadPoolExecutor(8) as pool:
        assert {code for codes in pool.map(flood, range(8)) for code in codes} == {200}
    assert [sum(1 for _ in reader.rows()) for reader in server.runs()] == [10] * 8
    assert psutil.Process(server.pid).memory_info().rss < 1 << 30


def test_a_client_that_is_still_sending_sees_why_its_body_is_refused(server: Server) -> None:
    def send() -> Iterator[bytes]:
        for _ in range(MOST_BODY >> 20):
            yield b" " * (1 << 20)
        yield b" "

    with httpx.Client(timeout=PATIENCE, headers={"authorization": f"Bearer {server.token}"}) as client:
        for path, most in (("/graphql", "64 MB"), ("/v1/metrics", "20 MB")):
            answer = client.post(f"{server.address}{path}", content=send())
            assert answer.status_code == 413 and most in answer.text
        assert client.get(f"{server.address}/health").status_code == 200


def test_a_name_that_differs_in_its_first_letter_is_the_same_operation(local: LocalServer) -> None:
    server = local
    answer = server.post("/graphql", {"query": "{ viewer { id } }"})
    assert answer.json()["data"]["viewer"]["entity"]
    assert graphql(server, "Viewer", {}).status_code == 200
