"""Names and texts come from files that anybody may have written: none of it moves a cursor or sets a title."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainvitals.views.cli.main import main

PROGRAM = (sys.executable, "-m", "trainvitals")
EVIL = "\x1b]0;owned\x07\x1b[31m\x1b[2J\u202ered\x9b5n\r\n"
"""A title, a colour, an empty screen, a change of direction, a question to the terminal, a new line."""


def poison(value: Any, path: str = "") -> Any:
    """The same document with EVIL in every text that is free, and in every key that people choose."""
    fixed = {
        "timestamp",
        "started",
        "ended",
        "created",
        "status",
        "state",
        "severity",
        "rule",
        "format",
        "folder",
        "dir",
    }
    if isinstance(value, dict):
        return {key: item if key in fixed else poison(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [poison(item) for item in value]
    return f"{EVIL}{value}" if isinstance(value, str) else value


@pytest.fixture
def evil_run(machine: Any, make_run: Callable[..., Path]) -> Path:
    gpu = {
        "gpu_index": 0, "gpu_uuid": f"GPU-{EVIL}", "gpu_name": f"H100 {EVIL}", "vendor": EVIL, "host": EVIL,
        "utilization_percent": 50.0, "temperature_celsius": 60.0, "memory_used_mb": 1.0, "memory_total_mb": 2.0,
        "throttle_reasons": EVIL, "power_draw_watts": 100.0,
    }  # fmt: skip
    event = {"event": EVIL, "severity": "warning", "message": EVIL, "host": EVIL, "rank": 0, "data": {EVIL: EVIL}}
    alert = {
        "state": "firing", "rule": f"r{EVIL}", "severity": "critical", "message": EVIL, "labels": {"gpu_uuid": EVIL},
        "advice": EVIL, "value": 1.0, "id": "x",
    }  # fmt: skip
    rows = [{"step": step, "loss": 1.0 / (step + 1), f"x{EVIL}": 1.0, "word": EVIL} for step in range(20)]
    folder = make_run("evil", rows=rows, gpus=[gpu] * 5, events=[event], alerts=[alert])
    run = json.loads((folder / "run.json").read_text())
    more = {
        "config": {EVIL: EVIL, "lr": EVIL}, "tags": [EVIL], "notes": EVIL, "command": [EVIL, EVIL], "cause": EVIL,
        "git": {"commit": EVIL, "branch": EVIL, "remote": EVIL}, "host": EVIL, "packages": {EVIL: EVIL},
        "program": EVIL, "python": EVIL, "user": EVIL, "status": "failed",
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps({**poison(run), **more}))
    status = {"attempt": 1, "state": "running", "cause": EVIL, "host": EVIL, "ranks": {"0": {"step": 3, "name": EVIL}}}
    (folder / "status.json").write_text(json.dumps(status))
    (folder / "console.rank0.log").write_text(f"printed {EVIL}\n")
    machine.runtime.mkdir(exist_ok=True)
    latest = {
        "written": time.time(), "host": EVIL,
        "samples": {f"nvidia{EVIL}": {"table": "gpu", "time": time.time(), "values": gpu, "labels": gpu}},
        "runs": [{"run_id": EVIL, "folder": str(folder), "project": EVIL, "name": EVIL, "state": EVIL}],
    }  # fmt: skip
    (machine.runtime / "latest.json").write_text(json.dumps(latest))
    return folder


COMMANDS = [
    ("runs",),
    ("runs", "show", "FOLDER"),
    ("runs", "check", "FOLDER"),
    ("alerts", "list"),
    ("alerts", "history", "FOLDER"),
    ("compare", "FOLDER", "FOLDER"),
    ("report", "FOLDER", "-o", "-", "--format", "md"),
    ("export", "FOLDER", "--format", "json"),
    ("export", "FOLDER", "--format", "csv", "--table", "events"),
    ("top", "FOLDER", "--once"),
    ("top", "--once"),
    ("doctor",),
    ("agent", "status"),
]


def dangerous(text: str) -> str:
    """The first thing in `text` that a terminal would obey."""
    for sign in ("\x1b]", "\x1b[2J", "\x9b", "\x07", "\u202e", "owned\x07"):
        if sign in text:
            place = text.index(sign)
            return repr(text[max(0, place - 60) : place + 40])
    return ""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.promise("escape sequences in any field of a run", "no command writes them to a terminal")
def test_no_command_hands_escape_sequences_of_files_to_a_terminal(
    machine: Any, evil_run: Path, terminal: Any, command: tuple[str, ...]
) -> None:
    words = [str(evil_run) if word == "FOLDER" else word for word in command]
    done = machine.run(*words)
    assert "Traceback" not in done.stderr
    if command[0] != "export":  # what goes to a file is exact
        assert dangerous(done.stdout) == "" and dangerous(done.stderr) == ""
    shown = terminal((*PROGRAM, *words))
    shown.wait()
    assert "Traceback" not in shown.text and dangerous(shown.text) == ""


@pytest.mark.promise("escape sequences in the name of a folder", "neither a message nor JSON hands them to a terminal")
def test_folder_names_messages_and_json_are_harmless(evil_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = evil_run.rename(evil_run.with_name("a\x1b]0;owned\x07\x9b5n\u202e"))
    table = folder / "table.csv"
    table.write_text(
        "step,lo\x9b5n\u202ess,word\n" + "".join(f"{n},{99 if n == 50 else 1},\x9b5n\n" for n in range(99))
    )
    run, column = str(folder), "lo\x9b5n\u202ess"
    for words in (
        ["runs", "show", run],
        ["runs", "show", run, "--json"],
        ["runs", "rm", run],
        ["diagnose", run, "--json"],
        ["analyze", run, "--json"],
        ["analyze", run, "--metric", "no\x9b5n"],
        ["compare", run, run, "--json"],
        ["alerts", "history", run, "--json"],
        ["alerts", "replay", run],
        ["detect", "--csv", str(table), "--value", "no"],
        ["detect", "--csv", str(table), "--value", column, "--json"],
        ["import", "csv", f"{run}/no\x9b5n"],
    ):
        main(words)
        printed = capsys.readouterr()
        assert printed.out + printed.err and dangerous(printed.out + printed.err) == "", words


@pytest.mark.promise("the same in `top`", "`top` does not obey them")
def test_the_dashboard_in_the_terminal_obeys_no_file(evil_run: Path, terminal: Any) -> None:
    screen = terminal((*PROGRAM, "top", str(evil_run)), rows=50, columns=200)
    screen.wait_for("loss")
    for key in "1234567890":
        screen.press(key)
        for _ in range(20):
            screen.read(0.05)
    screen.press("q")
    assert screen.wait() == 0 and "Traceback" not in screen.text
    assert [sign for sign in ("owned\x07", "\x9b", "\u202e", "\x1b]0;owned") if sign in screen.text] == []


@pytest.mark.promise("formulas in an exported CSV file", "a spreadsheet shows text")
def test_csv_cells_that_look_like_formulas_are_only_text(machine: Any, make_run: Callable[..., Path]) -> None:
    make_run(
        "sheet",
        rows=[{"step": 0, "loss": -1.5, "=cmd()": 1.0}],
        events=[{"event": "=HYPERLINK(1)", "message": "-2+3", "severity": "info"}, {"event": "@x", "message": "+1"}],
    )
    text = machine.run("export", "sheet", "--format", "csv").stdout
    assert "'=cmd()" in text and ",-1.5," in text
    events = machine.run("export", "sheet", "--format", "csv", "--table", "events").stdout
    table = machine.folder / "table.csv"
    table.write_text("step,loss,=note\n" + "".join(f"{n},{99 if n == 50 else -1},=cmd()\n" for n in range(99)))
    found = machine.run("detect", "--csv", str(table), "--value", "loss").stdout
    assert found.splitlines()[0] == "step,loss,'=note,anomaly,score" and found.splitlines()[1].startswith(
        "50,99,'=cmd(),"
    )
    assert "'=HYPERLINK(1)" in events and "'-2+3" in events and "'@x" in events and "'+1" in events
