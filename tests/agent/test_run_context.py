"""Which files of an agent are named after its host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trainvitals.agent.log import Log
from trainvitals.agent.run_context import AgentServices, RunContext
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.run import Process, RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.settings import resolve


def host_token(folder: Path, **registered: Any) -> str | None:
    """As the agent of host `here` names its files, of the first process that has registered."""
    first = Registration(run_id="r", folder=str(folder), pid=1, host="here", **registered)
    machine = AgentServices("here", dict, list, dict, None, None, None)  # type: ignore[arg-type]
    settings = resolve({}, environ={}, folder=Path("/"))
    context = RunContext.of(first, settings, machine, Log(Path(os.devnull)).bind())
    return context.look_into_folder(first).host_token


def test_ranks_know_whether_others_are_elsewhere(tmp_path: Path) -> None:
    assert host_token(tmp_path) is None
    assert host_token(tmp_path, world_size=2, local_world_size=2) is None
    assert host_token(tmp_path, world_size=2, local_world_size=1) == "here"


@pytest.mark.parametrize(("leader", "token"), [("here", None), ("elsewhere", "here")])
def test_of_roles_only_the_host_that_leads_writes_without_its_name(
    tmp_path: Path, leader: str, token: str | None
) -> None:
    run_folder.write_run(tmp_path, RunFile(id="r", process=Process(pid=1, host=leader)))
    assert host_token(tmp_path, role="rollout") == token


@pytest.mark.parametrize(("host", "attempt", "token"), [("here", 1, None), ("here", 2, "here"), ("there", 1, "here")])
def test_an_agent_goes_on_with_the_names_of_the_one_before_it(
    tmp_path: Path, host: str, attempt: int, token: str | None
) -> None:
    run_folder.write_status(tmp_path, Status(host=host, attempt=attempt))
    assert host_token(tmp_path, world_size=2, local_world_size=1) == token
