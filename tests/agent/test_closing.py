"""When a run has ended, and what is waited for before that is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_contexts import make_context

from trainvitals.agent.closing import JOIN_SECONDS, WRAPPER_SECONDS, Closing
from trainvitals.agent.liveness import EXIT_STATUS_SECONDS, WatchedRank
from trainvitals.agent.ranks import Ranks
from trainvitals.agent.run_account import RunAccount
from trainvitals.agent.run_parts import RunParts
from trainvitals.journal import folder as run_folder
from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import Registration, new_registration
from trainvitals.journal.documents.run import COMMAND, new_run
from trainvitals.journal.encoding import format_time

BEGAN = 1.0
GONE = 2**22 + 7
"""No process has this number: it is beyond the largest that Linux gives."""


class Ended:
    """A command that is gone, as its agent sees it."""

    def __init__(self, folder: Path) -> None:
        context = make_context(folder)
        self.ranks = Ranks()
        self.account = RunAccount(folder, 1)
        self.parts = RunParts(context, 1, self.ranks)
        self.closing = Closing(context, self.account, self.ranks, self.parts)
        self.command = replace(new_registration(folder, GONE, kind=COMMAND), host=context.host)
        self.join(self.command)

    def join(self, registration: Registration) -> None:
        path = registrations.register(registration)
        rank = WatchedRank(registration, path, BEGAN, None)
        rank.look(BEGAN + EXIT_STATUS_SECONDS + 1, frozenset())
        assert rank.is_over
        self.ranks.add(rank)


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ended:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    folder = tmp_path / "p" / "r"
    folder.mkdir(parents=True)
    return Ended(folder)


def test_the_wrapper_gets_a_moment_to_write_the_exit_status(ended: Ended) -> None:
    assert not ended.closing.is_end_known(BEGAN + WRAPPER_SECONDS - 0.1)
    assert ended.closing.is_end_known(BEGAN + WRAPPER_SECONDS + 0.1)


def test_a_rank_that_registered_and_was_gone_before_anybody_looked_is_waited_for(ended: Ended) -> None:
    late = replace(ended.command, kind="training")
    registrations.register(late)
    assert not ended.closing.is_end_known(100.0), "what it logged is not counted yet"
    ended.join(late)
    assert ended.closing.is_end_known(100.1)


def test_a_rank_that_nobody_can_join_is_not_waited_for_without_end(ended: Ended) -> None:
    registrations.register(replace(ended.command, kind="training"))
    assert not ended.closing.is_end_known(100.0)
    assert ended.closing.is_end_known(100.1 + JOIN_SECONDS)


def test_ranks_of_other_runs_and_hosts_are_not_waited_for(ended: Ended) -> None:
    registrations.register(replace(ended.command, kind="training", run_id="other", folder="/elsewhere"))
    registrations.register(replace(ended.command, kind="training", host="another"))
    assert ended.closing.is_end_known(100.0)


@pytest.mark.parametrize(("seconds", "kept"), [(59, False), (61, True)])
def test_findings_are_kept_of_a_long_run_that_logged_little(
    ended: Ended, monkeypatch: pytest.MonkeyPatch, seconds: int, kept: bool
) -> None:
    """One line per epoch, or a benchmark: the overview names its findings, so the list has to count them."""
    folder = Path(ended.command.folder)
    run = replace(new_run("r", kind="training", project="p", name="r", facts={}, pid=GONE), started=format_time(BEGAN))
    run_folder.write_run(folder, run.end("finished", when=BEGAN + seconds))
    asked: list[bool] = []
    monkeypatch.setattr(ended.parts.seals, "request_last", lambda _, diagnose: asked.append(diagnose))
    ended.closing.request_seals()
    assert asked == [kept]
