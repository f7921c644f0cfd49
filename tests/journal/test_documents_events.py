"""What events say besides their message: written as one type, read again as one, and nothing of others lost."""

from __future__ import annotations

import json
import math

import pytest

from trainvitals.journal.documents.cause import EXCEPTION, STALLED, Cause
from trainvitals.journal.documents.events import ProcessEnd, ProcessEvent, ProgramFailure, Stall
from trainvitals.journal.documents.fields import Document
from trainvitals.journal.documents.rows import EventRow, new_event
from trainvitals.journal.encoding import encode_line


def read_again(details: Document) -> EventRow:
    return EventRow.parse(json.loads(encode_line(new_event("stalled", "no step", data=details).as_json())))


@pytest.mark.parametrize(
    "details",
    [
        ProcessEvent(pid=7, kind="training"),
        ProcessEnd(pid=7, exit_code=0),
        ProgramFailure(reason=Cause(kind=EXCEPTION, detail="ValueError: no"), traceback="", began=12.5),
        Stall(
            silent_seconds=0.0,
            dead_children=("a loader worker was killed",),
            process={"cpu_percent": 1.0},
            gpus=({"gpu_index": 0},),
            reason=Cause(kind=STALLED, seconds=61.0, rank=2),
            main_threads={"0": ("wait (queue.py:1)",), "rollout 1": ()},
        ),
    ],
    ids=lambda details: type(details).__name__,
)
def test_what_is_written_is_read_again(details: Document) -> None:
    assert read_again(details).details(type(details)) == details


def test_what_is_not_known_is_not_written() -> None:
    assert read_again(ProcessEnd(exit_code=0)).data == {"exit_code": 0}
    assert read_again(ProcessEnd()).data is None


def test_a_damaged_field_harms_no_other_and_is_kept() -> None:
    damaged = {"silent_seconds": "long", "main_threads": {"0": ["main"], "1": 5}, "phase": "rollout", "of": "a plugin"}
    row = EventRow.parse({"event": "stalled", "data": damaged})
    found = row.details(Stall)
    assert (found.silent_seconds, found.phase, found.main_threads) == (None, "rollout", {"0": ("main",)})
    assert row.as_json()["data"] == damaged and found.as_json()["of"] == "a plugin"


@pytest.mark.parametrize("data", [None, [], "text", 5, {"reason": 5, "traceback": ["x"], "began": math.nan}])
def test_an_event_of_the_same_name_by_somebody_else_says_nothing(data: object) -> None:
    found = EventRow.parse({"event": "failed", "data": data}).details(ProgramFailure)
    assert (found.reason, found.traceback) == (None, None)


def test_a_reason_of_an_older_version_is_a_sentence() -> None:
    row = EventRow.parse({"event": "rank_lost", "data": {"reason": "killed by the kernel"}})
    assert row.cause == Cause(detail="killed by the kernel")
