"""What a program that calls init() and finish() reads about its run on a real terminal, and where it reads nothing."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from trainvitals.journal.encoding import encode_line
from trainvitals.journal.run_info import list_runs
from trainvitals.trainer.notices import find_last_loss

SCRIPT = """
import math, sys, trainvitals
run = trainvitals.init(project="p", name="mine")
for step in range(3):
    run.log({"train/loss": 0.5 - step / 10, "other": 1.0}, step=step)
run.log({"val/accuracy": 0.9}, step=3)
run.finish()
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    launcher = ("TRAINVITALS_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(launcher)}
    return {
        **kept,
        "TRAINVITALS_AGENT": "0",
        "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "runtime"),
        "TRAINVITALS_DIR": str(tmp_path / "runs"),
    }


def train(environ: dict[str, str], cwd: Path, script: str = SCRIPT, *, terminal: bool = True) -> tuple[str, list[str]]:
    """What the program wrote to standard output, and the lines on standard error, which is a terminal."""
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environ,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=theirs if terminal else subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    output, error = done.communicate()
    told = "" if terminal else error
    while terminal:
        try:
            told += os.read(ours, 65536).decode()
        except OSError:  # the other end is closed, and everything is read
            break
    os.close(ours)
    return output, told.replace("\r\n", "\n").splitlines()


def test_a_terminal_is_told_where_the_run_is_and_what_it_came_to(environ: dict[str, str], tmp_path: Path) -> None:
    output, told = train(environ, tmp_path)
    (run,) = list_runs(tmp_path / "runs")
    assert output == ""
    assert told == [
        f"trainvitals: run {run.id} in ./runs/p/{run.id}; watch it with: trainvitals top, trainvitals serve",
        f"trainvitals: run {run.id} finished, last step 3, train/loss 0.3",
        f"  folder ./runs/p/{run.id}, details: trainvitals runs show {run.id}",
    ]


def test_a_folder_that_commands_do_not_find_by_themselves_is_named(environ: dict[str, str], tmp_path: Path) -> None:
    _, told = train(environ, tmp_path, SCRIPT.replace("name=", "dir='else where', name="))
    (run,) = list_runs(tmp_path / "else where")
    assert told[0].endswith(f"trainvitals top './else where/p/{run.id}', trainvitals serve --dir './else where'")
    assert told[-1].endswith(f"trainvitals runs show './else where/p/{run.id}'")


def test_a_failure_is_called_one_and_alerts_are_counted(environ: dict[str, str], tmp_path: Path) -> None:
    script = """
    import trainvitals
    run = trainvitals.init()
    run.alerts.add_rule(name="high", condition=lambda m: m.loss > 1, message="high", severity="critical")
    run.log({"loss": 3.0}, step=0)
    run.log({"loss": float("nan")}, step=1)
    raise RuntimeError("boom")
    """
    _, told = train(environ, tmp_path, script)
    (run,) = list_runs(tmp_path / "runs")
    assert "RuntimeError: boom" in told
    assert told[-3:] == [
        f"trainvitals: run {run.id} failed, last step 1, loss NaN",
        f"  1 critical alert: trainvitals diagnose {run.id}",
        f"  folder ./runs/default/{run.id}, details: trainvitals runs show {run.id}",
    ]


@pytest.mark.parametrize(
    "more", [{"TRAINVITALS_SUMMARY": "0"}, {"RANK": "1", "WORLD_SIZE": "2"}, {"TRAINVITALS_RUN_DIR": "below"}]
)
def test_nothing_is_told_where_it_is_not_wanted(environ: dict[str, str], tmp_path: Path, more: dict[str, str]) -> None:
    assert train({**environ, **more}, tmp_path) == ("", [])


def test_nothing_is_told_where_standard_error_is_no_terminal(environ: dict[str, str], tmp_path: Path) -> None:
    assert train(environ, tmp_path, terminal=False) == ("", [])


def test_closed_streams_harm_nobody(environ: dict[str, str], tmp_path: Path) -> None:
    closing = "import sys\nsys.stderr.close()\n"
    assert train(environ, tmp_path, closing + SCRIPT) == ("", [])
    assert train(environ, tmp_path, f"import sys\nsys.stderr = None\n{SCRIPT}") == ("", [])
    assert [run.status for run in list_runs(tmp_path / "runs")] == ["finished", "finished"]


def test_the_last_loss_is_looked_for_backwards(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    rows = [{"step": 0, "loss": 1.0}, {"step": 1, "loss": 0.25}, {"step": 2, "other": 7.0}]
    file.write_bytes(b"".join(map(encode_line, rows)) + b'{"step": 3, "lo')
    assert find_last_loss(file) == "loss 0.25"
    file.write_bytes(encode_line(rows[2]))
    assert find_last_loss(file) == ""
