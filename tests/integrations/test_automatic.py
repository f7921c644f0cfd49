"""Trainers of the frameworks under `trainvitals run`: watched without a callback, and not twice with one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRANSFORMERS = """
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.set_num_threads(1)
tokens = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 8
model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0))
args = TrainingArguments(sys.argv[1], per_device_train_batch_size=2, num_train_epochs=1, logging_steps=1,
                         save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
callbacks = []
if "explicit" in sys.argv:
    import trainvitals
    callbacks = [trainvitals.TransformersCallback(project="mine")]
trainer = Trainer(model, args, train_dataset=tokens, callbacks=callbacks)
trainer.train()
assert trainer.state.global_step == 4
"""

LIGHTNING = """
import sys
import lightning as L
import torch

torch.set_num_threads(1)


class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch[0]).square().mean()
        self.log("train_square", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


callbacks = []
if "explicit" in sys.argv:
    import trainvitals
    callbacks = [trainvitals.LightningCallback(project="mine")]
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4)
trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, default_root_dir=sys.argv[1], callbacks=callbacks)
trainer.fit(Line(), loader)
assert trainer.global_step == 4
"""


@pytest.mark.parametrize("explicit", [False, True], ids=["without a callback", "with a callback"])
@pytest.mark.parametrize(("program", "first"), [(TRANSFORMERS, 1), (LIGHTNING, 0)], ids=["transformers", "lightning"])
def test_each_step_is_there_once(tmp_path: Path, program: str, first: int, explicit: bool) -> None:
    (tmp_path / "train.py").write_text(program)
    command = [sys.executable, "-m", "trainvitals", "run", "--", sys.executable, "train.py", str(tmp_path / "out")]
    done = subprocess.run(
        [*command, *(["explicit"] if explicit else [])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "TRAINVITALS_AGENT": "0",
            "TRAINVITALS_SUMMARY": "0",
            "TRAINVITALS_DIR": str(tmp_path / "runs"),
            "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "runtime"),
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "goes on without it" not in done.stderr
    (folder,) = [path.parent for path in (tmp_path / "runs").glob("*/*/run.json")]
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("training_metrics*")):
        rows += [json.loads(line) for line in path.read_text().splitlines()]
    expected = list(range(first, first + 4))
    assert sorted(row["step"] for row in rows if "batch_time" in row) == expected
    assert sorted(row["step"] for row in rows if "loss" in row) == expected
    named = "train_square" if first == 0 else "mean_loss"
    assert sorted(row["step"] for row in rows if named in row) == expected
    saved = json.loads((folder / "run.json").read_text())
    assert saved["config"]["parameters"] > 0
    assert saved["project"] == ("mine" if explicit else "default")
