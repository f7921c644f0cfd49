"""A training mirrored to TensorBoard, MLflow and W&B while all that can be killed is killed."""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mirrored import MlflowServer
from waiting import PATIENCE, wait_until
from wandb_log import HISTORY, read_all

from trainvitals.journal.follower import read_table

TRAINING = """
import time
from pathlib import Path
import trainvitals

run = trainvitals.init(config={"lr": 0.1})
step = 0
while not Path("stop").exists():
    run.log({"loss": 1.0 / (step + 1), "odd": float("nan") if step % 7 == 0 else step}, step=step)
    step += 1
    time.sleep(0.05)
run.finish()
"""


class Mirrored:
    """A machine with one training and three mirrors."""

    def __init__(self, folder: Path, mlflow: MlflowServer) -> None:
        self.folder = folder
        self.mlflow = mlflow
        self.code = -1
        self.doctor = ""
        """What it printed while MLflow was down."""
        self.environ = {
            **{name: text for name, text in os.environ.items() if not name.startswith(("TRAINVITALS_", "WANDB_"))},
            "TRAINVITALS_RUNTIME_DIR": str(folder / "runtime"),
            "TRAINVITALS_DIR": str(folder / "runs"),
            "TRAINVITALS_AGENT_IDLE_TIMEOUT": "1",
            "TRAINVITALS_INTERVAL": "0.5",
        }
        (folder / "train.py").write_text(TRAINING)
        flags = [
            "--project",
            "mirrored",
            "--simulate-gpus",
            "1",
            "--no-summary",
            "--tensorboard",
            "--mlflow",
            mlflow.url,
        ]
        flags += ["--wandb-project", "mirrored", "--wandb-offline"]
        command = [sys.executable, "-m", "trainvitals", "run", *flags, "--", sys.executable, "train.py"]
        self.program = subprocess.Popen(
            command, env=self.environ, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    @property
    def run(self) -> Path:
        (found,) = (self.folder / "runs" / "mirrored").glob("*/run.json")
        return found.parent

    def exports(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.run / "status.json").read_text()).get("row_exports") or {}
        except (OSError, ValueError):
            return {}
        return found

    def sent(self, name: str) -> int:
        return int(self.exports().get(name, {}).get("written", 0))

    def agent(self) -> int | None:
        try:
            return int(json.loads((self.folder / "runtime" / "agent.json").read_text())["pid"])
        except (OSError, ValueError, KeyError):
            return None

    def client(self) -> psutil.Process | None:
        """W&B's."""
        pid = self.agent()
        try:
            children = psutil.Process(pid).children() if pid is not None else []
            return next((child for child in children if "trainvitals.exporters.wandb_client" in child.cmdline()), None)
        except psutil.Error:
            return None

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trainvitals", *words], env=self.environ, cwd=self.folder, text=True,
            capture_output=True, check=False,
        )  # fmt: skip

    def losses(self) -> list[tuple[int, float]]:
        return [(row["step"], row["loss"]) for _, row in read_table(self.run, "training")]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    """Everything is killed once, in turn; the training ends while MLflow is down; in the end everything is back."""
    folder = tmp_path_factory.mktemp("mirrored")
    (folder / "mlflow").mkdir()
    mlflow = MlflowServer(folder / "mlflow")
    found = Mirrored(folder, mlflow)
    names = ("tensorboard", "mlflow", "wandb")
    wait_until(lambda: all(found.sent(name) > 20 for name in names), "the first rows everywhere")
    mlflow.kill()
    wait_until(lambda: found.exports().get("mlflow", {}).get("trouble"), "the loss of the server")
    client = wait_until(found.client, "the client")
    before = found.sent("wandb")
    os.killpg(client.pid, signal.SIGKILL)
    wait_until(lambda: found.sent("wandb") > before + 20, "another client")
    agent = wait_until(found.agent, "the agent")
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: found.agent() not in (None, agent), "another agent")
    before = found.sent("wandb")
    wait_until(lambda: found.sent("wandb") > before + 20, "rows by the new agent")
    (folder / "stop").touch()
    found.code = found.program.wait(PATIENCE)
    found.doctor = found.command("doctor", "--json").stdout
    mlflow.start()
    wait_until(
        lambda: all(found.exports().get(name, {}).get("complete") for name in names), lambda: str(found.exports())
    )
    yield found
    mlflow.kill()
    found.command("agent", "stop")


@pytest.mark.promise("a tracker is down when a run ends", "the run ends as ever, and the tracker gets the rest later")
def test_the_training_ended_as_ever(story: Mirrored) -> None:
    assert story.code == 0
    assert json.loads((story.run / "run.json").read_text())["status"] == "finished"
    assert "mlflow" in story.doctor and "failed, retrying" in story.doctor


@pytest.mark.promise("MLflow's server and the agent are killed during a run", "MLflow has every number once")
def test_mlflow_has_every_number_once(story: Mirrored) -> None:
    (run,) = story.mlflow.runs("mirrored")
    client = story.mlflow.client()
    points = sorted((point.step, point.value) for point in client.get_metric_history(run.info.run_id, "loss"))
    assert points == story.losses()
    odd = client.get_metric_history(run.info.run_id, "odd")
    assert sorted(point.step for point in odd if math.isnan(point.value)) == list(range(0, len(points), 7))
    assert run.info.status == "FINISHED" and run.data.params == {"lr": "0.1"}
    assert "system/gpu_0_utilization_percentage" in run.data.metrics
    assert [item.path for item in client.list_artifacts(run.info.run_id, "trainvitals")] == ["trainvitals/report.html"]


@pytest.mark.promise("W&B's client and the agent are killed during a run", "W&B has every number once")
def test_wandb_has_every_number_once(story: Mirrored) -> None:
    rows = sorted(read_all(story.run / "wandb", HISTORY), key=lambda row: int(row["_step"]))
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    assert sorted((row["step"], row["loss"]) for row in rows if "loss" in row) == story.losses()
    assert any("gpu_0_gpu_utilization_pct" in row for row in rows)


def test_tensorboard_has_every_number_once(story: Mirrored) -> None:
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(story.run / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    points = [(point.step, point.value) for point in found.Scalars("training/loss")]
    assert points == [(step, struct.unpack("f", struct.pack("f", loss))[0]) for step, loss in story.losses()]


def test_runs_show_has_what_was_sent_and_nothing_is_left_to_export(story: Mirrored) -> None:
    shown = story.command("runs", "show", "latest").stdout
    assert shown.count("rows sent, complete") == 3 and f"{story.mlflow.url}/#/experiments/" in shown
    done = story.command("export", "latest", "--to", "mlflow", story.mlflow.url)
    assert done.returncode == 0 and "mlflow accepted 0 rows" in done.stderr, done.stderr
    wait_until(lambda: not list((story.folder / "runtime" / "exports").glob("*.json")), "no note about anything unsent")
