"""`trainvitals export`: every value, in every format, whole or not at all."""

from __future__ import annotations

import csv
import json
import math
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from trainvitals.views.data import export
from trainvitals.views.data.export import join_steps

PROGRAM = (sys.executable, "-m", "trainvitals")

LONG_NAME = 'name with "quotes", commas\nand lines'
ODD = [
    {"step": 0, "loss": 1.5, "epoch": 0},
    {"step": 1, "loss": float("nan"), "late": float("-inf")},
    {"step": 2, "loss": float("inf"), LONG_NAME: -0.0, "Loss": 3},
]


def test_json_is_an_array_of_the_lines(machine: Any, make_run: Callable[..., Path]) -> None:
    make_run("odd", rows=ODD)
    rows = json.loads(machine.run("export", "odd", "--format", "json").stdout, parse_constant=pytest.fail)
    assert [row["loss"] for row in rows] == [1.5, "NaN", "Infinity"]
    assert rows[1]["late"] == "-Infinity"
    assert "late" not in rows[0]


def test_jsonl_is_the_journal(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("odd", rows=ODD)
    (path,) = folder.glob("training_metrics_*.jsonl")
    assert machine.run("export", "odd", "--format", "jsonl").stdout == path.read_text()


def test_csv_has_a_column_for_every_name(machine: Any, make_run: Callable[..., Path]) -> None:
    make_run("odd", rows=ODD)
    text = machine.run("export", "odd", "--format", "csv").stdout
    rows = list(csv.DictReader(text.splitlines(keepends=True)))
    assert list(rows[0]) == ["timestamp", "step", "loss", "epoch", "late", LONG_NAME, "Loss"]
    assert [row["loss"] for row in rows] == ["1.5", "nan", "inf"]
    assert [row["late"] for row in rows] == ["", "-inf", ""]
    assert math.copysign(1, float(rows[2][LONG_NAME])) == -1
    assert math.isnan(float(rows[1]["loss"]))


def test_parquet_keeps_values_and_types(machine: Any, make_run: Callable[..., Path]) -> None:
    make_run("odd", rows=ODD)
    target = machine.folder / "odd.parquet"
    done = machine.run("export", "odd", "--format", "parquet", "-o", str(target))
    assert done.returncode == 0, done.stderr
    assert "'Loss' differs from another name only in case: its column is 'Loss_2'" in done.stderr
    read = duckdb.sql(f"SELECT * FROM '{target}'")
    assert read.columns == ["timestamp", "step", "loss", "epoch", "late", LONG_NAME, "Loss_2"]
    types = dict(zip(read.columns, map(str, read.types), strict=True))
    assert (types["timestamp"], types["step"], types["loss"]) == ("TIMESTAMP", "BIGINT", "DOUBLE")
    rows = read.fetchall()
    assert rows[0][2] == 1.5
    assert math.isnan(rows[1][2])
    assert rows[2][2] == math.inf
    assert (rows[0][4], rows[1][4]) == (None, -math.inf)
    assert rows[2][6] == 3


LOGGED_AND_MEASURED = [
    {"step": 0, "loss": 1.0, "epoch": 0},
    {"step": 1, "loss": 0.5, "epoch": 0},
    {"step": 0, "batch_time": 0.1, "gradient_norm": float("nan")},  # its device was a step behind
    {"note": 1.0},
    {"step": 1, "batch_time": 0.2},
    {"step": 1, "val/loss": 0.7, "epoch": 0},
    {"step": 2, "loss": 0.25},
    {"step": 2, "loss": 0.25},  # twice, as with accumulation
    {"step": 2, "batch_time": 0.3, "epoch": 1},
]


@pytest.mark.parametrize("form", ["json", "jsonl", "csv", "parquet"])
def test_what_was_logged_and_measured_for_a_step_is_one_row(
    machine: Any, make_run: Callable[..., Path], form: str
) -> None:
    make_run("steps", rows=LOGGED_AND_MEASURED)
    target = machine.folder / f"steps.{form}"
    assert machine.run("export", "steps", "--format", form, "-o", str(target)).returncode == 0
    reader = {"json": "read_json_auto", "jsonl": "read_json_auto", "csv": "read_csv_auto", "parquet": "read_parquet"}
    columns = 'step, loss::DOUBLE, epoch, batch_time, note, "val/loss", gradient_norm::DOUBLE'
    rows = duckdb.sql(f"SELECT {columns} FROM {reader[form]}('{target}')").fetchall()
    assert math.isnan(rows[0][6])
    assert [row[:6] for row in rows] == [
        (0, 1.0, 0, 0.1, None, None),
        (1, 0.5, 0, 0.2, None, 0.7),
        (None, None, None, None, 1.0, None),
        (2, 0.25, 1, 0.3, None, None),
        (2, 0.25, None, None, None, None),
    ]


def test_steps_of_other_ranks_and_attempts_stay_rows_of_their_own() -> None:
    rows = [
        {"step": 0, "rank": rank, "attempt": attempt, f"x{rank}{attempt}": 1.0} for rank in (0, 1) for attempt in (1, 2)
    ]
    assert list(join_steps(rows)) == rows


def test_rows_are_joined_in_bounded_memory_and_every_value_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_WINDOW_VALUES", 15_000)  # what 4,096 rows of these have: no count may drift
    count = 20_000
    held = 0

    def logged() -> Iterator[dict[str, Any]]:
        nonlocal held
        for step in range(count):
            held += 1
            yield {"step": step, "loss": float(step)}
            if step >= 1000:
                yield {"step": step - 1000, "batch_time": 0.5}
        for step in range(count):  # so late that the row of the step was written
            yield {"step": step, "late": 1.0}

    most = 0
    found = []
    for row in join_steps(logged()):
        held -= 1
        most = max(most, held)
        found.append(row)
    assert most < 10_000
    values = [(row["step"], name) for row in found for name in row if name != "step"]
    assert len(values) == len(set(values)) == 3 * count - 1000
    assert [row["step"] for row in found if "loss" in row] == list(range(count))
    assert sum("batch_time" in row for row in found if "loss" in row) == count - 1000


def test_wide_rows_are_not_held_back_in_thousands() -> None:
    taken = 0

    def wide() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for step in range(200):
            taken += 1
            yield {"step": step, **dict.fromkeys(map(str, range(10_000)), 1.0)}

    next(iter(join_steps(wide())))
    assert taken < 60


def test_a_name_that_is_taken_by_a_numbered_one_gets_the_next_number() -> None:
    from trainvitals.views.data.parquet import distinct_names

    assert distinct_names(["loss", "Loss", "loss_2", "LOSS"]) == {
        "loss": "loss",
        "Loss": "Loss_3",
        "loss_2": "loss_2",
        "LOSS": "LOSS_4",
    }


def test_ten_thousand_names_fit_into_one_file(machine: Any, make_run: Callable[..., Path]) -> None:
    wide = [
        {"step": step, **{f"layer.{number}/weight": float(number + step) for number in range(10_000)}}
        for step in (0, 1)
    ]
    make_run("wide", rows=wide)
    target = machine.folder / "wide.parquet"
    assert machine.run("export", "wide", "--format", "parquet", "-o", str(target)).returncode == 0
    assert duckdb.sql(f"""SELECT "layer.9999/weight" FROM '{target}'""").fetchall() == [(9999.0,), (10000.0,)]


@pytest.mark.parametrize("form", ["json", "jsonl", "csv", "parquet"])
def test_sealing_changes_nothing_that_is_exported(machine: Any, make_run: Callable[..., Path], form: str) -> None:
    make_run("same")
    before, after = machine.folder / "before", machine.folder / "after"
    machine.run("export", "same", "--format", form, "-o", str(before))
    machine.run("runs", "seal", "same")
    machine.run("export", "same", "--format", form, "-o", str(after))
    assert before.read_bytes() == after.read_bytes()


def test_all_tables_say_which_they_are(machine: Any, make_run: Callable[..., Path]) -> None:
    gpus = [{"gpu_index": 0, "utilization_percent": 50.0, "simulated": True}]
    events = [{"event": "started", "message": "hello", "data": {"pid": 1}}]
    make_run("both", rows=[{"step": 0, "loss": 1.0}], gpus=gpus, events=events)
    rows = json.loads(machine.run("export", "both", "--format", "json", "--table", "all").stdout)
    assert [row["table"] for row in rows] == ["training", "gpu", "events"]
    text = machine.run("export", "both", "--format", "csv", "--table", "events").stdout
    assert '"{""pid"": 1}"' in text


@pytest.mark.parametrize("form", ["json", "jsonl", "csv", "parquet"])
def test_a_table_without_lines_is_said(machine: Any, make_run: Callable[..., Path], form: str) -> None:
    make_run("empty")
    target = machine.folder / "empty"
    done = machine.run("export", "empty", "--format", form, "--table", "alerts", "-o", str(target))
    assert done.returncode == 0
    assert "has no rows in table 'alerts'" in done.stderr
    if form == "json":
        assert json.loads(target.read_text()) == []


def test_a_file_that_exists_is_replaced_only_by_force(machine: Any, make_run: Callable[..., Path]) -> None:
    make_run("mine")
    target = machine.folder / "out.csv"
    target.write_text("precious")
    done = machine.run("export", "mine", "--format", "csv", "-o", str(target))
    assert done.returncode == 1
    assert "--force" in done.stderr
    assert target.read_text() == "precious"
    assert machine.run("export", "mine", "--format", "csv", "-o", str(target), "--force").returncode == 0
    assert target.read_text().startswith("timestamp,step,loss,lr\n")


@pytest.mark.parametrize("form", ["json", "csv"])
@pytest.mark.promise("the disk fills up during an export", "no half file is left")
def test_a_file_that_cannot_be_completed_is_not_there_at_all(
    machine: Any, make_run: Callable[..., Path], form: str
) -> None:
    make_run("large", rows=[{"step": step, "loss": step / 7} for step in range(3000)])
    target = machine.folder / "out" / "large"
    target.parent.mkdir()

    def allow_little() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = machine.run("export", "large", "--format", form, "-o", str(target), preexec_fn=allow_little)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(target.parent.iterdir()) == []


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(machine: Any, make_run: Callable[..., Path]) -> None:
    make_run("one")
    done = machine.run("export", "one", "--format", "csv", "-o", "/nowhere/loss.csv")
    assert done.returncode == 1
    assert done.stderr.startswith("trainvitals: cannot write /nowhere/loss.csv: No such file or directory")
    assert "-o FILE" in done.stderr


def test_parquet_is_not_thrown_at_a_terminal(make_run: Callable[..., Path], terminal: Callable[..., Any]) -> None:
    make_run("binary")
    session = terminal([*PROGRAM, "export", "binary", "--format", "parquet"])
    assert session.wait() == 2
    assert "not writing Parquet to a terminal" in session.text


def test_parquet_goes_through_a_pipe(machine: Any, make_run: Callable[..., Path]) -> None:
    make_run("piped")
    done = subprocess.run(
        [*PROGRAM, "export", "piped", "--format", "parquet"],
        env=machine.environ,
        capture_output=True,
        check=True,
    )
    assert done.stdout[:4] == done.stdout[-4:] == b"PAR1"


def test_a_format_that_is_not_known_is_named(machine: Any, make_run: Callable[..., Path]) -> None:
    make_run("odd")
    done = machine.run("export", "odd", "--format", "parket")
    assert done.returncode == 2
    assert (
        "'parket' is not one of json, jsonl, csv, parquet, html, png, svg, zip, did you mean 'parquet'?" in done.stderr
    )
