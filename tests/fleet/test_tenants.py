"""One server, many tenants: nobody reads another project's run, however they ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines import Engine
from shipped import address_of, send
from starlette.testclient import TestClient

from trainvitals.fleet import gateway as gateways
from trainvitals.fleet import tokens
from trainvitals.fleet.clickhouse import ClickHouse
from trainvitals.fleet.gateway import Gateway
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.fleet.tokens import Tokens
from trainvitals.fleet.wire import Frame
from trainvitals.journal.contracts import Runs
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.views.web.api import ENDPOINTS
from trainvitals.views.web.app import PREFIX, make_app
from trainvitals.views.web.gate import App, Door
from trainvitals.views.web.tenants import Tenants

OWN, OTHER = "20261118-060001-mine-aaaa", "20261118-060002-theirs-bbbb"
SECRET = "their secret metric"
OWNER = "the token of who started the server"


def put(client: TestClient, project: str, run: str, metric: str) -> None:
    about = {"format": 1, "id": run, "project": project, "name": run[16:], "status": "finished", "config": {metric: 1}}
    lines = b"".join(
        encode_line({"timestamp": format_time(1.8e9 + step), "step": step, metric: 0.5}) for step in range(20)
    )
    event = encode_line({"timestamp": format_time(1.8e9), "event": metric, "message": metric})
    frames = [
        Frame("run.json", "document", encode_line({**about, "created": format_time(1.8e9)})),
        Frame("training_metrics_20261118_060000.rank0.jsonl", "lines", lines),
        Frame("events_20261118_060000.jsonl", "lines", event),
        Frame("console.rank0.log", "bytes", metric.encode(), 0, "1"),
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
def client(
    token: str, file: Path, debian: Engine, prepare: Callable[[Engine], ClickHouse], monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    monkeypatch.setattr(gateways, "GATHER_SECONDS", 0.0)
    store = Store(prepare(debian))
    with TestClient(Gateway(store, None).make_app()) as gateway:
        put(gateway, "mine", OWN, "loss")
        put(gateway, "theirs", OTHER, SECRET)

    def make(runs: Runs, door: Door) -> App:
        return make_app(runs, lambda *_: b"report", door=door)

    app = Tenants(Tokens(file), StoreRuns(store).limited_to, make, Door(token=OWNER))
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


def test_the_address_that_logs_in_gives_a_cookie_of_that_tenant(client: TestClient, token: str, file: Path) -> None:
    entered = client.get(f"/?token={token}")
    assert entered.status_code == 303 and token not in entered.headers["location"]
    assert "HttpOnly" in entered.headers["set-cookie"]
    rows = client.get(f"{PREFIX}/runs").json()["runs"]
    assert [row["id"] for row in rows] == [OWN]
    assert client.get(f"{PREFIX}/runs/{OTHER}").status_code == 404
    tokens.remove(file, "alice")
    assert client.get(f"{PREFIX}/runs").status_code == 401, "a cookie ends with its token"


def test_who_reads_the_file_of_hashes_cannot_enter(client: TestClient, file: Path) -> None:
    from trainvitals.views.web import login

    (digest,) = Tokens(file).list()
    assert client.get(f"{PREFIX}/runs", headers=bearer(digest)).status_code == 401
    client.cookies.set("trainvitals_80", login.new_cookie(digest))
    assert client.get(f"{PREFIX}/runs").status_code == 401
