"""Small files that say they are large: read within bounded memory, or left out and counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from made_runs import make_run, write, write_alike

from trainvitals.journal import footer
from trainvitals.journal.checkup import find_faults
from trainvitals.journal.cursor import Cursor, count_lines, find_line, measure
from trainvitals.journal.reader import RunReader
from trainvitals.journal.segment_writer import seal, side_of

TERABYTE = 1 << 40
EARLY, LATE = "training_metrics_20260101_000000", "training_metrics_20260102_000000"


def stretch(path: Path) -> None:
    """Put a hole of a terabyte behind what the file has, and its last line behind that."""
    last = path.read_bytes().splitlines(keepends=True)[-1]
    os.truncate(path, TERABYTE)
    with open(path, "ab") as file:
        file.write(last)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = make_run(tmp_path / "p" / "run")
    write(folder, ({"step": step, "loss": 1.0} for step in range(10)), EARLY)
    return folder


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million rows are too many, which takes a second to write where the real limit takes a minute."""
    monkeypatch.setattr(footer, "ROWS_OF_ANY_FILE", 100_000)
    monkeypatch.setattr(footer, "ROWS_PER_BYTE", 1)


@pytest.mark.promise("a sparse JSONL file of a terabyte", "the hole is skipped; every row is read")
def test_a_file_with_a_hole_of_a_terabyte_is_read_around_it(run: Path) -> None:
    path = run / f"{EARLY}.jsonl"
    stretch(path)
    size = path.stat().st_size
    cursor = Cursor(path)
    assert [row["step"] for row in cursor.read()] == [*range(10), 9]
    assert cursor.damage.torn == 1 and cursor.offset == size
    assert measure(path) == (11, size)
    assert find_line(path, 10_000) < size
    assert cursor.read() == []


@pytest.mark.promise("the same through every reader", "less than 1 GB of memory")
def test_every_reader_of_such_a_file_does_with_little_memory(run: Path) -> None:
    stretch(run / f"{EARLY}.jsonl")
    (run / "segments").mkdir()
    os.truncate(os.open(run / "segments" / f"{EARLY}.rejected", os.O_CREAT | os.O_WRONLY), TERABYTE)
    program = (
        "import resource, sys; from trainvitals.journal.reader import RunReader\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))\n"
        "run = RunReader(sys.argv[1])\n"
        "print(len(list(run.rows())), run.series(['loss'])[0].total, run.summary()['loss'].count, run.damage().torn)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, run], capture_output=True, text=True, check=False)
    assert done.stdout.split()[:3] == ["11", "11", "11"], done.stderr
    assert int(done.stdout.split()[3]) >= 1


@pytest.mark.promise("a line that never ends", "it is counted as torn; what follows is read")
def test_a_line_without_an_end_is_cut_and_what_follows_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals.journal.cursor.LONGEST_LINE", 1000)
    path = run / f"{EARLY}.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"x" * 5000 + b"\n" + whole)
    for limit in (None, 100, 10_000):
        cursor, rows = Cursor(path), []
        while cursor.offset < path.stat().st_size:
            rows += cursor.read(limit)
        assert [row["step"] for row in rows] == list(range(10))
        assert cursor.damage.torn >= 1
    assert count_lines(path) >= 11


@pytest.mark.usefixtures("few_rows")
@pytest.mark.promise("a Parquet file of a few KB with billions of rows", "it is skipped before any data is read")
def test_a_small_parquet_file_of_very_many_rows_is_left_out_and_counted(run: Path) -> None:
    bomb = run / "segments" / f"{LATE}.parquet"
    write_alike(bomb, 1_000_000)
    assert bomb.stat().st_size < 20_000
    reader = RunReader(run)
    assert reader.names() == ["loss"]
    assert reader.series(["loss"], max_points=100)[0].total == 10
    assert len(list(RunReader(run).rows())) == 10
    assert reader.summary()["loss"].count == 10
    assert reader.damage().files == 1
    assert [fault.file for fault in find_faults(run)] == [f"segments/{LATE}.parquet"]


@pytest.mark.usefixtures("few_rows")
@pytest.mark.promise("a side table of the same kind", "it is rebuilt from its segment")
def test_a_side_table_of_very_many_rows_is_made_again(run: Path) -> None:
    sealed = seal(run / f"{EARLY}.jsonl").path
    side = side_of(sealed)
    duckdb.connect().execute(
        f"COPY (SELECT side.* FROM read_parquet('{side}') side CROSS JOIN range(1_000_000)) TO '{side}' "
        "(FORMAT parquet, ROW_GROUP_SIZE 4000000, KV_METADATA {trainvitals_extremes: '1'})"
    )
    with pytest.raises(footer.Oversized):
        footer.check_size(str(side))
    assert RunReader(run).series(["loss"], max_points=100)[0].total == 10
    footer.check_size(str(side))


@pytest.mark.promise("a Parquet file with very many row groups", "it is left out")
def test_a_footer_of_very_many_row_groups_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "many.parquet"
    length = footer.LONGEST_FOOTER + 1
    file.touch()
    os.truncate(file, length + 4)
    with open(file, "ab") as end:
        end.write(length.to_bytes(4, "little") + b"PAR1")
    with pytest.raises(footer.Oversized, match="footer"):
        footer.check_size(str(file))


@pytest.mark.parametrize("columns", [1, 14, 15, 200])
def test_the_rows_in_a_footer_are_those_that_duckdb_counts(
    tmp_path: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "some.parquet"
    named = ", ".join(f"{{a: range, b: [true]}} AS column_{number}" for number in range(columns))
    duckdb.connect().execute(f"COPY (SELECT {named} FROM range(70_001)) TO '{file}' (ROW_GROUP_SIZE 20000)")
    monkeypatch.setattr(footer, "MOST_ROWS", 70_001)
    footer.check_size(str(file))
    monkeypatch.setattr(footer, "MOST_ROWS", 70_000)
    with pytest.raises(footer.Oversized, match="70,001 rows"):
        footer.check_size(str(file))


def test_what_is_no_parquet_file_is_left_to_duckdb_to_refuse(tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"PAR1", b"\xff" * 40 + (32).to_bytes(4, "little") + b"PAR1")):
        file = tmp_path / str(number)
        file.write_bytes(content)
        footer.check_size(str(file))
