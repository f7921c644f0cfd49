"""The machine as it is now: values that are delivered no more are gone from every view, by one rule. Of a GPU that
hangs the state stays, as soon as that is known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_nvml import FakeNvml
from waiting import PATIENCE, free_port, wait_until

from trainvitals.journal.documents.latest import Latest, read_latest

ANSWERS = "count = 2\n"
HANGS = f"{ANSWERS}delay_us.nvmlDeviceGetUtilizationRates.1 = 600000000\n"


class Machine:
    """Two GPUs, and an agent that serves what it measures."""

    def __init__(self, fake: FakeNvml, folder: Path) -> None:
        self.fake = fake
        self.port = free_port()
        fake.script(ANSWERS)
        self.environ = {
            **fake.env(),
            "TRAINVITALS_RUNTIME_DIR": str(folder / "runtime"),
            "TRAINVITALS_INTERVAL": "0.5",
            "TRAINVITALS_PROMETHEUS_PORT": str(self.port),
        }
        command = [sys.executable, "-P", "-m", "trainvitals.agent", "--keep"]
        self.agent = subprocess.Popen(command, env=self.environ, start_new_session=True)

    def latest(self) -> set[str]:
        latest = read_latest() or Latest()
        return {
            str(item.labels["gpu_index"]) for item in latest.of_table("gpu") if "temperature_celsius" in item.values
        }

    def page(self) -> set[str]:
        try:
            lines = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE).text.splitlines()
        except httpx.TransportError:
            return set()  # not there yet
        found = [line.partition('gpu="')[2] for line in lines if line.startswith("gpu_temperature_celsius{")]
        return {text.partition('"')[0] for text in found}

    def top(self) -> set[str]:
        """The GPUs with numbers."""
        command = [sys.executable, "-m", "trainvitals", "top", "--once", "--json"]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=True)
        gpus = json.loads(done.stdout)["gpus"]
        return {str(gpu["index"]) for gpu in gpus if "temperature_celsius" in gpu["values"]}


@pytest.fixture
def machine(fake_nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    found = Machine(fake_nvml, tmp_path)
    yield found
    os.kill(found.agent.pid, signal.SIGKILL)
    found.agent.wait()


def test_a_gpu_that_stops_answering_disappears_from_file_terminal_page_and_prometheus(
    machine: Machine, serve: Callable[..., Any], tmp_path: Path
) -> None:
    server = serve(tmp_path / "runs")

    def api() -> set[str]:
        samples = httpx.get(f"{server.base}api/v1/machine", timeout=PATIENCE).json()["samples"]
        gpus = (item for item in samples if item["table"] == "gpu")
        return {str(item["labels"]["gpu_index"]) for item in gpus if "temperature_celsius" in item["values"]}

    views = {"latest.json": machine.latest, "/metrics": machine.page, "/machine": api, "top": machine.top}
    for name, look in views.items():
        wait_until(lambda look=look: look() == {"0", "1"}, f"both GPUs in {name}")
    machine.fake.script(HANGS)
    wait_until(lambda: machine.latest() == {"0"}, "a GPU that is gone from latest.json")
    for name, look in views.items():
        wait_until(lambda look=look: look() == {"0"}, f"the same in {name}")
    machine.fake.script(ANSWERS)
