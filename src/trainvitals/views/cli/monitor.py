"""`trainvitals monitor`: the hardware alone, on the console and to files.

The agent samples and writes; this command registers a run, follows the run folder and prints.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.analysis.gpu_use import GpuUse, GpuUses
from trainvitals.analysis.spread import Spread
from trainvitals.errors import AgentError, JournalError, TrainvitalsError
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.latest import read_latest
from trainvitals.journal.documents.registration import new_registration
from trainvitals.journal.documents.run import ENDED, MONITOR, RunFile, new_run
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.follower import Follower
from trainvitals.journal.identity import gpu_key
from trainvitals.newest import is_late
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings
from trainvitals.settings.kinds import GPUS
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import Parser, UsageError, duration, number, resolve_settings
from trainvitals.views.cli.exporter_flags import add_exporter_flags, add_mirror_flags, check_exporter
from trainvitals.views.cli.start_run import (
    FLAG,
    check_runtime,
    create_folder,
    explain_unknown_gpus,
    register,
    write_run,
)
from trainvitals.views.cli.terminal import Cell, Paint, draw_table, is_terminal, width
from trainvitals.views.data import quantities

DESCRIPTION = (
    "Monitor the hardware of this machine: one line per sample with utilization and memory of each GPU, a table at "
    "intervals and at the end, and all values in JSONL files. Without a GPU it shows why, and the host. Press "
    "Ctrl-C to stop."
)

EXAMPLES = """
trainvitals monitor
trainvitals monitor --gpu 0 --interval 1.0
trainvitals monitor --gpus 0,1 --interval 0.5 --duration 10m --log-dir logs/gpu
trainvitals monitor --simulate-gpus 2 --duration 10        # no GPU here
"""

WATCH_SECONDS = 5.0
NO_GPU_SECONDS = 3.0
"""How long an agent that writes already may take until it knows its GPUs."""
PATIENCE_SECONDS = 1.0
"""How long a line waits at most for GPUs that have no new sample."""
FINAL_SECONDS = 3.0
NO_LATEST_SECONDS = 10.0
"""How long the file with what it knows of them is waited for."""
FIRST_SECONDS = 30.0
"""However short it is to look, the first sample is waited for this long: on a busy node it takes a while."""
GPU = {
    "utilization_percent": "util %",
    "memory_percent": "memory %",
    "temperature_celsius": "°C",
    "power_draw_watts": "W",
}
HOST = {"cpu_usage_percent": "CPU %", "memory_usage_percent": "memory %"}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--gpu", type=one_gpu, metavar="N", help="one GPU, by index or UUID")
    parser.add_settings("gpus", "interval")
    parser.add_argument(
        "--duration", type=duration, metavar="SECONDS", help="stop after this time (default: on Ctrl-C)"
    )
    parser.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="run folder to create (default: inside the folder of all runs)",
    )
    parser.add_argument("--no-console", action="store_true", help="print nothing; the values are in the files")
    parser.add_argument(
        "--summary-interval",
        type=number(0),
        default=60.0,
        metavar="SECONDS",
        help="interval between tables; 0 for only at the end (default: 60)",
    )
    parser.add_settings("simulate_gpus", "openmetrics", "dir")
    add_mirror_flags(parser)
    add_exporter_flags(parser)
    parser.add_config()


def execute(arguments: argparse.Namespace) -> int:
    if arguments.gpu is not None:
        if arguments.gpus is not None:
            raise UsageError("use either --gpu or --gpus, not both", hint="such as: --gpus 0,1")
        arguments.gpus = arguments.gpu
    settings = resolve_settings(arguments)
    check_exporter(settings)
    monitor = Monitor(settings, arguments.log_dir)
    # A service manager stops it with SIGTERM; it is the same as Ctrl-C here.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(settings, quiet=arguments.no_console, table_seconds=arguments.summary_interval)
    monitor.begin()
    if not arguments.no_console:
        simulated = " (simulated GPUs)" if settings.simulate_gpus else ""
        print_line(f"writing to {monitor.folder}{simulated}; press Ctrl-C to stop")
    try:
        monitor.watch(console, arguments.duration)
    except KeyboardInterrupt:
        if is_terminal(sys.stderr):
            print(file=sys.stderr)  # after the ^C that the terminal printed
    monitor.end()
    console.finish()
    if not arguments.no_console:
        print_line(f"all values are in {monitor.folder}")
    return 0


def one_gpu(text: str) -> str:
    """A type for argparse: one GPU."""
    try:
        gpus = GPUS.parse(text)
    except ValueError:
        gpus = ()
    if len(gpus) != 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not the index or UUID of a GPU, such as 0 or GPU-6f1c")
    return text


class Monitor:
    """A run that is only hardware."""

    def __init__(self, settings: Settings, log_dir: Path | None) -> None:
        self._settings = settings
        self._flag = FLAG if log_dir is None else "--log-dir"
        if log_dir is not None:
            self.folder = log_dir.absolute()
        else:
            self.folder = Path(settings.dir).absolute() / "monitor" / run_folder.new_run_id("monitor")
        before = run_folder.find_run(self.folder)
        if before is not None and run_folder.read_state(self.folder, before)[0] not in ENDED:
            raise TrainvitalsError(f"{self.folder} belongs to an active run", hint="choose another --log-dir")
        self.attempt = before.attempt + 1 if before is not None else 1
        self._run = self._describe(before)
        self._registered: Path | None = None

    def _describe(self, before: RunFile | None) -> RunFile:
        from trainvitals.trainer import facts

        return new_run(
            self.folder.name,
            kind=MONITOR,
            project="monitor",
            name=self.folder.name,
            facts=facts.capture(self._settings, config=None, argv=sys.orig_argv, environ=os.environ, cwd=Path.cwd()),
            pid=os.getpid(),
            attempt=self.attempt,
            before=before,
            correlation_id=facts.correlation_id(os.environ),
            simulated=self._settings.simulate_gpus > 0,
        )

    def begin(self) -> None:
        """Write the run down and have the agent sample into it."""
        check_runtime()
        create_folder(self.folder, self._settings, self._flag)
        self._follower = Follower(self.folder, ("gpu", "system", "events"), from_end=True)
        write_run(self.folder, self._run, self._settings, self._flag)
        self._registered = register(
            new_registration(
                self.folder,
                os.getpid(),
                run_id=self._run.id,
                attempt=self.attempt,
                kind=MONITOR,
                correlation_id=self._run.correlation_id,
                settings=self._settings.as_json(),
            )
        )
        if not runtime.ensure_agent(wait=runtime.START_SECONDS):
            self.end(status="failed")
            raise AgentError("the agent did not start", hint="to see why: trainvitals doctor")

    def watch(self, console: Console, seconds: float | None) -> None:
        """Print what arrives, until the time is over."""
        pause = min(max(self._settings.interval / 4, 0.02), 0.2)
        begin = time.monotonic()
        next_check = begin + WATCH_SECONDS
        while True:
            for name, row in self._follower.poll():
                console.take(name.table, row)
            console.tick()
            if time.monotonic() > next_check:
                runtime.ensure_agent()  # a look at a lock; starts it again only if it died
                next_check = time.monotonic() + WATCH_SECONDS
            left = pause
            if seconds is not None:
                wanted = seconds if console.has_seen else max(seconds, FIRST_SECONDS)
                left = wanted - (time.monotonic() - begin)
                if left <= 0:
                    return
            time.sleep(min(pause, left))

    def end(self, status: str = "finished") -> None:
        """Write the end, and wait a moment until the agent has written its last lines."""
        before, self._run = self._run, self._run.end(status)
        try:
            write_run(self.folder, self._run, self._settings, self._flag, before)
        except JournalError as error:  # what was measured is still to be printed
            print_line(f"cannot write the end of the run: {error}")
        if self._registered is None:
            return
        self._registered.unlink(missing_ok=True)
        deadline = time.monotonic() + FINAL_SECONDS
        while time.monotonic() < deadline and runtime.agent_is_alive():
            statuses = run_folder.read_statuses(self.folder)
            if any(item.attempt == self.attempt and item.is_over for item in statuses):
                return
            time.sleep(0.05)


class Console:
    """What is printed of the samples: a line per sample, a table now and then."""

    def __init__(self, settings: Settings, *, quiet: bool, table_seconds: float) -> None:
        self._settings = settings
        self._interval = settings.gpu_interval or settings.interval
        self._quiet = quiet
        self._table_seconds = table_seconds
        self._began = time.monotonic()
        self._next_table = self._began + table_seconds
        self._gpus = GpuUses()
        self._latest: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self._fresh: dict[str, float] = {}
        self._system: Mapping[str, Any] | None = None
        self._host = {name: Spread() for name in HOST}
        self._warned_no_gpu = False
        self._warned_unknown = False
        self._samples = 0
        self._first: tuple[float, float] | None = None

    @property
    def has_seen(self) -> bool:
        """Whether there is anything to show."""
        return bool(self._latest) or self._system is not None

    def take(self, table: str, row: Mapping[str, Any]) -> None:
        """One new line of the run folder."""
        now = time.monotonic()
        self._first = self._first or (now, time.time())
        if table == "gpu":
            key = gpu_key(row)
            self._gpus.add(row, row, parse_time(row.get("timestamp")))
            self._latest[key] = (now, row)
            self._fresh.setdefault(key, now)
        elif table == "system":
            if "cpu_usage_percent" in row or "memory_usage_percent" in row:  # not a line about the disk alone
                self._system = row
                for name, spread in self._host.items():
                    spread.add(row.get(name))
        elif row.get("severity") in ("warning", "critical") and not self._quiet:
            print_line(f"{row['severity']}: {one_line(row.get('message', row.get('event', '')))}")

    def tick(self) -> None:
        """Print what is complete."""
        now = time.monotonic()
        if self._fresh:
            if self._is_complete(now):
                self._print_gpus(now)
        elif not self._latest and self._system is not None and self._has_looked(now):
            self._print_system()
        if not self._warned_unknown and self._has_looked(now):
            self._warn_unknown_gpus()
        if self._table_seconds and now >= self._next_table:
            self._next_table += self._table_seconds
            self._print_table()

    def _has_looked(self, now: float) -> bool:
        """Whether the agent has had time to find GPUs and has reported the result.

        The time begins with its first line, not with its start: on a busy node that alone takes longer.
        """
        if self._first is None or now - self._first[0] <= NO_GPU_SECONDS:
            return False
        if now - self._first[0] > NO_LATEST_SECONDS:
            return True  # it may have no room for that file
        try:
            return (runtime.runtime_dir() / "latest.json").stat().st_mtime > self._first[1]
        except OSError:
            return False

    def finish(self) -> None:
        """The last table."""
        if self._fresh:
            self._print_gpus(time.monotonic())
        elif not self._latest and self._system is not None:  # it ended before it was clear that there is no GPU
            self._print_system()
        self._warn_unknown_gpus()
        self._print_table()

    def _warn_unknown_gpus(self) -> None:
        """Warn once about selected GPUs that do not exist, where others do."""
        if self._latest and not self._warned_unknown:
            self._warned_unknown = True
            text = explain_unknown_gpus(self._settings)
            if text:
                print_line(text)

    def _is_complete(self, now: float) -> bool:
        """All GPUs have a new sample, or those that have none have had their time: all of it at first, when nobody
        knows how many there are."""
        waited = now - min(self._fresh.values())
        if self._samples == 0:
            return waited > PATIENCE_SECONDS
        return waited > min(self._interval * 0.75, PATIENCE_SECONDS) or len(self._fresh) == len(self._latest)

    def _print_gpus(self, now: float) -> None:
        self._fresh.clear()
        self._samples += 1
        if self._quiet:
            return
        gpus = self._gpus.in_order()
        # `GPU0`, without a blank: the documented form of this line, which scripts read.
        titles = (one_line(gpu.title()).replace("GPU ", "GPU") for gpu in gpus)
        parts = [f"{title}: {self._words(gpu_key(gpu.labels), now)}" for title, gpu in zip(titles, gpus, strict=True)]
        simulated = " (simulated)" if all(gpu.simulated for gpu in gpus) else ""
        print(f"GPU Monitor{simulated} - {' | '.join(parts)}", flush=True)

    def _words(self, key: str, now: float) -> str:
        moment, row = self._latest[key]
        if row.get("state", "ok") != "ok":
            return one_line(row["state"])
        age = now - moment
        text = f"{_percent(row.get('utilization_percent'))}/{_percent(row.get('memory_percent'))}"
        return f"{text} (stale, {age:.0f} s old)" if is_late(age, self._interval) else text

    def _print_system(self) -> None:
        if not self._warned_no_gpu:
            self._warned_no_gpu = True
            if not self._quiet or self._settings.gpus:  # a GPU that was asked for and is not there is an error
                why = explain_unknown_gpus(self._settings) or _why_no_gpu()
                print_line(f"no GPUs: {why}\n  more: trainvitals doctor")
        row, self._system = self._system or {}, None
        self._samples += 1
        if self._quiet:
            return
        parts = [
            f"CPU: {_percent(row.get('cpu_usage_percent'))}",
            f"memory: {_percent(row.get('memory_usage_percent'))}",
        ]
        used, total = row.get("memory_used_mb"), row.get("memory_total_mb")
        if isinstance(used, (int, float)) and isinstance(total, (int, float)):
            parts[1] += f" ({quantities.format_mb(used)} of {quantities.format_mb(total)})"
        load = row.get("load_1m")
        parts += [f"load: {load:.2f}"] if isinstance(load, (int, float)) else []
        print(f"System Monitor - {' | '.join(parts)}", flush=True)

    def _print_table(self) -> None:
        if self._quiet:
            return
        span = quantities.format_duration(time.monotonic() - self._began)
        gpus = self._gpus.in_order()
        if not gpus:
            if self._samples:
                print(f"\nSystem Monitor - min / mean / max after {span}")
                print("\n".join(f"  {title:<10}{_draw(self._host[name])}" for name, title in HOST.items()), end="\n\n")
            return
        columns = width(sys.stdout) if is_terminal(sys.stdout) else None
        print(f"\nGPU Monitor - min / mean / max after {span}")
        print(_draw_gpus(gpus, Paint(sys.stdout), columns), end="\n\n", flush=True)


def _draw(spread: Spread) -> str:
    """Lowest / mean / highest."""
    if spread.low is None or spread.mean is None or spread.high is None:
        return quantities.NONE
    return f"{spread.low:.0f} / {spread.mean:.0f} / {spread.high:.0f}"


def _draw_gpus(gpus: Sequence[GpuUse], paint: Paint, columns: int | None) -> str:
    """A line per GPU."""
    rows = [
        (
            one_line(gpu.title()),
            *(_draw(gpu.spreads[name]) for name in GPU),
            quantities.format_energy(gpu.energy.joules),
            Cell(one_line(gpu.name), "dim"),
        )
        for gpu in gpus
    ]
    header = ("GPU", *GPU.values(), "energy", "")
    return draw_table(header, rows, paint=paint, columns=columns, right=(1, 2, 3, 4, 5), optional=(6,), indent="  ")


def _percent(value: object) -> str:
    return f"{value:.1f}%" if isinstance(value, (int, float)) else quantities.NONE


def _why_no_gpu() -> str:
    """The reason that the agent's GPU sources give."""
    from trainvitals.sources import World, explain_missing_gpus

    latest = read_latest()
    states = latest.states if latest is not None else {}
    reasons = {name: str(state) for name, state in states.items() if state != "ok"}
    found = explain_missing_gpus(reasons, World().sysfs_root)
    return found[1] if found is not None else "none found"
