"""How far somebody is in the files of a run."""

from __future__ import annotations

import json

from trainvitals.journal.layout import FileName
from trainvitals.journal.listening import REMEMBERED_FILES, Position, Positions


def file(number: int, rank: int = 0, attempt: int = 1) -> FileName:
    return FileName("training", attempt, f"20260101_{number:06d}", rank=rank)


def test_of_each_writer_older_files_were_read_and_newer_ones_not() -> None:
    positions = Positions({file(5): Position(100, 3)})
    assert positions.get(file(4)) is None
    assert positions.get(file(5)) == Position(100, 3)
    assert positions.get(file(6)) == positions.get(file(4, rank=1)) == Position(0, 0)
    assert positions.get(file(1, attempt=2)) == Position(0, 0)
    assert positions.covers(file(4), 10**9) and positions.covers(file(5), 100)
    assert not positions.covers(file(5), 101) and not positions.covers(file(6), 1)


def test_only_the_newest_files_are_remembered() -> None:
    positions = Positions()
    for number in range(100):
        positions.advance(file(number), Position(number + 1, 1))
    assert len(positions.items()) == REMEMBERED_FILES
    assert positions.get(file(0)) is None and positions.get(file(99)) == Position(100, 1)


def test_both_forms_on_disk_are_understood_and_nonsense_is_left_out() -> None:
    positions = Positions({file(1): Position(100, 3), file(2, rank=1): Position(7, None)})
    again = Positions.parse(json.loads(json.dumps(positions.as_json())))
    assert again.items() == positions.items()
    offsets = Positions.parse(positions.offsets())
    assert offsets.get(file(1)) == Position(100, None)
    bad = {"notes.txt": 5, file(3).jsonl: "x", file(4).jsonl: [1], file(5).jsonl: [1, "2"], file(6).jsonl: True}
    assert Positions.parse(bad).items() == [] and Positions.parse(None).items() == []


def test_a_copy_stays_as_it_was() -> None:
    positions = Positions({file(1): Position(1, 1)})
    copy = positions.copy()
    positions.advance(file(1), Position(2, 2))
    assert copy.get(file(1)) == Position(1, 1)
