"""KerasCallback with the real Keras, on each of its backends in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import sys
import keras
import numpy as np
import trainvitals

folder, automatic = sys.argv[1], "automatic" in sys.argv
keras.utils.set_random_seed(0)


class Saboteur(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 2:
            ours._base = None


def fit(callbacks):
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([layers.Input((4,)), layers.Dense(4, activation="relu"), layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    x = np.random.default_rng(0).random((32, 4))
    y = x.sum(axis=1)
    keep = keras.callbacks.ModelCheckpoint(folder + "/kept.weights.h5", save_weights_only=True)
    history = model.fit(x, y, epochs=2, batch_size=8, validation_split=0.25, verbose=0, callbacks=[*callbacks, keep])
    return model, x, y, history.history


if automatic:
    fit([])
    sys.exit()
ours = trainvitals.KerasCallback(dir=folder + "/runs", agent=False, stack_dumps=False)
model, x, y, history = fit([ours])
print("history", history)
print("evaluated", model.evaluate(x, y, verbose=0, callbacks=[ours], return_dict=True))
model.fit(x, y, epochs=1, batch_size=8, verbose=0, callbacks=[ours])
assert not {"save", "save_weights"} & set(model.__dict__)
trainvitals.finish()
plain, *_ = fit([])
watched, *_ = fit([ours])
for one, other in zip(plain.get_weights(), watched.get_weights()):
    assert (one == other).all()
fit([ours, Saboteur()])
print("done")
"""


def run_keras(folder: Path, backend: str, *before: str, arguments: tuple[str, ...] = ()) -> str:
    program = folder / "train.py"
    program.write_text(PROGRAM)
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "KERAS_HOME": str(folder / "keras"),
        "TRAINVITALS_AGENT": "0",
        "TRAINVITALS_SUMMARY": "0",
        "TRAINVITALS_DIR": str(folder / "runs"),
        "TRAINVITALS_RUNTIME_DIR": str(folder / "runtime"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*before, sys.executable, str(program), str(folder), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def read(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_fit_is_logged_step_by_step_and_epoch_by_epoch(tmp_path: Path, backend: str) -> None:
    said = run_keras(tmp_path, backend)
    assert "training continues without it" in said  # the saboteur's fit
    descriptions = (tmp_path / "runs").glob("*/*/run.json")
    folder = min(descriptions, key=lambda path: json.loads(path.read_text())["created"]).parent
    rows = read(folder, "training_metrics*")
    steps = {row["step"] for row in rows if "loss" in row}
    assert steps == set(range(1, 11))  # two epochs of three, then one of four in a second fit
    timed = {row["step"] for row in rows if "batch_time" in row}
    assert {3, 6, 10} <= timed <= steps if backend == "jax" else timed == steps
    history = eval(next(line for line in said.splitlines() if line.startswith("history")).partition(" ")[2])
    validated = {row["step"]: row["eval/loss"] for row in rows if "eval/loss" in row and "epoch" in row}
    assert list(validated) == [3, 6]
    assert list(validated.values()) == pytest.approx(history["val_loss"])
    ends = [row["loss"] for row in rows if "learning_rate" in row]
    assert ends[:2] == pytest.approx(history["loss"])
    assert [row["best/eval/loss"] for row in rows if "best/eval/loss" in row][-1] == pytest.approx(
        min(history["val_loss"])
    )
    evaluated = eval(next(line for line in said.splitlines() if line.startswith("evaluated")).partition(" ")[2])
    assert [row["test/mae"] for row in rows if "test/mae" in row] == pytest.approx([evaluated["mae"]])
    events = [row["event"] for row in read(folder, "events*")]
    assert events.count("epoch") == 3
    assert events.count("checkpoint") == 2
    config = json.loads((folder / "run.json").read_text())["config"]
    assert config["backend"] == backend
    assert config["optimizer"]["name"] == "adam"
    assert config["parameters"] == 25


def test_a_fit_without_a_callback_is_logged_under_trainvitals_run(tmp_path: Path) -> None:
    run_keras(tmp_path, "jax", sys.executable, "-m", "trainvitals", "run", "--", arguments=("automatic",))
    (folder,) = [path.parent for path in (tmp_path / "runs").glob("*/*/run.json")]
    rows = read(folder, "training_metrics*")
    assert {row["step"] for row in rows if "loss" in row} == set(range(1, 7))
    assert sum("eval/loss" in row for row in rows) == 2


def test_on_torch_the_phases_and_the_gradient_norm_are_those_of_keras_own_steps(tmp_path: Path) -> None:
    program = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
x, y = np.random.rand(48, 8), np.random.rand(48, 1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")


class Norms(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        squares = [float((v.value.grad ** 2).sum()) for v in model.trainable_variables]
        print("norm", int(model.optimizer.iterations.value), sum(squares) ** 0.5)


for _ in range(2):
    model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_data=(x, y), callbacks=[Norms()])
"""
    (tmp_path / "fit.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "trainvitals", "run", "--", sys.executable, "fit.py"],
        env={**os.environ, "KERAS_BACKEND": "torch", "TRAINVITALS_DIR": str(tmp_path / "runs")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    printed = {int(row[1]): float(row[2]) for row in map(str.split, done.stdout.splitlines()) if row[0] == "norm"}
    assert list(printed) == list(range(1, 13))
    rows = read(tmp_path / "runs", "*/*/training_metrics*")
    assert {row["step"]: row["gradient_norm"] for row in rows if "gradient_norm" in row} == pytest.approx(printed)
    timed = [row["step"] for row in rows if "batch_time" in row]
    assert timed == [row["step"] for row in rows if row.get("optimizer_time", 0) > 0] == list(printed)


def test_what_fails_within_an_update_of_keras_on_torch_is_told_of_once_and_the_update_is_made(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from trainvitals.integrations.keras_torch import Fit

    class Unreadable:
        """A variable of another version of Keras."""

        @property
        def value(self) -> Any:
            raise RuntimeError("it is on no device")

    fit = Fit()
    assert [fit.update([None], [Unreadable()], lambda: "made") for _ in range(3)] == ["made"] * 3
    assert fit.over and capfd.readouterr().err.count("it is on no device") == 1
    with pytest.raises(ZeroDivisionError):  # of the update itself
        fit.update([None], [Unreadable()], lambda: 1 / 0)


def test_the_times_of_batches_on_jax_add_up_to_what_they_took(tmp_path: Path) -> None:
    """JAX returns at once and computes later: the time of a call is not that of a batch."""
    program = """
import time
import keras
import numpy as np
import trainvitals

moments = []


class Ends(keras.callbacks.Callback):  # before ours has seen the end, and after it has seen the begin
    async_safe = True  # else Keras would wait for each batch

    def on_train_batch_end(self, batch, logs=None):
        moments.append(time.perf_counter())


class Begins(keras.callbacks.Callback):
    async_safe = True

    def on_train_batch_begin(self, batch, logs=None):
        moments.append(time.perf_counter())


model = keras.Sequential([keras.layers.Input((512,)), keras.layers.Dense(1024), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((2048, 512), "float32")
ours = trainvitals.KerasCallback(agent=False)
model.fit(x, x[:, 0], batch_size=256, verbose=0)  # compiled
model.fit(x, x[:, 0], batch_size=256, verbose=0, callbacks=[Ends(), ours, Begins()])
print(max(moments) - min(moments), ours.attachment.run.folder)
"""
    (tmp_path / "train.py").write_text(program)
    environment = {**os.environ, "KERAS_BACKEND": "jax", "KERAS_HOME": str(tmp_path), "TRAINVITALS_DIR": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "train.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    whole, folder = done.stdout.split()
    times = [row["batch_time"] for row in read(Path(folder), "training_metrics*") if "batch_time" in row]
    assert sum(times) > float(whole) / 20  # they were a thousandth; of batches that overtook another there is none
