"""The command: its port, its messages, its end."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from trainvitals.views.web.server import PortTaken, bind

from .conftest import Server


def test_a_taken_port_is_said_and_the_next_free_one_offered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken) as error:
            bind("127.0.0.1", port, port_is_wish=False)
        assert f"port {port} is taken" in error.value.message and "--port" in (error.value.hint or "")
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
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "is taken by another program" in done.stderr and "Traceback" not in done.stderr


def test_it_ends_at_once_although_somebody_watches(serve: Callable[..., Server], root: Path, keys: list[str]) -> None:
    server = serve(root)
    with httpx.stream("GET", f"{server.base}api/v1/runs/{keys[0]}/stream", timeout=60) as stream:
        next(stream.iter_raw())
        assert server.stop() in (0, -15, 143)


def test_a_run_can_be_named_to_begin_with(serve: Callable[..., Server], root: Path, keys: list[str]) -> None:
    assert serve(root, "latest").url.endswith(f"/#/run/{keys[-1]}")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--port", "99999"], "0 to 65535"),
        (["--host", "no.such.host.invalid"], "no address of this machine"),
        (["--token-file", "/nonexistent"], "cannot be read"),
        (["nothing-like-it"], "no run"),
    ],
)
def test_a_wrong_flag_is_explained(root: Path, flags: list[str], said: str) -> None:
    command = [sys.executable, "-m", "trainvitals", "serve", "--dir", str(root), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2) and said in done.stderr and "Traceback" not in done.stderr
