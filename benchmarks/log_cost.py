"""What log() of ten scalars costs the loop: p50, p99, p99.9, and how much slower a 2 ms step gets.

    python benchmarks/log_cost.py [--rounds 3]

Each peer runs in a process of its own, the peers take turns, and the median round counts: ratios are what to trust.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import apart  # noqa: F401
from peers import PEERS
from table import Table

WARM_UP = 500


def measure(peer: str, folder: Path) -> dict[str, float]:
    """In this process: the tight loop, then the 2 ms loop with and without logging, interleaved."""
    start, steps = PEERS[peer]
    log, finish = start(folder)
    metrics = {f"metric_{number}": 0.1234567 * number + 1e-3 for number in range(10)}
    clock = time.perf_counter_ns
    for step in range(WARM_UP if steps > WARM_UP else 20):
        log(step, metrics)
    times = []
    for step in range(steps):
        metrics["metric_0"] = step * 0.5
        begin = clock()
        log(step, metrics)
        times.append(clock() - begin)
    times.sort()

    # A step is a fixed amount of work of about 2 ms, not a wait: what the logger takes away must show.
    data = os.urandom(1 << 20)

    def work() -> None:
        hashlib.sha256(data[:work_bytes]).digest()

    begin = clock()
    hashlib.sha256(data).digest()
    work_bytes = min(int(len(data) * 2_000_000 / (clock() - begin)), len(data))
    bare, logged = [], []
    for step in range(400):
        begin = clock()
        work()
        bare.append(clock() - begin)
        begin = clock()
        work()
        log(step, metrics)
        logged.append(clock() - begin)
    begin = clock()
    finish()
    return {
        "p50": times[len(times) // 2] / 1e3,
        "p99": times[int(len(times) * 0.99)] / 1e3,
        "p99.9": times[int(len(times) * 0.999)] / 1e3,
        "slower": 100 * (statistics.median(logged) / statistics.median(bare) - 1),
        "finish": (clock() - begin) / 1e9,
    }


def bench(rounds: int = 3) -> Table:
    results: dict[str, list[dict[str, float]]] = {peer: [] for peer in PEERS}
    skipped: dict[str, str] = {}
    for _ in range(rounds):
        for peer in PEERS:
            if peer in skipped:
                continue
            with tempfile.TemporaryDirectory() as folder:
                done = subprocess.run(
                    [sys.executable, __file__, "--measure", peer, folder],  # peers print; the result goes to a file
                    capture_output=True, text=True, check=False, env={**os.environ, "HOME": folder},
                )  # fmt: skip
                result = Path(folder) / "result.json"
                if done.returncode != 0 or not result.exists():
                    skipped[peer] = (done.stderr.strip().splitlines() or ["?"])[-1][:100]
                    continue
                results[peer].append(json.loads(result.read_text()))
    medians = {
        peer: {key: statistics.median(item[key] for item in found) for key in found[0]}
        for peer, found in results.items()
        if found
    }
    floor = medians["orjson + os.write (floor)"]["p50"]
    ours = medians["trainvitals"]["p50"]
    rows = [
        [peer, m["p50"], m["p99"], m["p99.9"], f"{m['p50'] / floor:.2f}x", f"{m['p50'] / ours:.1f}x",
         f"{m['slower']:.1f} %", m["finish"]]
        for peer, m in medians.items()
    ]  # fmt: skip
    return Table(
        "log() of ten scalars",
        [
            "tracker",
            "p50 µs",
            "p99 µs",
            "p99.9 µs",
            "p50 against the floor",
            "p50 against ours",
            "2 ms step slower by",
            "finish() s",
        ],
        rows,
        goal="at most 1.5x the floor; 100x faster than torch's SummaryWriter, 5x than trackio; 2 ms step under 1 %",
        note="; ".join(f"skipped: {peer} ({why})" for peer, why in skipped.items()),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=2, metavar=("PEER", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        place = Path(arguments.measure[1])
        (place / "result.json").write_text(json.dumps(measure(arguments.measure[0], place)))
    else:
        print(bench(arguments.rounds).markdown())
