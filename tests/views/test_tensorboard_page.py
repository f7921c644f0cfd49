"""TensorBoard's own page in a browser, of a run that is mirrored while it goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, free_port, wait_until

from trainvitals.exporters import tensorboard
from trainvitals.exporters.rows import RunDescription, RunRow
from trainvitals.exporters.tensorboard import TensorBoardMirror
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import format_time
from trainvitals.settings import resolve

START = 1_800_000_000.0


def make_rows(steps: Sequence[int]) -> list[RunRow]:
    return [
        RunRow(
            "training",
            0,
            {"timestamp": format_time(START + step), "step": step, "loss": 1.0 / (step + 1)},
            file="training_metrics_20260101_000000.rank0",
            line=step + 1,
        )
        for step in steps
    ]


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[TensorBoardMirror]:
    about = RunFile(id="r", name="base", created=format_time(START), config={"lr": 0.1}, notes="a *note*")
    run_folder.write_run(tmp_path, about)
    found = tensorboard.create("on", resolve(environ={}, folder=Path("/")))
    found.open(RunDescription("r", tmp_path, "box", 1, about))
    yield found
    found.close(None)


@pytest.fixture
def board(tmp_path: Path, mirror: TensorBoardMirror) -> Iterator[str]:
    """The address of the real TensorBoard, which looks for news every second."""
    port = free_port()
    command = [
        sys.executable,
        "-c",
        "import sys, types; sys.modules['tensorboard.compat.notf'] = types.ModuleType('n')\n",
    ]
    command[-1] += "from tensorboard.main import run_main; run_main()"
    command += ["--logdir", str(tmp_path / "tensorboard"), "--port", str(port), "--reload_interval", "1"]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


def ask(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return json.loads(answer.read())
    except (OSError, ValueError, urllib.error.HTTPError):
        return None


def test_the_page_shows_a_run_that_goes_on(board: str, mirror: TensorBoardMirror, browser: Any) -> None:
    mirror.write(make_rows(range(10)))
    tags = f"{board}/data/plugin/scalars/tags"
    wait_until(lambda: "training/loss" in (ask(tags) or {}).get(".", {}), "the tags")
    page = browser.new_page()
    page.goto(f"{board}/#timeseries")
    page.locator("scalar-card", has_text="loss").first.wait_for(timeout=PATIENCE * 1000)
    page.close()
    mirror.write(make_rows(range(10, 20)))
    points = f"{board}/data/plugin/scalars/scalars?run=.&tag=training%2Floss"
    wait_until(lambda: len(ask(points) or ()) == 20, "the rows that came later")
    assert [step for _, step, _ in ask(points)] == list(range(20))
    assert "notes/text_summary" in ask(f"{board}/data/plugin/text/tags")["."]
