"""What the agent costs beside a training, with eight fake GPUs, next to nvitop on the same fake driver.

    python benchmarks/agent_cost.py [--seconds 20]

Needs gcc: the GPUs are tests/sources/fake_nvml.c, loaded by the real NVIDIA binding, so what a real driver takes is not
in these figures.
"""

from __future__ import annotations

import argparse
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from table import Table

SOURCE = Path(__file__).parent.parent / "tests" / "sources" / "fake_nvml.c"
TRAINING = """
import sys, time, trainvitals
with trainvitals.init(interval=float(sys.argv[1]), capture_git=False) as run:
    step, end = 0, time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        time.sleep(float(sys.argv[3]))
        run.log({"loss": 1 / (step + 1), "learning_rate": 1e-3, "gradient_norm": 1.0}, step=step)
        step += 1
"""


def build(folder: Path) -> None:
    command = ["gcc", "-O2", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([*command, "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE), "-lm"], check=True)


def watch(process: psutil.Process, seconds: float) -> tuple[float, float]:
    """(per cent of a core, MB resident) over `seconds`, after five to settle."""
    time.sleep(5)
    before = process.cpu_times()
    begin = time.monotonic()
    time.sleep(seconds)
    after = process.cpu_times()
    used = (after.user + after.system) - (before.user + before.system)
    return 100 * used / (time.monotonic() - begin), process.memory_info().rss / (1 << 20)


def measure_agent(env: dict[str, str], interval: float, pause: float, seconds: float) -> tuple[float, float]:
    words = [str(interval), str(seconds + 12), str(pause)]
    training = subprocess.Popen([sys.executable, "-c", TRAINING, *words], env=env)
    runtime = Path(env["TRAINVITALS_RUNTIME_DIR"])
    deadline = time.monotonic() + 30
    while not (runtime / "agent.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    import json

    agent = psutil.Process(json.loads((runtime / "agent.json").read_text())["pid"])
    figures = watch(agent, seconds)
    training.wait()
    agent.terminate()
    psutil.wait_procs([agent], timeout=10)
    shutil.rmtree(runtime, ignore_errors=True)
    return figures


def measure_nvitop(env: dict[str, str], interval: float, seconds: float) -> tuple[float, float]:
    """nvitop draws a screen, so it gets a terminal whose output is read away."""
    own, theirs = pty.openpty()
    program = shutil.which("nvitop", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program
    process = subprocess.Popen(
        [program, "-m", "full", "--interval", str(max(interval, 0.25))],
        env={**env, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "45"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )

    def drain() -> None:
        try:
            while os.read(own, 1 << 16):
                pass
        except OSError:
            return

    threading.Thread(target=drain, daemon=True).start()
    try:
        return watch(psutil.Process(process.pid), seconds)
    finally:
        process.kill()
        process.wait()


def bench(seconds: float = 20) -> Table:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        build(folder)
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": place,
            "FAKE_NVML_COUNT": "8",
            "TRAINVITALS_DIR": f"{place}/runs",
            "TRAINVITALS_RUNTIME_DIR": f"{place}/runtime",
        }
        rows = []
        for rate, interval, pause in (("1 Hz", 1.0, 0.05), ("10 Hz", 0.1, 0.05), ("1 Hz", 1.0, 0.002)):
            cpu, memory = measure_agent(env, interval, pause, seconds)
            what = f"trainvitals agent, {rate}: 8 GPUs, host, processes, alerts, {1 / pause:.0f} steps/s"
            rows.append([what, f"{cpu:.2f} %", f"{memory:.0f}"])
        for rate, interval in (("1 Hz", 1.0), ("4 Hz, its fastest", 0.25)):
            cpu, memory = measure_nvitop(env, interval, seconds)
            rows.append([f"nvitop, {rate}: 8 GPUs on a screen", f"{cpu:.2f} %", f"{memory:.0f}"])
    return Table(
        "The agent beside a training",
        ["what", "of one core", "MB resident"],
        rows,
        goal="1 Hz under 1 % of a core and 60 MB, 10 Hz under 5 %",
        note="Fake driver: the time a real driver takes is not included.",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    print(bench(parser.parse_args().seconds).markdown())
