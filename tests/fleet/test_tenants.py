"""One server, many tenants: nobody reads another project's run, however they ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import Engine
from shipped import address_of, send
from starlette.testclient import TestClient

from trainvitals.fleet import gateway as gateways
from trainvitals.fleet import tokens, wire
from trainvitals.fleet.audit import Audit
from trainvitals.fleet.clickhouse import ClickHouse
from trainvitals.fleet.gateway import Gateway
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.fleet.tokens import Tokens
from trainvitals.fleet.wire import FileRange
from trainvitals.journal.contracts import Runs
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.views.web.api import ENDPOINTS
from trainvitals.views.web.app import PREFIX, make_app
from trainvitals.views.web.gate import App, Door
from trainvitals.views.web.tenants import Tenants

OWN, OTHER = "20261118-060001-mine-aaaa", "20261118-060002-theirs-bbbb"
SECRET = "their secret metric"
OWNER = "the token of who started the server"
HIDDEN = "what only they know"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def put(client: TestClient, project: str, run: str, metric: str) -> None:
    about = {"format": 1, "id": run, "project": project, "name": run[16:], "status": "finished", "config": {metric: 1}}
    lines = b"".join(
        encode_line({"timestamp": format_time(1.8e9 + step), "step": step, metric: 0.5}) for step in range(20)
    )
    event = encode_line({"timestamp": format_time(1.8e9), "event": metric, "message": f"{metric}: {HIDDEN}"})
    frames = [
        FileRange("run.json", "document", encode_line({**about, "created": format_time(1.8e9)})),
        FileRange("training_metrics_20261118_060000.rank0.jsonl", "lines", lines),
        FileRange("events_20261118_060000.jsonl", "lines", event),
        FileRange("console.rank0.log", "bytes", f"{metric}: {HIDDEN}".encode(), 0, "1"),
    ]
    send(client, address_of(project, run), frames)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


@pytest.fixture
def token(file: Path) -> str:
    """Of a viewer of the project `mine`."""
    return tokens.add(file, "alice", "read", ["mine"])


@pytest.fixture
def store(debian: Engine, prepare: Callable[[Engine], ClickHouse]) -> Store:
    return Store(prepare(debian))


@pytest.fixture
def client(token: str, file: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(gateways, "GATHER_SECONDS", 0.0)
    with TestClient(Gateway(store, None).make_app()) as gateway:
        put(gateway, "mine", OWN, "loss")
        put(gateway, "theirs", OTHER, SECRET)
    audit = Audit(file.with_name("audit.jsonl"))

    def make(runs: Runs, door: Door) -> App:
        return make_app(runs, lambda *_: b"report", door=door)

    known = Tokens(file, lambda what, name: audit.note(what, name=name))
    app = Tenants(known, StoreRuns(store).limited_to, make, Door(token=OWNER), audit)
    with TestClient(app, base_url="http://localhost", follow_redirects=False) as found:
        yield found


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def list_runs(client: TestClient, token: str) -> list[str]:
    answer = client.get(f"{PREFIX}/runs", headers=bearer(token))
    assert answer.status_code == 200, answer.text
    return [row["id"] for row in answer.json()["runs"]]


def test_a_viewer_sees_the_runs_of_its_projects(client: TestClient, token: str, file: Path) -> None:
    assert list_runs(client, token) == [OWN]
    assert sorted(list_runs(client, OWNER)) == [OWN, OTHER]
    everything = tokens.add(file, "boss", "admin", ["*"])
    assert sorted(list_runs(client, everything)) == [OWN, OTHER]
    assert client.get(f"{PREFIX}/runs").status_code == 401
    assert client.get(f"{PREFIX}/runs", headers=bearer("guess")).status_code == 401
    agent = tokens.add(file, "agent", "write", ["*"])
    assert client.get(f"{PREFIX}/runs", headers=bearer(agent)).status_code == 401, "who ships does not read"


def test_no_question_leads_to_another_project(client: TestClient, token: str) -> None:
    """Every question of the API about their run, and what asks about several: as far as it is answered, without it."""
    every = f"?run={OTHER}&name={SECRET}&metric={SECRET}&q=theirs&runs={OTHER},{OWN}&baseline={OTHER}&project=theirs"
    asked = answered = 0
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET":
            continue
        for run in (OTHER, f"theirs~{OTHER}", "theirs", "latest"):
            path = (
                endpoint.path.replace("{run}", run)
                .replace("{project}", "theirs")
                .replace("{name}", "console.rank0.log")
            )
            for query in ("", every, f"?name={SECRET}", f"?run={OTHER}&run={OWN}", "?q=theirs", f"?name={SECRET}&q="):
                answer = client.get(PREFIX + path + query, headers=bearer(token))
                asked += 1
                if answer.status_code == 200:
                    answered += 1
                    assert OTHER.encode() not in answer.content, (path, query)
                if "{run}" in endpoint.path and run != "latest":
                    assert answer.status_code in (400, 404), (path, query, answer.text[:200])
    assert asked > 300 and answered > 20


@pytest.mark.promise(
    "a viewer or an agent of one project asks every address of the dashboard and of the gateway about another",
    "nothing is returned, whatever the token's role, method, spelling or query",
)
def test_no_token_of_one_project_gets_anything_of_another(client: TestClient, file: Path, store: Store) -> None:
    roles = {role: bearer(tokens.add(file, role, role, ["mine"])) for role in ("write", "read", "admin")}
    attackers = {"nobody": {}, "a guess": bearer("guess"), "a hash": bearer(next(iter(Tokens(file).list()))), **roles}
    spellings = (OTHER, f"theirs~{OTHER}", "theirs", f"..%2Ftheirs%2F{OTHER}", f"{OWN}%00{OTHER}", "%25", "'%20OR%20'1")
    paths = {endpoint.path for endpoint in ENDPOINTS} | {"/runs/{run}/stream", "/reader", "/nothing"}
    query = f"?run={OTHER}&name={SECRET}&project=theirs&q=theirs&token=&file=console.rank0.log"
    asked = 0
    for who, headers in attackers.items():
        # Who is let in asks in every way; at a closed door one is like another.
        ways = spellings if who in ("read", "admin") else spellings[:1]
        for path in sorted(
            path.replace("{project}", "theirs").replace("{file}", "console.rank0.log") for path in paths
        ):
            for spelling in ways if "{run}" in path else ways[:1]:
                for method in METHODS if spelling == OTHER else ("GET",):
                    for more in ("", query) if method == "GET" else ("",):
                        answer = client.request(
                            method, PREFIX + path.replace("{run}", spelling) + more, headers=headers
                        )
                        asked += 1
                        assert HIDDEN not in answer.text, (who, method, path, spelling)
                        if who not in ("read", "admin") and "token=" not in more:
                            assert answer.status_code == 401, (who, method, path)
    with TestClient(Gateway(store, Tokens(file)).make_app()) as gateway:
        for who, headers in attackers.items():
            for place in (
                f"theirs/{OTHER}",
                f"mine%2F..%2Ftheirs/{OTHER}",
                f"mine//theirs/{OTHER}",
                f"*/{OTHER}",
                f"%2A/{OTHER}",
            ):
                for method in METHODS:
                    answer = gateway.request(method, f"{wire.PREFIX}/runs/{place}", headers=headers)
                    asked += 1
                    assert answer.status_code in (401, 403, 404, 405), (who, method, place)
            assert gateway.get(address_of("mine", OWN), headers=headers).status_code == (
                200 if who in ("write", "admin") else 403 if who == "read" else 401
            )
    assert asked > 600
    assert client.get(f"{PREFIX}/machine", headers=roles["admin"]).status_code == 403, "it is the server's"
    assert client.get(f"{PREFIX}/machine", headers=bearer(OWNER)).status_code == 200


def test_who_did_what_is_written_down_without_secrets(client: TestClient, token: str, file: Path) -> None:
    client.get(f"{PREFIX}/runs/{OWN}/series?name=loss", headers=bearer(token))
    client.get(f"{PREFIX}/runs/{OWN}/series?name=loss", headers=bearer(token))
    client.get(f"{PREFIX}/runs/{OWN}/export?table=training&format=csv", headers=bearer(token))
    client.get(f"{PREFIX}/compare?run={OWN}&run={OWN}", headers=bearer(OWNER))
    client.get(f"{PREFIX}/runs", headers=bearer("a wrong one"))
    client.get(f"/?token={token}")
    tokens.add(file, "owner", "read", ["mine"])  # who is called so is not the owner
    client.get(f"{PREFIX}/runs", headers=bearer(OWNER))
    text = file.with_name("audit.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    told = [(row["did"], row.get("who") or row.get("name"), row.get("run"), row.get("what")) for row in rows]
    assert told == [
        ("read", "alice", OWN, "series"),
        ("exported", "alice", OWN, "export"),
        ("read", "owner", f"{OWN},{OWN}", "compare"),
        ("refused", None, None, f"{PREFIX}/runs"),
        ("logged in", "alice", None, None),
        ("token added", "owner", None, None),
        ("read", "owner", None, "runs"),
    ]
    assert all(row["from"] == "testclient" for row in rows if row["did"] != "token added")
    assert not any(secret in text for secret in (token, OWNER, "a wrong one", *Tokens(file).list(), "name=loss"))


def test_a_stream_ends_with_the_token(client: TestClient, token: str, file: Path) -> None:
    """Whoever is removed while a page follows a run hears no more of it."""
    heard: list[bytes] = []

    async def follow() -> None:
        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            heard.append(message.get("body", b""))
            if len(heard) == 2:
                tokens.remove(file, "alice")

        path = f"{PREFIX}/runs/{OWN}/stream"
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())]
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
                 "headers": headers, "client": ("here", 1), "server": ("localhost", 80), "scheme": "http",
                 "http_version": "1.1", "root_path": ""}  # fmt: skip
        with contextlib.suppress(Exception):  # as a connection that is cut
            await client.app(scope, receive, send)

    asyncio.run(follow())
    assert len(heard) == 2


def test_the_address_that_logs_in_gives_a_cookie_of_that_tenant(client: TestClient, token: str, file: Path) -> None:
    entered = client.get(f"/?token={token}")
    assert entered.status_code == 303 and token not in entered.headers["location"]
    assert "HttpOnly" in entered.headers["set-cookie"]
    rows = client.get(f"{PREFIX}/runs").json()["runs"]
    assert [row["id"] for row in rows] == [OWN]
    assert client.get(f"{PREFIX}/runs/{OTHER}").status_code == 404
    tokens.remove(file, "alice")
    assert client.get(f"{PREFIX}/runs").status_code == 401, "a cookie ends with its token"


def test_who_has_no_cookie_is_told_what_a_token_is_for(client: TestClient) -> None:
    page = client.get("/", headers={"Accept": "text/html"})
    assert page.status_code == 401 and "localhost/?token=TOKEN" in page.text and "gives out tokens" in page.text
    hint = client.get(f"{PREFIX}/runs").json()["error"]["hint"]
    assert "?token=TOKEN, with the role read or admin" in hint
    wrong = client.get("/?token=guess", headers={"Accept": "text/html"})
    assert wrong.status_code == 401 and "Wrong token" in wrong.text and "guess" not in wrong.text


def test_who_reads_the_file_of_hashes_cannot_enter(client: TestClient, file: Path) -> None:
    from trainvitals.views.web import login

    (digest,) = Tokens(file).list()
    assert client.get(f"{PREFIX}/runs", headers=bearer(digest)).status_code == 401
    client.cookies.set("trainvitals_80", login.new_cookie(digest))
    assert client.get(f"{PREFIX}/runs").status_code == 401
