"""W&B and MLflow in a program below `trainvitals run`, with nothing set up for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, wait_until

from trainvitals import runtime
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.folder import list_folders, read_run
from trainvitals.journal.reader import RunReader
from trainvitals.trackers.intake.process import ensure_intake
from trainvitals.trainer.autostart import mlflow as mlflow_hook
from trainvitals.trainer.autostart import wandb as wandb_hook

WANDB = """
import math, sys, time
import wandb
run = wandb.init(project="animals", name="baseline", config={"lr": 0.1})
for step in range(int(sys.argv[1])):
    run.log({"loss": 1 / (step + 1), "odd": math.nan})
    time.sleep(float(sys.argv[2]))
run.finish()
"""
MLFLOW = """
import mlflow
with mlflow.start_run():
    mlflow.log_param("lr", 0.1)
    for step in range(20):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
"""


@pytest.fixture(autouse=True)
def own_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "runtime"
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(folder))
    yield folder
    if (pid := _intake_pid(folder)) is not None:
        os.kill(pid, signal.SIGKILL)


def _intake_pid(folder: Path) -> int | None:
    pid = (runtime.read_json(folder / "intake.json") or {}).get("pid")
    return pid if isinstance(pid, int) and runtime.process_start(pid) is not None else None


def start(folder: Path, script: str, *arguments: str, flags: tuple[str, ...] = (), **environment: str) -> Any:
    (folder / "script.py").write_text(script)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_"))}
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "trainvitals",
            "run",
            "--dir",
            "runs",
            *flags,
            "--",
            sys.executable,
            "script.py",
            *arguments,
        ],
        cwd=folder,
        env={
            **ours,
            "HOME": str(folder),
            "NETRC": str(folder / "netrc"),
            "TRAINVITALS_AGENT": "0",
            "TRAINVITALS_SUMMARY": "0",
            "OMP_NUM_THREADS": "1",
            "WANDB_SILENT": "true",
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
    found = list_folders(folder / "runs")
    return [(read_run(place), list(RunReader(place).rows())) for place in found]


def test_what_wandb_logs_is_in_the_run_of_the_command(tmp_path: Path) -> None:
    errors = run(tmp_path, WANDB, "20", "0")
    ((file, rows),) = runs(tmp_path)
    assert [(row["step"], row["loss"], row["odd"]) for row in rows] == [(s, 1 / (s + 1), "NaN") for s in range(20)]
    assert (file.name, file.project, file.config, file.status) == ("baseline", "animals", {"lr": 0.1}, "finished")
    assert file.last_step == 19
    assert errors.count("what this program logs with wandb goes into this run") == 1
    assert "CAPTURE_TRACKERS=0" in errors
    assert "no training was seen" not in errors


def test_what_mlflow_logs_is_in_the_run_of_the_command(tmp_path: Path) -> None:
    run(tmp_path, MLFLOW)
    ((file, rows),) = runs(tmp_path)
    assert [(row["step"], row["loss"]) for row in rows] == [(step, 1 / (step + 1)) for step in range(20)]
    assert file.last_step == 19
    assert file.config == {"lr": "0.1"} and not (tmp_path / "mlruns").exists()


def test_a_second_run_of_the_client_is_a_run_beside_it(tmp_path: Path) -> None:
    run(tmp_path, WANDB + WANDB.replace("baseline", "second"), "3", "0")
    (first, one), (second, two) = runs(tmp_path)
    assert (first.name, len(one), second.name, len(two)) == ("baseline", 3, "second", 3)
    assert second.below == first.id and second.status == "finished"


TORCH = """
import torch, wandb
run = wandb.init(project="p")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    run.log({"loss": loss.item()})
run.finish()
"""


def test_a_watched_loop_has_its_phases_and_the_loss_once(tmp_path: Path) -> None:
    run(tmp_path, TORCH)
    ((_, rows),) = runs(tmp_path)
    assert [row["step"] for row in rows if "loss" in row] == list(range(10))
    assert sum("batch_time" in row for row in rows) == 10


@pytest.mark.promise(
    "the process that W&B's client logs to is killed (kill -9)", "it is started again; nothing is lost or doubled"
)
def test_a_killed_intake_comes_back_and_nothing_is_lost_or_doubled(tmp_path: Path, own_runtime: Path) -> None:
    program = start(tmp_path, WANDB, "300", "0.02")
    wait_until(lambda: list(tmp_path.glob("runs/*/*/training_metrics_*.jsonl")), "rows")
    before = _intake_pid(own_runtime)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    _, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, errors
    ((_, rows),) = runs(tmp_path)
    assert [row["step"] for row in rows] == list(range(300))
    assert _intake_pid(own_runtime) not in (None, before)


def test_it_is_one_process_for_all_programs(own_runtime: Path) -> None:
    first, second = ensure_intake(), ensure_intake()
    assert first is not None and first == second
    assert (own_runtime / "intake.json").stat().st_mode & 0o777 == 0o600


# -- who has set up something keeps it


def test_the_setting_turns_it_off(tmp_path: Path, own_runtime: Path) -> None:
    errors = run(tmp_path, MLFLOW, TRAINVITALS_CAPTURE_TRACKERS="0")
    assert "goes into this run" not in errors and not (own_runtime / "intake.json").exists()
    assert [rows for _, rows in runs(tmp_path)] == [[]]


def test_where_it_cannot_start_the_client_behaves_as_ever(tmp_path: Path, own_runtime: Path) -> None:
    own_runtime.mkdir(mode=0o700)
    (own_runtime / "intake.lock").mkdir()
    run(tmp_path, MLFLOW)
    assert (tmp_path / "mlflow.db").exists() or (tmp_path / "mlruns").exists()


@pytest.mark.parametrize(
    "environ",
    [{"WANDB_API_KEY": "x"}, {"WANDB_BASE_URL": "http://x"}, {"WANDB_MODE": "offline"}, {"WANDB_DISABLED": "true"}],
)
def test_a_variable_of_wandb_means_that_it_is_set_up(environ: dict[str, str], tmp_path: Path) -> None:
    assert wandb_hook.is_configured({"HOME": str(tmp_path), **environ})
    assert not wandb_hook.is_configured({"HOME": str(tmp_path), "WANDB_SILENT": "true", "WANDB_PROJECT": "p"})


def test_an_account_or_a_settings_file_of_wandb_means_that_it_is_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path / "home")}
    assert not wandb_hook.is_configured(environ)
    (tmp_path / "home" / ".config" / "wandb").mkdir(parents=True)
    for place, text in (
        (tmp_path / "home" / ".netrc", "machine api.wandb.ai\n  login user\n  password x\n"),
        (tmp_path / "home" / ".config" / "wandb" / "settings", "[default]\nbase_url = http://x\n"),
        (tmp_path / "wandb" / "settings", "[default]\nmode = offline\n"),
    ):
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
        assert wandb_hook.is_configured(environ), place
        place.unlink()


def test_a_server_or_runs_in_the_folder_mean_that_mlflow_is_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not mlflow_hook.is_configured({})
    assert mlflow_hook.is_configured({"MLFLOW_TRACKING_URI": "http://x"})
    (tmp_path / "mlruns").mkdir()
    assert mlflow_hook.is_configured({})


def test_a_program_that_logs_in_with_a_key_is_not_redirected(tmp_path: Path) -> None:
    script = """
import os, wandb
assert "/program/" in os.environ["WANDB_BASE_URL"]
try:
    wandb.login(key="0" * 40, host="http://127.0.0.1:9", verify=False, timeout=1)
finally:
    assert "WANDB_BASE_URL" not in os.environ and "WANDB_API_KEY" not in os.environ
"""
    run(tmp_path, script)


FRAMEWORK = {
    "transformers": """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
tokens = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 16
model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0))
arguments = TrainingArguments("out", max_steps=4, logging_steps=1, report_to=CLIENT, use_cpu=True, disable_tqdm=True)
Trainer(model, arguments, train_dataset=tokens, eval_dataset=tokens[:2]).train()
""",
    "lightning": """
import lightning as L, torch
from lightning.pytorch.loggers import MLFlowLogger, WandbLogger
class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("train_loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=8)
logger = WandbLogger(project="p") if CLIENT == "wandb" else MLFlowLogger()
L.Trainer(max_epochs=1, logger=logger, accelerator="cpu", log_every_n_steps=1, enable_checkpointing=False,
          enable_progress_bar=False).fit(Line(), data)
""",
}


@pytest.mark.parametrize(
    ("framework", "client"), [("transformers", "wandb"), ("transformers", "mlflow"), ("lightning", "wandb")]
)
def test_a_framework_that_reports_to_a_client_has_every_number_once(
    framework: str, client: str, tmp_path: Path
) -> None:
    run(tmp_path, FRAMEWORK[framework].replace("CLIENT", repr(client)))
    ((file, rows),) = runs(tmp_path)
    names = ("loss", "train/loss", "mean_loss") if framework == "transformers" else ("loss", "train_loss")
    losses = [row[name] for row in rows for name in names if name in row]
    assert len(losses) == len(set(losses)) == 4, rows
    assert sum("batch_time" in row for row in rows) == 4, "it is watched all the same"
    assert file.status == "finished"


@pytest.mark.parametrize("framework", ["transformers", "lightning"])
def test_a_client_that_the_framework_does_not_report_to_costs_no_number(framework: str, tmp_path: Path) -> None:
    script = FRAMEWORK[framework].replace("report_to=CLIENT", "report_to='none'")
    script = script.replace("logger=logger", "logger=False").replace("CLIENT", "'wandb'")
    script = script.replace('logger = WandbLogger(project="p") if', "logger = None if")
    run(tmp_path, "import wandb\n" + script)
    ((_, rows),) = runs(tmp_path)
    assert sum(any(name in row for name in ("loss", "train_loss")) for row in rows) >= 4, rows
