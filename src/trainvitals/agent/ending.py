"""How a run ended, when all its ranks on this machine are gone, and writing that down as the heir of the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainvitals.agent import causes
from trainvitals.agent.causes import ExitStatus, Verdict
from trainvitals.agent.liveness import Rank
from trainvitals.errors import RunNotFound
from trainvitals.journal import folder as run_folder


def decide_end(run: Mapping[str, Any], attempt: int, ranks: Sequence[Rank]) -> Verdict:
    """The verdict on the whole attempt.

    What the training said of itself stands, unless it said it tentatively: at exit, not knowing with which code.
    Otherwise the rank that was lost first tells why, for the others often die of its death.
    """
    mine = run.get("attempt") == attempt
    said = str(run.get("status")) if mine and run.get("status") in run_folder.ENDED else None
    tentative = bool(run.get("tentative"))
    if said is not None and not tentative:
        return Verdict(said, run.get("cause"), run.get("exit_code"), run.get("signal"))
    if mine and (isinstance(run.get("exit_code"), int) or run.get("signal")):  # told by `trainvitals run`
        code, signal = run.get("exit_code"), run.get("signal")
        return _soften(causes.judge(ExitStatus(None if signal else code, signal)), ranks)
    known = [rank for rank in ranks if rank.verdict is not None]
    known.sort(key=lambda rank: rank.gone_at or 0.0)
    bad = [rank for rank in known if rank.verdict and rank.verdict.status != "finished"]
    if said is not None:  # a tentative end stands against "nothing is known", not against a known exit status
        bad = [rank for rank in bad if rank.verdict and (rank.verdict.exit_code or rank.verdict.signal)]
    if not bad:
        return Verdict(said or "finished", run.get("cause") if said else None)
    return _named(bad[0], tentative)


def _named(rank: Rank, tentative: bool) -> Verdict:
    verdict = rank.verdict
    assert verdict is not None
    cause = verdict.cause or ""
    if tentative and verdict.signal and rank.registration.rank == 0:
        cause += ", while Python was exiting"
    if rank.registration.rank != 0:
        cause = f"{rank.name}: {cause}"
    return replace(verdict, cause=cause)


def _soften(verdict: Verdict, ranks: Sequence[Rank]) -> Verdict:
    """The exit code from the wrapper, explained by what was seen of the processes where that says more."""
    for rank in ranks:
        found = rank.verdict
        if found is not None and found.signal == verdict.signal and found.exit_code == verdict.exit_code:
            return replace(verdict, status=found.status, cause=found.cause)
    return verdict


def write_end(folder: Path, attempt: int, verdict: Verdict, mode: int) -> Verdict:
    """Write the verdict into run.json if the training left it open. Returns the verdict that stands there then.

    Raises OSError when the folder cannot be written.
    """
    try:
        run = run_folder.read_run(folder)
    except RunNotFound:
        return verdict
    tentative = run.pop("tentative", None)
    ended = run.get("status") in run_folder.ENDED
    if run.get("attempt") != attempt or (ended and not tentative):
        return verdict
    known = {"exit_code": verdict.exit_code, "signal": verdict.signal}
    more = {key: value for key, value in known.items() if value is not None}
    if tentative and run.get("status") == verdict.status:
        run.update(more)  # it was right; the time it said stays
    else:
        run_folder.end_attempt(run, verdict.status, cause=verdict.cause, **more)
    run_folder.write_run(folder, run, mode)
    return verdict
