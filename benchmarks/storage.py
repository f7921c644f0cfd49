"""Bytes per scalar, and reading one metric back to 2,000 points out of runs of 1e5, 1e6 and 1e7 steps.

python benchmarks/storage.py [--steps 1e5 1e6 1e7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import apart  # noqa: F401
import numpy as np
from table import Table

import trainvitals
from trainvitals.journal import layout, segment_writer
from trainvitals.journal.reader import RunReader


def values(steps: int) -> dict[str, np.ndarray]:
    """Ten metrics as a training gives them: float32 made double, rounded timings, a smooth schedule."""
    random = np.random.default_rng(0)
    step = np.arange(steps)
    return {
        "loss": np.float32(np.exp(-step / steps * 5) + random.normal(0, 0.05, steps)).astype(float),
        "gradient_norm": np.float32(random.lognormal(0, 0.3, steps)).astype(float),
        "accuracy": np.float32(1 - np.exp(-step / steps * 5)).astype(float),
        "learning_rate": 5e-4 * (1 + np.cos(step / steps * 3.14)),
        "batch_time": np.round(random.normal(2e-3, 1e-4, steps), 6),
        "data_time": np.round(random.normal(2e-4, 1e-5, steps), 6),
        "throughput_samples_per_sec": np.round(random.normal(16_000, 500, steps), 1),
        "epoch": np.floor(step / 10_000),
        "memory_allocated_mb": np.full(steps, 1234.5),
        "memory_reserved_mb": np.full(steps, 2000.0),
    }


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def bench(counts: list[int]) -> Table:
    rows = []
    for steps in counts:
        with tempfile.TemporaryDirectory() as place:
            run = trainvitals.init(dir=place, agent=False, capture_git=False)
            columns = values(steps)
            names = list(columns)
            for begin in range(0, steps, 100_000):
                block = np.stack([columns[name][begin : begin + 100_000] for name in names], axis=1).tolist()
                for offset, row in enumerate(block):
                    run.log(dict(zip(names, row, strict=True)), step=begin + offset)
            run.finish()
            raw = size(run.folder)
            begin_seal = time.perf_counter()
            files = [path for _, suffix, path in layout.list_files(run.folder) if suffix == ".jsonl"]
            for path in [path for path in files if path.name.startswith("training")]:
                segment_writer.seal(path)
            sealing = time.perf_counter() - begin_seal
            sealed = size(run.folder)
            reader = RunReader(run.folder)
            reader.series(["epoch"], max_points=2000)  # the process is warm: DuckDB is imported, files are known
            times = []
            for name in ("loss", "gradient_norm", "accuracy", "batch_time", "data_time"):
                begin = time.perf_counter()
                (series,) = reader.series([name], max_points=2000)
                times.append((time.perf_counter() - begin) * 1e3)
                assert series.total == steps and len(series.x) <= 2000
            begin = time.perf_counter()
            reader.series(["loss"], max_points=2000, start=steps * 0.4, end=steps * 0.41)
            zoom = (time.perf_counter() - begin) * 1e3
        rows.append([f"{steps:,}", raw / steps / 10, sealed / steps / 10, sealing, statistics.median(times), zoom])
    return Table(
        "Storage and read-back (10 metrics a step)",
        ["steps", "B/scalar live", "B/scalar sealed", "sealing s", "one metric to 2,000 points ms", "zoom to 1 % ms"],
        rows,
        goal="1e6 steps under 50 ms, 1e7 under 300 ms",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=float, nargs="+", default=[1e5, 1e6, 1e7])
    os.environ["TRAINVITALS_SUMMARY"] = "0"
    print(bench([int(count) for count in parser.parse_args().steps]).markdown())
