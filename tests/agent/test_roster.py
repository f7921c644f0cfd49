"""The registrations, as the agent reads them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainvitals.agent.log import Log
from trainvitals.agent.roster import Roster
from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import Registration


@pytest.fixture
def roster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Roster:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path))
    return Roster(tmp_path, "here", Log(tmp_path / "agent.log").bind())


def registration(run_id: str, host: str = "here", pid: int = 1) -> Registration:
    return Registration(run_id=run_id, folder="/folder", rank=0, pid=pid, pid_start=None, host=host)


def test_before_anybody_has_registered_there_is_nobody(roster: Roster) -> None:
    assert roster.read() == {}


def test_the_registrations_of_this_host_are_read_newest_first(roster: Roster, tmp_path: Path) -> None:
    names = ["20260101-a", "20260102-b", "20260103-c"]
    paths = [registrations.register(registration(name)) for name in names]
    registrations.register(registration("20260104-d", host="elsewhere"))
    (tmp_path / "runs" / "foreign.json").write_text("[1, 2")
    (tmp_path / "runs" / ".half.json.1.tmp").write_text("{}")
    assert list(roster.read()) == paths[::-1]


def test_a_registration_that_changed_is_read_again_and_one_that_went_is_forgotten(roster: Roster) -> None:
    path = registrations.register(registration("a", pid=1))
    gone = registrations.register(registration("b"))
    assert roster.read()[path].pid == 1
    registrations.register(registration("a", pid=2))
    gone.unlink()
    assert roster.has_changed()
    assert {key: item.pid for key, item in roster.read().items()} == {path: 2}


def test_a_folder_that_has_settled_is_not_read_again(roster: Roster, tmp_path: Path) -> None:
    registrations.register(registration("a"))
    os.utime(tmp_path / "runs", (1000, 1000))
    roster.read()
    assert not roster.has_changed()
    roster.look_again()
    assert roster.has_changed()


@pytest.mark.promise(
    "a registration of another user in a shared runtime folder", "it is not used, and logged once", area="Other users"
)
def test_a_registration_that_somebody_else_may_have_written_is_not_used_and_logged_once(
    roster: Roster, tmp_path: Path
) -> None:
    mine = registrations.register(registration("a"))
    theirs, writable = registrations.register(registration("b")), registrations.register(registration("c"))
    os.chown(theirs, 12345, 12345)
    writable.chmod(0o666)
    for _ in range(2):
        roster.look_again()
        assert list(roster.read()) == [mine]
        os.utime(theirs)
    text = (tmp_path / "agent.log").read_text()
    assert text.count("it belongs to user 12345") == 1 and text.count("others may write it") == 1
    assert [path for path, _ in registrations.read_all()] == [mine]
