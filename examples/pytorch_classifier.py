"""A classifier of two spirals in plain PyTorch, watched from inside.

    python examples/pytorch_classifier.py
    trainvitals top

`run.watch` is the only line that a watched loop needs besides `log`.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainvitals


def make_spirals(points: int) -> TensorDataset:
    """Two spirals in the plane, one per class."""
    distance = torch.rand(points)
    label = torch.arange(points) % 2
    angle = 3 * math.pi * distance + math.pi * label
    place = torch.stack([distance * angle.cos(), distance * angle.sin()], dim=1)
    return TensorDataset(place + 0.01 * torch.randn(points, 2), label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    loader = DataLoader(make_spirals(2048), batch_size=args.batch_size, shuffle=True)
    held_out, labels = (tensor.to(device) for tensor in make_spirals(512).tensors)

    with trainvitals.init(project="spirals", config=vars(args)) as run:
        run.watch(model, optimizer, loader)
        step = 0
        for epoch in range(args.epochs):
            for inputs, targets in loader:
                outputs = model(inputs.to(device))
                loss = nn.functional.cross_entropy(outputs, targets.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log({"loss": loss, "epoch": epoch, "learning_rate": args.learning_rate}, step=step)
                step += 1
            with torch.no_grad():
                accuracy = (model(held_out).argmax(dim=1) == labels).float().mean()
            run.log({"eval/accuracy": accuracy}, step=step - 1)
        print(f"accuracy {accuracy:.3f} after {step} steps, recorded in {run.folder}")


if __name__ == "__main__":
    main()
