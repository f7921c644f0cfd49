"""What `console=tee` adds to a print: processor time of one flushed line to a pipe, without and with it.

python benchmarks/print_cost.py
"""

from __future__ import annotations

import subprocess
import sys

import apart  # noqa: F401
from table import Table, machine

SCRIPT = """
import sys, tempfile, time
import trainvitals
run = trainvitals.init(dir=tempfile.mkdtemp(), agent=False, summary=False, capture_git=False, console=sys.argv[1])
costs = []
for _ in range(7):
    begin = time.process_time()
    for step in range(2000):
        print(f"epoch 3 step {step} | loss 0.2345 | lr 3e-4 | 1234.5 samples/s", flush=True)
    costs.append((time.process_time() - begin) / 2000 * 1e6)
run.finish()
print(min(costs))
"""


def bench() -> Table:
    rows = []
    for setting in ("off", "tee"):
        command = [sys.executable, "-c", SCRIPT, setting]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append([setting, float(done.stdout.splitlines()[-1])])
    return Table("A printed line", ["console", "µs of processor time, best of 7"], rows)


if __name__ == "__main__":
    print(machine())
    print(bench().markdown())
