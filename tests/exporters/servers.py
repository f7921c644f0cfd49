"""Real servers on loopback, a server that answers as it is told, and a machine with fake GPUs that is scraped."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cramjam
import pytest
from fake_nvml import FakeNvml
from waiting import PATIENCE, free_port, wait_until
from write_requests import SECOND, read_request


def fetch(
    url: str, headers: Mapping[str, str] | None = None, data: bytes | None = None
) -> tuple[int, str, Mapping[str, str]]:
    """(status, text, headers); 0 when nobody answers."""
    request = urllib.request.Request(url, headers=dict(headers or {}), data=data)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, response.read().decode(), response.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode("utf-8", "replace"), error.headers
    except OSError:
        return 0, "", {}


class Server:
    """Somebody else's program, ended with the test."""

    def __init__(self, command: list[str], url: str, ready: str, log: Path) -> None:
        self.url = url
        self._command = command
        self._ready = ready
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._log.parent)
        wait_until(
            lambda: fetch(self.url + self._ready)[0] == 200 or self._died(), f"{self._command[0]}, see {self._log}"
        )

    def _died(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            pytest.fail(f"{self._command[0]} ended: {self._log.read_text()[-2000:]}")
        return False

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Let it write what it has."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(PATIENCE)

    def query(self, expression: str, moment: float | None = None) -> list[dict[str, Any]]:
        """What PromQL answers now; a query that is wrong fails the test."""
        asked = {"query": expression, **({"time": str(moment)} if moment is not None else {})}
        status, text, _ = fetch(f"{self.url}/api/v1/query?{urllib.parse.urlencode(asked)}")
        assert status == 200, f"{expression}: {text}"
        result = json.loads(text)["data"]["result"]
        return result if isinstance(result, list) else []

    def value(self, expression: str, moment: float | None = None) -> float | None:
        """Of the only series; None if there is none."""
        found = self.query(expression, moment)
        return float(found[0]["value"][1]) if found else None


class Answering:
    """A server that answers as it is told and remembers what it was sent. It takes remote write 2.0, as strictly as can
    be."""

    def __init__(self, port: int = 0) -> None:
        self.answers: list[tuple[int, bytes, dict[str, str]]] = []
        """Taken in order; the last one stays."""
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.silence = threading.Event()
        """Ends what is answered with -1."""
        outer = self

        class Request(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.received.append((self.path, {name.lower(): text for name, text in self.headers.items()}, body))
                status, text, headers = outer.answers[0] if outer.answers else (204, b"", {})
                if len(outer.answers) > 1:
                    outer.answers.pop(0)
                if status < 0:  # it took the request and says nothing more
                    outer.silence.wait(PATIENCE)
                    return
                if status == 0:  # garbage, or nothing at all
                    self.wfile.write(text)
                    self.close_connection = True
                    return
                self.send_response(status)
                if self.headers.get("Content-Type") == SECOND and status != 415 and 200 <= status <= 500:
                    count = len(read_request(outer.received[-1][1], body)) if status < 300 else 0
                    headers = {"X-Prometheus-Remote-Write-Samples-Written": str(count), **headers}
                for name, value in headers.items():
                    if value:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_PUT = do_GET = do_POST

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Request)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.silence.set()
        self._server.shutdown()
        self._server.server_close()


class Front:
    """Stands before a server that takes remote write, and now and then answers in its place."""

    def __init__(self, server: Server) -> None:
        self.answer: Callable[[bytes], int | None] = self.pass_on
        """From what is sent to the status of an answer; None to let it through."""
        outer = self

        class Request(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = outer.answer(bytes(cramjam.snappy.decompress_raw(body)))
                if status is None:
                    status, _, _ = fetch(f"{server.url}{self.path}", dict(self.headers), body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/api/v1/write"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @staticmethod
    def pass_on(_sent: bytes) -> int | None:
        return None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


TRAINING = textwrap.dedent(
    """
    import math, sys, time
    import trainvitals
    run = trainvitals.init(project="exported", name="live")
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    while True:
        step += 1
        run.log({
            "loss": 0.25, "learning_rate": 3e-4, "gradient_norm": 1.5, "accuracy": 0.75, "epoch": 2.0,
            "throughput_samples_per_sec": 640.0, "memory_allocated_mb": 1024.0, "memory_reserved_mb": 2048.0,
            "batch_time": 0.05, "data_time": 0.005, "transfer_time": 0.005, "forward_time": 0.01,
            "backward_time": 0.02, "optimizer_time": 0.005, "other_time": 0.005,
            "val/acc": 0.5, "val.acc": 0.625, "not a number": math.nan,
        }, step=step)
        time.sleep(0.05)
    """
)


class Watched:
    """A machine with fake GPUs, an agent that serves, and a training on it, perhaps with another one beside it."""

    def __init__(
        self,
        fake: FakeNvml,
        folder: Path,
        *flags: str,
        training: str = TRAINING,
        beside: str | None = None,
        rules: str = "[]",
    ) -> None:
        self.fake = fake
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/metrics"
        script = folder / "train.py"
        script.write_text(training)
        self.environ = {
            **{name: text for name, text in fake.env().items() if not name.startswith("TRAINVITALS_")},
            "TRAINVITALS_RUNTIME_DIR": str(folder / "runtime"),
            "TRAINVITALS_DIR": str(folder / "runs"),
            "TRAINVITALS_AGENT_IDLE_TIMEOUT": "1",
            "TRAINVITALS_ALERTS_RULES": rules,
        }
        program = [sys.executable, "-m", "trainvitals", "run", "--prometheus-port", str(self.port), *flags]
        program += ["--project", "exported", "--interval", "0.5", "--simulate-gpus", "0"]
        self._processes = [self._start(*program, "--", sys.executable, str(script))]
        wait_until(lambda: "training_loss{" in self.page(), "the first page with a loss")
        if beside is not None:
            self._processes.append(self._start(sys.executable, "-c", beside))

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "stderr", "ab") as errors:
            return subprocess.Popen(
                command, env=self.environ, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=errors
            )

    def train(self, program: str) -> subprocess.Popen[bytes]:
        """Another training, with the same agent."""
        command = ["-m", "trainvitals", "run", "--project", "exported", "--interval", "0.5", "--simulate-gpus", "0"]
        self._processes.append(self._start(sys.executable, *command, "--", sys.executable, "-c", program))
        return self._processes[-1]

    def page(self, accept: str = "") -> str:
        return fetch(self.url, {"Accept": accept})[1]

    def end(self) -> None:
        """End the trainings and, with them, the agent."""
        for process in self._processes:
            process.terminate()
            process.wait(PATIENCE)
        subprocess.run(
            [sys.executable, "-m", "trainvitals", "agent", "stop"], env=self.environ, check=False, capture_output=True
        )
