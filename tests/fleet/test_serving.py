"""A gateway as a process: the command, TLS, and its end."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from engines import Engine
from shipped import address_of, parse, send
from waiting import PATIENCE, free_port, wait_until

from trainvitals.fleet.wire import FileRange

ADDRESS = address_of("vision", "20261118-060001-first-aaaa")
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(debian: Engine, tmp_path: Path) -> Iterator[Start]:
    begun = []

    def run(*words: str, under: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        command = [*under, sys.executable, "-m", "trainvitals", "gateway", *words]
        begun.append(subprocess.Popen(command, cwd=tmp_path, text=True, stderr=subprocess.PIPE))
        return begun[-1]

    yield run
    for process in begun:
        process.kill()
        process.wait()


def issue(authority: trustme.CA, folder: Path) -> None:
    """The files of a gateway."""
    authority.cert_pem.write_to_path(folder / "ca.pem")
    own = authority.issue_cert("localhost", "127.0.0.1")
    own.private_key_pem.write_to_path(folder / "gw.key")
    (folder / "gw.pem").write_bytes(b"".join(pem.bytes() for pem in own.cert_chain_pems))


def test_a_gateway_takes_what_is_sent_over_mutual_tls(debian: Engine, start: Start, tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    issue(authority, tmp_path)
    port = free_port()
    tls = ("--certificate", "gw.pem", "--key", "gw.key", "--client-ca", "ca.pem")
    process = start("--store", debian.address("over_tls"), "--port", str(port), *tls)
    assert process.stderr is not None
    assert (
        process.stderr.readline()
        .strip()
        .endswith(f"gateway at https://127.0.0.1:{port}, storing in {debian.address('over_tls')}")
    )

    def connect(known: trustme.CA | None) -> httpx.Client:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        if known is not None:
            known.issue_cert("agent").configure_cert(context)
        return httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=context, timeout=PATIENCE)

    wait_until(lambda: answers(connect(authority)), "the gateway")
    for known in (None, stranger):
        with pytest.raises(httpx.TransportError):
            connect(known).get("/health")
    with connect(authority) as client:
        send(client, ADDRESS, [FileRange("a.log", "bytes", b"hello\n", 0, "1")])
        assert parse(client.get(ADDRESS))["a.log"].end == 6
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM  # as the shell expects of it, after what was begun is done


def read_serial(authority: trustme.CA, port: int) -> object:
    """Of the certificate that a new connection is shown."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with (
        socket.create_connection(("127.0.0.1", port)) as link,
        context.wrap_socket(link, server_hostname="localhost") as secure,
    ):
        found = secure.getpeercert()
        assert found is not None
        return found["serialNumber"]


@pytest.mark.promise(
    "the gateway's certificate is renewed",
    "the new one is shown at once, without a restart, once its files fit together",
)
def test_a_certificate_that_is_renewed_is_used_without_a_restart(debian: Engine, start: Start, tmp_path: Path) -> None:
    authority, port = trustme.CA(), free_port()
    issue(authority, tmp_path)
    process = start(
        *("--store", debian.address("renewed"), "--port", str(port), "--certificate", "gw.pem", "--key", "gw.key")
    )
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=context, timeout=PATIENCE) as client:
        wait_until(lambda: answers(client), "the gateway")
    first = read_serial(authority, port)
    key = (tmp_path / "gw.key").read_bytes()
    issue(authority, tmp_path)
    new_key = (tmp_path / "gw.key").read_bytes()
    (tmp_path / "gw.key").write_bytes(key)  # only half of it has arrived
    assert read_serial(authority, port) == first
    assert process.stderr is not None
    said = next(line for line in process.stderr if "cannot use" in line)
    assert "gw.pem, gw.key for TLS: no PEM certificate with its key; the previous certificate stays in use" in said
    (tmp_path / "gw.key").write_bytes(new_key)
    assert read_serial(authority, port) not in (first, None)


@pytest.mark.promise("more half-sent requests than the gateway may have files open", "agents are served")
def test_half_sent_requests_keep_no_agent_out(debian: Engine, start: Start) -> None:
    port = free_port()
    start("--store", debian.address("besieged"), "--port", str(port), under=("prlimit", "--nofile=300:300"))
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client, contextlib.ExitStack() as stack:
        wait_until(lambda: answers(client), "the gateway")
        for number in range(400):
            link = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            link.sendall(b"POST /v1/runs HTTP/1.1\r\nHost: x\r\n"[: number % 40])
        for _ in range(5):
            assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE).status_code == 200


@pytest.mark.promise(
    "more unfinished TLS handshakes than the gateway may have files open",
    "agents are served; unfinished ones end after 15 s",
)
def test_unfinished_handshakes_keep_no_agent_out(debian: Engine, start: Start, tmp_path: Path) -> None:
    authority, port = trustme.CA(), free_port()
    issue(authority, tmp_path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    start(
        *("--store", debian.address("stalled"), "--port", str(port), "--certificate", "gw.pem", "--key", "gw.key"),
        under=("prlimit", "--nofile=300:300"),
    )
    sent, hello = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(sent, hello, server_hostname="localhost").do_handshake()
    greeting = hello.read()

    def connect() -> httpx.Client:
        return httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=context, timeout=PATIENCE)

    with connect() as agent, contextlib.ExitStack() as stack:
        wait_until(lambda: answers(agent), "the gateway")
        held = []
        for number in range(400):
            held.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            held[-1].sendall(greeting[: number % 3 * len(greeting) // 2])  # nothing, half of it, all of it
        for _ in range(5):
            with connect() as other:
                assert other.get("/health").status_code == 200
        assert agent.get("/health").status_code == 200
        wait_until(lambda: all(map(is_closed, held)), "all of them to be hung up on")


def is_closed(link: socket.socket) -> bool:
    link.setblocking(False)
    try:
        while link.recv(4096):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no engine is set"),
        (("--store", "clickhouse://me:secret@h/x"), "with a password in it"),
        (("--store", "{engine}", "--listen", "0.0.0.0"), "requires --tokens FILE"),
        (("--store", "{engine}", "--tokens", "none.json"), "cannot read the tokens"),
        (("--store", "{engine}", "--key", "k"), "TLS needs --certificate and --key"),
        (("--store", "{engine}", "--certificate", "none.pem", "--key", "k"), "cannot use none.pem, k for TLS: No such"),
        (("--store", "{engine}", "--certificate", "/dev/null", "--key", "/dev/null"), "for TLS: no PEM"),
        (("--store", "clickhouse://127.0.0.1:1/x"), "cannot reach clickhouse://127.0.0.1:1/x"),
    ],
)
def test_what_cannot_work_is_said_at_once(words: tuple[str, ...], said: str, debian: Engine, start: Start) -> None:
    process = start(*(word.format(engine=debian.address("refusals")) for word in words))
    _, printed = process.communicate()
    assert process.returncode in (1, 2)
    assert said in printed and "Traceback" not in printed
    assert "secret@" not in printed


def test_tokens_schema_and_check_are_commands(debian: Engine, tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trainvitals", "gateway", *words]
        return subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, check=False)

    made = run("token", "cluster", "--project", "vision", "--tokens", "tokens.json")
    assert made.returncode == 0 and len(made.stdout.strip()) > 40
    assert made.stdout.strip() not in (tmp_path / "tokens.json").read_text()
    set_quota = run("quota", "--token", "cluster", "--gb-per-day", "0.5", "--runs", "7", "--tokens", "tokens.json")
    assert set_quota.stderr.strip().endswith("quota of the token cluster: GB per day: 0.5, runs: 7")
    assert '"gb_per_day": 0.5' in (tmp_path / "tokens.json").read_text()
    assert "no token 'x'" in run("quota", "--token", "x", "--tokens", "tokens.json").stderr
    assert "whose quota" in run("quota", "--tokens", "tokens.json").stderr
    assert run("token", "cluster", "--remove", "--tokens", "tokens.json").returncode == 0
    assert "no token 'cluster'" in run("token", "cluster", "--remove", "--tokens", "tokens.json").stderr
    (tmp_path / "broken.json").write_text("{")
    for file, why in (("none.json", "No such file"), ("broken.json", "it is not JSON")):
        assert f"cannot change {file}: {why}" in run("token", "cluster", "--remove", "--tokens", file).stderr
    printed = run("schema", "--cluster", "prod").stdout
    assert "ON CLUSTER 'prod'" in printed and "-- points: Every number that was logged" in printed
    address = debian.address("by_command")
    assert "has no trainvitals tables" in run("check", "--store", address).stderr
    script = run("schema", "--database", "by_command", "--engine-version", "18.16").stdout
    for _ in range(2):  # as it is piped into clickhouse-client
        for statement in script.split(";\n")[:-1]:
            debian.open("by_command").execute_anywhere(statement)
    checked = run("check", "--store", address, "--disturb", "echo disturbed")
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.startswith("20,000 rows written and read back unchanged") and "disturbed" in checked.stderr
