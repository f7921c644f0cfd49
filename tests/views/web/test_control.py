"""Acknowledging and silencing from the page, with a real agent, a training that goes wrong and somebody who is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import PATIENCE, wait_until

from .conftest import Server

TRAINING = """
import sys, time
import trainvitals
run = trainvitals.init(project="p", summary=False)
print(run.folder, flush=True)
for step in range(100000):
    run.log({"loss": 100.0}, step=step)
    time.sleep(0.05)
"""
RULES = [{"name": "loss_high", "when": "loss > 10", "severity": "warning", "message": "the loss is high"}]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Path]:
    """The folder of a training whose rule fires, watched by an agent of its own."""
    config = tmp_path / "trainvitals.yaml"
    config.write_text(json.dumps({"alerts": {"rules": RULES}}))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TRAINVITALS_")}
    environ = {
        **kept,
        "TRAINVITALS_CONFIG": str(config),
        "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "runtime"),
        "TRAINVITALS_DIR": str(tmp_path / "runs"),
        "TRAINVITALS_AGENT": "0",
    }
    agent = subprocess.Popen([sys.executable, "-P", "-m", "trainvitals.agent", "--keep"], env=environ)
    process = subprocess.Popen([sys.executable, "-c", TRAINING], env=environ, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield Path(process.stdout.readline().strip())
    for one in (process, agent):
        one.kill()
        one.wait()
    process.stdout.close()


def test_the_agent_does_what_is_asked_on_the_page(training: Path, serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(tmp_path / "runs", "--allow-edit")
    address = f"{server.base}api/v1/runs/{training.name}"

    def alerts() -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{address}/alerts", timeout=PATIENCE).json()
        return found

    def firing() -> list[dict[str, Any]]:
        return [row for row in alerts()["firing"] if row["rule"] == "loss_high"]

    def overview() -> set[str]:
        # Of a machine that is short of something, other rules may fire as well.
        return {row["rule"] for row in httpx.get(address, timeout=PATIENCE).json()["firing"]}

    (row,) = wait_until(firing, "the alert")
    assert not row.get("acknowledged") and not row.get("silenced")
    wait_until(lambda: "loss_high" in overview(), "the alert in the overview")

    asked = httpx.post(f"{address}/alerts", json={"action": "ack", "rule": "loss_high"}, timeout=PATIENCE)
    assert asked.status_code == 200, asked.text
    wait_until(lambda: [row for row in firing() if row.get("acknowledged")], "the acknowledgement")
    answer = next(row for row in alerts()["history"] if row["state"] == "acknowledged")
    assert (answer["by"], answer["asked"]) == ("web", asked.json()["asked"]["timestamp"])

    assert httpx.post(
        f"{address}/alerts", json={"action": "silence", "rule": "loss_high", "seconds": 600}, timeout=PATIENCE
    ).is_success
    wait_until(lambda: [row for row in firing() if row.get("silenced")], "the silence")
    wait_until(lambda: "loss_high" not in overview(), "the silence in the overview")

    unknown = httpx.post(f"{address}/alerts", json={"action": "ack", "rule": "loss_hihg"}, timeout=PATIENCE)
    assert unknown.status_code == 404
    assert "did you mean 'loss_high'" in unknown.json()["error"]["message"]
