"""What the terminal dashboard costs, next to nvitop and nvtop on the same fake driver; and how fast it answers.

    python benchmarks/top.py [--seconds 20] [--nvtop PATH]

Needs gcc: the GPUs are tests/sources/fake_nvml.c. Every program gets a terminal of 160 x 45 whose output is read away.
nvtop is used where it is installed or named, and reported as skipped otherwise.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from agent_cost import build
from table import Table

COLUMNS, LINES = 160, 45
INTERVAL = 0.5
STARTS = 5
TRAINING = """
import math, sys, time, trainvitals
run = trainvitals.init(interval=0.5, capture_git=False, config={"total_steps": 100000})
step, end = 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    time.sleep(0.05)
    run.log({"loss": math.exp(-step / 500) + 0.1 * math.sin(step), "learning_rate": 1e-3, "gradient_norm": 1.0,
             "throughput_samples_per_sec": 400.0, "batch_time": 0.05, "forward_time": 0.02, "backward_time": 0.03},
            step=step)
    step += 1
run.finish()
"""
HUNG = "count = 8\ndelay_us.nvmlDeviceGetUtilizationRates.5 = 600000000\n"


class Window:
    """A program in a terminal of its own. Remembers when what was seen first."""

    def __init__(self, command: list[str], env: dict[str, str], marks: tuple[bytes, ...]) -> None:
        own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self._own = own
        self._waiting = list(marks)
        self.seen: dict[bytes, float] = {}
        self.bytes = 0
        self.last = 0.0
        self._tail = b""
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            env={**env, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        while True:
            try:
                data = os.read(self._own, 1 << 16)
            except OSError:
                return
            self.last = time.perf_counter()
            self.bytes += len(data)
            if self._waiting:
                self._tail = (self._tail + data)[-200_000:]
                for mark in [mark for mark in self._waiting if mark in self._tail]:
                    self._waiting.remove(mark)
                    self.seen[mark] = self.last - self.began

    def wait_for(self, mark: bytes, seconds: float = 60.0) -> float:
        deadline = time.monotonic() + seconds
        while mark not in self.seen:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"'{mark.decode()}' was never shown by {self.process.args!r}")
            time.sleep(0.005)
        return self.seen[mark]

    def press(self, key: bytes) -> float | None:
        """Seconds until the terminal gets an answer; None if there was none in two seconds."""
        before = self.last
        began = time.perf_counter()
        os.write(self._own, key)
        while self.last == before:
            if time.perf_counter() - began > 2.0:
                return None
            time.sleep(0.0002)
        return self.last - began

    def watch(self, seconds: float) -> tuple[float, float, float]:
        """(per cent of a core, MB resident, KB/s sent to the terminal), after five seconds to settle."""
        process = psutil.Process(self.process.pid)
        time.sleep(5)
        before, sent, begin = process.cpu_times(), self.bytes, time.monotonic()
        time.sleep(seconds)
        after, spent = process.cpu_times(), time.monotonic() - begin
        used = (after.user + after.system) - (before.user + before.system)
        return 100 * used / spent, process.memory_info().rss / (1 << 20), (self.bytes - sent) / spent / 1024

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)


def measure(command: list[str], env: dict[str, str], first: bytes, whole: bytes, seconds: float) -> list[str]:
    frames, numbers, spent = [], [], []
    for start in range(STARTS):
        window = Window(command, env, (first, whole))
        try:
            frames.append(window.wait_for(first))
            times = psutil.Process(window.process.pid).cpu_times()
            spent.append(times.user + times.system)
            numbers.append(window.wait_for(whole))
            if start == STARTS - 1:
                cpu, memory, sent = window.watch(seconds)
        finally:
            window.close()
    frame, number = statistics.median(frames), statistics.median(numbers)
    used = statistics.median(spent)
    return [
        f"{cpu:.1f} %",
        f"{memory:.0f}",
        f"{frame * 1000:.0f}",
        f"{used * 1000:.0f}",
        f"{number * 1000:.0f}",
        f"{sent:.0f}",
    ]


def measure_beside_agent(env: dict[str, str], seconds: float) -> list[str]:
    training = subprocess.Popen([sys.executable, "-c", TRAINING, str(seconds + 25)], env=env)
    runtime = Path(env["TRAINVITALS_RUNTIME_DIR"])
    deadline = time.monotonic() + 30
    while not (runtime / "latest.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2)
    try:
        return measure(top_command(), env, b"Overview", b"/700W", seconds)
    finally:
        training.kill()
        training.wait()
        agent = psutil.Process(json.loads((runtime / "agent.json").read_text())["pid"])
        agent.terminate()
        psutil.wait_procs([agent], timeout=15)


def top_command() -> list[str]:
    program = Path(sys.executable).with_name("trainvitals")
    return [str(program), "top", "--interval", str(INTERVAL)]


def measure_keys(env: dict[str, str], script: Path | None, presses: int) -> list[str]:
    """How fast a key is answered, with all GPUs well or with one that hangs."""
    environment = {**env, **({"FAKE_NVML_SCRIPT": str(script)} if script is not None else {})}
    window = Window(top_command(), environment, (b"/700W",))
    try:
        window.wait_for(b"/700W")
        time.sleep(5)
        answers = []
        for number in range(presses):
            # Keys that change the whole screen: another page each time.
            answer = window.press(b"2145671"[number % 7 : number % 7 + 1])
            if answer is not None:
                answers.append(answer)
            time.sleep(0.05)
    finally:
        window.close()
    answers.sort()
    p50, p99 = statistics.median(answers), answers[int(len(answers) * 0.99) - 1]
    what = "one GPU hangs" if script is not None else "all GPUs answer"
    return [what, str(len(answers)), f"{p50 * 1000:.1f}", f"{p99 * 1000:.1f}", f"{answers[-1] * 1000:.1f}"]


def find(name: str) -> str | None:
    return shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@contextmanager
def fake_machine() -> Iterator[tuple[dict[str, str], Path]]:
    """(environment, folder) of a machine with eight fake GPUs, no run and no agent."""
    with tempfile.TemporaryDirectory() as place:
        build(Path(place))
        # A user's installed package is compiled; where writing that is forbidden every start would compile anew.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env = {
            **inherited,
            "LD_LIBRARY_PATH": place,
            "FAKE_NVML_COUNT": "8",
            "TRAINVITALS_DIR": f"{place}/runs",
            "TRAINVITALS_RUNTIME_DIR": f"{place}/runtime",
        }
        yield env, Path(place)


def bench_cost(seconds: float = 20, nvtop: str | None = None) -> Table:
    """CPU, memory and start, beside the peers."""
    rows, skipped = [], []
    with fake_machine() as (env, _):
        what = "8 GPUs, host, 6 charts"
        alone = measure(top_command(), env, b"Overview", b"/700W", seconds)
        rows.append([f"trainvitals top, sampling by itself: {what}", *alone])
        rows.append([f"trainvitals top, beside the agent, a live run: {what}", *measure_beside_agent(env, seconds)])
        nvitop, nvtop = find("nvitop"), nvtop or find("nvtop")
        if nvitop:
            command = [nvitop, "-m", "full", "--interval", str(INTERVAL)]
            rows.append(["nvitop: 8 GPUs, 4 small charts", *measure(command, env, b"NVITOP", b"H100", seconds)])
        else:
            skipped.append("nvitop")
        if nvtop:
            command = [nvtop, "-d", str(round(INTERVAL * 10))]
            rows.append(["nvtop: 8 GPUs, 8 charts", *measure(command, env, b"Device", b"MHz", seconds)])
        else:
            skipped.append("nvtop")
    note = "Fake driver: the time a real driver takes is not included."
    if skipped:
        note += f" Skipped, not installed: {', '.join(skipped)}."
    return Table(
        f"The terminal dashboard at {1 / INTERVAL:g} Hz, {COLUMNS} x {LINES}",
        [
            "what",
            "of one core",
            "MB resident",
            f"first frame, ms (median of {STARTS})",
            "CPU used until then, ms",
            "first numbers, ms",
            "KB/s to the terminal",
        ],
        rows,
        goal="at most twice nvitop's CPU; first frame under 500 ms",
        note=note,
    )


def bench_keys(presses: int = 300) -> Table:
    """How fast a key is answered."""
    with fake_machine() as (env, folder):
        script = folder / "hung"
        script.write_text(HUNG)
        rows = [measure_keys(env, None, presses), measure_keys(env, script, presses)]
    return Table(
        "A key to its answer on the terminal dashboard",
        ["while", "keys", "p50 ms", "p99 ms", "worst ms"],
        rows,
        goal="p99 under 50 ms, also while a GPU hangs",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--nvtop", metavar="PATH", help="where nvtop is, if it is not installed")
    arguments = parser.parse_args()
    print(bench_cost(arguments.seconds, arguments.nvtop).markdown())
    print(bench_keys().markdown())
