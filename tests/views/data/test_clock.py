"""Which step was when."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from made_runs import make_run, make_timed_run, write

import trainvitals
from trainvitals.journal.reader import RunReader
from trainvitals.views.data.clock import describe_range, read_clock


def test_of_a_step_that_was_logged_again_the_newest_attempt_counts(tmp_path: Path) -> None:
    first = trainvitals.init(project="p", dir=tmp_path, agent=False)
    for step in range(6):
        first.log({"loss": 1.0}, step=step)
    first.finish()
    ended = RunReader(first.folder).series(["loss"], x="time")[0].x[-1]
    again = trainvitals.init(project="p", dir=tmp_path, agent=False, resume=Path(first.folder).name)
    for step in range(3, 8):
        again.log({"loss": 1.0}, step=step)
    again.finish()
    clock = read_clock(RunReader(first.folder), ["none", "loss"])
    assert clock is not None and clock.steps.tolist() == list(range(8))
    assert bool((np.diff(clock.times) >= 0).all()) and bool((clock.times[3:] >= ended).all())
    assert read_clock(RunReader(first.folder), ["none"]) is None


def range_of(reader: RunReader, axis: str, start: float, end: float, to: str) -> tuple[float | None, float | None]:
    found = describe_range(reader, axis, start, end, to)
    return tuple(None if value is None else round(value, 3) for value in (found["start"], found["end"]))  # type: ignore[return-value]


def test_a_range_of_steps_is_when_they_were_logged_and_back(tmp_path: Path) -> None:
    reader, began = make_timed_run(tmp_path, {step: 10.0 + step * 2 for step in range(11)})
    assert range_of(reader, "step", 2, 4, "relative") == (14, 18)
    assert range_of(reader, "step", 2, 4, "time") == (round(began + 14, 3), round(began + 18, 3))
    assert range_of(reader, "relative", 14, 18, "step") == (2, 4)
    assert range_of(reader, "time", began + 15, began + 18, "step") == (2.5, 4)
    assert range_of(reader, "relative", 0, 14, "step") == (0, 2), "it ends where the rows begin"
    assert range_of(reader, "time", began - 5, began + 3, "relative") == (-5, 3)
    assert range_of(reader, "relative", -5, 3, "time") == (round(began - 5, 3), round(began + 3, 3))


def test_a_range_goes_over_any_metric_that_only_rises(tmp_path: Path) -> None:
    reader, _ = make_timed_run(tmp_path, {step: 10.0 + step for step in range(11)})
    assert range_of(reader, "tokens", 200, 400, "relative") == (12, 14)
    assert range_of(reader, "step", 2, 4, "tokens") == (200, 400)
    assert range_of(reader, "wave", 0, 1, "step") == (None, None)


def test_a_range_in_which_nothing_was_logged_is_none(tmp_path: Path) -> None:
    reader, _ = make_timed_run(tmp_path, {step: 10.0 + step for step in range(11)})
    assert range_of(reader, "step", 50, 60, "time") == (None, None)
    assert range_of(reader, "step", 2, 4, "nothing") == (None, None)
    empty, _ = make_timed_run(tmp_path)
    assert range_of(empty, "step", 2, 4, "time") == (None, None)


def test_a_step_of_two_attempts_is_where_the_newest_logged_it(tmp_path: Path) -> None:
    first, second = {step: float(step) for step in range(6)}, {step: 100.0 + step for step in range(3, 8)}
    reader, _ = make_timed_run(tmp_path, first, second)
    assert range_of(reader, "step", 3, 5, "relative") == (103, 105)
    assert range_of(reader, "step", 1, 2, "relative") == (1, 2)
    assert range_of(reader, "relative", 3, 50, "step")[0] == 2 + round((3 - 2) / (103 - 2), 3), "replaced rows are gone"


def test_rows_without_a_step_lead_nowhere_and_harm_nothing(tmp_path: Path) -> None:
    rows = [{"loss": 1.0}, *({"step": step, "loss": 1.0, "epoch": step / 2} for step in range(4))]
    reader = RunReader(write(make_run(tmp_path / "p" / "r"), rows).parent)
    assert range_of(reader, "step", 1, 2, "epoch") == (0.5, 1)
    assert range_of(reader, "epoch", 0.5, 1, "relative") == (2, 3), "read from the metric whose rows all have a step"
