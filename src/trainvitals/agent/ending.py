"""How a run ended, when all its ranks on this machine are gone, and writing that down as the heir of the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.agent import causes
from trainvitals.agent.causes import ExitStatus, Verdict
from trainvitals.agent.liveness import Rank
from trainvitals.errors import RunNotFound
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.failures import Failure

SELF_INFLICTED = frozenset({"SIGKILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})
"""Signals that a rank does not die of just because another one died."""
NOTICE_SECONDS = 0.5
"""A death is noticed up to this long after it happened; an exception is written down at once."""


def decide_end(
    run: Mapping[str, Any], attempt: int, ranks: Sequence[Rank], failures: Sequence[Failure] = ()
) -> Verdict:
    """The verdict on the whole attempt. `failures` are the exceptions of its ranks, in the time of `Rank.gone_at`.

    What the training said of itself stands, unless it said it tentatively: at exit, not knowing with which code.
    Otherwise the rank that was lost first tells why, for the others often die of its death; that holds as well where
    the training said that it failed, for rank 0 does not know what another one died of.
    """
    mine = run.get("attempt") == attempt
    said = str(run.get("status")) if mine and run.get("status") in run_folder.ENDED else None
    tentative = bool(run.get("tentative"))
    if said is not None and not tentative:
        first = _first_of_many(ranks, failures) if said == "failed" else None
        if first is not None:
            return replace(first, exit_code=run.get("exit_code"), signal=run.get("signal"))
        return Verdict(said, run.get("cause"), run.get("exit_code"), run.get("signal"))
    if mine and (isinstance(run.get("exit_code"), int) or run.get("signal")):  # told by `trainvitals run`
        code, signal = run.get("exit_code"), run.get("signal")
        return _soften(causes.judge(ExitStatus(None if signal else code, signal)), ranks)
    bad = [rank for rank in ranks if rank.verdict and rank.verdict.status != "finished"]
    if said is not None:  # a tentative end stands against "nothing is known", not against a known exit status
        bad = [rank for rank in bad if rank.verdict and (rank.verdict.exit_code or rank.verdict.signal)]
    if not bad:
        return Verdict(said or "finished", run.get("cause") if said else None)
    return _named(min(bad, key=lambda rank: _time_of_death(rank, failures)), tentative)


def _first_of_many(ranks: Sequence[Rank], failures: Sequence[Failure]) -> Verdict | None:
    """Of several ranks the one that was lost first; None if there is one only, or if it has said why itself."""
    trainings = [rank for rank in ranks if rank.registration.kind == "training"]
    if all(rank.registration.world_size == 1 for rank in trainings):
        return None
    known = [rank for rank in trainings if rank.verdict and (rank.verdict.exit_code or rank.verdict.signal)]
    first = min(known, key=lambda rank: _time_of_death(rank, failures), default=None)
    failure = min(failures, default=None)
    if first is not None and (failure is None or _time_of_death(first, failures) < failure.time):
        return _named(first, False)
    if failure is None or failure.rank == 0:
        return None
    return Verdict("failed", f"rank {failure.rank}: {failure.cause}")


def _time_of_death(rank: Rank, failures: Sequence[Failure]) -> float:
    own = [failure.time for failure in failures if failure.rank == rank.registration.rank]
    gone = rank.gone_at or 0.0
    if rank.verdict is not None and rank.verdict.signal in SELF_INFLICTED and not own:
        gone -= NOTICE_SECONDS
    return min([gone, *own])


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


def write_end(folder: Path, attempt: int, verdict: Verdict, mode: int, last_step: int | None = None) -> Verdict:
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
    known = {"exit_code": verdict.exit_code, "signal": verdict.signal, "last_step": run.get("last_step", last_step)}
    more = {key: value for key, value in known.items() if value is not None}
    if tentative and run.get("status") == verdict.status:
        run.update(more)  # it was right; the time it said stays
    else:
        run_folder.end_attempt(run, verdict.status, cause=verdict.cause, **more)
    run_folder.write_run(folder, run, mode)
    return verdict


def correct_end(folder: Path, attempt: int, verdict: Verdict, mode: int) -> None:
    """Write the verdict in place of what rank 0 or the launcher said, which did not know what came first.

    Raises OSError when the folder cannot be written.
    """
    run = runtime.read_json(folder / layout.RUN_FILE)
    if run is None or run.get("attempt") != attempt:
        return
    said = {"status": verdict.status, "cause": verdict.cause}
    run.update(said)
    for item in (run.get("attempts") or [])[-1:]:
        item.update(said)
    run_folder.write_run(folder, run, mode)
