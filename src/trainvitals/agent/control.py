"""Asking after the agent and stopping it, for the command line."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.agent.log import FILE_NAME
from trainvitals.errors import AgentError

STOP_SECONDS = 30.0
"""It ends within two, but on a busy node each of its last words may have to wait for its turn."""


def status() -> dict[str, Any] | None:
    """What the living agent says of itself, its runs and its sources; None if there is no agent."""
    about = runtime.read_agent()
    if about is None:
        return None
    latest = runtime.read_latest() or {}
    if (latest.get("agent") or {}).get("pid") != about.get("pid"):
        latest = {}  # left by an earlier agent
    return {
        **about,
        **{key: latest[key] for key in ("written", "runs", "sources", "states") if key in latest},
    }


def stop(timeout: float = STOP_SECONDS) -> bool:
    """End the agent and wait until it has ended. False if there was none."""
    about = runtime.read_agent()
    if about is None:
        return False
    pid = about.get("pid")
    if not isinstance(pid, int):
        raise AgentError("an agent is starting or ending right now", hint="try again: trainvitals agent stop")
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return True
    except OSError as error:
        raise AgentError(f"the agent (process {pid}) cannot be stopped: {error.strerror}") from error
    deadline = time.monotonic() + timeout
    while runtime.is_same_process(pid, about.get("start")):
        if time.monotonic() > deadline:
            raise AgentError(f"the agent (process {pid}) has not ended yet", hint=f"end it by force: kill -9 {pid}")
        time.sleep(0.02)
    return True


def log_path() -> Path:
    """The agent's log, whether or not an agent lives."""
    return runtime.runtime_dir() / FILE_NAME
