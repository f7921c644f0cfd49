"""Programs below `trainvitals run` that log with other trackers. Imported by several tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from waiting import PATIENCE, PATIENT_WANDB

from trainvitals import runtime
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.folder import list_folders, read_run
from trainvitals.journal.reader import RunReader


def start(folder: Path, script: str, *arguments: str, flags: tuple[str, ...] = (), **environment: str) -> Any:
    """Somebody who has set up no tracker starts a script."""
    (folder / "script.py").write_text(script)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_"))}
    command = [sys.executable, "-m", "trainvitals", "run", "--dir", "runs", *flags]
    return subprocess.Popen(
        [*command, "--", sys.executable, "script.py", *arguments],
        cwd=folder,
        env={
            **ours,
            "HOME": str(folder),
            "NETRC": str(folder / "netrc"),
            "TRAINVITALS_AGENT": "0",
            "TRAINVITALS_SUMMARY": "0",
            "OMP_NUM_THREADS": "1",
            "WANDB_SILENT": "true",
            **PATIENT_WANDB,
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, script: str, *arguments: str, **more: Any) -> str:
    """Run it to its end; what it printed to standard error."""
    program = start(folder, script, *arguments, **more)
    _, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, errors
    return str(errors)


def runs(folder: Path) -> list[tuple[RunFile, list[dict[str, Any]]]]:
    """What became of it: each run with its rows."""
    found = list_folders(folder / "runs")
    return [(read_run(place), list(RunReader(place).rows())) for place in found]


def find_process(folder: Path, name: str) -> int | None:
    """The process that describes itself in this file of the runtime folder, while it lives."""
    pid = (runtime.read_json(folder / name) or {}).get("pid")
    return pid if isinstance(pid, int) and runtime.process_start(pid) is not None else None


def end_processes(folder: Path) -> None:
    """Those of this runtime folder."""
    for name in ("intake.json", "agent.json"):
        if (pid := find_process(folder, name)) is not None:
            os.kill(pid, signal.SIGKILL)
