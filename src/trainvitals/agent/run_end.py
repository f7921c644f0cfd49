"""How a run ended, when all its ranks on this machine are gone, and writing that down as the heir of the training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainvitals.agent import exit_causes
from trainvitals.agent.exit_causes import ExitStatus, ExitVerdict
from trainvitals.agent.liveness import WatchedRank
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.cause import CUT_OFF, OUT_OF_MEMORY, Cause
from trainvitals.journal.documents.registration import RAY
from trainvitals.journal.documents.run import MONITOR, RunFile
from trainvitals.journal.failures import Failure
from trainvitals.journal.identity import Participant
from trainvitals.trainer import ray_job

SELF_INFLICTED = frozenset({"SIGKILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})
"""Signals that a rank does not die of just because another one died."""
NOTICE_SECONDS = 0.5
"""A death is noticed up to this long after it happened; an exception is written down at once."""


def decide_end(
    run: RunFile, attempt: int, ranks: Sequence[WatchedRank], failures: Sequence[Failure] = ()
) -> ExitVerdict:
    """The verdict on the whole attempt. `failures` are the exceptions of its ranks, in the time of `Rank.gone_at`.

    What the training wrote of itself holds, unless it was tentative: at exit, not knowing with which code. Otherwise
    the rank that was lost first is the cause, for the others often die of its death; also where the training wrote
    that it failed, for rank 0 does not know what another one died of.
    """
    mine = run.attempt == attempt
    written = run.status if mine and run.is_over else None
    if written is not None and not run.tentative:
        first = _first_of_many(ranks, failures) if written == "failed" else None
        if first is not None:
            return replace(first, exit_code=run.exit_code, signal=run.signal)
        return ExitVerdict(written, run.cause, run.exit_code, run.signal)
    if mine and (run.exit_code is not None or run.signal):  # written by `trainvitals run`
        exit_status = ExitStatus(None if run.signal else run.exit_code, run.signal)
        return _soften(exit_causes.judge(exit_status), ranks)
    has_driver = any(rank.participant.role == ray_job.DRIVER and rank.verdict is not None for rank in ranks)
    judged = [rank for rank in ranks if not _is_expendable(rank, has_driver)] or ranks
    bad = [rank for rank in judged if rank.verdict and rank.verdict.status != "finished"]
    if written is not None:  # a tentative end holds against "nothing is known", not against a known exit status
        bad = [rank for rank in bad if rank.verdict and (rank.verdict.exit_code or rank.verdict.signal)]
    if not bad:
        return ExitVerdict(written or "finished", run.cause if written else None)
    return _named(min(bad, key=lambda rank: _time_of_death(rank, failures)), run.tentative)


def _is_expendable(rank: WatchedRank, has_driver: bool) -> bool:
    """Whether a run may well survive the loss of it: a node that is watched beside the training, an actor of Ray. How
    the driver of these ends is how the run ends, also where the trainer is in an actor that Ray has ended with the job.
    """
    is_actor = rank.registration.launcher == RAY and not rank.participant.is_trainer
    cause = rank.verdict.cause if rank.verdict is not None else None
    goes_with_driver = has_driver and cause is not None and cause.kind == CUT_OFF
    return is_actor or goes_with_driver or rank.registration.kind == MONITOR


def _first_of_many(ranks: Sequence[WatchedRank], failures: Sequence[Failure]) -> ExitVerdict | None:
    """Of several ranks the one that was lost first; None if there is only one, or if it reported the reason itself."""
    trainings = [rank for rank in ranks if rank.registration.kind == "training"]
    if len(trainings) < 2 and all(rank.registration.world_size == 1 for rank in trainings):
        return None
    known = [rank for rank in trainings if rank.verdict and (rank.verdict.exit_code or rank.verdict.signal)]
    first = min(known, key=lambda rank: _time_of_death(rank, failures), default=None)
    failure = min(failures, key=lambda item: (item.time, item.participant), default=None)
    if first is not None and (failure is None or _time_of_death(first, failures) < failure.time):
        return _named(first, False)
    if failure is None or failure.participant == Participant():
        return None
    return ExitVerdict("failed", failure.cause.about(failure.participant))


def _time_of_death(rank: WatchedRank, failures: Sequence[Failure]) -> float:
    own = [failure.time for failure in failures if failure.participant == rank.participant]
    gone = rank.gone_at or 0.0
    if rank.verdict is not None and rank.verdict.signal in SELF_INFLICTED and not own:
        gone -= NOTICE_SECONDS
    return min([gone, *own])


def _named(rank: WatchedRank, tentative: bool) -> ExitVerdict:
    verdict = rank.verdict
    assert verdict is not None
    cause = verdict.cause or Cause()
    if rank.participant != Participant():
        cause = cause.about(rank.participant)
    elif tentative and verdict.signal:
        cause = replace(cause, at_exit=True)
    return replace(verdict, cause=cause)


def _soften(verdict: ExitVerdict, ranks: Sequence[WatchedRank]) -> ExitVerdict:
    """The exit code from the wrapper, explained by what was seen of the processes where that is more specific."""
    same = [
        rank.verdict
        for rank in ranks
        if rank.verdict is not None
        and (rank.verdict.signal, rank.verdict.exit_code) == (verdict.signal, verdict.exit_code)
    ]
    # The command and the training in it may be one process, which has gone to another memory group in between.
    same.sort(key=lambda found: found.cause is None or found.cause.kind != OUT_OF_MEMORY)
    return replace(verdict, status=same[0].status, cause=same[0].cause) if same else verdict


def write_end(folder: Path, attempt: int, verdict: ExitVerdict, mode: int, last_step: int | None = None) -> None:
    """Write the verdict into run.json if the training left it open.

    Raises OSError when the folder cannot be written.
    """

    def end(run: RunFile) -> RunFile | None:
        if run.attempt != attempt or (run.is_over and not run.tentative):
            return None
        if not (run.tentative and run.status == verdict.status):  # else it was right; the time it wrote stays
            run = run.end(verdict.status, verdict.cause)
        return replace(
            run,
            tentative=False,
            exit_code=verdict.exit_code if verdict.exit_code is not None else run.exit_code,
            signal=verdict.signal or run.signal,
            last_step=run.last_step if run.last_step is not None else last_step,
        )

    run_folder.change_run(folder, end, mode)


def correct_end(folder: Path, attempt: int, verdict: ExitVerdict, mode: int) -> None:
    """Write the verdict in place of what rank 0 or the launcher wrote, which did not know what came first.

    Raises OSError when the folder cannot be written.
    """

    def correct(run: RunFile) -> RunFile | None:
        return run.correct(verdict.status, verdict.cause) if run.attempt == attempt else None

    run_folder.change_run(folder, correct, mode)
