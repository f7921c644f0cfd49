"""Flax NNX under `trainvitals run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import rows_of, run_automatically

START = """
import json
import jax
import optax
from flax import nnx
model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
x = jax.random.normal(jax.random.key(0), (8, 4))

def loss_of(model, x):
    return ((model(x) - x.sum(axis=1, keepdims=True)) ** 2).mean()

def train(model, optimizer, x):
    loss, gradients = nnx.value_and_grad(loss_of)(model, x)
    optimizer.update(model, gradients)
    return loss
"""


def test_every_step_inside_nnx_jit_is_there_and_evaluations_are_not(tmp_path: Path) -> None:
    program = f"""{START}
train, evaluate = nnx.jit(train), nnx.jit(loss_of)
losses = []
for step in range(5):
    losses.append(float(train(model, optimizer, x)))
    evaluate(model, x)
json.dump(losses, open("printed.json", "w"))
"""
    (tmp_path / "train.py").write_text(program)
    (run,) = run_automatically(tmp_path, "train.py")
    rows = rows_of(run, "training_metrics*")
    losses = {row["step"]: row["loss"] for row in rows if "loss" in row}
    assert list(losses) == list(range(5))
    assert list(losses.values()) == pytest.approx(json.loads((tmp_path / "printed.json").read_text()))
    assert [row["step"] for row in rows if "batch_time" in row] == list(range(4))  # when the last was over is not known


def test_a_step_inside_a_bare_jax_jit_is_said_to_be_unseen(tmp_path: Path) -> None:
    program = f"""{START}
graph, state = nnx.split((model, optimizer))

@jax.jit
def step(state, x):
    model, optimizer = nnx.merge(graph, state)
    train(model, optimizer, x)
    return nnx.state((model, optimizer))

for _ in range(3):
    state = step(state, x)
"""
    (tmp_path / "train.py").write_text(program)
    (run,) = run_automatically(tmp_path, "train.py")
    assert not rows_of(run, "training_metrics*")
    (event,) = [row for row in rows_of(run, "events*") if row["event"] == "autostart"]
    assert "inside jax.jit are invisible" in event["message"]
