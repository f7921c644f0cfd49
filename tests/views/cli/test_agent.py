"""`trainvitals agent`: start, status, stop, log, systemd-unit."""

from __future__ import annotations

import json
import re
import signal
import sys
from typing import Any

import pytest
from waiting import PATIENCE


def test_without_an_agent_every_action_says_so(machine: Any) -> None:
    assert "no agent is running" in machine.run("agent", "status").stdout
    assert json.loads(machine.run("agent", "status", "--json").stdout) is None
    assert machine.run("agent", "stop").stdout == "no agent was running\n"
    done = machine.run("agent", "log")
    assert done.returncode == 1
    assert "no log yet" in done.stderr


def test_an_agent_is_started_once_and_stopped(machine: Any) -> None:
    first = machine.run("agent")
    pid = int(re.fullmatch(r"agent running as process (\d+)\n", first.stdout)[1])
    assert f"process {pid}" in machine.run("agent", "start").stdout
    assert json.loads(machine.run("agent", "status", "--json").stdout)["pid"] == pid
    assert f"process {pid}" in machine.run("agent", "status").stdout
    assert machine.run("agent", "stop").stdout == "agent stopped\n"
    assert json.loads(machine.run("agent", "status", "--json").stdout) is None


def test_a_second_agent_of_another_kind_is_refused(machine: Any) -> None:
    machine.run("agent", "start")
    for flag in ("--keep", "--foreground"):
        done = machine.run("agent", "start", flag)
        assert done.returncode == 1
        assert "trainvitals agent stop" in done.stderr


def test_an_agent_can_be_told_to_stay(machine: Any) -> None:
    machine.run("agent", "--keep")
    assert json.loads(machine.run("agent", "status", "--json").stdout)["keep"] is True
    assert "as a service" in machine.run("agent", "status").stdout


def test_in_the_foreground_it_prints_its_log_and_ends_by_ctrl_c(machine: Any) -> None:
    process = machine.start("agent", "start", "--foreground")
    first = json.loads(process.stderr.readline())
    assert first["message"] == "agent started"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


def test_status_shows_the_runs_and_the_sources(watched_machine: Any) -> None:
    process = watched_machine.start("run", "--simulate-gpus", "1", "--interval", "0.2", "--", "sleep", "600")
    wanted = (
        r" running +0 +- ",  # the command itself is not a rank
        r"simulated:SIM-\S+ +ok +\d+\.\d s +\d+\.\d ms",
        r"amd +none +no AMD GPU",
    )
    text = ""
    while not all(re.search(pattern, text) for pattern in wanted):  # they come one after the other
        assert process.poll() is None, text
        text = watched_machine.run("agent", "status").stdout
    assert watched_machine.only_run()[0].name in text
    stopped = watched_machine.run("agent", "stop")
    assert "a run is still active" in stopped.stderr
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    # With the command its run is over, also where the agent has not looked since.
    assert not re.search(r" running +\d", watched_machine.run("agent", "status").stdout)


def test_the_log_is_readable_and_as_it_is_with_json(machine: Any) -> None:
    machine.run("agent")
    machine.run("agent", "stop")
    text = machine.run("agent", "log").stdout
    assert "agent started" in text
    assert "agent stopped" in text
    rows = [json.loads(line) for line in machine.run("agent", "log", "--json").stdout.splitlines()]
    assert rows[0]["message"] == "agent started"
    assert all(row["correlation_id"] for row in rows)
    assert len(machine.run("agent", "log", "-n", "1").stdout.splitlines()) == 1


def test_the_log_can_be_followed(machine: Any) -> None:
    machine.run("agent")
    done = machine.interrupt_when(
        lambda output: "agent started" in output and machine.run("agent", "stop") and "agent stopped" in output,
        *("agent", "log", "-f"),
    )
    assert done.returncode == 130


def test_the_unit_starts_this_python(machine: Any) -> None:
    text = machine.run("agent", "systemd-unit").stdout
    assert f'ExecStart="{sys.executable}" -P -m trainvitals.agent --keep' in text
    assert "User=" in machine.run("agent", "systemd-unit", "--system").stdout


@pytest.mark.parametrize("word", ["sttaus", "restart"])
def test_an_unknown_action_is_named(machine: Any, word: str) -> None:
    done = machine.run("agent", word)
    assert done.returncode == 2
    assert f"unknown action '{word}'" in done.stderr
