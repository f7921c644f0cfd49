"""Run folders of every kind, and Debian's Chromium."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import LineWriter

BEGAN = 1_790_000_000.0
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">|`*_&amp;"
SECRET = "hf_" + "aB3" * 12

Write = Callable[..., Path]


def rows_of(steps: int, scale: float = 1.0) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "loss": math.nan if step == 60 else scale * math.exp(-step / 80) + 0.01 * ((step * 7919) % 13),
            "learning_rate": 1e-3,
            "batch_time": 0.02,
            "data_time": 0.005,
            "forward_time": 0.015,
            HOSTILE: step % 3,
        }
        for step in range(steps)
    ]


def gpu_rows(seconds: int, count: int = 2, simulated: bool = True) -> list[dict[str, Any]]:
    return [
        {
            "gpu_index": index,
            "gpu_uuid": f"GPU-{index}",
            "gpu_name": "Simulated GPU",
            **({"simulated": 1} if simulated else {}),
            "utilization_percent": 90.0 + index % 5,
            "memory_percent": 50.0,
            "memory_used_mb": 40_960.0,
            "memory_total_mb": 81_920.0,
            "temperature_celsius": 60.0,
            "power_draw_watts": 400.0,
        }
        for _ in range(seconds)
        for index in range(count)
    ]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a run folder and returns it."""

    def make(
        name: str = "baseline",
        rows: Sequence[Mapping[str, Any]] | None = None,
        *,
        gpus: Sequence[Mapping[str, Any]] = (),
        alerts: Sequence[Mapping[str, Any]] = (),
        gpu_count: int = 2,
        **details: Any,
    ) -> Path:
        folder = tmp_path / "runs" / "p" / run_folder.new_run_id("run")
        run_folder.create(folder)
        run_folder.write_run(
            folder,
            RunFile.parse(
                {
                    "format": 1,
                    "id": folder.name,
                    "project": "p",
                    "name": name,
                    "kind": "training",
                    "status": "finished",
                    "attempt": 1,
                    "started": format_time(BEGAN),
                    "ended": format_time(BEGAN + 200),
                    **details,
                }
            ),
        )
        rows = rows_of(200) if rows is None else rows
        for table, lines, each in (("training", rows, 1), ("gpu", gpus, gpu_count), ("alerts", alerts, 1)):
            writer = LineWriter(folder, FileName(table, 1, ""))
            for place, row in enumerate(lines):
                writer.append(encode_line({"timestamp": format_time(BEGAN + place // each), **row}))
            writer.close()
        return folder

    return make


@pytest.fixture
def open_file(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file as a reader would, without a network, and insists that nothing goes wrong in it."""
    contexts: list[Any] = []
    problems: list[str] = []
    requests: list[str] = []

    def open_one(path: Path, hash: str = "", theme: str = "light") -> Any:
        context = browser.new_context(color_scheme=theme, offline=True, viewport={"width": 1280, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{path.as_uri()}{hash}")
        page.wait_for_selector("main h1, main h2, main .health")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
