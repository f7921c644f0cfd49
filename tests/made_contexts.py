"""Contexts of runs that no agent watches, for tests of what an agent does with one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trainvitals.agent.late_exports import LateExports
from trainvitals.agent.log import Log
from trainvitals.agent.run_context import AgentServices, RunContext
from trainvitals.agent.sealing import Sealer
from trainvitals.agent.shipping import Shipping
from trainvitals.agent.wanted import find_pages
from trainvitals.settings import resolve


def make_context(folder: Path, sealer: Sealer | None = None, **settings: Any) -> RunContext:
    """Run `r` on host `here`, with correlation id `abc`."""
    log = Log(Path(os.devnull)).bind()
    late, shipping = LateExports("here", log), Shipping("here", log)
    machine = AgentServices("here", dict, list, dict, sealer, late, shipping)  # type: ignore[arg-type]
    resolved = resolve(settings, environ={}, folder=Path("/"))
    pages = find_pages(resolved, os.environ.get, pytest.fail)
    return RunContext("r", folder, resolved, "abc", machine, False, log, pages)
