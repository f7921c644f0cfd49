"""A training on a Ray cluster: every worker is a rank of one run, and the cluster is watched.

    python examples/ray_train.py --workers 2

Starts a cluster on this machine unless there is one (`RAY_ADDRESS`).
"""

from __future__ import annotations

import argparse
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

import trainvitals


def train(config: dict[str, Any]) -> None:
    """What every worker runs. Its rank, the run and the end are found without code."""
    run = trainvitals.init(config=config)
    torch.manual_seed(run.rank)
    numbers = torch.randn(512, 8)
    targets = numbers.sum(dim=1, keepdim=True)
    model = prepare_model(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    run.watch(model, optimizer)
    for step in range(config["steps"]):
        loss = nn.functional.mse_loss(model(numbers.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log({"loss": loss}, step=step)
    ray.train.report({"loss": loss.item()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()

    ray.init()
    trainvitals.ray.monitor_cluster(project="ray")
    trainer = TorchTrainer(
        train,
        train_loop_config={"lr": 1e-2, "steps": args.steps},
        scaling_config=ray.train.ScalingConfig(num_workers=args.workers, use_gpu=torch.cuda.is_available()),
        run_config=ray.train.RunConfig(callbacks=[trainvitals.RayTrainCallback(project="ray", name="example")]),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
