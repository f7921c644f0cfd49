"""Which ranks failed, in order of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainvitals.journal.encoding import encode_line
from trainvitals.journal.failures import read_failures


def event(second: int, message: str, **data: Any) -> bytes:
    row = {"timestamp": f"1970-01-01T00:00:{second:02d}.500000Z", "event": "failed", "message": message, "data": data}
    return encode_line(row)


def test_the_exceptions_of_all_ranks_in_one_attempt_come_in_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "events_20260101_000000.rank0.jsonl").write_bytes(
        event(1, "the program's own word") + event(9, "late", traceback="...")
    )
    (tmp_path / "events_20260101_000000.rank1.jsonl").write_bytes(event(3, "early", traceback="...") + b'{"torn')
    (tmp_path / "events_20260101_000000.rank1.attempt2.jsonl").write_bytes(event(2, "again", traceback="..."))
    (tmp_path / "events_20260101_000000.jsonl").write_bytes(event(2, "of the agent", traceback="..."))
    assert [(item.time, item.participant.rank, str(item.cause)) for item in read_failures(tmp_path, 1)] == [
        (3.5, 1, "early"),
        (9.5, 0, "late"),
    ]
    assert [(item.time, item.participant.rank, str(item.cause)) for item in read_failures(tmp_path, 2)] == [
        (2.5, 1, "again")
    ]
    assert read_failures(tmp_path / "none", 1) == []
