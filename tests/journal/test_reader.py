"""Reading back exactly what was written: live, sealed, resumed, damaged."""

from __future__ import annotations

import math
import os
import re
import struct
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import START, make_run, write

from trainvitals.errors import JournalError, RunNotFound
from trainvitals.journal import segment_reader, segment_writer
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.identity import Participant
from trainvitals.journal.reader import RunReader, open_run
from trainvitals.journal.run_info import list_runs
from trainvitals.journal.summaries import MetricSummary


def bits(values: Iterable[float]) -> list[bytes]:
    return [b"nan" if math.isnan(value) else struct.pack("<d", value) for value in values]


rows_of_any_kind = st.lists(
    st.dictionaries(
        st.text(min_size=0, max_size=8).filter(lambda key: key not in ("step", "timestamp")),
        st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(2**53), 2**53),
        max_size=5,
    ),
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(rows_of_any_kind, st.integers(0, 30))
def test_every_value_survives_sealing_and_reading(rows: list[dict[str, float]], sealed: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = make_run(Path(place) / "project" / "run")
        numbered = [{"step": step, **row} for step, row in enumerate(rows)]
        head = write(folder, numbered[:sealed])
        write(folder, numbered[sealed:], "training_metrics_20260101_000001", START + sealed)
        segment_writer.seal(head)
        assert not head.exists()
        run = RunReader(folder)
        expected: dict[str, list[tuple[int, float]]] = {}
        for step, row in enumerate(rows):
            for key, value in row.items():
                expected.setdefault(key, []).append((step, float(value)))
        assert run.names() == sorted(expected)
        for name, points in expected.items():
            (series,) = run.series([name])
            assert series.x.tolist() == [step for step, _ in points]
            assert bits(series.y) == bits(value for _, value in points)
            (by_time,) = run.series([name], x="relative")
            assert by_time.x.tolist() == pytest.approx([step for step, _ in points])
        back = [{k: v for k, v in row.items() if k not in ("timestamp", "step")} for row in run.rows()]
        assert [set(row) for row in back if row] == [set(row) for row in rows if row]


def test_names_that_differ_in_case_and_names_full_of_trouble_stay_apart(tmp_path: Path) -> None:
    names = [
        "loss",
        "Loss",
        "LOSS",
        "a\nb",
        'quote"d',
        "emoji 😀",
        "",
        "__proto__",
        "x" * 500,
        "sem;colon'--",
        "..",
        "مرحبا",
    ]
    folder = make_run(tmp_path / "p" / "r")
    segment_writer.seal(write(folder, [{"step": 0, **{name: float(k) for k, name in enumerate(names)}}]))
    run = RunReader(folder)
    assert run.names() == sorted(names)
    for k, name in enumerate(names):
        assert run.series([name])[0].y.tolist() == [float(k)]


def test_a_hundred_thousand_names_in_one_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "r")
    rows = [{"step": s, **{f"layer.{k}/norm": float(k + s) for k in range(100_000)}} for s in range(2)]
    segment_writer.seal(write(folder, rows))
    run = RunReader(folder)
    assert len(run.names()) == 100_000
    assert run.series(["layer.77777/norm"])[0].y.tolist() == [77777.0, 77778.0]


def test_a_live_run_is_read_on_and_a_sealed_part_changes_nothing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "r")
    path = write(folder, [{"step": s, "loss": float(s)} for s in range(10)])
    run = RunReader(folder)
    assert run.series(["loss"])[0].y.tolist() == list(range(10))
    write(folder, [{"step": s, "loss": float(s)} for s in range(10, 15)])
    assert run.series(["loss"])[0].y.tolist() == list(range(15))
    write(folder, [{"step": 15, "loss": 15.0}], "training_metrics_20260101_000001")
    segment_writer.seal(path)
    assert run.series(["loss"])[0].y.tolist() == list(range(16))
    assert run.summary()["loss"].count == 16


def test_ranges_are_inclusive_on_every_axis(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "r")
    path = write(folder, [{"step": s * 10, "loss": float(s)} for s in range(100)])
    for sealed in (False, True):
        if sealed:
            segment_writer.seal(path)
        run = RunReader(folder)
        assert run.series(["loss"], start=100, end=120)[0].y.tolist() == [10, 11, 12]
        assert run.series(["loss"], x="time", start=START + 5, end=START + 6)[0].y.tolist() == [5, 6]
        assert run.series(["loss"], x="relative", start=97.5)[0].y.tolist() == [98, 99]
        assert run.series(["loss"], start=5000) == []
        assert run.series(["never logged"]) == []


@pytest.mark.parametrize("count", [50, 5_000, 700_000])
def test_fewer_points_keep_every_extreme_and_every_nan(tmp_path: Path, count: int) -> None:
    folder = make_run(tmp_path / "p" / "r")
    values = np.sin(np.arange(count) / 50.0)
    values[count // 3] = 1e6
    values[count // 2] = -1e6
    values[count // 4] = values[count // 4 + 1] = math.nan
    for stem, begin in enumerate(range(0, count, 100_000)):
        part = range(begin, min(begin + 100_000, count))
        path = write(
            folder,
            ({"step": s, "loss": float(values[s])} for s in part),
            f"training_metrics_20260101_{stem:06d}",
        )
        if len(part) == 100_000:
            segment_writer.seal(path)
    (series,) = RunReader(folder).series(["loss"], max_points=1000)
    assert series.total == count
    assert len(series.x) <= 1000
    assert np.nanmax(series.y) == 1e6 and np.nanmin(series.y) == -1e6
    assert series.x[np.nanargmax(series.y)] == count // 3
    assert count // 4 in series.x[np.isnan(series.y)]
    assert series.nonfinite == 2, "the first of neighbours is a point, all are counted"
    assert (np.diff(series.x) >= 0).all()
    assert series.x[-1] >= count - 1000


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(allow_nan=True), min_size=1, max_size=400), st.integers(4, 60))
def test_picking_points_never_loses_the_extremes(values: list[float], limit: int) -> None:
    from trainvitals.journal.downsample import pick

    array = np.array(values)
    chosen = pick(array, limit)
    assert len(chosen) <= max(limit, len(values) if len(values) <= limit else limit)
    assert (np.diff(chosen) > 0).all()
    finite = array[np.isfinite(array)]
    if len(finite):
        assert finite.max() in array[chosen] and finite.min() in array[chosen]
    assert bool(np.isfinite(array).all()) == bool(np.isfinite(array[chosen]).all())


def test_a_resumed_run_shows_the_newest_attempt_and_can_show_all(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "r", attempt=3)
    first = write(folder, [{"step": s, "loss": 100.0 + s} for s in range(10)])
    write(
        folder,
        [{"step": s, "loss": 200.0 + s} for s in range(5, 12)],
        "training_metrics_20260102_000000.attempt2",
    )
    write(
        folder,
        [{"step": s, "loss": 300.0 + s} for s in range(8, 10)],
        "training_metrics_20260103_000000.attempt3",
    )
    expected = [100, 101, 102, 103, 104, 205, 206, 207, 308, 309]
    for sealed in (False, True):
        if sealed:
            segment_writer.seal(first)
            segment_writer.seal(folder / "training_metrics_20260102_000000.attempt2.jsonl")
        run = RunReader(folder)
        assert run.series(["loss"])[0].y.tolist() == expected
        assert len(run.series(["loss"], all_attempts=True)[0].y) == 19
        assert run.series(["loss"], max_points=1000)[0].y.tolist() == expected
        assert run.first_steps() == {1: 0, 2: 5, 3: 8}


def test_the_same_step_twice_and_steps_that_go_back_are_all_kept(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "r")
    write(folder, [{"step": s, "loss": v} for s, v in ((0, 1.0), (5, 2.0), (5, 3.0), (2, 4.0))])
    (series,) = RunReader(folder).series(["loss"])
    assert list(zip(series.x.tolist(), series.y.tolist(), strict=True)) == [(0, 1), (2, 4), (5, 2), (5, 3)]


def test_the_newest_steps_are_those_of_the_lowest_rank_and_the_newest_attempt(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "r", attempt=2)
    assert RunReader(folder).newest_steps(3) == []
    write(folder, [{"step": s, "loss": 1.0} for s in range(90)], "training_metrics_20260101_000000.rank0")
    stem = "training_metrics_20260102_000000"
    write(folder, [{"step": s, "loss": 1.0} for s in range(50)], f"{stem}.rank1.attempt2")
    assert [step for step, _ in RunReader(folder).newest_steps(3)] == [87, 88, 89]
    path = write(
        folder, [{"step": 40, "loss": 1.0}, {"loss": 1.0}, {"step": 50, "loss": 1.0}], f"{stem}.rank0.attempt2"
    )
    assert RunReader(folder).newest_steps(3) == [(40, START), (50, START + 2)], "a line without a step tells no pace"
    segment_writer.seal(path)
    assert RunReader(folder).newest_steps(3) == []


def test_ranks_and_gpus_are_series_of_their_own(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "r")
    for rank in (0, 1, 10):
        write(folder, [{"step": 0, "loss": float(rank)}], f"training_metrics_20260101_000000.rank{rank}")
    write(
        folder,
        [{"gpu_index": k, "gpu_uuid": f"GPU-{k}", "utilization_percent": 10.0 * k, "state": "ok"} for k in (0, 1)],
        "gpu_metrics_20260101_000000",
    )
    run = RunReader(folder)
    assert [(s.rank, s.y.tolist()) for s in run.series(["loss"])] == [(0, [0]), (1, [1]), (10, [10])]
    assert [s.rank for s in run.series(["loss"], participants=[Participant(rank=10)])] == [10]
    gpus = run.series(["utilization_percent"], table="gpu", x="time")
    assert [(s.labels["gpu_uuid"], s.y.tolist()) for s in gpus] == [("GPU-0", [0.0]), ("GPU-1", [10.0])]
    segment_writer.seal(folder / "gpu_metrics_20260101_000000.jsonl")
    again = RunReader(folder).series(["utilization_percent"], table="gpu", x="time")
    assert [(dict(s.labels), s.y.tolist()) for s in again] == [(dict(s.labels), s.y.tolist()) for s in gpus]
    assert [row["state"] for row in RunReader(folder).rows("gpu")] == ["ok", "ok"]
    assert sorted(run.tables()) == ["gpu", "training"]


def test_scraped_metrics_keep_their_labels_apart(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "r")
    path = write(
        folder,
        [{"target": "node", "cpu": str(k), "mode": "idle", "node_cpu_seconds_total": float(k)} for k in (0, 1)],
        "openmetrics_metrics_20260101_000000",
    )
    for sealed in (False, True):
        if sealed:
            segment_writer.seal(path)
        found = RunReader(folder).series(["node_cpu_seconds_total"], table="openmetrics", x="time")
        assert [(s.labels["cpu"], s.y.tolist()) for s in found] == [("0", [0.0]), ("1", [1.0])]


def test_the_summary_is_the_same_live_and_sealed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "r")
    values = [3.0, 1.0, math.nan, 7.0, 2.0]
    path = write(folder, [{"step": s, "loss": v} for s, v in enumerate(values)])
    live = RunReader(folder).summary()["loss"]
    assert live == MetricSummary(
        count=5, last=2.0, last_step=4, low=1.0, low_step=1, high=7.0, high_step=3, nonfinite=1
    )
    segment_writer.seal(path)
    assert RunReader(folder).summary()["loss"] == live


def test_damage_is_counted_and_rejected_lines_are_kept_when_sealing(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "r")
    path = write(folder, [{"step": 0, "loss": 1.0}])
    with open(path, "ab") as file:
        file.write(b"garbage\n[1]\n")
        file.write(encode_line({"timestamp": format_time(), "step": 1, "loss": 2.0}))
        file.write(b'{"timestamp":"2026-01-01T0')
    run = RunReader(folder)
    assert run.series(["loss"])[0].y.tolist() == [1.0, 2.0]
    assert (run.damage().torn, run.damage().foreign) == (1, 1)
    sealed = segment_writer.seal(path)
    assert (sealed.damage.torn, sealed.damage.foreign) == (2, 1)
    assert RunReader(folder).damage().torn == 3
    assert b"garbage" in (folder / "segments" / "training_metrics_20260101_000000.rejected").read_bytes()


def test_a_file_that_still_grows_is_not_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "p" / "r")
    path = write(folder, [{"step": 0, "loss": 1.0}])
    check = segment_writer._check_segment

    def check_and_grow(*arguments: Any) -> None:
        check(*arguments)
        write(folder, [{"step": 1, "loss": 2.0}])

    monkeypatch.setattr(segment_writer, "_check_segment", check_and_grow)
    with pytest.raises(JournalError, match="grew"):
        segment_writer.seal(path)
    assert path.exists() and list((folder / "segments").iterdir()) == []
    assert RunReader(folder).series(["loss"])[0].y.tolist() == [1.0, 2.0]


def test_a_kept_jsonl_file_is_not_counted_twice(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "r")
    segment_writer.seal(write(folder, [{"step": 0, "loss": 1.0}]), keep=True)
    assert RunReader(folder).series(["loss"])[0].y.tolist() == [1.0]


def test_runs_are_found_by_id_beginning_name_path_and_latest(tmp_path: Path) -> None:
    one = make_run(tmp_path / "p" / "20260101-000000-a-aaaa", name="alpha")
    two = make_run(tmp_path / "q" / "20260102-000000-b-bbbb", name="alpha")
    assert [info.id for info in list_runs(tmp_path)] == [one.name, two.name]
    for reference, folder in (
        (one.name, one), ("20260101", one), ("latest", two), ("alpha", two), (str(one), one),
    ):  # fmt: skip
        assert open_run(reference, tmp_path).folder == folder
    with pytest.raises(RunNotFound, match="matches 2 runs"):
        open_run("2026", tmp_path)
    with pytest.raises(RunNotFound, match="did you mean"):
        open_run("20260101-000000-a-aaab", tmp_path)


def test_half_written_and_empty_folders_are_no_reason_to_fail(tmp_path: Path) -> None:
    make_run(tmp_path / "p" / "good")
    (tmp_path / "p" / "empty").mkdir()
    (tmp_path / "p" / "half").mkdir()
    (tmp_path / "p" / "half" / "run.json").write_text('{"id": "ha')
    good, half = sorted(list_runs(tmp_path), key=lambda info: info.id)
    assert (good.id, half.id, half.status, half.is_live) == ("good", "half", "unreadable", False)
    assert re.search("cannot read .*run.json", half.cause_text)
    run = RunReader(tmp_path / "p" / "good")
    assert run.names() == [] and run.summary() == {} and run.events() == [] and run.series(["loss"]) == []


def test_a_run_whose_process_is_gone_is_not_called_running(tmp_path: Path) -> None:
    import subprocess

    from trainvitals import runtime

    process = subprocess.Popen(["sleep", "600"])
    who = {"pid": process.pid, "start": runtime.process_start(process.pid), "host": runtime.host_name()}
    folder = make_run(tmp_path / "p" / "r", status="running", process=who)
    assert RunReader(folder).info.status == "running"
    process.kill()
    process.wait()
    assert RunReader(folder).info.status == "crashed"
    elsewhere = make_run(tmp_path / "p" / "s", status="running", process={**who, "host": "another-host"})
    assert RunReader(elsewhere).info.status == "running"


def test_words_are_told_when_they_change_sealed_or_not(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "run")
    words = ["none", "none", "power cap", "thermal", "thermal"]
    rows = [{"gpu_index": gpu, "throttle_reasons": word} for word in words for gpu in (0, 1)]
    first = write(folder, rows, "gpu_metrics_20260101_000000")
    write(folder, [{"gpu_index": 0, "throttle_reasons": "thermal"}], "gpu_metrics_20260101_000100", START + 60)
    write(folder, [{"gpu_index": 0, "throttle_reasons": "none"}], "gpu_metrics_20260101_000200", START + 120)
    live = [(item.labels, item.changes) for item in RunReader(folder).states(["throttle_reasons"])]
    segment_writer.seal(first)
    assert [(item.labels, item.changes) for item in RunReader(folder).states(["throttle_reasons"])] == live
    expected = [(START, "none"), (START + 4, "power cap"), (START + 6, "thermal"), (START + 120, "none")]
    assert live[0] == ({"gpu_index": 0}, expected)
    assert [word for _, word in live[1][1]] == ["none", "power cap", "thermal"]


def test_a_file_that_comes_later_is_seen_by_a_reader_that_has_looked(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "run")
    write(folder, [{"step": 0, "loss": 1.0}])
    old = time.time() - 3600
    os.utime(folder, (old, old))
    reader = RunReader(folder)
    assert reader.series(["loss"])[0].y.tolist() == [1.0]
    write(folder, [{"step": 1, "loss": 2.0}], "training_metrics_20260101_000100")
    assert reader.series(["loss"])[0].y.tolist() == [1.0, 2.0]


def test_many_names_asked_together_are_what_each_is_alone(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "run")
    rows = [
        {"step": step, "a": float(step), "b": math.nan if step == 700 else -step, "c/d": 1.0} for step in range(5000)
    ]
    segment_writer.seal(write(folder, rows))
    write(folder, [{"step": 5000, "a": 5000.0, "b": 0.0}], "training_metrics_20260101_000100")
    names = ["b", "never", "a", "c/d"]
    for limits in ({}, {"start": 1500, "end": 3200}, {"start": 4990}, {"x": "time"}):
        options: Any = {"max_points": 8, **limits}
        together = {item.name: item for item in RunReader(folder).series(names, **options)}
        assert list(together) == ["b", "a", "c/d"]
        for name, item in together.items():
            (alone,) = RunReader(folder).series([name], **options)
            assert (item.x.tolist(), bits(item.y), item.total) == (alone.x.tolist(), bits(alone.y), alone.total)


@pytest.mark.parametrize(("count", "few"), [(10, segment_reader.FEW_VALUES), (10, 0), (6000, 0)])
def test_lines_without_a_step_are_shown_over_time_whatever_a_later_attempt_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, few: int
) -> None:
    monkeypatch.setattr(segment_reader, "FEW_VALUES", few)
    folder = make_run(tmp_path / "p" / "run", attempt=2)
    first = write(folder, [{"step": s, "loss": 1.0} | ({"load": float(s)} if s % 2 else {}) for s in range(count)])
    write(folder, ({"load": float(s)} for s in range(count)), at=START + count)
    write(folder, [{"step": 5, "loss": 2.0}], "training_metrics_20260102_000000.attempt2", START + 2 * count)

    def read(**options: Any) -> list[list[bytes]]:
        return [bits(item.y) for item in RunReader(folder).series(["loss", "load"], x="time", **options)]

    live = read()
    assert [len(values) for values in live] == [6, 2 + count]
    assert bits([count - 1.0])[0] in read(max_points=4)[1]
    segment_writer.seal(first)
    assert read() == live
    assert bits([count - 1.0])[0] in read(max_points=4)[1]
