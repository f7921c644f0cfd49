"""The page and its API in the hands of somebody who means harm: guessed tokens, forged edits, markup, SQL."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from trainvitals.journal import parquet
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.segment_writer import seal
from trainvitals.views.web.api import ENDPOINTS
from trainvitals.views.web.app import MAX_BODY, PREFIX, make_app
from trainvitals.views.web.gate import Door, cookie_name
from trainvitals.views.web.login import new_token

from .conftest import Server, Tab, make_run

EDITS = [endpoint for endpoint in ENDPOINTS if endpoint.edits]
PAGES = ("overview", "training", "system", "alerts", "findings", "logs", "export")
SCRIPTS = (
    "<img src=x onerror=owned()>",
    "<svg/onload=owned()>",
    "\"'></script><script>owned()</script>",
    "javascript:owned()",
    "</textarea></style></title><iframe srcdoc='<script>parent.owned()</script>'>",
    "{{constructor.constructor('owned()')()}}",
)
EVIL = " ".join(SCRIPTS)


@pytest.fixture
def place(root: Path, tmp_path: Path) -> Path:
    """Runs that may be changed."""
    return Path(shutil.copytree(root, tmp_path / "runs"))


def ask(place: Path, token: str | None = None, *, edits: bool = True) -> TestClient:
    runs = FolderRuns(place)
    app = make_app(runs, lambda *_: b"", door=Door(token), editable=runs if edits else None)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False, follow_redirects=False)


def contents(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.promise("a thousand guessed tokens, and odd ones", "401 for each; the right one still opens")
def test_guessing_tokens_leads_nowhere_and_locks_nobody_out(place: Path) -> None:
    token = new_token()
    client, cookie = ask(place, token), f"{cookie_name('localhost')}=".encode()
    odd = ("", " ", "\x7f", "é", "%00", "*", token[:-1], token + "x", token.swapcase(), token[::-1], "x" * 50_000)
    for guess in (*odd, *(new_token() for _ in range(300))):
        spelled = guess.encode("latin-1")
        for headers in ({"authorization": b"Bearer " + spelled}, {"cookie": cookie + spelled}):
            assert client.get(f"{PREFIX}/runs", headers=headers).status_code == 401
        assert client.get(f"/?token={quote(guess[:1000])}").status_code == 401
    basic = {"authorization": f"Basic {token}"}
    assert client.get(f"{PREFIX}/runs", headers=basic).status_code == 401
    assert client.post(f"{PREFIX}/runs?token={token}").status_code == 401, "the address opens nothing but a page"
    assert client.get(f"{PREFIX}/runs", headers={"authorization": f"Bearer {token}"}).status_code == 200


FORGED: list[tuple[dict[str, str], str | bytes, int]] = [
    ({"origin": "https://evil.example"}, "{}", 403),
    ({"origin": "null"}, "{}", 403),
    ({"origin": "http://localhost.evil.example"}, "{}", 403),
    ({"origin": "http://localhost:1"}, "{}", 403),
    ({"sec-fetch-site": "cross-site"}, "{}", 403),
    ({"sec-fetch-site": "same-site"}, "{}", 403),
    ({"host": "evil.example"}, "{}", 421),
    ({"content-type": "text/plain"}, '{"tags": ["x"], "rule": "all", "action": "silence"}', 400),
    ({"content-type": "application/x-www-form-urlencoded"}, "tags=x", 400),
    ({"content-type": "multipart/form-data; boundary=x"}, "--x--", 400),
    ({"content-type": ""}, "{}", 400),
    ({}, b"x" * (MAX_BODY + 1), 400),
    ({}, b"[" * MAX_BODY, 400),
    ({}, b'{"tags": ' + b"[" * 30_000 + b"]" * 30_000 + b"}", 400),
    ({}, b"\xff\xfe", 400),
    ({}, b'{"seconds": NaN, "notes": NaN}', 400),
    ({}, b'{"seconds": 1e999, "tags": 1e999}', 400),
    ({}, json.dumps({"tags": ["x"] * 10_000}), 400),
    ({}, json.dumps({"tags": [{"a": 1}], "rule": ["all"]}), 400),
]


@pytest.mark.parametrize("endpoint", EDITS, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
@pytest.mark.promise("forged edits: other origins, forms, huge and broken bodies", "refused; no file changes")
def test_a_forged_edit_changes_nothing(place: Path, keys: list[str], endpoint: Any) -> None:
    client, before = ask(place), contents(place)
    for headers, body, status in FORGED:
        if endpoint.method == "DELETE" and status == 400:
            continue  # it takes no body
        sent = {"content-type": "application/json", **headers}
        path = PREFIX + endpoint.path.replace("{run}", keys[0]).replace("{project}", "p")
        answer = client.request(endpoint.method, path, headers=sent, content=body)
        # An endpoint without a body does not look into one: this run has ended, so nothing can be done to it either.
        refused = (status,) if any(item.place == "body" for item in endpoint.parameters) else (status, 409)
        assert answer.status_code in refused, (headers, body[:80], answer.text)
    assert contents(place) == before


@pytest.mark.parametrize("endpoint", EDITS, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
@pytest.mark.promise("an edit of a run whose name leads elsewhere", "404; no file changes")
def test_no_edit_leads_out_of_the_root(place: Path, tmp_path: Path, endpoint: Any) -> None:
    outside = tmp_path / "outside" / "run"
    shutil.copytree(next(place.glob("*/*/run.json")).parent, outside)
    (place / "p" / "linked").symlink_to(outside)
    runs = FolderRuns(place, inside_only=True)
    client = TestClient(make_app(runs, lambda *_: b"", editable=runs), base_url="http://localhost")
    before = contents(tmp_path)
    for name in ("linked", "..", "../../outside/run", "%2e%2e%2foutside%2frun", str(outside), "p", "", "\0", "*"):
        spelled = quote(name, safe="%")
        path = PREFIX + endpoint.path.replace("{run}", spelled).replace("{project}", spelled)
        body = {"tags": ["x"], "rule": "all", "action": "silence", "seconds": 60}
        answer = client.request(endpoint.method, path, json=body)
        assert 400 <= answer.status_code < 500, (name, answer.text)
    assert contents(tmp_path) == before


@pytest.fixture
def listener() -> Iterator[tuple[str, list[Any]]]:
    """An address, and who connected to it."""
    came: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            try:
                while True:
                    came.append(server.accept())
            except OSError:
                pass  # the test is over

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/x.parquet", came


@pytest.mark.promise("SQL and addresses in any parameter of the API", "no file is read or written, no server is asked")
def test_no_parameter_becomes_sql_or_a_path(place: Path, keys: list[str], tmp_path: Path, listener: Any) -> None:
    address, came = listener
    for file in next(place.glob(f"*/{keys[0]}")).glob("training_metrics_*.jsonl"):
        seal(file)
    client, target = ask(place, edits=False), tmp_path / "written"
    before = contents(tmp_path)
    texts = [
        f"'; COPY (SELECT 1) TO '{target}'; --",
        f"') UNION SELECT * FROM read_text('{place}/p/{keys[0]}/run.json') --",
        f"loss' OR name IN (SELECT filename FROM glob('/etc/*')) ATTACH '{target}' --",
        address,
        f"{place}/p/{keys[0]}/run.json",
        "s3://bucket/x",
    ]
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET":
            continue
        for text in texts:
            path = PREFIX + endpoint.path.replace("{run}", keys[0]).replace("{project}", "p")
            for name in [parameter.name for parameter in endpoint.parameters]:
                shown = path.replace("{" + name + "}", quote(text, safe=""))
                query = {"name": "loss", "run": keys[:2], name: text}
                known = {parameter.name for parameter in endpoint.parameters if parameter.place == "query"}
                wanted = {key: value for key, value in query.items() if key in known}
                answer = client.get(shown.replace("{file}", "x"), params=wanted)
                assert answer.status_code < 500, (shown, answer.text)
                assert "root:x:" not in answer.text
    assert came == [] and contents(tmp_path) == before


FORBIDDEN = (
    "INSTALL httpfs",
    "LOAD httpfs",
    "INSTALL httpfs FROM community",
    "SELECT * FROM read_parquet('ADDRESS')",
    "SELECT * FROM 'ADDRESS'",
    "ATTACH 'ADDRESS' AS other",
    "COPY (SELECT 1) TO 'ADDRESS'",
    "SET autoinstall_known_extensions = true",
    "SET autoload_known_extensions = true",
    "SET allow_unsigned_extensions = true",
    "SET extension_directory = '/tmp'",
    "SET memory_limit = '100GB'",
    "SET lock_configuration = false",
)


@pytest.mark.parametrize("statement", FORBIDDEN)
@pytest.mark.promise("DuckDB: extensions, remote paths, other settings", "off, and locked")
def test_duckdb_loads_nothing_and_asks_no_server(listener: Any, statement: str) -> None:
    import duckdb

    address, came = listener
    connection = parquet.connect()
    with pytest.raises(duckdb.Error):
        connection.execute(statement.replace("ADDRESS", address)).fetchall()
    assert came == []


def poison(folder: Path) -> None:
    """Put scripts into every text of every document of a run."""
    file = folder / "run.json"
    run = json.loads(file.read_text())
    texts = dict.fromkeys(("name", "notes", "host", "program", "python", "user", "cause"), EVIL)
    more = {
        "config": {EVIL: EVIL, "url": "javascript:owned()", "lr": 0.1},
        "tags": list(SCRIPTS),
        "command": list(SCRIPTS),
        "git": {"commit": EVIL, "branch": EVIL, "remote": "javascript:owned()"},
        "packages": {EVIL: EVIL},
        "reason": {"kind": "exception", "exception": EVIL, "detail": EVIL},
        "status": "failed",
    }
    file.write_text(json.dumps({**run, **texts, **more}))
    keep = {"timestamp", "state", "severity", "since", "gpu_index", "step"}
    for path in folder.glob("*.jsonl"):
        lines = []
        for line in path.read_text().splitlines():
            row = json.loads(line)
            row = {key: EVIL if isinstance(item, str) and key not in keep else item for key, item in row.items()}
            if "labels" in row:
                row["labels"] = {EVIL: EVIL, "gpu_uuid": EVIL}
            lines.append(json.dumps({**row, EVIL: 1.0}))
        path.write_text("\n".join(lines) + "\n")
    (folder / "console.rank0.log").write_text(EVIL + "\n")
    (folder / "stacks" / "rank0.txt").write_text(EVIL + "\n")
    (folder / "status.json").write_text(json.dumps({"attempt": 1, "state": "hung", "cause": EVIL, "host": EVIL}))


WATCH = """
window.reports = [];
window.owned = () => window.reports.push('a script of the run was started');
document.addEventListener('securitypolicyviolation', event => window.reports.push(
    `${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""


@pytest.mark.promise("scripts in every text of a run, on every page", "none runs, and the browser reports no violation")
def test_no_page_runs_a_script_of_a_run(
    serve: Callable[..., Server], open_tab: Callable[..., Tab], tmp_path: Path
) -> None:
    keys = [make_run(tmp_path, name, steps=60) for name in ("one", "two")]
    for key in keys:
        poison(next(tmp_path.glob(f"*/{key}")))
    server, tab = serve(tmp_path), open_tab()
    tab.page.add_init_script(WATCH)
    addresses = [f"#/run/{quote(key)}/{page}" for key in keys for page in PAGES]
    addresses += ["#/runs", f"#/compare?runs={keys[0]},{keys[1]}", f"#/run/{quote(EVIL)}/overview", f"#/{quote(EVIL)}"]
    tab.page.goto(server.url)
    for address in addresses:
        tab.page.goto(server.base + address)
        tab.page.reload()
        tab.wait("document.querySelector('main')?.innerText.length > 20 || document.querySelector('main input')")
        if any(key in address for key in keys):
            tab.wait(f"document.body.innerText.includes({json.dumps(SCRIPTS[0])})")  # else nothing was tried
        assert tab.page.evaluate("window.reports") == [], address
        assert tab.page.evaluate("[...document.querySelectorAll('img, iframe, object, embed, base')].length") == 0
        links = tab.page.evaluate("[...document.querySelectorAll('a')].map(link => link.href)")
        assert [link for link in links if not link.startswith((server.base, "blob:", "data:"))] == [], address
    hosts = {request for request in tab.requests if not request.startswith((server.base, "blob:", "data:"))}
    assert hosts == set()


@pytest.mark.promise("the same in a saved report", "none runs")
def test_no_saved_report_runs_a_script_of_a_run(
    serve: Callable[..., Server], open_tab: Callable[..., Tab], tmp_path: Path
) -> None:
    import httpx
    from waiting import PATIENCE

    key = make_run(tmp_path / "runs", "one", steps=60)
    poison(next((tmp_path / "runs").glob(f"*/{key}")))
    server = serve(tmp_path / "runs")
    with httpx.Client(follow_redirects=True, timeout=PATIENCE) as client:
        client.get(server.url)
        report = client.get(f"{server.base}api/v1/runs/{quote(key)}/report", params={"format": "html"})
        drawing = client.get(f"{server.base}api/v1/runs/{quote(key)}/report", params={"format": "svg"})
    assert report.is_success and drawing.is_success
    for name, content in (("report.html", report.content), ("drawing.svg", drawing.content)):
        file = tmp_path / name
        file.write_bytes(content)
        tab = open_tab()
        tab.page.add_init_script(WATCH)
        tab.page.goto(file.as_uri())
        tab.wait("document.documentElement.textContent.length > 20")
        assert tab.page.evaluate("window.reports") == []
        assert [request for request in tab.requests if not request.startswith(("file:", "blob:", "data:"))] == []
