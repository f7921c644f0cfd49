"""The process that clients of programs below `trainvitals run` log to: started when the first of them is imported, ends
when the last of these programs has ended. Loopback only, with a token that only this user can read.

Port and token outlive the process: when it is killed and started again, clients go on where they were.
Tested in tests/trainer/test_capture.py.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from trainvitals import runtime
from trainvitals.trackers.intake.keys import list_ours

FILE, LOCK, CLIENTS = "intake.json", "intake.lock", "intake_clients"
START_SECONDS = 20.0
"""It is up in half a second, or on a busy node after some of them; who waits longer goes on without it."""
IDLE_SECONDS = 60.0
LOOK_SECONDS = 2.0


class IntakeAddress(NamedTuple):
    """Where it listens."""

    port: int
    token: str

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def note_client() -> None:
    """This program logs there, now or later: it may load its data for an hour before it begins a run."""
    folder = runtime.runtime_dir() / CLIENTS
    folder.mkdir(mode=0o700, exist_ok=True)
    pid = os.getpid()
    runtime.write_atomically(folder / f"{pid}.json", json.dumps({"pid_start": runtime.process_start(pid)}).encode())


def has_clients() -> bool:
    """Whether a program that noted itself is alive. Notes of others are removed."""
    found = False
    for path in (runtime.runtime_dir() / CLIENTS).glob("[!.]*.json"):
        start = (runtime.read_json(path, own=True) or {}).get("pid_start")
        if path.stem.isdecimal() and start is not None and runtime.is_same_process(int(path.stem), start):
            found = True
        else:
            path.unlink(missing_ok=True)
    return found


def without_program(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables as the user has set them: without those that point a client here. What a program starts inherits them,
    but this process is nobody's account."""
    ours = list_ours(environ, read_token())
    return {name: value for name, value in environ.items() if name not in ours}


def ensure_intake(wait: float = START_SECONDS) -> IntakeAddress | None:
    """Start the process if there is none, and wait until it answers. None if it does not."""
    deadline = time.monotonic() + wait
    if not _is_alive() and not runtime.start_detached("trainvitals.trackers.intake"):
        return None
    while True:
        found = read_address() if _is_alive() else None
        if found is not None and _answers(found.port):
            return found
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.02)


def _is_alive() -> bool:
    lock = runtime.AgentLock(LOCK)
    free = lock.acquire()
    lock.release()
    return not free


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def read_address() -> IntakeAddress | None:
    """Where it listens, or did."""
    about = runtime.read_json(runtime.runtime_dir() / FILE, own=True) or {}
    port, token = about.get("port"), about.get("token")
    return IntakeAddress(port, token) if type(port) is int and isinstance(token, str) and token else None


def main() -> int:
    """Be that process."""
    lock = runtime.AgentLock(LOCK)
    if not lock.acquire(runtime.CHECKED_SECONDS):
        return 0  # there is one
    from trainvitals.connections import PIECE_SECONDS, make_server
    from trainvitals.settings import resolve
    from trainvitals.trackers.intake.app import IntakeApp

    before = read_address()
    bound = _bind(before.port if before is not None else 0)
    listener = IntakeAddress(bound.getsockname()[1], before.token if before is not None else secrets.token_urlsafe(24))
    app = IntakeApp(resolve(), ("wandb", "mlflow"), listener.token, programs=True)
    server = make_server(app, grace_seconds=5, idle_seconds=5, request_seconds=PIECE_SECONDS, lifespan="off")
    about = {"pid": os.getpid(), **listener._asdict()}
    runtime.write_atomically(runtime.runtime_dir() / FILE, json.dumps(about).encode())
    threading.Thread(target=_end_when_idle, args=(server, app, lock), daemon=True).start()
    server.run(sockets=[bound])
    return 0


def read_token() -> str | None:
    """What it wants to be shown; None if it never ran."""
    found = read_address()
    return found.token if found is not None else None


def _bind(port: int) -> socket.socket:
    """On the port of the process before, where clients may be waiting; on any other if that is taken."""
    from trainvitals.connections import listen

    try:
        return listen("127.0.0.1", port)
    except OSError:
        return listen("127.0.0.1", 0)


def _end_when_idle(server: object, app: object, lock: runtime.AgentLock) -> None:
    last_use = time.monotonic()
    while time.monotonic() - last_use < IDLE_SECONDS and lock.is_ours():
        time.sleep(LOOK_SECONDS)
        if not app.is_idle or has_clients():  # type: ignore[attr-defined]
            last_use = time.monotonic()
    server.should_exit = True  # type: ignore[attr-defined]
