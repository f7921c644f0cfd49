"""Makes the pictures of the terminal dashboard in docs/images: real captures, by the program itself.

    python docs/make_images.py

Trains a small model for real, in four processes of which one is slow, beside eight simulated GPUs (the pictures say
so), and takes what `trainvitals top` shows of it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
RANKS = 4
SECONDS = 75
TRAINING = """
import os, time
import numpy as np
import trainvitals

rank = int(os.environ["RANK"])
run = trainvitals.init(project="digits", name="two-layer-net", config={"total_steps": 1200, "lr": 0.08},
                       simulate_gpus=8, capture_git=False)
rng = np.random.default_rng(rank)
truth = np.random.default_rng(0).normal(size=(64, 10))
first, second = rng.normal(size=(64, 128)) * 0.15, rng.normal(size=(128, 10)) * 0.1
for step in range(1200):
    began = time.perf_counter()
    x = rng.normal(size=(256, 64)); y = (x @ truth + rng.normal(size=(256, 10)) * 3).argmax(1)
    time.sleep(0.004)
    fetched = time.perf_counter()
    hidden = np.maximum(x @ first, 0); scores = hidden @ second
    p = np.exp(scores - scores.max(1, keepdims=True)); p /= p.sum(1, keepdims=True)
    loss = float(-np.log(p[np.arange(256), y] + 1e-9).mean())
    time.sleep(0.014)
    forward = time.perf_counter()
    p[np.arange(256), y] -= 1; p /= 256
    back = (p @ second.T) * (hidden > 0)
    grads = (x.T @ back, hidden.T @ p)
    time.sleep(0.024 + (0.03 if rank == 2 else 0.0))
    backward = time.perf_counter()
    rate = 0.08 * min(1.0, (step + 1) / 100) * 0.5 * (1 + np.cos(np.pi * step / 1200))
    first -= rate * grads[0]; second -= rate * grads[1]
    time.sleep(0.005)
    end = time.perf_counter()
    run.log({"loss": loss, "learning_rate": rate, "accuracy": float((scores.argmax(1) == y).mean()),
             "gradient_norm": float(np.sqrt(sum((g ** 2).sum() for g in grads))), "epoch": step / 200,
             "throughput_samples_per_sec": 256 / (end - began), "batch_time": end - began,
             "data_time": fetched - began, "forward_time": forward - fetched,
             "backward_time": backward - forward, "optimizer_time": end - backward}, step=step)
    if step % 300 == 299 and rank == 0:
        run.event("checkpoint", f"saved step {step + 1}")
run.finish()
"""
# Name, size, keys, theme.
PICTURES: tuple[tuple[str, tuple[int, int], tuple[str, ...], str], ...] = (
    ("top-160x45", (160, 45), (), "dark"),
    ("top-80x24", (80, 24), (), "dark"),
    ("top-charts", (140, 36), ("2", "enter", *["left"] * 30), "dark"),
    ("top-ranks", (110, 14), ("4",), "dark"),
    ("top-findings", (110, 18), ("6",), "dark"),
    ("top-light", (120, 32), ("2",), "light"),
)


async def take(run: Path, size: tuple[int, int], keys: tuple[str, ...], theme: str) -> str:
    from trainvitals.journal.folder_runs import refer_to
    from trainvitals.settings import resolve
    from trainvitals.views.tui.app import TopApp
    from trainvitals.views.tui.feed import Feed
    from trainvitals.views.tui.options import TopOptions
    from trainvitals.views.tui.palette import BY_NAME

    app = TopApp(Feed(TopOptions(run=refer_to(run), interval=0.5, settings=resolve())), palette=BY_NAME[theme])
    app.title = "trainvitals top"
    async with app.run_test(size=size) as pilot:
        await pilot.pause(2.0)
        for key in keys:
            await pilot.press(key)
        await pilot.pause(2.0)
        while app.snapshot.judged is None:
            await pilot.pause(0.1)
        return app.export_screenshot()


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        os.environ |= {"TRAINVITALS_DIR": f"{place}/runs", "TRAINVITALS_RUNTIME_DIR": f"{place}/runtime"}
        os.environ.pop("NO_COLOR", None)
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", TRAINING],
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(RANKS),
                    "LOCAL_WORLD_SIZE": str(RANKS),
                    "OPENBLAS_NUM_THREADS": "1",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": "29500",
                    "TORCHELASTIC_RUN_ID": "images",
                },
            )
            for rank in range(RANKS)
        ]
        try:
            time.sleep(SECONDS * 0.55)
            (run,) = Path(place, "runs").glob("*/*/run.json")
            for name, size, keys, theme in PICTURES:
                (IMAGES / f"{name}.svg").write_text(asyncio.run(take(run.parent, size, keys, theme)))
        finally:
            for process in ranks:
                process.kill()
                process.wait()
            subprocess.run([sys.executable, "-m", "trainvitals.views.cli.main", "agent", "stop"], check=False)


if __name__ == "__main__":
    main()
