"""A real server that accepts clients of other trackers, and real clients of several versions."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from waiting import PATIENCE, free_port, wait_until

from trainvitals import settings
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.folder import list_folders, read_run
from trainvitals.journal.reader import RunReader
from trainvitals.trackers.intake.app import IntakeApp
from trainvitals.trackers.intake.keys import make_client_env
from trainvitals.views.web import login

CLIENTS = Path(__file__).parents[3] / "build" / "clients"
UNSET = ("WANDB_", "MLFLOW_", "OTEL_", "TRAINVITALS_RUN")


class Recorded:
    """What came."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def runs(self) -> list[RunReader]:
        return [RunReader(folder) for folder in list_folders(self.root)]

    def run(self) -> RunReader:
        """The only one."""
        (found,) = self.runs()
        return found

    def file(self) -> RunFile:
        return read_run(self.run().folder)


def count_rows(recorded: Recorded) -> int:
    return sum(1 for reader in recorded.runs() for _ in reader.rows())


class Server(Recorded):
    """`trainvitals serve --accept`, which may be killed and started again on its port."""

    def __init__(self, root: Path, accept: str = "wandb,mlflow,otlp", *flags: str) -> None:
        super().__init__(root)
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.token = login.read_token()
        self._command = ["serve", "--dir", str(root), "--port", str(self.port), "--accept", accept, *flags]
        self._log = root.parent / f"serve-{self.port}.log"
        self.start()

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def client_env(self) -> dict[str, str]:
        return make_client_env(self.address, self.token)

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainvitals", *self._command],
                stdout=log,
                stderr=log,
                env={**os.environ, "TRAINVITALS_AGENT": os.environ.get("TRAINVITALS_AGENT", "0")},
            )
        wait_until(self._answers, "the server")

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log
        try:
            return httpx.get(f"{self.address}/health").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """With the token, unless `headers` are given."""
        options.setdefault("headers", {"authorization": f"Bearer {self.token}"})
        given = {"content": body} if isinstance(body, bytes) else {"json": body}
        return httpx.post(f"{self.address}{path}", timeout=PATIENCE, **given, **options)


class LocalServer(Recorded):
    """The same application in this process: for requests whose way over HTTP does not matter."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> None:
        super().__init__(root)
        self.token = "a-token-of-this-test"
        self._capsys = capsys
        self._log = ""
        self._options = options
        self.start()

    @property
    def log(self) -> str:
        self._log += self._capsys.readouterr().err
        return self._log

    def start(self) -> None:
        """Also after a kill: what the application before had open stays open, as that of a process that is gone."""
        effective = settings.resolve({"dir": str(self.root), "agent": False})
        app = IntakeApp(effective, ("wandb", "mlflow", "otlp"), self.token, **self._options)
        self.client = TestClient(app, "http://127.0.0.1")

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        options.setdefault("headers", {"authorization": f"Bearer {self.token}"})
        given = {"content": body} if isinstance(body, bytes) else {"json": body}
        return self.client.post(path, **given, **options)


@pytest.fixture
def local(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> LocalServer:
    return LocalServer(tmp_path / "runs", capsys)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def begin(*arguments: str) -> Server:
        servers.append(Server(tmp_path / "runs", *arguments))
        return servers[-1]

    yield begin
    for server in servers:
        server.kill()


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    return serve()


def clean_environ(**more: str) -> dict[str, str]:
    """As somebody has it who has set up no tracker."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(UNSET)}
    return {**kept, "OMP_NUM_THREADS": "1", "WANDB_SILENT": "true", **more}


def run_client(
    folder: Path, script: str, environ: dict[str, str], python: str | Path = sys.executable, *arguments: str
) -> str:
    """Run a script as its user would; what it printed."""
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(script)
    home = {"HOME": str(folder), "NETRC": str(folder / "netrc")}
    environ = clean_environ(**home, **environ)
    if Path(python) != Path(sys.executable):
        environ.pop("PYTHONPATH", None)  # of this Python
    done = subprocess.run(
        [str(python), "script.py", *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def client_python() -> Callable[[str], Path]:
    """The Python of a venv with one package, such as `wandb==0.19.11`; made once, and kept below build/."""

    def find(package: str) -> Path:
        CLIENTS.mkdir(parents=True, exist_ok=True)
        folder = CLIENTS / package.replace("==", "-")
        with open(CLIENTS / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / ".ready").exists():
                venv.create(folder, with_pip=True, clear=True)
                subprocess.run([folder / "bin" / "pip", "install", "-q", package], check=True)
                (folder / ".ready").touch()
        return folder / "bin" / "python"

    return find
