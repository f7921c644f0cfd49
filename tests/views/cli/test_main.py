"""`trainvitals` itself: quick, and clear about what it does not understand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE

from trainvitals.views.cli.main import COMMANDS

PROGRAM = (sys.executable, "-m", "trainvitals")
# Tells which modules a command imported, after it has done its work.
LIST_MODULES = (
    "import sys, json; from trainvitals.views.cli.main import main; code = main(sys.argv[1:]); "
    "print(json.dumps(sorted(sys.modules)), file=sys.stderr); sys.exit(code)"
)
HEAVY = {"numpy", "duckdb", "psutil", "yaml", "pynvml", "torch", "textual"}


def imported_by(machine: Any, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LIST_MODULES, *arguments],
        env=machine.environ,
        cwd=machine.folder,
        text=True,
        capture_output=True,
        check=True,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_help_names_every_command(machine: Any) -> None:
    done = machine.run("--help")
    assert done.returncode == 0
    for name, _, help in COMMANDS:
        assert name in done.stdout
        assert help in done.stdout


def test_without_arguments_it_is_the_help(machine: Any) -> None:
    assert machine.run().stdout == machine.run("--help").stdout


def test_help_imports_nothing_heavy(machine: Any) -> None:
    assert not imported_by(machine, "--help") & {*HEAVY, "orjson", "argparse"}


def test_listing_runs_imports_nothing_heavy(machine: Any) -> None:
    machine.run("run", "--", "true")
    imported = imported_by(machine, "runs")
    assert not imported & HEAVY
    assert "trainvitals.journal.folder" in imported


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
def test_every_command_has_help(machine: Any, name: str) -> None:
    done = machine.run(name, "--help")
    assert done.returncode == 0, done.stderr
    assert f"usage: trainvitals {name}" in done.stdout


def test_an_unknown_command_suggests_the_nearest(machine: Any) -> None:
    done = machine.run("mointor")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown command 'mointor', did you mean 'monitor'?" in done.stderr


def test_an_unknown_flag_of_a_command_suggests_the_nearest(machine: Any) -> None:
    done = machine.run("runs", "--statsu", "failed")
    assert done.returncode == 2
    assert "unknown flag '--statsu', did you mean '--status'?" in done.stderr
    assert "trainvitals runs list --help" in done.stderr


def test_an_unknown_action_suggests_the_nearest(machine: Any) -> None:
    done = machine.run("runs", "shwo", "latest")
    assert done.returncode == 2
    assert "unknown action 'shwo', did you mean 'show'?" in done.stderr


def test_an_unknown_action_without_a_near_one_lists_them(machine: Any) -> None:
    done = machine.run("config", "frobnicate")
    assert done.returncode == 2
    assert "unknown action 'frobnicate', one of show, convert" in done.stderr


def test_a_flag_is_not_guessed_from_its_beginning(machine: Any) -> None:
    assert machine.run("runs", "--stat", "failed").returncode == 2


def test_a_word_too_many_is_named(machine: Any) -> None:
    done = machine.run("version", "please")
    assert done.returncode == 2
    assert "unexpected argument 'please'" in done.stderr


def test_escape_sequences_in_a_mistake_do_not_reach_the_terminal(machine: Any) -> None:
    assert "\x1b" not in machine.run("\x1b[31mred").stderr


def test_a_setting_that_cannot_be_used_is_a_usage_error(machine: Any) -> None:
    done = machine.run("runs", environ={"TRAINVITALS_INTERVAL": "often"})
    assert done.returncode == 2
    assert "setting 'interval' (TRAINVITALS_INTERVAL)" in done.stderr


def test_a_run_that_is_not_there_is_an_error(machine: Any) -> None:
    done = machine.run("runs", "show", "nothing")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no run 'nothing'" in done.stderr


def test_a_reader_that_leaves_is_no_reason_to_complain(machine: Any) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [*PROGRAM, "config"],
        env=machine.environ,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert process.stderr == ""
    assert process.returncode == 141


def test_ctrl_c_ends_quietly(machine: Any) -> None:
    process = machine.start("agent", "log", "-f")
    while not machine.runtime.exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert (output, errors, process.returncode) == ("", "", 130)


def test_a_disk_that_is_full_is_said_plainly(machine: Any) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*PROGRAM, "version"],
            env=machine.environ,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("trainvitals: No space left on device")
    assert "Traceback" not in done.stderr


def test_colours_on_a_terminal_only(machine: Any, terminal: Callable[..., Any]) -> None:
    assert "\x1b[" not in machine.run("config").stdout
    session = terminal([*PROGRAM, "config"])
    assert session.wait() == 0
    assert "\x1b[" in session.text


def test_no_color_is_respected(terminal: Callable[..., Any]) -> None:
    session = terminal([*PROGRAM, "config"], NO_COLOR="1")
    assert session.wait() == 0
    assert "interval" in session.text
    assert "\x1b[" not in session.text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("command", [("runs",), ("runs", "show", "latest"), ("config",), ("runs", "--json")])
def test_output_that_is_not_utf_8_is_no_reason_to_fail(
    machine: Any, make_run: Callable[..., Path], command: tuple[str, ...], encoding: str
) -> None:
    make_run("naïve", project="été 😀", rows=[{"step": 0, "lößung 😀": 1.0}])
    done = machine.run(*command, environ={"PYTHONIOENCODING": encoding}, encoding=encoding)
    assert done.returncode == 0, done.stderr
    if "--json" in command:
        assert json.loads(done.stdout)[0]["project"] == "été 😀"


@pytest.mark.parametrize(
    "command",
    [
        ("runs",),
        ("run", "--", sys.executable, "-c", "import trainvitals; trainvitals.init(); trainvitals.init()"),
        ("run", "--", sys.executable, "-m", "trainvitals", "runs"),
        ("demo", "--seconds", "0", "--steps", "2"),
    ],
    ids=["runs", "run", "a command below run", "demo"],
)
def test_a_variable_that_names_no_setting_is_said_once(machine: Any, command: tuple[str, ...]) -> None:
    done = machine.run(*command, environ={"TRAINVITALS_INTERVALL": "2"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("TRAINVITALS_INTERVALL") == 1
    assert "did you mean 'TRAINVITALS_INTERVAL'?" in done.stderr


def test_the_version_is_told(machine: Any) -> None:
    import trainvitals

    assert machine.run("--version").stdout == f"trainvitals {trainvitals.__version__}\n"
    found = json.loads(machine.run("version", "--json").stdout)
    assert found["trainvitals"] == trainvitals.__version__
    assert found["numpy"] is not None
    assert "numpy" in machine.run("version").stdout


def test_everything_can_be_imported_where_there_is_no_unix(machine: Any) -> None:
    script = (
        "import sys, pkgutil, importlib\n"
        "for name in ('fcntl', 'resource', 'termios', 'pty', 'pwd', 'grp', 'tty'): sys.modules[name] = None\n"
        "import trainvitals.views.cli as room\n"
        "for item in pkgutil.iter_modules(room.__path__): importlib.import_module(f'{room.__name__}.{item.name}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=machine.environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
