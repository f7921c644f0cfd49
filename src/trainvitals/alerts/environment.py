"""Whose environment variables an address is filled from. Tested in tests/alerts/test_agent.py."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trainvitals.settings.secrets import Environment
from trainvitals.trackers.intake.process import without_program


def process_environment(pid: int | None) -> Environment:
    """Looks variables up in `read_environment`."""
    return read_environment(pid).get


def read_environment(pid: int | None) -> Mapping[str, str]:
    """This process's environment, and before it that of the training: the agent may be older than the shell the
    training was started from. What cannot be read is not there, nor is what `trainvitals run` has put there."""
    theirs: Mapping[str, str] = {}
    if pid is not None:
        import psutil

        try:
            theirs = psutil.Process(pid).environ()
        except (psutil.Error, OSError):
            theirs = {}
    return without_program({**os.environ, **{name: value for name, value in theirs.items() if value}})
