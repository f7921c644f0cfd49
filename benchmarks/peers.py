"""The trackers that log() is measured beside, each through its own public API.

A peer is a function that takes a folder and returns (log, finish): log(step, metrics) and finish(). Peers that are
not installed are named as skipped, never counted.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Metrics = dict[str, float]
Log = Callable[[int, Metrics], Any]
Finish = Callable[[], Any]


def bare_write(folder: Path) -> tuple[Log, Finish]:
    """The floor of a durable append: orjson and one os.write of the bytes that trainvitals writes."""
    import orjson

    fd = os.open(folder / "bare.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stamp = "2026-11-15T22:36:01.123Z"
    option = orjson.OPT_APPEND_NEWLINE
    row: dict[str, Any] = {"timestamp": stamp, "step": 0}

    def log(step: int, metrics: Metrics) -> None:
        if len(row) == 2:
            row.update(metrics)  # once: putting the row together is not part of the floor
        row["step"] = step
        os.write(fd, orjson.dumps(row, None, option))

    return log, lambda: os.close(fd)


def buffered_json(folder: Path) -> tuple[Log, Finish]:
    """json and a buffered file, as many a script does it; loses its buffer on a kill."""
    file = open(folder / "buffered.jsonl", "w")  # noqa: SIM115

    def log(step: int, metrics: Metrics) -> None:
        file.write(json.dumps({"step": step, **metrics}) + "\n")

    return log, file.close


def trainvitals_(folder: Path) -> tuple[Log, Finish]:
    import trainvitals

    run = trainvitals.init(project="bench", dir=folder, agent=False, capture_git=False)

    def log(step: int, metrics: Metrics) -> None:
        run.log(metrics, step=step)

    return log, run.finish


def trainvitals_shown(folder: Path) -> tuple[Log, Finish]:
    """A run below the cell of a notebook, whose pictures arrive while it logs."""
    from ipykernel.inprocess.manager import InProcessKernelManager

    import trainvitals

    manager = InProcessKernelManager()
    manager.start_kernel()
    run = trainvitals.init(project="bench", dir=folder, agent=False, capture_git=False)
    trainvitals.show(run)
    manager.kernel.shell.events.trigger("post_run_cell", None)  # waits for the first picture, as the end of a cell does

    def log(step: int, metrics: Metrics) -> None:
        run.log(metrics, step=step)

    return log, run.finish


def tensorboard(folder: Path) -> tuple[Log, Finish]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))

    def log(step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def wandb_offline(folder: Path) -> tuple[Log, Finish]:
    os.environ.update({"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder)})
    import wandb

    run = wandb.init(project="bench", dir=str(folder))

    def log(step: int, metrics: Metrics) -> None:
        run.log(metrics, step=step)

    return log, run.finish


def trackio(folder: Path) -> tuple[Log, Finish]:
    os.environ["TRACKIO_DIR"] = str(folder)
    with contextlib.redirect_stdout(None):
        import trackio

        run = trackio.init(project="bench", embed=False)

    def log(step: int, metrics: Metrics) -> None:
        run.log(metrics, step=step)

    def finish() -> None:
        with contextlib.redirect_stdout(None):
            run.finish()

    return log, finish


def mlflow(folder: Path) -> tuple[Log, Finish]:
    import mlflow as client

    client.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    client.start_run()

    def log(step: int, metrics: Metrics) -> None:
        client.log_metrics(metrics, step=step)

    return log, client.end_run


def aim(folder: Path) -> tuple[Log, Finish]:
    import aim as client

    run = client.Run(repo=str(folder), system_tracking_interval=None, capture_terminal_logs=False)

    def log(step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            run.track(value, name=name, step=step)

    return log, run.close


PEERS: dict[str, tuple[Callable[[Path], tuple[Log, Finish]], int]] = {
    # name: (how to start it, how many steps are enough)
    "orjson + os.write (floor)": (bare_write, 20_000),
    "trainvitals": (trainvitals_, 20_000),
    "trainvitals, shown in a notebook": (trainvitals_shown, 500_000),  # long enough for further pictures
    "json, buffered file": (buffered_json, 20_000),
    "trackio": (trackio, 5_000),
    "W&B offline": (wandb_offline, 5_000),
    "torch SummaryWriter": (tensorboard, 2_000),
    "Aim": (aim, 1_000),
    "MLflow sqlite": (mlflow, 200),
}
