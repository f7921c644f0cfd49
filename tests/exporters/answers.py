"""What the live machine is made of, and what every query must therefore answer.

The driver is scripted and the training logs constants, so the answers are worked out here from those two. What
belongs to the host and to processes is as the agent wrote it into the run folder at the time.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from trainvitals import catalog
from trainvitals.conditions import ROWS
from trainvitals.exporters import names
from trainvitals.exporters.training import BUCKETS

AHEAD = 120.0
"""Seconds after the moment at which what counts whole minutes is asked; until then the last values hold."""
NOBODY = "127.0.0.1:1"
"""A target at which nobody answers."""

# GPU 0 works and reports Xids, 1 is too hot and worn out, 2 is lost, 3 idles while its memory fills, 4 hangs.
SCRIPT = f"""
count = 5
driver = 580.65.06
gpu.*.util_gpu = 90
gpu.*.mem_used = 40Gi
gpu.*.temp_gpu = 71
gpu.*.temp_mem = 78
gpu.*.power_mw = 500000
gpu.*.energy_mj = ramp:1000000:500000
gpu.*.event_reasons = 32
gpu.*.viol_power_ns = ramp:0:250000000
gpu.*.field.251 = ramp:0:100000000
gpu.*.field.252 = ramp:0:20000000
gpu.*.field.253 = ramp:0:30000000
gpu.*.gpm.2 = 83.5
gpu.*.gpm.3 = 41.25
gpu.*.gpm.5 = 62.5
gpu.*.gpm.10 = 37.5
gpu.*.pcie_tx_bytes = ramp:0:838860800
gpu.*.pcie_rx_bytes = ramp:0:524288000
gpu.*.nvlink_tx_kib = ramp:0:2048000
gpu.*.nvlink_rx_kib = ramp:0:1024000
gpu.*.ecc_corr_vol = ramp:0:4
gpu.0.xid = {",".join(f"31@{second}" for second in range(1, 200))}
gpu.1.mem_used = 76Gi
gpu.1.temp_gpu = 89
gpu.1.fan_pct = 0
gpu.1.event_reasons = 128
gpu.1.ecc_unc_vol = ramp:0:2
gpu.1.remap_pending = 1
gpu.1.remap_failure = 1
err.*.2 = 15
gpu.3.util_gpu = 0
gpu.3.mem_used = ramp:8Gi:64Mi
gpu.3.temp_gpu = 60
gpu.3.event_reasons = 1
delay_us.nvmlDeviceGetPowerUsage.4 = 600000000
"""
GPUS = ("0", "1", "3")
"""Those that have values."""


def script_processes(folder: Path) -> str | None:
    """What to add to the script once the ranks run: two of them use a GPU. None before."""
    files = [folder / f"rank{rank}.pid" for rank in (1, 2)]
    pids = [file.read_text() for file in files if file.exists()]
    if len(pids) < 2 or not all(pid.endswith("\n") for pid in pids):
        return None
    return f"gpu.0.procs = C:{int(pids[0])}:4Gi:55\ngpu.1.procs = C:{int(pids[1])}:2Gi:20\n"


PHASES = {"data": 0.005, "transfer": 0.005, "forward": 0.01, "backward": 0.02, "optimizer": 0.005, "other": 0.005}
LOGGED: dict[str, dict[str, float]] = {
    rank: {
        "loss": 0.25, "learning_rate": 3e-4, "gradient_norm": 1.5, "accuracy": 0.75, "epoch": 2.0,
        "throughput_samples_per_sec": 640.0, "throughput_tokens_per_sec": 4096.0,
        "memory_allocated_mb": 1024.0, "memory_reserved_mb": 2048.0,
        "batch_time": 0.05, **{f"{name}_time": seconds for name, seconds in PHASES.items()},
        "val/acc": 0.5, "val.acc": 0.625, "not a number": math.nan,
        "benchmark_latency_ms": 2.0, "benchmark_items_per_sec": 500.0, "benchmark_memory_mb": 96.0,
        "benchmark_disk_mb": 4.0,
    }
    for rank in "012"
}  # fmt: skip
LOGGED["1"] |= {"loss": math.nan, "learning_rate": 2.0, "gradient_norm": 1e-9}
LOGGED["2"] |= {"loss": 0.5, "batch_time": 0.2, "forward_time": 0.16}

# Three ranks, the second short of file descriptors.
TRAINING = f"""
import os, resource, subprocess, sys, time
import trainvitals
from math import nan
if "RANK" not in os.environ:
    for rank in "012":
        place = {{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}}
        subprocess.Popen([sys.executable, __file__], env={{**os.environ, **place}})
    time.sleep(3600)
rank, parent = os.environ["RANK"], os.getppid()
if rank == "1":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
run = trainvitals.init(project="exported", name="live")
if rank == "1":
    held = [open(os.devnull) for _ in range(48)]
values = {LOGGED!r}[rank]
step = 0
while os.getppid() == parent:
    step += 1
    run.log(values, step=step)
    if step == 60:  # by now it is known whose process this is
        with open(f"rank{{rank}}.pid", "w") as file:
            file.write(f"{{os.getpid()}}\\n")
    time.sleep(0.05)
"""

RULES = '[{"name": "of_my_own", "when": "loss > 0.4"}]'
"""What the user watches besides."""

# And one that does ten steps and then no more; whoever wants base units is served beside the others.
STALLED = """
import time
import trainvitals
run = trainvitals.init(
    project="exported", name="stalled", stall_after=1.0, stack_dumps=False,
    prometheus_port={port}, prometheus_names="base",
)
for step in range(10):
    run.log({{"batch_time": 0.001}}, step=step)
time.sleep(3600)
"""

# Catalog metric -> what the driver says, of all GPUs or of each.
GPU: dict[str, float | dict[str, float]] = {
    "utilization_percent": {"0": 90, "1": 90, "3": 0},
    "temperature_celsius": {"0": 71, "1": 89, "3": 60},
    "temperature_limit_celsius": 89,
    "memory_temperature_celsius": 78,
    "memory_total_mb": 80 * 1024,
    "power_draw_watts": 500,
    "power_limit_watts": 700,
    "graphics_clock_mhz": 1755,
    "graphics_clock_max_mhz": 1980,
    "memory_clock_mhz": 2619,
    "fan_speed_percent": {"0": 45, "1": 0, "3": 45},
    "sm_active_percent": 83.5,
    "sm_occupancy_percent": 41.25,
    "tensor_active_percent": 62.5,
    "dram_active_percent": 37.5,
}
GPU_RATES: dict[str, float | dict[str, float]] = {
    "energy_joules": 500,
    "throttle_power_seconds": 0.25,
    "throttle_thermal_seconds": 0.1 + 0.02,
    "throttle_hardware_seconds": 0.02 + 0.03,
    "xid_errors_total": {"0": 1, "1": 0, "3": 0},
    "ecc_corrected_total": 4,
    "ecc_uncorrected_total": {"0": 0, "1": 2, "3": 0},
}
GPU_COUNTED: dict[str, float | dict[str, float]] = {
    "pcie_tx_mb_s": 800,
    "pcie_rx_mb_s": 500,
    "nvlink_tx_mb_s": 2000,
    "nvlink_rx_mb_s": 1000,
}
# What the agent itself makes a rate of, or what changes with time: about this much, and as it wrote it down.
GPU_WRITTEN: dict[str, dict[str, tuple[float, float]]] = {
    "memory_used_mb": {"0": (40960, 40960), "1": (77824, 77824), "3": (8 * 1024, 80 * 1024)},
    "memory_percent": {"0": (50, 50), "1": (95, 95), "3": (10, 100)},
    "pcie_tx_mb_s": dict.fromkeys(GPUS, (400, 1600)),
    "pcie_rx_mb_s": dict.fromkeys(GPUS, (250, 1000)),
    "nvlink_tx_mb_s": dict.fromkeys(GPUS, (1000, 4000)),
    "nvlink_rx_mb_s": dict.fromkeys(GPUS, (500, 2000)),
}
# Of the process trees that use a GPU.
PROCESS: dict[str, dict[str, float]] = {
    "gpu_memory_mb": {"1": 4 * 1024, "2": 2 * 1024},
    "gpu_sm_percent": {"1": 55, "2": 20},
    "gpu_waiting_percent": {"1": 10, "2": 10},
}
UNITS = {
    **{f"nvidia:GPU-fa4e0000-0000-4000-8000-{index:012x}": float(index != 4) for index in (0, 1, 3, 4)},
    "nvidia:2": 1.0, "nvidia:events": 1.0, "system:host": 1.0, "system:disk": 1.0,
    "process:live:0": 1.0, "process:live:1": 1.0, "process:live:2": 1.0, "process:stalled:0": 1.0,
}  # fmt: skip
"""Every unit of every source, and whether it is up."""


@dataclass(frozen=True)
class About:
    """A rate: its last scrapes were not exactly when the values were read."""

    value: float
    share: float = 0.25

    def accepts(self, value: float) -> bool:
        return abs(value - self.value) <= self.share * abs(self.value)


@dataclass(frozen=True)
class Exactly:
    value: float

    def accepts(self, value: float) -> bool:
        return math.isclose(value, self.value, rel_tol=1e-9) or (math.isnan(value) and math.isnan(self.value))


@dataclass(frozen=True)
class Between:
    low: float
    high: float

    def accepts(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Among:
    """One of those that were written into the run folder at the time."""

    values: frozenset[float]

    def accepts(self, value: float) -> bool:
        return any(math.isclose(value, one, rel_tol=1e-9) for one in self.values)


Expected = About | Exactly | Between | Among
Key = tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """The series of an answer, told apart by these labels, and their values. `perhaps` may be there or not."""

    by: Key
    values: Mapping[Key, Expected]
    perhaps: frozenset[Key] = frozenset()

    def differs(self, found: Iterable[Mapping[str, Any]]) -> str | None:
        """What is wrong with what Prometheus answered; None if nothing is."""
        got = {tuple(tell(name, series["metric"].get(name, "")) for name in self.by): series for series in found}
        missing, more = self.values.keys() - got.keys() - self.perhaps, got.keys() - self.values.keys()
        if missing or more:
            return f"missing {sorted(missing)}, too many {sorted(more)}"
        wrong = {
            key: float(series["value"][1])
            for key, series in got.items()
            if not self.values[key].accepts(float(series["value"][1]))
        }
        return f"got {wrong}, not { ({key: self.values[key] for key in wrong}) }" if wrong else None


def tell(label: str, text: str) -> str:
    """A label value without what differs from run to run."""
    if label == "run":
        return "stalled" if "-stalled-" in text else "live"
    if label == "unit":
        return re.sub(r"^process:.*:", "process:stalled:" if "-stalled-" in text else "process:live:", text)
    return str(float(text)) if label == "le" else text


def one(value: Expected) -> Answer:
    return Answer((), {(): value})


class Written:
    """What is in the run folders."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def rows(self, run: str, table: str, since: float, until: float) -> list[dict[str, Any]]:
        """Of the run `live` or `stalled`, file by file."""
        folder = next(path for path in self._root.glob("*/*") if tell("run", path.name) == run)
        lines = (line for path in sorted(folder.glob(f"{table}*.jsonl")) for line in path.open() if line[-1] == "\n")
        found = [json.loads(line) for line in lines]
        return [row for row in found if since < datetime.fromisoformat(row["timestamp"]).timestamp() <= until]


class Answers:
    """The answers at one moment; `first` is when the first scrape was."""

    def __init__(self, root: Path, spelling: names.Spelling, first: float, moment: float) -> None:
        self._written = Written(root)
        self._spelling = spelling
        self._first = first
        self._moment = moment
        self._known = {self.fill(text): answer for text, answer in (*self._dashboards(), *self._recordings())}

    def __call__(self, expression: str) -> Answer:
        """Of a query with the variables of the dashboard still in it. KeyError if nobody knows."""
        bare = strip(expression)
        if bare in self._known:
            return self._known[bare]
        for pattern, make in (
            (r"\w+", self._series),
            (r"rate\((\w+)\[\$__rate_interval\]\)", self._rate),
            (r"max\((\w+)\)", self._most),
            (r".*\brate\(\w+_total\[\$__rate_interval\]\).* or (\w+)", self._counted),
        ):
            match = re.fullmatch(pattern, bare)
            if match is not None:
                return make(match[match.lastindex or 0])
        raise KeyError(bare)

    # -- series by series

    def fill(self, text: str) -> str:
        """`<gpu.power_draw_watts>` as that series is called."""
        return re.sub(r"<(\w+)\.(\w+)>", lambda match: self._export(match[1], match[2]).series, text)

    def _export(self, table: str, metric: str) -> names.Export:
        export = names.export_of(table, metric, self._spelling)
        assert export is not None
        return export

    def _metric(self, series: str) -> tuple[str, str, float]:
        """(table, metric in the catalog, factor) of a series."""
        for table, rows in catalog.TABLES.items():
            for row in rows:
                export = names.export_of(table, row.name, self._spelling)
                if export is not None and export.series == series:
                    return table, row.name, export.factor
        raise KeyError(series)

    def _noted(self, run: str, table: str, metric: str, factor: float = 1.0, **where: Any) -> Among:
        """What the agent noted of this metric in the last minute, in the unit of the series."""
        rows = self._written.rows(run, f"{table}_metrics", self._moment - 60, self._moment + 1)
        return Among(frozenset(row[metric] * factor for row in rows if metric in row and where.items() <= row.items()))

    def _series(self, series: str) -> Answer:
        table, metric, factor = self._metric(series)
        if table == "gpu" and metric in GPU:
            return Answer(("gpu",), {(gpu,): Exactly(value * factor) for gpu, value in each(GPU[metric])})
        if table == "gpu":
            return Answer(("gpu",), {(gpu,): self._bounded(metric, gpu, factor) for gpu in GPUS})
        if table == "training":
            return Answer(
                ("run", "rank"), {("live", rank): Exactly(row[metric] * factor) for rank, row in LOGGED.items()}
            )
        if table == "process" and metric in PROCESS:
            return Answer(
                ("run", "rank"), {("live", rank): Exactly(value * factor) for rank, value in PROCESS[metric].items()}
            )
        if table == "process":
            ranks = (("live", 0), ("live", 1), ("live", 2), ("stalled", 0))
            return Answer(
                ("run", "rank"),
                {(run, str(rank)): self._noted(run, table, metric, factor, rank=rank) for run, rank in ranks},
            )
        if table == "source":
            return self._source(metric)
        noted = self._noted("live", table, metric, factor)
        return one(noted) if noted.values else Answer((), {})

    def _bounded(self, metric: str, gpu: str, factor: float) -> Expected:
        low, high = GPU_WRITTEN[metric][gpu]
        noted = self._noted("live", "gpu", metric, gpu_index=int(gpu))
        return Among(frozenset(value * factor for value in noted.values if low <= value <= high))

    def _source(self, metric: str) -> Answer:
        if metric == "source_up":
            return Answer(("unit",), {(unit,): Exactly(up) for unit, up in UNITS.items()})
        # How old and how long is of the moment; the GPU that hangs has never been read.
        return Answer(("unit",), {(unit,): Between(0.0, 60.0) for unit, up in UNITS.items() if up})

    def _rate(self, series: str) -> Answer:
        _, metric, factor = self._metric(series)
        return Answer(("gpu",), {(gpu,): About(value * factor) for gpu, value in each(GPU_RATES[metric])})

    def _counted(self, series: str) -> Answer:
        """The rate of a counter in the unit of the gauge `series`, which is the rate over one sample."""
        table, metric, factor = self._metric(series)
        if table == "gpu":
            return Answer(("gpu",), {(gpu,): About(value * factor) for gpu, value in each(GPU_COUNTED[metric])})
        gauges = self._series(series)
        if table == "process":
            return Answer(gauges.by, {key: Between(0.0, self._highest(table, metric, factor)) for key in gauges.values})
        return one(Between(0.0, self._highest(table, metric, factor))) if gauges.values else gauges

    def _highest(self, table: str, metric: str, factor: float) -> float:
        """What no mean over several samples exceeds; Prometheus extrapolates to the ends of its window."""
        rows = [row for run in ("live", "stalled") for row in self._written.rows(run, f"{table}_metrics", 0, math.inf)]
        return 1.5 * factor * max((row[metric] for row in rows if metric in row), default=0.0) + 1e-9

    def _most(self, series: str) -> Answer:
        values = self._series(series).values.values()
        if all(isinstance(value, Exactly) for value in values):
            return one(Exactly(max(value.value for value in values if isinstance(value, Exactly))))
        return one(Exactly(max(noted for value in values if isinstance(value, Among) for noted in value.values)))

    # -- what dashboards compute

    def _steps_per_second(self) -> dict[str, float]:
        """By rank of the live run, as its lines tell."""
        times: dict[str, list[float]] = {rank: [] for rank in LOGGED}
        for rank, found in times.items():
            folder_rows = self._written.rows("live", f"training_metrics*rank{rank}", 0, self._moment)
            found += [datetime.fromisoformat(row["timestamp"]).timestamp() for row in folder_rows]
        return {
            rank: len([time for time in found if time > self._first]) / (self._moment - self._first)
            for rank, found in times.items()
        }

    def _quantile(self, share: float) -> float:
        """Of the durations of all steps, with what is in one bucket spread evenly, as a histogram sees it."""
        speed = self._steps_per_second()
        quick = (speed["0"] + speed["1"]) / sum(speed.values())
        ends = [bisect_left(BUCKETS, seconds) for seconds in (0.05, 0.2)]
        (low, high), (slow_low, slow_high) = ((BUCKETS[end - 1], BUCKETS[end]) for end in ends)
        if share <= quick:
            return low + (high - low) * share / quick
        return slow_low + (slow_high - slow_low) * (share - quick) / (1 - quick)

    def alerts(self) -> Answer:
        """The agent's own: those that fire for a while must be there, those of the last seconds may."""
        firing: dict[Key, float] = {}
        ended: dict[Key, float] = {}
        for run in ("live", "stalled"):
            for row in self._written.rows(run, "alerts", 0, self._moment + 2):
                gpu, rank = (str(row.get("labels", {}).get(name, "")) for name in ("gpu_index", "rank"))
                key = (run, str(row.get("rule")), gpu, rank)
                at = datetime.fromisoformat(row["timestamp"]).timestamp()
                if row.get("state") == "firing":
                    firing.setdefault(key, at)
                    ended.pop(key, None)
                elif row.get("state") == "resolved" and key in firing:
                    ended[key] = at
        lately = self._moment - 8
        gone = {key for key, at in ended.items() if at < lately}
        perhaps = {key for key, at in firing.items() if at > lately} | (ended.keys() - gone)
        return Answer(
            ("run", "rule", "gpu", "rank"),
            {key: Exactly(1.0) for key in firing.keys() - gone},
            frozenset(perhaps),
        )

    def _dashboards(self) -> Iterator[tuple[str, Answer]]:
        use, each_gpu = "<gpu.utilization_percent>", "max by (host, uuid)"
        energy = f"sum({each_gpu} (increase(<gpu.energy_joules>[$__range]))) / 3.6e6"
        percent = self._export("gpu", "utilization_percent").factor
        whole = "1" if self._spelling == "base" else "100"
        used = 3 * (self._moment - self._first) * 500 / 3.6e6
        alerts = self.alerts()
        firing = Between(len(alerts.values.keys() - alerts.perhaps), len(alerts.values))
        yield f"count({each_gpu} ({use}))", one(Exactly(3))
        yield f"count({each_gpu} (gpu_processes) == 0) or vector(0)", one(Exactly(1))
        yield f"avg({each_gpu} ({use}))", one(Exactly(60 * percent))
        yield f'count({each_gpu} (gpu_state{{state!="ok"}}) == 1) or vector(0)', one(Exactly(2))
        yield (
            'gpu_state{state!="ok"} == 1',
            Answer(("gpu", "state"), {("2", "lost"): Exactly(1), ("4", "unresponsive"): Exactly(1)}),
        )
        yield f"sum({each_gpu} (<gpu.power_draw_watts>))", one(Exactly(1500))
        yield f"sum by (host) ({each_gpu} (<gpu.power_draw_watts>))", one(Exactly(1500))
        running = 'max by (run) (trainvitals_run_state{state=~"running|stalled|hung"}) == 1'
        yield f"count({running}) or vector(0)", one(Exactly(2))
        yield "sum(trainvitals_alert_active) or vector(0)", one(firing)
        yield (
            'count(group by (rule, host, gpu) (trainvitals_alert_active{gpu!=""}) or group by (rule, host, gpu) '
            '(ALERTS{alertstate="firing",rule!="",gpu!=""}) or group by (rule, host, run, role, rank) '
            '(trainvitals_alert_active{gpu=""})) or vector(0)',
            self._alerts_once(alerts),
        )
        yield "trainvitals_alert_active == 1", alerts
        yield f"sum by (host) (1 - {each_gpu} ({use}) / {whole})", one(Exactly(0.1 + 0.1 + 1))
        yield f"sum by (host) (1 - {each_gpu} ({use}) / {whole}) * $gpu_hour", one(Exactly(2 * (0.1 + 0.1 + 1)))
        yield (
            f"avg_over_time({use}[1h]) < {5 * percent:g} and <gpu.memory_percent> > 0",
            Answer(("gpu",), {("3",): Exactly(0)}),
        )
        yield "topk(10, <gpu.temperature_celsius>)", self._series("gpu_temperature_celsius")
        yield energy, one(About(used))
        yield f"{energy} * $kwh", one(About(used * 0.3))
        hours = self.minutes * 3 / 60
        yield f"sum({each_gpu} (count_over_time({use}[$__range:1m]))) / 60", one(Exactly(hours))
        yield f"sum({each_gpu} (count_over_time({use}[$__range:1m]))) / 60 * $gpu_hour", one(Exactly(hours * 2))
        states = {("live", "running"): Exactly(1), ("stalled", "hung"): Exactly(1)}
        yield "trainvitals_run_state == 1", Answer(("run", "state"), states)
        reasons = {("0", "thermal slowdown"), ("1", "hardware power brake"), ("3", "idle")}
        yield "gpu_throttle_reason", Answer(("gpu", "reason"), dict.fromkeys(reasons, Exactly(1)))
        yield from self._trainings()

    def _alerts_once(self, alerts: Answer) -> Answer:
        """Those of the agent, a GPU's once for all runs, and those that only the rules of Prometheus find."""

        def count(keys: Iterable[Key]) -> int:
            return len({(rule, gpu) if gpu else (run, rule, rank) for run, rule, gpu, rank in keys})

        sure = count(alerts.values.keys() - alerts.perhaps)
        gpu_rules = sum(row.prometheus is not None and row.subject == "gpu" for row in ROWS)
        return one(Between(sure, count(alerts.values) + 2 * gpu_rules))

    @property
    def minutes(self) -> int:
        """Whole minutes of the clock from the first scrape until AHEAD after the moment: a subquery looks at each, and
        not further back than its range of five minutes."""
        end = self._moment + AHEAD
        return math.floor(end / 60) - math.ceil(max(self._first, end - 300) / 60) + 1

    def _trainings(self) -> Iterator[tuple[str, Answer]]:
        steps = {row["step"] for row in self._written.rows("live", "training_metrics", self._moment - 8, self._moment)}
        speed = self._steps_per_second()
        yield "min(training_loss)", one(Exactly(0.25))
        yield "max(learning_rate)", one(Exactly(2.0))
        yield "max(training_steps_total)", one(Among(frozenset(steps)))
        yield "max(rate(training_steps_total[$__rate_interval]))", one(About(max(speed.values())))
        yield "sum(training_throughput_samples_per_second)", one(Exactly(3 * 640))
        phases = {(rank, phase): Exactly(row[f"{phase}_time"]) for rank, row in LOGGED.items() for phase in PHASES}
        yield "training_phase_duration_seconds", Answer(("rank", "phase"), phases)
        count, total = (f"rate(training_step_duration_seconds_{end}[$__rate_interval])" for end in ("count", "sum"))
        native = "rate(training_step_duration_seconds[$__rate_interval])"
        yield f"{total} / {count} or histogram_sum({native}) / histogram_count({native})", self._durations()
        buckets: dict[Key, Expected] = {}
        for end in (*BUCKETS, math.inf):
            within = sum(speed[rank] for rank, row in LOGGED.items() if row["batch_time"] <= end)
            buckets[(str(end),)] = About(within)
        by_end = "sum by (le) (rate(training_step_duration_seconds_bucket[$__rate_interval]))"
        yield f"{by_end} or sum by () ({native})", Answer(("le",), buckets)
        for share in (0.5, 0.9, 0.99):
            asked = f"histogram_quantile({share}, {by_end}) or histogram_quantile({share}, sum by () ({native}))"
            yield asked, one(About(self._quantile(share), 0.1))

    def _durations(self) -> Answer:
        found: dict[Key, Expected] = {("live", rank): About(row["batch_time"], 1e-6) for rank, row in LOGGED.items()}
        found["stalled", "0"] = Exactly(math.nan)  # no step, no duration
        return Answer(("run", "rank"), found)

    # -- rules

    def _recordings(self) -> Iterator[tuple[str, Answer]]:
        percent = self._export("gpu", "utilization_percent").factor
        duration, nothing = "training_step_duration_seconds", {("stalled",): Exactly(math.nan)}
        yield f"rank:{duration}:mean5m", self._durations()
        yield f"topk(10, rank:{duration}:mean5m)", self._durations()
        for share in (0.5, 0.99):
            quantile = {("live",): About(self._quantile(share), 0.1), **nothing}
            yield f"run:{duration}:p{share * 100:.0f}_5m", Answer(("run",), quantile)
        # A rate is over the whole range, of which this server has seen only the end.
        steps = max(self._steps_per_second().values()) * (self._moment - self._first)
        speed = {("live",): About(steps / 300), ("stalled",): Exactly(0)}
        yield "run:training_steps:rate5m", Answer(("run",), speed)
        yield "host:<gpu.utilization_percent>:avg", one(Exactly(60 * percent))
        yield "host:<gpu.power_draw_watts>:sum", one(Exactly(1500))
        yield "host:gpu_energy_joules:increase1h", one(About(1500 * (self._moment - self._first)))
        means = {(gpu,): Exactly(value * percent) for gpu, value in each(GPU["utilization_percent"])}
        yield "gpu:<gpu.utilization_percent>:avg30m", Answer(("gpu",), means)

    def fires(self, alert: str) -> Answer:
        """What the condition of an alerting rule finds."""
        age = self._moment - self._first
        percent, mebibyte = (self._export("gpu", name).factor for name in ("utilization_percent", "memory_used_mb"))
        share = percent  # of every percentage
        gpus: dict[str, dict[str, Expected]] = {
            "GpuTemperatureHigh": {"1": Exactly(89)},
            "GpuTemperatureLimit": {"1": Exactly(89)},
            "GpuMemoryHigh": {"1": Exactly(95 * share)},
            "GpuThrottledHeat": {"0": Exactly(1)},
            "GpuThrottledPower": {"1": Exactly(1)},
            "GpuXid": {"0": Exactly(31)},
            "GpuEccUncorrected": {"1": About(2 * age)},
            "GpuRowRemapFailed": {"1": Exactly(1)},
            "GpuRowRemapPending": {"1": Exactly(1)},
            "GpuLost": {"2": Exactly(1)},
            "GpuHung": {"4": Exactly(1)},
            "GpuFanStopped": {"1": Exactly(0)},
            "GpuIdle": {"3": Exactly(0)},
            "GpuLowUse": {"3": Exactly(0)},
            "GpuOomSoon": {"3": About(64 * mebibyte)},
        }
        if alert in gpus:
            return Answer(("gpu",), {(gpu,): value for gpu, value in gpus[alert].items()})
        ranks: dict[str, dict[str, Expected]] = {
            "FileDescriptorsHigh": {"1": self._noted("live", "process", "fd_count", rank=1)},
            "LossNotFinite": {"1": Exactly(math.nan)},
            "LearningRateHigh": {"1": Exactly(2.0)},
            "GradientVanished": {"1": Exactly(1e-9)},
            "Straggler": {"2": About(0.005 + 0.005 + 0.16, 1e-6)},
        }
        if alert in ranks:
            return Answer(("run", "rank"), {("live", rank): value for rank, value in ranks[alert].items()})
        if alert == "TrainvitalsAlert":
            found = self.alerts()
            # Those that Prometheus judges are sent by rules of their own.
            quiet = {row.id for row in ROWS if row.severity == "info" or row.prometheus is not None}
            loud = {key: value for key, value in found.values.items() if key[1] not in quiet}
            assert ("live", "of_my_own", "", "2") in loud
            return Answer(found.by, loud, found.perhaps)
        return {
            "TrainingStalled": Answer(("run", "state"), {("stalled", "hung"): Exactly(1)}),
            "RunHung": Answer(("run", "state"), {("stalled", "hung"): Exactly(1)}),
            "TrainvitalsDown": Answer(("instance",), {(NOBODY,): Exactly(0)}),
            "TrainvitalsSourceDown": Answer(("unit",), {(unit,): Exactly(0) for unit, up in UNITS.items() if not up}),
        }[alert]


def strip(expression: str) -> str:
    """Without the labels that the variables of a dashboard choose by."""
    bare = re.sub(r'\b(\w+)=~"\$\1",?', "", expression)
    return re.sub(r",\}", "}", bare).replace("{}", "")


def each(values: float | dict[str, float]) -> Iterable[tuple[str, float]]:
    return values.items() if isinstance(values, dict) else dict.fromkeys(GPUS, values).items()
