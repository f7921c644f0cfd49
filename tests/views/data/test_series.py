"""Series as the page gets them, asked of the folder."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.layout import FileName
from trainvitals.journal.reader import RunReader
from trainvitals.journal.writer import LineWriter
from trainvitals.views.data.run_details import describe_run
from trainvitals.views.data.series import describe_series
from trainvitals.views.data.wire import encode

BEGAN = 1_790_000_000.0
Row = dict[str, Any]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., RunReader]:
    """`write(ranks, steps, row)`: a finished run whose ranks log `row(rank, step)`, a step each millisecond."""

    def make(ranks: int, steps: int, row: Callable[[int, int], Row], status: str = "finished") -> RunReader:
        folder = tmp_path / "p" / "run"
        run_folder.create(folder)
        about = {"id": "run", "project": "p", "name": "run", "status": status, "started": format_time(BEGAN)}
        run_folder.write_run(folder, RunFile.parse({"format": 1, "kind": "training", "attempt": 1, **about}))
        for rank in range(ranks):
            writer = LineWriter(folder, FileName("training", 1, "", rank=rank))
            for step in range(steps):
                line = {"timestamp": format_time(BEGAN + step / 1000), "step": step, **row(rank, step)}
                writer.append(encode_line(line))
            writer.close()
        return RunReader(folder)

    return make


def series_of(reader: RunReader, **more: Any) -> list[Row]:
    found: list[Row] = orjson.loads(encode(describe_series(reader, ["loss"], **more)))["series"]
    return found


def test_a_band_of_ranks_that_went_nan_is_marked_and_reaches_the_last_step(write: Callable[..., RunReader]) -> None:
    reader = write(16, 1000, lambda rank, step: {"loss": math.nan if step > 200 else 1.0})
    (band,) = series_of(reader, band=True)
    assert band["members"] == 16 and (band["x"][0], band["x"][-1]) == (0, 999)
    places = [at for at, word in band["nonfinite"] if word == "NaN"]
    assert places[-1] == len(band["x"]) - 1 and abs(band["x"][places[0]] - 201) <= 2
    assert band["y"][-1] is None and band["low"][-1] is None and band["high"][-1] is None
    assert band["nonfinite_total"] == 16 * 799


def test_one_rank_that_is_nan_is_marked_where_the_others_go_on(write: Callable[..., RunReader]) -> None:
    reader = write(4, 100, lambda rank, step: {"loss": math.nan if (rank, step) == (3, 50) else 1.0})
    (band,) = series_of(reader, band=True)
    ((at, word),) = band["nonfinite"]
    assert word == "NaN" and abs(band["x"][at] - 50) <= 1 and band["y"][at] == 1.0


def test_the_step_time_is_what_was_logged(write: Callable[..., RunReader]) -> None:
    logged = write(4, 50, lambda rank, step: {"loss": 1.0, "batch_time": 0.04})
    assert describe_run(logged, "run")["step_seconds"] == 0.04


def test_the_step_time_of_reinforcement_learning_is_what_was_logged(write: Callable[..., RunReader]) -> None:
    logged = write(1, 50, lambda rank, step: {"response_length/mean": 90.0, "timing_s/step": 65.0})
    assert describe_run(logged, "run")["step_seconds"] == 65.0


def test_without_a_logged_step_time_it_is_the_pace_of_one_rank(write: Callable[..., RunReader]) -> None:
    reader = write(4, 50, lambda rank, step: {"loss": 1.0, "batch_time": math.nan})
    assert describe_run(reader, "run")["step_seconds"] == pytest.approx(0.001)


def test_what_is_not_finite_is_counted_before_points_are_left_out(write: Callable[..., RunReader]) -> None:
    reader = write(1, 5000, lambda _, step: {"loss": math.nan if step >= 1000 else 1.0, "epoch": step / 1000})
    (line,) = series_of(reader, points=100)
    assert line["nonfinite_total"] == 4000 and len(line["nonfinite"]) < 100
    (zoomed,) = series_of(reader, points=100, start=4001)
    assert zoomed["nonfinite_total"] == 999
    (by_epoch,) = series_of(reader, points=100, axis="epoch")
    assert by_epoch["nonfinite_total"] == 4000
