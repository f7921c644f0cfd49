"""Distributed data-parallel training; each rank writes its own lines into one run.

    torchrun --nproc-per-node=4 examples/ddp.py

Uses NCCL on GPUs and gloo on CPUs.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import trainvitals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    numbers = torch.randn(1024, 8)
    data = TensorDataset(numbers, numbers.sum(dim=1, keepdim=True))
    sampler: DistributedSampler[object] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    with trainvitals.init(project="ddp", config={**vars(args), "world_size": size}) as run:
        run.watch(model, optimizer, loader)
        step = 0
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            for inputs, targets in loader:
                loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log({"loss": loss, "epoch": epoch}, step=step)
                step += 1
        if rank == 0:
            print(f"{size} ranks, {step} steps each, recorded in {run.folder}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
