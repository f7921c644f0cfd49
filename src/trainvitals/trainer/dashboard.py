"""The web dashboard beside a run, when asked for: a process of its own that says its address and ends after the run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

RUNNING = "_TRAINVITALS_DASHBOARD"
"""Set for the programs below one that has a dashboard, so that they do not start another."""


def start(root: Path, run_id: str, wait: float = 0.0) -> str | None:
    """Start `trainvitals serve` for the runs in `root`, showing `run_id` first.

    Like the agent it is not a child of this process: a training that waits for its own children never meets it.
    Without `wait` it prints its address to our standard error when it is ready, and nothing waits for it; with it, the
    address is returned, or None if there is none after that many seconds.
    """
    if os.environ.get(RUNNING) or not sys.executable:
        return None
    os.environ[RUNNING] = "1"
    import subprocess

    command = [sys.executable, "-P", "-m", "trainvitals", "serve", run_id]
    command += ["--dir", str(root.absolute()), "--until-pid", str(os.getpid())]
    reading, writing = os.pipe() if wait else (None, None)
    try:
        if sys.platform == "win32":
            flags = subprocess.CREATE_NEW_PROCESS_GROUP
            subprocess.Popen(command, stdout=writing, creationflags=flags, close_fds=True)
        else:
            subprocess.run(
                ["/bin/sh", "-c", f'"$@" </dev/null {"" if wait else ">&2 "}2>/dev/null &', "sh", *command],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                check=False,
                timeout=10,
            )
    except (OSError, subprocess.SubprocessError):
        return None
    finally:
        if writing is not None:
            os.close(writing)
    return _read_address(reading, wait) if reading is not None else None


def _read_address(descriptor: int, wait: float) -> str | None:
    import threading

    found: list[str] = []

    def read() -> None:
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
            found.append(file.readline())

    # A thread and not select(): that knows no pipes on Windows.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(wait)
    line = found[0] if found else ""
    return line.removeprefix("dashboard: ").strip() if line.startswith("dashboard: ") else None
