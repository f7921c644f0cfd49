"""What alerts cost and how soon they come: `python benchmarks/alerts.py [--quick]`.

CPU seconds of this process, best of three, so that a busy machine blurs little. The last part runs a real agent, a real
training and a real receiver, and needs a C compiler for the fake GPUs.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from trainvitals import catalog
from trainvitals.alerts import builtin, windows
from trainvitals.alerts.engine import Engine, Point
from trainvitals.alerts.language import Window
from trainvitals.alerts.rules import assemble, parse_rules

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "alerts")]


QUICK = "--quick" in sys.argv


def best(work: Any, times: int = 3) -> float:
    found = []
    for _ in range(times):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def measure_windows() -> None:
    print("one function, one new point and one question, µs:")
    print(f"  {'window':>12}" + "".join(f"{n:>10,}" for n in (100, 1_000, 10_000)))
    for name in ("mean", "std", "min", "median", "quantile", "slope", "change"):
        shown = []
        for length in (100, 1_000, 10_000):
            memory = windows.create(name, Window(steps=length), 0.9)
            ask = windows.question(name, memory, 0.9)
            for index in range(2 * length):
                memory.add((index * 7919 % 1009) / 7, index, index, index)

            def work(memory: Any = memory, ask: Any = ask, length: int = length) -> None:
                for index in range(2 * length, 2 * length + 20_000):
                    memory.add((index * 7919 % 1009) / 7, index, index, index)
                    ask(index)

            shown.append(best(work) / 20_000 * 1e6)
        print(f"  {name:>12}" + "".join(f"{value:>10.2f}" for value in shown))


def measure_many() -> None:
    """50 rules, 64 GPUs x 20 metrics at 10 Hz, a trainer at 1,000 steps/s: one second of it."""
    names = [row.name for row in catalog.GPU if row.kind != "text"][:20]
    rules = [
        {"name": f"gpu{n}", "when": f"gpu[*].{names[n % 20]} > 2 * median(gpu[*].{names[n % 20]}, {50 + n})"}
        for n in range(25)
    ] + [{"name": f"loss{n}", "when": f"loss{n % 5} > 2 * median(loss{n % 5}, {100 + n})"} for n in range(25)]
    engine = Engine(parse_rules(rules, {}))
    start = 1_800_000_000.0
    gpu_rows = [
        Point("gpu", {"gpu_index": gpu}, {name: float(50 + gpu + k) for k, name in enumerate(names)}, start)
        for gpu in range(64)
    ]
    step_row = {f"loss{n}": 1.0 for n in range(5)}
    seconds = 3 if QUICK else 10

    def gpus() -> None:
        for tick in range(10 * seconds):
            for row in gpu_rows:
                engine.feed(row._replace(time=start + tick / 10))

    def steps() -> None:
        for step in range(1000 * seconds):
            engine.feed(Point("training", {"rank": 0}, step_row, start + step / 1000, step))

    gpus(), steps()
    cost_gpu, cost_step = best(gpus) / seconds, best(steps) / seconds
    points = 64 * 20 * 10
    print("50 rules, 64 GPUs x 20 metrics at 10 Hz, 1,000 steps/s:")
    print(f"  GPUs:    {cost_gpu / points * 1e6:.2f} µs per point, {cost_gpu * 100:.1f} % of a core")
    print(f"  trainer: {cost_step / 5000 * 1e6:.2f} µs per point, {cost_step * 100:.1f} % of a core")
    judged = 640 * 25 + 1000 * 25
    print(f"  {judged / (cost_gpu + cost_step):,.0f} rules judged per second of CPU")


def measure_defaults() -> None:
    import curves

    curves.KEPT["bench"] = curves.synthetic(1, "cosine", 0.06, "power")[:2000]
    points = list(curves.play(1, "bench"))
    rules = assemble(builtin.RULES, [], builtin.THRESHOLDS, {})
    wide = []
    for point in points:
        if point.table == "gpu":
            if point.labels["gpu_index"] == 0:
                wide += [point._replace(labels={"gpu_index": n, "gpu_uuid": f"GPU-{n}"}) for n in range(8)]
        elif point.table != "training":
            wide.append(point)
    seconds = int(2000 * curves.STEP_SECONDS)

    def host() -> None:
        engine = Engine(rules, context={"host": "h"}, enrich=builtin.enrich)
        last = 0
        for point in wide:
            engine.feed(point)
            if int(point.time) != last:
                last = int(point.time)
                engine.tick(point.time)

    steps = [point for point in points if point.table == "training"]

    def training() -> None:
        engine = Engine(rules, context={"host": "h"}, enrich=builtin.enrich)
        for point in steps:
            engine.feed(point)

    print(f"the {len(rules)} default rules:")
    print(f"  8 GPUs, host, process at 1 Hz: {best(host) / seconds * 100:.3f} % of a core (goal: 0.5 %)")
    cost = best(training) / len(steps)
    print(
        f"  a line of 8 metrics: {cost * 1e6:.0f} µs; the agent judges at most 20 a second of a rank by them:",
        end=" ",
    )
    print(f"{cost * 2000:.2f} % of a core")


class Receiver:
    def __init__(self) -> None:
        self.told: dict[str, float] = {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.told.setdefault(f"{body['rule']} {body['kind']}", time.time())
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait(self, what: str, seconds: float = 120.0) -> float:
        deadline = time.time() + seconds
        while what not in self.told and time.time() < deadline:
            time.sleep(0.01)
        return self.told.get(what, float("nan"))


TRAINING = """
import sys, time, trainvitals
run = trainvitals.init(project="p", summary=False)
print(run.folder, flush=True)
for step in range(10**9):
    run.log({"loss": float("nan") if (run.folder / "nan").exists() else 1.0}, step=step)
    time.sleep(0.05)
"""


def measure_delays() -> None:
    from fake_nvml import FakeNvml, build

    print("from the fault to the message, s (agent at 1 Hz, two fake GPUs, a webhook; goal: under 3 s):")
    folder = Path(tempfile.mkdtemp())
    fake = FakeNvml(build(folder / "built"), folder / "fake")
    fake.script("count = 2\ngpu.*.temp_gpu = 60\ngpu.*.fan_speed = 50")
    receiver = Receiver()
    environment = {
        **fake.env(),
        "TRAINVITALS_RUNTIME_DIR": str(folder / "runtime"),
        "TRAINVITALS_DIR": str(folder / "runs"),
        "TRAINVITALS_ALERTS_NOTIFY": f"http://127.0.0.1:{receiver.server.server_address[1]}/hook",
        "TRAINVITALS_AGENT": "0",
        "TRAINVITALS_STALL_AFTER": "2s",
        "TRAINVITALS_STALL_FACTOR": "1",
    }
    agent = subprocess.Popen([sys.executable, "-m", "trainvitals.agent"], env=environment)
    training = subprocess.Popen([sys.executable, "-c", TRAINING], env=environment, stdout=subprocess.PIPE, text=True)
    assert training.stdout is not None
    run = Path(training.stdout.readline().strip())
    time.sleep(5)
    script = "count = 2\ngpu.*.temp_gpu = 60\n"
    faults: list[tuple[str, Any]] = [
        ("loss_not_finite", lambda: (run / "nan").touch()),
        ("gpu_temperature_limit", lambda: fake.script(script + "gpu.0.temp_gpu = 97\n")),
        ("gpu_lost", lambda: fake.script(script + "err.*.1 = 15\n")),
        ("training_stalled", lambda: training.send_signal(signal.SIGSTOP)),
        ("process_died", lambda: (training.send_signal(signal.SIGCONT), training.kill())),
    ]
    for rule, fault in faults:
        began = time.time()
        fault()
        delay = receiver.wait(f"{rule} firing") - began
        note = " (stall_after is 2 s here)" if rule == "training_stalled" else ""
        print(f"  {rule:<24}{delay:.2f}{note}")
        if rule == "loss_not_finite":
            (run / "nan").unlink()
    rss = Path(f"/proc/{agent.pid}/status").read_text().split("VmRSS:")[1].split()[0]
    print(f"  the agent's memory: {int(rss) / 1024:.0f} MB")
    agent.terminate()
    agent.wait()
    training.wait()


if __name__ == "__main__":
    measure_windows()
    measure_many()
    measure_defaults()
    if os.name == "posix":
        measure_delays()
