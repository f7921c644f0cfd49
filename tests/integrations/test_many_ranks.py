"""The callbacks with two gloo ranks: one run, one file per rank, and resuming together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TRANSFORMERS = """
import sys
import torch
import torch.distributed
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
import trainvitals

torch.set_num_threads(1)
tokens = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 16
model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0))
args = TrainingArguments("out", per_device_train_batch_size=2, max_steps=4, logging_steps=1, save_steps=2,
                         report_to=[], disable_tqdm=True, use_cpu=True)
trainer = Trainer(model, args, train_dataset=tokens, callbacks=[trainvitals.TransformersCallback(project="ranks")])
trainer.train(resume_from_checkpoint=sys.argv[1] if len(sys.argv) > 1 else None)
trainvitals.finish()
torch.distributed.destroy_process_group()
"""

LIGHTNING = """
import lightning as L
import torch
import trainvitals

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


if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=2)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                        callbacks=[trainvitals.LightningCallback(project="ranks")])
    trainer.fit(Line(), loader)
"""


def launch(folder: Path, *command: str) -> None:
    environment = {
        **os.environ,
        "TRAINVITALS_AGENT": "0",
        "TRAINVITALS_DIR": str(folder / "runs"),
        "TRAINVITALS_RUNTIME_DIR": str(folder / "runtime"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "goes on without it" not in done.stderr


def rows_of(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()]


def test_ranks_of_a_trainer_share_a_run_and_resume_it_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRANSFORMERS)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py")
    launch(tmp_path, *torchrun)
    (folder,) = [path.parent for path in (tmp_path / "runs").glob("ranks/*/run.json")]
    for rank in range(2):
        rows = rows_of(folder, f"training_metrics*.rank{rank}.jsonl")
        assert [row["step"] for row in rows if "batch_time" in row] == [1, 2, 3, 4]
    saved = [row["data"]["path"] for row in rows_of(folder, "events*") if row["event"] == "checkpoint"]
    assert [Path(path).name for path in saved] == ["checkpoint-2", "checkpoint-4"]  # by rank 0 alone
    launch(tmp_path, *torchrun, str(tmp_path / "out" / "checkpoint-2"))
    assert len(list((tmp_path / "runs").glob("ranks/*/run.json"))) == 1
    assert json.loads((folder / "run.json").read_text())["attempt"] == 2
    for rank in range(2):
        rows = rows_of(folder, f"training_metrics*.rank{rank}.attempt2.jsonl")
        assert [row["step"] for row in rows if "batch_time" in row] == [3, 4]
    assert not list(folder.glob("*.attempt3*"))


def test_ranks_that_lightning_starts_itself_share_a_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LIGHTNING)
    launch(tmp_path, "train.py")
    (folder,) = [path.parent for path in (tmp_path / "runs").glob("ranks/*/run.json")]
    for rank in range(2):
        rows = rows_of(folder, f"training_metrics*.rank{rank}.jsonl")
        assert [row["step"] for row in rows if "batch_time" in row] == [0, 1, 2, 3]
        assert [row["step"] for row in rows if "train_square" in row] == [0, 1, 2, 3]
