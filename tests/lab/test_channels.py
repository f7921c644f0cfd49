"""Machines behind a real ssh server: what works, and every way in which it does not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from far_runs import log, make_run
from sshd import PROGRAM, Sshd, SshWorld
from waiting import wait_until

from trainvitals.errors import MachineError
from trainvitals.lab import channels, machines
from trainvitals.lab.channels import PipeChannel, explain_end, far_command, open_channel
from trainvitals.lab.machines import MachineState
from trainvitals.lab.places import parse_place, parse_places
from trainvitals.lab.runs import MachineRuns, open_machines


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Runs of the far machine."""
    root = tmp_path / "runs"
    make_run(root, "one")
    return root


OPENED: list[MachineRuns] = []


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Machines are asked again soon, and not by a test that has ended: the next one has machines of the same names."""
    monkeypatch.setattr(machines, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(machines, "LONGEST_PAUSE", 0.2)
    yield
    while OPENED:
        OPENED.pop().stop()


def environment(root: Path, runtime: str = "runtime") -> dict[str, str]:
    return {"TRAINVITALS_DIR": str(root), "TRAINVITALS_RUNTIME_DIR": str(root.parent / runtime)}


def open_all(*names: str, command: str = PROGRAM) -> MachineRuns:
    runs = open_machines(parse_places(names), command, Path("/nowhere"), dict)
    OPENED.append(runs)
    runs.start()
    runs.wait(600)
    return runs


def state_of(runs: MachineRuns, name: str) -> MachineState:
    return next(state for state in runs.states if state.name == name)


def test_over_ssh(ssh_world: SshWorld, root: Path, tmp_path: Path) -> None:
    ssh_world.add("gpu1", environment(root))
    other = tmp_path / "my other 'runs'"
    make_run(other, "two")
    runs = open_all("gpu1", f"gpu1:{other}")
    assert [(state.name, state.word, state.runs) for state in runs.states] == [("gpu1", "up", 1), ("gpu1-2", "up", 1)]
    assert runs.list_keys() == ["gpu1:one", "gpu1-2:two"]
    assert runs.open("gpu1-2:two").series(["loss"])[0].y.tolist() == [1 / 3, 1 / 4, 1 / 5]
    assert state_of(runs, "gpu1").version and state_of(runs, "gpu1").host == os.uname().nodename
    runs.stop()
    for server in ssh_world.servers:
        wait_until(lambda server=server: not server.readers(), "the far sides to end with us")  # type: ignore[misc]


def test_what_a_login_shell_prints_is_skipped(ssh_world: SshWorld, root: Path) -> None:
    words = f"ForceCommand echo 'Welcome to gpu1'; printf 'no newline'; {PROGRAM} reader"
    ssh_world.add("gpu1", environment(root), words)
    runs = open_all("gpu1")
    assert state_of(runs, "gpu1").word == "up" and runs.list_keys() == ["gpu1:one"]
    runs.stop()


@pytest.mark.promise(
    "another machine is switched off while it is watched",
    "its last data stays, it is shown as down, and nothing is missing or duplicated when it is back",
)
def test_a_machine_that_is_switched_off_and_comes_back(ssh_world: SshWorld, root: Path, tmp_path: Path) -> None:
    server = ssh_world.add("gpu1", environment(root))
    make_run(tmp_path / "others", "two", at=1_800_000_500.0)
    ssh_world.add("gpu2", environment(tmp_path / "others", "runtime2"))
    runs = open_all("gpu1", "gpu2")
    feed = runs.open("gpu1:one").follow(from_end=True)
    log(root / "p" / "one", 3)
    assert [row["step"] for _, row in feed.poll()] == [3]
    server.end()
    wait_until(lambda: state_of(runs, "gpu1").word == "down", "it to be noticed")
    assert runs.list_keys() == ["gpu1:one", "gpu2:two"] and runs.describe("gpu1:one").name == "one"
    with pytest.raises(MachineError, match="gpu1 is down"):
        feed.poll()
    assert state_of(runs, "gpu2").word == "up" and runs.open("gpu2:two").names() == ["loss"]
    log(root / "p" / "one", 4, 5)
    server.start()
    wait_until(lambda: state_of(runs, "gpu1").word == "up", "it to be back")
    assert [row["step"] for _, row in feed.poll()] == [4, 5]
    runs.stop()


@pytest.mark.promise(
    "another machine hangs: it accepts connections but does not respond",
    "it is shown as slow, then as down; requests for its runs fail immediately; other machines are not delayed",
)
def test_a_machine_that_hangs(ssh_world: SshWorld, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ssh_world.add("gpu1", environment(root))
    make_run(tmp_path / "others", "two")
    ssh_world.add("gpu2", environment(tmp_path / "others", "runtime2"))
    runs = open_all("gpu1", "gpu2")
    reader = runs.open("gpu1:one")
    assert reader.names() == ["loss"]

    server.signal(signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(machines, "SLOW_SECONDS", 0.3)
        wait_until(lambda: state_of(runs, "gpu1").word == "slow", "it to be slow")
        with pytest.raises(MachineError, match="gpu1 is slow: no answer for"):
            reader.names()
    server.signal(signal.SIGCONT)
    assert reader.names() == ["loss"]

    server.signal(signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(machines, "DEADLINE_SECONDS", 0.5)
        wait_until(lambda: state_of(runs, "gpu1").word == "down", "it to be down")
    # A question from before has a longer deadline, and then it is ssh that gives up.
    with pytest.raises(MachineError, match=r"gpu1 is down: (no answer within|the connection was lost)"):
        reader.names()
    heard = state_of(runs, "gpu2").heard
    wait_until(lambda: state_of(runs, "gpu2").heard != heard, "the other one to be asked on")
    assert runs.list_keys() == ["gpu1:one", "gpu2:two"]
    server.signal(signal.SIGCONT)
    wait_until(lambda: state_of(runs, "gpu1").word == "up", "it to answer again")
    assert reader.names() == ["loss"]
    runs.stop()


def test_only_the_far_side_hangs_or_dies_in_the_middle(ssh_world: SshWorld, root: Path) -> None:
    server = ssh_world.add("gpu1", environment(root))
    channel = open_channel(parse_place("gpu1"), PROGRAM)
    assert isinstance(channel, PipeChannel)
    assert channel.ask({"ask": "hello"}, 600)
    (process,) = wait_until(server.readers, "the far side")
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(MachineError, match="no answer within 1 s"):
        channel.ask({"ask": "hello"}, 1.0)
    assert not channel.is_open
    process.send_signal(signal.SIGKILL)
    other = open_channel(parse_place("gpu1"), PROGRAM)
    other.ask({"ask": "hello"}, 600)
    for process in wait_until(server.readers, "the next far side"):
        process.send_signal(signal.SIGKILL)
    with pytest.raises(MachineError, match="the connection was lost"):
        other.ask({"ask": "hello"}, 600)


@pytest.mark.promise(
    "ssh would ask for a password, or does not know the host",
    "no prompt appears; the machine is shown as down, with what to do",
)
def test_ssh_that_asks(ssh_world: SshWorld, root: Path) -> None:
    ssh_world.add("locked", environment(root), "PasswordAuthentication yes", "AuthorizedKeysFile none")
    ssh_world.add("stranger", environment(root), known=False)
    runs = open_all("locked", "stranger", "no-such-host.invalid")
    locked, stranger, missing = runs.states
    assert (locked.word, locked.detail) == ("down", "SSH login needs a password")
    assert "ssh-copy-id locked" in locked.hint
    assert (stranger.word, stranger.hint) == ("down", "connect once: ssh stranger")
    assert missing.word == "down" and "Could not resolve" in missing.detail
    assert runs.list_keys() == []
    runs.stop()


@pytest.mark.promise(
    "another machine has another version of trainvitals, or none",
    "this is shown, with what to do, and nothing else is affected",
)
def test_another_version_and_none(ssh_world: SshWorld, root: Path) -> None:
    ssh_world.add("newer", environment(root), "ForceCommand echo 'trainvitals reader 99'; cat")
    ssh_world.add("older", environment(root), "ForceCommand echo \"trainvitals: unknown command 'reader'\" >&2; exit 2")
    ssh_world.add("none", environment(root), "ForceCommand no-such-program reader")
    ssh_world.add("talker", environment(root), "ForceCommand yes nonsense")
    runs = open_all("newer", "older", "none", "talker")
    newer, older, none, talker = runs.states
    assert (newer.word, newer.hint) == ("incompatible", "upgrade trainvitals here") and "version 99" in newer.detail
    assert (older.word, older.hint) == ("incompatible", "upgrade it on older")
    assert (none.word, none.detail) == (
        "down",
        "trainvitals was not found on the remote machine",
    ) and "remote_command" in none.hint
    assert talker.word == "down" and "did not respond as trainvitals" in talker.detail
    runs.stop()


def test_what_the_far_shell_is_given_is_quoted(ssh_world: SshWorld, root: Path, tmp_path: Path) -> None:
    assert far_command("~/my venv/bin/trainvitals") == "~/'my venv/bin/trainvitals' reader"
    assert far_command("x; rm -rf ~", "/a b") == "'x; rm -rf ~' reader --dir '/a b'"
    server: Sshd = ssh_world.add("gpu1", environment(root))
    runs = open_all("gpu1", command=f"touch {tmp_path}/made;")
    assert state_of(runs, "gpu1").detail == "trainvitals was not found on the remote machine"
    assert not (tmp_path / "made").exists() and server.readers() == []
    runs.stop()


def test_what_ssh_says_is_one_safe_line() -> None:
    error = explain_end("gpu1", 255, ["first", "kex: \x1b[2Jbad\x07 thing"])
    assert str(error.message) == "kex: ·[2Jbad· thing"
    assert len(explain_end("gpu1", 255, ["x" * 10_000]).message) <= channels.LONGEST_TEXT
