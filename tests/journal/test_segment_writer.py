"""Sealing: every value, or the file stays as it is, whoever is killed meanwhile."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import make_run, write

from trainvitals.errors import JournalError
from trainvitals.journal import extremes, parquet, segment_writer
from trainvitals.journal.extremes import BUCKET, NO_STEP, Numbers
from trainvitals.journal.reader import RunReader

FILES, ROWS = 40, 50


@pytest.mark.promise("the sealer is killed a hundred times", "no row is lost or duplicated")
def test_a_sealer_killed_a_hundred_times_loses_and_doubles_nothing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "run")
    for number in range(FILES):
        steps = range(number * ROWS, (number + 1) * ROWS)
        write(folder, [{"step": step, "up": step} for step in steps], f"training_metrics_20260101_{number:06d}")
    chance = random.Random(100)
    duckdb.connect().close()  # loaded before the fork, so that a child is at work at once
    for _ in range(100):
        pid = os.fork()
        if pid == 0:
            for path in sorted(folder.glob("*.jsonl")):
                segment_writer.seal(path)
            os._exit(0)
        time.sleep(chance.random() * 0.05)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert [row["step"] for row in RunReader(folder).rows()] == list(range(FILES * ROWS))
    assert RunReader(folder).summary()["up"].count == FILES * ROWS
    for path in sorted(folder.glob("*.jsonl")):
        segment_writer.seal(path)
    segment_writer.seal(write(folder, [{"step": 0, "up": 0}], "gpu_metrics_20260101_000000"))  # it tidies up as well
    assert not list(folder.glob("*.jsonl")) and not list(folder.glob("segments/.*"))
    assert [row["step"] for row in RunReader(folder).rows()] == list(range(FILES * ROWS))


@pytest.mark.parametrize("place", ["value", "step", "time", "row", "name", "text"])
@pytest.mark.promise("a Parquet file that reads back differently", "the JSONL file is kept")
def test_a_file_whose_segment_is_not_what_was_written_is_kept(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk or a DuckDB that gives back another value, of which the count of rows says nothing."""
    folder = make_run(tmp_path / "p" / "run")
    path = write(folder, [{"step": step, "loss": 0.5 * step, "word": f"w{step}"} for step in range(20)])
    copy = parquet.copy
    wrong = {"name": "'x'", "text": "CASE WHEN text = 'w3' THEN 'w4' ELSE text END"}.get(
        place, f"{place} + (row = 7)::INT"
    )

    def copy_wrongly(connection: object, query: str, target: str, *more: object) -> None:
        copy(connection, f"SELECT * REPLACE ({wrong} AS {place}) FROM ({query})", target, *more)

    monkeypatch.setattr(parquet, "copy", copy_wrongly)
    with pytest.raises(JournalError, match="failed verification"):
        segment_writer.seal(path)
    assert path.exists() and list((folder / "segments").iterdir()) == []


@pytest.mark.promise("a line of lists within lists, deeper than can be written", "the file is sealed, the line kept")
@pytest.mark.parametrize("depth", [101, 260, 900, 100_000])
def test_a_file_with_a_line_that_is_nested_too_deeply_is_sealed_without_it(depth: int, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "run")
    path = write(folder, [{"step": step, "loss": 0.5} for step in range(3)])
    deep = '{"timestamp":"2026-01-01T00:00:00.000000Z","step":3,"loss":%s}' % ("[" * depth + "]" * depth)
    with open(path, "a") as file:
        file.write(f"{deep}\n")
    sealed = segment_writer.seal(path)
    assert (sealed.lines, sealed.damage.torn + sealed.damage.foreign) == (3, 1)
    assert (folder / "segments" / f"{path.stem}.rejected").read_text() == f"{deep}\n"


def test_labels_of_a_segment_of_somebody_else_s_are_at_least_text() -> None:
    for text in ("x", "[1]", '{"a":' + "[" * 300 + "]" * 300 + "}"):
        assert segment_writer.parse_labels(text) == {"label": text}
    assert segment_writer.parse_labels('{"gpu":1}') == {"gpu": 1} and segment_writer.parse_labels("") == {}


@pytest.mark.promise("a JSONL file too large to seal", "it is read as it is")
def test_a_file_too_large_to_be_sealed_in_memory_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(make_run(tmp_path / "p" / "run"), [{"step": 0, "loss": 1.0}])
    monkeypatch.setattr(segment_writer, "LARGEST_FILE", 10)
    with pytest.raises(JournalError, match="not sealed"):
        segment_writer.seal(path)
    assert path.exists()


numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), numbers, st.integers(-5, 5) | st.none()), max_size=60), st.integers(1, 9))
def test_extremes_are_what_a_plain_loop_finds(items: list[tuple[int, float, int | None]], bucket: int) -> None:
    by_key = sorted(enumerate(items), key=lambda item: (item[1][0], item[0]))
    given_numbers = Numbers(
        keys=[("a", ""), ("b", ""), ("c", "")],
        key=np.array([item[0] for _, item in by_key], dtype=np.int32),
        row=np.array([row for row, _ in by_key], dtype=np.int64),
        step=np.array([NO_STEP if item[2] is None else item[2] for _, item in by_key], dtype=np.int64),
        time=np.array([1000 + row for row, _ in by_key], dtype=np.int64),
        value=np.array([item[1] for _, item in by_key], dtype=np.float64),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extremes, "BUCKET", bucket)
        found = extremes.find_extremes(given_numbers)
    at = 0
    for key in range(3):
        mine = [(row, item[1], NO_STEP if item[2] is None else item[2]) for row, item in by_key if item[0] == key]
        for number, begin in enumerate(range(0, len(mine), bucket)):
            part = mine[begin : begin + bucket]
            finite = [item for item in part if np.isfinite(item[1])]
            broken = [item for item in part if not np.isfinite(item[1])]
            assert (found["key"][at], found["bucket"][at], found["count"][at]) == (key, number, len(part))
            assert found["broken"][at] == len(broken)
            low = min(finite, key=lambda item: (item[1], item[0]), default=(-1, 0.0, NO_STEP))
            high = min(finite, key=lambda item: (-item[1], item[0]), default=(-1, 0.0, NO_STEP))
            assert (found["low_row"][at], found["low"][at], found["low_step"][at]) == low
            assert (found["high_row"][at], found["high"][at], found["high_step"][at]) == high
            assert found["broken_row"][at] == (broken[0][0] if broken else -1)
            assert found["last_row"][at] == part[-1][0]
            known = [step for _, _, step in part if step != NO_STEP]
            assert found["step_from"][at] == (min(known) if known else NO_STEP)
            assert found["step_to"][at] == (max(known) if known else NO_STEP)
            assert (found["time_from"][at], found["time_to"][at]) == (1000 + part[0][0], 1000 + part[-1][0])
            at += 1
    assert at == len(found["key"]) and BUCKET == 1000
