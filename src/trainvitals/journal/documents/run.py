"""run.json: what a run is, how it was started and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from trainvitals import runtime
from trainvitals.journal.documents.cause import Cause, Caused
from trainvitals.journal.documents.fields import (
    Document,
    document,
    entry,
    finite,
    flag,
    list_of,
    mapping,
    mapping_of,
    text,
    texts,
    whole,
)
from trainvitals.journal.documents.job import Job, find_job
from trainvitals.journal.encoding import format_time

FORMAT = 1

RUNNING = "running"
ENDED = ("finished", "failed", "killed", "crashed")
"""Statuses after which nothing more happens. A run that still lives may be `stalled` or `hung`."""
BAD_ENDS = ("failed", "killed", "crashed")
UNREADABLE = "unreadable"
"""Of a folder whose run.json cannot be read."""

TRAINING = "training"
COMMAND = "command"
"""A program under `trainvitals run` that has not called init."""
MONITOR = "monitor"
BENCHMARK = "benchmark"
"""A model, measured by `trainvitals bench`."""

_LASTING = ("id", "name", "project", "project_before", "created", "edited", "untagged", "correlation_id")
"""What every attempt of a run has in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Document):
    """A process, so that it is not mistaken for a later one of the same number."""

    pid: int | None = entry(whole, None)
    start: float | None = entry(finite, None)
    host: str = entry(text, "")

    @classmethod
    def of(cls, pid: int) -> Self:
        """A process of this machine."""
        return cls(pid=pid, start=runtime.process_start(pid), host=runtime.host_name())

    @property
    def is_gone(self) -> bool:
        """Whether it was a process of this machine and has ended. Of another machine nothing is known."""
        if self.pid is None or self.host != runtime.host_name():
            return False
        return not runtime.is_same_process(self.pid, self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class GitState(Document):
    """Of the repository that the training was started in; what was not known then is None."""

    root: str | None = entry(text, None)
    commit: str | None = entry(text, None)
    branch: str | None = entry(text, None)
    remote: str | None = entry(text, None)
    """An address without credentials."""
    dirty: bool | None = entry(flag, None)
    """Whether tracked files had uncommitted changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Caused):
    """One start of the run."""

    number: int | None = entry(whole, None)
    started: str | None = entry(text, None)
    host: str = entry(text, "")
    status: str = entry(text, RUNNING)
    ended: str | None = entry(text, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin(Document):
    """The run of another tracker that a run was taken from, and how far."""

    tool: str = entry(text, "")
    place: str = entry(text, "")
    """The file, folder or address, without secrets."""
    key: str = entry(text, "")
    """The run within that place."""
    position: Mapping[str, Any] = entry(mapping, {})
    """How far it was read, in terms of its reader."""
    last_file: str = entry(text, "")
    """The training file in which `position` ends, without its suffix: rows behind it are not covered."""
    last_rows: int = entry(whole, 0)
    rows: int = entry(whole, 0)
    """All that were written up to there."""
    untimed_until: str | None = entry(text, None)
    """Rows with this timestamp or an earlier one have no real time: the tracker keeps none."""
    arrival_times: bool = entry(flag, False)
    """Times are those at which the rows were seen to arrive."""
    renamed: Mapping[str, str] = entry(mapping_of(text), {})
    """Metrics that could not keep their name: theirs, ours."""
    left_out: Mapping[str, int] = entry(mapping_of(whole), {})
    """What was not taken, by kind."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Equal for the same run of the same tracker."""
        return self.tool, self.place, self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile(Caused):
    """run.json. It has one writer: the training (rank 0), or its heir, the agent, when it died without a word."""

    format: int | None = entry(whole, None)
    id: str = entry(text, "")
    project: str = entry(text, "")
    project_before: str = entry(text, "")
    """In which `trainvitals run` began it, if the program named another one: a gateway may have its beginning there."""
    name: str = entry(text, "")
    created: str | None = entry(text, None)
    kind: str = entry(text, TRAINING)
    status: str = entry(text, RUNNING)
    tentative: bool = entry(flag, False)
    """The status was written at exit, when the exit code was not known yet."""
    attempt: int = entry(whole, 1)
    started: str | None = entry(text, None)
    ended: str | None = entry(text, None)
    exit_code: int | None = entry(whole, None)
    signal: str | None = entry(text, None)
    last_step: int | None = entry(whole, None)
    world_size: int | None = entry(whole, None)
    process: Process = entry(document(Process), Process())
    tags: tuple[str, ...] = entry(texts, (), always=True)
    notes: str = entry(text, "", always=True)
    edited: tuple[str, ...] = entry(texts, ())
    """Which of `name`, `notes` and `tags` a user has edited: another attempt or import leaves them as they are, but may
    add tags."""
    untagged: tuple[str, ...] = entry(texts, ())
    """Tags that a user has removed: another attempt or import does not bring them back."""
    correlation_id: str = entry(text, "")
    below: str | None = entry(text, None)
    """The run of the `trainvitals run` around it, if that is another one."""
    launch: str | None = entry(text, None)
    """What the ranks of one launch have in common."""
    restarts: int | None = entry(whole, None)
    simulated: bool = entry(flag, False)
    command: str | None = entry(text, None)
    argv: tuple[str, ...] = entry(texts, ())
    cwd: str | None = entry(text, None)
    user: str = entry(text, "")
    """Who started it."""
    python: Mapping[str, Any] | None = entry(mapping, None)
    host: Mapping[str, Any] | None = entry(mapping, None)
    environment: Mapping[str, Any] | None = entry(mapping, None)
    packages: Mapping[str, Any] | None = entry(mapping, None)
    """Versions of what is installed."""
    imported: tuple[str, ...] = entry(texts, ())
    """Those of the packages that the program had imported when the run began, torch first."""
    job: Job = entry(document(Job), Job())
    """Of the newest attempt; see `placed`."""
    git: GitState = entry(document(GitState), GitState())
    config: Mapping[str, Any] | None = entry(mapping, None)
    attempts: tuple[Attempt, ...] = entry(list_of(document(Attempt)), ())
    hardware: Mapping[str, Any] | None = entry(mapping, None)
    """What each host is made of, by host and source."""
    origin: Origin | None = entry(document(Origin), None)
    """Where it was imported from."""

    @property
    def is_over(self) -> bool:
        return self.status in ENDED

    def has_ended(self, attempt: int) -> bool:
        """Whether this attempt is over, and not only tentatively at exit."""
        return self.attempt == attempt and self.is_over and not self.tentative

    @property
    def placed(self) -> Job:
        """What a scheduler knows it as. A run of an earlier version has it only among its variables."""
        return self.job or find_job({key: str(value) for key, value in (self.environment or {}).items()})

    @property
    def host_name(self) -> str:
        """Of the machine's description, else of the process."""
        host = self.host or {}
        return text(host.get("name")) or text(host.get("hostname")) or self.process.host

    def end(self, status: str, cause: Cause | None = None, *, when: float | None = None, **more: Any) -> Self:
        """The run with its newest attempt ended in this way, now or at `when` (seconds since 1970); `more` are other
        fields."""
        ended = format_time(when)
        attempts = self.attempts
        if attempts:
            last = replace(attempts[-1], status=status, ended=ended, cause=cause or attempts[-1].cause)
            attempts = (*attempts[:-1], last)
        cause = cause or self.cause
        return replace(self, status=status, ended=ended, cause=cause, attempts=attempts, tentative=False, **more)

    def end_earlier(self, status: str, cause: Cause, when: float | None) -> Self:
        """The run with an end, now or at `when`, of those attempts before the newest that nobody has ended."""
        ended = format_time(when)
        earlier = (
            replace(item, status=status, cause=cause, ended=ended) if item.status == RUNNING else item
            for item in self.attempts[:-1]
        )
        return replace(self, attempts=(*earlier, *self.attempts[-1:]))

    def correct(self, status: str, cause: Cause | None) -> Self:
        """The run with another reason for an end that was already written; its time stays."""
        attempts = tuple(replace(item, status=status, cause=cause) for item in self.attempts[-1:])
        return replace(self, status=status, cause=cause, attempts=(*self.attempts[:-1], *attempts))


def new_run(
    run_id: str,
    *,
    kind: str,
    project: str,
    name: str,
    facts: Mapping[str, Any],
    pid: int | None,
    attempt: int = 1,
    before: RunFile | None = None,
    correlation_id: str = "",
    tags: Iterable[str] = (),
    **more: Any,
) -> RunFile:
    """A run, or another attempt of the one in `before`, which keeps its name and project, that starts now. `facts` are
    about program and machine (`trainer.facts`), `more` are other fields."""
    started = format_time()
    kept = {key: value for key in _LASTING if before is not None and (value := getattr(before, key))}
    earlier = tuple(item for item in before.attempts if item.number != attempt) if before is not None else ()
    first = Attempt(number=attempt, started=started, host=runtime.host_name())
    captured = RunFile.parse(facts)
    return replace(
        captured,
        **{
            "format": FORMAT,
            "id": run_id,
            "project": project,
            "name": name,
            "created": started,
            "correlation_id": correlation_id,
            **kept,
            "kind": kind,
            "status": RUNNING,
            "attempt": attempt,
            "started": started,
            "process": Process.of(pid) if pid is not None else Process(),
            "tags": tuple(sorted({*before.tags, *tags} - {*before.untagged} if before is not None else {*tags})),
            "attempts": (*earlier, first),
            **more,
        },
    )
