"""What a sweep came to, read from made runs in which it is known."""

from __future__ import annotations

import math
from pathlib import Path

from made_runs import make_run, write
from made_sweep import make_sweep

from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.views.data.run_details import describe_row
from trainvitals.views.data.run_listing import list_json
from trainvitals.views.data.run_rows import list_rows
from trainvitals.views.data.sweep import describe_sweep


def test_the_parameter_that_decides_comes_first_and_the_best_run_is_named(tmp_path: Path) -> None:
    make_sweep(tmp_path, 120)
    runs = FolderRuns(tmp_path)
    rows = [describe_row(row) for row in list_rows(runs)]
    found = describe_sweep(rows, runs.statuses, metric="train/loss")
    shares = {item["key"]: item["share"] for item in found["importances"]}
    assert found["importances"][0]["key"] == "lr" and shares["lr"] > 0.6
    assert shares["workers"] < 0.1 and shares["model.width"] < 0.1 and "seed" not in shares
    lowest = min(rows, key=lambda row: row["summary"]["train/loss"])
    assert found["best"] == lowest["key"] and found["better"] == "lower"
    highest = describe_sweep(rows, runs.statuses, metric="train/loss", take="max")
    assert highest["values"] == [row["summary"]["train/loss"] for row in rows]
    assert describe_sweep(rows, runs.statuses, metric="nothing")["best"] is None


def test_without_runs_there_is_nothing_to_say() -> None:
    found = describe_sweep([], lambda key: [])
    assert (found["name"], found["values"], found["best"], found["importances"]) == ("", [], None, [])


def test_a_run_that_diverged_has_no_part_in_it(tmp_path: Path) -> None:
    make_sweep(tmp_path, 12)
    folder = make_run(tmp_path / "sweep" / "diverged", status="finished", config={"lr": 10.0})
    write(folder, [{"step": 0, "train/loss": 3.0}, {"step": 1, "train/loss": math.nan}])
    runs = FolderRuns(tmp_path)
    rows = list_json(runs, runs.list_keys())
    found = describe_sweep(rows, runs.statuses, metric="train/loss")
    place = next(at for at, row in enumerate(rows) if row["id"] == "diverged")
    assert math.isnan(found["values"][place] or 0.0)
    rest = [value for at, value in enumerate(found["values"]) if at != place]
    assert len(rest) == 12 and all(value is not None and math.isfinite(value) for value in rest)
    assert found["best"] not in (None, rows[place]["key"]) and found["importances"]
