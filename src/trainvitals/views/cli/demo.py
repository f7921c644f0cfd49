"""`trainvitals demo`: a small real training with everything around it, on any machine."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainvitals.errors import TrainvitalsError
from trainvitals.journal import layout
from trainvitals.journal.identity import gpu_key, gpu_title
from trainvitals.journal.run_info import shorten_path
from trainvitals.settings import Settings
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import Parser, number, one_of, resolve_settings
from trainvitals.views.cli.files import write_file
from trainvitals.views.cli.start_run import FLAG, check_place
from trainvitals.views.cli.terminal import Paint, is_terminal, shorten, width
from trainvitals.views.data import quantities

if TYPE_CHECKING:
    from trainvitals.trainer.run import Run
    from trainvitals.views.cli.demo_training import DemoConfig, Step

DESCRIPTION = (
    "Train a small network in numpy, monitored by the agent and shown live in the terminal. Without a GPU, two "
    "simulated ones are shown and labeled as such. Stops by itself and writes a report."
)
EXAMPLES = """
trainvitals demo
trainvitals demo --seconds 5
trainvitals demo --mode dashboard        # the page in the browser stays until Ctrl-C
trainvitals demo --mode monitor          # simulated hardware only
"""

TRAIN_SECONDS = 24.0
QUIET_SECONDS = 8.0
MONITOR_SECONDS = 15.0
SIMULATED_GPUS = 2
DASHBOARD_SECONDS = 60.0
"""How long to wait for its address, on a busy machine; one that ends without it is not waited for."""
AGENT_SECONDS = 30.0
"""How long to wait until the agent has counted all of the run: the process of the demo lives on."""
MODES = ("train", "monitor", "dashboard")


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--mode",
        type=one_of(*MODES),
        default="train",
        metavar="MODE",
        help="train: a small real training run; dashboard: the same, and its page stays until Ctrl-C, or ends with "
        "--seconds; monitor: simulated hardware only (default: train)",
    )
    parser.add_argument(
        "--steps", type=number(2, whole=True), default=600, metavar="N", help="number of steps (default: 600)"
    )
    parser.add_argument(
        "--seconds",
        type=number(0),
        metavar="SECONDS",
        help=f"minimum duration (default: {TRAIN_SECONDS:g}; {QUIET_SECONDS:g} without a terminal)",
    )
    parser.add_settings("dir", "interval", "simulate_gpus")
    parser.add_config()


def execute(arguments: argparse.Namespace) -> int:
    if arguments.mode == "monitor":
        return _monitor(arguments)
    return _train(arguments, resolve_settings(arguments))


def _monitor(arguments: argparse.Namespace) -> int:
    from trainvitals.views.cli import monitor

    parser = Parser("trainvitals monitor")
    monitor.add_arguments(parser)
    words = ["--simulate-gpus", arguments.simulate_gpus or str(SIMULATED_GPUS)]
    words += ["--duration", str(arguments.seconds if arguments.seconds is not None else MONITOR_SECONDS)]
    for flag in ("dir", "interval", "config"):
        value = getattr(arguments, flag)
        words += [f"--{flag}", str(value)] if value is not None else []
    parsed = parser.parse(words)
    # No real GPU among them: what is shown would be taken for its numbers.
    parsed.setting_names.append("sources")
    parsed.sources = "simulated,system"
    return monitor.execute(parsed)


def _train(arguments: argparse.Namespace, settings: Settings) -> int:
    import trainvitals
    from trainvitals.journal.reader import RunReader
    from trainvitals.views.cli.demo_training import DemoConfig
    from trainvitals.views.cli.run import wait_for_agent
    from trainvitals.views.cli.summary import print_summary

    live = is_terminal(sys.stdout)
    seconds = arguments.seconds if arguments.seconds is not None else TRAIN_SECONDS if live else QUIET_SECONDS
    config = DemoConfig(steps=arguments.steps, seconds=seconds)
    check_place(Path(settings.dir).absolute() / "demo", settings, FLAG)
    simulated = settings.simulate_gpus or (0 if has_gpu() else SIMULATED_GPUS)
    run = trainvitals.init(
        project="demo",
        name="spiral",
        config=config._asdict(),
        dir=settings.dir,
        tags=["demo"],
        simulate_gpus=simulated,
        interval=settings.interval,
        summary=False,  # one of its own follows
    )
    try:
        address = _watch_training(run, config, settings, simulated)
    except KeyboardInterrupt:
        print_summary(RunReader(run.folder), settings)
        raise
    wait_for_agent(run.folder, AGENT_SECONDS)
    print_summary(RunReader(run.folder), settings)
    print_line(_write_report(run.folder, settings))
    if arguments.mode == "dashboard":
        return _stay(address, arguments.seconds is None)
    return 0


def _stay(address: str, until_interrupted: bool) -> int:
    """Keep the dashboard, which lives as long as this process."""
    if not address:
        return 1  # why there is none was printed when the training began
    if until_interrupted:
        with contextlib.suppress(KeyboardInterrupt):
            print_line("the dashboard stays; press Ctrl-C to stop")
            while True:
                time.sleep(3600)
    return 0


def _watch_training(run: Run, config: DemoConfig, settings: Settings, simulated: int) -> str:
    """The address of its dashboard; empty if there is none."""
    from trainvitals.trainer import dashboard
    from trainvitals.views.cli.demo_training import train

    with run:
        gpus = f", with {simulated} simulated GPUs" if simulated else ""
        print_line(f"training a small network for about {quantities.format_duration(config.seconds)}{gpus}")
        print_line(f"run folder: {shorten_path(run.folder)}")
        served = dashboard.start(settings, run.id, wait=DASHBOARD_SECONDS)
        print_line(f"dashboard: {served.address}" if served.address else f"no dashboard: {served.reason}")
        show = LiveView(run, config) if has_room() else PlainView(run, config)
        train(run, config, show.take)
        show.finish()
    return served.address


def _write_report(folder: Path, settings: Settings) -> str:
    """Put a report into the run folder; returns the message about it."""
    from trainvitals.journal.folder_runs import name_runs
    from trainvitals.views.report.document import draw_report

    target = folder / layout.REPORTS / "report.html"
    try:
        content = draw_report(name_runs([folder]), "html", settings)
    except TrainvitalsError as error:
        return f"no report: {error.message}"
    target.parent.mkdir(mode=0o700, exist_ok=True)
    write_file(str(target), content, force=True)
    return f"wrote {shorten_path(target)} ({quantities.format_bytes(len(content))})"


def has_gpu() -> bool:
    """Whether a source finds a real GPU on this machine."""
    from trainvitals.sources import World, create, gpu_sources

    for name in gpu_sources():  # the simulated ones are not found where none is asked for
        try:
            units = create(name, World()).discover()
        except Exception:  # noqa: BLE001 - the boundary around a source: whatever it cannot do, there is no GPU
            continue
        for unit in units:
            unit.close()
        if units:
            return True
    return False


def has_room() -> bool:
    """Whether standard output is a terminal on which a block can be drawn again and again in place."""
    size = shutil.get_terminal_size()
    is_able = is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb"
    return is_able and size.columns >= LiveView.COLUMNS and size.lines >= LiveView.ROWS


class PlainView:
    """A line every second, for logs and pipes."""

    SECONDS = 1.0

    def __init__(self, run: Run, config: DemoConfig) -> None:
        from trainvitals.journal.follower import Follower

        self._config = config
        self._follower = Follower(run.folder, ("gpu",))
        self._gpus: dict[str, Mapping[str, Any]] = {}
        self._steps: list[Step] = []
        self._began = time.monotonic()
        self._next = self._began

    def take(self, step: Step) -> None:
        """One more step; drawn when it is time."""
        self._steps.append(step)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self.SECONDS
            self._read_gpus()
            self._draw()

    def finish(self) -> None:
        """Draw the end."""
        self._read_gpus()
        if self._steps:
            self._draw()

    def _read_gpus(self) -> None:
        for _, row in self._follower.poll():
            self._gpus[gpu_key(row)] = row

    def _draw(self) -> None:
        step = self._steps[-1]
        parts = [
            f"step {step.step + 1} of {self._config.steps}",
            f"loss {quantities.format_value(step.loss, 3)}",
        ]
        parts.append(f"accuracy {step.accuracy:.3f}")
        for row in self._sorted_gpus():
            use = row.get("utilization_percent")
            label = f"{gpu_title(row)}{' (simulated)' if row.get('simulated') else ''}"
            parts.append(f"{label} {quantities.format_percent(use if isinstance(use, (int, float)) else None)}")
        print("  ".join(parts), flush=True)

    def _sorted_gpus(self) -> list[Mapping[str, Any]]:
        return sorted(self._gpus.values(), key=lambda row: str(row.get("gpu_index")))


class LiveView(PlainView):
    """A block of the terminal that is drawn again and again in place."""

    SECONDS = 0.2
    CHART_ROWS = 7
    COLUMNS = 40
    ROWS = 24
    """A terminal with less has no room for it and up to eight GPUs."""

    def __init__(self, run: Run, config: DemoConfig) -> None:
        super().__init__(run, config)
        self._paint = Paint(sys.stdout)
        self._drawn = 0

    def _draw(self) -> None:
        columns = max(min(width(sys.stdout), 120), self.COLUMNS)
        lines = [*self._head(columns), "", *self._charts(columns), "", *self._gpu_lines(columns)]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._drawn = len(lines)
        print(up + "".join(f"\x1b[2K{line}\n" for line in lines), end="", flush=True)

    def _head(self, columns: int) -> list[str]:
        paint, step = self._paint, self._steps[-1]
        share = (step.step + 1) / self._config.steps
        left = max(self._config.seconds * (1 - share), 0.0)
        title = f"step {step.step + 1} of {self._config.steps}"
        tail = f"{share * 100:3.0f} %  {quantities.format_duration(left)} left" if share < 1 else "done"
        bar = draw_bar(share, max(columns - len(title) - len(tail) - 6, 8))
        numbers = [
            ("loss", quantities.format_value(step.loss, 3)),
            ("accuracy", f"{step.accuracy:.3f}"),
            ("learning rate", quantities.format_value(step.learning_rate, 3)),
            ("gradient norm", quantities.format_value(step.gradient_norm, 3)),
        ]
        drawn = "   ".join(f"{paint('dim', name)} {paint('bold', value)}" for name, value in numbers)
        plain = "   ".join(f"{name} {value}" for name, value in numbers)
        return [
            f"{title}  {paint('cyan', bar)}  {tail}",
            drawn if len(plain) <= columns else shorten(plain, columns),
        ]

    def _charts(self, columns: int) -> list[str]:
        each = (columns - 4) // 2
        loss = draw_chart("loss", [step.loss for step in self._steps], each, self.CHART_ROWS)
        accuracy = draw_chart("accuracy", [step.accuracy for step in self._steps], each, self.CHART_ROWS)
        return [
            f"{self._paint(style, left.ljust(each))}    {self._paint(style, right)}".rstrip()
            for style, left, right in zip(["bold", *["cyan"] * self.CHART_ROWS], loss, accuracy, strict=True)
        ]

    def _gpu_lines(self, columns: int) -> list[str]:
        lines = []
        for row in self._sorted_gpus()[:8]:
            use, used, total = (row.get(key) for key in ("utilization_percent", "memory_used_mb", "memory_total_mb"))
            share = use / 100 if isinstance(use, (int, float)) else 0.0
            parts = [
                quantities.format_percent(use if isinstance(use, (int, float)) else None).rjust(5),
                f"{quantities.format_mb(used)} of {quantities.format_mb(total)}",
                quantities.format_unit(row.get("temperature_celsius"), "°C"),
                quantities.format_unit(row.get("power_draw_watts"), "W"),
                "simulated" if row.get("simulated") else str(row.get("gpu_name", "")),
            ]
            text = "  ".join(parts)
            bar = draw_bar(share, max(min(columns - len(text) - 10, 40), 4))
            lines.append(f"{gpu_title(row)}  {self._paint('green', bar)}  {shorten(text, columns - 12)}")
        return lines or [self._paint("dim", "waiting for the first hardware sample")]


def draw_bar(share: float, columns: int) -> str:
    """`████░░░░`, `columns` wide."""
    full = round(min(max(share, 0.0), 1.0) * columns)
    return "█" * full + "░" * (columns - full)


def draw_chart(title: str, values: list[float], columns: int, rows: int) -> list[str]:
    """A title and `rows` lines: the curve in Braille, its highest and lowest value at the left."""
    import numpy as np

    from trainvitals.views.tui.canvas import Axes, Canvas

    y = np.array(values)
    finite = y[np.isfinite(y)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    labels = [quantities.format_value(high, 3), *[""] * (rows - 2), quantities.format_value(low, 3)]
    size = max(map(len, labels))
    canvas = Canvas(max(columns - size - 2, 8), rows)
    canvas.curve(np.arange(len(y), dtype=np.float64), y, Axes(0.0, max(len(y) - 1, 1), low, high), 0)
    lines = [f"{label.rjust(size)} │{text}" for label, (text, _) in zip(labels, canvas.rows(), strict=True)]
    return [title, *lines]
