"""Asking after the agent and stopping it, for the command line. Tested in tests/agent/test_agent.py."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from trainvitals import runtime
from trainvitals.agent.log import FILE_NAME
from trainvitals.errors import AgentError
from trainvitals.journal.documents.latest import AgentFile, Latest, read_agent, read_latest

STOP_SECONDS = 30.0
"""It ends within two, but on a busy node each of its last words may have to wait for its turn."""


def status() -> tuple[AgentFile, Latest] | None:
    """What the running agent reports about itself, its runs and sources; None if there is no agent."""
    about = read_agent()
    return (about, read_latest(about) or Latest()) if about is not None else None


def stop(timeout: float = STOP_SECONDS) -> bool:
    """End the agent and wait until it has ended. False if there was none."""
    about = read_agent()
    if about is None:
        return False
    pid = about.pid
    if pid is None:
        raise AgentError("an agent is starting or stopping", hint="try again: trainvitals agent stop")
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return True
    except OSError as error:
        raise AgentError(f"cannot stop the agent (process {pid}): {error.strerror}") from error
    deadline = time.monotonic() + timeout
    while runtime.is_same_process(pid, about.start):
        if time.monotonic() > deadline:
            raise AgentError(f"the agent (process {pid}) is still running", hint=f"kill it: kill -9 {pid}")
        time.sleep(0.02)
    return True


def log_path() -> Path:
    """The agent's log, whether or not an agent lives."""
    return runtime.runtime_dir() / FILE_NAME
