"""What the ranks log, read once and never twice."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainvitals.agent import following
from trainvitals.agent.following import Following, Summary
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.reader import RunReader

FIRST = "training_metrics_20260101_000000.jsonl"
SECOND = "training_metrics_20260101_000001.jsonl"


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with open(path, "ab") as file:
        for row in rows:
            file.write(encode_line({"timestamp": format_time(), **row}))


def follow(folder: Path, known: dict[str, Any] | None = None, ranks: tuple[int, ...] = (0,)) -> Following:
    found = Following(folder, known or {})
    found.set_ranks(ranks, min(ranks))
    return found


def status_of(item: Following) -> dict[str, Any]:
    """What is kept in status.json, through JSON and back."""
    content = {
        "positions": item.positions,
        "summary": item.summary.as_json(),
        "summary_left_out": item.summary.left_out,
        "damage": {"torn": item.damage.torn, "foreign": item.damage.foreign},
    }
    return dict(json.loads(encode_line(content)))


def test_lines_are_counted_with_the_newest_step(tmp_path: Path) -> None:
    write(tmp_path / FIRST, [{"step": step, "loss": 1.0} for step in range(5)])
    item = follow(tmp_path)
    growth = item.poll()[0]
    assert (growth.lines, growth.step) == (5, 4) and growth.timestamp is not None
    assert item.poll() == {}
    write(tmp_path / FIRST, [{"step": 5, "loss": 1.0}])
    write(tmp_path / SECOND, [{"step": 6, "loss": 1.0}])
    assert (item.poll()[0].lines, item.summary.metrics["loss"].count) == (2, 7)


def test_a_fast_trainer_is_read_a_piece_at_a_time_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PIECE", 1000)
    write(tmp_path / FIRST, [{"step": step, "loss": float(step)} for step in range(100)])
    write(tmp_path / SECOND, [{"step": step, "loss": float(step)} for step in range(100, 200)])
    item = follow(tmp_path)
    seen: list[int] = []
    while growth := item.poll():
        assert growth[0].lines < 100
        seen.append(growth[0].step or 0)
    assert seen == sorted(seen) and seen[-1] == 199
    loss = item.summary.metrics["loss"]
    assert (loss.count, loss.last, loss.low, loss.high) == (200, 199.0, 0.0, 199.0)


def test_only_ranks_of_this_machine_are_followed_and_the_lowest_is_summarised(tmp_path: Path) -> None:
    for rank in range(4):
        name = FIRST.replace(".jsonl", f".rank{rank}.jsonl")
        write(tmp_path / name, [{"step": step, "loss": float(rank)} for step in range(3)])
    item = follow(tmp_path, ranks=(2, 3))
    found = item.poll()
    assert {rank: (growth.lines, growth.step) for rank, growth in found.items()} == {2: (3, 2), 3: (3, 2)}
    assert item.summary.metrics["loss"].high == 2.0
    assert set(item.positions) == {FIRST.replace(".jsonl", f".rank{rank}.jsonl") for rank in (2, 3)}


def test_broken_lines_are_counted_of_every_rank_and_across_agents(tmp_path: Path) -> None:
    for rank in (0, 1):
        path = tmp_path / FIRST.replace(".jsonl", f".rank{rank}.jsonl")
        write(path, [{"step": 0, "loss": 1.0}])
        with open(path, "ab") as file:
            file.write(b'{"timestamp":"2026-01-01T00:00:00Z","lo\n\n[1]\n')
        write(path, [{"step": 1, "loss": 1.0}])
    item = follow(tmp_path, ranks=(0, 1))
    assert {rank: growth.lines for rank, growth in item.poll().items()} == {0: 2, 1: 2}
    assert (item.damage.torn, item.damage.foreign) == (2, 2)
    assert follow(tmp_path, status_of(item), ranks=(0, 1)).damage == item.damage
    for path in tmp_path.iterdir():
        path.unlink()
    item.poll()
    assert (item.damage.torn, item.damage.foreign) == (2, 2)


def test_a_file_is_read_only_when_its_end_was_seen_and_written_down(tmp_path: Path) -> None:
    write(tmp_path / FIRST, [{"step": 0, "loss": 1.0}])
    item = follow(tmp_path)
    item.poll()
    assert not item.has_read(FIRST, item.positions)
    item.poll()
    assert not item.has_read(FIRST, {})
    assert item.has_read(FIRST, item.positions)
    write(tmp_path / FIRST, [{"step": 1, "loss": 1.0}])
    item.poll()
    assert not item.has_read(FIRST, item.positions)


def test_metrics_beyond_the_limit_are_counted_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MOST_NAMES", 3)
    summary = Summary()
    for step in range(2):
        summary.add({"timestamp": "t", "step": step, **{f"m{number}": 1.0 for number in range(5)}})
    assert set(summary.metrics) == {"m0", "m1", "m2"} and summary.left_out == 4
    assert Summary.parse({"summary": summary.as_json(), "summary_left_out": 4}) == summary


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
    item = follow(folder)
    for step, row in enumerate(rows):
        write(folder / (FIRST if step < len(rows) // 2 else SECOND), [{"step": step, **row}])
        item.poll()
        if step in deaths:
            item = follow(folder, status_of(item))
    item = follow(folder, status_of(item))
    item.poll()
    truth = RunReader(folder).summary()
    assert set(item.summary.metrics) == set(truth)
    for name, expected in truth.items():
        found = item.summary.metrics[name]
        assert (found.count, found.nonfinite, found.last_step) == (
            expected.count,
            expected.nonfinite,
            expected.last_step,
        )
        assert found.last == expected.last or (math.isnan(found.last) and math.isnan(expected.last))
        if expected.low is None:
            assert found.low > found.high
        else:
            assert (found.low, found.high) == (expected.low, expected.high)
