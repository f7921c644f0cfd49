"""Runs to look at, a real server in a process of its own, and Debian's Chromium."""

from __future__ import annotations

import json
import math
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error as PlaywrightError
from waiting import PATIENCE

import trainvitals
from trainvitals.journal.encoding import encode_line, format_time

# What Chromium says of an element that is not drawn yet, and of a page that is being left.
NOT_THERE_YET = re.compile(r"Cannot read properties of (null|undefined)|context was destroyed")

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def make_run(root: Path, name: str, *, steps: int = 200, scale: float = 1.0, project: str = "p", **config: Any) -> str:
    """A finished run with losses, NaN, layers, odd names, two GPUs, a host, events and alerts. Its folder's name."""
    run = trainvitals.init(project=project, name=name, config={"lr": 0.1 * scale, **config}, dir=root, agent=False)
    for step in range(steps):
        row: dict[str, Any] = {
            "loss": math.nan if step == 60 else scale * math.exp(-step / 80) + 0.01 * ((step * 7919) % 13),
            "accuracy": step / steps,
            "epoch": step / 50,
            "batch_time": 0.02,
            "data_time": 0.005,
            "forward_time": 0.015,
        }
        if step % 20 == 0:
            row["val/loss"] = scale * math.exp(-step / 80) + 0.05
            row.update({f"gradient_norm/blocks.{layer}.mlp": 1.0 + layer for layer in range(12)})
        row["__proto__"] = step
        row[HOSTILE] = step % 3
        run.log(row, step=step)
    run.event("checkpoint", f"saved {HOSTILE}")
    run.finish()
    folder = Path(run.folder)
    write_hardware(folder)
    return folder.name


def write_hardware(folder: Path) -> None:
    now = time.time() - 100
    stamp = time.strftime("%Y%m%d_%H%M%S", time.gmtime(now))
    with open(folder / f"gpu_metrics_{stamp}.jsonl", "wb") as file:
        for second in range(100):
            for gpu in range(2):
                row = {
                    "timestamp": format_time(now + second),
                    "gpu_index": gpu,
                    "gpu_uuid": f"GPU-{gpu}",
                    "gpu_name": "Fake H100",
                    "host": "box",
                    "utilization_percent": 90.0 + gpu,
                    "memory_percent": 50.0,
                    "memory_used_mb": 40960.0,
                    "memory_total_mb": 81920.0,
                    "temperature_celsius": 60.0,
                    "power_draw_watts": 400.0,
                    "power_limit_watts": 700.0,
                    "throttle_reasons": "thermal slowdown" if gpu and second > 50 else "none",
                }
                file.write(encode_line(row))
    with open(folder / f"system_metrics_{stamp}.jsonl", "wb") as file:
        for second in range(100):
            row = {"timestamp": format_time(now + second), "host": "box", "cpu_usage_percent": 40.0}
            file.write(encode_line(row))
    with open(folder / f"alerts_{stamp}.jsonl", "wb") as file:
        alert = {
            "timestamp": format_time(now + 5),
            "state": "firing",
            "rule": "gpu_temperature_high",
            "severity": "warning",
            "labels": {"gpu_index": 1},
            "message": "GPU 1 is at 91 °C",
            "advice": "Check the fans.",
            "when": "gpu.temperature_celsius > 80",
            "value": 91.0,
            "threshold": 80.0,
            "values": {"step": 42, "fan_speed_percent": 100.0},
            "step": 42,
            "since": format_time(now),
        }
        file.write(encode_line(alert))
    stacks = folder / "stacks"
    stacks.mkdir(exist_ok=True)
    (stacks / "rank0.txt").write_text('Thread 0x1 (most recent call first):\n  File "train.py", line 3 in step\n')


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs and one with a hostile name; nobody changes them."""
    place = tmp_path_factory.mktemp("runs")
    make_run(place, "baseline")
    make_run(place, "candidate", scale=0.5)
    make_run(place, HOSTILE, steps=3, project="other")
    return place


@pytest.fixture(scope="session")
def keys(root: Path) -> list[str]:
    """The runs of `root`, oldest first."""
    return sorted(path.parent.name for path in root.glob("*/*/run.json"))


class Server:
    """`trainvitals serve` in a process of its own."""

    def __init__(
        self, root: Path, *flags: str, port: int = 0, under: tuple[str, ...] = (), asks_for_token: bool = False
    ) -> None:
        self._command = [
            *under,
            sys.executable,
            "-m",
            "trainvitals",
            "serve",
            "--dir",
            str(root),
            "--port",
            str(port),
            *flags,
            *(() if asks_for_token or {"--listen", "--token-file"} & set(flags) else ("--no-token",)),
        ]
        self.process: subprocess.Popen[str]
        self.url = ""
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
        )
        assert self.process.stdout is not None
        lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=lambda: lines.put(self.process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        line = lines.get(timeout=PATIENCE)
        assert line.startswith("dashboard: "), line + (self.process.stderr.read() if self.process.stderr else "")
        self.url = line.removeprefix("dashboard: ").strip()

    @property
    def base(self) -> str:
        return self.url.partition("?")[0].partition("#")[0]

    @property
    def port(self) -> int:
        return int(self.base.rstrip("/").rpartition(":")[2])

    def restart(self) -> None:
        """End, and start again on the same port, which was given."""
        self.stop()
        self.start()

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """`serve(root, *flags)` starts a server that ends with the test."""
    made: list[Server] = []

    def start(root: Path, *flags: str, **more: Any) -> Server:
        made.append(Server(root, *flags, **more))
        return made[-1]

    yield start
    for server in made:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture(scope="session")
def server(root: Path) -> Iterator[Server]:
    """A server for `root` that every test may ask and none may change."""
    made = Server(root)
    yield made
    made.stop()


class Tab:
    """A page and everything that went wrong in it."""

    def __init__(self, context: Any) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE * 1000)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._hear)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _hear(self, message: Any) -> None:
        # A server that is stopped on purpose makes the browser complain: not the page's fault.
        if message.type == "error" and "net::ERR" not in message.text and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    def wait(self, expression: str) -> Any:
        """Until the JavaScript expression is true. What is not on the page yet, or on its way there, is waited for."""
        deadline = time.monotonic() + PATIENCE
        while True:
            value, missing = None, ""
            try:
                value = self.page.evaluate(expression)
            except PlaywrightError as error:
                if not NOT_THERE_YET.search(error.message):
                    raise
                missing = error.message.partition("\n")[0]
            if value:
                return value
            assert time.monotonic() < deadline, (
                f"never true: {expression}\n{missing}\n{self.page.inner_text('body')[:2000]}"
            )
            time.sleep(0.05)

    def point_at(self, selector: str, across: float = 0.5) -> dict[str, float]:
        """Move the mouse over the first of these, at that share of its width, and tell its place. It is looked up
        until the mouse is there: what is drawn above it later moves it."""
        shown = self.page.locator(selector).first
        deadline = time.monotonic() + PATIENCE
        while True:
            box = shown.bounding_box()
            if box is not None:
                self.page.mouse.move(box["x"] + box["width"] * across, box["y"] + box["height"] / 2)
                if shown.evaluate("(item) => item.matches(':hover')") and shown.bounding_box() == box:
                    return dict(box)
            assert time.monotonic() < deadline, f"the mouse never was over {selector}"

    def go_by_key(self, letter: str, condition: str) -> None:
        """The key g and a letter, again where so much time was between them that the page took them for two keys."""
        deadline = time.monotonic() + PATIENCE
        while not self.page.evaluate(condition):
            assert time.monotonic() < deadline, f"g and {letter} lead nowhere: {self.page.url}"
            self.page.keyboard.press("g")
            self.page.keyboard.press(letter)


@pytest.fixture
def open_tab(browser: Any) -> Iterator[Callable[..., Tab]]:
    """`open_tab(width=..., theme=...)`: a tab that must end without a problem."""
    contexts, tabs = [], []

    def make(width: int = 1280, height: int = 800, theme: str = "dark", **more: Any) -> Tab:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme, **more)
        contexts.append(context)
        tabs.append(Tab(context))
        return tabs[-1]

    yield make
    problems = [problem for tab in tabs for problem in tab.problems]
    for context in contexts:
        context.close()
    assert problems == []


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
