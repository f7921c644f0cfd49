"""What the ranks log: how far it was read and what came of it, across the deaths of agents."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainvitals.agent.training_log import LogGrowth, TrainingLog
from trainvitals.journal import layout
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.follower import Relay
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.reader import RunReader
from trainvitals.journal.segment_writer import seal

FIRST = "training_metrics_20260101_000000.jsonl"
SECOND = "training_metrics_20260101_000001.jsonl"


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with open(path, "ab") as file:
        for row in rows:
            file.write(encode_line({"timestamp": format_time(), **row}))


class Log:
    """The log of some ranks, as an agent keeps it that found this status.json."""

    def __init__(self, folder: Path, known: dict[str, Any] | None = None, ranks: tuple[int, ...] = (0,)) -> None:
        self.log = TrainingLog(Status.parse(known or {}))
        self.log.summarised = Participant(rank=min(ranks))
        self.relay = Relay(folder, lambda file: (file.rank or 0) in ranks)
        self.relay.add(self.log)

    def poll(self, limit: int | None = None) -> dict[int, LogGrowth]:
        self.relay.poll(limit)
        return {participant.rank: growth for participant, growth in self.log.take_growth().items()}

    def status(self) -> dict[str, Any]:
        """What is kept in status.json, through JSON and back."""
        return dict(json.loads(encode_line(self.log.add_to(Status()).as_json())))


def test_lines_are_counted_with_the_newest_step(tmp_path: Path) -> None:
    write(tmp_path / FIRST, [{"step": step, "loss": 1.0} for step in range(5)])
    item = Log(tmp_path)
    growth = item.poll()[0]
    assert (growth.lines, growth.step) == (5, 4) and growth.timestamp is not None
    assert item.poll() == {}
    write(tmp_path / FIRST, [{"step": 5, "loss": 1.0}])
    write(tmp_path / SECOND, [{"step": 6, "loss": 1.0}])
    assert (item.poll()[0].lines, item.log.summary.metrics["loss"].count) == (2, 7)


def test_a_fast_trainer_is_read_a_piece_at_a_time_and_in_order(tmp_path: Path) -> None:
    write(tmp_path / FIRST, [{"step": step, "loss": float(step)} for step in range(100)])
    write(tmp_path / SECOND, [{"step": step, "loss": float(step)} for step in range(100, 200)])
    item = Log(tmp_path)
    seen: list[int] = []
    while growth := item.poll(1000):
        assert growth[0].lines < 100
        seen.append(growth[0].step or 0)
    assert seen == sorted(seen) and seen[-1] == 199
    loss = item.log.summary.metrics["loss"]
    assert (loss.count, loss.last, loss.low, loss.high) == (200, 199.0, 0.0, 199.0)


def test_only_ranks_of_this_machine_are_followed_and_the_lowest_is_summarised(tmp_path: Path) -> None:
    for rank in range(4):
        name = FIRST.replace(".jsonl", f".rank{rank}.jsonl")
        write(tmp_path / name, [{"step": step, "loss": float(rank)} for step in range(3)])
    item = Log(tmp_path, ranks=(2, 3))
    found = item.poll()
    assert {rank: (growth.lines, growth.step) for rank, growth in found.items()} == {2: (3, 2), 3: (3, 2)}
    assert item.log.summary.metrics["loss"].high == 2.0
    assert set(item.log.positions.offsets()) == {FIRST.replace(".jsonl", f".rank{rank}.jsonl") for rank in (2, 3)}


def test_broken_lines_are_counted_of_every_rank_and_across_agents(tmp_path: Path) -> None:
    for rank in (0, 1):
        path = tmp_path / FIRST.replace(".jsonl", f".rank{rank}.jsonl")
        write(path, [{"step": 0, "loss": 1.0}])
        with open(path, "ab") as file:
            file.write(b'{"timestamp":"2026-01-01T00:00:00Z","lo\n\n[1]\n')
        write(path, [{"step": 1, "loss": 1.0}])
    item = Log(tmp_path, ranks=(0, 1))
    assert {rank: growth.lines for rank, growth in item.poll().items()} == {0: 2, 1: 2}
    assert (item.log.damage.torn, item.log.damage.foreign) == (2, 2)
    assert Log(tmp_path, item.status(), ranks=(0, 1)).log.damage == item.log.damage
    for path in tmp_path.iterdir():
        path.unlink()
    item.poll()
    assert (item.log.damage.torn, item.log.damage.foreign) == (2, 2)


def test_a_run_that_the_version_before_has_watched_goes_on_without_its_sealed_files(tmp_path: Path) -> None:
    """It noted only the positions of files that were not sealed, and sealed only what it had read."""
    write(tmp_path / FIRST, [{"step": step, "loss": float(step)} for step in range(5)])
    write(tmp_path / SECOND, [{"step": step, "loss": float(step)} for step in range(5, 8)])
    item = Log(tmp_path)
    item.poll()
    status = item.status()
    del status["positions"][FIRST]
    seal(tmp_path / FIRST)
    write(tmp_path / SECOND, [{"step": 8, "loss": 8.0}])
    again = Log(tmp_path, status)
    assert again.poll()[0].lines == 1 and again.log.summary.metrics["loss"].count == 9


def test_a_file_is_done_with_only_when_its_end_was_seen_and_written_down(tmp_path: Path) -> None:
    write(tmp_path / FIRST, [{"step": 0, "loss": 1.0}])
    item, file = Log(tmp_path), parse(FIRST)
    item.poll()
    item.log.mark_saved()
    assert item.relay.behind(file) == [item.log]  # its end was not seen
    item.poll()
    assert item.relay.behind(file) == [item.log]  # that it was seen is not written down
    item.log.mark_saved()
    assert item.relay.behind(file) == []
    write(tmp_path / FIRST, [{"step": 1, "loss": 1.0}])
    item.poll()
    item.log.mark_saved()
    assert item.relay.behind(file) == [item.log]


def parse(name: str) -> FileName:
    found = layout.parse_name(name)
    assert found is not None
    return found[0]


VALUES = st.one_of(st.floats(), st.integers(-(2**40), 2**40), st.booleans())
ROWS = st.lists(
    st.dictionaries(st.sampled_from(["loss", "acc", "lr", "naïve\n"]), VALUES, min_size=1, max_size=3),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, deaths=st.lists(st.integers(0, 30), max_size=5))
def test_the_summary_is_that_of_the_reader_however_often_the_agent_dies(
    rows: list[dict[str, Any]], deaths: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / "run.json").write_text("{}")
    item = Log(folder)
    for step, row in enumerate(rows):
        write(folder / (FIRST if step < len(rows) // 2 else SECOND), [{"step": step, **row}])
        item.poll()
        if step in deaths:
            item = Log(folder, item.status())
    item = Log(folder, item.status())
    item.poll()
    truth = RunReader(folder).summary()
    assert set(item.log.summary.metrics) == set(truth)
    for name, expected in truth.items():
        found = item.log.summary.metrics[name]
        assert (found.count, found.nonfinite, found.last_step) == (
            expected.count,
            expected.nonfinite,
            expected.last_step,
        )
        assert found.last == expected.last or (math.isnan(found.last) and math.isnan(expected.last))
        assert (found.low, found.high) == (expected.low, expected.high)
