"""A run folder with rows to mirror, and a real MLflow server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from servers import fetch
from waiting import free_port, wait_until

from trainvitals.exporters.rows import RunDescription, RunRow
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import format_time
from trainvitals.journal.identity import TRAINER

START = 1_800_000_000.0
FILE = "training_metrics_20260101_000000.rank0"


def make_run(folder: Path, environment: Mapping[str, str] | None = None, **more: Any) -> RunDescription:
    """Begun at START; `more` are fields of run.json."""
    folder.mkdir(parents=True, exist_ok=True)
    attempt = more.get("attempt", 1)
    facts = {"id": folder.name, "project": "mirrored", "name": "base", "created": format_time(START), **more}
    about = RunFile.parse(facts)
    run_folder.write_run(folder, about)
    return RunDescription(folder.name, folder, "box", attempt, about, {**os.environ, **(environment or {})})


def make_rows(
    values: Iterable[Mapping[str, Any]],
    table: str = "training",
    *,
    file: str = FILE,
    first: int = 1,
    rank: int = 0,
    role: str = TRAINER,
) -> list[RunRow]:
    """One a second, with steps from 0 where it is a training."""
    found = []
    for number, item in enumerate(values, first):
        step = {"step": number - 1} if table == "training" else {}
        row = {"timestamp": format_time(START + number - 1), **step, **item}
        found.append(RunRow(table, rank if table == "training" else None, row, role, file, number))
    return found


class MlflowServer:
    """With a database and artifacts in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--backend-store-uri", f"sqlite:///{self._folder / 'mlflow.db'}", "--workers", "1"]
        command += ["--artifacts-destination", str(self._folder / "artifacts")]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(lambda: fetch(f"{self.url}/health")[0] == 200, f"MLflow, see {self._folder / 'log'}")

    def kill(self) -> None:
        """With its workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def client(self) -> Any:
        import mlflow

        return mlflow.MlflowClient(self.url)

    def runs(self, project: str) -> list[Any]:
        client = self.client()
        experiment = client.get_experiment_by_name(project)
        return list(client.search_runs([experiment.experiment_id])) if experiment is not None else []
