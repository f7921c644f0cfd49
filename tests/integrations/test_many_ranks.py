"""The callbacks with two gloo ranks: one run, one file per rank, and resuming together."""

from __future__ import annotations

import json
from pathlib import Path

from programs import GPT2, LINE, find_runs, rows_of, run_python
from waiting import GENTLE_EXIT, free_port

TRANSFORMERS = f"""
import sys
import torch
import torch.distributed
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
import trainvitals
{GPT2}
args = TrainingArguments("out", per_device_train_batch_size=2, max_steps=4, logging_steps=1, save_steps=2,
                         report_to=[], disable_tqdm=True, use_cpu=True)
trainer = Trainer(model, args, train_dataset=tokens, callbacks=[trainvitals.TransformersCallback(project="ranks")])
trainer.train(resume_from_checkpoint=sys.argv[1] if len(sys.argv) > 1 else None)
trainvitals.finish()
torch.distributed.destroy_process_group()
"""

LIGHTNING = f"""
import lightning as L
import torch
import trainvitals
{LINE}
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=2)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                        callbacks=[trainvitals.LightningCallback(project="ranks")])
    trainer.fit(Line(), loader)
"""


def test_ranks_of_a_trainer_share_a_run_and_resume_it_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRANSFORMERS)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py")
    run_python(tmp_path, *torchrun, **GENTLE_EXIT)
    (folder,) = find_runs(tmp_path)
    assert folder.parent.name == "ranks"
    for rank in range(2):
        rows = rows_of(folder, f"training_metrics*.rank{rank}.jsonl")
        assert [row["step"] for row in rows if "batch_time" in row] == [1, 2, 3, 4]
    saved = [row["data"]["path"] for row in rows_of(folder, "events*") if row["event"] == "checkpoint"]
    assert [Path(path).name for path in saved] == ["checkpoint-2", "checkpoint-4"]  # by rank 0 alone
    run_python(tmp_path, *torchrun, str(tmp_path / "out" / "checkpoint-2"), **GENTLE_EXIT)
    assert find_runs(tmp_path) == [folder]
    assert json.loads((folder / "run.json").read_text())["attempt"] == 2
    for rank in range(2):
        rows = rows_of(folder, f"training_metrics*.rank{rank}.attempt2.jsonl")
        assert [row["step"] for row in rows if "batch_time" in row] == [3, 4]
    assert not list(folder.glob("*.attempt3*"))


def test_ranks_that_lightning_starts_itself_share_a_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LIGHTNING)
    # Else it takes one that the kernel chooses, and which may be another's by the time it listens on it.
    run_python(tmp_path, "train.py", MASTER_PORT=str(free_port()), **GENTLE_EXIT)
    (folder,) = find_runs(tmp_path)
    assert folder.parent.name == "ranks"
    for rank in range(2):
        rows = rows_of(folder, f"training_metrics*.rank{rank}.jsonl")
        assert [row["step"] for row in rows if "batch_time" in row] == [0, 1, 2, 3]
        assert [row["step"] for row in rows if "train_square" in row] == [0, 1, 2, 3]
