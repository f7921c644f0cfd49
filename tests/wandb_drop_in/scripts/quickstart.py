"""W&B's quickstart: a run as a context manager, config, log without steps."""

import random

import wandb

random.seed(1)
epochs, lr = 10, 0.01
with wandb.init(project="quickstart", config={"learning_rate": lr, "epochs": epochs}) as run:
    offset = random.random() / 5
    print(f"lr: {lr}")
    for epoch in range(2, epochs):
        acc = 1 - 2**-epoch - random.random() / epoch - offset
        loss = 2**-epoch + random.random() / epoch + offset
        run.log({"accuracy": acc, "loss": loss})
