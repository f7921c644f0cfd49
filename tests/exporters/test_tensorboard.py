"""The mirror in TensorBoard's files: every number once, whatever happened between."""

from __future__ import annotations

import math
import struct
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mirrored import START, make_rows, make_run

from trainvitals.exporters import tensorboard
from trainvitals.exporters.rows import RunDescription, RunEnd, RunRow
from trainvitals.exporters.tensorboard import TensorBoardMirror
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.settings import resolve

END = RunEnd("finished")
SETTINGS = resolve(environ={}, folder=Path("/"))


def read(folder: Path) -> Any:
    """With TensorBoard's reader, which need not import TensorFlow for it."""
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
    found.Reload()
    return found


def open_mirror(run: RunDescription, target: str = "on") -> TensorBoardMirror:
    mirror = tensorboard.create(target, SETTINGS)
    mirror.open(run)
    return mirror


def mirror_all(run: RunDescription, rows: Sequence[RunRow], end: RunEnd | None = END) -> None:
    mirror = open_mirror(run)
    mirror.write(rows)
    mirror.close(end)


def test_what_was_logged_and_measured_is_there_with_its_steps_and_times(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", config={"lr": 0.1, "model": {"layers": 2}}, notes="a *note*", tags=["t"])
    logged = make_rows([{"loss": 1.0 / (step + 1), "odd": "NaN"} for step in range(5)])
    other = make_rows([{"loss": 9.0}], file="training_metrics_20260101_000000.rank1", rank=1)
    gpu = make_rows(
        [{"gpu_index": 0, "gpu_uuid": "G", "temperature_celsius": 60 + n} for n in range(3)], "gpu", file="gpu"
    )
    host = make_rows([{"host": "box", "cpu_usage_percent": 12.5}], "system", file="system")
    mirror_all(run, [*logged, *other, *gpu, *host])
    found = read(tmp_path / "r" / "tensorboard")
    assert found.Tags()["scalars"] == ["training/loss", "training/odd", "training/rank1/loss"]
    points = found.Scalars("training/loss")
    assert [(point.step, point.wall_time) for point in points] == [(step, START + step) for step in range(5)]
    assert [point.value for point in points] == [struct.unpack("f", struct.pack("f", 1 / (n + 1)))[0] for n in range(5)]
    assert all(math.isnan(point.value) for point in found.Scalars("training/odd"))
    assert {"run/text_summary", "config/text_summary", "notes/text_summary"} <= set(found.Tags()["tensors"])
    measured = read(tmp_path / "r" / "tensorboard" / "resources")
    assert measured.Tags()["scalars"] == ["resources/gpu0/temperature_celsius", "resources/system/cpu_usage_percent"]
    heat = measured.Scalars("resources/gpu0/temperature_celsius")
    assert [(point.step, point.value) for point in heat] == [(0, 60.0), (1, 61.0), (2, 62.0)]


@pytest.mark.promise("the agent is killed while it writes event files", "TensorBoard has every number once")
def test_what_was_written_and_not_saved_is_replaced_by_who_goes_on(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    rows = make_rows([{"loss": float(step)} for step in range(20)])
    mirror = open_mirror(run)
    mirror.write(rows[:5])
    mirror._state.close()
    (path,) = (tmp_path / "r" / "tensorboard").glob("events*")
    with open(path, "ab") as file:
        file.write(path.read_bytes()[-50:])  # half a record of somebody who was killed
    mirror_all(run, rows[:12])  # some come twice
    assert [point.step for point in read(path.parent).Scalars("training/loss")] == list(range(12))
    mirror_all(run, rows)
    assert [point.step for point in read(path.parent).Scalars("training/loss")] == list(range(20))
    assert len(list(path.parent.glob("events*"))) == 1


@pytest.mark.promise("the disk is full while event files are written", "TensorBoard has every number once")
def test_a_full_disk_leaves_no_half_written_rows(tmp_path: Path, full_disk: Path) -> None:
    place = full_disk.parent / "elsewhere"
    place.mkdir()
    run = make_run(tmp_path / "r")
    rows = make_rows([{"loss": float(step)} for step in range(5000)])
    (full_disk / "ballast").unlink()
    mirror = open_mirror(run, str(full_disk))
    mirror.write(rows[:10])
    with open(full_disk / "ballast", "wb") as ballast:
        ballast.write(bytes(150_000))
    with pytest.raises(OSError):
        mirror.write(rows[10:])
    (full_disk / "ballast").unlink()
    mirror.write(rows[10:1000])
    mirror.close(END)
    points = read(full_disk / "r").Scalars("training/loss")
    assert [point.step for point in points] == list(range(1000))


def test_a_resumed_run_goes_on_in_another_file_and_repeated_steps_count_once(tmp_path: Path) -> None:
    mirror_all(make_run(tmp_path / "r"), make_rows([{"loss": 1.0}] * 10))
    resumed = make_run(tmp_path / "r", attempt=2)
    rows = [row._replace(values={**row.values, "step": 5 + number}) for number, row in enumerate(
        make_rows([{"loss": 2.0}] * 3, file="training_metrics_20260101_000100.rank0.attempt2"))]  # fmt: skip
    gpu = make_rows([{"gpu_index": 0, "temperature_celsius": 50.0}], "gpu", file="gpu_metrics_20260101_000100.attempt2")
    mirror = open_mirror(resumed)
    mirror.write(gpu)  # the hardware comes first
    mirror.write(rows)
    mirror.close(END)
    points = read(tmp_path / "r" / "tensorboard").Scalars("training/loss")
    assert [(point.step, point.value) for point in points] == [
        *((step, 1.0) for step in range(5)),
        *((step, 2.0) for step in (5, 6, 7)),
    ]


def test_a_config_that_comes_later_is_there_too(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    mirror = open_mirror(run)
    rows = make_rows([{"loss": 1.0}] * 4)
    mirror.write(rows[:2])
    make_run(tmp_path / "r", config={"lr": 0.5})
    mirror.write(rows[2:])
    mirror.close(END)
    found = read(tmp_path / "r" / "tensorboard")
    assert b"0.5" in found.Tensors("config/text_summary")[0].tensor_proto.string_val[0]
    assert "_hparams_/session_start_info" in found.summary_metadata


def test_histograms_of_watch_are_taken_in(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    media = tmp_path / "r" / "media"
    media.mkdir()
    row = {"timestamp": format_time(START), "step": 3, "name": "gradients/fc", "low": -1.0, "high": 1.0, "nonfinite": 0}
    bad = {**row, "counts": "many"}
    (media / "histograms.rank0.jsonl").write_bytes(
        encode_line({**row, "counts": [1, 2, 3, 4]}) + encode_line(bad) + encode_line({**row, "counts": []})
    )
    mirror_all(run, make_rows([{"loss": 1.0}]))
    mirror_all(run, [])
    (point,) = read(tmp_path / "r" / "tensorboard").Histograms("training/gradients/fc")
    assert (point.step, list(point.histogram_value.bucket)) == (3, [1, 2, 3, 4])


def test_alerts_that_fire_are_texts(tmp_path: Path) -> None:
    rows = make_rows(
        [{"state": "firing", "severity": "critical", "message": "loss is NaN"}, {"state": "resolved"}], "alerts"
    )
    mirror_all(make_run(tmp_path / "r"), rows)
    (text,) = read(tmp_path / "r" / "tensorboard" / "resources").Tensors("alerts/text_summary")
    assert text.tensor_proto.string_val[0] == b"**critical** loss is NaN"
