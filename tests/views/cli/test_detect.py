"""`trainvitals detect`: the unusual rows of a table, as CSV, as soon as they are read."""

from __future__ import annotations

import csv
import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def make_rows(spike: int = 800, count: int = 1000) -> list[list[str]]:
    source = random.Random(3)
    rows = [["time", "loss, mean", "note"]]
    for number in range(count):
        value = source.gauss(-5, 0.1) + (4 if number == spike else 0)
        rows.append([f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}", repr(value), f"row {number}, é"])
    return rows


def as_csv(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def test_the_unusual_rows_are_printed_as_they_were(machine: Any, tmp_path: Path) -> None:
    rows = make_rows()
    (tmp_path / "table.csv").write_text(as_csv(rows), encoding="utf-8")
    done = machine.run("detect", "--csv", str(tmp_path / "table.csv"), "--time", "time", "--value", "loss, mean")
    assert done.returncode == 0 and done.stderr == ""
    header, *found = csv.reader(io.StringIO(done.stdout))
    assert header == [*rows[0], "anomaly", "score"]
    assert [row[:3] for row in found] == [rows[801]]
    assert found[0][3] == "high" and float(found[0][4]) >= 1


def test_the_time_comes_first_and_json_has_the_same(machine: Any, tmp_path: Path) -> None:
    rows = [[value, time, note] for time, value, note in make_rows()]
    (tmp_path / "table.csv").write_text(as_csv(rows), encoding="utf-8-sig")
    words = ("detect", "--csv", str(tmp_path / "table.csv"), "--time", "time", "--value", "loss, mean")
    assert machine.run(*words).stdout.startswith('time,"loss, mean",note,anomaly,score\n')
    (found,) = map(json.loads, machine.run(*words, "--json").stdout.splitlines())
    assert list(found) == ["time", "loss, mean", "note", "anomaly", "score"]
    assert found["time"] == rows[801][1] and found["loss, mean"] == rows[801][0]


def test_a_row_of_a_stream_is_printed_before_the_next_one_comes() -> None:
    lines = as_csv(make_rows()).splitlines(keepends=True)
    command = [sys.executable, "-m", "trainvitals", "detect", "--csv", "-", "--value", "loss, mean"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("".join(lines[:802]))
        process.stdin.flush()
        assert process.stdout.readline().startswith("time,")
        assert "row 800, é" in process.stdout.readline()
        process.stdin.close()
        assert process.stdout.read() == ""
    assert process.returncode == 0


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_only_column_with_numbers_need_not_be_named(separator: str, machine: Any, tmp_path: Path) -> None:
    rows = [[cell.replace(",", "") for cell in row] for row in make_rows()]
    (tmp_path / "table.csv").write_text(as_csv(rows).replace(",", separator), encoding="utf-8")
    assert "row 800" in machine.run("detect", "--csv", str(tmp_path / "table.csv")).stdout


def test_cells_that_are_no_numbers_are_counted_and_skipped(machine: Any, tmp_path: Path) -> None:
    rows = make_rows()
    rows[5][1], rows[6][1], rows[7][1] = "oops", "", "NaN"
    rows[8] = ["short"]
    (tmp_path / "table.csv").write_text(as_csv(rows), encoding="utf-8")
    done = machine.run("detect", "--csv", str(tmp_path / "table.csv"), "--value", "loss, mean")
    assert done.returncode == 0 and "row 800" in done.stdout
    assert done.stderr.strip() == "trainvitals: 1 of 1,000 values of 'loss, mean' are not numbers: skipped"


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        (("--value", "los"), "no column 'los' for --value, did you mean 'loss'?", 2),
        (("--time", "when", "--value", "loss"), "no column 'when' for --time", 2),
        ((), "2 columns have numbers: choose one", 2),
    ],
)
def test_a_column_that_is_not_there_is_named(
    machine: Any, tmp_path: Path, words: tuple[str, ...], text: str, code: int
) -> None:
    (tmp_path / "table.csv").write_text("step,loss\n1,2\n")
    done = machine.run("detect", "--csv", str(tmp_path / "table.csv"), *words)
    assert done.returncode == code and text in done.stderr and done.stdout == ""


@pytest.mark.parametrize(("content", "text"), [(None, "cannot read"), ("", "is empty")])
def test_a_file_that_is_no_table_is_named(machine: Any, tmp_path: Path, content: str | None, text: str) -> None:
    if content is not None:
        (tmp_path / "table.csv").write_text(content)
    done = machine.run("detect", "--csv", str(tmp_path / "table.csv"), "--value", "loss")
    assert done.returncode == 1 and text in done.stderr and "Traceback" not in done.stderr
