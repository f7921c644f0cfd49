"""A loop of your own with Hugging Face Accelerate, and the tracker. Nothing is downloaded.

pip install 'trainvitals[accelerate]'
accelerate launch examples/accelerate_loop.py
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainvitals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    accelerator = Accelerator(log_with=trainvitals.AccelerateTracker(project="sums"), gradient_accumulation_steps=2)
    accelerator.init_trackers("sums", config=vars(args))
    torch.manual_seed(0)
    numbers = torch.randn(1024, 8)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(numbers, numbers.sum(dim=1, keepdim=True)), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for epoch in range(args.epochs):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                accelerator.log({"loss": loss.detach(), "epoch": epoch}, step=step)
    run = accelerator.get_tracker("trainvitals", unwrap=True)
    accelerator.print(f"recorded in {run.folder}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
