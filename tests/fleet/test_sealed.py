"""Sealed files from agents: what they come to is known before they are read, whatever they say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import write, write_alike

from trainvitals.fleet import sealed
from trainvitals.fleet.wire import FileRange, WireError
from trainvitals.journal.segment_writer import seal
from trainvitals.varints import varint

STEM = "training_metrics_20260101_000000"


def frame_of(path: Path) -> FileRange:
    return FileRange(f"segments/{STEM}.parquet", "segment", path.read_bytes())


def test_a_file_of_ours_is_charged_as_it_is(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 1 / (step + 1)} for step in range(500)]
    rows[::100] = [{**row, "phase": "warm-up"} for row in rows[::100]]
    frame = frame_of(seal(write(tmp_path, rows, STEM)).path)
    size = sealed.measure(frame)
    assert size.charged == len(frame.data)
    assert size.memory == 505 * sealed.ROW_BYTES + 500 * len("loss") + 5 * len("phasewarm-up")
    numbers, words = sealed.read(frame)
    assert (len(numbers.value), len(words)) == (500, 5)


def test_rows_that_are_alike_are_charged_as_if_they_differed(tmp_path: Path) -> None:
    frame = frame_of(write_alike(tmp_path / "alike.parquet", 300_000))
    assert len(frame.data) < 20_000
    size = sealed.measure(frame)
    assert size.charged == 300_000 * sealed.VALUE_BYTES
    assert size.memory == 300_000 * (sealed.ROW_BYTES + len("loss"))


@pytest.mark.promise("an agent sends a Parquet file of a few KB with millions of rows", "the gateway refuses it unread")
def test_a_small_file_of_very_many_rows_is_refused(tmp_path: Path) -> None:
    frame = frame_of(write_alike(tmp_path / "bomb.parquet", 3_000_000))
    assert len(frame.data) < 100_000
    with pytest.raises(WireError, match=r"3,000,000 rows, .* at most 320 MB"):
        sealed.measure(frame)


@pytest.mark.promise("the same with a long text in every row", "it is refused before the texts are in memory")
def test_a_small_file_of_very_long_texts_is_refused(tmp_path: Path) -> None:
    frame = frame_of(write_alike(tmp_path / "texts.parquet", 100_000, text="x" * 10_000))
    assert len(frame.data) < 100_000
    with pytest.raises(WireError, match=r"100,000 rows, of 9\d\d MB"):
        sealed.measure(frame)


def test_a_file_that_says_it_has_fewer_rows_is_refused(tmp_path: Path) -> None:
    data = write_alike(tmp_path / "liar.parquet", 70_001).read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    true, claimed = (varint(2 * rows) for rows in (70_001, 10_000))  # as Thrift writes a number
    lying = data[:start] + data[start:].replace(true, claimed, 1)
    assert len(true) == len(claimed) and lying != data
    with pytest.raises(WireError, match="says that it has 10,000 rows, and has 70,001"):
        sealed.measure(FileRange(f"segments/{STEM}.parquet", "segment", lying))


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1 and nothing else PAR1"])
def test_what_is_no_parquet_file_is_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="not a segment of ours"):
        sealed.measure(FileRange(f"segments/{STEM}.parquet", "segment", data))
