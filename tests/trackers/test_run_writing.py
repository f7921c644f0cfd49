"""Runs of other trackers in run folders: exact, once, and like every other run."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_until

from trainvitals import settings as settings_room
from trainvitals.journal.documents.run import Origin
from trainvitals.journal.edits import Edit, edit_run
from trainvitals.journal.identity import Participant
from trainvitals.journal.reader import RunReader
from trainvitals.journal.segment_writer import Lines
from trainvitals.trackers.run_writing import About, RunWriter, TrackedRuns

ORIGIN = Origin(tool="made", place="/somewhere", key="a")
STARTED = 1_763_380_000.25
ABOUT = About(name="baseline", started=STARTED)


def _open(root: Path, about: About = ABOUT, origin: Origin = ORIGIN) -> RunWriter:
    return TrackedRuns(root, settings_room.resolve(environ={}, search=False)).open(origin, about)


def _rows(run: RunWriter) -> list[dict[str, object]]:
    return list(RunReader(run.folder).rows())


def test_a_row_reads_back_as_it_was_given(tmp_path: Path) -> None:
    run = _open(tmp_path)
    run.append({"loss": 0.1, "big": 2**53, "odd": math.nan, "far": -math.inf}, step=7, time=STARTED + 1e-6)
    run.end("finished", when=STARTED + 5)
    assert _rows(run) == [
        {
            "timestamp": "2025-11-17T11:46:40.250001Z",
            "step": 7,
            "loss": 0.1,
            "big": 2**53,
            "odd": "NaN",
            "far": "-Infinity",
        }
    ]
    info = RunReader(run.folder).info
    assert (info.status, info.started, info.ended) == (
        "finished",
        "2025-11-17T11:46:40.250000Z",
        "2025-11-17T11:46:45.250000Z",
    )
    assert info.id.startswith("20251117-114640-baseline-")


def test_a_run_that_was_opened_before_goes_on(tmp_path: Path) -> None:
    first = _open(tmp_path)
    first.append({"loss": 1.0}, step=1, time=STARTED)
    first.save({"offset": 10})
    first.end("finished")
    second = _open(tmp_path)
    assert second.folder == first.folder
    assert second.origin.position == {"offset": 10}
    assert _open(tmp_path, origin=Origin(tool="made", place="/elsewhere", key="a")).folder != first.folder


def test_tags_that_a_user_added_or_removed_stay_so_when_the_run_is_imported_again(tmp_path: Path) -> None:
    first = _open(tmp_path, replace(ABOUT, tags=("draft", "vit")))
    first.save({})
    first.end("finished")
    edit_run(first.folder, Edit(add_tags=("paper",), remove_tags=("draft",)))
    again = _open(tmp_path, replace(ABOUT, tags=("draft", "vit", "new")))
    again.describe(replace(ABOUT, tags=("draft", "vit", "new")))
    again.write_file()
    assert again.folder == first.folder
    assert set(RunReader(first.folder).info.file.tags) == {"vit", "paper", "new"}


def test_rows_behind_the_saved_position_are_not_written_again(tmp_path: Path) -> None:
    first = _open(tmp_path)
    rows = [({"loss": value, "lr": 0.1}, step) for step, value in enumerate((1.0, math.nan, 0.5, 0.5))]
    for values, step in rows[:1]:
        first.append(values, step=step, time=STARTED + step)
    first.save({"row": 1})
    for values, step in rows[1:3]:
        first.append(values, step=step, time=STARTED + step)
    # Killed here: it neither saved nor closed anything.
    second = _open(tmp_path)
    for values, step in rows[second.origin.position["row"] :]:
        second.append(values, step=step, time=STARTED + step)
    second.save({"row": 4})
    assert [row["step"] for row in _rows(second)] == [0, 1, 2, 3]
    third = _open(tmp_path)
    third.append({"loss": 0.5, "lr": 0.1}, step=3, time=STARTED + 3)  # once more, and the tracker really has it twice
    assert [row["step"] for row in _rows(third)] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize("size", [50, 30_000])
def test_a_block_reads_back_as_it_was_given(tmp_path: Path, size: int) -> None:
    run = _open(tmp_path)
    steps = np.arange(size, dtype=np.int64)
    values = np.sin(steps * 0.1)
    values[3] = np.nan
    lines = Lines("training")
    lines.add_columns(1_763_380_000_000_000 + steps, steps, {"loss": (steps, values), "lr": (steps[::2], values[::2])})
    run.append_block(lines)
    run.append({"loss": 9.0}, step=size, time=STARTED + 1)
    run.save({})
    run.end("finished")
    (loss,) = RunReader(run.folder).series(["loss"])
    np.testing.assert_array_equal(loss.y, [*values, 9.0])
    np.testing.assert_array_equal(loss.x, [*steps, size])
    (times,) = RunReader(run.folder).series(["lr"], x="time")
    np.testing.assert_array_equal(np.round(times.x * 1e6), 1_763_380_000_000_000 + steps[::2])
    assert run.rows == size + 1
    assert bool(list((run.folder / "segments").glob("*.parquet"))) == (size == 30_000)


def test_a_block_that_a_killed_writer_had_sealed_is_not_written_again(tmp_path: Path) -> None:
    def block() -> Lines:
        steps = np.arange(25_000, dtype=np.int64)
        lines = Lines("training")
        lines.add_columns(1_763_380_000_000_000 + steps, steps, {"loss": (steps, steps * 0.5)})
        return lines

    _open(tmp_path).append_block(block())
    again = _open(tmp_path)
    again.append_block(block())
    again.save({})
    assert (again.rows, len(_rows(again))) == (0, 25_000)


def test_names_that_a_line_uses_itself_are_kept_apart(tmp_path: Path) -> None:
    run = _open(tmp_path)
    run.append({"step": 5.0, "step (2)": 6.0, "timestamp": 1.0, "\ud800": 2.0}, step=1, time=STARTED)
    run.save({})
    (row,) = _rows(run)
    assert {name: row[name] for name in row if name not in ("timestamp", "step")} == {
        "step (2)": 5.0,
        "step (2) (2)": 6.0,
        "timestamp (2)": 1.0,
        "\\ud800": 2.0,
    }
    assert run.origin.renamed["step"] == "step (2)"
    assert _open(tmp_path).name_of("step (2)") == "step (2) (2)"


def test_rows_without_times_are_not_shown_over_time(tmp_path: Path) -> None:
    run = _open(tmp_path, About(name="timeless", has_times=False))
    run.append({"loss": 1.0}, step=1)
    run.append({"loss": 2.0}, step=2)
    run.save({})
    reader = RunReader(run.folder)
    assert [list(series.x) for series in reader.series(["loss"])] == [[1.0, 2.0]]
    assert reader.series(["loss"], x="time") == []
    run.append({"loss": 3.0}, step=3, time=STARTED + 10**9)
    assert [list(series.y) for series in reader.series(["loss"], x="time")] == [[3.0]]


def test_secrets_of_a_tracker_are_not_written(tmp_path: Path) -> None:
    about = About(name="n", notes="see https://me:hunter22@host/x", config={"api_key": "sk-12345678901234567890"})
    run = _open(tmp_path, about)
    run.event("note", "password=hunter22")
    text = "".join(path.read_text() for path in run.folder.rglob("*") if path.is_file())
    assert "hunter22" not in text and "sk-1234" not in text


def test_an_event_is_written_once(tmp_path: Path) -> None:
    for _ in range(2):
        run = _open(tmp_path)
        run.event("alert", "loss is high", when=STARTED, severity="warning", step=3)
        run.close()
    assert [(row.event, row.message, row.step) for row in RunReader(run.folder).events()] == [
        ("alert", "loss is high", 3)
    ]


def test_a_later_attempt_counts_where_both_logged_a_step(tmp_path: Path) -> None:
    run = _open(tmp_path)
    for step in range(5):
        run.append({"loss": 1.0}, step=step, time=STARTED + step)
    run.begin_attempt(STARTED + 10)
    for step in range(3, 6):
        run.append({"loss": 2.0}, step=step, time=STARTED + 10 + step)
    run.save({})
    (shown,) = RunReader(run.folder).series(["loss"])
    assert list(shown.y) == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    (everything,) = RunReader(run.folder).series(["loss"], all_attempts=True)
    assert len(everything.y) == 8


LIVE = """
import sys, time
from pathlib import Path
from trainvitals import settings
from trainvitals.journal.documents.run import Origin
from trainvitals.trackers.run_writing import About, TrackedRuns

run = TrackedRuns(Path(sys.argv[1]), settings.resolve()).open(Origin(tool="made", key="a"), About(name="live"))
assert run.watch()
for step in range(3):
    run.append({"loss": float("nan") if step == 2 else 1.0}, step=step, time=time.time())
run.save({"row": 3})
print(run.folder, flush=True)
sys.stdin.readline()
run.end("finished", when=time.time())
"""


def test_the_agent_follows_and_judges_a_run_that_is_written_live(tmp_path: Path) -> None:
    def follow() -> tuple[subprocess.Popen[str], Path]:
        command = [sys.executable, "-c", LIVE, str(tmp_path)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        return child, Path(child.stdout.readline().strip())

    child, folder = follow()
    reader = RunReader(folder)
    wait_until(lambda: any(row.state == "firing" for row in reader.alerts()), "an alert about the NaN")
    assert "gpu" not in reader.tables() and "system" not in reader.tables()
    child.communicate("\n")
    wait_until(lambda: any(status.is_over for status in reader.statuses()), "the agent to have seen the end")
    assert reader.info.status == "finished"

    child, again = follow()
    assert again == folder
    wait_until(lambda: any(not status.is_over for status in reader.statuses()), "the agent to watch it again")
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    wait_until(lambda: reader.info.status != "running", "its death to be noticed")
    participants = reader.statuses()[0].participants()
    assert list(participants) == [Participant()]
