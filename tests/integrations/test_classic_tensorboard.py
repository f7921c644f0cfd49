"""TensorBoardMonitor, with a real agent and TensorBoard's own reader."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import wait_until

import trainvitals


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    for name, value in {"AGENT": "0", "DIR": "runs", "RUNTIME_DIR": "runtime"}.items():
        monkeypatch.setenv(f"TRAINVITALS_{name}", value if name == "AGENT" else str(tmp_path / value))
    process = subprocess.Popen([sys.executable, "-P", "-m", "trainvitals.agent"], stderr=subprocess.DEVNULL)
    yield process
    trainvitals.finish()
    process.kill()
    process.wait()


def read(folder: Path) -> Any:
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    found.Reload()
    return found


def test_what_was_logged_is_in_event_files_below_the_folder(agent: subprocess.Popen[bytes], tmp_path: Path) -> None:
    monitor = trainvitals.TensorBoardMonitor(tmp_path / "logs", project="tb")
    assert monitor.run is None
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        monitor.log_model_parameters(step, model)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        monitor.log_training_metrics(step, {"loss": float(step)})
        monitor.log_resource_metrics(step, {"gpu_0": {"memory_allocated": 5.0}})
    run = monitor.run
    assert run is not None and run.watching is not None
    assert run.watching.options.histograms_every == 1
    monitor.close()

    def has_come() -> bool:
        return (tmp_path / "logs" / run.id).is_dir() and len(scalars("training/loss")) == 3

    def scalars(tag: str) -> list[Any]:
        found = read(tmp_path / "logs" / run.id)
        return list(found.Scalars(tag)) if tag in found.Tags()["scalars"] else []

    wait_until(has_come)
    assert [(point.step, point.value) for point in scalars("training/loss")] == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert [point.value for point in scalars("training/resources/gpu_0/memory_allocated")] == [5.0] * 3


def test_a_run_without_the_mirror_is_reported(
    agent: subprocess.Popen[bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with trainvitals.init(project="tb") as run:
        monitor = trainvitals.TensorBoardMonitor(tmp_path / "logs")
        monitor.log_training_metrics(0, {"loss": 1.0})
        monitor.log_training_metrics(1, {"loss": 1.0})
        monitor.close()
        assert monitor.run is run
        assert capfd.readouterr().err.count("started without the setting tensorboard") == 1
