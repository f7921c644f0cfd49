"""The web dashboard of a run, if requested: a separate process that prints its address and exits after the run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from trainvitals.settings import Settings
from trainvitals.settings.resolution import mark_warned
from trainvitals.settings.table import find

RUNNING = "_TRAINVITALS_DASHBOARD"
"""Set for child processes of a program with a dashboard, so that they do not start another."""
PASSED_ON = (
    "web.host",
    "web.port",
    "web.token",
    "price.gpu_hour",
    "price.kwh",
    "price.currency",
    "price.plan",
    "price.region",
    "price.co2",
    "alerts.thresholds",
)
"""Settings that the dashboard uses and may not see otherwise: from an argument, a flag, a file."""


class Started(NamedTuple):
    """The address, or why there is none; neither without waiting."""

    address: str = ""
    reason: str = ""


def start(settings: Settings, run_id: str, wait: float = 0.0) -> Started:
    """Start `trainvitals serve` for the runs in the folder of all runs, showing `run_id` first.

    Like the agent it is not a child of this process: a training that waits for its children never sees it. Without
    `wait` it prints its address, or why there is none, to our standard error; with it, that is returned, after that
    many seconds at most.
    """
    if os.environ.get(RUNNING):
        return Started(reason="already running")
    if not sys.executable:
        return Started(reason="the path of the Python interpreter is unknown")
    os.environ[RUNNING] = "1"
    import subprocess

    command = [sys.executable, "-P", "-m", "trainvitals", "serve", run_id]
    command += ["--dir", str(Path(settings.dir).absolute()), "--until-pid", str(os.getpid())]
    # Not flags: a port from a setting is a preference, and the next free one will do.
    environment = pass_on(settings)
    reading, writing = os.pipe() if wait else (None, 2)
    try:
        if sys.platform == "win32":
            flags = subprocess.CREATE_NEW_PROCESS_GROUP
            subprocess.Popen(
                command, stdout=writing, stderr=writing, env=environment, creationflags=flags, close_fds=True
            )
        else:
            subprocess.run(
                ["/bin/sh", "-c", '"$@" </dev/null 2>&1 &', "sh", *command],
                start_new_session=True,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                check=False,
                timeout=10,
            )
    except (OSError, subprocess.SubprocessError) as error:
        return Started(reason=str(error))
    finally:
        if reading is not None:
            os.close(writing)
    return _read_address(reading, wait) if reading is not None else Started()


def pass_on(settings: Settings) -> dict[str, str]:
    """The environment of a process that shows a run as these settings want it."""
    given = {find(row.name, "passed on").variable: row.text for row in settings if row.name in PASSED_ON}
    environment = {**os.environ, **given}
    mark_warned(settings, environment)
    return environment


def _read_address(descriptor: int, wait: float) -> Started:
    import threading

    lines: list[str] = []

    def read() -> None:
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
            for line in file:
                lines.append(line.removeprefix("trainvitals: ").rstrip())
                if line.startswith("dashboard: "):
                    return

    # A thread and not select(): that does not support pipes on Windows.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(wait)
    if lines and lines[-1].startswith("dashboard: "):
        return Started(lines[-1].removeprefix("dashboard: "))
    return Started(reason="\n".join(lines) or f"no response within {wait:g} s")
