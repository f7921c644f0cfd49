"""The gateway: what it takes, from whom, and what it says."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cramjam
import httpx
import pytest
from engines import Engine, run_debian, run_victoria
from made_runs import write_alike
from shipped import address_of, parse, send
from starlette.testclient import TestClient
from waiting import PATIENCE, free_port, wait_until

from trainvitals.fleet import gateway as gateways
from trainvitals.fleet import pushes, schema, tokens, wire
from trainvitals.fleet.clickhouse import ClickHouse
from trainvitals.fleet.gateway import Gateway
from trainvitals.fleet.intake import take
from trainvitals.fleet.store import Store
from trainvitals.fleet.store_runs import StoreRuns
from trainvitals.fleet.tokens import Tokens
from trainvitals.fleet.wire import FileRange
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.varints import varint

RUN = "20261118-060000-one-aaaa"
NAME = "training_metrics_20261118_060000.rank0.jsonl"
ADDRESS = address_of("vision", RUN)
DOCUMENT = FileRange("run.json", "document", encode_line({"format": 1, "id": RUN, "project": "vision"}))


def lines(first: int, end: int) -> bytes:
    rows = ({"timestamp": format_time(1.8e9 + step), "step": step, "loss": step / 7} for step in range(first, end))
    return b"".join(map(encode_line, rows))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(pushes, "ANSWER_SECONDS", PATIENCE)


@pytest.fixture
def store(debian: Engine, prepare: Callable[[Engine], ClickHouse]) -> Store:
    return Store(prepare(debian))


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(Gateway(store, None).make_app()) as found:
        yield found


def losses(store: Store) -> list[float]:
    return StoreRuns(store).open(RUN).series(["loss"])[0].y.tolist()  # type: ignore[no-any-return]


# -- what lies behind


def test_a_frame_that_does_not_begin_at_the_end_is_not_taken(client: TestClient, store: Store) -> None:
    first, second = lines(0, 10), lines(10, 20)
    held = send(client, ADDRESS, [DOCUMENT, FileRange(NAME, "lines", first)])
    assert (held[NAME].end, held[NAME].rows) == (len(first), 10)
    for offset in (0, len(first) - 5, len(first) + 1):
        body = wire.encode_frames([FileRange(NAME, "lines", second, offset)], compress=False)
        answer = client.post(ADDRESS, content=body)
        assert answer.status_code == 409
        assert parse(answer)[NAME].end == len(first)
    send(client, ADDRESS, [FileRange(NAME, "lines", second, len(first))])
    assert losses(store) == [step / 7 for step in range(20)]


def test_of_several_frames_those_that_fit_are_taken(client: TestClient) -> None:
    send(client, ADDRESS, [DOCUMENT])
    body = wire.encode_frames(
        [FileRange(NAME, "lines", lines(0, 3)), FileRange("a.log", "bytes", b"x", 7, "1")], compress=False
    )
    answer = client.post(ADDRESS, content=body)
    assert answer.status_code == 409
    held = parse(answer)
    assert held[NAME].rows == 3 and held["a.log"].end == 0


def test_any_gateway_goes_on_where_another_ended(store: Store) -> None:
    piece = [lines(first, first + 50) for first in range(0, 1000, 50)]
    with (
        TestClient(Gateway(store, None).make_app()) as one,
        TestClient(Gateway(store, None).make_app()) as other,
    ):
        send(one, ADDRESS, [DOCUMENT])
        offset = 0
        for number, data in enumerate(piece):
            send((one, other)[number % 2], ADDRESS, [FileRange(NAME, "lines", data, offset)])
            offset += len(data)
    assert losses(store) == [step / 7 for step in range(1000)]


def described(status: str, replaces: FileRange | None = None) -> FileRange:
    about = {"format": 1, "id": RUN, "project": "vision", "status": status}
    before = wire.digest_of(replaces.data) if replaces is not None else ""
    return FileRange("run.json", "document", encode_line(about), generation=before)


@pytest.mark.promise("gateways take turns with the documents of a run", "viewers see the last one that was sent")
def test_a_gateway_that_is_behind_puts_no_older_document_in_the_place_of_a_newer(store: Store) -> None:
    def status() -> str:
        return StoreRuns(store).describe(RUN).status

    with (
        TestClient(Gateway(store, None).make_app()) as one,
        TestClient(Gateway(store, None).make_app()) as other,
    ):
        last = described("queued")
        send(one, ADDRESS, [last])
        for text in ("running", "stalled", "running"):
            last = described(text, replaces=last)
            send(other, ADDRESS, [last])
        last = described("finished", replaces=last)
        assert send(one, ADDRESS, [last])["run.json"].digest == wire.digest_of(last.data)
        assert status() == "finished"
        again = described("queued", replaces=described("stalled"))
        answer = other.post(ADDRESS, content=wire.encode_frames([again], compress=False))
        assert answer.status_code == 409, "a request that was on its way for long"
        assert parse(answer)["run.json"].digest == wire.digest_of(last.data)
        assert status() == "finished"
        # What this gateway saw last is what is sent: it is not there, for the other one has replaced it.
        send(one, ADDRESS, [last := described("crashed", replaces=last)])
        send(other, ADDRESS, [last := described("killed", replaces=last)])
        send(one, ADDRESS, [described("crashed", replaces=last)])
        assert status() == "crashed"


def test_a_document_that_is_taken_beside_a_replica_that_is_behind_is_the_newest(store: Store) -> None:
    first = described("queued")
    behind = take([first], {}, "vision", RUN, 20261118)
    later = take([described("running", replaces=first)], behind.ends, "vision", RUN, 20261118)
    newest = take([described("finished", replaces=first)], behind.ends, "vision", RUN, 20261118)
    for taken in (behind, newest, later):
        store.write(taken.intake.blocks)
    assert StoreRuns(store).describe(RUN).status == "finished"


def test_rows_that_are_written_twice_count_once(store: Store) -> None:
    """A gateway is killed between the rows and its answer, and another takes a longer piece of the same lines."""
    for end in (60, 100, 100):
        taken = take([DOCUMENT, FileRange(NAME, "lines", lines(0, end))], {}, "vision", RUN, 20261118)
        store.write(taken.intake.blocks)
    assert losses(store) == [step / 7 for step in range(100)]
    assert store.read_ends("vision", RUN)[NAME].rows == 100
    engine = store.engine
    assert engine.execute("SELECT count() FROM points FINAL").strip() == b"100"


def test_rows_that_were_not_acknowledged_are_not_shown(store: Store) -> None:
    taken = take([DOCUMENT, FileRange(NAME, "lines", lines(0, 10))], {}, "vision", RUN, 20261118)
    more = take([FileRange(NAME, "lines", lines(10, 20), taken.ends[NAME].end)], taken.ends, "vision", RUN, 20261118)
    store.write(taken.intake.blocks)
    store.write({"points": more.intake.blocks["points"]})  # and then the gateway is killed
    assert losses(store) == [step / 7 for step in range(10)]
    store.write(more.intake.blocks)
    assert losses(store) == [step / 7 for step in range(20)]


def test_a_text_that_was_begun_anew_replaces_the_one_before(client: TestClient, store: Store) -> None:
    name = "console.rank0.log"
    send(client, ADDRESS, [DOCUMENT, FileRange(name, "bytes", b"old old\n" * 9, 0, "1")])
    send(client, ADDRESS, [FileRange(name, "bytes", b"new\n", 0, "2")])
    send(client, ADDRESS, [FileRange(name, "bytes", b"newer\n", 4, "2")])
    reader = StoreRuns(store).open(RUN)
    assert reader.read_text("console", name, 1000).text == "new\nnewer\n"
    assert send(client, ADDRESS, [FileRange(name, "bytes", b"", 10, "2")])[name].generation == "2"


def test_a_text_that_was_begun_anew_at_a_gateway_that_is_behind_replaces_the_one_before(store: Store) -> None:
    name = "console.rank0.log"
    with (
        TestClient(Gateway(store, None).make_app()) as one,
        TestClient(Gateway(store, None).make_app()) as other,
    ):
        send(one, ADDRESS, [DOCUMENT])
        send(other, ADDRESS, [FileRange(name, "bytes", b"old old\n" * 9, 0, "1")])
        send(one, ADDRESS, [FileRange(name, "bytes", b"new\n", 0, "2")])
    assert StoreRuns(store).open(RUN).read_text("console", name, 1000).text == "new\n"


# -- who may


def test_nobody_writes_into_another_project(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    headers = {
        name: {"Authorization": f"Bearer {tokens.add(file, name, role, projects)}"}
        for name, role, projects in (("w", "write", ["vision"]), ("r", "read", ["*"]), ("a", "admin", ["*"]))
    }
    body = wire.encode_frames([DOCUMENT], compress=False)
    with TestClient(Gateway(store, Tokens(file)).make_app()) as client:
        assert client.post(ADDRESS, content=body).status_code == 401
        assert client.post(ADDRESS, content=body, headers={"Authorization": "Bearer guess"}).status_code == 401
        assert client.post(ADDRESS, content=body, headers=headers["r"]).status_code == 403
        assert client.post(address_of("speech", RUN), content=body, headers=headers["w"]).status_code == 403
        assert client.get(address_of("speech", RUN), headers=headers["w"]).status_code == 403
        assert client.post(ADDRESS, content=body, headers=headers["w"]).status_code == 200
        assert client.get(ADDRESS, headers=headers["a"]).status_code == 200
        # Nor by what a run says of itself.
        lie = FileRange("run.json", "document", encode_line({"format": 1, "id": RUN, "project": "speech"}))
        answer = client.post(ADDRESS, content=wire.encode_frames([lie], compress=False), headers=headers["w"])
        assert answer.status_code == 422 and "project 'speech'" in answer.json()["error"]
    assert StoreRuns(store, frozenset({"speech"})).list_keys() == []
    assert StoreRuns(store, frozenset({"vision"})).list_keys() == [RUN]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"nonsense", 422),
        (wire.encode_frames([FileRange(NAME, "lines", b"no end of line")], compress=False), 422),
        (
            wire.encode_frames([FileRange("segments/" + NAME[:-6] + ".parquet", "segment", b"PAR1")], compress=False),
            422,
        ),
        (bytes(wire.MOST_BYTES + 1), 413),
    ],
)
def test_what_breaks_the_rules_is_refused(body: bytes, status: int, client: TestClient) -> None:
    answer = client.post(ADDRESS, content=body)
    assert answer.status_code == status
    assert answer.json()["error"]


SEGMENT_OF_ANYBODY = {
    "a text without a row": "'a' AS name, NULL::BIGINT AS row, 1::BIGINT AS time, NULL::DOUBLE AS value, 'x' AS text",
    "a text without a time": "'a' AS name, 0::BIGINT AS row, NULL::BIGINT AS time, NULL::DOUBLE AS value, 'x' AS text",
    "a number as its name": "7 AS name, 0::BIGINT AS row, 1::BIGINT AS time, 1.0 AS value, NULL AS text",
    "a word as its row": "'a' AS name, 'x' AS row, 1::BIGINT AS time, 1.0::DOUBLE AS value, NULL::VARCHAR AS text",
    "a row beyond all": "'a' AS name, (1::HUGEINT << 100) AS row, 1 AS time, NULL::DOUBLE AS value, 'x' AS text",
}


@pytest.mark.promise(
    "a run.json or sealed file with anything in it, shipped to a gateway",
    "it is refused; all others are shipped",
)
@pytest.mark.parametrize("what", SEGMENT_OF_ANYBODY)
def test_a_sealed_file_of_anybody_is_refused_and_not_asked_for_again(
    what: str, client: TestClient, tmp_path: Path
) -> None:
    import duckdb

    file = tmp_path / "x.parquet"
    duckdb.sql(f"SELECT {SEGMENT_OF_ANYBODY[what]}, '' AS label, NULL::BIGINT AS step").write_parquet(str(file))
    frame = FileRange(f"segments/{NAME[:-6]}.parquet", "segment", file.read_bytes())
    answer = client.post(ADDRESS, content=wire.encode_frames([frame], compress=False))
    assert (answer.status_code, NAME[:-6] in answer.json()["error"]) == (422, True)


@pytest.mark.parametrize("depth", [101, 260, 900, 100_000])
def test_lines_and_documents_that_are_nested_too_deeply(depth: int, client: TestClient, store: Store) -> None:
    lists = b"[" * depth + b"]" * depth
    run = FileRange("run.json", "document", b'{"format": 1, "config": {"a": %s}}' % lists)
    answer = client.post(ADDRESS, content=wire.encode_frames([run], compress=False))
    assert (answer.status_code, "nested too deeply" in answer.json()["error"]) == (422, True)
    line = b'{"timestamp":"2026-11-18T06:00:00.000000Z","step":1,"rule":"r","labels":{"a":%s},"x":%s}\n' % (
        lists,
        lists,
    )
    alerts = NAME.replace("training_metrics", "alerts")
    frames = [DOCUMENT, FileRange(NAME, "lines", line + lines(2, 5)), FileRange(alerts, "lines", line)]
    held = send(client, ADDRESS, frames)
    assert (held[NAME].rows, held[alerts].rows) == (3, 0), "the others are taken"
    assert losses(store) == [step / 7 for step in range(2, 5)]


def test_one_request_brings_no_more_rows_than_fit_into_memory(client: TestClient, tmp_path: Path) -> None:
    data = write_alike(tmp_path / "alike.parquet", 1_200_000).read_bytes()
    stems = (f"segments/training_metrics_20261118_06000{number}.rank0.parquet" for number in range(2))
    body = wire.encode_frames([FileRange(stem, "segment", data) for stem in stems], compress=False)
    answer = client.post(ADDRESS, content=body)
    assert answer.status_code == 413 and "MB of memory" in answer.json()["error"], "so the agent sends them one by one"


def test_names_with_sql_in_them_are_names(client: TestClient, store: Store) -> None:
    project, run = "it's; DROP TABLE points", "20261118-060000-'\\-aaaa"
    address = address_of(project.replace(";", "%3B"), run.replace("\\", "%5C"))
    answer = client.post(address, content=b"")
    assert answer.status_code == 422, "a backslash is no part of a name"
    run = "20261118-060000-' OR 1=1 --"
    document = encode_line({"format": 1, "id": run, "project": project})
    send(client, address_of(project.replace(";", "%3B"), run), [FileRange("run.json", "document", document)])
    assert StoreRuns(store).describe(run).project == project
    assert b"points" in store.engine.execute("SHOW TABLES")


def test_another_version_is_told_so(client: TestClient) -> None:
    answer = client.get(ADDRESS, headers={wire.VERSION_HEADER: "99"})
    assert answer.status_code == 426 and "speaks version 1" in answer.json()["error"]


# -- when something is away


def test_a_dead_engine_is_said_and_nothing_is_acknowledged(tmp_path: Path) -> None:
    with run_debian(tmp_path / "own") as engine:
        opened = engine.open("fleet")
        schema.prepare(opened)
        with TestClient(Gateway(Store(opened), None).make_app()) as client:
            assert client.get("/health").status_code == 200
            send(client, ADDRESS, [DOCUMENT, FileRange(NAME, "lines", lines(0, 10))])
            engine.kill()
            body = wire.encode_frames([FileRange(NAME, "lines", lines(10, 20), len(lines(0, 10)))], compress=False)
            answer = client.post(ADDRESS, content=body)
            assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0
            assert client.get("/health").status_code == 503
            engine.start()
            assert client.post(ADDRESS, content=body).status_code == 200
            assert losses(Store(opened)) == [step / 7 for step in range(20)]


@pytest.mark.promise("the disk of the engine is full", "agents are told to retry; nothing is lost or duplicated")
def test_a_full_disk_of_the_engine_is_said_and_nothing_is_acknowledged(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    with run_debian(small_disk) as engine:
        opened = engine.open("fleet")
        schema.prepare(opened)
        with TestClient(Gateway(Store(opened), None).make_app()) as client:
            send(client, ADDRESS, [DOCUMENT, FileRange(NAME, "lines", lines(0, 10))])
            ballast = small_disk / "ballast"
            with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(4096)):
                    pass
            more = FileRange(NAME, "lines", lines(10, 5000), len(lines(0, 10)))
            body = wire.encode_frames([more], compress=False)
            answer = client.post(ADDRESS, content=body)
            assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0, answer.text
            assert "trainvitals_gateway_failed_writes_total 1" in client.get("/metrics").text
            ballast.unlink()
            assert client.post(ADDRESS, content=body).status_code == 200
            assert losses(Store(opened)) == [step / 7 for step in range(5000)]


def test_a_gateway_that_is_full_asks_agents_to_wait(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway(store, None)
    body = wire.encode_frames([DOCUMENT], compress=False)
    with TestClient(gateway.make_app()) as busy:
        with gateway._writer.reserve(gateways.MOST_PENDING):
            answer = busy.post(ADDRESS, content=body)
            assert answer.status_code == 429 and answer.headers["Retry-After"] == "2"
        assert busy.post(ADDRESS, content=body).status_code == 200
    monkeypatch.setattr(gateways, "MOST_ARRIVING", 10)
    with TestClient(Gateway(store, None).make_app()) as full:
        answer = full.post(ADDRESS, content=body)
        assert answer.status_code == 429 and "too many concurrent requests" in answer.json()["error"]


def test_pushes_of_metrics_are_passed_on(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    writer, reader = (tokens.add(file, role, role, ["vision"]) for role in ("write", "read"))
    with run_victoria(tmp_path / "victoria") as victoria:
        app = Gateway(store, Tokens(file), f"{victoria}/api/v1/write").make_app()
        now = int(time.time() * 1000)
        # One series with one sample, as version 1.0 of the protocol has it: {__name__="gpu_watts"} 400.
        label = b"\x0a\x15\x0a\x08__name__\x12\x09gpu_watts"
        sample = b"\x09" + struct.pack("<d", 400.0) + b"\x10" + varint(now)
        series = label + b"\x12" + bytes([len(sample)]) + sample
        body = bytes(cramjam.snappy.compress_raw(b"\x0a" + bytes([len(series)]) + series))
        headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}

        def push(token: str) -> int:
            return client.post("/api/v1/write", content=body, headers={**headers, "Authorization": token}).status_code

        with TestClient(app) as client:
            assert push("Bearer guess") == 401
            assert push(f"Bearer {reader}") == 403
            assert push(f"Bearer {writer}") == 204
        httpx.get(f"{victoria}/internal/force_flush", timeout=PATIENCE)
        query = f"{victoria}/api/v1/query?query=gpu_watts"
        found = wait_until(lambda: httpx.get(query, timeout=PATIENCE).json()["data"]["result"], "the sample")
        assert found[0]["value"][1] == "400"


def test_a_gateway_without_a_place_for_metrics_says_so(store: Store, client: TestClient) -> None:
    assert "without --metrics" in client.post("/api/v1/write", content=b"").json()["error"]
    away = Gateway(store, None, f"http://127.0.0.1:{free_port()}/api/v1/write").make_app()
    with TestClient(away) as other:
        assert other.post("/api/v1/write", content=b"").status_code == 503


@pytest.mark.promise("the metrics storage hangs", "runs are taken as before; pushes beyond a limit are asked to wait")
def test_a_metrics_storage_that_hangs_holds_up_no_run(store: Store) -> None:
    body = wire.encode_frames([DOCUMENT, FileRange(NAME, "lines", lines(0, 10))], compress=False)

    async def push_and_ship(silent: socket.socket) -> list[int]:
        app = Gateway(store, None, f"http://127.0.0.1:{silent.getsockname()[1]}/api/v1/write").make_app()
        link = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=link, base_url="http://gateway", timeout=PATIENCE) as client,
        ):
            begun = [
                asyncio.create_task(client.post("/api/v1/write", content=b"x")) for _ in range(pushes.MOST_REQUESTS + 9)
            ]
            answer = await client.post(ADDRESS, content=body)
            assert answer.status_code == 200
            assert sum(not task.done() for task in begun) >= pushes.MOST_REQUESTS, "none of them was answered meanwhile"
            silent.close()
            return sorted(answer.status_code for answer in await asyncio.gather(*begun))

    with socket.create_server(("127.0.0.1", 0), backlog=256) as silent:
        assert asyncio.run(push_and_ship(silent)) == [429] * 9 + [503] * pushes.MOST_REQUESTS
    assert losses(store) == [step / 7 for step in range(10)]


@pytest.mark.promise(
    "an agent of one project names another tenant of the metrics storage",
    "its metrics go to the tenant of its token, or to none",
)
def test_a_token_of_a_project_chooses_no_tenant_of_the_metrics_storage(store: Store, tmp_path: Path) -> None:
    asked: list[str | None] = []

    class Storage(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.headers["X-Scope-OrgID"])
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    file = tmp_path / "tokens.json"
    given = [
        tokens.add(file, "project", "write", ["vision"]),
        tokens.add(file, "tenant", "write", ["vision"], "ml"),
        tokens.add(file, "all", "write", ["*"]),
    ]
    with ThreadingHTTPServer(("127.0.0.1", 0), Storage) as storage:
        threading.Thread(target=storage.serve_forever, daemon=True).start()
        app = Gateway(store, Tokens(file), f"http://127.0.0.1:{storage.server_port}/api/v1/write").make_app()
        with TestClient(app) as client:
            for token in given:
                headers = {"Authorization": f"Bearer {token}", "X-Scope-OrgID": "finance"}
                assert client.post("/api/v1/write", content=b"x", headers=headers).status_code == 204
        storage.shutdown()
    assert asked == [None, "ml", "finance"]


def test_what_it_did_is_counted(client: TestClient) -> None:
    send(client, ADDRESS, [DOCUMENT, FileRange(NAME, "lines", lines(0, 10))])
    counted = client.get("/metrics").text
    assert "trainvitals_gateway_requests_total 1" in counted
    assert "trainvitals_gateway_rows_total 12" in counted  # 10 values, a document, and the end of the file
