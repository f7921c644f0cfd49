"""Waiting for what other processes do: patiently, for the machine may be busy, and never for longer than it takes."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
PATIENCE = 600.0
"""Seconds after which a test gives up: nobody waits for them while all is well, and a busy machine needs many."""
GENTLE_EXIT = {"PYTHONPATH": str(Path(__file__).parent / "gentle_exit")}
"""Environment of programs with gloo ranks, which torch would abort now and then; the folder says why."""
PATIENT_WANDB = {"WANDB__SERVICE_WAIT": f"{PATIENCE:.0f}", "WANDB_INIT_TIMEOUT": f"{PATIENCE:.0f}"}
"""Environment of programs with W&B's client, which gives its own process half a minute to come up."""


def wait_until(condition: Callable[[], T], what: str | Callable[[], str] = "this") -> T:
    """The first true result of `condition`; fails the test when that takes too long, saying what it waited for.

    A file that is gone means "not yet": others write, rotate and remove the files that a condition lists and opens.
    """
    deadline = time.monotonic() + PATIENCE
    gone: FileNotFoundError | None = None
    while time.monotonic() < deadline:
        try:
            found, gone = condition(), None
        except FileNotFoundError as error:
            found, gone = None, error
        if found:
            return found
        time.sleep(0.02)
    said = what if isinstance(what, str) else what()
    pytest.fail(f"waited in vain for {said}" + (f": {gone}" if gone else ""))


def read_whole_lines(path: Path) -> list[str]:
    """Of a file to which others append: without the line of which only a part may be there yet."""
    return path.read_bytes().rpartition(b"\n")[0].decode().splitlines()


def pause(seconds: float) -> None:
    """So long on an idle machine and longer on a busy one, for what leaves no trace that could be waited for."""
    time.sleep(seconds * (1 + os.getloadavg()[0] / (os.cpu_count() or 1)))


def free_port() -> int:
    """A port on loopback that nobody listens on.

    Not one that the kernel chooses: by the time somebody listens on it, it may have given it to another connection.
    """
    chance = random.SystemRandom()  # the tests beside these may have been given the same seed
    while True:
        port = chance.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
