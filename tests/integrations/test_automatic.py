"""Trainers of the frameworks under `trainvitals run`: watched without a callback, and not twice with one, with the same
result as without us."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from programs import GPT2, LINE, find_runs, rows_of, run_automatically, run_python

END = """
import hashlib, json
weights = b"".join(parameter.detach().numpy().tobytes() for parameter in trainer.model.parameters())
print(json.dumps([losses, hashlib.sha256(weights).hexdigest()]))
"""

TRANSFORMERS = f"""
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
torch.manual_seed(0)
{GPT2}
args = TrainingArguments(sys.argv[1], per_device_train_batch_size=4, num_train_epochs=1, logging_steps=1,
                         save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
callbacks = []
if "explicit" in sys.argv:
    import trainvitals
    callbacks = [trainvitals.TransformersCallback(project="mine")]
trainer = Trainer(model, args, train_dataset=tokens, callbacks=callbacks)
trainer.train()
losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
{END}"""

LIGHTNING = f"""
import sys
import lightning as L
import torch
torch.manual_seed(0)
losses = []
{LINE}
    def on_train_batch_end(self, outputs, batch, index):
        losses.append(outputs["loss"].item())

callbacks = []
if "explicit" in sys.argv:
    import trainvitals
    callbacks = [trainvitals.LightningCallback(project="mine")]
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4)
trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, default_root_dir=sys.argv[1], callbacks=callbacks)
trainer.fit(Line(), loader)
{END}"""

UNSEEN = """
import jax, json, optax
import jax.numpy as jnp
import tensorflow as tf

printed = []
optimizer = optax.adam(0.1)
weights = {"w": jnp.ones((4, 1)), "b": jnp.zeros(1)}
state = optimizer.init(weights)

@jax.jit
def update(weights, state, x):
    loss, gradients = jax.value_and_grad(lambda w: ((x @ w["w"] + w["b"]) ** 2).mean())(weights)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(weights, updates), state, loss

for step in range(5):
    weights, state, loss = update(weights, state, jax.random.normal(jax.random.key(step), (8, 4)))
    printed.append(float(loss))
printed += weights["w"].flatten().tolist()

tf.random.set_seed(0)
w = tf.Variable(tf.ones((4, 1)))
for step in range(5):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.random.normal((8, 4)) @ w) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    printed.append(float(loss))
printed += w.numpy().flatten().tolist()
print(json.dumps(printed))
"""
"""Loops of their own in JAX and TensorFlow: compiled code that calls nobody."""

TRAINERS = pytest.mark.parametrize(
    ("program", "first"), [(TRANSFORMERS, 1), (LIGHTNING, 0)], ids=["transformers", "lightning"]
)


def check_steps(folder: Path, first: int) -> list[Any]:
    """Each step is there once. Their losses."""
    rows = rows_of(folder, "training_metrics*")
    expected = list(range(first, first + 4))
    assert sorted(row["step"] for row in rows if "batch_time" in row) == expected
    assert sorted(row["step"] for row in rows if "loss" in row) == expected
    named = "train_square" if first == 0 else "mean_loss"
    assert sorted(row["step"] for row in rows if named in row) == expected
    assert json.loads((folder / "run.json").read_text())["config"]["parameters"] > 0
    return [row["loss"] for row in sorted(rows, key=lambda row: int(row["step"])) if "loss" in row]


@TRAINERS
def test_with_a_callback_each_step_is_there_once(tmp_path: Path, program: str, first: int) -> None:
    (tmp_path / "train.py").write_text(program)
    (folder,) = run_automatically(tmp_path, "train.py", str(tmp_path / "out"), "explicit")
    check_steps(folder, first)
    assert json.loads((folder / "run.json").read_text())["project"] == "mine"


@TRAINERS
def test_a_trainer_gives_the_same_with_and_without_us_and_its_own_loss_at_every_step(
    tmp_path: Path, program: str, first: int
) -> None:
    (tmp_path / "train.py").write_text(program)
    plain, watched = run_both(tmp_path, "train.py", str(tmp_path / "out"))
    assert watched.splitlines()[-1] == plain.splitlines()[-1]  # before it are times
    losses, _ = json.loads(plain.splitlines()[-1])
    (folder,) = find_runs(tmp_path)
    assert check_steps(folder, first) == pytest.approx(losses, rel=1e-3)  # some print four digits
    assert json.loads((folder / "run.json").read_text())["project"] == "default"


def test_loops_that_no_hook_sees_give_the_same_and_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNSEEN)
    plain, watched = run_both(tmp_path, "train.py")
    assert watched == plain
    (folder,) = find_runs(tmp_path)
    assert not rows_of(folder, "training_metrics*")
    assert "no_training" in [row["event"] for row in rows_of(folder, "events*")]


def run_both(folder: Path, *arguments: str) -> tuple[str, str]:
    """What a program prints, without us and with us."""
    plain = run_python(folder, *arguments)
    return plain, run_python(folder, "-m", "trainvitals", "run", "--", sys.executable, *arguments)
