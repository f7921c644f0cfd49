"""Charts of many runs: how long the server takes to read their curves, and how soon the page has drawn them again when
lines are hidden, shown and pointed at.

python benchmarks/run_charts.py [--runs 200] [--steps 2000]

Needs playwright and Chromium, which draws without a graphics card here.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import apart  # noqa: F401
import httpx
from table import Table, machine

import trainvitals
from web import browser, server

METRICS = ("train/loss", "val/acc")
ROUNDS = 15

# From an action to the second frame after it: the first may have been begun before.
ACT = """action => new Promise(done => {
  const began = performance.now(), frame = requestAnimationFrame;
  action();
  frame(() => frame(() => done(performance.now() - began)));
})"""
HIDE = "document.querySelector('.lines input[type=checkbox]').click()"
# Along the first chart, a little further each time.
POINT = """(() => {
  const over = document.querySelector('.many .u-over'), box = over.getBoundingClientRect();
  window.place = ((window.place ?? 0) + 37) % box.width;
  over.dispatchEvent(new MouseEvent('mousemove',
    { bubbles: true, clientX: box.left + window.place, clientY: box.top + box.height / 2 }));
})()"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as place:
        make_runs(Path(place), arguments.runs, arguments.steps)
        for table in measure(Path(place), arguments.runs, arguments.steps):
            print(table.markdown(), flush=True)
    print(f"load at the end {os.getloadavg()[0]:.1f}")


def make_runs(root: Path, runs: int, steps: int) -> None:
    """None of them sealed: the slowest to read."""
    for number in range(runs):
        run = trainvitals.init(
            project="sweep", name=f"run {number}", config={"lr": 10 ** -(1 + number % 40 / 10), "seed": number // 40},
            dir=root, agent=False, capture_git=False,
        )  # fmt: skip
        for step in range(steps):
            loss = 1 + number / runs + math.exp(-step / 300) + math.sin(step * (number + 7)) / 20
            run.log({"train/loss": loss, "val/acc": 1 / (1 + loss)}, step=step)
        run.finish()


def measure(root: Path, runs: int, steps: int) -> list[Table]:
    with server(root) as (base, process), browser() as chromium:
        httpx.get(f"{base}api/v1/runs", timeout=300)
        answers = []
        for title, names, more in (
            ("first look", METRICS[:1], {}),
            ("the same again", METRICS[:1], {}),
            ("as groups", METRICS[:1], {"group": "experiment"}),
            ("one metric more", METRICS, {}),
        ):
            before = process.cpu_times()
            began = time.perf_counter()
            answer = httpx.get(f"{base}api/v1/curves", params={"name": names, **more}, timeout=300)
            took = time.perf_counter() - began
            after = process.cpu_times()
            spent = after.user + after.system - before.user - before.system
            sent = int(answer.headers["content-length"]) / 1e6
            answers.append([title, len(answer.json()["lines"]), took * 1000, spent * 1000, f"{sent:.2f} MB"])
        drawn = []
        for points in (500, steps):
            page = chromium.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(120_000)
            page.goto(f"{base}#/runs?view=charts&by=run&metric=train/loss&points={points}")
            page.wait_for_selector(".many canvas")
            page.wait_for_timeout(2000)
            devtools = page.context.new_cdp_session(page)
            devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
            for title, action in (("hide or show a line", HIDE), ("point at a line", POINT)):
                times, busy = zip(*(act(page, devtools, action) for _ in range(ROUNDS)), strict=True)
                row = [statistics.median(times), max(times), statistics.median(busy)]
                drawn.append([f"{runs} x {points:,}", title, *row])
            page.close()
    return [
        Table(
            f"Curves of {runs} runs with {steps:,} steps",
            ["asked", "lines", "ms", "of that CPU, ms", "sent"],
            answers,
            note="Runs that are not sealed. Each answer has 500 points per line.",
        ),
        Table(
            "Charts of many runs, drawn again",
            ["lines x points", "action", "median ms", "worst ms", "CPU of the page, median ms"],
            drawn,
            goal="a line is hidden within 100 ms",
            note="From the click to the second frame after it; drawn by the CPU.",
        ),
    ]


def act(page: Any, devtools: Any, action: str) -> tuple[float, float]:
    """Milliseconds until it is drawn, and of the CPU that the page's own thread used until then."""

    def used() -> float:
        found = devtools.send("Performance.getMetrics")["metrics"]
        return next(item["value"] for item in found if item["name"] == "TaskDuration") * 1000

    page.wait_for_timeout(150)
    before = used()
    took = float(page.evaluate(f"({ACT})(() => {action})"))
    return took, used() - before


if __name__ == "__main__":
    main()
