"""Why a process ended or a rank stalls, as data. The sentence is made of it, never the other way round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from trainvitals.journal.documents.fields import Document, entry, finite, flag, is_mapping, text, whole
from trainvitals.journal.identity import TRAINER, Participant

EXCEPTION = "exception"
EXIT_CODE = "exit_code"
SIGNAL = "signal"
INTERRUPTED = "interrupted"
OUT_OF_MEMORY = "out_of_memory"
CPU_LIMIT = "cpu_limit"
UNKNOWN = "unknown"
UNWATCHED = "unwatched"
GONE = "gone"
STALLED = "stalled"
CUT_OFF = "cut_off"
TIME_LIMIT = "time_limit"
PREEMPTED = "preempted"
NODE_FAILED = "node_failed"
CANCELLED = "cancelled"
REQUEUED = "requeued"
OTHER = "other"
"""A sentence of a version that wrote no more than that, or of the user."""

SHELL_SIGNAL = 128
"""A shell reports death by signal N as exit code 128 + N."""
_SIGNALS = {
    "SIGKILL": "kill -9, or a job scheduler's limit",
    "SIGTERM": "terminated, for example by a job scheduler or launcher",
    "SIGINT": "Ctrl-C",
    "SIGHUP": "terminal closed",
    "SIGSEGV": "segmentation fault",
    "SIGBUS": "bus error, for example a full /dev/shm",
    "SIGABRT": "abort, for example a failed check in native code",
    "SIGFPE": "arithmetic error",
    "SIGILL": "illegal instruction for this CPU",
    "SIGXCPU": "CPU time limit, ulimit -t",
    "SIGXFSZ": "file size limit, ulimit -f",
}
_MEMORY = {
    "group": "out of memory: killed by the kernel (OOM) at its cgroup memory limit",
    "machine": "out of memory: killed by the kernel (OOM)",
}
_BY_SCHEDULER = {
    OUT_OF_MEMORY: "ran out of memory",
    TIME_LIMIT: "reached its time limit",
    PREEMPTED: "was preempted",
    NODE_FAILED: "lost a node",
    CANCELLED: "was cancelled",
    REQUEUED: "was requeued",
}
"""What a scheduler did to the job in `detail`."""
_BEFORE = {"stalled": "; was stalled before", "hung": "; was hung before"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause(Document):
    """`str(cause)` is the sentence. Fields that do not apply are empty."""

    kind: str = entry(text, OTHER)
    detail: str = entry(text, "")
    """The exception in one line, the text of `sys.exit`, where a stalled rank is, or the job that a scheduler ended."""
    exception: str = entry(text, "")
    """The class of the exception."""
    signal: str | None = entry(text, None)
    exit_code: int | None = entry(whole, None)
    role: str = entry(text, TRAINER, implied=True)
    rank: int | None = entry(whole, None)
    """The participant that it is about, where the run has several and it is not rank 0."""
    memory: str = entry(text, "")
    """Whose memory ran out: `group` (the limit of its control group) or `machine`."""
    seconds: float | None = entry(finite, None)
    """How long a stalled rank has been silent."""
    before: str = entry(text, "")
    """What the rank was before it ended: `stalled` or `hung`."""
    at_exit: bool = entry(flag, False)
    """It happened while Python was exiting, after the run had ended well."""

    @classmethod
    def read(cls, value: object) -> Self | None:
        """Of a document: an object, or the bare sentence of an older version; None if it is empty."""
        found = cls(detail=value) if isinstance(value, str) else cls.parse(value)
        return found if str(found) else None

    def about(self, participant: Participant) -> Self:
        """The same as the cause of a whole run that has other participants."""
        return self if self.rank is not None else replace(self, **participant.labels)

    @property
    def participant(self) -> Participant:
        return Participant(self.role, self.rank or 0)

    @property
    def is_interruption(self) -> bool:
        """Whether somebody at the keyboard ended it."""
        return self.kind == INTERRUPTED or self.signal == "SIGINT"

    def __str__(self) -> str:
        whose = f"{self.participant.title}: " if self.rank is not None and self.kind != STALLED else ""
        exiting = ", while Python was exiting" if self.at_exit else ""
        return f"{whose}{self._sentence()}{_BEFORE.get(self.before, '')}{exiting}"

    def _sentence(self) -> str:
        if self.kind == EXIT_CODE:
            return f"exit code {self.exit_code}" + (f": {self.detail}" if self.detail else "")
        if self.kind == SIGNAL:
            words = f" ({_SIGNALS[self.signal]})" if self.signal in _SIGNALS else ""
            return f"killed by {self.signal}{words}"
        if self.kind in _BY_SCHEDULER and self.detail:
            return f"{self.detail} {_BY_SCHEDULER[self.kind]}"
        if self.kind == OUT_OF_MEMORY:
            sentence = _MEMORY.get(self.memory, _MEMORY["machine"])
            return sentence if self.signal else f"probably {sentence} (exit status unknown)"
        if self.kind == STALLED:
            where = f"; {self.detail}" if self.detail else ""
            return f"{self.participant.title} has not logged for {self.seconds or 0.0:.0f} s{where}"
        return _SENTENCES.get(self.kind) or self.detail


_SENTENCES = {
    INTERRUPTED: "interrupted (SIGINT, Ctrl-C)",
    CPU_LIMIT: "killed by the kernel at its CPU time limit (ulimit -t)",
    UNKNOWN: "the process died; cause unknown",
    UNWATCHED: "the process ended while no agent was watching",
    GONE: "the process died without recording how",
    CUT_OFF: "ended by Ray while it was training",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caused(Document):
    """A document with a cause: `cause` in the file is the sentence, `reason` the data behind it."""

    cause: Cause | None = entry(Cause.read, None)

    @classmethod
    def parse(cls, data: object) -> Self:
        if is_mapping(data) and is_mapping(data.get("reason")) and Cause.read(data["reason"]) is not None:
            data = {**data, "cause": data["reason"]}
            del data["reason"]
        return super(Caused, cls).parse(data)

    def as_json(self) -> dict[str, Any]:
        found = Document.as_json(self)
        if self.cause is not None:
            found.pop("cause", None)  # it reads better after what it explains
            found["cause"] = str(self.cause)
            if self.cause.kind != OTHER:
                found["reason"] = self.cause.as_json()
        return found
