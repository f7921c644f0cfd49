"""The command: its port, its messages, its end."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from waiting import PATIENCE, wait_until

from trainvitals.views.web.server import PortTaken, bind

from .conftest import Server


def test_a_taken_port_is_said_and_the_next_free_one_offered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken) as error:
            bind("127.0.0.1", port, port_is_wish=False)
        assert f"port {port} is in use" in error.value.message and "--port" in (error.value.hint or "")
        with bind("127.0.0.1", port, port_is_wish=True) as other:
            assert other.getsockname()[1] > port


def test_the_command_says_it_too(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [
            sys.executable,
            "-m",
            "trainvitals",
            "serve",
            "--dir",
            str(root),
            "--port",
            str(taken.getsockname()[1]),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1 and "is in use by another program" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise(
    "more half-sent requests than the server may have files open", "others are served; half-sent ones end after 15 s"
)
def test_half_sent_requests_keep_nobody_out(serve: Callable[..., Server], root: Path) -> None:
    """More of them than the server may have files open, from the address of everybody else."""
    server = serve(root, under=("prlimit", "--nofile=300:300"))
    address = ("127.0.0.1", httpx.URL(server.base).port or 0)
    with contextlib.ExitStack() as stack:
        held = []
        for number in range(400):
            link = stack.enter_context(socket.create_connection(address))
            link.sendall(b"GET /api/v1/runs HTTP/1.1\r\nHost: x\r\n"[: number % 40])
            held.append(link)
        for _ in range(5):
            assert httpx.get(f"{server.base}api/v1/runs", timeout=PATIENCE).status_code == 200
        for link in held:  # trickling does not help: the time counts from the first byte
            with contextlib.suppress(OSError):
                link.sendall(b"X")
        wait_until(lambda: all(map(is_closed, held)), "all of them to be hung up on")
    assert httpx.get(f"{server.base}api/v1/runs", timeout=PATIENCE).status_code == 200


def is_closed(link: socket.socket) -> bool:
    link.setblocking(False)
    try:
        return link.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.promise("a request whose body never comes", "it is ended")
def test_a_body_that_never_comes_is_not_waited_for(serve: Callable[..., Server], root: Path) -> None:
    server = serve(root, "--allow-edit")
    with socket.create_connection(("127.0.0.1", httpx.URL(server.base).port or 0)) as link:
        link.sendall(b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{")

        def is_over() -> bool:
            if not is_closed(link):
                with contextlib.suppress(OSError):  # it was hung up on since that look
                    link.send(b" ")
            return is_closed(link)

        wait_until(is_over, "it to be hung up on")


def test_many_who_watch_are_not_taken_for_idlers(serve: Callable[..., Server], root: Path, keys: list[str]) -> None:
    server = serve(root, under=("prlimit", "--nofile=300:300"))
    address = ("127.0.0.1", httpx.URL(server.base).port or 0)
    request = f"GET /api/v1/runs/{keys[0]}/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        watching = [stack.enter_context(socket.create_connection(address)) for _ in range(40)]
        for link in watching:
            link.sendall(request)
            assert link.recv(100).startswith(b"HTTP/1.1 200")
        for _ in range(200):
            stack.enter_context(socket.create_connection(address)).sendall(b"GET")
        assert httpx.get(f"{server.base}api/v1/runs", timeout=PATIENCE).status_code == 200
        assert not any(map(is_closed_for_good, watching))


def is_closed_for_good(link: socket.socket) -> bool:
    link.setblocking(False)
    try:
        while data := link.recv(65536):
            pass
        return data == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_it_ends_at_once_although_somebody_watches(serve: Callable[..., Server], root: Path, keys: list[str]) -> None:
    server = serve(root)
    with httpx.stream("GET", f"{server.base}api/v1/runs/{keys[0]}/stream", timeout=PATIENCE) as stream:
        next(stream.iter_raw())
        assert server.stop() in (0, -15, 143)


def test_a_run_can_be_named_to_begin_with(serve: Callable[..., Server], root: Path, keys: list[str]) -> None:
    assert serve(root, "latest").url.endswith(f"/#/run/{keys[-1]}")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--port", "99999"], "0 to 65535"),
        (["--listen", "no.such.host.invalid"], "not an address of this machine"),
        (["--token-file", "/nonexistent"], "cannot read the token file"),
        (["nothing-like-it"], "no run"),
    ],
)
def test_a_wrong_flag_is_explained(root: Path, flags: list[str], said: str) -> None:
    command = [sys.executable, "-m", "trainvitals", "serve", "--dir", str(root), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode in (1, 2) and said in done.stderr and "Traceback" not in done.stderr
