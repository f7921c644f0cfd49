"""The settings of a run's own process: the agent's environment does not affect them.
Tested in tests/agent/test_agent.py."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainvitals import settings as settings_room
from trainvitals.agent.log import BoundLog
from trainvitals.alerts.environment import process_environment
from trainvitals.errors import SettingError
from trainvitals.journal.documents.registration import Registration
from trainvitals.settings import Settings
from trainvitals.settings.secrets import Environment


def resolve_of_run(registration: Registration, log: BoundLog) -> Settings:
    """Those of a process that registered itself; the defaults, if they cannot be understood."""
    try:
        return resolve_given(registration.settings, log, process_environment(registration.pid))
    except SettingError as error:  # a trainer of another version
        log.warning("invalid settings of a run", run_id=registration.run_id, error=str(error))
        return settings_room.resolve(environ={}, folder=Path("/"))


def resolve_given(values: Mapping[str, Any], log: BoundLog, environment: Environment = os.environ.get) -> Settings:
    """Those that another process wrote down; `environment` is where its variables are."""
    known = {row.name for row in settings_room.TABLE}
    given = {name: value for name, value in values.items() if name in known}
    # A variable counts only if the run's process reports that a value with a secret is in it.
    variables = {
        value.removeprefix("config:$").rpartition("#")[0]
        for value in given.values()
        if isinstance(value, str) and value.startswith("config:$")
    }
    environ = {name: environment(name) or "" for name in variables}
    found = settings_room.resolve(given, environ=environ, folder=Path("/"))
    for text in found.ignored_files:
        log.warning("settings", reason=text)
    return found
