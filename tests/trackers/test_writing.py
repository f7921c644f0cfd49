"""Event files that we write, read by TensorBoard's own loader."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from trainvitals.journal.histograms import Histogram
from trainvitals.trackers.tensorboard import writing


@pytest.fixture(scope="module")
def accumulator() -> Any:
    """TensorBoard's reader, without the TensorFlow that it would import where there is one."""
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(folder: Path) -> Any:
        found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
        found.Reload()
        return found

    return read


def write(folder: Path, records: Sequence[bytes]) -> Path:
    path = writing.new_event_file(folder, "box", 1000.0)
    with open(path, "ab") as file:
        file.write(b"".join(records))
    return path


def test_tensorboard_reads_scalars_with_their_steps_and_times(tmp_path: Path, accumulator: Any) -> None:
    values = [0.5, -1e-30, math.nan, math.inf, -math.inf, 1e300, -0.0]
    tags = [f"training/value {number}" for number in range(len(values))]
    scalars = [writing.encode_scalar(tag, value) for tag, value in zip(tags, values, strict=True)]
    write(tmp_path, [writing.encode_event(1000.25, 7, scalars), writing.encode_event(1001.0, 2**40, scalars[:1])])
    found = accumulator(tmp_path)
    assert found.Tags()["scalars"] == tags
    assert [(point.wall_time, point.step, point.value) for point in found.Scalars(tags[0])] == [
        (1000.25, 7, 0.5),
        (1001.0, 2**40, 0.5),
    ]
    read = [found.Scalars(tag)[0].value for tag in tags]
    assert read[1] == pytest.approx(-1e-30) and math.isnan(read[2])
    assert read[3:6] == [math.inf, -math.inf, math.inf]  # what 32 bits do not hold is infinite
    assert math.copysign(1, read[6]) == -1


def test_names_of_any_letters_are_kept(tmp_path: Path, accumulator: Any) -> None:
    names = ["größe/量", 'a "b" c', "x" * 5000, "lone \ud800"]
    write(tmp_path, [writing.encode_event(1.0, 0, [writing.encode_scalar(name, 1.0) for name in names])])
    assert set(accumulator(tmp_path).Tags()["scalars"]) == {*names[:3], "lone \\ud800"}


def test_tensorboard_reads_histograms(tmp_path: Path, accumulator: Any) -> None:
    shapes = {"equal": Histogram(2.0, 2.0, [5]), "wide": Histogram(-1.0, 1.0, [1, 0, 3, 4])}
    values = [writing.encode_histogram(tag, shape) for tag, shape in shapes.items()]
    write(tmp_path, [writing.encode_event(1.0, 3, values)])
    found = accumulator(tmp_path)
    wide, equal = (found.Histograms(tag)[0].histogram_value for tag in ("wide", "equal"))
    assert (wide.min, wide.max, wide.num) == (-1.0, 1.0, 8.0)
    assert list(wide.bucket_limit) == [-0.5, 0.0, 0.5, 1.0] and list(wide.bucket) == [1, 0, 3, 4]
    assert (equal.sum, list(equal.bucket)) == (10.0, [5])


def test_tensorboard_reads_texts_and_hyperparameters(tmp_path: Path, accumulator: Any) -> None:
    from tensorboard.plugins.hparams import metadata

    config = {"lr": 0.1, "layers": 12, "nesterov": True, "optimizer": "adam"}
    values = [
        writing.encode_text("notes", "**bold** ü"),
        writing.encode_session_start(config, "baseline", 1000.0),
        writing.encode_session_end(writing.SUCCESS, 2000.0),
    ]
    write(tmp_path, [writing.encode_event(1000.0, 0, values)])
    found = accumulator(tmp_path)
    (text,) = found.Tensors("notes/text_summary")
    assert text.tensor_proto.string_val[0].decode() == "**bold** ü"
    content = found.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    start = metadata.parse_session_start_info_plugin_data(content)
    assert start.hparams["lr"].number_value == 0.1 and start.hparams["layers"].number_value == 12
    assert start.hparams["nesterov"].bool_value is True and start.hparams["optimizer"].string_value == "adam"
    assert (start.group_name, start.start_time_secs) == ("baseline", 1000.0)
    content = found.SummaryMetadata(metadata.SESSION_END_INFO_TAG).plugin_data.content
    end = metadata.parse_session_end_info_plugin_data(content)
    assert (end.status, end.end_time_secs) == (writing.SUCCESS, 2000.0)


def test_after_a_restart_tensorboard_drops_later_steps_of_the_earlier_file(tmp_path: Path, accumulator: Any) -> None:
    def event(step: int, value: float) -> bytes:
        return writing.encode_event(1000.0 + step, step, [writing.encode_scalar("loss", value)])

    first = write(tmp_path, [event(step, 1.0) for step in range(10)])
    second = write(tmp_path, [writing.encode_restart(2000.0, 5), *(event(step, 2.0) for step in range(5, 8))])
    assert first.name < second.name
    points = accumulator(tmp_path).Scalars("loss")
    assert [(point.step, point.value) for point in points] == [
        *((step, 1.0) for step in range(5)),
        (5, 2.0),
        (6, 2.0),
        (7, 2.0),
    ]


def test_a_file_that_ends_within_a_record_is_read_up_to_there(tmp_path: Path, accumulator: Any) -> None:
    record = writing.encode_event(1.0, 1, [writing.encode_scalar("loss", 1.0)])
    path = write(tmp_path, [record, record])
    whole = path.read_bytes()
    for size in range(len(whole) - len(record), len(whole), 7):
        path.write_bytes(whole[:size])
        assert len(accumulator(tmp_path).Scalars("loss")) == 1
