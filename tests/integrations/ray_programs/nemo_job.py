"""A driver as NeMo RL's: the training is in it, with a stand-in for the `Logger`, and the work in actors."""

import sys
import time
from pathlib import Path

import ray

from trainvitals.integrations import nemo_rl


class Logger:
    def __init__(self) -> None:
        self.loggers = []


if __name__ == "__main__":
    address, runs, marker = sys.argv[1:]
    ray.init(address=address, log_to_driver=False)
    ours = nemo_rl.attach(Logger(), project="math", name="nemo", dir=runs)
    ours.log_metrics({"reward": 0.5}, 1, prefix="train", step_finished=True)
    while not Path(marker).exists():  # the test makes it
        time.sleep(0.1)
    ours.finish()
