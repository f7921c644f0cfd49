"""A real agent with alerts, a metrics page and remote write all on: it parses each line once, whatever happens to the
files and to itself, and counts each step once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cramjam
import psutil
import pytest
from servers import Answering, fetch
from waiting import free_port, wait_until

from trainvitals import runtime
from trainvitals.journal.reader import RunReader

TRAINING = """
import sys, time, trainvitals
run = trainvitals.init(rotate_size_mb=0.05)
step = 0
for text in sys.stdin:
    for _ in range(int(text)):
        run.log({"loss": 1.0 / (step + 1), "batch_time": 0.001}, step=step)
        step += 1
        time.sleep(0.001)  # a file is closed once a second at most
"""


class Machine:
    """An agent that stays, and a training that logs as many steps as it is asked for."""

    def __init__(self, folder: Path, **environ: str) -> None:
        self.folder = folder
        self.port = int(environ.get("TRAINVITALS_PROMETHEUS_PORT") or free_port())
        kept = {name: text for name, text in os.environ.items() if not name.startswith("TRAINVITALS_")}
        self.environ = {
            **kept,
            "TRAINVITALS_RUNTIME_DIR": str(folder / "runtime"),
            "TRAINVITALS_DIR": str(folder / "runs"),
            "TRAINVITALS_AGENT": "0",
            "TRAINVITALS_ALERTS_RULES": '[{"name": "low", "when": "training.loss < 0.5"}]',
            **environ,
        }
        self.steps = 0
        self.trainings: list[subprocess.Popen[str]] = []
        self.start_training()
        self.agent = self.start_agent()
        wait_until(lambda: list(self.folder.glob("runs/*/*/run.json")), "the run")
        (self.run,) = (path.parent for path in self.folder.glob("runs/*/*/run.json"))

    def start_training(self, **environ: str) -> None:
        env, command = {**self.environ, **environ}, [sys.executable, "-c", TRAINING]
        self.trainings.append(subprocess.Popen(command, env=env, cwd=self.folder, stdin=subprocess.PIPE, text=True))

    def start_agent(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "trainvitals.agent", "--keep"]
        self.agent = subprocess.Popen(command, env=self.environ, start_new_session=True)
        return self.agent

    def end_agent(self, number: int) -> None:
        """And with it whatever it had begun to seal."""
        self.agent.send_signal(number)
        self.agent.wait()
        wait_until(lambda: not any(is_sealer(process, self.run) for process in psutil.process_iter()), "no sealer")

    def log(self, steps: int) -> None:
        stdin = self.trainings[0].stdin
        assert stdin is not None
        self.steps += steps
        stdin.write(f"{steps}\n")
        stdin.flush()

    def wait_for_steps(self) -> None:
        """Until all steps are written, and the page knows them."""
        wait_until(lambda: self.read("training_step_duration_seconds_count") == self.steps, "every step, once")

    def read(self, series: str) -> float | None:
        page = fetch(f"http://127.0.0.1:{self.port}/metrics")[1]
        found = re.search(rf"^{series}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else None

    def parsed(self) -> float | None:
        return self.read(r'trainvitals_agent_lines_parsed_total{[^}]*table="training"}')

    def count_unsealed(self) -> int:
        """Training lines in JSONL files."""
        return sum(path.read_bytes().count(b"\n") for path in self.run.glob("training_metrics_*.jsonl"))

    def count_written(self) -> int:
        return sum(1 for _ in RunReader(self.run).rows())

    def status(self) -> dict[str, Any]:
        return runtime.read_json(self.run / "status.json") or {}

    def end(self) -> None:
        for process in (*self.trainings, self.agent):
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def is_sealer(process: psutil.Process, run: Path) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "trainvitals.agent.sealing" in words and str(run) in words


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Machine]]:
    """`start(**environ)` makes a machine that ends with the test."""
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    made: list[Machine] = []

    def make(**environ: str) -> Machine:
        made.append(Machine(tmp_path, **environ))
        return made[-1]

    yield make
    for machine in made:
        machine.end()


def test_each_line_is_parsed_once_through_rotation_sealing_and_the_deaths_of_agents(
    start: Callable[..., Machine], answering: Answering
) -> None:
    machine = start(
        TRAINVITALS_PROMETHEUS_PORT=str(free_port()),
        TRAINVITALS_PROMETHEUS_REMOTE_WRITE=answering.url,
        TRAINVITALS_PROMETHEUS_PUSH_INTERVAL="1",
    )
    machine.log(3000)
    wait_until(lambda: list(machine.run.glob("segments/*.parquet")), "a sealed file")
    machine.wait_for_steps()
    assert machine.parsed() == machine.steps
    wait_until(lambda: machine.read('trainvitals_alert_active{[^}]*rule="low"[^}]*}') == 1.0, "the alert")
    wait_until(
        lambda: any(
            b"training_loss" in cramjam.snappy.decompress_raw(body).read() for _, _, body in answering.received
        ),
        "a push",
    )

    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        machine.log(1000)
        machine.end_agent(number)
        known = machine.steps
        machine.log(500)  # while nobody is there
        wait_until(lambda: machine.count_written() == machine.steps, "all lines to be written")
        sealed = machine.steps - machine.count_unsealed()
        machine.start_agent()
        machine.log(1500)
        machine.wait_for_steps()
        # Of what is not sealed the end is read again, to fill the windows of the alerts; nothing is read twice.
        assert machine.steps - known <= (machine.parsed() or 0) <= machine.steps - sealed
    assert machine.read("training_steps_total") == machine.steps - 1
    wait_until(
        lambda: machine.status().get("summary", {}).get("loss", {}).get("count") == machine.steps,
        "a summary with every step",
    )
    assert machine.status()["damage"] == {"torn": 0, "foreign": 0}


def test_a_page_that_is_asked_for_late_counts_what_is_sealed_and_the_agent_stays_small(
    start: Callable[..., Machine],
) -> None:
    machine = start()
    machine.log(3000)
    wait_until(lambda: list(machine.run.glob("segments/*.parquet")), "a sealed file")
    wait_until(lambda: machine.count_written() == machine.steps, "all lines to be written")
    machine.start_training(TRAINVITALS_PROMETHEUS_PORT=str(machine.port))
    machine.wait_for_steps()
    machine.log(500)
    machine.wait_for_steps()
    loaded = Path(f"/proc/{machine.agent.pid}/maps").read_text()
    assert "orjson" in loaded and "numpy" not in loaded and "duckdb" not in loaded
