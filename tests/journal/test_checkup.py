"""Damage is found, what can be mended is mended, and the rest of the run is read all the same."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest
from made_runs import make_run, write

from trainvitals.conditions import Conditions
from trainvitals.journal import segment_writer
from trainvitals.journal.checkup import Fault, find_faults, mend
from trainvitals.journal.reader import RunReader
from trainvitals.views.report.data import make_data

STEM = "training_metrics_20260101_00000{}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three sealed files and a live one, a thousand steps each."""
    made = make_run(tmp_path / "p" / "run")
    for number in range(4):
        steps = range(number * 1000, (number + 1) * 1000)
        path = write(made, [{"step": step, "loss": 1 / (step + 1)} for step in steps], STEM.format(number))
        if number < 3:
            segment_writer.seal(path)
    return made


def segment(folder: Path, number: int) -> Path:
    return folder / "segments" / f"{STEM.format(number)}.parquet"


def faults(folder: Path) -> list[Fault]:
    return list(find_faults(folder))


def break_inside(path: Path) -> None:
    """Bytes that rotted on the disk: the file looks whole, and DuckDB may read it without complaint."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 3
    for place in range(middle, middle + 8):
        data[place] ^= 0xFF
    path.write_bytes(data)


def test_a_healthy_run_has_no_faults(folder: Path) -> None:
    assert faults(folder) == []


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"no Parquet at all" * 100])
@pytest.mark.promise("a damaged Parquet file", "it is skipped and counted; the rest is read")
def test_a_damaged_segment_is_left_out_and_counted_and_the_rest_is_read(folder: Path, damage: bytes) -> None:
    reader = RunReader(folder)
    whole = segment(folder, 1).read_bytes()
    segment(folder, 1).write_bytes(damage or whole[: len(whole) // 2])
    steps = [*range(1000), *range(2000, 4000)]
    for _ in range(2):
        assert [row["step"] for row in reader.rows()] == steps
        assert reader.series(["loss"])[0].x.tolist() == steps
        assert reader.summary()["loss"].count == 3000
        assert reader.names() == ["loss"] and reader.series(["loss"], max_points=50)[0].total == 3000
        assert str(reader.damage()) == "1 unreadable Parquet file"
        assert make_data([("run", reader)], Conditions())["runs"]["run"]["run"]["damage"]["files"] == 1
        reader = RunReader(folder)
    (fault,) = faults(folder)
    assert fault.mend is None and "its JSONL file is missing" in fault.text
    segment(folder, 1).write_bytes(whole)
    assert reader.summary()["loss"].count == 4000, "a copy that came from elsewhere is read at once"
    assert not reader.damage()


def test_a_segment_that_is_damaged_after_it_was_looked_at_is_left_out_too(folder: Path) -> None:
    reader = RunReader(folder)
    assert reader.summary()["loss"].count == 4000 and len(reader.series(["loss"])[0].x) == 4000
    segment(folder, 0).write_bytes(b"x" * 5000)
    assert len(reader.series(["loss"])[0].x) == 3000
    assert reader.damage().files == 1


def test_a_damaged_segment_with_its_file_is_sealed_again(folder: Path) -> None:
    path = folder / f"{STEM.format(3)}.jsonl"
    segment_writer.seal(path, keep=True)
    good = segment(folder, 3).read_bytes()
    segment(folder, 3).write_bytes(b"broken")
    assert RunReader(folder).summary()["loss"].count == 4000 and not RunReader(folder).damage()
    (fault,) = faults(folder)
    assert mend(fault) and faults(folder) == []
    assert segment(folder, 3).read_bytes() == good and path.exists()


@pytest.mark.promise("bytes that changed on the disk", "`runs check` reports them")
def test_bytes_that_changed_on_the_disk_are_noticed(folder: Path) -> None:
    break_inside(segment(folder, 2))
    (fault,) = faults(folder)
    assert fault.file == f"segments/{segment(folder, 2).name}"
    assert "cannot be read" in fault.text or "changed after sealing" in fault.text
    assert fault.mend is None


def test_a_side_table_of_another_segment_is_noticed(folder: Path) -> None:
    segment_writer.side_of(segment(folder, 2)).write_bytes(segment_writer.side_of(segment(folder, 0)).read_bytes())
    (fault,) = faults(folder)
    assert "changed after sealing: its numbers may be wrong" in fault.text and fault.mend is None


def test_side_tables_are_rebuilt(folder: Path) -> None:
    sides = [segment_writer.side_of(segment(folder, number)) for number in range(3)]
    before = [side.read_bytes() for side in sides]
    sides[0].unlink()
    sides[1].write_bytes(b"broken")
    without_mark = sides[2].with_suffix(".new")
    duckdb.sql(f"COPY (SELECT * FROM read_parquet('{sides[2]}')) TO '{without_mark}' (FORMAT parquet)")
    without_mark.replace(sides[2])
    assert [(fault.file, fault.text) for fault in faults(folder)] == [
        (f"segments/{sides[0].name}", "is missing"),
        (f"segments/{sides[1].name}", "cannot be read"),
        (f"segments/{sides[2].name}", "does not match its segment"),
    ]
    assert all(mend(fault) for fault in faults(folder)) and faults(folder) == []
    assert [side.read_bytes() for side in sides] == before


def test_torn_lines_and_what_killed_sealers_left_are_told(folder: Path) -> None:
    with open(folder / f"{STEM.format(3)}.jsonl", "ab") as file:
        file.write(b'torn\n{"loss":1}\n')
    left = folder / "segments" / ".sealing-somewhere"
    left.mkdir()
    os.utime(left, (0, 0))
    lines, place = faults(folder)
    assert lines.text == "1 torn line, 1 foreign line; all other lines are read" and lines.mend is None
    assert place.file == "segments/.sealing-somewhere" and mend(place) and not left.exists()
