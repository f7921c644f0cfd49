"""What importing costs, and how soon a command answers.

python benchmarks/startup.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from table import Table


def milliseconds(command: list[str], rounds: int, env: dict[str, str]) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def bench(rounds: int = 15) -> Table:
    with tempfile.TemporaryDirectory() as place:
        env = {**os.environ, "TRAINVITALS_DIR": f"{place}/runs", "TRAINVITALS_RUNTIME_DIR": f"{place}/runtime"}
        script = "import trainvitals\nfor n in range(20):\n trainvitals.init(agent=False, capture_git=False).finish()"
        subprocess.run([sys.executable, "-c", script], check=True, env=env, stderr=subprocess.DEVNULL)
        bare = milliseconds([sys.executable, "-c", "pass"], rounds, env)
        imported = milliseconds([sys.executable, "-c", "import trainvitals"], rounds, env)
        program = [sys.executable, "-m", "trainvitals"]
        rows = [
            ["python -c pass", bare, ""],
            ["import trainvitals", imported, f"{imported - bare:.1f} ms over bare Python"],
            ["trainvitals --help", milliseconds([*program, "--help"], rounds, env), ""],
            ["trainvitals runs (20 runs)", milliseconds([*program, "runs"], rounds, env), ""],
        ]
    return Table(
        "Start-up",
        ["command", "median ms", ""],
        rows,
        goal="import under 30 ms over bare Python; --help and runs under 150 ms",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    print(bench(parser.parse_args().rounds).markdown())
