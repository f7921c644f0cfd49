"""`trainvitals top` as a command, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from waiting import PATIENCE

COMMAND = [sys.executable, "-m", "trainvitals.views.cli.main", "top"]


def top(*words: str, columns: int = 100, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": str(columns), **environ}
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
    )


def test_once_prints_one_frame_as_plain_text(folder: Path) -> None:
    result = top(str(folder), "--once")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "baseline" in lines[0] and "FINISHED" in lines[0]
    assert "\x1b" not in result.stdout
    assert max(map(len, lines)) <= 100 and len(lines) < 60


def test_once_shows_this_machine_where_nothing_runs() -> None:
    result = top("--once", "--simulate-gpus", "2", "--interval", "0.2", columns=80)
    assert result.returncode == 0, result.stderr
    assert "SIMULATED" in result.stdout and "CPU" in result.stdout


def test_json_has_the_numbers_and_nothing_else(folder: Path) -> None:
    result = top(str(folder), "--json", "--gpu", "1,2")
    content = json.loads(result.stdout)
    assert [gpu["index"] for gpu in content["gpus"]] == ["1", "2"]
    assert content["health"]["word"] == "finished"
    assert content["run"]["values"]["learning_rate"] == 0.001
    assert "cause" in content["run"] and "fan_speed_percent" not in content["gpus"][0]["values"]


def test_without_a_terminal_it_says_what_to_do() -> None:
    result = top()
    assert result.returncode == 2
    assert "--once" in result.stderr


def test_a_run_that_is_not_there_is_an_error_with_a_hint(folder: Path, tmp_path: Path) -> None:
    result = top("basline", "--dir", str(tmp_path / "runs"), "--once")
    assert result.returncode == 1 and "trainvitals runs" in result.stderr
    assert top("--theme", "pink", "--once").returncode == 2
    assert top("--interval", "0").returncode == 2


def test_a_reader_that_goes_away_is_no_crash(folder: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, str(folder), "--once"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    told = process.stderr.read()
    process.stderr.close()
    assert process.wait(PATIENCE) in (0, 141)
    assert b"Traceback" not in told
