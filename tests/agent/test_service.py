"""The agent as a service."""

from __future__ import annotations

import configparser
import shlex

import pytest

from trainvitals.agent.service import systemd_unit


@pytest.mark.parametrize("executable", ["/usr/bin/python3", "/home/me/my venv/bin/python", '/odd/100%/"q"/python'])
def test_the_unit_runs_this_interpreter_whatever_its_path(executable: str) -> None:
    unit = configparser.RawConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(systemd_unit(executable))
    command = shlex.split(unit["Service"]["ExecStart"].replace("%%", "%"))
    assert command == [executable, "-P", "-m", "trainvitals.agent", "--keep"]
    assert unit["Install"]["WantedBy"] == "default.target"


def test_a_unit_for_the_machine_says_as_whom() -> None:
    text = systemd_unit("/usr/bin/python3", user=False)
    assert "\nUser=" in text and "WantedBy=multi-user.target" in text
    assert "User=" not in systemd_unit("/usr/bin/python3")
