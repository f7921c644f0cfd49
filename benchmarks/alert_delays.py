"""From the fault to the message, for every built-in rule: `python benchmarks/alert_delays.py [--quick] [--full]`.

A real agent at 1 Hz, real trainings, a webhook. GPUs are tests/sources/fake_nvml.c behind the real NVIDIA binding, so a
C compiler is needed; faults of a training are in what it logs, in the files and memory it takes, and in signals to its
processes; the host's values are replaced where the agent reads them. Rules that look back over minutes are judged with
a thirtieth of their periods, and say so; with --full with their own, which takes 40 minutes. --quick: only the rules
that do not wait.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from table import Table

from trainvitals.alerts import builtin, records
from trainvitals.alerts.language import Call, walk
from trainvitals.alerts.rules import Rule
from trainvitals.conditions import GROUPS, ROWS, Conditions

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fake_nvml import FakeNvml, build

SHRINK = 30
SHRUNK = (
    "gpu_idle", "gpu_low_use", "gpu_oom_soon", "cpu_high", "memory_oom_soon", "disk_full_soon", "host_memory_leak",
)  # fmt: skip
STALL_SECONDS = 2.0
RULES = [builtin.keys_of(row, row.live) for row in ROWS if row.live is not None]

AGENT = """
import json, os, sys, time
from dataclasses import replace
from pathlib import Path
from trainvitals.agent.__main__ import main
from trainvitals.sources import Sample, system

control = Path(sys.argv[1])

def replaced(read):
    def reading(self):
        new = json.loads(control.read_text())
        found = []
        for item in read(self):
            if isinstance(item, Sample):
                values = dict(item.values)
                for name, (start, per_second, since) in new.items():
                    if name in values or (name.startswith("disk") == ("disk_free_gb" in values)):
                        values[name] = max(0.0, start + per_second * (time.time() - since))
                item = replace(item, values=values)
            found.append(item)
        return found
    return reading

for unit in (system.HostUnit, system.DiskSpaceUnit):
    unit.read = replaced(unit.read)
os._exit(main([]))
"""

TRAINING = """
import json, math, os, random, resource, sys, time
import trainvitals

resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
run = trainvitals.init(project="p", summary=False)
print(run.folder, flush=True)
rank = int(os.environ.get("RANK", 0))
files, kept, last_checkpoint, leaking_since = [], [], 0.0, None
for line in range(10**9):
    fault = json.load(open(sys.argv[1]))
    step = 10 * line
    level = 1.0 + 4.0 * math.exp(-step / 2000)
    if "flat_at" in fault:
        level = fault["flat_at"]
    values = {
        "loss": level * math.exp(0.01 * random.gauss(0, 1)) * fault.get("loss_factor", 1.0),
        "learning_rate": 1e-3,
        "gradient_norm": 0.6 * math.exp(0.1 * random.gauss(0, 1)),
        "throughput_samples_per_sec": 640 * math.exp(0.02 * random.gauss(0, 1)),
        "batch_time": 0.05 * (4 if fault.get("uneven") and line % 4 == 0 else 1),
        "data_time": 0.002,
        "forward_time": 0.01 * (1.6 if fault.get("slow_rank") == rank else 1.0) * math.exp(0.01 * random.gauss(0, 1)),
        "memory_allocated_mb": 15000 + 10 * random.gauss(0, 1),
    }
    if fault.get("leak"):
        leaking_since = line if leaking_since is None else leaking_since
        values["memory_allocated_mb"] += 2.0 * (line - leaking_since)
    values.update({name: float(value) for name, value in fault.get("values", {}).items()})
    if fault.get("files") and not files:
        files = [open(os.devnull) for _ in range(220)]
    if fault.get("memory") and len(kept) < 3000:
        kept.append(bytearray(os.urandom(1 << 12) * 50))
    if fault.get("checkpoints") and time.monotonic() - last_checkpoint > 2:
        last_checkpoint = time.monotonic()
        run.event("checkpoint")
    run.log(values, step=step)
    time.sleep(0.05)
"""


class Receiver:
    """A webhook that notes when which rule fired in which run."""

    def __init__(self) -> None:
        self.told: list[tuple[float, str, str]] = []
        outer = self

        class Post(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if body["kind"] == "firing":
                    outer.told.append((time.time(), body["rule"], body["run"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Post)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def when(self, rule: str, run: Path, after: float) -> float | None:
        found = (moment for moment, *told in list(self.told) if told == [rule, run.name] and moment >= after)
        return next(found, None)


class Training:
    """One run: its processes, and the file that says what is wrong with it."""

    def __init__(self, folder: Path, env: Mapping[str, str], ranks: int = 1) -> None:
        folder.mkdir()
        self.control = folder / "control.json"
        self.fault: dict[str, Any] = {}
        self.change()
        self.processes = []
        for rank in range(ranks):
            own = dict(env)
            if ranks > 1:
                own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555", "WORLD_SIZE": str(ranks)}
                own |= {"LOCAL_WORLD_SIZE": str(ranks), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            words = [sys.executable, "-c", TRAINING, str(self.control)]
            process = subprocess.Popen(words, env=own, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            self.run = Path(process.stdout.readline().strip())
            self.processes.append(process)

    def change(self, **fault: Any) -> None:
        self.fault = {**self.fault, **fault}
        new = self.control.with_suffix(".new")
        new.write_text(json.dumps(self.fault))
        new.replace(self.control)

    def signal(self, number: int, rank: int = 0) -> None:
        self.processes[rank].send_signal(number)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


class Scene:
    """The machine, and everything that can go wrong on it."""

    def __init__(self, folder: Path, full: bool) -> None:
        self.receiver = Receiver()
        self.fake = FakeNvml(build(folder / "built"), folder / "fake")
        self.gpu: dict[str, str] = {}
        self.host: dict[str, tuple[float, float, float]] = {}
        self.host_file = folder / "host.json"
        shrunk = [] if full else [shrink(row) for row in RULES if row["name"] in SHRUNK]
        config = folder / "trainvitals.yaml"
        config.write_text(json.dumps({"alerts": {"rules": shrunk}}))
        env = {key: value for key, value in self.fake.env().items() if not key.startswith("TRAINVITALS_")}
        env |= {
            "TRAINVITALS_CONFIG": str(config),
            "TRAINVITALS_RUNTIME_DIR": str(folder / "runtime"),
            "TRAINVITALS_DIR": str(folder / "runs"),
            "TRAINVITALS_AGENT": "0",
            "TRAINVITALS_ALERTS_NOTIFY": self.receiver.url,
            "TRAINVITALS_ALERTS_MIN_SEVERITY": "info",
            "TRAINVITALS_STALL_AFTER": f"{STALL_SECONDS:g}s",
            "TRAINVITALS_STALL_FACTOR": "1",
        }
        self.set_gpu()
        self.set_host(
            cpu_usage_percent=30.0, memory_usage_percent=40.0, memory_available_mb=60000.0, memory_total_mb=128000.0,
            swap_usage_percent=0.0, swap_used_mb=0.0, disk_usage_percent=60.0, disk_free_gb=400.0,
        )  # fmt: skip
        words = [sys.executable, "-P", "-c", AGENT, str(self.host_file)]
        self.agent = subprocess.Popen(words, env=env)
        self.began = time.monotonic()
        every = ",".join(str(index) for index in range(16))  # a GPU that the run does not hold is not its fault
        self.first = Training(folder / "first", {**env, "CUDA_VISIBLE_DEVICES": every})
        # Each run speaks for the machine it is on; here one is enough.
        machine = [
            row.id
            for title, rows in GROUPS
            for row in rows
            if title in ("GPU", "Machine") and row.live is not None and row.id != "host_memory_leak"
        ]
        other = folder / "other.yaml"
        own = [row for row in shrunk if row["name"] == "host_memory_leak"]
        other.write_text(json.dumps({"alerts": {"rules": own, "disable": machine}}))
        env["TRAINVITALS_CONFIG"] = str(other)
        self.second, self.third, self.stopped, self.killed = (
            Training(folder / name, env) for name in ("second", "third", "stopped", "killed")
        )
        self.ranks = Training(folder / "ranks", env, ranks=4)
        self.third.change(checkpoints=True)

    def set_gpu(self, **lines: str | None) -> None:
        """What is wrong with which GPU, under a name of its own; None: all is well again."""
        self.gpu.update({name: line for name, line in lines.items() if line is not None})
        for name in [name for name, line in lines.items() if line is None]:
            self.gpu.pop(name, None)
        well = "count = 16\ngpu.*.temp_gpu = 60\ngpu.*.util_gpu = 80\ngpu.*.power_mw = 300000\n"
        self.fake.script(well + "\n".join(self.gpu.values()))

    def set_host(self, **values: float | tuple[float, float]) -> None:
        """The host's values from now on; with two numbers, the first and what it changes by every second."""
        for name, value in values.items():
            start, slope = value if isinstance(value, tuple) else (value, 0.0)
            self.host[name] = (start, slope, time.time())
        new = self.host_file.with_suffix(".new")
        new.write_text(json.dumps(self.host))
        new.replace(self.host_file)

    def leak_gpu(self) -> str:
        """40 GB used now, 100 MB more each second, in the time of the fake driver."""
        seconds = time.monotonic() - self.began
        return f"gpu.8.mem_used = ramp:{(40 * 1024 - 100 * seconds) * 1024**2:.0f}:{100 * 1024**2}"

    def end(self) -> None:
        trainings = (self.first, self.second, self.third, self.stopped, self.killed, self.ranks)
        for training in trainings:
            training.end()
        self.agent.terminate()
        self.agent.wait(30)


def shrink(row: Mapping[str, Any]) -> dict[str, Any]:
    """The rule with a fraction of its periods."""

    def shorter(text: str) -> str:
        seconds = {"s": 1, "m": 60, "h": 3600}
        return re.sub(r"(?<![\w.])(\d+)([smh])\b", lambda m: f"{int(m[1]) * seconds[m[2]] * 1000 // SHRINK}ms", text)

    changed = {key: shorter(row[key]) for key in ("when", "clear", "for", "clear_for") if key in row}
    lets = {name: shorter(text) for name, text in row.get("let", {}).items()}
    return {**row, **changed, **({"let": lets} if lets else {})}


Fault = tuple[str, Callable[[], object], Callable[[], object] | None]
"""Of which training, how it is put in, how it is taken out again."""


def faults(scene: Scene) -> tuple[dict[str, Fault], dict[str, Fault], dict[str, Fault]]:
    """Rules that do not wait, one after the other; those that wait, side by side; and those whose place was taken."""
    first, second, third, ranks = scene.first, scene.second, scene.third, scene.ranks

    def gpu(name: str, line: str) -> Fault:
        return "first", lambda: scene.set_gpu(**{name: line}), lambda: scene.set_gpu(**{name: None})

    def host(**values: float | tuple[float, float]) -> Fault:
        return "first", lambda: scene.set_host(**values), None

    at_once: dict[str, Fault] = {
        "gpu_temperature_limit": gpu("hot", "gpu.1.temp_gpu = 95"),
        "gpu_xid": ("first", lambda: scene.set_gpu(xid="gpu.2.xid = 48@1"), None),
        "gpu_ecc_uncorrected": (
            "first",
            lambda: scene.set_gpu(ecc="gpu.3.ecc_unc_agg = 1\ngpu.3.ecc_unc_vol = 1"),
            None,
        ),
        "gpu_row_remap_failed": gpu("remap", "gpu.4.remap_failure = 1"),
        "gpu_lost": gpu("lost", "err.*.5 = 15"),
        "gpu_fan_stopped": gpu("fan", "gpu.6.fan_pct = 0\ngpu.6.temp_gpu = 76"),
        "loss_not_finite": (
            "first",
            lambda: first.change(values={"loss": "nan"}),
            lambda: first.change(values={}),
        ),
        "training_stalled": ("stopped", lambda: scene.stopped.signal(signal.SIGSTOP), None),
        "process_died": ("killed", lambda: scene.killed.signal(signal.SIGKILL), None),
    }
    waiting: dict[str, Fault] = {
        "gpu_memory_leak": ("first", lambda: first.change(leak=True), None),
        "gpu_low_use": gpu("low", "gpu.7.util_gpu = 12"),
        "gpu_oom_soon": ("first", lambda: scene.set_gpu(oom=scene.leak_gpu()), None),
        "gpu_idle": gpu("idle", "gpu.9.util_gpu = 0"),
        "gpu_memory_high": gpu("full", "gpu.10.mem_used = 77Gi"),
        "gpu_temperature_high": gpu("warm", "gpu.11.temp_gpu = 85"),
        "gpu_throttled_heat": gpu("heat", "gpu.12.event_reasons = 64"),
        "gpu_throttled_power": gpu("brake", "gpu.13.event_reasons = 128"),
        "gpu_row_remap_pending": gpu("pending", "gpu.14.remap_pending = 1"),
        "cpu_high": host(cpu_usage_percent=97.0),
        "memory_high": host(memory_usage_percent=94.0),
        "memory_oom_soon": host(memory_available_mb=(60000.0, -400.0)),
        "swap_used": host(swap_usage_percent=70.0, swap_used_mb=(1000.0, 10.0)),
        "disk_full_soon": host(disk_free_gb=(400.0, -0.3)),
        "host_memory_leak": ("second", lambda: second.change(memory=True), None),
        "file_descriptors_high": ("first", lambda: first.change(files=True), None),
        "checkpoint_overdue": ("third", lambda: third.change(checkpoints=False), None),
        "loss_plateau": ("third", lambda: third.change(flat_at=2.0), None),
        "learning_rate_low": ("third", lambda: third.change(values={"learning_rate": 1e-9}), None),
        "learning_rate_high": ("first", lambda: first.change(values={"learning_rate": 3.0}), None),
        "straggler": ("ranks", lambda: ranks.change(slow_rank=2), None),
        "step_time_uneven": ("second", lambda: second.change(uneven=True), None),
        "gradient_vanished": ("second", lambda: second.change(values={"gradient_norm": 1e-9}), None),
        "gradient_exploded": (
            "first",
            lambda: first.change(values={"learning_rate": 3.0, "gradient_norm": 40.0}),
            None,
        ),
        "gradient_outlier": ("ranks", lambda: ranks.change(values={"gradient_norm": 9.0}), None),
        "data_bound": ("third", lambda: third.change(values={"learning_rate": 1e-9, "data_time": 0.03}), None),
        "throughput_low": (
            "ranks",
            lambda: ranks.change(values={"gradient_norm": 9.0, "throughput_samples_per_sec": 200.0}),
            None,
        ),
        "loss_spike": ("second", lambda: second.change(loss_factor=4.0), None),
    }
    later: dict[str, Fault] = {
        "disk_space_low": host(disk_free_gb=1.0),
        "rank_lost": ("ranks", lambda: ranks.signal(signal.SIGKILL, 3), None),
    }
    return at_once, waiting, later


SAME_FAULT = {
    "loss_diverging": "loss_spike",
    "loss_above_baseline": "loss_spike",
    "training_hung": "training_stalled",
}
"""Rules that see the fault of another: a loss that jumps up and stays there, a stall that does not end."""


def bench(quick: bool = False, full: bool = False) -> Table:
    rules = {rule.name: rule for rule in builtin.make_rules(Conditions())}
    patience = 3600.0 if full else 240.0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        scene = Scene(Path(place), full)
        at_once, waiting, later = faults(scene)
        began: dict[str, tuple[float, Path]] = {}

        def put_in(rule: str, fault: Fault) -> None:
            began[rule] = (time.time(), getattr(scene, fault[0]).run)
            fault[1]()

        def wait(wanted: list[str]) -> None:
            deadline = time.time() + patience
            while time.time() < deadline and any(scene.receiver.when(name, began[name][1], began[name][0]) is None
                                                 for name in wanted):  # fmt: skip
                time.sleep(0.02)

        try:
            time.sleep(25)  # until there is a history to compare with
            for rule, fault in at_once.items():
                put_in(rule, fault)
                wait([rule])
                if fault[2] is not None:
                    fault[2]()
                time.sleep(1.5)
            if not quick:
                # Some rules judge nothing in the first hundred seconds: lines are looked at 20 times a second.
                time.sleep(max(0.0, 110 - (time.monotonic() - scene.began)))
                for rule, fault in waiting.items():
                    put_in(rule, fault)
                    time.sleep(1.0)
                for rule, other in SAME_FAULT.items():
                    began[rule] = began[other]
                wait(["straggler", "disk_full_soon"])
                for rule, fault in later.items():
                    put_in(rule, fault)
                wait(list(began))
            rows = [
                describe(rules[name], scene, *began[name], shrunk=name in SHRUNK and not full)
                for name in rules
                if name in began
            ]
        finally:
            scene.end()
    return Table(
        "From the fault to the message, s",
        ["rule", "waits, by its definition", "condition true after", "held for", "message after", "without waiting"],
        rows,
        goal="under 3 s for hardware and NaN, without what the rule itself waits for",
        note="Agent at 1 Hz, 16 fake GPUs, six trainings side by side, a webhook; "
        "1 s of each is spent waiting for more of the same. "
        "The last column leaves out how long the condition must hold, and the window over which it looks back. "
        + ("" if full else f"Rules marked * were judged with 1/{SHRINK} of their periods. ")
        + f"`stall_after` is {STALL_SECONDS:g} s here.",
    )


def describe(rule: Rule, scene: Scene, fault: float, run: Path, *, shrunk: bool) -> list[Any]:
    moment = scene.receiver.when(rule.name, run, fault)
    row = next(row for row in RULES if row["name"] == rule.name)
    windowed = any(isinstance(node, Call) and node.window is not None and node.name != "change"
                   for node in walk(rule.condition))  # fmt: skip
    asks = [f"for {row['for']}"] if "for" in row else []
    asks += ["a window"] if windowed else []
    asks += [f"{STALL_SECONDS:g} s without a step"] if rule.name == "training_stalled" else []
    asks += [f"{5 * STALL_SECONDS:g} s without a step"] if rule.name == "training_hung" else []
    asks += ["66 s without one"] if rule.name == "checkpoint_overdue" else []
    name = f"`{rule.name}`{' *' if shrunk else ''}"
    fired = next(
        (
            line
            for line in records.changes(records.read_rows(run))
            if line["rule"] == rule.name and line["state"] == "firing" and records.seconds(line) >= fault - 1
        ),
        None,
    )
    if moment is None or fired is None:
        return [name, ", ".join(asks) or "not", "", "", "none came", ""]
    true_at, fired_at = records.seconds(fired, "since"), records.seconds(fired)
    true_after, held = max(0.0, true_at - fault), fired_at - true_at
    known = {"training_stalled": STALL_SECONDS, "training_hung": 5 * STALL_SECONDS, "checkpoint_overdue": 66.0}.get(
        rule.name, 0.0
    )
    waited = held + (true_after if windowed else min(known, true_after))
    return [name, ", ".join(asks) or "not", true_after, held, moment - fault, moment - fault - waited]


if __name__ == "__main__":
    if os.name != "posix":
        sys.exit("needs signals and a C compiler")
    print(bench("--quick" in sys.argv, "--full" in sys.argv).markdown())
