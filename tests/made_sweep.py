"""A sweep of simulated runs, whose results follow from their configuration in a known way."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import made_runs
import numpy as np

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.status import Status

OPTIMIZERS = ("adam", "sgd", "lion")


def make_sweep(root: Path, runs: int, *, steps: int = 0, seeds: int = 1, project: str = "sweep") -> list[str]:
    """Finished runs, labeled as simulated, `seeds` of each configuration; with curves where there are `steps`. The loss
    depends mostly on `lr` (best at 0.01), less on the optimizer, and not at all on `workers`. Their names, in order."""
    made = np.random.default_rng(20)
    names = []
    config: dict[str, Any] = {}
    for number in range(runs):
        if number % seeds == 0:
            config = {
                "lr": float(f"{10 ** made.uniform(-4, 0):.3g}"),
                "optimizer": OPTIMIZERS[int(made.integers(3))],
                "model": {"width": int(2 ** made.integers(5, 10))},
                "workers": int(made.integers(1, 9)),
            }
        level = (
            0.5
            + 0.4 * (math.log10(config["lr"]) + 2) ** 2
            + {"adam": 0.0, "sgd": 0.4, "lion": 0.1}[config["optimizer"]]
        )
        name = f"run-{number:04d}"
        folder = made_runs.make_run(
            root / project / name, name=name, project=project, simulated=True, tags=[f"batch-{number % 2}"],
            config={**config, "seed": number % seeds},
        )  # fmt: skip
        noise = made.normal(0.0, 0.05, max(steps, 1))
        loss = level + 3.0 * np.exp(-np.arange(max(steps, 1)) / max(steps / 5, 1)) + noise
        last = float(loss[-1]) if steps else level + float(noise[0])
        summary = {"train/loss": _summary(last, steps), "val/acc": _summary(1.0 / (1.0 + last), steps)}
        if steps:
            summary["epoch"] = _summary((steps - 1) / 10, steps)
        status = {"attempt": 1, "state": "finished", "host": f"node{number % 4}", "summary": summary}
        run_folder.write_status(folder, Status.parse(status))
        if steps:
            rows = (
                {"step": at, "epoch": at / 10, "train/loss": float(y), "val/acc": 1.0 / (1.0 + float(y))}
                for at, y in enumerate(loss)
            )
            made_runs.write(folder, rows)
        names.append(name)
    return names


def _summary(last: float, steps: int) -> dict[str, float]:
    return {"last": last, "last_step": max(steps - 1, 0), "count": max(steps, 1), "low": last, "high": last}
