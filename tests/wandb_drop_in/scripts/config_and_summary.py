"""Experiments from the command line: argparse, config by attribute and key, summary, names, tags and notes."""

import argparse

import wandb

parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=32)
parser.add_argument("-e", "--epochs", type=int, default=5)
args = parser.parse_args([])
run = wandb.init(
    project="config_and_summary", config=args, tags=["baseline", "paper1"], notes="My first experiment", group="g"
)
wandb.config.dropout = 0.2
wandb.config["layers"] = [64, 32]
wandb.config.update({"lr": 0.1, "epochs": 4}, allow_val_change=True)
assert wandb.config.epochs == wandb.config["epochs"] == 4 and wandb.config.get("nothing") is None
best = 0.0
for epoch in range(wandb.config.epochs):
    for batch in range(3):
        wandb.log({"batch loss": 1 / (1 + epoch * 3 + batch)}, commit=False)
        wandb.log({"inner": batch})
    accuracy = epoch / 4
    wandb.log({"val": {"accuracy": accuracy, "nested": {"f1": accuracy / 2}}, "epoch": epoch})
    best = max(best, accuracy)
wandb.run.summary["best_accuracy"] = best
wandb.summary.update({"done": True})
assert wandb.run.summary["best_accuracy"] == 0.75 and wandb.summary["inner"] == 2
assert wandb.run.summary["val"]["nested"]["f1"] == 0.375
print(
    "summary", {name: wandb.summary[name] for name in sorted(wandb.summary.keys()) if name[0] != "_" and name != "val"}
)
wandb.finish()
