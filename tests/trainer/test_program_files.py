"""SummaryWriter, tensorboardX, TensorFlow's writers and CSVLogger in programs below `trainvitals run`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from under_run import end_processes, run, runs, start
from waiting import PATIENCE, free_port, wait_until

from trainvitals import settings
from trainvitals.agent import program_files
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import COMMAND, new_run
from trainvitals.journal.folder import list_folders, read_run
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.follower import read_table
from trainvitals.journal.identity import Participant
from trainvitals.journal.media import list_rows as list_media
from trainvitals.trackers.importing import RunSource
from trainvitals.trackers.program_files.notes import TABLE, write_note
from trainvitals.trackers.program_files.repeats import read_meaning
from trainvitals.trackers.tables import open_source as open_table
from trainvitals.trackers.tensorboard.reading import TensorBoardSource
from trainvitals.views.data.run_rows import list_rows


@pytest.fixture(autouse=True)
def own_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "runtime"
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(folder))
    yield folder
    end_processes(folder)


Values = dict[str, list[tuple[int | None, float]]]


def wait_for_end_of_watch(runtime: Path) -> None:
    wait_until(lambda: not list((runtime / "runs").glob("*.json")), "the end of the watch")


def watched(folder: Path, script: str, **environment: str) -> Values:
    """Run it with an agent; what is in its run, by name."""
    run(folder, script, TRAINVITALS_AGENT="1", **environment)
    wait_for_end_of_watch(folder / "runtime")  # the command gives the agent only a moment
    ((file, rows),) = runs(folder)
    assert file.status == "finished"
    events = read_table(list_folders(folder / "runs")[0], "events")
    assert not [row["message"] for _, row in events if row["event"] == "autostart"]
    found: Values = {}
    for row in rows:
        for name, value in row.items():
            if name not in ("timestamp", "step"):
                found.setdefault(name, []).append((row.get("step"), float(value)))
    return found


def written(place: Path) -> Values:
    """What a program has in its event files, or in its table."""
    source: RunSource = TensorBoardSource(place) if place.is_dir() else open_table(str(place))
    found: Values = {}
    for item in source.runs():
        for piece in item.read({}):
            for _, step, values in piece.lines.rows() if piece.lines is not None else ():
                for name, value in values.items():
                    found.setdefault(name, []).append((step, value))
    return found


LOOP = """
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    log(step, {"loss": loss.item(), "accuracy": math.nan if step == 7 else step / 20})
"""
TORCH = """
import math, torch
import sys; sys.modules["tensorflow"] = None  # TensorBoard takes its own stub, which is there at once
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("logs")
def log(step, values):
    writer.add_scalar("Loss/train", values["loss"], step)
    writer.add_scalar("accuracy", values["accuracy"], step)
LOOP
writer.close()
""".replace("LOOP", LOOP)


def same(left: list[tuple[int | None, float]], right: list[tuple[int | None, float]]) -> bool:
    return [(step, repr(value)) for step, value in left] == [(step, repr(value)) for step, value in right]


def test_what_a_summary_writer_logs_is_in_the_run_once(tmp_path: Path) -> None:
    found, expected = watched(tmp_path, TORCH), written(tmp_path / "logs")
    assert same(found["accuracy"], expected["accuracy"]) and len(expected["accuracy"]) == 20
    assert "Loss/train" not in found, "it is the loss that is watched"
    assert [np.float32(value) for _, value in found["loss"]] == [value for _, value in expected["Loss/train"]]


def test_the_setting_turns_it_off(tmp_path: Path) -> None:
    found = watched(tmp_path, TORCH, TRAINVITALS_CAPTURE_TRACKERS="0")
    assert "accuracy" not in found and len(found["loss"]) == 20


WITH_WANDB = """
import math, numpy, torch, wandb
run = wandb.init(project="p", config={"width": 4, "token": "hunter22"}, tags=["tiny"])
def log(step, values):
    run.log(values)
LOOP
run.log({"picture": wandb.Image(numpy.zeros((4, 4, 3), "uint8"))})
run.finish()
"""
WITH_MLFLOW = """
import math, mlflow, torch
mlflow.start_run(tags={"size": "tiny"})
mlflow.log_params({"width": 4, "token": "hunter22"})
def log(step, values):
    mlflow.log_metrics(values, step=step)
LOOP
mlflow.end_run()
mlflow.start_run()
mlflow.log_metric("accuracy", 9.0)
mlflow.end_run()
"""


@pytest.mark.parametrize(
    ("script", "environ"),
    [
        pytest.param(WITH_WANDB, {"WANDB_MODE": "offline"}, id="wandb"),
        pytest.param(WITH_MLFLOW, {"MLFLOW_TRACKING_URI": "sqlite:///own.db"}, id="mlflow-database"),
        pytest.param(
            WITH_MLFLOW,
            {"MLFLOW_TRACKING_URI": "mlruns", "MLFLOW_ALLOW_FILE_STORE": "true"},
            id="mlflow-folder",
        ),
    ],
)
def test_what_a_client_keeps_on_this_machine_is_in_the_run_once(
    script: str, environ: dict[str, str], tmp_path: Path
) -> None:
    found = watched(tmp_path, script.replace("LOOP", LOOP), **environ)
    assert same(found["accuracy"], [(step, math.nan if step == 7 else step / 20) for step in range(20)])
    assert len(found["loss"]) == 20 and "logged/loss" not in found, "it is the loss that is watched"
    others = {name: points for name, points in found.items() if name.endswith("/accuracy")}
    assert [value for points in others.values() for _, value in points] == ([9.0] if "mlflow" in script else [])
    ((file, _),) = runs(tmp_path)
    assert {name: str(value) for name, value in (file.config or {}).items() if name in ("width", "token")} == {
        "width": "4",
        "token": "[redacted]",
    }
    (folder,) = list_folders(tmp_path / "runs")
    assert ("tiny" if "wandb" in script else "size=tiny") in file.tags
    assert [row["name"] for row in list_media(folder)] == (["picture"] if "wandb" in script else [])


LIVE = """
import math, os, time
from tensorboardX import SummaryWriter
writer = SummaryWriter("logs")
step = 0
while not os.path.exists("release"):
    writer.add_scalar("loss", 0.5 if step < 3 else math.nan, step)
    writer.flush()
    step += 1
    time.sleep(0.05)
writer.close()
"""


def test_a_program_that_only_writes_event_files_is_judged_and_exported_live(tmp_path: Path, own_runtime: Path) -> None:
    port = free_port()
    program = start(tmp_path, LIVE, flags=("--prometheus-port", str(port)), TRAINVITALS_AGENT="1")
    try:
        wait_until(lambda: list_folders(tmp_path / "runs"), "the run")
        (folder,) = list_folders(tmp_path / "runs")
        # Others may fire beside it where the machine is busy: of a host without memory, of a step that took long.
        wait_until(lambda: "loss_not_finite" in {row["rule"] for _, row in read_table(folder, "alerts")}, "the alert")
        wait_until(lambda: " NaN" in read_loss(port), "the loss on /metrics")
        listed = FolderRuns(tmp_path / "runs")
        shown = lambda: [row for row in list_rows(listed) if math.isnan(row.last_value("loss") or 0.0)]  # noqa: E731
        wait_until(lambda: [row for row in shown() if (row.last_step or 0) > 3], "the step and its loss in `runs`")
    finally:
        (tmp_path / "release").touch()
        _, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0 and "no training was detected" not in errors, errors
    assert read_run(folder).status == "finished"
    wait_for_end_of_watch(own_runtime)
    ((_, rows),) = runs(tmp_path)
    assert same([(row["step"], float(row["loss"])) for row in rows], written(tmp_path / "logs")["loss"])


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_follower_of_a_program_that_has_ended_reads_the_rest_and_ends(
    is_killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_files, "RETRY_SECONDS", 0.0)
    folder = tmp_path / "runs" / "p" / "r"
    run_folder.create(folder)
    run_folder.write_run(folder, new_run("r", kind=COMMAND, project="p", name="n", facts={}, pid=os.getpid()))
    context: Any = SimpleNamespace(folder=folder, settings=settings.resolve({}, environ={}), log=None)
    files = program_files.ProgramFiles(context)
    assert not files.look(0.0) and files.finish(0.0), "there are no files"
    files = program_files.ProgramFiles(context)
    table = tmp_path / "log.csv"
    write_note(folder, TABLE, str(table), rank=0, opened=time.time())
    assert files.look(1.0) and files.is_written_by(Participant())
    table.write_text("step,accuracy\n0,0.5\n")
    if is_killed:
        assert files._child is not None
        files._child.kill()
        files._child.wait()
    wait_until(lambda: files.look(2.0) or files.finish(2.0), "the end of the child")
    assert [row["accuracy"] for _, row in read_table(folder, "training")] == [0.5]


def read_loss(port: int) -> str:
    try:
        lines = httpx.get(f"http://127.0.0.1:{port}/metrics").text.splitlines()
    except httpx.TransportError:
        return ""
    return next((line for line in lines if line.startswith("training_loss{")), "")


LIGHTNING = """
import sys, torch
import sys; sys.modules["tensorflow"] = None  # TensorBoard takes its own stub, which is there at once
import lightning as L
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("train_loss", loss)
        self.log("odd", float("nan") if index == 2 else float(index))
        if isinstance(self.logger, TensorBoardLogger):
            self.logger.experiment.add_scalar("own", index / 3, self.global_step)
        return loss
    def validation_step(self, batch, index):
        self.log("val_loss", self.layer(batch[0]).pow(2).mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=8)
logger = LOGGER("logs", name="", version="")
L.Trainer(max_epochs=2, logger=logger, accelerator="cpu", log_every_n_steps=1, enable_checkpointing=False,
          enable_progress_bar=False).fit(Line(), data, data)
"""
TRANSFORMERS = """
import torch
import sys; sys.modules["tensorflow"] = None  # TensorBoard takes its own stub, which is there at once
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
tokens = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 16
model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0))
arguments = TrainingArguments("out", max_steps=4, logging_steps=1, eval_strategy="steps", eval_steps=2,
                              report_to="tensorboard", use_cpu=True, disable_tqdm=True)
Trainer(model, arguments, train_dataset=tokens, eval_dataset=tokens[:2],
        compute_metrics=lambda found: {"odd": float("nan")}).train()
"""
KERAS = """
import os
import keras, numpy
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
def odd(y, p):
    return keras.ops.mean(y) * float("nan")
model.compile("sgd", "mse", metrics=["mae", odd])
x, y = numpy.random.rand(32, 4), numpy.random.rand(32, 1)
model.fit(x, y, validation_data=(x, y), batch_size=8, epochs=3, verbose=0,
          callbacks=[keras.callbacks.TensorBoard("logs"), keras.callbacks.CSVLogger("log.csv")])
"""


@pytest.mark.parametrize(
    ("script", "own"),
    [
        pytest.param(LIGHTNING.replace("= LOGGER", "= TensorBoardLogger"), {"own"}, id="lightning-tensorboard"),
        pytest.param(LIGHTNING.replace("= LOGGER", "= CSVLogger"), set(), id="lightning-csv"),
        pytest.param(TRANSFORMERS, set(), id="transformers"),
        pytest.param(KERAS, set(), id="keras"),
    ],
)
def test_what_a_framework_writes_to_files_is_in_the_run_once(script: str, own: set[str], tmp_path: Path) -> None:
    found = watched(tmp_path, script, KERAS_BACKEND="tensorflow")
    folders = [path for path in (tmp_path / "logs", tmp_path / "out") if path.exists()]
    expected = [written(path) for path in (*folders, *tmp_path.rglob("metrics.csv"), *tmp_path.glob("log.csv"))]
    assert any(value != value for values in expected for points in values.values() for _, value in points)
    in_run: dict[Any, set[str]] = {}
    for name, points in found.items():
        in_run.setdefault(read_meaning(name), set()).update(repr(np.float32(value)) for _, value in points)
    for values in expected:
        for name, points in values.items():
            if name.rpartition("/")[2] != "epoch":  # counted in whole epochs there
                meaning = read_meaning(name)
                known = in_run.get(meaning, set()) | in_run.get(meaning | {"eval"}, set())  # logs/validation
                assert {repr(np.float32(value)) for _, value in points} <= known, name
    (folder,) = list_folders(tmp_path / "runs")
    taken = {name for file, row in read_table(folder, "training") if file.pid is not None for name in row}
    assert taken - {"timestamp", "step"} == own
