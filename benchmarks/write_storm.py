"""log() while another process writes a large checkpoint to the same disk, beside the same append to tmpfs.

python benchmarks/write_storm.py [--gigabytes 10]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import apart  # noqa: F401
from table import Table

import trainvitals

CHECKPOINT = """
import os, sys
block = os.urandom(1 << 24)
with open(sys.argv[1], "wb", buffering=0) as file:
    for _ in range(int(float(sys.argv[2]) * 64)):
        file.write(block)
"""


def bench(gigabytes: float, disk: Path, memory: Path = Path("/dev/shm")) -> Table:
    metrics = {f"metric_{number}": number * 0.37 for number in range(10)}
    clock = time.perf_counter_ns
    rows = []
    with tempfile.TemporaryDirectory(dir=disk) as on_disk, tempfile.TemporaryDirectory(dir=memory) as in_memory:
        runs = {}
        for name, place in (("same disk", on_disk), ("tmpfs", in_memory)):
            runs[name] = trainvitals.init(dir=place, agent=False, capture_git=False)
            trainvitals.trainer.current._current = None  # both are to live at once, which no training needs
        storm = subprocess.Popen([sys.executable, "-c", CHECKPOINT, f"{on_disk}/checkpoint", str(gigabytes)])
        times: dict[str, list[int]] = {name: [] for name in runs}
        step = 0
        while storm.poll() is None:
            for name, run in runs.items():
                begin = clock()
                run.log(metrics, step=step)
                times[name].append(clock() - begin)
            step += 1
            if step % 50 == 0:
                time.sleep(0.002)
        for name, run in runs.items():
            run.finish()
            found = sorted(times[name])
            count = len(found)
            rows.append(
                [
                    name,
                    f"{count:,}",
                    *(found[min(int(count * q), count - 1)] / 1e3 for q in (0.5, 0.99, 0.999)),
                    found[-1] / 1e3,
                ]
            )
    ratio = rows[0][4] / rows[1][4]
    return Table(
        f"log() while {gigabytes:g} GB are written to the same disk",
        ["run folder on", "calls", "p50 µs", "p99 µs", "p99.9 µs", "worst µs"],
        rows,
        goal=f"p99.9 at most 2x that on tmpfs in the same storm; here {ratio:.2f}x",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--disk", type=Path, default=Path(os.environ.get("TMPDIR", "/tmp")))
    arguments = parser.parse_args()
    print(bench(arguments.gigabytes, arguments.disk).markdown())
