"""How a run ended, and writing it down as the heir of the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainvitals.agent.causes import Verdict
from trainvitals.agent.ending import decide_end, write_end
from trainvitals.agent.liveness import Rank
from trainvitals.journal import folder as run_folder
from trainvitals.runtime import Registration

OOM = Verdict("killed", "out of memory: killed by the kernel (OOM)", None, "SIGKILL")
TERM = Verdict("killed", "killed by SIGTERM", None, "SIGTERM")
UNKNOWN = Verdict("crashed", "the process is gone; nothing is known about why")
FINE = Verdict("finished", None, 0)
EXITING = ", while Python was exiting"
BAD = Verdict("failed", "exit code 3", 3)


def rank(number: int, verdict: Verdict, gone_at: float = 1.0, kind: str = "training") -> Rank:
    """A rank that is gone, with what was found out about it."""
    registration = Registration("r", "/nowhere", number, 2**22 + 1, 1.0, "here", kind=kind)
    found = Rank(registration, Path("/nowhere"), 0.0, None)
    found.verdict, found.gone_at = verdict, gone_at
    return found


@pytest.mark.parametrize(
    ("run", "ranks", "status", "cause"),
    [
        ({"status": "running"}, [rank(0, FINE)], "finished", None),
        ({"status": "running"}, [rank(0, BAD)], "failed", "exit code 3"),
        ({"status": "running"}, [rank(0, UNKNOWN)], "crashed", UNKNOWN.cause),
        # What the training said stands.
        ({"status": "finished"}, [rank(0, BAD)], "finished", None),
        ({"status": "failed", "cause": "ValueError: x"}, [rank(0, BAD)], "failed", "ValueError: x"),
        # What it said at exit stands against nothing known, not against a bad exit status.
        ({"status": "finished", "tentative": True}, [rank(0, UNKNOWN)], "finished", None),
        ({"status": "finished", "tentative": True}, [rank(0, BAD)], "failed", "exit code 3"),
        ({"status": "finished", "tentative": True}, [rank(0, TERM)], "killed", f"{TERM.cause}{EXITING}"),
        # The first to die tells why; the others died of it.
        ({"status": "running"}, [rank(0, TERM, 2.0), rank(3, OOM, 1.0)], "killed", f"rank 3: {OOM.cause}"),
        ({"status": "running"}, [rank(0, OOM, 1.0), rank(3, TERM, 2.0)], "killed", OOM.cause),
        # `trainvitals run` knows the exit status; the agent knows of the memory.
        ({"status": "running", "exit_code": 5}, [rank(0, UNKNOWN, kind="command")], "failed", "exit code 5"),
        ({"status": "running", "signal": "SIGKILL"}, [rank(0, OOM, kind="command")], "killed", OOM.cause),
        # Another attempt is under way: this one ended as its ranks did.
        ({"status": "running", "attempt": 2}, [rank(0, TERM)], "killed", "killed by SIGTERM"),
    ],
)  # fmt: skip
def test_the_end_is_decided_from_what_is_known(
    run: dict[str, Any], ranks: list[Rank], status: str, cause: str | None
) -> None:
    verdict = decide_end({"attempt": 1, **run}, 1, ranks)
    assert (verdict.status, verdict.cause) == (status, cause)


def write(folder: Path, **run: Any) -> None:
    run_folder.write_run(folder, {"attempt": 1, "attempts": [{"number": 1, "status": "running"}], **run})


def test_an_open_end_is_written_with_its_cause(tmp_path: Path) -> None:
    write(tmp_path, status="running")
    write_end(tmp_path, 1, OOM, 0o600)
    run = run_folder.read_run(tmp_path)
    assert (run["status"], run["cause"], run["signal"]) == ("killed", OOM.cause, "SIGKILL")
    assert run["attempts"][-1]["status"] == "killed" and run["ended"].endswith("Z")


def test_a_tentative_end_becomes_final_and_keeps_its_time(tmp_path: Path) -> None:
    write(tmp_path, status="finished", tentative=True, ended="2026-01-01T00:00:00Z")
    write_end(tmp_path, 1, FINE, 0o600)
    run = run_folder.read_run(tmp_path)
    assert run["status"] == "finished" and "tentative" not in run and run["ended"] == "2026-01-01T00:00:00Z"


def test_what_is_not_ours_to_end_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, status="failed", cause="mine")
    write_end(tmp_path, 1, OOM, 0o600)
    assert run_folder.read_run(tmp_path)["cause"] == "mine"
    write(tmp_path, status="running", attempt=2)
    write_end(tmp_path, 1, OOM, 0o600)
    assert run_folder.read_run(tmp_path)["status"] == "running"
    (tmp_path / "run.json").unlink()
    assert write_end(tmp_path, 1, OOM, 0o600) == OOM and not (tmp_path / "run.json").exists()
