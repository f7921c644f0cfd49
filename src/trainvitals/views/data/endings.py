"""How a run ended, out of its files: what the detectors of `analysis.endings` go by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trainvitals.analysis.findings import RunEnding
from trainvitals.errors import JournalError
from trainvitals.journal.contracts import Reader
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.events import ProgramFailure, Stall
from trainvitals.journal.documents.rows import FAILED, EventRow
from trainvitals.journal.documents.run import BAD_ENDS
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.identity import Participant

PRINTED_BYTES = 16_384
PRINTED_LINES = 60
"""Of each console; what was printed earlier was survived."""
MOST_CONSOLES = 8


def read_ending(reader: Reader) -> RunEnding:
    """Of a run that lives or ended well no more than its status is read."""
    info = reader.info
    if info.status not in (*BAD_ENDS, "hung"):
        return RunEnding(info.status)
    cause = info.cause or Cause()
    began = parse_time(info.started) or 0.0
    ended = parse_time(info.ended)
    events = [row for row in reader.events() if (row.seconds or 0.0) >= began]
    statuses = reader.statuses()
    hosts = {who: status.host for status in statuses for who in status.participants()}
    steps = [rank.step for status in statuses for rank in status.participants().values() if rank.step is not None]
    last = info.file.last_step
    if last is None:
        last = max((item.last_step for item in reader.summary().values() if item.last_step is not None), default=None)
    stalls = _read_stalls(events)
    seen = ended or max((row.seconds or 0.0 for row in stalls.values()), default=0.0)
    return RunEnding(
        status=info.status,
        cause=cause,
        traceback=_find_traceback(events, cause),
        printed=_read_printed(reader),
        stall=_find_stall(events, stalls),
        stacks=_read_stacks(stalls.values()),
        raised=frozenset(row.participant for row in events if row.event == FAILED and row.participant is not None),
        flight_records=[note for row in events for note in row.details(Stall).flight_records or ()],
        oom_kills=sum(row.event == "oom_kill" for row in events),
        stopped_by=_find_sender(reader, began),
        job=str(info.file.placed),
        host=hosts.get(cause.participant, "") if len({*hosts.values()}) > 1 else "",
        step=max(steps, default=None) if last is None else last,
        time=ended,
        seconds=seen - began if began and seen else None,
        world_size=info.file.world_size or len(hosts) or 1,
    )


def _find_traceback(events: Sequence[EventRow], cause: Cause) -> str:
    """Of the exception that is the cause; of several participants that failed, the one that is named."""
    failed = [row for row in events if row.event == FAILED and row.details(ProgramFailure).traceback is not None]
    own = [row for row in failed if cause.rank is None or row.participant == cause.participant]
    return next((row.details(ProgramFailure).traceback or "" for row in own or failed), "")


def _read_stalls(events: Sequence[EventRow]) -> dict[Participant, EventRow]:
    """The newest stall of each participant that did not go on after it."""
    found: dict[Participant, EventRow] = {}
    for row in events:
        who = row.participant or Participant()
        if row.event == "stalled":
            found[who] = row
        elif row.event == "recovered":
            found.pop(who, None)
    return found


def _read_stacks(stalls: Iterable[EventRow]) -> dict[Participant, tuple[str, ...]]:
    """Where the main threads were, as the agent of each host saw it: also those of participants that do not log."""
    found: dict[Participant, tuple[str, ...]] = {}
    for row in stalls:
        for key, frames in (row.details(Stall).main_threads or {}).items():
            who = Participant.parse(key)
            if who is not None:
                found[who] = frames
    return found


def _find_stall(events: Sequence[EventRow], stalls: Mapping[Participant, EventRow]) -> Cause | None:
    """Why it hung; None if it did not, or went on."""
    hung = [row.participant or Participant() for row in events if row.event == "hung"]
    return next((stalls[who].cause for who in hung if who in stalls), None)


def _read_printed(reader: Reader) -> str:
    """The last lines of each console, those printed last at the end."""
    files = sorted(reader.texts("console"), key=lambda file: file.modified)[-MOST_CONSOLES:]
    tails = []
    for file in files:
        try:
            text = reader.read_text("console", file.name, PRINTED_BYTES).text
        except JournalError:
            continue  # removed just now
        tails.append("\n".join(text.splitlines()[-PRINTED_LINES:]))
    return "\n".join(tails)


def _find_sender(reader: Reader, began: float) -> str:
    """Who asked the run to stop, if it was an alert rule."""
    stops = [row for row in reader.alerts() if row.action == "stop" and row.pids and row.seconds >= began]
    return f"the action of the alert rule {stops[-1].rule}" if stops else ""
