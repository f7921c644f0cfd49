from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import pytest
import story

import trainvitals
from trainvitals.journal.encoding import format_time
from trainvitals.journal.folder_runs import refer_to
from trainvitals.views.tui.shown_run import ShownRun

STAMP = "20260115_100000"


def append(folder: Path, step: int, rank: int = 0, **values: object) -> None:
    row = {"timestamp": format_time(story.START + step * story.STEP_SECONDS), "step": step, **values}
    story.write_lines(folder / f"training_metrics_{STAMP}.rank{rank}.jsonl", [row])


def test_a_run_is_described_from_its_folder(folder: Path) -> None:
    shown = ShownRun(refer_to(folder))
    shown.poll()
    run = shown.describe()
    assert run is not None
    assert (run.name, run.status, run.live, run.step) == ("baseline", "finished", False, 299)
    assert (run.progress.total_steps, run.progress.share) == (1000, 0.3)
    assert run.step_seconds == pytest.approx(story.STEP_SECONDS, rel=0.01)
    assert run.values["learning_rate"] == pytest.approx(1e-3)


def test_of_a_long_run_the_newest_steps_are_known_exactly(tmp_path: Path) -> None:
    folder = story.make_run(tmp_path, steps=3000, ranks=2, gpus=0)
    shown = ShownRun(refer_to(folder))
    shown.poll()
    run = shown.describe()
    assert run is not None
    assert [rank.step for rank in run.ranks] == [2999, 2999]
    assert [len(rank.ratios) for rank in run.ranks] == [120, 120]
    assert run.step_seconds == pytest.approx(story.STEP_SECONDS)
    assert run.ranks[0].seen == pytest.approx(story.START + 2999 * story.STEP_SECONDS)


def test_new_lines_are_taken_in_and_the_curve_goes_on(folder: Path) -> None:
    shown = ShownRun(refer_to(folder))
    shown.poll()
    before = len(shown.curves.tracks("training", "loss", "step")[0])
    append(folder, 300, loss=9.0)
    assert shown.poll()
    assert len(shown.curves.tracks("training", "loss", "step")[0]) == before + 1
    run = shown.describe()
    assert run is not None and run.values["loss"] == 9.0 and run.step == 300
    assert not shown.poll(), "nothing is new"


def test_a_nan_arrives_as_one(folder: Path) -> None:
    shown = ShownRun(refer_to(folder))
    shown.poll()
    shown.curves.tracks("training", "loss", "step")
    append(folder, 300, loss=math.nan)
    shown.poll()
    assert math.isnan(shown.curves.tracks("training", "loss", "step")[0].y[-1])


def test_a_slow_rank_is_seen_against_the_median_of_all(folder: Path) -> None:
    shown = ShownRun(refer_to(folder))
    shown.poll()
    run = shown.describe()
    assert run is not None
    slow = [rank.participant.rank for rank in run.ranks if rank.step_time is not None and rank.step_time > 0.45]
    assert slow == [2]
    ratios = run.ranks[2].ratios
    assert len(ratios) > 50 and all(ratio is not None and ratio > 1.2 for ratio in ratios)


def test_ranks_that_are_not_in_step_are_compared_by_their_newest_steps(tmp_path: Path) -> None:
    folder = story.make_run(tmp_path, steps=0, ranks=1)
    shown = ShownRun(refer_to(folder))
    for rank, steps, seconds in ((0, 40, 0.1), (1, 40, 0.1), (2, 5, 0.4)):
        for step in range(steps):
            append(folder, step, rank, batch_time=seconds)
    shown.poll()
    run = shown.describe()
    assert run is not None
    assert run.ranks[2].ratios == (*[None] * 35, *[4.0] * 5)
    assert set(run.ranks[0].ratios) == {1.0}


def test_without_logged_times_the_time_between_steps_counts(tmp_path: Path) -> None:
    folder = story.make_run(tmp_path, steps=0, ranks=1)
    shown = ShownRun(refer_to(folder))
    for step in range(5):
        append(folder, step, loss=1.0)
    shown.poll()
    run = shown.describe()
    assert run is not None
    assert run.ranks[0].step_time == pytest.approx(story.STEP_SECONDS)


def test_other_frameworks_names_are_understood(tmp_path: Path) -> None:
    folder = story.make_run(tmp_path, steps=0, ranks=1)
    shown = ShownRun(refer_to(folder))
    append(folder, 1, **{"train/loss": 0.5, "grad_norm": 2.0})
    shown.poll()
    run = shown.describe()
    assert run is not None and run.values == {"loss": 0.5, "gradient_norm": 2.0}


def test_the_total_is_found_in_the_configuration_if_it_can_be_true(tmp_path: Path) -> None:
    for number, (config, total) in enumerate(
        [({"max_steps": 500}, 500), ({"max_steps": -1}, None), ({"max_steps": "many"}, None), ({}, None)]
    ):
        folder = story.make_run(tmp_path / str(number), steps=10, ranks=1, config=config)
        shown = ShownRun(refer_to(folder))
        shown.poll()
        run = shown.describe()
        assert run is not None and run.progress.total_steps == total, config


def test_a_folder_that_vanishes_is_reported_and_can_come_back(folder: Path, tmp_path: Path) -> None:
    shown = ShownRun(refer_to(folder))
    shown.poll()
    shutil.move(folder, tmp_path / "away")
    shown.info.expire()
    shown.poll()
    run = shown.describe()
    assert run is not None and run.status == "gone" and "deleted or moved" in shown.problem
    shutil.move(tmp_path / "away", folder)
    shown.poll()
    run = shown.describe()
    assert run is not None and run.status == "finished"


def test_a_later_attempt_replaces_the_steps_it_logs_again(folder: Path) -> None:
    shown = ShownRun(refer_to(folder))
    shown.poll()
    shown.curves.tracks("training", "loss", "step")
    append(folder, 299, loss=1.0)
    shown.poll()
    story.write_lines(
        folder / f"training_metrics_{STAMP}.rank0.attempt2.jsonl",
        [{"timestamp": format_time(story.START + 500), "step": 100, "loss": 5.0}],
    )
    shown.poll()
    track = shown.curves.tracks("training", "loss", "step")[0]
    assert track.x[-1] == 100 and track.y[-1] == 5.0
    assert max(track.x) == 100


def test_where_later_attempts_begin_is_known_by_step_and_by_time(tmp_path: Path) -> None:
    for steps, resume in ((range(10), False), (range(6, 20), True)):
        run = trainvitals.init(project="p", dir=tmp_path, agent=False, resume=resume)
        for step in steps:
            run.log({"loss": 1.0}, step=step)
        run.finish()
    shown = ShownRun(refer_to(Path(run.folder)))
    shown.poll()
    state = shown.describe()
    assert state is not None and state.started is not None
    assert state.seconds_before > 0, "an attempt of its own time"
    [restart] = state.restarts
    assert restart.step == 6
    assert restart.time == state.started, "as of a run: when its newest attempt began"


def test_events_and_alerts_are_read_again_when_there_are_more(folder: Path) -> None:
    shown = ShownRun(refer_to(folder))
    shown.poll()
    tables = shown.tables
    assert [len(rows) for rows in (tables.events, tables.alert_changes, tables.active_alerts)] == [3, 4, 2]
    story.write_lines(
        folder / f"events_{STAMP}.rank0.jsonl", [{"timestamp": format_time(), "event": "x", "message": "y"}]
    )
    shown.poll()
    assert tables.events[-1].event == "x"


def test_output_is_read_from_the_file_that_was_written_last(folder: Path) -> None:
    shown = ShownRun(refer_to(folder))
    assert shown.read_output() == ()
    (folder / "console.rank0.log").write_text("".join(f"line {number}\n" for number in range(9_000)))
    assert shown.read_output()[-2:] == ("line 8998", "line 8999")
    assert all(line.startswith("line ") for line in shown.read_output()), "no line is cut"
    (folder / "console.rank0.stderr.log").write_text("10%\r20%\rTraceback\n  ValueError\n")
    os.utime(folder / "console.rank0.log", (1, 1))
    assert shown.read_output() == ("Traceback", "  ValueError")


def test_ten_thousand_metrics_are_known_by_name_and_only_the_wanted_are_kept(tmp_path: Path) -> None:
    folder = story.make_run(tmp_path, steps=0, ranks=1)
    names = {f"layer{number}/norm": 1.0 for number in range(10_000)}
    append(folder, 1, **names)
    shown = ShownRun(refer_to(folder))
    shown.poll()
    assert len(shown.curves.names("training")) == 10_000
    assert len(shown.curves.tracks("training", "layer77/norm", "step")) == 1
    assert len(shown.curves) == 2, "one curve, over steps and over time"


def test_gpus_of_several_hosts_that_share_a_number_keep_their_own_history(tmp_path: Path) -> None:
    folder = story.make_run(tmp_path, steps=5, ranks=1, gpus=0)
    for host, use in (("node1", 10.0), ("node2", 90.0)):
        rows = [
            {
                "timestamp": format_time(story.START + second),
                "host": host,
                "gpu_index": 0,
                "gpu_uuid": f"GPU-{host}",
                "utilization_percent": use,
            }
            for second in range(3)
        ]
        story.write_lines(folder / f"gpu_metrics_{STAMP}.host-{host}.jsonl", rows)
    shown = ShownRun(refer_to(folder))
    shown.poll()
    histories = {gpu.uuid: gpu.history for gpu in shown.hardware.read().gpus}
    assert histories == {"GPU-node1": (10.0,) * 3, "GPU-node2": (90.0,) * 3}


def test_a_gpu_without_a_uuid_is_one_gpu_before_and_after_a_new_line(tmp_path: Path) -> None:
    folder = story.make_run(tmp_path, steps=5, ranks=1, gpus=0)
    file = folder / f"gpu_metrics_{STAMP}.host-node1.jsonl"
    rows = [
        {"timestamp": format_time(story.START + second), "gpu_index": 0, "utilization_percent": float(second)}
        for second in range(4)
    ]
    story.write_lines(file, rows[:3])
    shown = ShownRun(refer_to(folder))
    shown.poll()
    assert [gpu.history for gpu in shown.hardware.read().gpus] == [(0.0, 1.0, 2.0)]
    story.write_lines(file, rows[3:])
    shown.poll()
    assert [gpu.history for gpu in shown.hardware.read().gpus] == [(0.0, 1.0, 2.0, 3.0)]
