"""Programs that train with the real frameworks, started as a user starts them. Imported by several tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_python(folder: Path, *arguments: str, **environment: str) -> str:
    """Start Python in `folder`, with the runs below it; it must end well and be watched. What it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            **os.environ,
            "TRAINVITALS_AGENT": "0",
            "TRAINVITALS_SUMMARY": "0",
            "TRAINVITALS_DIR": str(folder / "runs"),
            "TRAINVITALS_RUNTIME_DIR": str(folder / "runtime"),
            "OMP_NUM_THREADS": "1",
            **environment,
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "continues without it" not in done.stderr
    return done.stdout


def run_automatically(folder: Path, *arguments: str) -> list[Path]:
    """The same under `trainvitals run`. The folders of the runs that were made."""
    run_python(folder, "-m", "trainvitals", "run", "--", sys.executable, *arguments)
    return find_runs(folder)


def find_runs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "runs").glob("*/*/run.json"))


def rows_of(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()]


GPT2 = """
tokens = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 16
model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0))
"""
"""A tiny model for Transformers, and 16 samples for it."""

LINE = """
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
"""
"""A tiny model for Lightning."""
