"""A run folder with a story: a loss that falls, spikes and goes NaN, a rank that is slow, eight GPUs, alerts.

Times and noise are fixed, so what is drawn from it is the same everywhere.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, format_time

START = 1_768_471_200.0  # 2026-01-15 10:00:00 UTC
STEP_SECONDS = 0.4


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with open(path, "ab") as file:
        for row in rows:
            file.write(encode_line(row))


def make_run(
    root: Path,
    name: str = "baseline",
    *,
    steps: int = 300,
    ranks: int = 4,
    gpus: int = 8,
    status: str = "finished",
    start: float = START,
    config: Mapping[str, Any] | None = None,
    process: Mapping[str, Any] | None = None,
) -> Path:
    """The folder of a finished run (or one that says that it is under way)."""
    folder = root / "mnist" / f"20260115-100000-{name}-aaaa"
    run_folder.create(folder)
    end = start + steps * STEP_SECONDS
    details: dict[str, Any] = {
        "format": 1,
        "id": folder.name,
        "project": "mnist",
        "name": name,
        "status": status,
        "attempt": 1,
        "started": format_time(start),
        "config": config if config is not None else {"total_steps": 1000},
        "process": process or {"pid": 1, "host": "node7"},
    }
    if status != "running":
        details["ended"] = format_time(end)
    run_folder.write_run(folder, RunFile.parse(details))
    stamp = time.strftime("%Y%m%d_%H%M%S", time.gmtime(start))
    noise = random.Random(7)
    for rank in range(ranks):
        rows = (training_row(step, rank, start, noise) for step in range(steps))
        write_lines(folder / f"training_metrics_{stamp}.rank{rank}.jsonl", rows)
    seconds = int(steps * STEP_SECONDS)
    gpu_rows = (gpu_row(index, start + second, second, noise) for second in range(seconds) for index in range(gpus))
    write_lines(folder / f"gpu_metrics_{stamp}.host-node7.jsonl", gpu_rows)
    write_lines(
        folder / f"system_metrics_{stamp}.host-node7.jsonl",
        (system_row(start + s, noise) for s in range(seconds)),
    )
    write_lines(folder / f"events_{stamp}.rank0.jsonl", event_rows(start))
    write_lines(folder / f"alerts_{stamp}.jsonl", alert_rows(start))
    return folder


def training_row(step: int, rank: int, start: float, noise: random.Random) -> dict[str, Any]:
    seconds = 0.36 + noise.gauss(0, 0.01) + (0.18 if rank == 2 else 0.0)
    loss = 2.2 * math.exp(-step / 90) + 0.25 + noise.gauss(0, 0.05)
    row = {
        "timestamp": format_time(start + step * STEP_SECONDS),
        "step": step,
        "epoch": step / 200,
        "loss": loss + (1.5 if 150 < step < 157 else 0.0),
        "learning_rate": 1e-3 * min(1.0, (step + 1) / 50),
        "gradient_norm": abs(noise.gauss(1.4, 0.3)) * (9 if 150 < step < 157 else 1),
        "throughput_samples_per_sec": 256 / seconds,
        "batch_time": seconds,
        "data_time": 0.06 * seconds,
        "forward_time": 0.32 * seconds,
        "backward_time": 0.50 * seconds,
        "optimizer_time": 0.12 * seconds,
        "val/accuracy": 1 - math.exp(-step / 150),
    }
    if step == 240:
        row["loss"] = math.nan
    return row


def gpu_row(index: int, moment: float, second: int, noise: random.Random) -> dict[str, Any]:
    return {
        "timestamp": format_time(moment),
        "gpu_index": index,
        "gpu_uuid": f"GPU-{index}",
        "gpu_name": "NVIDIA H100 80GB HBM3",
        "utilization_percent": min(max(92 + noise.gauss(0, 4) - (70 if second % 40 < 3 else 0), 0), 100),
        "memory_used_mb": 60_000 + index * 800,
        "memory_total_mb": 81_559,
        "memory_percent": 73.5 + index,
        "temperature_celsius": 62 + 3 * index,
        "power_draw_watts": 610 + noise.gauss(0, 15),
        "power_limit_watts": 700,
    }


def system_row(moment: float, noise: random.Random) -> dict[str, Any]:
    return {
        "timestamp": format_time(moment),
        "host": "node7",
        "cpu_usage_percent": 40 + noise.gauss(0, 5),
        "cpu_count": 64,
        "memory_usage_percent": 51.0,
        "memory_used_mb": 522_000,
        "memory_total_mb": 1_024_000,
        "disk_read_mb_s": 220.0,
        "disk_write_mb_s": 12.0,
        "network_receive_mb_s": 3.0,
        "network_send_mb_s": 1.5,
    }


def event_rows(start: float) -> list[dict[str, Any]]:
    told = (
        (0, "started", "info", "training begins"),
        (100, "checkpoint", "info", "saved step 100"),
        (240, "nan", "critical", "loss is NaN at step 240"),
    )
    return [
        {
            "timestamp": format_time(start + step * STEP_SECONDS),
            "event": event,
            "severity": severity,
            "message": message,
            "rank": 0,
            "step": step,
        }
        for step, event, severity, message in told
    ]


def alert_rows(start: float) -> list[dict[str, Any]]:
    told = (
        (151, "loss_spike", "warning", "firing", "Loss spike: 2.41 at step 151"),
        (170, "loss_spike", "warning", "resolved", "The loss is back"),
        (240, "loss_not_finite", "critical", "firing", "The loss is NaN since step 240"),
        (250, "gpu_temperature_high", "warning", "firing", "GPU 7 is at 83 °C (limit 80 °C)"),
    )
    return [
        {
            "timestamp": format_time(start + step * STEP_SECONDS),
            "rule": rule,
            "severity": severity,
            "state": state,
            "message": message,
            "values": {"step": step},
        }
        for step, rule, severity, state, message in told
    ]
