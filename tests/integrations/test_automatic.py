"""Trainers of the frameworks under `trainvitals run`: watched without a callback, and not twice with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import GPT2, LINE, rows_of, run_automatically

TRANSFORMERS = f"""
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
{GPT2}
args = TrainingArguments(sys.argv[1], per_device_train_batch_size=4, num_train_epochs=1, logging_steps=1,
                         save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
callbacks = []
if "explicit" in sys.argv:
    import trainvitals
    callbacks = [trainvitals.TransformersCallback(project="mine")]
trainer = Trainer(model, args, train_dataset=tokens, callbacks=callbacks)
trainer.train()
assert trainer.state.global_step == 4
"""

LIGHTNING = f"""
import sys
import lightning as L
import torch
{LINE}
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
    (folder,) = run_automatically(tmp_path, "train.py", str(tmp_path / "out"), *(["explicit"] if explicit else []))
    rows = rows_of(folder, "training_metrics*")
    expected = list(range(first, first + 4))
    assert sorted(row["step"] for row in rows if "batch_time" in row) == expected
    assert sorted(row["step"] for row in rows if "loss" in row) == expected
    named = "train_square" if first == 0 else "mean_loss"
    assert sorted(row["step"] for row in rows if named in row) == expected
    saved = json.loads((folder / "run.json").read_text())
    assert saved["config"]["parameters"] > 0
    assert saved["project"] == ("mine" if explicit else "default")
