"""How a run ended, and writing it down as the heir of the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainvitals.agent.exit_causes import ExitVerdict
from trainvitals.agent.liveness import WatchedRank
from trainvitals.agent.run_end import correct_end, decide_end, write_end
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents import cause as causes
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.failures import Failure
from trainvitals.journal.identity import Participant

OOM = ExitVerdict("killed", Cause(kind=causes.OUT_OF_MEMORY, memory="machine", signal="SIGKILL"), None, "SIGKILL")
KILL = ExitVerdict("killed", Cause(kind=causes.SIGNAL, signal="SIGKILL"), None, "SIGKILL")
TERM = ExitVerdict("killed", Cause(kind=causes.SIGNAL, signal="SIGTERM"), None, "SIGTERM")
UNKNOWN = ExitVerdict("crashed", Cause(kind=causes.UNKNOWN))
FINE = ExitVerdict("finished", None, 0)
CUT = ExitVerdict("killed", Cause(kind=causes.CUT_OFF))
SAID = ExitVerdict("finished", None)
EXITING = ", while Python was exiting"
BAD = ExitVerdict("failed", Cause(kind=causes.EXIT_CODE, exit_code=3), 3)


def rank(
    number: int, verdict: ExitVerdict, gone_at: float = 1.0, kind: str = "training", ranks: int = 1, **more: str
) -> WatchedRank:
    """A rank that is gone, with what was found out about it."""
    registration = Registration(
        run_id="r",
        folder="/nowhere",
        rank=number,
        pid=2**22 + 1,
        pid_start=1.0,
        host="here",
        kind=kind,
        world_size=ranks,
        **more,  # type: ignore[arg-type]
    )
    found = WatchedRank(registration, Path("/nowhere"), 0.0, None)
    found.verdict, found.gone_at = verdict, gone_at
    return found


@pytest.mark.parametrize(
    ("run", "ranks", "status", "cause"),
    [
        ({"status": "running"}, [rank(0, FINE)], "finished", None),
        ({"status": "running"}, [rank(0, BAD)], "failed", "exit code 3"),
        ({"status": "running"}, [rank(0, UNKNOWN)], "crashed", str(UNKNOWN.cause)),
        # What the training said stands.
        ({"status": "finished"}, [rank(0, BAD)], "finished", None),
        ({"status": "failed", "cause": "ValueError: x"}, [rank(0, BAD)], "failed", "ValueError: x"),
        # What it said at exit stands against nothing known, not against a bad exit status.
        ({"status": "finished", "tentative": True}, [rank(0, UNKNOWN)], "finished", None),
        ({"status": "finished", "tentative": True}, [rank(0, BAD)], "failed", "exit code 3"),
        ({"status": "finished", "tentative": True}, [rank(0, TERM)], "killed", f"{TERM.cause}{EXITING}"),
        # The first to die tells why; the others died of it.
        ({"status": "running"}, [rank(0, TERM, 2.0), rank(3, OOM, 1.0)], "killed", f"rank 3: {OOM.cause}"),
        ({"status": "running"}, [rank(0, OOM, 1.0), rank(3, TERM, 2.0)], "killed", str(OOM.cause)),
        # `trainvitals run` knows the exit status; the agent knows of the memory.
        ({"status": "running", "exit_code": 5}, [rank(0, UNKNOWN, kind="command")], "failed", "exit code 5"),
        ({"status": "running", "signal": "SIGKILL"}, [rank(0, OOM, kind="command")], "killed", str(OOM.cause)),
        ({"status": "running", "signal": "SIGKILL"}, [rank(0, KILL, kind="command"), rank(0, OOM)], "killed",
         str(OOM.cause)),
        # Actors of Ray may be lost, and nodes outlive the job: their driver decides, and a trainer's loss is one.
        ({"status": "running"}, [rank(0, FINE, 2.0, role="driver"), rank(0, KILL, role="rollout", launcher="ray")],
         "finished", None),
        ({"status": "running"}, [rank(0, KILL, 2.0, role="driver"), rank(0, KILL, role="rollout", launcher="ray")],
         "killed", f"driver 0: {KILL.cause}"),
        ({"status": "running"}, [rank(0, FINE, 2.0), rank(1, KILL, kind="monitor", role="node")], "finished", None),
        ({"status": "running"}, [rank(0, FINE, role="driver"), rank(1, KILL, launcher="ray")], "killed",
         f"rank 1: {KILL.cause}"),
        ({"status": "running"}, [rank(0, KILL, role="rollout", launcher="ray")], "killed",
         f"rollout 0: {KILL.cause}"),
        # A trainer in an actor: Ray ends it with the job, whether it trained to its end or not.
        ({"status": "running"}, [rank(0, FINE, 2.0, role="driver"), rank(0, CUT, launcher="ray")], "finished", None),
        ({"status": "running"}, [rank(0, BAD, 2.0, role="driver"), rank(0, CUT, launcher="ray")], "failed",
         "driver 0: exit code 3"),
        ({"status": "running"}, [rank(0, CUT, launcher="ray")], "killed", str(CUT.cause)),
        ({"status": "finished", "tentative": True}, [rank(0, BAD, role="driver"), rank(0, SAID, launcher="ray")],
         "failed", "driver 0: exit code 3"),
        # Another attempt is under way: this one ended as its ranks did.
        ({"status": "running", "attempt": 2}, [rank(0, TERM)], "killed", str(TERM.cause)),
    ],
)  # fmt: skip
def test_the_end_is_decided_from_what_is_known(
    run: dict[str, Any], ranks: list[WatchedRank], status: str, cause: str | None
) -> None:
    verdict = decide_end(RunFile.parse({"attempt": 1, **run}), 1, ranks)
    assert (verdict.status, verdict.cause and str(verdict.cause)) == (status, cause)


OTHER = "RuntimeError: connection closed by peer"
NAN = "ValueError: the loss is NaN"
LAUNCHER = rank(0, ExitVerdict("failed", Cause(kind=causes.EXIT_CODE, exit_code=1), 1), 9.0, "command")


def failure(time: float, number: int, text: str) -> Failure:
    return Failure(time, Participant(rank=number), Cause(kind=causes.EXCEPTION, detail=text))


@pytest.mark.parametrize(
    ("run", "ranks", "failures", "status", "cause"),
    [
        # Rank 0 told of its own exception, another rank had one before.
        ({"status": "failed", "cause": OTHER}, [rank(0, BAD, 3.0, ranks=2), rank(1, BAD, 2.5, ranks=2)],
         [failure(1.0, 1, NAN), failure(2.0, 0, OTHER)], "failed", f"rank 1: {NAN}"),
        ({"status": "failed", "cause": NAN}, [rank(0, BAD, 3.0, ranks=2), rank(1, BAD, 2.5, ranks=2)],
         [failure(1.0, 0, NAN), failure(2.0, 1, OTHER)], "failed", NAN),
        # The first may be on another machine, of which only what it wrote is known.
        ({"status": "failed", "cause": OTHER}, [rank(0, BAD, 3.0, ranks=9)],
         [failure(1.0, 8, NAN), failure(2.0, 0, OTHER)], "failed", f"rank 8: {NAN}"),
        # It may have died without a word, and that is noticed a little later than it happens.
        ({"status": "failed", "cause": OTHER}, [rank(0, BAD, 3.0, ranks=4), rank(3, OOM, 2.1, ranks=4)],
         [failure(2.0, 0, OTHER)], "killed", f"rank 3: {OOM.cause}"),
        # A launcher that ends the others does not make them the first.
        ({"status": "failed", "cause": NAN}, [rank(0, BAD, 3.0, ranks=4), rank(3, TERM, 2.1, ranks=4)],
         [failure(2.0, 0, NAN)], "failed", NAN),
        # The launcher's exit code says nothing of why.
        ({"status": "failed", "cause": "exit code 1", "exit_code": 1},
         [rank(0, TERM, 3.0, ranks=2), rank(1, BAD, 2.5, ranks=2), LAUNCHER],
         [failure(1.0, 1, NAN), failure(10.0, 0, "exit code 1")], "failed", f"rank 1: {NAN}"),
        ({"status": "failed", "cause": "exit code 1", "exit_code": 1},
         [rank(0, OOM, 2.5, ranks=2), rank(1, TERM, 3.0, ranks=2), LAUNCHER],
         [failure(10.0, 0, "exit code 1")], "killed", str(OOM.cause)),
        # Nobody told the end.
        ({"status": "running"}, [rank(0, TERM, 2.0, ranks=2), rank(1, BAD, 2.5, ranks=2)],
         [failure(1.0, 1, NAN)], "failed", "rank 1: exit code 3"),
        # The training finished, or said why, before the others went.
        ({"status": "finished"}, [rank(0, FINE, 3.0, ranks=2), rank(1, BAD, 2.5, ranks=2)],
         [failure(1.0, 1, NAN)], "finished", None),
        ({"status": "failed"}, [rank(0, FINE, 3.0, ranks=2), rank(1, BAD, 2.5, ranks=2)],
         [failure(1.0, 0, "")], "failed", None),
    ],
)  # fmt: skip
def test_of_many_ranks_the_first_to_fail_tells_why(
    run: dict[str, Any], ranks: list[WatchedRank], failures: list[Failure], status: str, cause: str | None
) -> None:
    verdict = decide_end(RunFile.parse({"attempt": 1, **run}), 1, ranks, failures)
    assert (verdict.status, verdict.cause and str(verdict.cause)) == (status, cause)
    assert verdict.exit_code == run.get("exit_code", verdict.exit_code)


def write(folder: Path, **run: Any) -> None:
    run_folder.write_run(folder, RunFile.parse({"attempt": 1, "attempts": [{"number": 1, "status": "running"}], **run}))


def test_an_open_end_is_written_with_its_cause(tmp_path: Path) -> None:
    write(tmp_path, status="running")
    write_end(tmp_path, 1, OOM, 0o600, last_step=41)
    run = run_folder.read_run(tmp_path)
    assert (run.status, run.cause, run.signal) == ("killed", OOM.cause, "SIGKILL")
    assert run.last_step == 41
    assert run.attempts[-1].status == "killed" and (run.ended or "").endswith("Z")


def test_a_tentative_end_becomes_final_and_keeps_its_time(tmp_path: Path) -> None:
    write(tmp_path, status="finished", tentative=True, ended="2026-01-01T00:00:00Z")
    write_end(tmp_path, 1, FINE, 0o600)
    run = run_folder.read_run(tmp_path)
    assert run.status == "finished" and not run.tentative and run.ended == "2026-01-01T00:00:00Z"


def test_what_is_not_ours_to_end_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, status="failed", cause="mine")
    write_end(tmp_path, 1, OOM, 0o600)
    assert str(run_folder.read_run(tmp_path).cause) == "mine"
    write(tmp_path, status="running", attempt=2)
    write_end(tmp_path, 1, OOM, 0o600)
    assert run_folder.read_run(tmp_path).status == "running"
    (tmp_path / "run.json").unlink()
    write_end(tmp_path, 1, OOM, 0o600)
    assert not (tmp_path / "run.json").exists()


def test_what_came_first_takes_the_place_of_what_was_said_and_the_time_stays(tmp_path: Path) -> None:
    write(tmp_path, status="failed", cause=OTHER, ended="2026-01-01T00:00:00Z")
    correct_end(tmp_path, 1, ExitVerdict("failed", Cause(kind=causes.EXCEPTION, detail=NAN, rank=1), 1), 0o600)
    run = run_folder.read_run(tmp_path)
    assert run.cause == run.attempts[-1].cause and str(run.cause) == f"rank 1: {NAN}"
    assert run.ended == "2026-01-01T00:00:00Z"
    write(tmp_path, status="running", attempt=2)
    correct_end(tmp_path, 1, OOM, 0o600)
    assert run_folder.read_run(tmp_path).status == "running"
