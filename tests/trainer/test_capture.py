"""W&B and MLflow in a program below `trainvitals run`, with nothing set up for them."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from under_run import end_processes, find_process, run, runs, start
from waiting import PATIENCE, PATIENT_WANDB, free_port, wait_until

from trainvitals.alerts.environment import read_environment
from trainvitals.journal.folder import list_folders, read_run
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.follower import read_table
from trainvitals.trackers.importing import RunSource
from trainvitals.trackers.intake import process
from trainvitals.trackers.intake.keys import make_client_env, make_program_path
from trainvitals.trackers.intake.process import ensure_intake
from trainvitals.trackers.mlflow_store import open_source as open_mlflow
from trainvitals.trackers.wandb_files import open_source as open_wandb
from trainvitals.trainer.autostart import mlflow as mlflow_hook
from trainvitals.trainer.autostart import wandb as wandb_hook
from trainvitals.views.data.run_rows import list_rows

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
    end_processes(folder)


def test_what_wandb_logs_is_in_the_run_of_the_command(tmp_path: Path) -> None:
    errors = run(tmp_path, WANDB, "20", "0")
    ((file, rows),) = runs(tmp_path)
    assert [(row["step"], row["loss"], row["odd"]) for row in rows] == [(s, 1 / (s + 1), "NaN") for s in range(20)]
    assert (file.name, file.project, file.config, file.status) == ("baseline", "animals", {"lr": 0.1}, "finished")
    assert file.last_step == 19
    assert errors.count("what this program logs with wandb goes into this run") == 1
    assert "CAPTURE_TRACKERS=0" in errors
    assert "no training was detected" not in errors


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


SEARCH = """
import mlflow
mlflow.set_experiment("search")
for width in (1, 2, 3):
    with mlflow.start_run(run_name=f"width {width}"):
        mlflow.log_param("width", width)
        mlflow.log_metric("loss", 1 / width, step=0)
found = mlflow.search_runs(order_by=["metrics.loss ASC"])
assert list(found["params.width"]) == ["3", "2", "1"], found
assert list(found["metrics.loss"]) == [1 / 3, 1 / 2, 1.0] and set(found["status"]) == {"FINISHED"}, found
assert mlflow.search_runs(filter_string="params.width = '1'").iloc[0]["tags.mlflow.runName"] == "width 1"
"""


def test_a_program_finds_its_runs_that_have_ended(tmp_path: Path) -> None:
    run(tmp_path, SEARCH)
    assert [(file.name, [row["loss"] for row in rows]) for file, rows in runs(tmp_path)] == [
        ("width 1", [1.0]),
        ("width 2", [1 / 2]),
        ("width 3", [1 / 3]),
    ]


UNTIL_RELEASED = """
import math, os, time, CLIENT
BEGIN
step = 0
while not os.path.exists("release"):
    LOG({"loss": 0.5 if step < 3 else math.nan}, step=step)
    step += 1
    time.sleep(0.05)
END
"""
CLIENTS = {
    "wandb": {"BEGIN": "wandb.init(project='p')", "LOG": "wandb.log", "END": "wandb.finish()"},
    "mlflow": {"BEGIN": "mlflow.start_run()", "LOG": "mlflow.log_metrics", "END": "mlflow.end_run()"},
}


@pytest.mark.parametrize("client", ["wandb", "mlflow"])
def test_a_client_without_a_watched_training_is_judged_and_exported_live(
    client: str, tmp_path: Path, own_runtime: Path
) -> None:
    script, port = UNTIL_RELEASED.replace("CLIENT", client), free_port()
    for word, code in CLIENTS[client].items():
        script = script.replace(word, code)
    program = start(tmp_path, script, flags=("--prometheus-port", str(port)), TRAINVITALS_AGENT="1")
    try:
        wait_until(lambda: list_folders(tmp_path / "runs"), "the run")
        (folder,) = list_folders(tmp_path / "runs")
        # Others may fire beside it where the machine is busy: of a host without memory, of a step that took long.
        wait_until(lambda: "loss_not_finite" in {row["rule"] for _, row in read_table(folder, "alerts")}, "the alert")
        wait_until(lambda: _read_metric(port, "training_loss{").endswith(" NaN"), "the loss on /metrics")
        listed = FolderRuns(tmp_path / "runs")
        losses = lambda: [row.last_value("loss") for row in list_rows(listed) if row.last_step]  # noqa: E731
        wait_until(lambda: [loss for loss in losses() if loss is not None and math.isnan(loss)], "the loss in `runs`")
    finally:
        (tmp_path / "release").touch()
        _, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, errors
    assert read_run(folder).status == "finished"
    wait_until(lambda: not list((own_runtime / "runs").glob("*.json")), "the end of the watch")


def _read_metric(port: int, name: str) -> str:
    try:
        lines = httpx.get(f"http://127.0.0.1:{port}/metrics").text.splitlines()
    except httpx.TransportError:
        return ""
    return next((line for line in lines if line.startswith(name)), "")


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


FLAX = """
import jax, optax, wandb
from flax import nnx
run = wandb.init(project="p")
model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
@nnx.jit
def train_step(model, optimizer, x):
    loss, gradients = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
    optimizer.update(model, gradients)
    return loss
for step in range(5):
    run.log({"loss": float(train_step(model, optimizer, jax.numpy.ones((8, 4))))})
run.finish()
"""


def test_the_loss_of_a_flax_loop_that_logs_it_is_there_once(tmp_path: Path) -> None:
    run(tmp_path, FLAX)
    ((_, rows),) = runs(tmp_path)
    assert [row["step"] for row in rows if "loss" in row] == list(range(5))
    assert any("batch_time" in row for row in rows)


@pytest.mark.promise(
    "the process that W&B's client logs to is killed (kill -9)", "it is started again; nothing is lost or duplicated"
)
def test_a_killed_intake_comes_back_and_nothing_is_lost_or_doubled(tmp_path: Path, own_runtime: Path) -> None:
    pause = "time.sleep(float(sys.argv[2]))"
    script = WANDB.replace(pause, f"{pause}\n    while step == 150 and not os.path.exists('killed'): {pause}")
    program = start(tmp_path, f"import os\n{script}", "300", "0.02")
    wait_until(lambda: list(tmp_path.glob("runs/*/*/training_metrics_*.jsonl")), "rows")
    before = find_process(own_runtime, "intake.json")
    assert before is not None
    os.kill(before, signal.SIGKILL)
    (tmp_path / "killed").touch()  # so that it was killed before all was sent
    _, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, errors
    ((_, rows),) = runs(tmp_path)
    assert [row["step"] for row in rows] == list(range(300))
    assert find_process(own_runtime, "intake.json") not in (None, before)


def test_it_is_there_for_a_program_that_begins_its_first_run_late(tmp_path: Path, own_runtime: Path) -> None:
    pause = "open('imported', 'w').close()\nwhile not os.path.exists('killed'): time.sleep(0.05)\nrun ="
    program = start(tmp_path, "import os\n" + WANDB.replace("run =", pause, 1), "20", "0")
    wait_until((tmp_path / "imported").exists, "the import")
    before = find_process(own_runtime, "intake.json")
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: find_process(own_runtime, "intake.json") != before, "its end")
    (tmp_path / "killed").touch()
    _, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0, errors
    ((_, rows),) = runs(tmp_path)
    assert [row["step"] for row in rows] == list(range(20))


def test_it_waits_for_the_first_request_of_a_program_as_long_as_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = "from trainvitals.trackers.intake.process import note_client; note_client(); print(flush=True); input()"
    program = subprocess.Popen([sys.executable, "-c", noted], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdout is not None and program.stdout.readline()
    looks: list[float] = []

    def look_away(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 10:
            program.communicate(b"\n", timeout=PATIENCE)

    clock = SimpleNamespace(monotonic=lambda: 50.0 * len(looks), sleep=look_away)
    monkeypatch.setattr(process, "time", clock)
    server = SimpleNamespace(should_exit=False)
    process._end_when_idle(server, SimpleNamespace(is_idle=True), SimpleNamespace(is_ours=lambda: True))  # type: ignore[arg-type]
    assert server.should_exit and len(looks) > 10
    assert not process.has_clients()


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
    ("script", "environ", "lines"),
    [
        (WANDB, {"WANDB_MODE": "offline"}, 1),
        (WANDB, {"WANDB_MODE": "disabled"}, 0),
        (MLFLOW, {"MLFLOW_TRACKING_URI": "sqlite:///own.db"}, 1),
        (MLFLOW, {"MLFLOW_TRACKING_URI": "sqlite:///own.db", "TRAINVITALS_CAPTURE_TRACKERS": "0"}, 0),
        ("import mlflow\nmlflow.set_tracking_uri('sqlite:///own.db')" + MLFLOW * 2, {}, 1),
    ],
)
def test_a_line_says_where_the_numbers_of_a_client_go_that_is_set_up(
    script: str, environ: dict[str, str], lines: int, tmp_path: Path
) -> None:
    errors = run(tmp_path, script, "2", "0", **environ)
    assert errors.count("and not into this run") == lines
    assert [rows for _, rows in runs(tmp_path)] == [[]]


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


@pytest.mark.parametrize(
    "call",
    [
        'wandb.login(key="0" * 40, host="http://127.0.0.1:9", verify=False, timeout=1)',
        'wandb.init(mode="disabled", settings=wandb.Settings(api_key="0" * 40))',
        'wandb.init(mode="disabled", settings={"base_url": "http://127.0.0.1:9"})',
    ],
)
def test_a_program_that_names_an_account_is_not_redirected(call: str, tmp_path: Path) -> None:
    script = f"""
import os, wandb
assert "/program/" in os.environ["WANDB_BASE_URL"]
wandb.init(mode="disabled", settings=wandb.Settings(silent=True)).finish()
assert "/program/" in os.environ["WANDB_BASE_URL"]
try:
    {call}
finally:
    assert "WANDB_BASE_URL" not in os.environ and "WANDB_API_KEY" not in os.environ
"""
    run(tmp_path, script)


def test_a_spawned_process_logs_into_the_run_or_to_the_account_that_it_names(tmp_path: Path) -> None:
    script = """
import multiprocessing, os, subprocess, sys, wandb

def log():
    wandb.init().log({"loss": 1.0})
    wandb.finish()

def log_elsewhere():
    try:
        wandb.login(key="0" * 40, host="http://127.0.0.1:9", verify=False, timeout=1)
    finally:
        assert "WANDB_BASE_URL" not in os.environ and "WANDB_API_KEY" not in os.environ

if __name__ == "__main__":
    for work in (log, log_elsewhere):
        process = multiprocessing.get_context("spawn").Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == 0, work
    check = "import wandb, os; assert (os.environ['WANDB_API_KEY'], os.environ.get('WANDB_BASE_URL')) == ('mine', None)"
    subprocess.run([sys.executable, "-c", check], env={**os.environ, "WANDB_API_KEY": "mine"}, check=True)
"""
    errors = run(tmp_path, script)
    ((_, rows),) = runs(tmp_path)
    assert [row["loss"] for row in rows] == [1.0]
    assert errors.count("goes into this run") == 1


def test_a_server_that_the_program_names_does_not_get_our_token(tmp_path: Path) -> None:
    script = """
import multiprocessing, os, mlflow

def check():
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:9" and "MLFLOW_TRACKING_TOKEN" not in os.environ

def set_elsewhere():
    assert "/program/" in os.environ["MLFLOW_TRACKING_URI"] and os.environ["MLFLOW_TRACKING_TOKEN"]
    mlflow.set_tracking_uri("http://127.0.0.1:9")
    check()

if __name__ == "__main__":
    ours = mlflow.get_tracking_uri()
    for work in (set_elsewhere, check):
        process = multiprocessing.get_context("spawn").Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == 0, work
        mlflow.set_tracking_uri("http://127.0.0.1:9")
    mlflow.set_tracking_uri(ours)
    with mlflow.start_run():
        mlflow.log_metric("loss", 1.0)
"""
    run(tmp_path, script)
    ((_, rows),) = runs(tmp_path)
    assert [row["loss"] for row in rows] == [1.0]


def test_what_points_a_client_here_is_not_the_environment_of_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)  # what W&B leaves of a test that has used it
    listener = ensure_intake()
    assert listener is not None
    ours = make_client_env(listener.address + make_program_path(Path("runs/a"), 0, 1), listener.token)
    for theirs in ({}, {"WANDB_API_KEY": "mine", "MLFLOW_TRACKING_USERNAME": "me"}):
        environ = {**os.environ, **ours, **theirs}
        program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ)
        try:
            wait_until(lambda: read_environment(program.pid).get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"), "it")  # noqa: B023
            found = read_environment(program.pid)
        finally:
            program.communicate(b"\n")
        assert {name: value for name, value in found.items() if name.startswith(("WANDB_", "MLFLOW_"))} == theirs


FRAMEWORK = {
    "transformers": """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
torch.manual_seed(0)
tokens = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 16
model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0))
arguments = TrainingArguments("out", max_steps=4, logging_steps=1, eval_strategy="steps", eval_steps=2,
                              report_to=CLIENT, use_cpu=True, disable_tqdm=True)
Trainer(model, arguments, train_dataset=tokens, eval_dataset=tokens[:2],
        compute_metrics=lambda found: {"odd": float("nan")}).train()
""",
    "lightning": """
import lightning as L, torch
from lightning.pytorch.loggers import MLFlowLogger, WandbLogger
torch.manual_seed(0)
class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("train_loss", loss)
        self.log("odd", float("nan") if index == 2 else float(index))
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=8)
logger = WandbLogger(project="p") if CLIENT == "wandb" else MLFlowLogger()
L.Trainer(max_epochs=1, logger=logger, accelerator="cpu", log_every_n_steps=1, enable_checkpointing=False,
          enable_progress_bar=False).fit(Line(), data)
""",
    "keras": """
import keras, numpy
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
def odd(y, p):
    return keras.ops.mean(y) * float("nan")
model.compile("sgd", "mse", metrics=["mae", odd])
x, y = numpy.random.rand(32, 4), numpy.random.rand(32, 1)
if CLIENT == "wandb":
    import wandb
    from wandb.integration.keras import WandbMetricsLogger
    wandb.init(project="p")
    callback = WandbMetricsLogger()
else:
    import mlflow
    mlflow.start_run()
    from mlflow.keras import MlflowCallback
    callback = MlflowCallback()
model.fit(x, y, validation_data=(x, y), batch_size=8, epochs=3, verbose=0, callbacks=[callback])
wandb.finish() if CLIENT == "wandb" else mlflow.end_run()
""",
}
OWN_NAMES = {
    "transformers": {"loss", "mean_loss", "learning_rate", "eval/loss"},
    "lightning": {"loss", "learning_rate"},
    "keras": {"eval/loss"},
}
"""How our callbacks would name what the client reports."""
Values = dict[str, list[tuple[int | None, str]]]


def log_natively(folder: Path, script: str, client: str) -> Values:
    """What the client itself records of the program, without us."""
    folder.mkdir()
    (folder / "script.py").write_text(script)
    # W&B leaves the address of its process in the environment of a test that has used it.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINVITALS_", "WANDB_"))}
    places = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    environment = {**kept, **PATIENT_WANDB, **places, "HOME": str(folder)}
    environment |= {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": "tensorflow"}
    subprocess.run([sys.executable, "script.py"], cwd=folder, env=environment, check=True, capture_output=True)
    source: RunSource = (
        open_wandb(str(folder / "wandb")) if client == "wandb" else open_mlflow(places["MLFLOW_TRACKING_URI"])
    )
    found: Values = {}
    for item in source.runs():
        for piece in item.read({}):
            for _, step, values in piece.lines.rows() if piece.lines is not None else ():
                for name, value in values.items():
                    found.setdefault(name, []).append((step, spell_out(value)))
    return {name: points for name, points in found.items() if is_same_each_time(name)}


def is_same_each_time(name: str) -> bool:
    return not any(word in name for word in ("runtime", "per_second", "wandb/system", "system/"))


def spell_out(value: float | str) -> str:
    return repr(float(value))


@pytest.mark.parametrize("client", ["wandb", "mlflow"])
@pytest.mark.parametrize("framework", ["transformers", "lightning", "keras"])
def test_a_framework_that_reports_to_a_client_has_every_number_once(
    framework: str, client: str, tmp_path: Path
) -> None:
    script = FRAMEWORK[framework].replace("CLIENT", repr(client))
    expected = log_natively(tmp_path / "native", script, client)
    run(tmp_path, script, KERAS_BACKEND="tensorflow")
    ((file, rows),) = runs(tmp_path)
    found: Values = {}
    for row in rows:
        for name in row.keys() & expected.keys():
            found.setdefault(name, []).append((row.get("step"), spell_out(row[name])))
    if client == "wandb":  # an offline run has W&B's own count; online, the step metrics that the program defines
        found, expected = (
            {name: [(None, value) for _, value in points] for name, points in values.items()}
            for values in (found, expected)
        )
    assert {name: sorted(points, key=str) for name, points in found.items()} == {
        name: sorted(points, key=str) for name, points in expected.items()
    }
    assert any(value == "nan" for points in expected.values() for _, value in points)
    assert not OWN_NAMES[framework] - expected.keys() & {name for row in rows for name in row}, "logged twice"
    assert sum("batch_time" in row for row in rows) == (12 if framework == "keras" else 4), "it is watched all the same"
    assert file.status == "finished"


@pytest.mark.parametrize("framework", ["transformers", "lightning"])
def test_a_client_that_the_framework_does_not_report_to_costs_no_number(framework: str, tmp_path: Path) -> None:
    script = FRAMEWORK[framework].replace("report_to=CLIENT", "report_to='none'")
    script = script.replace("logger=logger", "logger=False").replace("CLIENT", "'wandb'")
    script = script.replace('logger = WandbLogger(project="p") if', "logger = None if")
    run(tmp_path, "import wandb\n" + script)
    ((_, rows),) = runs(tmp_path)
    assert sum(any(name in row for name in ("loss", "train_loss")) for row in rows) >= 4, rows
